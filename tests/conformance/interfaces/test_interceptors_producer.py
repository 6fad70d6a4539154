"""Interceptors of producers: what they see, what they may change, and in which order."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    Client,
    MessageId,
    MessageTooBig,
    ProducerInterceptor,
    Result,
    StringSchema,
)
from embeddedpulsar.client.arguments import DELIVER_AT
from tests.conformance.conftest import Topic, receive_all


class Recorder(ProducerInterceptor):
    """Notes every call, and marks what is sent."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]]) -> None:
        self.name = name
        self.calls = calls

    def before_send(self, producer: Any, message: Any) -> Any:
        self.calls.append((self.name, "before", message.data()))
        return message.replace(content=message.value() + self.name.encode())

    def on_send_acknowledgement(self, producer: Any, message: Any, message_id: Any, error: Any) -> None:
        self.calls.append((self.name, "ack", message.data(), message_id, type(error).__name__))

    def close(self) -> None:
        self.calls.append((self.name, "close"))


class Broken(ProducerInterceptor):
    """Fails in every way."""

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def before_send(self, producer: Any, message: Any) -> Any:
        if self.result is not None:
            return self.result
        raise RuntimeError("before")

    def on_send_acknowledgement(self, producer: Any, message: Any, message_id: Any, error: Any) -> None:
        raise RuntimeError("ack")

    def close(self) -> None:
        raise RuntimeError("close")


@pytest.fixture
def calls() -> list[tuple[Any, ...]]:
    """What the recorders noted."""
    return []


@pytest.mark.parametrize("batching", [False, True])
def test_a_message_goes_through_all_in_their_order(topic: Topic, calls: list[Any], batching: bool):
    """Each gets what the one before returned; both see the message as it was sent, and its id."""
    consumer = topic.consumer()
    producer = topic.producer(
        interceptors=[Recorder("a", calls), Recorder("b", calls)], batching_enabled=batching
    )
    sent = producer.send(b"x")
    assert consumer.receive(1000).data() == b"xab"
    producer.close()
    assert calls == [
        ("a", "before", b"x"),
        ("b", "before", b"xa"),
        ("a", "ack", b"xab", sent, "NoneType"),
        ("b", "ack", b"xab", sent, "NoneType"),
        ("a", "close"),
        ("b", "close"),
    ]


@pytest.mark.parametrize("batching", [False, True])
def test_asynchronous_sends(topic: Topic, calls: list[Any], batching: bool):
    """The same for `send_async`; interceptors learn of the outcome before the callback does."""
    producer = topic.producer(interceptors=[Recorder("a", calls)], batching_enabled=batching)
    for i in range(3):
        producer.send_async(b"%d" % i, lambda result, sent: calls.append(("callback", result, sent)))
    producer.send_async(b"3", None)
    producer.flush()
    ids = [one.message_id() for one in receive_all(topic.consumer())]
    assert [call[:3] for call in calls if call[1] == "before"] == [
        ("a", "before", b"%d" % i) for i in range(4)
    ]
    acks = [call for call in calls if call[0] == "callback" or call[1] == "ack"]
    expected: list[tuple[Any, ...]] = []
    for i in range(3):
        expected.append(("a", "ack", b"%da" % i, ids[i], "NoneType"))
        expected.append(("callback", Result.Ok, ids[i]))
    assert acks == [*expected, ("a", "ack", b"3a", ids[3], "NoneType")]


def test_everything_of_a_message_can_be_seen_and_changed(topic: Topic):
    """The message has the methods of a received one, and `replace` takes the arguments of `send`."""
    seen: list[Any] = []

    class Change(ProducerInterceptor):
        def before_send(self, producer: Any, message: Any) -> Any:
            seen.append(message)
            return message.replace(
                content="changed",
                properties={"b": "2"},
                partition_key="k2",
                event_timestamp=9,
                sequence_id=77,
            )

    producer = topic.producer(interceptors=[Change()], schema=StringSchema())
    producer.send(
        "text",
        {"a": "1"},
        partition_key="k",
        ordering_key="o",
        event_timestamp=5,
        sequence_id=3,
        deliver_after=timedelta(milliseconds=1),
    )
    (message,) = seen
    assert (message.value(), message.data()) == ("text", b"text")
    assert (message.properties(), message.partition_key(), message.ordering_key()) == ({"a": "1"}, "k", "o")
    assert (message.event_timestamp(), message.sequence_id(), message.publish_timestamp()) == (5, 3, 0)
    assert message.message_id() == MessageId(-1, -1, -1, -1)
    assert (message.topic_name(), message.encryption_context()) == (producer.topic(), None)
    assert message.options[DELIVER_AT] > 0
    with pytest.raises(TypeError, match="send\\(\\) has no argument 'key'; it has content, deliver_after"):
        message.replace(key="x")
    found = topic.consumer(schema=StringSchema()).receive(1000)
    assert (found.value(), found.properties(), found.partition_key()) == ("changed", {"b": "2"}, "k2")
    assert (found.ordering_key(), found.event_timestamp(), found.sequence_id()) == ("o", 9, 77)


def test_null_values_pass(topic: Topic):
    """None stays None."""
    producer = topic.producer(interceptors=[ProducerInterceptor()])
    producer.send(None, partition_key="k")
    assert topic.consumer().receive(1000).has_null_value()


