"""What becomes of entries as consumers come, go, acknowledge and give back: the replicated rules."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack, group_batches, group_entries
from embeddedpulsar._engine.format.subscription_record import Assign, FreshRun
from embeddedpulsar._engine.subscription.state import replica as effects
from embeddedpulsar._engine.subscription.state.dispatch_state import UNLIMITED, DispatchState
from embeddedpulsar._engine.subscription.state.entry_states import DELAYED, WAITING
from embeddedpulsar._engine.subscription.state.replica import checkpoint_of, decode_snapshot, encode_snapshot
from embeddedpulsar._engine.subscription.state.sticky_key_selector import STICKY
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.message_id import Position
from tests.unit.subscription.state.dispatch_states import LEDGER, StateSite, entries


def test_without_consumers_counts_are_kept():
    """The first consumer begins at the mark-delete position; of what the last one had, counts are left."""
    site = StateSite()
    one = site.join()
    site.claim(one, entries(0, 3))
    site.nack(one, 0, handed=4)
    site.ack(one, 1)
    assert site.count(0) == 1
    site.leave(one)
    assert site.dispatch.read == (LEDGER, 0)
    assert not any(site.dispatch.pending.totals)
    again = site.join()
    assert site.claim(again, entries(0, 3)) == {again: [(0, 3)]}
    assert site.owners(3) == [again, 0, again, again]
    assert [site.count(entry) for entry in range(4)] == [1, 0, 0, 0]


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_who_dies_alone_is_counted(kind: ConsumerType):
    """The last consumer's death counts what its application was given, again and again."""
    site = StateSite(kind)
    for count in range(1, 4):
        one = site.join()
        site.read(0, 3)
        site.assign((one, 0, 3))
        site.leave(one, record.DETACH_DEAD, handed=2)
        assert site.dispatch.counts.pack() == [[LEDGER, [0, count], [1, count]]]


def test_counts_end_with_an_acknowledgement():
    """Of a consumer of whatever type, before or after the entries are read again; or with a seek."""
    site = StateSite()
    one = site.join()
    site.read(0, 5)
    site.assign((one, 0, 5))
    site.leave(one, record.DETACH_DEAD, handed=5)
    site.type = ConsumerType.Exclusive
    active = site.join()
    site.ack(active, 0)
    site.ack(active, 3)
    assert len(site.dispatch.counts) == 4  # entry 3 is found out about when it is read
    site.leave(active)
    site.type = ConsumerType.Shared
    two = site.join()
    site.read(1, 5)
    assert len(site.dispatch.counts) == 0
    assert [site.count(entry) for entry in range(1, 6)] == [1, 1, 0, 1, 0]
    site.leave(two)
    assert len(site.dispatch.counts) == 3
    site.apply(record.Seek(LEDGER, -1))
    assert len(site.dispatch.counts) == 0


def test_counts_outlive_a_power_loss():
    """What the log lost is forgotten; what the journal knows of the rest is not."""
    site = StateSite()
    one = site.join()
    site.read(0, 3)
    site.assign((one, 0, 3))
    site.nack(one, 1, handed=4)
    site.ack(one, 0)
    site.apply(record.Clamp(LEDGER, 2))
    assert site.dispatch.counts.pack() == [[LEDGER, [1, 1]]]


def test_large_counts():
    """A count above 255 is as good as any."""
    site = StateSite()
    site.dispatch.counts.keep([(LEDGER, 1, 300)])
    site._other = decode_snapshot(encode_snapshot(site.state))
    site.join()
    site.read(0, 3)
    assert [site.count(entry) for entry in range(4)] == [0, 300, 0, 0]


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        (record.DETACH_CLOSED, [0, 0, 0, 0]),
        (record.DETACH_DEAD, [1, 1, 0, 0]),
        (record.DETACH_SILENT, [1, 1, 0, 0]),
    ],
)
def test_what_a_leaver_had_waits(reason: int, counts: list[int]):
    """Entries its application was given count, unless it closed; those it fetched ahead do not."""
    site = StateSite()
    one, other = site.join(), site.join()
    site.read(0, 4)
    site.assign((one, 0, 3), (other, 4, 4))
    assert site.leave(one, reason, handed=2) & effects.CLAIMABLE
    assert site.owners(4) == [WAITING] * 4 + [other]
    assert [site.count(entry) for entry in range(4)] == counts
    assert site.leave(one) == effects.NONE


