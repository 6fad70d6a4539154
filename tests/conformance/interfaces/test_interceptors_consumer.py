"""Interceptors of consumers and readers: what they see, what they may change, and in which order."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from embeddedpulsar import (
    Client,
    ConsumerBatchReceivePolicy,
    ConsumerInterceptor,
    ConsumerType,
    CumulativeAcknowledgementNotAllowedError,
    InitialPosition,
    MessageId,
    ReaderInterceptor,
)
from tests.conformance.conftest import Topic
from tests.conformance.manual_time import ManualTime


class Recorder(ConsumerInterceptor):
    """Notes every call, and marks what is received."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]]) -> None:
        self.name = name
        self.calls = calls

    def before_consume(self, consumer: Any, message: Any) -> Any:
        self.calls.append((self.name, "before", message.data()))
        seen = message.properties().get("seen", "") + self.name
        return message.replace(data=message.data() + self.name.encode(), properties={"seen": seen})

    def on_acknowledge(self, consumer: Any, message_id: Any, error: Any) -> None:
        self.calls.append((self.name, "ack", message_id, error))

    def on_acknowledge_cumulative(self, consumer: Any, message_id: Any, error: Any) -> None:
        self.calls.append((self.name, "cumulative", message_id, type(error).__name__))

    def on_negative_acks_send(self, consumer: Any, message_ids: set[Any]) -> None:
        self.calls.append((self.name, "nacks", sorted(message_ids)))

    def on_ack_timeout_send(self, consumer: Any, message_ids: set[Any]) -> None:
        self.calls.append((self.name, "timeouts", sorted(message_ids)))

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        self.calls.append((self.name, topic, partitions))

    def close(self) -> None:
        self.calls.append((self.name, "close"))


@pytest.fixture
def calls() -> list[tuple[Any, ...]]:
    """What the recorders noted."""
    return []


def test_a_message_goes_through_all_in_their_order(topic: Topic, calls: list[Any]):
    """Each gets what the one before returned; the changed message is acknowledged like the original."""
    (sent,) = topic.publish(1)
    consumer = topic.consumer(interceptors=[Recorder("a", calls), Recorder("b", calls)])
    message = consumer.receive(1000)
    assert (message.data(), message.properties()) == (b"hello-0ab", {"seen": "ab"})
    assert (message.message_id(), message.producer_name()) == (sent, "standalone-0-0")
    consumer.acknowledge(message)
    consumer.close()
    assert calls == [
        ("a", "before", b"hello-0"),
        ("b", "before", b"hello-0a"),
        ("a", "ack", sent, None),
        ("b", "ack", sent, None),
        ("a", "close"),
        ("b", "close"),
    ]
    assert topic.consumer().receive_nowait() is None


def test_batches_are_acknowledged_by_their_changed_messages(topic: Topic, calls: list[Any]):
    """A copy of a message of a batch counts for the batch."""
    topic.publish_batch(3)
    consumer = topic.consumer(interceptors=[Recorder("a", calls)])
    for i in range(3):
        message = consumer.receive(1000)
        assert message.data() == b"hello-%da" % i
        consumer.acknowledge(message)
    consumer.close()
    assert topic.consumer().receive_nowait() is None


def test_every_way_to_receive(topic: Topic, calls: list[Any]):
    """receive, receive_nowait, receive_async, batch_receive and iteration."""
    topic.publish(6)
    policy = ConsumerBatchReceivePolicy(2, -1, 1000)
    consumer = topic.consumer(interceptors=[Recorder("a", calls)], batch_receive_policy=policy)
    found = [consumer.receive(1000), consumer.receive_nowait(), asyncio.run(consumer.receive_async())]
    found += consumer.batch_receive()
    found.append(next(iter(consumer)))
    assert [message.data() for message in found] == [b"hello-%da" % i for i in range(6)]
    assert consumer.receive_nowait() is None


def test_listeners(topic: Topic, calls: list[Any]):
    """A listener gets what the interceptors leave, and acknowledges through them."""
    import threading

    done = threading.Event()

    def listener(consumer: Any, message: Any) -> None:
        calls.append(("listener", message.data()))
        consumer.acknowledge(message)
        done.set()

    topic.consumer(interceptors=[Recorder("a", calls)], message_listener=listener)
    (sent,) = topic.publish(1)
    assert done.wait(30)
    assert calls[:3] == [("a", "before", b"hello-0"), ("listener", b"hello-0a"), ("a", "ack", sent, None)]


