"""Producers, on a ledger in memory."""

from __future__ import annotations

import gc
import logging
import weakref
from datetime import timedelta

import pytest

from embeddedpulsar import exceptions
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar.client.client_threads import MemoryLimit
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.results import Result
from embeddedpulsar.schema import StringSchema
from tests.unit.client.fakes import FakeSession, make_producer


class Calls(list):
    """A send callback that remembers its calls."""

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self.append((result, message_id))


# -- unbatched ---------------------------------


def test_send_returns_where_the_message_is():
    """An unbatched message is an entry of its own, with batch index -1."""
    producer, _, ledger = make_producer()
    assert producer.send(b"a") == MessageId(-1, 7, 0, -1)
    assert producer.send(b"b") == MessageId(-1, 7, 1, -1)
    assert ledger.values() == [[b"a"], [b"b"]]
    assert not ledger.views[0].batched
    assert [view.first_sequence_id for view in ledger.views] == [0, 1]


@pytest.mark.parametrize("failure", [OSError(24, "Too many open files"), KeyboardInterrupt()])
def test_the_error_of_a_send_is_in_no_cycle(failure: BaseException):
    """What the frames of a failed append held is released with the error, without the garbage collector."""
    producer, _, ledger = make_producer()
    ledger.fail = failure
    gc.disable()
    try:
        try:
            producer.send(b"a")
        except exceptions.PulsarException as error:
            raised = weakref.ref(error)
        assert raised() is None
    finally:
        gc.enable()


def test_last_sequence_id_follows():
    """-1 before the first message; then the id last stored, which an explicit id may lower."""
    producer, _, _ = make_producer()
    assert producer.last_sequence_id() == -1
    producer.send(b"a")
    producer.send(b"b", sequence_id=9)
    assert producer.last_sequence_id() == 9
    producer.send(b"c")
    assert producer.last_sequence_id() == 1


def test_initial_sequence_id():
    """The first automatic id is one more than the initial one."""
    producer, _, ledger = make_producer(initial_sequence_id=41)
    producer.send(b"a")
    assert ledger.views[0].first_sequence_id == 42


def test_send_with_options():
    """Options are stored with the message."""
    producer, _, ledger = make_producer()
    producer.send(b"a", {"x": "y"}, "k", "o", 5, event_timestamp=6, deliver_at=7)
    (view,) = ledger.views
    assert (view.properties(0), view.keys(), view.ordering_keys()) == ({"x": "y"}, ["k"], ["o"])
    assert (view.first_sequence_id, view.event_times(), view.deliver_at()) == (5, [6], [7])


def test_none_is_a_null_value():
    """None is stored as null, and b"" is not null."""
    producer, _, ledger = make_producer()
    producer.send(None)
    producer.send(b"")
    assert [view.null(0) for view in ledger.views] == [True, False]
    assert ledger.values() == [[b""], [b""]]


def test_a_value_the_schema_does_not_take():
    """The schema's TypeError comes out of send and send_async alike; sending 5 is a TypeError."""
    producer, _, _ = make_producer()
    for wrong in (5, "x", bytearray(b"x")):
        with pytest.raises(TypeError, match="Invalid record obj"):
            producer.send(wrong)
        with pytest.raises(TypeError, match="Invalid record obj"):
            producer.send_async(wrong, Calls())
    producer, _, _ = make_producer(FakeSession(StringSchema()))
    with pytest.raises(TypeError):
        producer.send(b"x")


def test_a_schema_encodes():
    """Text is stored in UTF-8, by every way of sending."""
    producer, _, ledger = make_producer(FakeSession(StringSchema()))
    producer.send("ü")
    producer.send_async("ü", None)
    producer, _session, ledger2 = make_producer(FakeSession(StringSchema()), batching=True)
    producer.send_async("ü", None)
    producer.flush()
    assert ledger.values() == [["ü".encode()]] * 2
    assert ledger2.values() == [["ü".encode()]]


def test_a_schema_must_give_bytes():
    """A schema that gives something else is reported in the words of pulsar-client."""

    class Wrong(StringSchema):
        def encode(self, obj):
            return "text"

    producer, _, _ = make_producer(FakeSession(Wrong()))
    with pytest.raises(ValueError, match="Argument data is expected to be of type 'bytes' and not 'str'"):
        producer.send("x")


