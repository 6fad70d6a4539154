"""Consumers that acknowledge in transactions: what they and others are delivered, and who follows the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.control import SubscriptionWord
from embeddedpulsar._engine.format.subscription_record import ABORTED, COMMITTED
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.subscription.attachment import attachment
from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar._engine.subscription.operator_commands import OperatorCommands
from embeddedpulsar._engine.subscription.state.replica import encode_snapshot
from embeddedpulsar._engine.subscription.subscription import Subscription
from embeddedpulsar._engine.subscription.subscription_view import SubscriptionView
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import (
    CumulativeAcknowledgementNotAllowedError,
    StorageFullError,
    TransactionConflict,
)
from tests.strikes import strike
from tests.subscription_site import SubscriptionSite, positions, read_all
from tests.unit.subscription.virtual_site import VirtualSite, position, read

EXCLUSIVE, FAILOVER = ConsumerType.Exclusive, ConsumerType.Failover
SHARED, KEY_SHARED = ConsumerType.Shared, ConsumerType.KeyShared
T, U = (0, 17), (0, 18)


def hold(consumer: Attachment, transaction: tuple[int, int], *entries: int) -> bool:
    return consumer.acknowledge([position(entry) for entry in entries], transaction=transaction)


def mark_delete(site: VirtualSite) -> int:
    return site.process.subscription.mark_delete.entry_id


def pending(site: VirtualSite) -> list[tuple[int, int]]:
    return [one.transaction for one in site.process.subscription.pending_transactions()]


# -- delivering --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_a_commit_acknowledges(site: VirtualSite, kind: ConsumerType):
    """Until then the position stays, and nobody gets the entries, also who comes later."""
    consumer = site.attach(kind)
    site.publish(4, key=3)
    assert read(consumer) == [0, 1, 2, 3]
    assert hold(consumer, T, 0, 1, 3)
    consumer.redeliver()
    assert read(consumer) == [2]
    consumer.detach()
    consumer = site.attach(kind)
    assert (read(consumer), mark_delete(site)) == ([2], -1)
    assert consumer.end_transaction(T, COMMITTED)
    assert mark_delete(site) == 1
    assert not consumer.end_transaction(T, COMMITTED)
    assert consumer.acknowledge([position(2)])
    assert (mark_delete(site), site.world.asked > 0) == (3, True)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_an_abort_gives_back_to_whoever_claims(site: VirtualSite, kind: ConsumerType):
    """With the count of the delivery that failed."""
    first = site.attach(kind)
    site.publish(3, key=3)
    assert read(first) == [0, 1, 2]
    hold(first, T, 0, 1, 2)
    other = site.attach(kind, process=site.world.start())
    assert read(other) == []
    first.end_transaction(T, ABORTED)
    views = [*first.read(1000, 1 << 20), *other.read(1000, 1 << 20)]
    assert sorted((view.entry_id, view.redelivery_count) for view in views) == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_an_abort_sends_an_active_consumer_back(site: VirtualSite, kind: ConsumerType):
    """In the same process and in another one: everything unacknowledged comes again, in order, and what was
    fetched is void; what it acknowledged meanwhile counts."""
    consumer = site.attach(kind)
    switched: list[int] = []
    consumer.on_switched = lambda: switched.append(1)
    site.publish(5)
    assert read(consumer, room=4) == [0, 1, 2, 3]
    hold(consumer, T, 1, 2)
    consumer.acknowledge([position(0)])
    assert site.world.start().subscription.end_transaction(T, ABORTED)
    assert not consumer.is_fresh()
    assert (read(consumer), switched) == ([1, 2, 3, 4], [1])
    assert (read(consumer), switched) == ([], [1])
    assert consumer.acknowledge_cumulative(*position(3))
    assert mark_delete(site) == 3


def test_parts_of_batches(site: VirtualSite):
    """Messages in transactions are left out, as acknowledged ones; those that aborted come again."""
    for kind in (EXCLUSIVE, SHARED):
        consumer = site.attach(kind)
        site.publish(1, messages=3)
        entry = site.log.entries[-1].position
        consumer.redeliver()
        read(consumer)
        consumer.acknowledge([], {entry: (0b001, 3)})
        assert consumer.acknowledge([], {entry: (0b010, 3)}, transaction=T)
        consumer.redeliver()
        assert [view.skip for view in consumer.read(10, 1 << 20)] == [0b011]
        assert consumer.acknowledge([], {entry: (0b100, 3)}, transaction=U)
        consumer.redeliver()
        assert read(consumer) == []
        consumer.end_transaction(T, ABORTED)
        assert [view.skip for view in consumer.read(10, 1 << 20)] == [0b101]
        consumer.end_transaction(U, COMMITTED)
        consumer.acknowledge([entry])
        assert site.process.subscription.mark_delete == entry
        consumer.detach()


def test_cumulative_acknowledgements(site: VirtualSite):
    """They hold everything before them; after an abort the consumer has it, unless it was left out here."""
    consumer = site.attach(EXCLUSIVE)
    site.publish(6)
    assert read(consumer, room=4) == [0, 1, 2, 3]
    assert consumer.acknowledge_cumulative(*position(2), transaction=T)
    assert consumer.acknowledge_cumulative(*position(3), transaction=T)
    assert consumer.end_transaction(T, ABORTED)
    assert read(consumer) == [4, 5]
    consumer.redeliver()
    assert read(consumer) == [0, 1, 2, 3, 4, 5]
    assert consumer.acknowledge_cumulative(*position(3), transaction=U)
    consumer.redeliver()
    assert read(consumer) == [4, 5]
    consumer.end_transaction(U, COMMITTED)
    assert (read(consumer), mark_delete(site)) == ([], 3)


def test_a_consumer_that_takes_over_waits_for_a_cumulative_acknowledgement(site: VirtualSite):
    """It never had what the transaction of another one holds: after the abort it reads that, in order."""
    first = site.attach(FAILOVER, priority=1)
    site.publish(5)
    assert read(first, room=3) == [0, 1, 2]
    assert first.acknowledge_cumulative(*position(2), transaction=T)
    better = site.attach(FAILOVER, site.world.start(), priority=0)
    assert read(better, room=1) == [3]
    first.end_transaction(T, ABORTED)
    assert read(better) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("outcome", [COMMITTED, ABORTED])
def test_a_cumulative_acknowledgement_within_a_batch(site: VirtualSite, outcome: int):
    """A consumer that left part of a batch out gets the rest again only if that part comes back."""
    consumer = site.attach(EXCLUSIVE)
    site.publish(2, messages=3)
    assert read(consumer) == [0, 1]
    assert consumer.acknowledge_cumulative(*position(1), 0, 3, transaction=T)
    consumer.redeliver()
    assert [(view.entry_id, view.skip) for view in consumer.read(10, 1 << 20)] == [(1, 1)]
    consumer.end_transaction(T, outcome)
    assert read(consumer) == ([] if outcome == COMMITTED else [0, 1])
    assert mark_delete(site) == (0 if outcome == COMMITTED else -1)


def test_another_consumer_acknowledges_ahead_of_the_active_one(site: VirtualSite):
    """Entries that it has not read yet do not come to it."""
    first = site.attach(FAILOVER, priority=1)
    site.publish(5)
    assert read(first) == [0, 1, 2, 3, 4]
    better = site.attach(FAILOVER, site.world.start(), priority=0)
    assert read(better, room=1) == [0]
    assert hold(first, T, 2, 3)
    assert [read(better, room=1) for _ in range(3)] == [[1], [4], []]


# -- refusing ----------------------------------------------------------------------------------------------


def test_a_conflict_names_what_it_is_about(site: VirtualSite):
    """Entry, subscription and reason; nothing of the call counts, and no command is written."""
    consumer = site.attach(SHARED)
    site.publish(4)
    read(consumer)
    hold(consumer, T, 1)
    before = consumer.progress()
    with pytest.raises(TransactionConflict) as caught:
        hold(consumer, U, 0, 1, 2)
    text = str(caught.value)
    assert "transaction (0,18) cannot acknowledge in subscription 's'" in text
    assert "entry 7:1 is acknowledged in transaction (0,17), which is open" in text
    assert consumer.progress() == before
    assert hold(consumer, U, 0, 2)


def test_consumers_that_share_acknowledge_one_by_one(site: VirtualSite):
    """In transactions as well."""
    consumer = site.attach(SHARED)
    site.publish(1)
    read(consumer)
    with pytest.raises(CumulativeAcknowledgementNotAllowedError, match="'s'"):
        consumer.acknowledge_cumulative(*position(0), transaction=T)
    assert pending(site) == []


def test_what_counts_no_more(site: VirtualSite):
    """After a seek by whomever the answer is False, as without a transaction; made-up ids are ignored."""
    consumer, other = site.attach(SHARED), site.attach(SHARED, process=site.world.start())
    site.publish(3)
    read(consumer)
    assert hold(consumer, T, 0)
    other.seek(position(1), inclusive=False)
    assert not hold(consumer, T, 2)
    assert pending(site) == []
    read(consumer)
    assert consumer.acknowledge([position(50)], transaction=T)
    assert pending(site) == []


# -- following the end -------------------------------------------------------------------------------------


def test_whoever_comes_follows_the_end(site: VirtualSite):
    """Before it decides anything: what was committed is not delivered, what was aborted is."""
    consumer = site.attach(SHARED)
    site.publish(4)
    assert read(consumer) == [0, 1, 2, 3]
    hold(consumer, T, 0, 1)
    hold(consumer, U, 2)
    consumer.detach()
    site.world.decided |= {T: COMMITTED, U: ABORTED}
    other = site.attach(SHARED, process=site.world.start())
    assert read(other) == [2, 3]
    assert (mark_delete(site), pending(site)) == (1, [])


def test_statistics_follow_the_end(site: VirtualSite):
    """They count what is committed as acknowledged; a look without the lock does, too, and writes nothing."""
    consumer = site.attach(SHARED)
    site.publish(3)
    read(consumer)
    hold(consumer, T, 0, 1)
    subscription, log = site.process.subscription, site.log
    view = SubscriptionView(subscription.directory, log, print, site.world.outcomes)  # type: ignore[arg-type]
    facts = view.facts(lambda uuid: True)
    assert facts is not None
    assert [one.transaction for one in facts.transactions] == [T]
    assert facts.transactions[0][1:] == (2, 0, None)
    site.world.decided[T] = COMMITTED
    before = consumer.progress()
    facts = view.facts(lambda uuid: True)
    assert facts is not None
    assert (facts.acknowledged.mark_delete, facts.transactions) == (position(1), ())
    assert consumer.progress() == before
    assert (subscription.statistics().transactions, mark_delete(site)) == ((), 1)
    facts = view.facts(lambda uuid: True)
    assert facts is not None
    assert facts.acknowledged.mark_delete == position(1)
    view.close()


def test_nothing_is_asked_where_nothing_is_pending(site: VirtualSite):
    """Nor after the transactions have ended."""
    consumer = site.attach(SHARED)
    site.publish(3)
    read(consumer)
    consumer.acknowledge([position(0)])
    assert site.world.asked == 0
    hold(consumer, T, 1)
    consumer.end_transaction(T, COMMITTED)
    asked = site.world.asked
    consumer.acknowledge([position(2)])
    read(consumer)
    consumer.detach()
    assert (site.world.asked, asked > 0) == (asked, True)


def test_a_full_disk_does_not_keep_readers_from_reading(site: VirtualSite, monkeypatch: pytest.MonkeyPatch):
    """The end is followed when there is room again."""
    consumer = site.attach(EXCLUSIVE)
    site.publish(3)
    read(consumer, room=1)
    hold(consumer, T, 0)
    site.world.decided[T] = COMMITTED
    shared = site.process.shared

    def fail(*_: object) -> None:
        raise StorageFullError("no room", path=shared.directory)

    with monkeypatch.context() as patch:
        patch.setattr(shared, "commit", fail)
        assert read(consumer) == [1, 2]
        assert pending(site) == [T]
    assert (pending(site), mark_delete(site)) == ([], 0)


# -- others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
@pytest.mark.parametrize("act", [lambda one: one.skip(1), lambda one: one.give_back()], ids=["skip", "back"])
def test_operators_keep_what_is_pending(
    tmp_path: Path, kind: ConsumerType, act: Callable[[OperatorCommands], object]
):
    """They put consumers back to where the subscription stands: the transaction commits all the same."""
    with SubscriptionSite(tmp_path) as site:
        subscription = site.subscription()
        sent = site.publish(6)
        consumer = subscription.attach("c", kind)
        assert positions(read_all(consumer)) == sent
        consumer.acknowledge([sent[1], sent[3]], transaction=T)
        consumer.acknowledge([sent[2]])
        assert consumer.backlog() == 5
        act(subscription.operator_commands())
        assert [one.transaction for one in subscription.pending_transactions()] == [T]
        assert not {sent[1], sent[2], sent[3]} & set(positions(read_all(consumer)))
        consumer.end_transaction(T, COMMITTED)
        assert consumer.acknowledge([sent[0]])
        assert (subscription.mark_delete, subscription.backlog()) == (sent[3], 2)


def test_a_lone_consumer_keeps_its_range(site: VirtualSite):
    """It reads on without claims through its own transactions; entries that they hold do not come."""
    consumer = site.attach(SHARED)
    words = site.process.shared.control.words
    for number in range(6):
        site.publish(1)
        assert read(consumer) == [number]
    assert words[SubscriptionWord.RANGE_OWNER] == consumer.consumer_id
    hold(consumer, T, 3, 4)
    assert words[SubscriptionWord.RANGE_OWNER] == consumer.consumer_id
    site.publish(1)
    assert read(consumer) == [6]
    consumer.end_transaction(T, COMMITTED)
    assert words[SubscriptionWord.RANGE_OWNER] == consumer.consumer_id
    hold(consumer, U, 5)
    consumer.end_transaction(U, ABORTED)
    site.publish(1)
    assert sorted(read(consumer) + read(consumer)) == [5, 7]
    assert hold(consumer, U, 9)  # does not exist: it may not be taken by a transaction when it does
    site.publish(3)
    assert sorted(read(consumer) + read(consumer)) == [8, 9, 10]


def test_chunked_messages_are_held_whole(tmp_path: Path):
    """All parts, and none of a message that ends behind a cumulative acknowledgement."""
    with VirtualSite(tmp_path) as site:
        consumer = site.attach(EXCLUSIVE)
        parts = [site.log.append(0, 0, 0, 0, 5) for _ in range(2)]
        parts[0].message = parts[1].message = 1
        site.publish(1)
        assert read(consumer) == [2]
        assert consumer.acknowledge_cumulative(*position(2), transaction=T)
        consumer.end_transaction(T, COMMITTED)
        assert mark_delete(site) == -1  # the parts may be needed yet
        last = site.log.append(0, 1, 0, 0, 5)
        last.message, last.earlier = 1, tuple(part.position for part in parts)
        for part in parts:
            part.last = last
        assert read(consumer) == [3]
        assert hold(consumer, U, 3)
        assert site.process.subscription.pending_transactions()[0].entries == 3
        consumer.end_transaction(U, COMMITTED)
        assert mark_delete(site) == 3


def test_a_non_persistent_topic_has_no_pending_acknowledgements(
    site: VirtualSite, monkeypatch: pytest.MonkeyPatch
):
    """What is delivered is acknowledged there: the error says so."""
    consumer = site.attach(EXCLUSIVE)
    site.publish(1)
    read(consumer)
    monkeypatch.setattr(site.log, "is_volatile", True)
    with pytest.raises(TransactionConflict, match="non-persistent"):
        hold(consumer, T, 0)


def test_what_is_pending_survives_a_new_generation_and_a_new_process(tmp_path: Path):
    """The snapshot has it; a process of a release without transactions refuses that."""
    with SubscriptionSite(tmp_path) as site:
        subscription = site.subscription()
        sent = site.publish(5)
        consumer = subscription.attach("c")
        read_all(consumer)
        assert consumer.acknowledge([sent[0], sent[2]], transaction=T)
        shared = subscription._existing()
        shared.transact(lambda _: shared._journal.compact(5))
    with SubscriptionSite(tmp_path) as site:
        decided = dict.fromkeys([T], 0)
        subscription = site.subscription(initial=None, outcomes=lambda ids: [decided[one] for one in ids])
        assert [one.transaction for one in subscription.pending_transactions()] == [T]
        decided[T] = COMMITTED
        assert subscription.backlog() == 3
        assert subscription.mark_delete == sent[0]


@pytest.mark.parametrize(
    "point", ["journal:body_done", "journal:word_stored", "subscription:announced", "subscription:published"]
)
@pytest.mark.parametrize("outcome", [COMMITTED, ABORTED])
def test_an_interrupted_end_is_followed_later(site: VirtualSite, point: str, outcome: int):
    """Ctrl-C in the middle of it leaves nothing half done."""
    consumer = site.attach(EXCLUSIVE)
    site.publish(3)
    assert read(consumer) == [0, 1, 2]
    hold(consumer, T, 0, 1)
    site.world.decided[T] = outcome

    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        site.process.subscription.end_transaction(T, outcome)
    except KeyboardInterrupt:
        pass
    finally:
        failpoints.clear()
    assert pending(site) == []
    assert read(consumer) == ([] if outcome == COMMITTED else [0, 1, 2])
    assert mark_delete(site) == (1 if outcome == COMMITTED else -1)


@pytest.fixture
def ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction that has ended may wait, as if as many had ended as may."""
    monkeypatch.setattr(attachment, "_MOST_ENDED", 1)


