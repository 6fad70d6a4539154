"""Whether a replica of a subscription is sound in itself, and says what is to be expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from embeddedpulsar._engine.subscription.state.dispatch_state import DispatchState
from embeddedpulsar._engine.subscription.state.entry_states import (
    DELAYED,
    FIRST_OWNER,
    IN_TRANSACTION,
    LAST_OWNER,
    NONE,
    PART,
    WAITING,
)
from embeddedpulsar._engine.subscription.state.replica import (
    SubscriptionState,
    decode_snapshot,
    encode_snapshot,
)
from embeddedpulsar.message_id import Position
from tests.storms.dispatch.dispatch_model import DispatchModel, Seen
from tests.storms.dispatch.virtual_log import VirtualEntry, VirtualLog

_SLOT = 0xFFFF


def see(state: SubscriptionState, log: VirtualLog) -> Seen:
    """A copy of what matters of a replica."""
    dispatch = state.dispatch
    owners: dict[Position, int] = {}
    counts: dict[Position, int] = {}
    for entry in _entries_behind(state, log):
        states = dispatch.pending.ledger(entry.position.ledger_id)
        code = dispatch.pending.state(*entry.position)
        if states is not None and code != NONE:
            owners[entry.position] = code
            count = states.redeliveries(entry.position.entry_id)
            if count:
                counts[entry.position] = count
    members = {one.consumer_id: one.code for one in state.consumers.all()}
    return Seen(members, owners, counts, dispatch.read, state.mark_delete, state.epoch)


def _entries_behind(state: SubscriptionState, log: VirtualLog) -> list[VirtualEntry]:
    return log.entries[log.index_of(state.mark_delete.next()) :]


def note_expired(state: SubscriptionState, model: DispatchModel, since: Position) -> None:
    """Parts of messages that do not come any more may be acknowledged without them."""
    for entry in model.log.entries[model.log.index_of(min(state.mark_delete, since).next()) :]:
        if state.acks.is_acked(entry.position) and _is_over(entry, model):
            model.acked.add(entry.position)


def wrong_acks(state: SubscriptionState, model: DispatchModel, since: Position) -> Iterator[str]:
    """Entries the replica and the model disagree on, behind what was the mark-delete position before."""
    start = min(since, state.mark_delete).next()
    for entry in model.log.entries[model.log.index_of(start) :]:
        position = entry.position
        if entry.is_damaged:
            continue
        if state.acks.is_acked(position) != (position in model.acked):
            yield f"{position} acknowledged: {position not in model.acked}, which it should not be"
        elif state.acks.indexes(position) != model.partial.get(position, 0):
            wanted = model.partial.get(position, 0)
            yield f"{position}: indexes {state.acks.indexes(position):b} are not {wanted:b}"


def _is_over(entry: VirtualEntry, model: DispatchModel) -> bool:
    """Whether a part may be acknowledged without its message."""
    last = entry.last
    return entry.may_expire or (not entry.count and last is not None and last.position in model.acked)


def adopt_transactions(state: SubscriptionState, model: DispatchModel) -> None:
    """Take what is pending from a state, after a step that nobody knows the outcome of."""
    model.held, model.through = {}, None
    for one, pending in state.pending_acks.transactions.items():
        for ledger_id, entries in pending.entries.items():
            for entry in entries:
                model.held.setdefault(Position(ledger_id, entry), {})[one] = -1
        for ledger_id, batches in pending.batches.items():
            for entry, (bits, _) in batches.items():
                model.held.setdefault(Position(ledger_id, entry), {})[one] = bits
        last = pending.through
        if last is not None:
            bits = (2 << last.batch_index) - 1 if last.is_partial else -1
            model.through = one, Position(last.ledger_id, last.entry_id), bits


def forget_below(state: SubscriptionState, model: DispatchModel) -> None:
    """Nothing is pending before the mark-delete position."""
    mark_delete = state.mark_delete
    model.held = {position: holders for position, holders in model.held.items() if position > mark_delete}
    if model.through is not None and model.through[1] <= mark_delete:
        model.through = None


def wrong_transactions(state: SubscriptionState, model: DispatchModel) -> Iterator[str]:
    """Transactions that hold something else than they acknowledged."""
    found = DispatchModel(model.log)
    adopt_transactions(state, found)
    if found.held != model.held:
        yield f"transactions hold {found.held}, not {model.held}"
    if found.through != model.through:
        yield f"a transaction holds everything up to {found.through}, not {model.through}"


def wrong_places(state: SubscriptionState, seen: Seen, model: DispatchModel) -> Iterator[str]:
    """Entries that are nowhere, or where they should not be; and totals that do not add up."""
    dispatch = state.dispatch
    codes = {WAITING, DELAYED, *seen.members.values()}
    totals = [0] * 256
    for entry in _entries_behind(state, model.log):
        position, code = entry.position, seen.owners.get(entry.position, NONE)
        if code != NONE:
            totals[code] += entry.count
        is_pending = position < seen.read and position not in model.acked and not entry.is_damaged
        is_held = entry.count > 0 and not model.is_free(entry)
        if is_pending and code not in (
            (IN_TRANSACTION, DELAYED) if is_held else codes if entry.count else (PART,)
        ):
            yield f"{position} is with nobody: state {code}"
        # What is damaged is only noticed when the consumer that it was assigned to reads it.
        if not is_pending and code != NONE and not (entry.is_damaged and entry.count):
            yield f"{position} has state {code}, and should have none"
    if dispatch.pending.totals != totals:
        yield f"totals are {dispatch.pending.totals}, not {totals}"
    if seen.counts != {one: count for one, count in model.counts.items() if one in seen.owners}:
        yield f"redelivery counts {seen.counts} are not {model.counts}"


def wrong_keys(state: SubscriptionState, seen: Seen, model: DispatchModel, is_ordered: bool) -> Iterator[str]:
    """What is held by key does not agree with who has what."""
    held: dict[int, Counter[int]] = {}
    keys: dict[int, set[int]] = {}
    pending = state.dispatch.pending
    for position, code in seen.owners.items():
        states = pending.ledger(position.ledger_id)
        if not FIRST_OWNER <= code <= LAST_OWNER or states is None or states.hashes is None:
            continue
        key = states.hashes[position.entry_id - states.base]
        held.setdefault(key & _SLOT, Counter())[code] += 1
        keys.setdefault(key, set()).add(code)
    if len(pending.keys) != len(held):
        yield f"{len(pending.keys)} keys held, not {len(held)}"
    for slot, codes in held.items():
        if pending.keys.number(slot) != sum(codes.values()):
            yield f"key slot {slot}: {pending.keys.number(slot)} entries held, not {dict(codes)}"
        elif is_ordered and {pending.keys.holder(slot)} != set(codes):
            yield f"key slot {slot}: held by {pending.keys.holder(slot)}, not {dict(codes)}"
    if is_ordered:
        yield from (f"key {key} is in flight with {sorted(c)}" for key, c in keys.items() if len(c) > 1)
        yield from _wrong_newcomers(seen, model)


def _wrong_newcomers(seen: Seen, model: DispatchModel) -> Iterator[str]:
    for consumer_id, joined in model.joined.items():
        code = seen.members.get(consumer_id)
        first = model.next_unacked(seen.mark_delete)  # parts of chunked messages hold nobody back
        if code is None or joined <= seen.mark_delete.next() or first is None or joined <= first:
            continue
        for position, owner in seen.owners.items():
            if owner == code and position >= joined:
                yield f"consumer {consumer_id} joined at {joined} and has {position} already"


def wrong_limits(state: SubscriptionState, batch: int, before: dict[int, int]) -> Iterator[str]:
    """Consumers that hold more than they may, or are blocked, or not, against the rules. What they held
    ``before`` they keep when a limit becomes lower; ``before`` is brought up to date."""
    dispatch = state.dispatch
    held = 0
    everything = sum(before.values())
    for consumer in state.consumers.all():
        holds, most = dispatch.holds(consumer.consumer_id), consumer.rules.max_unacked
        held += holds
        assigned = dispatch.assigned_by_consumer.get(consumer.consumer_id)
        if assigned is not None and most:
            yield from _wrong_block(
                f"consumer {consumer.consumer_id}",
                holds,
                most,
                assigned.is_blocked,
                max(most + batch - 1, before.get(consumer.consumer_id, 0)),
            )
    if dispatch.assigned_by_consumer and dispatch.most_unacked:
        most = dispatch.most_unacked
        yield from _wrong_block(
            "together", held, most, dispatch.is_blocked, max(most + batch - 1, everything)
        )
    before.clear()
    before.update({one.consumer_id: dispatch.holds(one.consumer_id) for one in state.consumers.each()})


def _wrong_block(who: str, holds: int, most: int, is_blocked: bool, largest: int) -> Iterator[str]:
    if holds >= most and not is_blocked:
        yield f"{who}: {holds} of {most} unacknowledged, and not blocked"
    if holds <= most // 2 and is_blocked:
        yield f"{who}: {holds} of {most} unacknowledged, and blocked"
    if holds > largest:
        yield f"{who}: {holds} unacknowledged, where {most} are allowed"


def wrong_delays(dispatch: DispatchState, seen: Seen, model: DispatchModel) -> Iterator[str]:
    """Delayed entries the tracker does not have, or has with another time."""
    tracked = dispatch.delayed
    times = {one.position: one.deliver_at for one in model.log.entries}
    delayed = [times[one] for one, code in seen.owners.items() if code == DELAYED]
    due = tracked.next_due()
    if delayed and (due is None or due > min(delayed)):
        yield f"an entry is due at {min(delayed)}, and the next at {due}"
    if len(tracked) < len(delayed):
        yield f"{len(delayed)} entries are delayed, {len(tracked)} tracked"


def wrong_snapshot(state: SubscriptionState, log: VirtualLog, is_ordered: bool) -> Iterator[str]:
    """A snapshot that does not come back as it was."""
    data = encode_snapshot(state)
    other = decode_snapshot(data)
    if encode_snapshot(other) != data:
        yield "a snapshot of a snapshot differs"
    if not state.dispatch.assigned_by_consumer:
        return
    if see(other, log) != see(state, log):
        yield "a snapshot knows other entries"
    if other.dispatch.pending.totals != state.dispatch.pending.totals:
        yield "a snapshot has other totals"
    if is_ordered and other.dispatch.pending.keys.pack() != state.dispatch.pending.keys.pack():
        yield "a snapshot holds other keys"


def active_of(state: SubscriptionState, partition: int) -> int:
    """Who is to be active, found the simple way."""
    everybody = state.consumers.all()
    if not everybody:
        return 0
    best = [one for one in everybody if one.priority_level == min(each.priority_level for each in everybody)]
    if partition < 0:
        return best[0].consumer_id
    return sorted(best, key=lambda one: (one.name, one.consumer_id))[partition % len(best)].consumer_id