@pytest.mark.parametrize("codec", [0, 1, 2])
def test_message_too_big(codec):
    """A message beyond maxMessageSize fails; one that is small enough once compressed does not."""
    session = FakeSession(max_message_size=1000)
    producer, _, ledger = make_producer(session, compression=codec)
    if codec:
        producer.send(b"x" * 2000)
        assert ledger.values() == [[b"x" * 2000]]
    else:
        for size in (2000, 1000):
            with pytest.raises(exceptions.MessageTooBig, match="maxMessageSize is 1000"):
                producer.send(b"x" * size)
        assert ledger.values() == []
    producer.flush()  # whoever sent was told: nothing is left to report


def test_send_async_unbatched_stores_at_once():
    """Without batching the message is stored when the call returns; the callback comes from its thread."""
    producer, session, ledger = make_producer()
    calls = Calls()
    producer.send_async(b"a", calls)
    assert (ledger.values(), calls) == ([[b"a"]], [])
    session.callbacks.run()
    assert calls == [(Result.Ok, MessageId(-1, 7, 0, -1))]


def test_send_async_reports_errors_to_the_callback():
    """Everything but a wrong argument goes to the callback."""
    producer, session, ledger = make_producer(FakeSession(max_message_size=1000))
    calls = Calls()
    producer.send_async(b"x" * 2000, calls)
    ledger.fail = exceptions.StorageFullError("no room")
    producer.send_async(b"a", calls)
    ledger.fail = RuntimeError("a defect")
    producer.send_async(b"a", calls)
    session.callbacks.run()
    expected = [Result.MessageTooBig, Result.BrokerPersistenceError, Result.UnknownError]
    assert [result for result, _ in calls] == expected
    with pytest.raises(ValueError, match="partition_key"):
        producer.send_async(b"a", calls, partition_key=5)


def test_the_level_of_durability_reaches_the_ledger():
    """Every append says which level it wants."""
    producer, _, ledger = make_producer(FakeSession(durability="interval"))
    producer.send(b"a")
    producer.send(b"b", partition_key="k")
    assert ledger.dirty == 2


@pytest.mark.parametrize("batching", [False, True])
def test_send_timeout(batching):
    """A send waits for the log as long as send_timeout_millis says; then it fails with Timeout."""
    for timeout_ms, waits_s in ((250, 0.25), (0, 1e9)):
        producer, _, ledger = make_producer(send_timeout_ms=timeout_ms, batching=batching)
        producer.send(b"a")
        ledger.lock.is_free = False
        calls = Calls()
        with pytest.raises(exceptions.Timeout):
            producer.send(b"b", partition_key="k")
        producer.send_async(b"c", calls)
        producer.flush()
        assert [result for result, _ in calls] == [Result.Timeout]
        assert ledger.values() == [[b"a"]]
        assert set(ledger.lock.waits[-2:]) == {waits_s}


# -- batches ---------------------------------


def test_a_full_batch_is_stored_by_the_sender():
    """The message that fills the batch stores it; ids share the entry and count up."""
    producer, session, ledger = make_producer(batching=True, batching_max_messages=3)
    calls = Calls()
    for value in (b"a", b"b"):
        producer.send_async(value, calls)
    assert ledger.values() == []
    producer.send_async(b"c", calls)
    assert ledger.values() == [[b"a", b"b", b"c"]]
    session.callbacks.run()
    assert calls == [(Result.Ok, MessageId(-1, 7, 0, i)) for i in range(3)]


def test_a_batch_of_one_has_index_0():
    """Even alone, a batched message has a batch index."""
    producer, _, ledger = make_producer(batching=True)
    producer.send_async(b"a", None)
    producer.flush()
    assert (ledger.views[0].batched, ledger.views[0].count) == (True, 1)


def test_bytes_fill_a_batch():
    """A message that does not fit goes into the next batch; one that fills it closes it."""
    producer, _, ledger = make_producer(batching=True, batching_max_bytes=1000)
    for size in (400, 400, 300, 700):
        producer.send_async(b"x" * size, None)
    assert [[len(v) for v in values] for values in ledger.values()] == [[400, 400], [300, 700]]