@pytest.mark.usefixtures("ends_first")
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
@pytest.mark.parametrize("outcome", [COMMITTED, ABORTED])
def test_an_acknowledgement_is_written_behind_the_ends_before_it(
    site: VirtualSite, kind: ConsumerType, outcome: int
):
    """Every replica follows both, and nothing of the first transaction stays pending."""
    consumer, other = site.attach(kind), site.world.start().subscription
    site.publish(4)
    assert read(consumer) == [0, 1, 2, 3]
    hold(consumer, T, 0, 1)
    site.world.decided[T] = outcome
    journal, appended = consumer._shared._journal, []
    append = journal.append
    journal.append = lambda commands, *rest, **names: (  # type: ignore[method-assign]
        appended.append(len(commands)) or append(commands, *rest, **names)
    )
    assert hold(consumer, U, 2)
    # One command after the other where the end may have to be announced, both in one append else.
    assert appended == ([1, 1] if outcome == ABORTED else [2])
    assert pending(site) == [one.transaction for one in other.pending_transactions()] == [U]
    assert mark_delete(site) == (1 if outcome == COMMITTED else -1)
    site.world.decided[U] = COMMITTED
    returned = [0, 1] if outcome == ABORTED else []
    # An active consumer reads on from the mark-delete position after an abort; 3 was delivered before.
    comes = [*read(consumer), *read(consumer)]
    assert comes == ([*returned, 3] if returned and kind == EXCLUSIVE else returned)
    assert consumer.acknowledge([position(entry) for entry in (*returned, 3)])
    assert (mark_delete(site), pending(site), other.mark_delete) == (3, [], position(3))


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_the_ends_of_many_are_one_command(site: VirtualSite, kind: ConsumerType):
    """Up to so many may wait for it; a look at the subscription does not."""
    consumer, other = site.attach(kind), site.world.start().subscription
    site.publish(100)
    entries: list[int] = []
    while more := read(consumer):
        entries += more
    assert entries == list(range(100))
    journal, kinds = consumer._shared._journal, list[int]()
    append = journal.append
    journal.append = lambda commands, *rest, **names: (  # type: ignore[method-assign]
        kinds.extend(kind for kind, _ in commands) or append(commands, *rest, **names)
    )
    for number in range(80):
        one = (0, 100 + number)
        assert hold(consumer, one, number)
        site.world.decided[one] = COMMITTED
    ends = [at for at, each in enumerate(kinds) if each == record.TRANSACTION_COMMITS]
    assert len(ends) == 9 and kinds.count(record.TRANSACTION_ACK) == 80
    assert record.TRANSACTION_END not in kinds
    assert (pending(site), mark_delete(site)) == ([], 79)
    assert ([one.transaction for one in other.pending_transactions()], other.mark_delete) == (
        [],
        position(79),
    )
    with pytest.raises(TransactionConflict, match="is acknowledged already"):
        hold(consumer, U, 79)


