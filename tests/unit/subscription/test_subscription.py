"""A subscription and its exclusive consumer, over a real log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import disk
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    BrokerMetadataError,
    ConsumerBusy,
    CorruptionError,
    SubscriptionNotFound,
)
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.subscription_site import SubscriptionSite, positions, read_all


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SubscriptionSite]:
    """A topic whose ledgers hold ten entries each."""
    with SubscriptionSite(tmp_path, clock=ManualClock(), max_entries=10) as made:
        yield made


@pytest.fixture
def other(site: SubscriptionSite, tmp_path: Path) -> Iterator[SubscriptionSite]:
    """The same topic as another process has it."""
    with SubscriptionSite(tmp_path, clock=ManualClock(), max_entries=10) as made:
        yield made


def test_opening_makes_no_files(site: SubscriptionSite):
    """Looking for a subscription leaves nothing behind; using one that is not there says so."""
    subscription = site.subscription(initial=None)
    assert not subscription.exists()
    assert not os.path.exists(site.directory_of())
    with pytest.raises(SubscriptionNotFound):
        subscription.attach("c")
    with pytest.raises(SubscriptionNotFound):
        subscription.delete()


def test_initial_position_counts_once(site: SubscriptionSite, other: SubscriptionSite):
    """Whoever creates it first decides where it starts."""
    sent = site.publish(25)
    assert site.subscription(initial=None).create(sent[19])
    again = other.subscription(initial=None)
    assert again.exists()
    assert not again.create(BEFORE_FIRST)
    assert positions(read_all(again.attach("c"))) == sent[20:]


def test_a_directory_that_goes_while_it_is_made_is_made_again(
    site: SubscriptionSite, monkeypatch: pytest.MonkeyPatch
):
    """A process that deletes a subscription of that name may take the new directory for the old one."""
    make, lost = disk.DISK.mkdir, []

    def mkdir(path: str, mode: int | None = None) -> None:
        make(path, mode)
        if path == site.directory_of() and not lost:
            lost.append(path)
            os.rmdir(path)
            raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(disk.DISK, "mkdir", mkdir, raising=False)
    sent = site.publish(3)
    assert positions(read_all(site.subscription().attach("c"))) == sent
    assert lost


def test_earliest_reads_everything_and_latest_nothing(site: SubscriptionSite):
    """Earliest is before the first entry, latest behind the last there is."""
    sent = site.publish(25)
    assert positions(read_all(site.subscription("earliest").attach("c"), step=7)) == sent
    latest = site.subscription("latest", sent[-1]).attach("c")
    assert read_all(latest) == []
    more = site.publish(3)
    assert positions(read_all(latest)) == more


def test_a_subscription_of_an_empty_topic_sees_the_first_message(site: SubscriptionSite):
    """There is no ledger yet when the consumer attaches."""
    consumer = site.subscription().attach("c")
    assert consumer.read(10, 1 << 20) == []
    sent = site.publish(1)
    assert positions(read_all(consumer)) == sent
    assert consumer.acknowledge(sent)
    assert consumer.backlog() == 0


def test_acknowledged_entries_do_not_come_back(site: SubscriptionSite, other: SubscriptionSite):
    """In any order, over ledgers, for a consumer in another process; the rest comes in order."""
    sent = site.publish(35)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    assert consumer.acknowledge([sent[n] for n in (30, 2, 0, 1, 12, 33, 5)])
    assert subscription.mark_delete == sent[2]
    assert consumer.backlog() == 35 - 7
    consumer.detach()
    successor = other.subscription().attach("c2")
    left = [position for n, position in enumerate(sent) if n not in (30, 2, 0, 1, 12, 33, 5)]
    assert positions(read_all(successor)) == left
    assert successor.acknowledge(left)
    assert other.subscription().mark_delete >= sent[-1]
    assert successor.backlog() == 0


def test_cumulative_acknowledgement(site: SubscriptionSite):
    """Everything up to a position at once, whatever ledgers lie between."""
    sent = site.publish(35)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    assert consumer.acknowledge([sent[30]])
    assert consumer.acknowledge_cumulative(*sent[29])
    assert subscription.mark_delete == sent[30]
    consumer.redeliver()
    assert positions(read_all(consumer)) == sent[31:]


def test_parts_of_batches(site: SubscriptionSite, other: SubscriptionSite):
    """Acknowledged indexes are remembered, counted, and told to the next consumer."""
    sent = site.publish_batches(5, 3, 4)
    consumer = site.subscription().attach("c")
    read_all(consumer)
    assert consumer.acknowledge([sent[1]], {sent[0]: (0b00011, 5), sent[2]: (0b1111, 4)})
    assert consumer.backlog() == 3
    consumer.detach()
    successor = other.subscription().attach("c2")
    (view,) = read_all(successor)
    assert (Position(view.ledger_id, view.entry_id), view.skip) == (sent[0], 0b00011)
    assert successor.acknowledge([], {sent[0]: (0b11100, 5)})
    assert other.subscription().mark_delete == sent[2]


def test_cumulative_within_a_batch(site: SubscriptionSite):
    """With a batch index, the batch is acknowledged up to it and everything before as a whole."""
    sent = site.publish_batches(3, 3, 3)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    assert consumer.acknowledge_cumulative(*sent[1], batch_index=1, batch_size=3)
    assert subscription.mark_delete == sent[0]
    consumer.redeliver()
    assert [view.skip for view in read_all(consumer)] == [0b011, None]
    assert consumer.acknowledge_cumulative(*sent[1], batch_index=2, batch_size=3)
    assert subscription.mark_delete == sent[1]
    assert consumer.acknowledge_cumulative(sent[2].ledger_id, -1)
    assert subscription.mark_delete == sent[1]


def test_redeliver_rewinds_to_the_first_unacknowledged(site: SubscriptionSite):
    """Reading starts over, in order, without what is acknowledged; new messages follow."""
    sent = site.publish(25)
    consumer = site.subscription().attach("c")
    first = consumer.read(8, 1 << 20)
    assert positions(first) == sent[:8]
    consumer.acknowledge([*sent[:3], sent[5]])
    consumer.redeliver()
    more = site.publish(2)
    assert positions(read_all(consumer, step=4)) == [sent[3], sent[4], *sent[6:], *more]
    again = site.publish(1)
    assert positions(read_all(consumer)) == again


def test_long_acknowledged_stretches_are_not_read(site: SubscriptionSite):
    """One message unacknowledged at the start does not make the next consumer read all the others."""
    sent = site.publish(95)
    consumer = site.subscription().attach("c")
    read_all(consumer)
    consumer.acknowledge(sent[1:])
    consumer.redeliver()
    assert positions(consumer.read(1000, 1 << 20)) == sent[:1]
    assert consumer.read(1000, 1 << 20) == []
    more = site.publish(1)
    assert positions(read_all(consumer)) == more


def test_acknowledging_ahead_of_reading_skips(site: SubscriptionSite):
    """An entry acknowledged by its id before it was read is not delivered."""
    sent = site.publish(12)
    consumer = site.subscription().attach("c")
    assert positions(consumer.read(2, 1 << 20)) == sent[:2]
    assert consumer.acknowledge([sent[4], sent[10]])
    assert positions(read_all(consumer)) == [*sent[2:4], *sent[5:10], sent[11]]


@pytest.mark.parametrize(
    "made_up", [(7, 0), (1, 10_000), (1, 1 << 40), (1, -1), (-1, -1), ((1 << 63) - 1, (1 << 63) - 1)]
)
def test_made_up_ids_acknowledge_nothing(site: SubscriptionSite, made_up: tuple[int, int]):
    """An id of no message is ignored; above all it does not acknowledge a message of the future."""
    sent = site.publish(3)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    assert consumer.acknowledge([sent[1], made_up])
    consumer.acknowledge_cumulative(*made_up) if made_up[0] > 1 or made_up[1] > 10 else None
    sent += site.publish(20)
    consumer.redeliver()
    assert positions(read_all(consumer)) == [sent[0], *sent[2:]]


def test_seek_moves_everybody_and_forgets_acknowledgements(site: SubscriptionSite, other: SubscriptionSite):
    """Back: acknowledged entries come again. Forth: those between count as acknowledged."""
    sent = site.publish(35)
    consumer = site.subscription().attach("c")
    read_all(consumer)
    consumer.acknowledge(sent)
    rewound: list[str] = []
    consumer.on_rewound = lambda: rewound.append("!")
    consumer.seek(sent[20], inclusive=True)
    assert positions(read_all(consumer)) == sent[20:]
    consumer.seek(sent[20], inclusive=False)
    assert positions(read_all(consumer)) == sent[21:]
    assert rewound == []
    other.subscription().seek(sent[33], inclusive=True)
    assert positions(read_all(consumer)) == sent[33:]
    assert rewound == ["!"]
    assert consumer.backlog() == 2


def test_seek_to_the_ends_and_beyond(site: SubscriptionSite):
    """Positions outside the log are moved to its ends."""
    sent = site.publish(25)
    consumer = site.subscription().attach("c")
    for earliest in (BEFORE_FIRST, sent[0], Position(0, 5)):
        consumer.seek(earliest, inclusive=True)
        assert positions(read_all(consumer)) == sent
    for latest in (sent[-1], Position(99, 0), Position((1 << 63) - 1, (1 << 63) - 1)):
        consumer.seek(latest, inclusive=False)
        assert read_all(consumer) == []
    consumer.seek(BEFORE_FIRST, inclusive=False)
    assert positions(read_all(consumer)) == sent
    consumer.seek(sent[-1], inclusive=True)
    assert positions(read_all(consumer)) == sent[-1:]


def test_seek_by_publish_time(site: SubscriptionSite):
    """The first message published at the time or later is the next; after all, none is."""
    clock = site.clock
    assert isinstance(clock, ManualClock)
    sent, times = [], []
    for _ in range(15):
        sent += site.publish(1)
        times.append(clock.wall_ms())
        clock.advance(1)
    consumer = site.subscription().attach("c")
    consumer.seek_time(times[7])
    assert positions(read_all(consumer)) == sent[7:]
    consumer.seek_time(times[7] + 1)
    assert positions(read_all(consumer)) == sent[8:]
    consumer.seek_time(0)
    assert positions(read_all(consumer)) == sent
    consumer.seek_time(times[-1] + 1)
    assert read_all(consumer) == []


@pytest.mark.parametrize("noticed", [True, False])
def test_a_late_acknowledgement_after_a_seek_changes_nothing(
    site: SubscriptionSite, other: SubscriptionSite, noticed: bool
):
    """Acknowledgements collected before somebody moved the subscription must not acknowledge the rewound
    range.
    """
    sent = site.publish(12)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    collected_under = consumer.epoch
    other.subscription().seek(sent[0], inclusive=True)
    if noticed:
        assert positions(consumer.read(1, 1)) == sent[:1]
    assert not consumer.acknowledge(sent, epoch=collected_under)
    assert not consumer.acknowledge([], {sent[0]: (1, 2)}, epoch=collected_under)
    assert not consumer.acknowledge_cumulative(*sent[-1], epoch=collected_under)
    assert subscription.mark_delete < sent[0]
    assert consumer.backlog() == 12
    consumer.redeliver()
    assert consumer.acknowledge(sent)
    assert consumer.backlog() == 0


def test_a_late_acknowledgement_after_a_takeover_changes_nothing(
    site: SubscriptionSite, monkeypatch: pytest.MonkeyPatch
):
    """A consumer that lost the subscription acknowledges into the void, and reads nothing until it may join
    again."""
    sent = site.publish(3)
    consumer = site.subscription().attach("c")
    read_all(consumer)
    taker = SubscriptionSite(site.root, clock=ManualClock())
    subscription = taker.subscription()
    monkeypatch.setattr(taker.peers, "is_alive", lambda uuid: uuid != site.mailbox.uuid)
    successor = subscription.attach("c2")
    assert not consumer.acknowledge(sent)
    assert not consumer.is_current()
    assert consumer.read(1, 1) == []
    consumer.detach()
    assert positions(read_all(successor)) == sent
    taker.close()


def test_second_exclusive_consumer_is_refused(site: SubscriptionSite, other: SubscriptionSite):
    """Exclusive means one, in this process or another; the text names the holder."""
    subscription = site.subscription()
    consumer = subscription.attach("first")
    for contender in (subscription, other.subscription()):
        with pytest.raises(ConsumerBusy, match="Exclusive consumer is already connected: 'first'"):
            contender.attach("second")
    consumer.detach()
    consumer.detach()
    other.subscription().attach("second")


def test_the_number_of_consumers_is_limited(tmp_path: Path):
    """maxConsumersPerSubscription holds for every type."""
    settings = BrokerSettings(maxConsumersPerSubscription=1)
    with SubscriptionSite(tmp_path, settings=settings) as site:
        subscription = site.subscription()
        subscription.attach("c")
        with pytest.raises(ConsumerBusy):
            subscription.attach("d")


def test_unsubscribe_removes_everything(site: SubscriptionSite, other: SubscriptionSite):
    """The only consumer may end the subscription; the name is free for a new one that knows nothing."""
    sent = site.publish(5)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    consumer.acknowledge(sent)
    subscription.unsubscribe(consumer)
    assert not subscription.exists()
    with pytest.raises(AlreadyClosed, match="deleted"):
        consumer.read(1, 1)
    assert not consumer.acknowledge(sent)
    consumer.detach()
    anew = other.subscription()
    assert subscription.exists()
    assert positions(read_all(anew.attach("c"))) == sent
    with pytest.raises(AlreadyClosed):
        consumer.read(1, 1)


def test_delete_needs_force_while_consumers_are_attached(site: SubscriptionSite):
    """An administrator does not pull a subscription away by accident."""
    subscription = site.subscription()
    consumer = subscription.attach("c")
    with pytest.raises(BrokerMetadataError, match="'c'"):
        subscription.delete()
    subscription.delete(force=True)
    assert not subscription.exists()
    with pytest.raises(AlreadyClosed):
        consumer.read(1, 1)


def test_reopening_goes_on_where_it_was(site: SubscriptionSite):
    """Everything is in the files."""
    sent = site.publish(25)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    consumer.acknowledge([*sent[:7], sent[12]])
    consumer.detach()
    subscription.close()
    with pytest.raises(AlreadyClosed):
        consumer.read(1, 1)
    consumer.detach()
    reopened = site.subscription(initial=None)
    assert reopened.mark_delete == sent[6]
    assert positions(read_all(reopened.attach("c"))) == [*sent[7:12], *sent[13:]]


def test_a_name_is_checked_against_the_files(site: SubscriptionSite):
    """Two names that fall on one directory are told apart."""
    site.subscription("s")
    os.rename(site.directory_of("s"), site.directory_of("t"))
    with pytest.raises(CorruptionError, match="belongs to subscription 's'"):
        site.subscription("t")


def test_a_consumer_behind_trimmed_ledgers_goes_on(site: SubscriptionSite):
    """Ledgers that are gone count as acknowledged, or the mark-delete position would wait for ever."""
    sent = site.publish(35)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    site.log.trim_before(sent[20].ledger_id)
    assert positions(read_all(consumer)) == sent[20:]
    consumer.acknowledge(sent[20:])
    assert subscription.mark_delete >= sent[-1]
    assert consumer.backlog() == 0


def test_waiting_for_a_change(site: SubscriptionSite, other: SubscriptionSite):
    """A waiter is rung when the subscription is moved, and not put to sleep after it was."""
    site.publish(3)
    consumer = site.subscription().attach("c")
    version = consumer.version
    generation = site.mailbox.generation
    assert consumer.request_wakeup(version)
    other.subscription().seek(BEFORE_FIRST, inclusive=True)
    assert site.mailbox.wait(generation, 5.0) != generation
    assert consumer.version != version
    assert not consumer.request_wakeup(version)


def test_statistics(site: SubscriptionSite):
    """What there is to tell."""
    sent = site.publish(4)
    subscription = site.subscription()
    consumer = subscription.attach("c", priority=2)
    consumer.acknowledge(sent[:1])
    told = subscription.statistics()
    assert (told.name, told.consumer_type, told.backlog, told.mark_delete) == (
        "s",
        ConsumerType.Exclusive,
        3,
        sent[0],
    )
    assert [(one.name, one.priority_level) for one in told.consumers] == [("c", 2)]
    assert told.divergences == 0
    assert told.commands >= 3
    consumer.detach()
    assert subscription.statistics().consumer_type is None
