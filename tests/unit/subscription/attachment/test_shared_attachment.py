"""Consumers of Shared and Key_Shared: claiming, giving back, and not leaving anything lying about."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import ConsumerSlotWord, SubscriptionWord
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.subscription.attachment.shared_attachment import _Pace
from embeddedpulsar._engine.subscription.state import dispatch_state
from embeddedpulsar._engine.subscription.subscription_files import slot_of
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import AlreadyClosed
from tests.unit.subscription.virtual_site import EVERYTHING, VirtualSite, ids, position, read

SHARED, KEY_SHARED = ConsumerType.Shared, ConsumerType.KeyShared
EACH = 10  # bytes of each entry


def test_a_read_takes_no_more_bytes_than_asked(site: VirtualSite):
    """The rest is read later, in order, each entry once."""
    consumer = site.attach()
    site.publish(5)
    assert [read(consumer, max_bytes=2 * EACH) for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_what_a_read_left_is_looked_up_anew(site: VirtualSite):
    """Some of it may have been acknowledged since, by whomever, or given back."""
    consumer, other = site.attach(), site.attach(process=site.world.start())
    site.publish(8)
    assert read(consumer) == [0, 1, 2, 3]
    consumer.redeliver()
    assert read(consumer, max_bytes=EACH) == [0]
    other.acknowledge([position(1)])
    consumer.redeliver_entries([position(3)])
    assert read(consumer) == [2]
    assert read(other) == [3, 4, 5]


def test_an_interrupted_read_loses_nothing(site: VirtualSite, monkeypatch: pytest.MonkeyPatch):
    """What was assigned is read by the next call."""
    consumer = site.attach()
    site.publish(3)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(consumer._reader, "_read_some", interrupt)
        patch.setattr(consumer._ahead, "pop_passed", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            read(consumer)
    assert read(consumer) == [0, 1, 2]


@pytest.mark.parametrize("point", ["journal:word_stored", "subscription:published"])
def test_an_interrupted_claim_loses_nothing(site: VirtualSite, point: str):
    """The interrupt hits while the assignment is committed, before its words are shown."""
    consumer = site.attach()
    site.publish(3)
    failpoints.set(point, "raise:KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        read(consumer)
    assert read(consumer) == [0, 1, 2]
    site.publish(1)
    assert read(consumer) == [3]


def test_entries_given_back_before_they_were_fetched_come_once(site: VirtualSite):
    """An entry that was assigned twice is read where it was assigned last."""
    consumer = site.attach()
    site.publish(4)
    assert read(consumer) == [0, 1, 2, 3]
    consumer.redeliver()
    assert read(consumer, max_bytes=EACH) == [0]
    consumer.redeliver_entries([position(2)])
    assert read(consumer) == [1, 3]
    assert read(consumer) == [2]
    assert site.dispatch.pending.ledger(7).redeliveries(2) == 1


def test_damaged_entries_are_acknowledged_once(site: VirtualSite):
    """What lies behind the damage comes; whoever looks there again writes nothing."""
    consumer, _ = site.attach(), site.attach()  # one that is alone reads on without claims
    entries = site.publish(6)
    for entry in entries[1:3]:
        entry.is_damaged = True
    commands = []
    for _ in range(4):
        assert read(consumer, room=1)
        commands.append(site.process.shared.state.commands)
    consumer.acknowledge([position(entry) for entry in (0, 3, 4, 5)])
    assert site.process.subscription.mark_delete == position(5)
    assert [b - a for a, b in pairwise(commands)] == [2, 1, 1]


def test_damage_before_acknowledged_entries_does_not_end_a_read(site: VirtualSite):
    """Acknowledging the damage moves the read position far ahead, beyond what was looked at."""
    consumer = site.attach()
    entries = site.publish(30)
    entries[0].is_damaged = True
    consumer.acknowledge([position(entry) for entry in range(1, 20)])
    assert read(consumer, room=2) == [20, 21]


def test_acknowledged_in_advance(site: VirtualSite):
    """Entries may be acknowledged before anybody reads them; they are passed over."""
    consumer = site.attach()
    site.publish(6)
    consumer.acknowledge([position(entry) for entry in (1, 2, 4)])
    assert read(consumer) == [0, 3, 5]


def test_ledgers_are_crossed(site: VirtualSite):
    """The mark-delete position follows."""
    consumer = site.attach()
    site.publish(2)
    site.log.roll(2)
    site.log.roll(1)
    site.publish(2)
    found = read(consumer) + read(consumer)
    assert found == [0, 1, 0, 1]
    consumer.acknowledge([(7, 0), (7, 1), (10, 0)])
    assert site.process.subscription.mark_delete == (10, 0)


def test_what_is_left_is_offered_to_those_who_sleep(site: VirtualSite):
    """Each of three sleepers gets its part, whoever comes first."""
    attachments = [site.attach(process=site.world.start()) for _ in range(3)]
    consumers = [site.consumer(one) for one in attachments]
    for consumer in consumers:
        assert not consumer.poll(EVERYTHING_BYTES)
        consumer.doze()
    site.publish(3)
    assert all(consumer.is_awake for consumer in consumers)
    for consumer in consumers:
        assert len(consumer.poll(EVERYTHING_BYTES)) == 1


EVERYTHING_BYTES = 1 << 30


def test_a_blocked_consumer_is_woken_at_half(tmp_path: Path):
    """It holds as many as it may, sleeps, and is rung by the acknowledgement that takes it to half."""
    with VirtualSite(tmp_path, maxUnackedMessagesPerConsumer=4) as site:
        consumer = site.consumer(site.attach())
        site.publish(9)
        assert len(consumer.poll(EVERYTHING_BYTES)) == 4
        while consumer.queue:
            consumer.take()
        assert not consumer.poll(EVERYTHING_BYTES)
        consumer.doze()
        consumer.attachment.acknowledge([position(0)])
        assert consumer.sleeps
        consumer.attachment.acknowledge([position(1)])
        assert consumer.is_awake
        assert len(consumer.poll(EVERYTHING_BYTES)) == 2


def test_a_seek_by_another_is_noticed_by_a_redelivery(site: VirtualSite):
    """`on_rewound` is called once, and nothing is given back."""
    consumer, other = site.attach(), site.attach(process=site.world.start())
    site.publish(4)
    read(consumer)
    moved = []
    consumer.on_rewound = lambda: moved.append(consumer.epoch)
    other.seek(position(0), inclusive=True)
    consumer.redeliver_entries([position(0)])
    assert moved == [other.epoch]
    assert site.dispatch.pending.totals[1:3] == [0, 0]
    assert read(consumer) == [0, 1]
    assert moved == [other.epoch]


def test_entries_assigned_after_a_seek_are_read(site: VirtualSite):
    """Another consumer assigns some before this one notices the seek."""
    one, other = (site.attach(KEY_SHARED, process=site.world.start()) for _ in range(2))
    site.publish(3, key=5)
    site.publish(3, key=60_000)
    assert (read(one), read(other)) in (([0, 1, 2], [3, 4, 5]), ([3, 4, 5], [0, 1, 2]))
    first = site.dispatch.selector.select(5)
    mine, others = (one, other) if first == one.consumer_id else (other, one)
    others.seek(position(0), inclusive=True)
    assert read(others) == [3, 4, 5]
    assert read(mine) == [0, 1, 2]


def test_delayed_entries_come_when_they_are_due(site: VirtualSite):
    """Not a millisecond before; `due_ms` says when."""
    consumer = site.attach()
    site.publish(1, delay_ms=500)
    site.publish(1)
    assert read(consumer) == [1]
    assert consumer.due_ms() == site.world.clock.wall_ms() + 500
    site.world.clock.advance(0.499)
    assert read(consumer) == []
    site.world.clock.advance(0.001)
    assert read(consumer) == [0]
    assert consumer.due_ms() == 0


def test_redeliver_counts_what_was_seen(site: VirtualSite):
    """Entries the application was given count, those fetched ahead do not; all come again in order."""
    consumer = site.consumer(site.attach())
    site.publish(4)
    consumer.poll(EVERYTHING_BYTES)
    consumer.take()
    consumer.take()
    consumer.attachment.redeliver()
    views = consumer.attachment.read(100, EVERYTHING_BYTES)
    assert [(view.entry_id, view.redelivery_count) for view in views] == [(0, 1), (1, 1), (2, 0), (3, 0)]


def test_a_silent_consumer_joins_again(site: VirtualSite):
    """It was taken for dead; its entries went to others. It starts anew, and closing the subscription
    detaches it under the id it has then."""
    process = site.world.start()
    consumer, other = site.attach(process=process), site.attach()
    site.publish(4)
    assert read(consumer) == [0, 1]
    moved = []
    consumer.on_rewound = lambda: moved.append(1)
    process.is_stopped = True
    for _ in range(8):
        site.world.clock.advance(5.0)
        site.process.scheduler.run_due()
    assert [one.consumer_id for one in site.process.subscription.consumers()] == [other.consumer_id]
    old = consumer.consumer_id
    assert consumer.acknowledge([position(0)]) is False
    assert read(other) == [0, 1, 2, 3]
    assert (read(consumer), moved) == ([], [1])
    assert consumer.consumer_id != old
    process.subscription.close()
    assert [one.consumer_id for one in site.process.subscription.consumers()] == [other.consumer_id]


def test_a_silent_consumer_that_is_refused_gets_nothing(site: VirtualSite):
    """Others made the subscription another type's; when they are gone it may come back."""
    process = site.world.start()
    consumer = site.attach(process=process)
    site.publish(2)
    process.is_stopped = True
    site.world.clock.advance(100.0)
    site.process.subscription.detach_dead()
    other = site.attach(ConsumerType.Exclusive)
    assert read(consumer) == []
    consumer.redeliver()
    assert consumer.redeliver_entries([position(0)]) is False
    other.detach()
    assert read(consumer) == [0, 1]