def test_some_of_those_that_wait_are_open_or_aborted(site: VirtualSite):
    """Each is followed as it ended; those that are open stay pending."""
    consumer = site.attach(SHARED)
    site.publish(10)
    assert read(consumer) == list(range(10))
    for number in range(9):
        assert hold(consumer, (0, 100 + number), number)
        if number % 3 < 2:
            site.world.decided[0, 100 + number] = ABORTED if number % 3 else COMMITTED
    assert pending(site) == [(0, 102), (0, 105), (0, 108)]
    assert mark_delete(site) == 0
    assert sorted([*read(consumer), *read(consumer)]) == [1, 4, 7]


def test_an_acknowledgement_that_depends_on_an_end_follows_it_first(site: VirtualSite):
    """What came back may be acknowledged again, what is acknowledged may not; a refusal leaves nothing."""
    consumer = site.attach(SHARED)
    site.publish(3)
    assert read(consumer) == [0, 1, 2]
    hold(consumer, T, 0)
    site.world.decided[T] = ABORTED
    assert hold(consumer, U, 0)
    site.world.decided[U] = COMMITTED
    with pytest.raises(TransactionConflict, match="is acknowledged already"):
        hold(consumer, (0, 19), 0)
    assert (pending(site), mark_delete(site)) == ([], 0)
    # The end of another one is written before a call that acknowledges up to a message, too.
    consumer.detach()
    consumer = site.attach(EXCLUSIVE)
    assert read(consumer) == [1, 2]
    hold(consumer, (0, 19), 1)
    site.world.decided[0, 19] = COMMITTED
    with pytest.raises(TransactionConflict, match="everything up to"):
        consumer.acknowledge_cumulative(*position(1), transaction=(0, 20))
    assert mark_delete(site) == 1