def test_small_messages_count_once_a_large_one_waits():
    """Small messages before and after a large one count against the bytes too."""
    producer, _, ledger = make_producer(batching=True, batching_max_bytes=10_000)
    for _ in range(20):
        producer.send_async(b"s" * 10, None)
    producer.send_async(b"L" * 9790, None)
    producer.send_async(b"s" * 10, None)
    producer.send_async(b"s" * 10, None)
    producer.flush()
    assert [sum(map(len, values)) for values in ledger.values()] == [10_000, 10]


def test_the_delay_timer_stores_what_waits():
    """What waits longer than the delay is stored, and the timer rests when nothing waits."""
    producer, session, ledger = make_producer(batching=True, batching_max_delay_ms=10)
    producer.send_async(b"a", None)
    session.clock.advance(0.009)
    session.scheduler.run_due()
    assert ledger.values() == []
    session.clock.advance(0.001)
    session.scheduler.run_due()
    assert ledger.values() == [[b"a"]]
    session.clock.advance(1)
    session.scheduler.run_due()
    assert session.scheduler.pending == 0
    producer.send_async(b"b", None)
    session.clock.advance(0.01)
    session.scheduler.run_due()
    assert ledger.values() == [[b"a"], [b"b"]]


def test_the_timer_spares_a_young_batch():
    """A batch begun after a flush does not go out with the timer before it, nor later than its delay."""
    producer, session, ledger = make_producer(batching=True, batching_max_messages=2)
    producer.send_async(b"a", None)
    session.clock.advance(0.008)
    producer.send_async(b"b", None)
    producer.send_async(b"c", None)
    session.clock.advance(0.002)
    session.scheduler.run_due()
    assert ledger.values() == [[b"a", b"b"]]
    session.clock.advance(0.008)
    session.scheduler.run_due()
    assert ledger.values() == [[b"a", b"b"], [b"c"]]


def test_no_delay_means_no_waiting():
    """With a delay of 0 every message is stored at once, as a batch."""
    producer, session, ledger = make_producer(batching=True, batching_max_delay_ms=0)
    producer.send_async(b"a", None)
    producer.send_async(b"b", None, partition_key="k")
    assert ledger.values() == [[b"a"], [b"b"]]
    assert session.scheduler.pending == 0


def test_a_synchronous_send_takes_its_batch_along():
    """send() does not wait for the timer: what waits goes with it, and it learns its own index."""
    producer, session, ledger = make_producer(batching=True)
    calls = Calls()
    producer.send_async(b"a", calls)
    assert producer.send(b"b") == MessageId(-1, 7, 0, 1)
    assert producer.send(b"c", partition_key="k") == MessageId(-1, 7, 1, 0)
    session.callbacks.run()
    assert calls == [(Result.Ok, MessageId(-1, 7, 0, 0))]
    assert ledger.values() == [[b"a", b"b"], [b"c"]]


def test_a_synchronous_send_in_a_batch_raises_its_error():
    """The error of the batch is the error of the send."""
    producer, _, ledger = make_producer(batching=True)
    ledger.fail = exceptions.StorageFullError(reason="no room")
    with pytest.raises(exceptions.StorageFullError, match="no room"):
        producer.send(b"a")


def test_a_lock_below_that_of_the_topic_is_tried_again():
    """A new segment needs the lock of the store: that it is held is no error of the message."""
    producer, _, ledger = make_producer(batching=True)
    producer.send_async(b"before", None)
    ledger.fail = exceptions.LockTimeout("held by another")
    assert producer.send(b"a") == MessageId(-1, 7, 0, 1)


def test_delayed_messages_are_never_batched():
    """A message with a delivery time goes at once, ahead of what waits."""
    producer, _, ledger = make_producer(batching=True)
    producer.send_async(b"a", None)
    producer.send_async(b"later", None, deliver_after=timedelta(seconds=5))
    assert producer.send(b"at", deliver_at=99)
    producer.flush()
    assert ledger.values() == [[b"later"], [b"at"], [b"a"]]
    assert [view.batched for view in ledger.views] == [False, False, True]