def test_what_was_forgotten_counts_as_seen():
    """An assignment says how many entries the consumer's application was given before it."""
    site = StateSite()
    one, other = site.join(), site.join()
    site.read(0, 9)
    site.assign((one, 0, 3))
    site.assign((one, 4, 5), (99, 6, 6), handed=((one, 3), (99, 7)))
    assigned = site.dispatch.assigned_by_consumer[one]
    assert assigned.start == 3
    site.leave(one, record.DETACH_DEAD, handed=4)
    assert [site.count(entry) for entry in range(6)] == [1, 1, 1, 1, 0, 0]
    assert site.owner(6) == WAITING
    assert site.dispatch.holds(99) == site.dispatch.holds(other) == 0


def test_giving_back_counts():
    """Single entries always, and only the consumer's own; everything, as far as it was seen."""
    site = StateSite()
    one, other = site.join(), site.join()
    site.read(0, 5)
    site.assign((one, 0, 3), (other, 4, 5))
    assert site.nack(one, 1, 4, 9, handed=2) & effects.CLAIMABLE
    assert site.owners(5) == [one, WAITING, one, one, other, other]
    assert site.count(1) == 1
    site.nack(one, handed=3)
    assert site.owners(5) == [WAITING] * 4 + [other, other]
    assert [site.count(entry) for entry in range(4)] == [1, 1, 1, 0]


def test_giving_back_what_is_void_changes_nothing():
    """After a seek, or by a consumer that left."""
    site = StateSite()
    one, other = site.join(), site.join()
    site.read(0, 1)
    site.assign((one, 0, 1))
    epoch = site.epoch_of(one)
    site.apply(record.Seek(LEDGER, -1))
    assert site.apply(record.Redeliver(one, epoch, 0, ())) == effects.STALE
    site.leave(other)
    assert site.apply(record.Redeliver(other, 1, 0, ())) == effects.STALE
    assert site.state.stale == 2


def test_acknowledging_takes_entries_out_wherever_they_are():
    """Whoever does it: waiting, delayed, somebody's, or not read yet."""
    site = StateSite()
    one, other = site.join(), site.join()
    site.read(0, 3, delayed=[(500, 1)])
    site.assign((one, 2, 2))
    site.ack(other, 0, 1, 2, 5)
    assert site.owners(6) == [0, 0, 0, WAITING, 0, 0, 0]
    assert site.dispatch.pending.totals[DELAYED] == 0
    site.read(4, 6)
    assert site.owners(6) == [0, 0, 0, WAITING, WAITING, 0, WAITING]
    site.due(500)
    assert site.owner(1) == 0


def test_a_batch_is_out_when_its_last_message_is_acknowledged():
    """Until then it is its consumer's as a whole, and comes back as a whole."""
    site = StateSite()
    one = site.join()
    site.read(0, 1, messages=[3, 2])
    site.assign((one, 0, 1))
    assert site.dispatch.holds(one) == 5
    site.ack_indexes(one, 0, 3, 0b011)
    assert site.dispatch.holds(one) == 5
    site.nack(one, 0, handed=2)
    assert site.dispatch.waiting == 3
    site.ack_indexes(one, 0, 3, 0b100)
    assert (site.dispatch.waiting, site.dispatch.holds(one)) == (0, 2)


def test_delayed_entries_wait_for_their_time():
    """Then they go with the others; the time of an entry that nobody read is ignored."""
    site = StateSite()
    one = site.join()
    site.read(0, 3, delayed=[(700, 1), (600, 2), (500, 9)], messages=[1, 2, 3, 4])
    assert (site.dispatch.delayed.next_due(), site.dispatch.pending.totals[DELAYED]) == (600, 5)
    site.assign((one, 0, 3))
    assert site.owners(3) == [one, DELAYED, DELAYED, one]
    site.due(600)
    assert site.owners(3) == [one, DELAYED, WAITING, one]
    site.ack(one, 0)
    assert len(site.dispatch.delayed) == 1


