"""Readers: a topic from any place, without a subscription."""

from __future__ import annotations

import pytest

from embeddedpulsar import AlreadyClosed, InvalidConfiguration, MessageId, Timeout
from tests.conformance.conftest import numbers


@pytest.mark.in_memory
def test_from_the_ends(topic):
    """earliest reads everything; latest reads what comes later."""
    topic.publish(3)
    reader = topic.client.create_reader("topic", MessageId.earliest)
    latest = topic.client.create_reader("topic", MessageId.latest)
    assert numbers([reader.read_next(1000) for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(Timeout):
        latest.read_next(10)
    topic.publish(1)
    assert numbers([latest.read_next(1000)]) == [0]


def test_latest_inclusive_is_the_last_message(topic):
    """With start_message_id_inclusive, latest begins with the last message there is."""
    topic.publish(3)
    topic.publish_batch(3)
    reader = topic.client.create_reader("topic", MessageId.latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert numbers([reader.read_next(1000)]) == [2]
    assert not reader.has_message_available()


@pytest.mark.parametrize("inclusive", [False, True])
def test_from_a_message(topic, inclusive):
    """Reading starts behind the message, or with it."""
    ids = topic.publish(5)
    reader = topic.client.create_reader("topic", ids[2], start_message_id_inclusive=inclusive)
    assert numbers(list(reader)) == ([2, 3, 4] if inclusive else [3, 4])


def test_from_the_middle_of_a_batch(topic):
    """The batch index counts: reading may go on at index 5 of a batch."""
    topic.publish_batch(10)
    ids = [message.message_id() for message in topic.client.create_reader("topic", MessageId.earliest)]
    assert numbers(list(topic.client.create_reader("topic", ids[4]))) == [5, 6, 7, 8, 9]
    reader = topic.client.create_reader("topic", ids[4], start_message_id_inclusive=True)
    assert numbers(list(reader)) == [4, 5, 6, 7, 8, 9]
    assert list(topic.client.create_reader("topic", ids[9])) == []


def test_has_message_available(topic):
    """True exactly when read_next would return at once."""
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert not reader.has_message_available()
    topic.publish(2)
    assert reader.has_message_available()
    reader.read_next()
    assert reader.has_message_available()
    reader.read_next()
    assert not reader.has_message_available()
    reader.seek(MessageId.latest)
    assert not reader.has_message_available()
    topic.publish(1)
    assert reader.has_message_available()


def test_a_queue_of_size_0_takes_no_timeout(topic):
    """As with a consumer: InvalidConfiguration. Without a timeout messages are read one by one."""
    topic.publish(2)
    reader = topic.client.create_reader("topic", MessageId.earliest, receiver_queue_size=0)
    with pytest.raises(InvalidConfiguration, match="receiver_queue_size=0"):
        reader.read_next(timeout_millis=10)
    assert numbers([reader.read_next(), reader.read_next()]) == [0, 1]
    assert not reader.has_message_available()


@pytest.mark.in_memory
def test_seek(topic):
    """By id behind it, by time at it, to both ends."""
    ids = topic.publish(5)
    reader = topic.client.create_reader("topic", MessageId.earliest)
    messages = list(reader)
    reader.seek(ids[1])
    assert numbers(list(reader)) == [2, 3, 4]
    reader.seek(messages[0].publish_timestamp())
    assert numbers(list(reader)) == [0, 1, 2, 3, 4]
    reader.seek(messages[-1].publish_timestamp() + 1)
    assert list(reader) == []
    reader.seek(MessageId.earliest)
    assert numbers([reader.read_next()]) == [0]
    with pytest.raises(ValueError, match="invalid seek_arg type"):
        reader.seek(1.5)


def test_readers_disturb_nobody(topic):
    """Any number of readers read the same topic; subscriptions do not notice."""
    topic.publish(2)
    consumer = topic.consumer()
    readers = [topic.client.create_reader("topic", MessageId.earliest) for _ in range(3)]
    for reader in readers:
        assert numbers(list(reader)) == [0, 1]
    assert numbers([consumer.receive(), consumer.receive()]) == [0, 1]


def test_a_listener_reads_everything(topic):
    """reader_listener gets the messages, in order."""
    import threading

    done = threading.Event()
    seen = []

    def listen(reader, message) -> None:
        seen.append(message)
        if len(seen) == 3:
            done.set()

    reader = topic.client.create_reader("topic", MessageId.earliest, reader_listener=listen)
    topic.publish(3)
    assert done.wait(10)
    assert numbers(seen) == [0, 1, 2]
    reader.close()


def test_close(topic):
    """After close everything raises AlreadyClosed."""
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert reader.is_connected()
    assert reader.topic() == "persistent://public/default/topic"
    reader.close()
    assert not reader.is_connected()
    for use in (reader.read_next, reader.has_message_available, reader.read_nowait, reader.close):
        with pytest.raises(AlreadyClosed):
            use()


def test_to_arrow(topic):
    """The rest of the topic as columns; the reader then stands at the end."""
    pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    topic.publish_batch(5)
    topic.publish(2)
    reader = topic.client.create_reader("topic", MessageId.earliest)
    reader.read_next()
    table = reader.to_arrow(["value"])
    values = [bytes(value) for value in table["value"].to_pylist()]
    assert values == [b"hello-1", b"hello-2", b"hello-3", b"hello-4", b"hello-0", b"hello-1"]
    assert not reader.has_message_available()
    assert reader.to_arrow().num_rows == 0
    topic.publish(1)
    assert numbers([reader.read_next(1000)]) == [0]


def test_to_arrow_from_within_a_batch(topic):
    """A reader that starts, or was moved, within a batch gives the rest of that batch as columns."""
    pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    topic.publish_batch(5)
    ids = [message.message_id() for message in topic.client.create_reader("topic", MessageId.earliest)]
    reader = topic.client.create_reader("topic", ids[2])
    assert [bytes(value) for value in reader.to_arrow(["value"])["value"].to_pylist()] == [
        b"hello-3",
        b"hello-4",
    ]
    reader.seek(ids[0])
    assert reader.to_arrow().num_rows == 4
