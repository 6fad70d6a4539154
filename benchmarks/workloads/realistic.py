"""What most programs do: JSON with keys and properties, one at a time or batched, for 1 to 8 consumers."""

from __future__ import annotations

from benchmarks.contest import Budget, Contest, Contestant, Settings
from benchmarks.realistic.cell import BATCHED, KEY_BATCHED, MANY_KEYS, SEND, Cell
from benchmarks.realistic.contestant import CONSUMERS, CPU_MICROSECONDS, PRODUCER
from benchmarks.realistic.embedded import Embedded
from benchmarks.realistic.nats_pull import NatsPull
from benchmarks.realistic.real_pulsar import RealPulsar, TunedPulsar
from benchmarks.realistic.redis_group import RedisGroup

# Messages of a round at most, for peers that need milliseconds for one.
SLOW_SEND = {RedisGroup: 5_000, NatsPull: 2_000, RealPulsar: 300, TunedPulsar: 1_000}


def contests(settings: Settings) -> list[Contest]:
    """One table for each subscription type and way of sending."""
    return [
        _exclusive(settings, SEND),
        _exclusive(settings, BATCHED),
        _shared(settings, SEND),
        _shared(settings, BATCHED),
        _key_shared(settings, SEND),
        _key_shared(settings, BATCHED),
        _key_shared(settings, KEY_BATCHED),
    ]


def _exclusive(settings: Settings, mode: str) -> Contest:
    plain, keyed, backlog, keyed_backlog = (
        Embedded(Cell("Exclusive", mode, 1, keys, is_backlog))
        for is_backlog in (False, True)
        for keys in (0, MANY_KEYS)
    )
    budgets = [_keyed_budget(plain, keyed)]
    if mode == SEND:
        budgets.append(_consumer_budget(keyed_backlog, 6))
    rows = [plain, keyed, backlog, keyed_backlog, *_peers(plain.cell)]
    return _contest(settings, "Exclusive", mode, rows, budgets)


def _shared(settings: Settings, mode: str) -> Contest:
    one, two, four, eight = (Embedded(Cell("Shared", mode, consumers)) for consumers in (1, 2, 4, 8))
    keyed = [Embedded(Cell("Shared", mode, consumers, MANY_KEYS)) for consumers in (1, 4)]
    backlog = [Embedded(Cell("Shared", mode, consumers, MANY_KEYS, True)) for consumers in (1, 4)]
    budgets = [_scale_budget(one, four, 2), _scale_budget(backlog[0], backlog[1], 2)]
    if mode == SEND:
        budgets.append(_consumer_budget(backlog[0], 9))
    rows = [one, two, four, eight, *keyed, *backlog, *_peers(four.cell)]
    return _contest(settings, "Shared", mode, rows, budgets)


def _key_shared(settings: Settings, mode: str) -> Contest:
    one, two, four, eight = (
        Embedded(Cell("KeyShared", mode, consumers, MANY_KEYS)) for consumers in (1, 2, 4, 8)
    )
    backlog = [Embedded(Cell("KeyShared", mode, consumers, MANY_KEYS, True)) for consumers in (1, 4)]
    budgets = [_scale_budget(one, four, 2.5), _scale_budget(backlog[0], backlog[1], 2.5)]
    rows: list[Contestant] = [one, two, four, eight, *backlog]
    if mode == KEY_BATCHED:
        plain = Embedded(Cell("KeyShared", SEND, 1))
        plain.key = plain.name = "embeddedpulsar 1 consumer, no key, one at a time"
        rows.append(plain)
        budgets.append(_keyed_budget(plain, one))
    else:
        rows += [Embedded(Cell("KeyShared", mode, consumers)) for consumers in (1, 4)]
    rows += [peer for peer in _peers(four.cell) if isinstance(peer, RealPulsar)]
    return _contest(settings, "Key_Shared", mode, rows, budgets)


def _peers(cell: Cell) -> list[Contestant]:
    """What else can do the work of a cell."""
    peers = [peer(cell) for peer in (RedisGroup, NatsPull, RealPulsar, TunedPulsar)]
    if cell.mode == SEND:
        for peer in peers:
            peer.operation_limit = SLOW_SEND[type(peer)]
    return list(peers)


def _contest(
    settings: Settings, kind: str, mode: str, rows: list[Contestant], budgets: list[Budget]
) -> Contest:
    sent = "sent one at a time" if mode == SEND else f"sent in {mode.replace('batched', 'batches')}"
    return Contest(
        f"realistic, {kind}: JSON of 300 to 1,000 bytes, {sent}, each received and acknowledged",
        CPU_MICROSECONDS,
        rows,
        budgets,
        fixed=settings.scale(int(1000 * settings.seconds), 200),
    )


def _keyed_budget(plain: Contestant, keyed: Contestant) -> Budget:
    text = "a key and properties cost the producer <= 1.5 x a message without them"
    return Budget(text, keyed.key, 1.5, peer=plain.key, note=PRODUCER, at_least=False)


def _scale_budget(one: Embedded, four: Embedded, limit: float) -> Budget:
    text = (
        f"4 consumers together <= {limit:g} x the CPU time of 1 consumer" + ", backlog" * one.cell.is_backlog
    )
    return Budget(text, four.key, limit, peer=one.key, note=CONSUMERS, at_least=False)


def _consumer_budget(row: Embedded, microseconds: float) -> Budget:
    text = f"receive and acknowledge, backlog <= {microseconds:g} us"
    return Budget(text, row.key, microseconds, note=CONSUMERS, at_least=False)
