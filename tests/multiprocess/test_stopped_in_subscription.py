"""A process that is stopped inside the lock of one subscription harms that subscription alone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import Client, ConsumerType, InitialPosition
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.testing.trial_store import assert_clean
from tests.multiprocess.children import Child, say
from tests.multiprocess.workers import keep_alive

SOON_S = 5.0
"""What takes milliseconds by itself; a lock was waited for 30 s."""


def stop_inside(path: str, subscription: str) -> None:
    """Stop inside the lock of the subscription, when a consumer has joined and others do not know yet."""

    def stop() -> None:
        say("inside")
        os.kill(os.getpid(), signal.SIGSTOP)

    with Client(path) as client:
        failpoints.set("subscription:published", stop)
        subscribe(client, subscription)
        failpoints.clear()
        say("outside")
        input()


def subscribe(client: Client, subscription: str, topic: Any = "topic", **options: Any) -> Consumer[bytes]:
    """A Shared consumer from the first message on."""
    options = {"consumer_type": ConsumerType.Shared, "initial_position": InitialPosition.Earliest, **options}
    return client.subscribe(topic, subscription, **options)


@contextmanager
def stuck(path: Path, subscription: str = "stuck") -> Iterator[Child]:
    """Another process, stopped inside the lock of a subscription."""
    with Child(stop_inside, path, subscription) as child:
        assert child.read() == "inside"
        yield child


def go_on(child: Child) -> None:
    """Let a stopped process leave the lock."""
    os.kill(child.process.pid, signal.SIGCONT)
    assert child.read() == "outside"
    child.tell("end")
    assert child.join() == 0


def send(client: Client, *payloads: bytes, topic: str = "topic") -> None:
    """Publish some messages."""
    producer = client.create_producer(topic)
    for payload in payloads:
        producer.send(payload)
    producer.close()


def wait_until(condition: Callable[[], object], seconds: float = SOON_S) -> None:
    """Wait for something that happens soon."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@contextmanager