def test_a_message_that_a_committed_transaction_acknowledged_up_to(site: VirtualSite):
    """It is free for single acknowledgements as long as that is open, and acknowledged behind its end."""
    consumer = site.attach(EXCLUSIVE)
    site.publish(3)
    assert read(consumer) == [0, 1, 2]
    consumer.acknowledge_cumulative(*position(1), transaction=T)
    site.world.decided[T] = COMMITTED
    with pytest.raises(TransactionConflict, match="is acknowledged already"):
        hold(consumer, U, 1)
    assert (pending(site), mark_delete(site)) == ([], 1)


def test_ends_that_a_refused_acknowledgement_left_are_followed_later(site: VirtualSite):
    """It is of an epoch that is over, so that it decides nothing and commits nothing."""
    consumer = site.attach(SHARED)
    site.publish(2)
    assert read(consumer) == [0, 1]
    hold(consumer, T, 0)
    site.world.decided[T] = COMMITTED
    assert not consumer.acknowledge([position(1)], epoch=consumer.epoch - 1, transaction=U)
    assert (pending(site), mark_delete(site)) == ([], 0)


@pytest.mark.usefixtures("ends_first")
@pytest.mark.parametrize("point", ["journal:body_done", "journal:word_stored", "subscription:published"])
@pytest.mark.parametrize("outcome", [COMMITTED, ABORTED])
def test_an_interrupted_acknowledgement_leaves_no_half_of_an_end(site: VirtualSite, point: str, outcome: int):
    """The end is followed in any case; the acknowledgement was not reached, or is there with it."""
    consumer = site.attach(SHARED)
    site.publish(3)
    assert read(consumer) == [0, 1, 2]
    hold(consumer, T, 0)
    site.world.decided[T] = outcome
    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        hold(consumer, U, 1)
    except KeyboardInterrupt:
        pass
    finally:
        failpoints.clear()
    is_stored = outcome == COMMITTED and point != "journal:body_done"
    assert pending(site) == ([U] if is_stored else [])
    assert mark_delete(site) == (0 if outcome == COMMITTED else -1)
    assert read(consumer) == ([] if outcome == COMMITTED else [0])