def test_key_based_batches():
    """One entry per key, callbacks in the order of the entries."""
    producer, _session, ledger = make_producer(batching=True, key_based=True)
    calls = Calls()
    for value, key in ((b"1", "a"), (b"2", "b"), (b"3", "a")):
        producer.send_async(value, calls, partition_key=key)
    producer.flush()
    assert ledger.values() == [[b"1", b"3"], [b"2"]]
    assert [(i.entry_id(), i.batch_index()) for _, i in calls] == [(0, 0), (0, 1), (1, 0)]
    assert producer.last_sequence_id() == 2, "ids count in the order of storing"


def test_max_pending_messages_bounds_the_batch():
    """No more wait than may be pending."""
    producer, _, ledger = make_producer(batching=True, max_pending_messages=2)
    for _ in range(4):
        producer.send_async(b"a", None)
    assert ledger.values() == [[b"a", b"a"]] * 2


def test_flush_reports_what_nobody_was_told():
    """The first failure of a message without callback comes out of the next flush, once."""
    producer, _, ledger = make_producer(batching=True)
    producer.send_async(b"a", None)
    ledger.fail = exceptions.StorageFullError("no room")
    with pytest.raises(exceptions.StorageFullError):
        producer.flush()
    producer.send_async(b"b", None)
    producer.flush()
    assert ledger.values() == [[b"b"]]


def test_a_failing_callback_is_logged(caplog):
    """An exception of a callback is logged and hurts neither the others nor the program."""
    producer, _session, _ = make_producer(batching=True)
    calls = Calls()

    def fail(result, message_id):
        raise SystemExit

    producer.send_async(b"a", fail)
    producer.send_async(b"b", calls)
    with caplog.at_level(logging.ERROR, "embeddedpulsar"):
        producer.flush()
    assert len(calls) == 1
    assert "A send callback failed" in caplog.text


# -- level flush ---------------------------------


def test_level_flush_calls_back_after_the_disk():
    """At level "flush" a callback comes only when the entry is on the disk."""
    producer, session, ledger = make_producer(FakeSession(durability="flush"))
    calls = Calls()
    producer.send_async(b"a", calls)
    assert ledger.synced == 0
    session.callbacks.run()
    assert ledger.synced == 1
    assert calls == [(Result.Ok, MessageId(-1, 7, 0, -1))]
    producer.send(b"b")
    assert ledger.synced == 2


def test_level_flush_reports_a_failing_disk():
    """A flush that fails is the error of the message: to the callback, or else to the next flush()."""
    producer, session, ledger = make_producer(FakeSession(durability="flush"))
    calls = Calls()
    producer.send_async(b"a", calls)
    ledger.fail = exceptions.PoisonedSegment("EIO")
    session.callbacks.run()
    assert [result for result, _ in calls] == [Result.BrokerPersistenceError]
    producer.send_async(b"a", None)
    ledger.fail = exceptions.PoisonedSegment("EIO")
    with pytest.raises(exceptions.PoisonedSegment):
        producer.flush()


@pytest.mark.parametrize("batching", [False, True])
def test_pending_messages_are_limited(batching):
    """At level "flush" messages are pending until they are on the disk; beyond the limit sends fail."""
    session = FakeSession(durability="flush")
    producer, session, _ledger = make_producer(session, batching=batching, max_pending_messages=2)
    calls = Calls()
    for _ in range(3):
        producer.send_async(b"a", calls)
    if not batching:
        with pytest.raises(exceptions.ProducerQueueIsFull, match="block_if_queue_full"):
            producer.send(b"b")
    session.callbacks.run()
    assert [result for result, _ in calls] == [Result.Ok, Result.Ok, Result.ProducerQueueIsFull]
    producer.send(b"b")


def test_block_if_queue_full_waits():
    """With block_if_queue_full the sender waits for the disk instead."""
    session = FakeSession(durability="flush")
    producer, session, _ledger = make_producer(session, max_pending_messages=2, block_if_queue_full=True)
    calls = Calls()
    for _ in range(5):
        producer.send_async(b"a", calls)
    producer.flush()
    assert [result for result, _ in calls] == [Result.Ok] * 5


