"""Batches in Pulsar's wire format, read as `pulsar-client` reads them."""

from __future__ import annotations

import struct
from typing import Any

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar import MessageBatch, MessageId

TEXT = st.text(max_size=5)
SINGLE = st.fixed_dictionaries(
    {
        "payload": st.binary(max_size=8),
        "properties": st.dictionaries(TEXT, TEXT, max_size=2),
        "key": TEXT,
        "ordering_key": TEXT,
        "event_time": st.integers(0, 2**63 - 1),
        "is_null": st.booleans(),
    }
)


def varint(number: int) -> bytes:
    """A number of a protobuf message."""
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def encoded(single: dict[str, Any]) -> bytes:
    """One message of a batch; fields that have no value are left out, and there is one of the future."""
    metadata = b"".join(
        field(1, field(1, name.encode()) + field(2, value.encode()))
        for name, value in single["properties"].items()
    )
    if single["key"]:
        metadata += field(2, single["key"].encode())
    metadata += field(3, len(single["payload"]))
    if single["event_time"]:
        metadata += field(5, single["event_time"])
    if single["ordering_key"]:
        metadata += field(7, single["ordering_key"].encode())
    if single["is_null"]:
        metadata += field(9, 1)
    metadata += field(99, b"of a later version")
    return struct.pack(">I", len(metadata)) + metadata + single["payload"]


def is_null(message: Any) -> bool:
    """Whether a message is a null value as producers send it, without a payload."""
    return bool(message.has_null_value() and not message.data())


def fields(messages: list[Any]) -> list[tuple[Any, ...]]:
    """What a program can ask of messages."""
    return [
        (
            message.data(),
            None if is_null(message) else message.value(),
            message.properties(),
            message.partition_key(),
            message.ordering_key(),
            message.event_timestamp(),
            message.publish_timestamp(),
            message.topic_name(),
            message.schema_version(),
            message.producer_name(),
            message.redelivery_count(),
            message.has_null_value(),
            message.encryption_context(),
            message.message_id().serialize(),
        )
        for message in messages
    ]


@given(st.lists(SINGLE, min_size=1, max_size=4))
def test_batches_are_read_as_by_pulsar_client(singles: list[dict[str, Any]]):
    """Payloads, keys, properties, times, nulls and ids are the same; the value of a null is None here."""
    payload = b"".join(map(encoded, singles))
    theirs = pulsar.MessageBatch().with_message_id(pulsar.MessageId(1, 2, 3))
    ours = MessageBatch().with_message_id(MessageId(1, 2, 3)).parse_from(payload, len(singles))
    assert fields(ours) == fields(theirs.parse_from(payload, len(singles)))
    assert all(message.value() is None for message in ours if is_null(message))


@pytest.mark.parametrize("cut", [1, 3, 5, -1])
def test_a_batch_that_is_cut_off(cut: int):
    """It is refused; pulsar-client returns messages that are not there, or ends the process."""
    whole = encoded(
        {
            "payload": b"soup",
            "properties": {},
            "key": "k",
            "ordering_key": "",
            "event_time": 0,
            "is_null": False,
        }
    )
    assert len(MessageBatch().parse_from(whole * 2, 2)) == 2
    with pytest.raises(ValueError, match="has no 2 messages"):
        MessageBatch().parse_from(whole + whole[:cut], 2)
    with pytest.raises(ValueError, match="has no 3 messages"):
        MessageBatch().parse_from(whole * 2, 3)


def test_an_id_is_expected():
    """Anything else is a TypeError, as in pulsar-client."""
    with pytest.raises(TypeError, match="unknown message id type"):
        MessageBatch().with_message_id("7")  # type: ignore[arg-type]