def test_limits_block_and_half_of_them_unblocks():
    """A consumer, and all together; the effect says that somebody can go on."""
    site = StateSite()
    one = site.join(max_unacked=4, max_unacked_in_all=6)
    other = site.join(max_unacked=0, max_unacked_in_all=6)
    dispatch = site.dispatch
    assert dispatch.room == 6
    site.read(0, 9)
    site.assign((one, 0, 3))
    assert (dispatch.assigned_by_consumer[one].is_blocked, dispatch.is_blocked, dispatch.room) == (
        True,
        False,
        2,
    )
    site.assign((other, 4, 5))
    assert (dispatch.assigned_by_consumer[other].is_blocked, dispatch.is_blocked, dispatch.room) == (
        False,
        True,
        0,
    )
    assert site.ack(one, 0) == effects.MARK_DELETE
    assert site.ack(one, 1) & effects.CLAIMABLE
    assert (dispatch.assigned_by_consumer[one].is_blocked, dispatch.is_blocked) == (False, True)
    assert site.ack(other, 5) & effects.CLAIMABLE
    assert not dispatch.is_blocked
    site.assign((other, 6, 8))
    assert dispatch.is_blocked
    site.leave(other)
    assert not dispatch.is_blocked


@pytest.mark.parametrize("most", [(4, 0), (0, 4), (4, 4)])
def test_limits_change(most: tuple[int, int]):
    """Higher ones unblock at once, lower ones block; consumers that come later bring their own."""
    site = StateSite()
    one = site.join(max_unacked=most[0], max_unacked_in_all=most[1])
    site.read(0, 9, ranges=[(one, 0, 3)])
    state, dispatch, epoch = site.state, site.dispatch, site.epoch_of(one)
    assert dispatch.has_blocked
    assert site.apply(record.Limits(5 if most[0] else 0, 5 if most[1] else 0)) & effects.UNBLOCKED
    assert not dispatch.has_blocked and not dispatch.is_blocked
    site.assign((one, 4, 4))
    assert dispatch.has_blocked
    assert site.apply(record.Limits(0, 0)) & effects.UNBLOCKED
    site.assign((one, 5, 6))
    assert not dispatch.has_blocked and dispatch.room > 1000
    assert not site.apply(record.Limits(*most)) & effects.UNBLOCKED
    assert dispatch.has_blocked and dispatch.is_blocked == bool(most[1])
    assert [each.rules.max_unacked for each in state.consumers.each()] == [most[0]]
    assert site.epoch_of(one) == epoch  # its acknowledgements count
    site.ack(one, *range(5))
    assert not dispatch.has_blocked


def test_limits_of_a_subscription_without_consumers():
    """Nothing changes but the epoch."""
    site = StateSite()
    epoch = site.state.epoch
    site.apply(record.Limits(3, 3))
    assert site.state.epoch == epoch + 1 and not site.dispatch.most_unacked


def test_without_limits_there_is_room():
    """0 stands for any number."""
    site = StateSite()
    site.join()
    assert site.dispatch.room == UNLIMITED


def test_a_seek_voids_everything():
    """Backward or forward: nobody has anything, counts are gone, numbers go on."""
    site = StateSite()
    one = site.join(max_unacked=2)
    site.read(0, 3, delayed=[(500, 3)])
    site.assign((one, 0, 1))
    site.nack(one, 0, handed=2)
    assert site.apply(record.Seek(LEDGER, 0)) & effects.CLAIMABLE
    dispatch = site.dispatch
    assert (dispatch.read, len(dispatch.delayed), any(dispatch.pending.totals)) == ((LEDGER, 1), 0, False)
    assigned = dispatch.assigned_by_consumer[one]
    assert (assigned.start, assigned.end, assigned.messages, assigned.is_blocked) == (2, 2, 2, False)
    site.read(1, 2)
    assert site.count(1) == 0


def test_the_read_position_follows_the_mark_delete_position():
    """Entries acknowledged before they were read are not read at all."""
    site = StateSite()
    one = site.join()
    site.ack(one, 0, 1, 2)
    assert site.dispatch.read == (LEDGER, 3)
    site.apply(record.Ledgers(((LEDGER, 3), (LEDGER + 2, -1))))
    assert site.dispatch.read == (LEDGER + 2, 0)


def test_a_ledger_that_is_gone_takes_its_entries_along():
    """It was trimmed, or lost with the power."""
    site = StateSite()
    one = site.join()
    site.read(0, 3)
    site.assign((one, 0, 1))
    site.apply(record.Ledgers(((LEDGER + 2, -1),)))
    assert not any(site.dispatch.pending.totals)
    assert site.dispatch.read == (LEDGER + 2, 0)