# -- interrupts ---------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_an_interrupt_in_a_flush_loses_and_doubles_nothing(stored):
    """Ctrl-C in the middle of an append: the next flush looks whether the batch was stored."""
    producer, _session, ledger = make_producer(batching=True)
    calls = Calls()
    producer.send_async(b"a", calls)
    producer.send_async(b"b", calls)
    setattr(ledger, "fail_after_storing" if stored else "fail", KeyboardInterrupt())
    with pytest.raises(exceptions.Interrupted):
        producer.flush()
    assert len(ledger.views) == stored
    producer.send_async(b"c", calls)
    producer.flush()
    assert ledger.values() == [[b"a", b"b"], [b"c"]]
    assert [(result, i.entry_id()) for result, i in calls] == [(Result.Ok, 0), (Result.Ok, 0), (Result.Ok, 1)]
    assert [view.first_sequence_id for view in ledger.views] == [0, 2]


def test_an_interrupted_batch_of_several_entries_goes_on_where_it_stopped():
    """With one entry per key, only those not stored are appended again."""
    producer, _session, ledger = make_producer(batching=True, key_based=True)
    for key in "abc":
        producer.send_async(key.encode(), None, partition_key=key)
    original = ledger.append

    def interrupt_second(e, durability=None, guard=None):
        if len(ledger.views) == 1:
            ledger.append = original
            ledger.fail_after_storing = KeyboardInterrupt()
        return original(e, durability)

    ledger.append = interrupt_second
    with pytest.raises(exceptions.Interrupted):
        producer.flush()
    producer.flush()
    assert ledger.values() == [[b"a"], [b"b"], [b"c"]]


def test_an_interrupted_send_uses_its_sequence_id_up():
    """The outcome of an interrupted send is unknown, so its id must not serve another message."""
    producer, _, ledger = make_producer()
    ledger.fail = KeyboardInterrupt()
    with pytest.raises(exceptions.Interrupted, match="not known"):
        producer.send(b"a")
    producer.send(b"b")
    assert ledger.views[0].first_sequence_id == 1


def test_a_fenced_producer_cannot_send():
    """When producers came or went, a producer looks whether it still has its place; if not, sends fail."""
    producer, session, ledger = make_producer()
    producer.send(b"a")
    session.fenced = True
    producer.send(b"b")  # nothing says that anything changed
    ledger.words[TopicWord.JOURNAL] = 1
    calls = Calls()
    with pytest.raises(exceptions.ProducerFenced):
        producer.send(b"c")
    producer.send_async(b"c", calls)
    producer.flush()
    assert [result for result, _ in calls] == [Result.ProducerFenced]
    assert ledger.values() == [[b"a"], [b"b"]]


# -- life ---------------------------------


def test_close_does_not_flush():
    """As in Pulsar, what waits in a batch fails with AlreadyClosed."""
    producer, session, ledger = make_producer(batching=True)
    calls = Calls()
    producer.send_async(b"a", calls)
    producer.send_async(b"b", None)
    producer.send_async(b"c", calls, partition_key="k")
    producer.close()
    assert ledger.values() == []
    assert [result for result, _ in calls] == [Result.AlreadyClosed] * 2
    assert session.detached == 1
    assert not producer.is_connected()


@pytest.mark.parametrize("batching", [False, True])
def test_a_closed_producer_refuses(batching):
    """After close everything raises AlreadyClosed, or tells the callback."""
    producer, session, _ = make_producer(batching=batching)
    producer.close()
    calls = Calls()
    for use in (
        lambda: producer.send(b"a"),
        lambda: producer.send(b"a", partition_key="k"),
        lambda: producer.send_async(b"a", None),
        producer.flush,
        producer.close,
    ):
        with pytest.raises(exceptions.AlreadyClosed):
            use()
    producer.send_async(b"a", calls)
    session.callbacks.run()
    assert [result for result, _ in calls] == [Result.AlreadyClosed]


def test_with_flushes_unless_an_exception_leaves_it():
    """At the end of a with block what waits is stored; after an exception it is not."""
    producer, _, ledger = make_producer(batching=True)
    with producer:
        producer.send_async(b"a", None)
    assert ledger.values() == [[b"a"]]
    producer, _, ledger = make_producer(batching=True)

    def leave_by_an_exception() -> None:
        with producer:
            producer.send_async(b"a", None)
            producer.send(5)

    with pytest.raises(TypeError):
        leave_by_an_exception()
    assert ledger.values() == []
    assert not producer.is_connected()


