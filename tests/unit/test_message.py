"""Unit tests of embeddedpulsar.message, over entries written out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from embeddedpulsar import Message, MessageId
from embeddedpulsar.schema import BytesSchema, StringSchema

TOPIC = "persistent://public/default/t-partition-3"


def entry(values: list[bytes], **columns: Any) -> Any:
    """An entry that holds these values and columns."""
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value))
    properties = columns.pop("properties", None)
    nulls = columns.pop("nulls", ())
    fields = {
        "ledger_id": 7,
        "entry_id": 5,
        "publish_time": 1_700_000_000_000,
        "count": len(values),
        "batched": True,
        "producer_name": "p",
        "first_sequence_id": 40,
        "schema_version": -1,
        "redelivery_count": 0,
        "payload": b"".join(values),
        "offsets": offsets,
        "properties": lambda index: properties[index] if properties else None,
        "null": lambda index: index in nulls,
    }
    for name in ("keys", "ordering_keys", "event_times", "sequence_ids"):
        fields[name] = _returning(columns.pop(name, None))
    return SimpleNamespace(**(fields | columns))


def _returning(column: Any) -> Any:
    return lambda: column


def message(of: Any, index: int = 0, schema: Any = None) -> Message[Any]:
    """Message `index` of an entry."""
    origin = SimpleNamespace(topic_name=TOPIC, schema=schema or BytesSchema(), partition=3, by_message=False)
    return Message(of, index, origin)


def test_plain_message_reads_as_in_pulsar_client():
    """What was not set reads as an empty value, never as None."""
    plain = message(entry([b"abc"], batched=False))
    assert plain.data() == plain.value() == b"abc"
    assert plain.properties() == {}
    assert (plain.partition_key(), plain.ordering_key()) == ("", "")
    assert (plain.event_timestamp(), plain.redelivery_count()) == (0, 0)
    assert plain.publish_timestamp() == 1_700_000_000_000
    assert (plain.topic_name(), plain.producer_name(), plain.schema_version()) == (TOPIC, "p", "")
    assert not plain.has_null_value()
    assert plain.encryption_context() is None
    assert plain.sequence_id() == 40


def test_each_message_of_a_batch_has_its_own_values():
    """Every column is read at the index of the message."""
    batch = entry(
        [b"one", b"", b"three"],
        keys=["k", None, "l"],
        ordering_keys=[None, "o", None],
        properties=[{"a": "1"}, None, {}],
        event_times=[11, 0, 33],
        sequence_ids=[5, 9, 7],
    )
    messages = [message(batch, index) for index in range(3)]
    assert [one.data() for one in messages] == [b"one", b"", b"three"]
    assert [one.partition_key() for one in messages] == ["k", "", "l"]
    assert [one.ordering_key() for one in messages] == ["", "o", ""]
    assert [one.properties() for one in messages] == [{"a": "1"}, {}, {}]
    assert [one.event_timestamp() for one in messages] == [11, 0, 33]
    assert [one.sequence_id() for one in messages] == [5, 9, 7]


def test_message_ids():
    """A batched message has an index, even alone in its batch; another has -1."""
    batched = message(entry([b"a", b"b"]), 1).message_id()
    assert batched == MessageId(3, 7, 5, 1)
    assert batched._batch_size == 2
    assert message(entry([b"a"])).message_id() == MessageId(3, 7, 5, 0)
    assert message(entry([b"a"], batched=False)).message_id() == MessageId(3, 7, 5, -1)


def test_value_is_decoded_by_the_schema():
    """value() goes through the schema and data() does not."""
    text = message(entry(["é".encode()]), schema=StringSchema())
    assert (text.value(), text.data()) == ("é", b"\xc3\xa9")


def test_null_is_not_empty():
    """A null value has no bytes, but differs from an empty payload; its value is None."""
    both = entry([b"", b""], nulls=(1,))
    empty, null = message(both, 0, StringSchema()), message(both, 1, StringSchema())
    assert (empty.has_null_value(), null.has_null_value()) == (False, True)
    assert (null.data(), null.value(), empty.value()) == (b"", None, "")


@pytest.mark.parametrize(("version", "text"), [(-1, ""), (0, "\0" * 8), (1, "\0" * 7 + "\x01")])
def test_schema_version(version: int, text: str):
    """The version is a big-endian counter in eight characters, as in pulsar-client."""
    assert message(entry([b""], schema_version=version)).schema_version() == text


def test_properties_are_a_copy():
    """Changing the dict a message returned changes no message."""
    one = message(entry([b""], properties=[{"a": "1"}]))
    one.properties()["a"] = "2"
    assert one.properties() == {"a": "1"}


def test_repr_is_one_line():
    """The repr says which message it is and how big, without its payload."""
    text = repr(message(entry([b"secret"], keys=["k"])))
    assert text == f"<Message (7,5,3,0) of {TOPIC} key='k' 6 bytes>"


def test_messages_are_small_and_generic():
    """A message has three fields, and says for type checkers what its value is."""
    assert not hasattr(message(entry([b""])), "__dict__")
    assert Message[str] is not Message