def check_replicas(site: VirtualSite, *others: Subscription) -> None:
    """All replicas, and one that is built from the files, agree."""
    states = [
        subscription._existing().transact(lambda state: state)
        for subscription in (site.process.subscription, *others, site.world.start().subscription)
    ]
    assert len({(state.commands, state.digest, encode_snapshot(state)) for state in states}) == 1
    assert all(one._existing().divergences == 0 for one in (site.process.subscription, *others))


@pytest.mark.usefixtures("ends_first")
def test_a_new_generation_has_the_ends_before_an_acknowledgement_once(site: VirtualSite):
    """A flush that fails while the lock is held has the next append begin one."""
    consumer, other = site.attach(EXCLUSIVE), site.world.start().subscription
    site.publish(3)
    assert read(consumer) == [0, 1, 2]
    hold(consumer, T, 0)
    site.world.decided[T] = COMMITTED
    shared = consumer._shared
    lead = shared._journal.lead

    def fail_to_flush() -> None:
        lead()
        shared._journal._at.must_leave = True

    shared._journal.lead = fail_to_flush  # type: ignore[method-assign]
    generation = shared._journal.generation
    assert hold(consumer, U, 1)
    assert shared._journal.generation == generation + 1
    assert (pending(site), mark_delete(site)) == ([U], 0)
    check_replicas(site, other)