def test_names_and_repr():
    """The name is the one given or made; the repr is one line."""
    producer, session, _ = make_producer(name="p")
    assert (producer.producer_name(), session.names) == ("p", ["p"])
    assert repr(producer) == "<Producer p on persistent://public/default/t open>"
    producer.close()
    assert repr(producer).endswith("closed>")


def test_a_dropped_producer_is_noted():
    """Without close, the producer is left to the client to close."""
    producer, session, _ = make_producer()
    publisher = producer._publisher
    del producer
    assert session.abandoned == [publisher]


def test_a_forked_child_sends_under_a_fresh_name():
    """What waits stays with the parent; the first send attaches anew, with sequence ids from the start."""
    producer, session, parents = make_producer(batching=True, name="p")
    producer.send_async(b"parent", None)
    producer._publisher.after_fork_in_child()
    producer.send_async(b"child", None)
    producer.flush()
    assert session.revived == 1
    assert session.names == ["p", None]
    assert producer.producer_name() == "standalone-0-2"
    assert session.ledger.values() == [[b"child"]]
    assert parents.values() == []


def test_a_forked_child_may_close_what_it_never_used():
    """Closing in the child does not detach the parent's producer."""
    producer, session, _ = make_producer(name="p")
    producer._publisher.after_fork_in_child()
    producer.close()
    assert session.detached == 0


def test_producers_are_generic_over_the_schema():
    """`Producer[str]` costs nothing and says what may be sent."""
    assert Producer[str]


# -- a topic that is locked ---------------------------------


def test_what_keeps_the_lock_from_being_taken_fails_the_messages():
    """No descriptor left to open the lock with, say: each message is told, once, and none is stored later."""
    producer, session, ledger = make_producer()
    calls = Calls()
    ledger.lock.is_free = False
    for _ in range(3):
        producer.send_async(b"a", calls)

    def broken() -> bool:
        raise exceptions.StorageError(path="lock", reason="no descriptors left")

    ledger.lock.try_acquire, original = broken, ledger.lock.try_acquire
    session.flusher.run()
    ledger.lock.try_acquire, ledger.lock.is_free = original, True
    producer.send_async(b"b", calls)
    producer.flush()
    assert [result for result, _ in calls] == [Result.BrokerPersistenceError] * 3 + [Result.Ok]
    assert ledger.values() == [[b"b"]]


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("way", ["send", "send_async"])
def test_an_interrupt_keeps_no_memory(batching, way):
    """Ctrl-C in an append: the bytes count until the message is stored, or has failed."""
    session = FakeSession()
    session.memory = MemoryLimit(100)
    producer, _, ledger = make_producer(session, batching=batching)
    ledger.fail = KeyboardInterrupt()

    def use() -> None:
        if way == "send":
            producer.send(b"x" * 60)
        else:
            producer.send_async(b"x" * 60, None)
            producer.flush()

    with pytest.raises(exceptions.Interrupted):
        use()
    producer.flush()
    session.callbacks.run()
    assert session.memory.used == 0


def test_a_send_that_comes_last_is_stored_last():
    """A message that could not be stored at once is stored, with its smaller id, before a later send."""
    producer, _, ledger = make_producer()
    producer.send(b"first")
    ledger.lock.is_free = False
    producer.send_async(b"a", None)
    producer.send_async(b"b", None, partition_key="k")
    ledger.lock.is_free = True
    producer.send(b"c")
    assert ledger.values() == [[b"first"], [b"a"], [b"b"], [b"c"]]
    assert [view.first_sequence_id for view in ledger.views] == [0, 1, 2, 3]


def test_a_hot_send_stores_what_is_settled_first():
    """A sender that had passed the first check finds the entries that were encoded before its message."""
    producer, _, ledger = make_producer()
    producer.send(b"first")
    publisher = producer._publisher
    queue = publisher.queue
    limit = queue.alone_max
    ledger.lock.is_free = False
    producer.send_async(b"a", None)
    assert queue.alone_max == -1
    ledger.lock.is_free = True
    queue.alone_max = limit  # as the sender saw it
    producer.send(b"b")
    assert ledger.values() == [[b"first"], [b"a"], [b"b"]]
    assert [view.first_sequence_id for view in ledger.views] == [0, 1, 2]