def soon(seconds: float = SOON_S) -> Iterator[None]:
    """What is in the block takes no lock's time."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds


def test_receiving_keeps_to_its_timeout(tmp_path: Path):
    """`receive` with a timeout, without waiting, in batches and by iteration with one: of the stuck
    subscription and with another thread in the midst of a receive that waits for the lock."""
    with Client(tmp_path) as client:
        send(client, *[b"%d" % n for n in range(20)])
        consumer = subscribe(client, "stuck", receiver_queue_size=1)
        healthy = subscribe(client, "healthy")
        consumer.acknowledge(consumer.receive(5000))
        with stuck(tmp_path) as child:
            waiting = threading.Thread(target=consumer.receive)
            for _ in range(2):
                with soon():
                    with pytest.raises(pulsar.Timeout):
                        consumer.receive(200)
                    with pytest.raises(pulsar.Timeout):
                        consumer.receive(0)
                    assert consumer.receive_nowait() is None
                    assert consumer.batch_receive() == []
                    assert healthy.receive(1000).data()
                if not waiting.is_alive():
                    waiting.start()
                    time.sleep(0.1)
            go_on(child)
            waiting.join(SOON_S)
            assert not waiting.is_alive()
            assert consumer.receive(5000)
    assert_clean(tmp_path)


def test_what_timers_do_for_others_comes_in_time(tmp_path: Path):
    """Acknowledgements, batches, negative acknowledgements and delayed ones of others, while this process has
    acknowledgements and negative ones for the stuck subscription that wait; those are written afterwards."""
    with Client(tmp_path) as client:
        send(client, *[b"%d" % n for n in range(20)])
        consumer = subscribe(client, "stuck", negative_ack_redelivery_delay_ms=100)
        other = subscribe(client, "other", negative_ack_redelivery_delay_ms=100)
        reader = client.create_reader("batches", pulsar.MessageId.earliest)
        producer = client.create_producer("batches", batching_enabled=True, batching_max_publish_delay_ms=20)
        messages = [consumer.receive(5000) for _ in range(10)]
        others = [other.receive(5000) for _ in range(20)]
        with stuck(tmp_path) as child, soon():
            for message in messages[:5]:
                consumer.acknowledge(message)
            for message in messages[5:]:
                consumer.negative_acknowledge(message)
            time.sleep(0.3)  # the timers have found the lock
            for message in others[:10]:
                other.acknowledge(message)
            other.negative_acknowledge(others[10])
            producer.send_async(b"in a batch", None)
            assert reader.read_next(2000).data() == b"in a batch"
            assert other.receive(2000).data() == others[10].data()
            wait_until(lambda: not other._core.acks.unwritten)
            assert consumer._core.acks.unwritten == 5
            go_on(child)
        wait_until(lambda: not consumer._core.acks.unwritten)
        again = {consumer.receive(5000).data() for _ in range(15)}
        assert again == {b"%d" % n for n in range(20)} - {message.data() for message in messages[:5]}
    assert_clean(tmp_path)


def test_an_unrelated_exclusive_consumer_keeps_its_subscription(tmp_path: Path):
    """Its process, which has a consumer of the stuck subscription too, shows itself all the time: another
    process that would take over gets nothing."""
    keep_alive(tmp_path, 1)
    with Client(tmp_path) as client:
        send(client, *[b"%d" % n for n in range(20)])
        consumer = subscribe(client, "stuck")
        only = subscribe(client, "only", consumer_type=ConsumerType.Exclusive)
        first = consumer.receive(5000)
        with stuck(tmp_path) as child:
            consumer.acknowledge(first)
            end = time.monotonic() + 3.5
            while time.monotonic() < end:
                time.sleep(0.1)
                with Child(try_to_take, tmp_path) as rival:
                    assert rival.read() == "ConsumerBusy"
                    assert rival.join() == 0
            assert [only.receive(1000).data() for _ in range(20)] == [b"%d" % n for n in range(20)]
            go_on(child)
    assert_clean(tmp_path)


def try_to_take(path: str) -> None:
    """Subscribe where another process has an Exclusive consumer."""
    with Client(path) as client:
        try:
            subscribe(client, "only", consumer_type=ConsumerType.Exclusive)
        except pulsar.ConsumerBusy:
            say("ConsumerBusy")
        else:
            say("taken")


def test_an_event_loop_goes_on(tmp_path: Path):
    """A loop that receives, acknowledges and gives back on a stuck subscription serves all its other tasks,
    and gets its messages when the lock is free."""
    from embeddedpulsar.asyncio import Client as AsyncClient

    async def run() -> None:
        async with AsyncClient(str(tmp_path)) as client:
            options = {"consumer_type": ConsumerType.Shared, "initial_position": InitialPosition.Earliest}
            consumer = await client.subscribe("topic", "stuck", receiver_queue_size=5, **options)
            other = await client.subscribe("topic", "other", **options)
            mine = [await consumer.receive() for _ in range(5)]
            longest = 0.0
            with stuck(tmp_path) as child:
                for message in mine:
                    await consumer.acknowledge(message)
                waiting = asyncio.create_task(consumer.receive())
                begun = time.monotonic()
                consumer.redeliver_unacknowledged_messages()
                for _ in range(10):
                    before = time.monotonic()
                    await other.acknowledge(await asyncio.wait_for(other.receive(), SOON_S))
                    await asyncio.sleep(0.02)
                    longest = max(longest, time.monotonic() - before)
                assert longest < 2
                assert time.monotonic() - begun < SOON_S
                assert not waiting.done()
                go_on(child)
                assert (await asyncio.wait_for(waiting, SOON_S)).data()

    with Client(tmp_path) as client:
        send(client, *[b"%d" % n for n in range(30)])
    asyncio.run(run())
    assert_clean(tmp_path)


def test_a_listener_thread_serves_the_others(tmp_path: Path):
    """Two consumers share a listener thread; the one whose subscription is stuck does not stop the other."""
    got: dict[str, list[bytes]] = {"stuck": [], "other": []}

    def listener(name: str) -> Callable[[Consumer[bytes], Any], object]:
        def listen(consumer: Consumer[bytes], message: Any) -> None:
            got[name].append(message.data())
            consumer.acknowledge(message)

        return listen

    with Client(tmp_path, message_listener_threads=1) as client:
        for name in got:
            subscribe(client, name, message_listener=listener(name))
        send(client, b"first")
        wait_until(lambda: got == {"stuck": [b"first"], "other": [b"first"]})
        with stuck_beside(tmp_path) as child:
            with soon():
                for number in range(5):
                    send(client, b"%d" % number)
                    wait_until(lambda number=number: got["other"][-1] == b"%d" % number)
            assert got["stuck"] == [b"first"]
            go_on(child)
        wait_until(lambda: got["stuck"] == got["other"])
    assert_clean(tmp_path)


def hold_subscription(path: str) -> None:
    """Stay in the lock of the subscription until the end of standard input."""
    with Client(path) as client:
        use = client._core.store.use_topic("topic")
        shared = use.topic.use_subscription("stuck")._existing()
        try:
            shared._lock.acquire()
            say("inside")
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            shared._lock.release()
        say("outside")
        input()


@contextmanager
def stuck_beside(path: Path) -> Iterator[Child]:
    """As `stuck`, by a process that needs no message."""
    with Child(hold_subscription, path) as child:
        assert child.read() == "inside"
        yield child


def test_several_topics_flow_past_the_stuck_one(tmp_path: Path):
    """A consumer of two topics gets the messages of the other one, and those of the stuck one later."""
    with Client(tmp_path) as client:
        send(client, b"a", b"b", b"c")
        both = subscribe(client, "stuck", ["topic", "fine"])
        got = {both.receive(5000).data() for _ in range(3)}
        assert got == {b"a", b"b", b"c"}
        with stuck_beside(tmp_path) as child:
            with soon():
                for number in range(5):
                    send(client, b"%d" % number, topic="fine")
                    assert both.receive(2000).data() == b"%d" % number
                with pytest.raises(pulsar.Timeout):
                    both.receive(100)
                assert both.receive_nowait() is None
            send(client, b"later")
            go_on(child)
        assert both.receive(5000).data() == b"later"
    assert_clean(tmp_path)


def test_closing_is_bounded_by_one_timeout_and_says_what_is_not_written(tmp_path: Path):
    """Three consumers of the stuck subscription and one of another, closed with their client in one operation
    timeout; the error names the subscription and the numbers; those messages come again."""
    client = Client(tmp_path, operation_timeout_seconds=2)
    send(client, *[b"%d" % n for n in range(40)])
    consumers = [subscribe(client, "stuck", receiver_queue_size=3) for _ in range(3)]
    other = subscribe(client, "other", consumer_name="theirs")
    unwritten = [[one.receive(5000) for _ in range(3)] for one in consumers]
    written = [other.receive(5000) for _ in range(10)]
    with stuck_beside(tmp_path) as child:
        for one, messages in zip(consumers, unwritten, strict=True):
            for message in messages:
                one.acknowledge(message)
        with soon(), pytest.raises(LockTimeout) as caught:
            consumers[0].close()
        assert "3 acknowledgements of subscription 'stuck' on persistent://public/default/topic" in str(
            caught.value
        )
        for message in written:
            other.acknowledge(message)
        with soon(), pytest.raises(LockTimeout) as caught:
            client.close()
        assert str(caught.value).count("3 acknowledgements of subscription 'stuck'") == 2
        assert "other" not in str(caught.value)
        with pytest.raises(pulsar.AlreadyClosed):
            consumers[1].receive_nowait()
        with Client(tmp_path) as again:
            left = subscribe(again, "other")
            rest = {left.receive(5000).data() for _ in range(30)}
            assert rest == {b"%d" % n for n in range(40)} - {message.data() for message in written}
        go_on(child)
    with Client(tmp_path) as again:
        everything = subscribe(again, "stuck")
        sent = {message.data() for messages in unwritten for message in messages}
        # Those that were acknowledged may come again, or be known from the memory their consumers shared.
        rest = {b"%d" % n for n in range(40)} - sent
        while rest:
            rest.discard(everything.receive(5000).data())
    assert_clean(tmp_path)


def test_a_closed_consumer_leaves_when_the_lock_is_free(tmp_path: Path):
    """The client goes on; its closed Exclusive consumer does not keep the subscription for itself."""
    with Client(tmp_path, operation_timeout_seconds=1) as client:
        send(client, b"a")
        consumer = subscribe(client, "stuck", consumer_type=ConsumerType.Exclusive)
        with stuck_beside(tmp_path) as child:
            with soon():
                consumer.close()
            go_on(child)
            with Child(take_over, tmp_path) as successor:
                assert successor.read() == "a"
                assert successor.join() == 0
    assert_clean(tmp_path)


def take_over(path: str) -> None:
    """Subscribe as soon as the subscription is to be had."""
    with Client(path) as client:
        end = time.monotonic() + SOON_S
        while True:
            try:
                consumer = subscribe(client, "stuck", consumer_type=ConsumerType.Exclusive)
            except pulsar.ConsumerBusy:
                assert time.monotonic() < end
                time.sleep(0.01)
            else:
                say(consumer.receive(5000).data().decode())
                return


def test_operations_keep_to_the_operation_timeout(tmp_path: Path):
    """Seeking, unsubscribing, subscribing and asking again for what is not acknowledged raise in time, and
    work when the lock is free."""
    with Client(tmp_path, operation_timeout_seconds=1) as client:
        send(client, b"a", b"b")
        consumer = subscribe(client, "stuck", ack_group_time_ms=0)
        message = consumer.receive(5000)
        operations: list[Callable[[], object]] = [
            lambda: consumer.seek(pulsar.MessageId.earliest),
            consumer.unsubscribe,
            consumer.redeliver_unacknowledged_messages,
            lambda: consumer.acknowledge(message),
            lambda: subscribe(client, "stuck"),
        ]
        with stuck_beside(tmp_path) as child:
            for operation in operations:
                with soon(), pytest.raises(LockTimeout):
                    operation()
            with soon():
                subscribe(client, "new").close()
            go_on(child)
        consumer.seek(pulsar.MessageId.earliest)
        assert consumer.receive(5000).data() == b"a"
        consumer.unsubscribe()
    assert_clean(tmp_path)


def test_threads_that_want_other_subscriptions_do_not_queue_behind_the_stuck_one(tmp_path: Path):
    """While one thread subscribes to the stuck subscription, others of the process subscribe and close."""
    with Client(tmp_path) as writer:
        send(writer, b"a")
        subscribe(writer, "stuck").close()
    with stuck_beside(tmp_path) as child, Client(tmp_path) as client:
        waiting = threading.Thread(target=lambda: subscribe(client, "stuck"))
        waiting.start()
        time.sleep(0.2)
        with soon():
            for name in ("other", "third"):
                with subscribe(client, name) as consumer:
                    assert consumer.receive(2000).data() == b"a"
            client.create_producer("topic").send(b"b")
        assert waiting.is_alive()
        go_on(child)
        waiting.join(SOON_S)
        assert not waiting.is_alive()
    assert_clean(tmp_path)