@pytest.mark.usefixtures("ends_first")
@pytest.mark.parametrize("times", [1, 2])
def test_ends_for_which_there_is_no_room_are_followed_later(site: VirtualSite, times: int):
    """The acknowledgement behind them fails, and no replica keeps what is not written."""
    consumer, other = site.attach(SHARED), site.world.start().subscription
    site.publish(3)
    assert read(consumer) == [0, 1, 2]
    hold(consumer, T, 0)
    site.world.decided[T] = COMMITTED
    shared = consumer._shared
    append, left = shared._journal.append, [times]

    def append_if_room(*arguments: Any, **names: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StorageFullError("no room", path=shared.directory)
        return append(*arguments, **names)

    shared._journal.append = append_if_room  # type: ignore[method-assign]
    with pytest.raises(StorageFullError):
        hold(consumer, U, 1)
    assert (pending(site), mark_delete(site)) == ([], 0)
    check_replicas(site, other)
    assert hold(consumer, U, 1)
    assert (pending(site), mark_delete(site)) == ([U], 0)
    check_replicas(site, other)


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize(
    "within", ["_engine/log/journal", "_engine/subscription/sta", "_engine/subscription/shared_"]
)
def test_an_interrupt_at_any_instruction_of_an_acknowledgement(
    site: VirtualSite, is_refused: bool, within: str
):
    """Of the ends before it, and of itself: the commands are all there or none, and replicas agree."""
    consumer, other = site.attach(EXCLUSIVE), site.world.start().subscription
    site.publish(900)
    transactions = iter(range(20, 1 << 20))
    free = iter(read(consumer, room=900))
    before = [(0, next(transactions)), next(free)]

    strikes: list[int] = []

    def interrupt() -> None:
        strikes.append(index)
        # A signal is handled at a call, which the release of the lock is, and not before.
        if sys._getframe(2).f_code.co_name != "transact":
            raise KeyboardInterrupt

    hold(consumer, *before)  # type: ignore[arg-type]
    for index in range(0, 1 << 20, 7):
        site.world.decided[before[0]] = COMMITTED  # type: ignore[index]
        transaction, entry = (0, next(transactions)), before[1] if is_refused else next(free)
        with contextlib.suppress(KeyboardInterrupt, TransactionConflict):
            strike(partial(hold, consumer, transaction, entry), interrupt, index, within)
        assert pending(site) in ([], [transaction])
        assert site.process.subscription._existing().state.acks.is_acked(position(before[1]))  # type: ignore
        check_replicas(site, other)
        if index not in strikes:
            break
        # What the interrupt left ends with it, and the next one begins with an end again.
        site.world.decided[transaction] = COMMITTED
        before = [(0, next(transactions)), next(free)]
        hold(consumer, *before)  # type: ignore[arg-type]
    else:
        raise AssertionError("no end")
    assert index > 100