def test_failures_are_told(topic: Topic, calls: list[Any]):
    """A send that fails has an error and no id; without a callback the next flush raises it, as ever."""
    producer = topic.producer(interceptors=[Recorder("a", calls)])
    huge = b"x" * (6 << 20)
    with pytest.raises(MessageTooBig):
        producer.send(huge)
    assert calls[-1][3:] == (None, "MessageTooBig")
    producer.send_async(huge, None)
    with pytest.raises(MessageTooBig):
        producer.flush()
    assert calls[-1][3:] == (None, "MessageTooBig")
    producer.flush()
    results: list[Any] = []
    producer.send_async(huge, lambda result, sent: results.append(result))
    producer.flush()
    assert results == [Result.MessageTooBig]
    producer.close()
    with pytest.raises(AlreadyClosed):
        producer.send_async(b"x", None)
    with pytest.raises(AlreadyClosed):
        producer.send(b"x")
    assert calls[-1][3:] == (None, "AlreadyClosed")


@pytest.mark.parametrize("partitions", [0, 2])
def test_failures_come_with_their_circumstances(client: Client, topic: Topic, partitions: int):
    """Interceptors and the next flush get the error of an asynchronous send with its text."""
    errors: list[Any] = []

    class Listener(ProducerInterceptor):
        def on_send_acknowledgement(self, producer: Any, message: Any, message_id: Any, error: Any) -> None:
            errors.append(error)

    if partitions:
        core: Any = client._core
        core.store.topics.create_partitioned(topic.name, partitions)
    producer = topic.producer(interceptors=[Listener()])
    huge = b"x" * (6 << 20)
    answers: list[Any] = []
    producer.send_async(huge, lambda *answer: answers.append(answer))
    producer.send_async(huge, None)
    with pytest.raises(MessageTooBig, match="maxMessageSize"):
        producer.flush()
    assert [type(error) for error in errors] == [MessageTooBig, MessageTooBig]
    assert all("maxMessageSize" in str(error) for error in errors)
    ((result, message_id),) = answers
    assert (result, message_id.entry_id()) == (Result.MessageTooBig, -1)


def test_what_waits_when_the_producer_is_closed_is_told(topic: Topic, calls: list[Any]):
    """Messages of a batch that was never sent fail with `AlreadyClosed`, before the interceptor is closed."""
    producer = topic.producer(
        interceptors=[Recorder("a", calls)], batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    producer.send_async(b"x", lambda *_: None)
    producer.close()
    assert calls[-2][3:] == (None, "AlreadyClosed")
    assert calls[-1] == ("a", "close")


def test_who_is_not_eligible_is_passed_over(topic: Topic, calls: list[Any]):
    """An interceptor says which messages it cares for."""

    class Choosy(Recorder):
        def eligible(self, message: Any) -> bool:
            return message.partition_key() == "mine"

    producer = topic.producer(interceptors=[Choosy("a", calls)])
    producer.send(b"x")
    producer.send(b"y", partition_key="mine")
    assert [call[:3] for call in calls] == [("a", "before", b"y"), ("a", "ack", b"ya")]


@pytest.mark.parametrize("broken", [Broken(), Broken(5)])
def test_what_an_interceptor_raises_is_logged(
    topic: Topic, calls: list[Any], broken: Broken, caplog: pytest.LogCaptureFixture
):
    """The message goes on as it was, and the other interceptors are called."""
    caplog.set_level(logging.ERROR)
    producer = topic.producer(interceptors=[broken, Recorder("b", calls)])
    producer.send(b"x")
    producer.close()
    assert [call[1] for call in calls] == ["before", "ack", "close"]
    assert receive_all(topic.consumer())[0].data() == b"xb"
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split(" of ")[0] for text in texts] == ["before_send", "on_send_acknowledgement", "close"]
    assert all("failed" in text for text in texts)


def test_closing_the_client_closes_interceptors(client: Client, topic: Topic, calls: list[Any]):
    """Also when the producer was left open; and only once."""
    topic.producer(interceptors=[Recorder("a", calls)])
    with topic.producer(interceptors=[Recorder("b", calls)]):
        pass
    client.close()
    assert calls == [("b", "close"), ("a", "close")]


def test_partitioned_topics(client: Client, calls: list[Any]):
    """An interceptor works before the message is routed, and hears of more partitions."""
    core: Any = client._core
    store = core.store
    store.topics.create_partitioned("parts", 3)

    class Route(Recorder):
        def before_send(self, producer: Any, message: Any) -> Any:
            return message.replace(partition_key="k")

        def on_partitions_change(self, topic: str, partitions: int) -> None:
            self.calls.append((topic, partitions))

    consumer = client.subscribe("parts", "s")
    producer = client.create_producer("parts", interceptors=[Route("a", calls)])
    sent = [producer.send(b"%d" % i) for i in range(9)]
    assert len({one.partition() for one in sent}) == 1
    messages = receive_all(consumer)
    assert [message.message_id() for message in messages] == sent
    assert [call[3] for call in calls] == sent
    store.grow_partitions("parts", 5)
    core.partition_watch.report_changes()
    assert calls[-1] == ("persistent://public/default/parts", 5)


def test_wrong_arguments_are_refused(topic: Topic):
    """`interceptors` is a list of `ProducerInterceptor`; an empty one is none."""
    for wrong in ("x", 5, [5]):
        with pytest.raises(ValueError, match="Argument interceptors is expected to be a list of Producer"):
            topic.producer(interceptors=wrong)
    assert type(topic.producer(interceptors=[])).__name__ == "Producer"
    assert repr(topic.producer(interceptors=[ProducerInterceptor()])).startswith("<Producer ")
