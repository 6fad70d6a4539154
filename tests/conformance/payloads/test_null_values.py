"""Null values: None is not b"", and keeps its key and properties."""

from __future__ import annotations

import pytest

from embeddedpulsar.schema import StringSchema
from tests.conformance.conftest import receive_all


@pytest.mark.parametrize("batching", [False, True])
def test_null_differs_from_empty(topic, batching):
    """send(None) arrives as a null value with data b""; send(b"") is an empty value."""
    consumer = topic.consumer()
    with topic.producer(batching_enabled=batching) as producer:
        producer.send_async(None, None)
        producer.send_async(b"", None)
        producer.send_async(b"x", None)
    messages = receive_all(consumer)
    assert [message.has_null_value() for message in messages] == [True, False, False]
    assert [message.data() for message in messages] == [b"", b"", b"x"]


@pytest.mark.parametrize("batching", [False, True])
def test_key_and_properties_are_kept(topic, batching):
    """A null value carries everything else a message carries."""
    consumer = topic.consumer()
    with topic.producer(batching_enabled=batching) as producer:
        producer.send(None, properties={"a": "b"}, partition_key="key", event_timestamp=5)
    (message,) = receive_all(consumer)
    assert message.has_null_value()
    assert (message.partition_key(), message.properties(), message.event_timestamp()) == (
        "key",
        {"a": "b"},
        5,
    )


def test_the_schema_is_bypassed(topic):
    """None needs no encoding; value() is None."""
    consumer = topic.consumer(schema=StringSchema())
    with topic.producer(schema=StringSchema()) as producer:
        producer.send(None)
        producer.send("text")
    null, text = receive_all(consumer)
    assert (null.has_null_value(), null.value(), text.value()) == (True, None, "text")
