"""Assignments that give scattered entries to several consumers: the same as their ranges."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.subscription_record import STAY, Assign, FreshRun, Share
from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import Claim
from embeddedpulsar._engine.subscription.dispatch.dispatchers import CLAIM_DISPATCHERS
from embeddedpulsar._engine.subscription.state.entry_states import WAITING
from embeddedpulsar._engine.subscription.state.sticky_key_selector import HASH_RANGE
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.message_id import Position
from tests.unit.subscription.state.dispatch_states import LEDGER, NO_LIMIT, StateSite, entries

NOBODY = 99


def key_site() -> StateSite:
    return StateSite(ConsumerType.KeyShared)


def join(site: StateSite) -> int:
    return site.join(selector=HASH_RANGE)


def share(first: int, owners: tuple[int, ...], picks: str) -> Assign:
    """``picks`` has a digit for each entry from ``first`` on."""
    return Assign(STAY, 0, (), (), (), (), (Share(LEDGER, first, owners, bytes(map(int, picks))),))


def by_ranges(command: Assign) -> Assign:
    ranges = tuple(one for each in command.shares for one in each.ranges())
    return command._replace(ranges=ranges, shares=())


def held(site: StateSite) -> object:
    """What dispatch knows: states, totals, assigned entries, how many entries of a key are in flight."""
    dispatch = site.dispatch
    in_flight = {slot: number for slot, (_, number) in dispatch.pending.keys.pack().items()}
    return dispatch.pack(site.state.acks), dispatch.pending.totals, in_flight


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.integers(0, 3), max_size=40),
    st.sets(st.integers(1, 60), max_size=10),
    st.booleans(),
    st.randoms(),
)
def test_a_share_is_its_ranges(waiting: list[int], fresh: list[int], acked: set[int], is_keyed, chance):
    """For entries that wait, for those of the same command, and if some were acknowledged before; one of the
    consumers has left."""
    sites, kind = [], ConsumerType.KeyShared if is_keyed else ConsumerType.Shared
    end = len(waiting) + len(fresh)
    hashes = [chance.choice((5, 60_000, 5 + 65536)) for _ in range(end)] if is_keyed else None
    messages = [chance.randrange(1, 4) for _ in range(end)] if chance.random() < 0.5 else None
    for is_share in (True, False):
        site = StateSite(kind)
        owners = (site.join(**({"selector": HASH_RANGE} if is_keyed else {})) for _ in range(2))
        ids = (*owners, NOBODY)
        site.ack(ids[0], *acked)
        middle = len(waiting)
        site.read(0, middle - 1, messages and messages[:middle], hashes and hashes[:middle])
        command = Assign(STAY, 0, (), (), (), (), (Share(LEDGER, 0, ids, bytes(waiting)),))
        site.apply(command if is_share else by_ranges(command))
        if fresh:
            run = FreshRun(
                LEDGER,
                middle,
                end - 1,
                None if messages is None else array("I", messages[middle:]),
                None if hashes is None else array("I", hashes[middle:]),
            )
            command = Assign(
                Position(LEDGER, end), 0, (run,), (), (), (), (Share(LEDGER, middle, ids, bytes(fresh)),)
            )
            site.apply(command if is_share else by_ranges(command))
        sites.append(site)
    assert held(sites[0]) == held(sites[1])


def test_what_is_scattered_is_forgotten_in_order():
    """Entries its application was given are those with the lowest numbers, in the middle of a share, too."""
    site = key_site()
    one, other = join(site), join(site)
    site.read(0, 9, hashes=range(10))
    site.apply(share(0, (one, other), "1212112201"))
    assigned = site.dispatch.assigned_by_consumer[one]
    assert assigned.ranges == [(LEDGER, 0, 0), (LEDGER, 2, 2), (LEDGER, 4, 5), (LEDGER, 9, 9)]
    site.apply(share(8, (other, one), "2")._replace(handed=((one, 3),)))
    assert (assigned.start, assigned.end) == (3, 6)
    assert assigned.ranges == [(LEDGER, 5, 5), (LEDGER, 9, 9), (LEDGER, 8, 8)]
    assert list(assigned.behind(4)) == [(LEDGER, 9, 9), (LEDGER, 8, 8)]
    site.nack(one, 9, handed=4)
    assert [each for each in assigned.ranges if each[0] == LEDGER] == [(LEDGER, 8, 8)]
    site.leave(one, record.DETACH_DEAD, handed=4)
    assert [site.count(entry) for entry in range(10)] == [1, 0, 1, 0, 1, 1, 0, 0, 0, 1]
    assert site.owners(9) == [
        WAITING,
        other,
        WAITING,
        other,
        WAITING,
        WAITING,
        other,
        other,
        WAITING,
        WAITING,
    ]


def test_touching_pieces_are_one_range():
    """However they were assigned: a snapshot must not show it."""
    site = key_site()
    one, other = join(site), join(site)
    site.read(0, 9, hashes=range(10))
    site.apply(share(0, (one, other), "121"))
    site.assign((one, 3, 4))
    site.apply(share(5, (one,), "11"))
    assert site.dispatch.assigned_by_consumer[one].ranges == [(LEDGER, 0, 0), (LEDGER, 2, 6)]


def test_scattered_keys_are_dealt_as_shares():
    """One for what waited, one for what is read; each consumer gets its entries in order."""
    site = key_site()
    high, low = join(site), join(site)
    keys = [5 if entry % 2 else 60_000 for entry in range(80)]
    site.claim(high, entries(0, 38, keys), granted={high: 20, low: 0})
    permits = dict.fromkeys((high, low), NO_LIMIT)
    claim = Claim(low, 1000, entries(39, 79, keys[39:]), 41, permits, {}, cutoff_ms=0)
    command = CLAIM_DISPATCHERS[site.type].assign(site.state.consumers, site.dispatch, claim)
    assert command is not None and not command.ranges and command.consumers == {high, low}
    (waited, fresh) = command.shares
    assert waited.first == 1 and fresh.first == 39
    site.apply(command)
    assert site.owners(79)[1::2] == [low] * 40
    assert site.dispatch.assigned_by_consumer[low].end == 40
