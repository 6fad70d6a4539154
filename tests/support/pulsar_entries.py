"""Entries as Pulsar's clients encode them, built by the numbers of its protobuf fields."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from embeddedpulsar._engine.format.columns import EntryFields, text_of_key
from embeddedpulsar._engine.format.compression import compress
from embeddedpulsar._engine.format.entry import EntryContent
from embeddedpulsar._engine.format.pulsar_batch import CODECS_OF_PULSAR
from tests.frames import i64, positive, texts

Key = str | bytes | None


def varint(value: int) -> bytes:
    """A number as protobuf writes it; negative ones as 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field_number: int, value: int) -> bytes:
    """A field that is a number."""
    return varint(field_number << 3) + varint(value)


def data(field_number: int, value: bytes | str) -> bytes:
    """A field that is bytes, a text or a message."""
    value = value.encode() if isinstance(value, str) else value
    return varint(field_number << 3 | 2) + varint(len(value)) + value


def properties(field_number: int, pairs: dict[str, str]) -> bytes:
    """A repeated field of pairs."""
    return b"".join(data(field_number, data(1, name) + data(2, value)) for name, value in pairs.items())


@dataclass
class PulsarMessage:
    """One message of a batch, or outside of one."""

    payload: bytes = b""
    key: Key = None
    ordering_key: bytes | None = None
    properties: dict[str, str] = field(default_factory=dict)
    event_time: int = 0
    sequence_id: int | None = None
    is_null: bool = False
    is_key_null: bool = False

    def of_batch(self) -> bytes:
        """With its metadata before it."""
        metadata = properties(1, self.properties) + number(3, len(self.payload))
        metadata += self._key(2, 6, 7) + number(5, self.event_time)
        if self.sequence_id is not None:
            metadata += number(8, self.sequence_id)
        metadata += number(9, self.is_null) + number(10, self.is_key_null)
        return len(metadata).to_bytes(4, "big") + metadata + self.payload

    def alone(self) -> bytes:
        """Its fields in the metadata of an entry."""
        metadata = properties(4, self.properties) + self._key(6, 17, 18) + number(12, self.event_time)
        return metadata + number(25, self.is_null) + number(30, self.is_key_null)

    def _key(self, key: int, is_base64: int, ordering_key: int) -> bytes:
        out = b""
        if isinstance(self.key, bytes):
            out = data(key, text_of_key(self.key)) + number(is_base64, 1)
        elif self.key is not None:
            out = data(key, self.key)
        return out + (b"" if self.ordering_key is None else data(ordering_key, self.ordering_key))


@dataclass
class PulsarEntry:
    """One SEND of a client."""

    messages: list[PulsarMessage]
    batched: bool = True
    producer: str = "p"
    sequence_id: int = 0
    publish_time: int = 1_700_000_000_000
    replicated_from: str | None = None
    replicate_to: list[str] = field(default_factory=list)
    compression: int = 0
    schema_version: int = -1
    deliver_at: int = 0
    highest_sequence_id: int = 0
    more: bytes = b""
    encryption_keys: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)
    encryption_param: bytes = b""

    def payload(self) -> bytes:
        """Before compression."""
        if self.batched:
            return b"".join(message.of_batch() for message in self.messages)
        return self.messages[0].payload

    def packed(self) -> bytes:
        """The payload, compressed."""
        return compress(CODECS_OF_PULSAR[self.compression], self.payload())

    def metadata(self) -> bytes:
        """Pulsar's MessageMetadata."""
        out = data(1, self.producer) + number(2, self.sequence_id) + number(3, self.publish_time)
        if self.replicated_from is not None:
            out += data(5, self.replicated_from)
        out += b"".join(data(7, cluster) for cluster in self.replicate_to)
        if self.compression:
            out += number(8, self.compression) + number(9, len(self.payload()))
        if self.batched:
            out += number(11, len(self.messages))
        else:
            out += self.messages[0].alone()
        for name, value, metadata in self.encryption_keys:
            out += data(13, data(1, name) + data(2, value) + properties(3, metadata))
        if self.encryption_param:
            out += data(15, self.encryption_param)
        if self.schema_version >= 0:
            out += data(16, self.schema_version.to_bytes(8, "big"))
        if self.deliver_at:
            out += number(19, self.deliver_at)
        if self.highest_sequence_id:
            out += number(24, self.highest_sequence_id)
        return out + self.more

    def encoded(self, payload: bytes | None = None) -> bytes:
        """The length of the metadata, the metadata, and the payload (or ciphertext in its place)."""
        metadata = self.metadata()
        stored = self.packed() if payload is None else payload
        return len(metadata).to_bytes(4, "big") + metadata + stored

    def ids(self) -> list[int]:
        """Sequence ids of the messages."""
        first = self.sequence_id
        if not self.batched:
            return [first]
        ids = [message.sequence_id for message in self.messages]
        return [first + index if own is None else own for index, own in enumerate(ids)]

    def content(self, transaction: tuple[int, int] | None = None) -> EntryContent:
        """What readers must find in it."""
        each = self.messages
        highest = max(self.sequence_id, self.highest_sequence_id)
        return EntryContent(
            [message.payload for message in each],
            batched=self.batched,
            keys=[message.key for message in each],
            ordering_keys=[message.ordering_key for message in each],
            properties=[message.properties for message in each],
            event_times=[message.event_time for message in each],
            sequence_ids=self.ids(),
            deliver_at=[self.deliver_at] * len(each),
            null_values=[message.is_null for message in each],
            null_keys=[message.is_key_null and message.key is None for message in each],
            schema_version=self.schema_version,
            transaction=transaction,
            fields=EntryFields(
                self.publish_time,
                self.replicated_from,
                tuple(self.replicate_to) or None,
                None if highest == max(self.ids()) else highest,
            ),
        )


pulsar_messages = st.builds(
    PulsarMessage,
    payload=st.binary(max_size=20),
    key=st.none() | texts | st.binary(max_size=6),
    ordering_key=st.none() | st.binary(max_size=6),
    properties=st.dictionaries(texts, texts, max_size=2),
    event_time=st.sampled_from([0, 1, 1_700_000_000_123]),
    sequence_id=st.none() | st.integers(0, 1 << 40),
    is_null=st.booleans(),
    is_key_null=st.booleans(),
)


@st.composite
def pulsar_entries(draw: Any, codecs: Iterable[int] = range(5)) -> PulsarEntry:
    """Any entry of a client that can be laid out as columns."""
    batched = draw(st.booleans())
    return PulsarEntry(
        draw(st.lists(pulsar_messages, min_size=1, max_size=5 if batched else 1)),
        batched=batched,
        producer=draw(texts),
        sequence_id=draw(st.integers(0, 2**62)),
        publish_time=draw(positive),
        replicated_from=draw(st.none() | texts),
        replicate_to=draw(st.lists(texts, max_size=2)),
        compression=draw(st.sampled_from(list(codecs))),
        schema_version=draw(st.integers(-1, 2**31 - 1)),
        deliver_at=draw(st.sampled_from([0, 5])),
        highest_sequence_id=draw(st.just(0) | positive),
        more=draw(st.just(b"") | i64.map(lambda value: number(33, value) + data(32, b"schema"))),
    )