def test_cumulative_acknowledgement(topic: Topic, calls: list[Any]):
    """Told with the id, and with the error if it is refused."""
    ids = topic.publish(2)
    consumer = topic.consumer(interceptors=[Recorder("a", calls)])
    consumer.acknowledge_cumulative(ids[1])
    assert calls == [("a", "cumulative", ids[1], "NoneType")]
    consumer.close()
    shared = topic.client.subscribe(
        "topic", "shared", ConsumerType.Shared, interceptors=[Recorder("b", calls)]
    )
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        shared.acknowledge_cumulative(ids[1])
    assert calls[-1] == ("b", "cumulative", ids[1], "CumulativeAcknowledgementNotAllowedError")


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_redelivery_is_told_when_it_is_asked_for(time: ManualTime, calls: list[Any], kind: ConsumerType):
    """Negative acknowledgements when their delay is over, acknowledgement timeouts when they are."""
    producer = time.client.create_producer("topic")
    consumer = time.client.subscribe(
        "topic", "s", kind, interceptors=[Recorder("a", calls)], unacked_messages_timeout_ms=100_000
    )
    ids = [producer.send(b"%d" % i) for i in range(3)]
    messages = [consumer.receive(1000) for _ in range(3)]
    calls.clear()
    consumer.negative_acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1])
    assert calls == []
    time.pass_ms(61_000)
    assert calls == [("a", "nacks", ids[:2])]
    while consumer.receive_nowait() is not None:
        pass
    calls.clear()
    time.pass_ms(102_000)
    told = [call for call in calls if call[1] == "timeouts"]
    assert sorted(one for call in told for one in call[2]) == ids


def test_retries_are_acknowledged_through_interceptors(topic: Topic, calls: list[Any]):
    """`reconsume_later` acknowledges the message; several topics are one consumer here too."""
    consumer = topic.consumer(interceptors=[Recorder("a", calls)], enable_retry=True)
    (sent,) = topic.publish(1)
    consumer.reconsume_later(consumer.receive(1000), 0)
    again = consumer.receive(1000)
    assert again.data() == b"hello-0aa"
    assert ("a", "ack", sent, None) in calls
    consumer.close()
    assert [call for call in calls if call[1] == "close"] == [("a", "close")]


def test_partitioned_topics(client: Client, calls: list[Any]):
    """All partitions are one consumer, which hears of more of them."""
    core: Any = client._core
    core.store.topics.create_partitioned("parts", 2)
    consumer = client.subscribe("parts", "s", interceptors=[Recorder("a", calls)])
    producer = client.create_producer("parts")
    for i in range(4):
        producer.send(b"%d" % i)
    assert sorted(consumer.receive(1000).data() for _ in range(4)) == [b"%da" % i for i in range(4)]
    core.store.grow_partitions("parts", 3)
    core.partition_watch.report_changes()
    assert calls[-1] == ("a", "persistent://public/default/parts", 3)


def test_what_an_interceptor_raises_is_logged(topic: Topic, calls: list[Any], caplog: Any):
    """The message goes on as it was, and the other interceptors are called."""

    class Broken(ConsumerInterceptor):
        def before_consume(self, consumer: Any, message: Any) -> Any:
            raise RuntimeError("before")

        def on_acknowledge(self, consumer: Any, message_id: Any, error: Any) -> None:
            raise RuntimeError("ack")

    caplog.set_level(logging.ERROR)
    topic.publish(1)
    consumer = topic.consumer(interceptors=[Broken(), Recorder("b", calls)])
    message = consumer.receive(1000)
    assert message.data() == b"hello-0b"
    consumer.acknowledge(message)
    assert [call[1] for call in calls] == ["before", "ack"]
    assert [record.getMessage().split(" of ")[0] for record in caplog.records] == [
        "before_consume",
        "on_acknowledge",
    ]


def test_closing_and_unsubscribing(client: Client, topic: Topic, calls: list[Any]):
    """Each interceptor is closed once, with the consumer or with the client."""
    client.subscribe("topic", "x", interceptors=[Recorder("a", calls)]).unsubscribe()
    client.subscribe("topic", "y", interceptors=[Recorder("b", calls)])
    client.close()
    assert calls == [("a", "close"), ("b", "close")]


def test_readers(client: Client, topic: Topic, calls: list[Any]):
    """A reader's interceptors see what is read, by every way."""

    class Mark(ReaderInterceptor):
        def before_read(self, reader: Any, message: Any) -> Any:
            return message.replace(data=message.data() + b"!")

        def close(self) -> None:
            calls.append(("close",))

    topic.publish(5)
    with client.create_reader("topic", MessageId.earliest, interceptors=[Mark()]) as reader:
        found = [reader.read_next(1000), reader.read_nowait(), asyncio.run(reader.read_next_async()), *reader]
        assert [message.data() for message in found] == [b"hello-%d!" % i for i in range(5)]
    assert calls == [("close",)]


def test_wrong_arguments_are_refused(topic: Topic, client: Client):
    """Each kind takes its own kind of interceptors; an empty list is none."""
    with pytest.raises(ValueError, match="expected to be a list of ConsumerInterceptor"):
        topic.consumer(interceptors=[ReaderInterceptor()])
    with pytest.raises(ValueError, match="expected to be a list of ReaderInterceptor"):
        client.create_reader("topic", MessageId.earliest, interceptors=[ConsumerInterceptor()])
    consumer = topic.consumer(interceptors=[], initial_position=InitialPosition.Latest)
    assert type(consumer).__name__ == "Consumer"
    topic.publish(1)
    message: Any = consumer.receive(1000)
    with pytest.raises(TypeError, match="data is str, not bytes"):
        message.replace(data="x")