def test_a_reported_death_is_handled_before_silent_consumers_are_sought(site: VirtualSite):
    """The consumers that wait for its messages get them at once; the next look finds the silent one."""
    ours = site.attach()
    dead, silent = site.world.start(), site.world.start()
    lost, quiet = site.attach(process=dead), site.attach(process=silent)
    for _ in range(5):
        site.world.clock.advance(9.0)
        site.process.subscription.detach_dead(with_silent=False)
        lost.show_alive()
    assert len(site.process.subscription._shared.state.consumers) == 3
    site.world.kill(dead)
    site.process.tell_of_deaths()
    state = site.process.subscription._shared.state
    assert [one.consumer_id for one in state.consumers.all()] == [ours.consumer_id, quiet.consumer_id]
    silent.is_stopped = True
    for _ in range(5):
        site.world.clock.advance(10.0)
        site.process.subscription.detach_dead()
    assert [one.consumer_id for one in state.consumers.all()] == [ours.consumer_id]


def test_a_detached_consumer_reads_no_more(site: VirtualSite):
    """It says so."""
    consumer = site.attach()
    consumer.detach()
    with pytest.raises(AlreadyClosed, match="was detached"):
        read(consumer)


def test_an_interrupted_publication_is_made_up_for(site: VirtualSite):
    """The words that show where the subscription reads on are those of before; whoever claims next goes by
    the state, and wakes who sleeps."""
    consumer, other = site.attach(), site.consumer(site.attach())
    assert not other.poll(EVERYTHING_BYTES)
    other.doze()
    site.publish(6)
    other.poll(EVERYTHING_BYTES)
    while other.queue:
        other.take()
    failpoints.set("journal:word_stored", "raise:KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        read(consumer)
    failpoints.clear()
    found = read(consumer)
    while more := read(consumer):
        found += more
    assert sorted(found + [view[1] for view in other.held]) == [0, 1, 2, 3, 4, 5]


def test_who_lost_its_slot_does_not_speak_for_the_next(site: VirtualSite):
    """A consumer is stopped while it says that its application was given an entry, and goes on when another
    has its slot: what that one was assigned is not forgotten."""
    process = site.world.start()
    stopped = site.attach(process=process)
    site.publish(8)
    views = stopped.read(100, EVERYTHING_BYTES)
    process.is_stopped = True
    for _ in range(5):
        site.world.clock.advance(10.0)
        site.process.subscription.detach_dead()
    other = site.attach()
    assert other.code == stopped.code
    stopped.fresh.seen = stopped.words[SubscriptionWord.EPOCH]
    assert stopped.handed(views[-1])
    assert site.process.shared.control.handed(other.code, other.consumer_id) == 0
    assert read(other) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_damage_that_is_found_late_is_acknowledged(site: VirtualSite):
    """Entries that were assigned and cannot be read any more; an interrupt at that loses nothing."""
    consumer = site.attach()
    entries = site.publish(5)
    assert read(consumer) == [0, 1, 2, 3, 4]
    consumer.redeliver()
    for entry in (entries[1], entries[4]):
        entry.is_damaged = True
    failpoints.set("journal:body_done", "raise:KeyboardInterrupt", nth=2)
    with pytest.raises(KeyboardInterrupt):
        read(consumer)
    assert read(consumer) == [0, 2, 3]
    consumer.acknowledge([position(0), position(2), position(3)])
    assert site.process.subscription.mark_delete == position(4)


def test_many_that_are_due_at_once_come_in_portions(site: VirtualSite, monkeypatch: pytest.MonkeyPatch):
    """One command makes so many due; what was acknowledged meanwhile does not end the search."""
    monkeypatch.setattr(dispatch_state, "MOST_DUE", 2)
    consumer = site.attach()
    site.publish(6, delay_ms=500)
    assert read(consumer) == []
    consumer.acknowledge([position(entry) for entry in (1, 2)])
    site.world.clock.advance(0.5)
    assert [read(consumer) for _ in range(4)] == [[0], [3], [4, 5], []]


def test_who_was_stopped_does_not_take_its_own_for_dead(site: VirtualSite):
    """Another thread may be faster than the timer by which they show that they live."""
    process = site.world.start()
    consumer = site.attach(process=process)
    site.world.clock.advance(100.0)
    assert [one.consumer_id for one in process.subscription.consumers()] == [consumer.consumer_id]
    other = site.attach(process=process)
    assert len(process.subscription.consumers()) == 2
    other.detach()
    assert len(process.subscription.consumers()) == 1


def test_a_turn_is_what_the_application_handles_in_a_short_time():
    """Known once it handled enough, and never longer than the longest; waiting does not count."""
    now = [0.0]
    pace = _Pace(lambda: now[0])
    for number in range(4):
        assert pace.turn_messages == 0
        pace.begin(10)
        now[0] += 0.01
        pace.end()
        now[0] += 5.0  # it waits
        pace.end()
        assert bool(pace.turn_messages) == (number == 3)
    assert pace.turn_messages == 4
    pace.begin(1000)
    now[0] += 0.001
    pace.end()
    assert 50 < pace.turn_messages < 256
    for _ in range(20):
        pace.begin(1000)
        now[0] += 0.001
        pace.end()
    assert pace.turn_messages == 256


def test_a_clock_that_stands_still_tells_no_turn():
    """Then every claim takes its part of the backlog."""
    pace = _Pace(lambda: 7.0)
    pace.begin(1000)
    pace.end()
    assert pace.turn_messages == 0


def test_a_fast_consumer_takes_its_turn_of_a_small_backlog(site: VirtualSite):
    """Which is more than its part; a slow one takes its part."""
    one, other = site.attach(), site.attach(process=site.world.start())
    now = [0.0]
    taken = []
    for seconds in (1.0, 1e-3, 1e-3):
        one._pace = _Pace(lambda: now[0])
        one._pace.begin(100)
        now[0] += seconds
        site.publish(100)
        taken.append(len(read(one)))
        while read(other):
            pass
    assert taken == [50, 100, 100]


def test_taking_what_others_assigned_takes_no_look_at_the_log(
    site: VirtualSite, monkeypatch: pytest.MonkeyPatch
):
    """One transaction without a command; and it says how much more it can take, so that the next claim of
    another serves it too."""
    elsewhere = site.world.start()
    one, other = site.attach(KEY_SHARED), site.attach(KEY_SHARED, process=elsewhere)
    for number in range(64):
        site.publish(1, key=number % 2 * 40_000 + number + 1)
    assert read(one)
    before = elsewhere.shared.control.words[SubscriptionWord.JOURNAL]
    looks: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(other._ahead, "read_ahead", looks.append)
        given = read(other)
    assert given
    assert looks == []
    assert elsewhere.shared.control.words[SubscriptionWord.JOURNAL] == before
    code, consumer_id = other.code, other.consumer_id
    granted = elsewhere.shared.control.words[slot_of(code) + ConsumerSlotWord.GRANTED]
    assert granted == site.dispatch.assigned_by_consumer[consumer_id].messages + 1000 - len(given)


def test_what_was_assigned_beyond_a_small_room_is_read_next(site: VirtualSite):
    """Also if no other consumer assigns anything from then on."""
    one, other = site.attach(KEY_SHARED), site.attach(KEY_SHARED, process=site.world.start())
    for number in range(64):
        site.publish(1, key=number % 2 * 40_000 + number + 1)
    got = read(one)
    parts = [ids(other.read(5, EVERYTHING)) for _ in range(14)]
    assert sorted(got + [entry for part in parts for entry in part]) == list(range(64))
    assert max(map(len, parts)) <= 6