def test_a_clamp_begins_anew():
    """A recovery found that the log ends before what was acknowledged."""
    site = StateSite()
    one = site.join()
    site.read(0, 5)
    site.ack(one, 0, 1, 4)
    site.apply(record.Clamp(LEDGER, 2))
    assert (site.state.mark_delete, site.dispatch.read) == ((LEDGER, 1), (LEDGER, 2))


def test_a_range_that_does_not_fit_is_passed_over():
    """Who decides never writes such a thing; a replica does the same as all others if it meets one."""
    site = StateSite(ConsumerType.KeyShared)
    site.join(selector=STICKY, ranges=((0, 9),))
    site.join(selector=STICKY, ranges=((9, 12),))
    assert site.dispatch.selector.select(10) is None
    assert len(site.dispatch.assigned_by_consumer) == 2
    dispatch = DispatchState()
    dispatch.remove_consumer(5, record.DETACH_CLOSED, 0, Position(1, 1))
    dispatch.redeliver(record.Redeliver(5, 1, 0, ()))
    assert dispatch.holds(5) == 0


def test_a_run_behind_the_mark_delete_position_does_not_wait():
    """Its ledger was acknowledged as a whole meanwhile; that of a ledger nobody heard of does."""
    site = StateSite()
    site.join()
    site.apply(record.Ledgers(((LEDGER, 0), (LEDGER + 2, -1))))
    for ledger_id in (LEDGER, LEDGER + 9):
        run = FreshRun(ledger_id, 0, 1, None, None)
        site.apply(Assign(Position(ledger_id, 2), 0, (run,), (), (), ()))
    assert site.dispatch.pending.state(LEDGER, 0) == 0
    assert site.dispatch.pending.state(LEDGER + 9, 0) == WAITING


def test_scattered_acknowledgements_end_counts():
    """In whatever form they come."""
    site = StateSite()
    one = site.join()
    site.read(0, 99)
    site.assign((one, 0, 99))
    site.nack(one, 1, 4, 99, handed=100)
    site.ack(one, 1, 4)
    site.ack(one, 0, 99)
    assert [site.count(entry) for entry in (1, 4, 99)] == [0, 0, 0]
    assert site.apply(Ack(one, site.epoch_of(one), group_entries([(99, 1)]), ())) == effects.NONE
    site.apply(Ack(one, site.epoch_of(one), (), group_batches({(99, 1): (1, 2)})))
    assert site.dispatch.holds(one) == 96


def test_checkpoints_tell_what_differs():
    """An outline and the digest are enough: who has what, and what is delayed until when."""
    found = set()
    for delayed, ranges in (((), ()), (((500, 2),), ()), (((501, 2),), ()), (((500, 1),), ())):
        site = StateSite()
        one = site.join()
        site.read(0, 3, delayed=delayed, ranges=[(one, a, b) for a, b in ranges])
        found.add(checkpoint_of(site.state))
    for first, last in ((0, 1), (1, 2)):
        site = StateSite()
        site.read(0, 3, ranges=[(site.join(), first, last)])
        found.add(checkpoint_of(site.state))
    assert len(found) == 6
    assert checkpoint_of(decode_snapshot(encode_snapshot(site.state))) == checkpoint_of(site.state)


def test_whether_somebody_is_blocked_is_known_without_a_look_at_everybody():
    """It follows from what is stored, also from a snapshot; nobody is looked at while all hold little."""
    site = StateSite()
    one = site.join(max_unacked=2, max_unacked_in_all=5)
    other = site.join(max_unacked=9, max_unacked_in_all=5)
    dispatch, registry = site.dispatch, site.state.consumers
    assert (registry.limits, registry.least_limit) == ({one: 2, other: 9}, 2)
    site.read(0, 9)
    site.assign((other, 0, 0))
    assert not dispatch.may_block(registry.least_limit)
    site.assign((one, 1, 2))
    assert dispatch.has_blocked and dispatch.assigned_by_consumer[one].is_blocked
    assert decode_snapshot(encode_snapshot(site.state)).dispatch.has_blocked
    site.ack(one, 1)
    assert not dispatch.has_blocked
    assert not decode_snapshot(encode_snapshot(site.state)).dispatch.has_blocked
    site.assign((other, 3, 6))
    assert dispatch.is_blocked and dispatch.has_blocked
    site.leave(one)
    assert registry.least_limit == 9
    site.ack(other, 0, 3, 4)
    assert not dispatch.has_blocked
