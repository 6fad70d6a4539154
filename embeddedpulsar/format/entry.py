"""Entries: one batch of messages to bytes (docs/format/frame.md). Hot: benchmarks measure this file.

An entry's body is metadata (32 bytes and the producer name) and columns. Encoding needs nothing that is only
known under the topic lock, so producers encode outside it: entry id, publish time and the chain go into the
frame header, which `frame.seal` builds.

    encode_single(value, sequence_id, prefix)   one message, payload only       below 1 us
    encode_plain(values, first_id, prefix)      a batch of payloads             0.1 us per message
    encode(content, prefix, codec)              everything else                 0.2 us per keyed message
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from embeddedpulsar.format.columns import (
    PADDING,
    ColumnSlices,
    column_slices,
    offsets_of,
)
from embeddedpulsar.format.compression import compress
from embeddedpulsar.format.entry_decoder import decode
from embeddedpulsar.format.entry_view import METADATA, EntryView
from embeddedpulsar.format.frame import (
    FLAG_BATCHED,
    MAX_FRAME_SIZE,
)
from embeddedpulsar.format.key_hash import sticky_key_hash
from embeddedpulsar.format.optional_columns import optional_columns
from embeddedpulsar.records import NamedTuple

__all__ = [
    "ColumnSlices",
    "EncodedEntry",
    "EncodedFields",
    "EntryContent",
    "EntryView",
    "ProducerPrefix",
    "column_slices",
    "decode",
    "encode",
    "encode_columns",
    "encode_plain",
    "encode_single",
    "encode_values",
    "single_fields",
]

INLINE_BYTES: Final = 32 << 10
"""Below this average size values are copied into one buffer; above, each stays a part of its own."""
_I32: Final = struct.Struct("<i")
MAX_NAME_BYTES: Final = 1024


class ProducerPrefix:
    """What the metadata of all entries of one producer has in common, packed once. Immutable.

    Args:
        name: producer name, at most 1,024 bytes of UTF-8.
        epoch: the producer's epoch, 32 bits.
        schema_version: version of the producer's schema; -1 for none.

    Example:
        >>> ProducerPrefix("p").metadata_length
        40
    """

    __slots__ = (
        "epoch", "metadata_length", "name", "pack_keyed", "pack_metadata", "pack_single", "rest",
        "schema_version", "tail",
    )  # fmt: skip

    def __init__(self, name: str, epoch: int = 0, schema_version: int = -1) -> None:
        encoded = name.encode()
        if len(encoded) > MAX_NAME_BYTES:
            raise ValueError(
                f"producer name of {len(encoded)} bytes; use at most {MAX_NAME_BYTES} bytes of UTF-8"
            )
        padded = encoded + PADDING[-len(encoded) & 7]
        self.name = name
        self.epoch = epoch
        self.schema_version = schema_version
        self.metadata_length = METADATA.size + len(padded)
        # Everything behind columns_size, for a key hash of 0.
        self.tail = METADATA.pack(0, 0, 0, schema_version, epoch, len(encoded), 0, 0)[12:] + padded
        # sequence id, columns size, tail, and for a single message its two offsets.
        self.pack_single = struct.Struct(f"<qI{len(self.tail)}sii").pack
        # The same with a key hash, before what follows that.
        self.rest = self.tail[4:]
        self.pack_keyed = struct.Struct(f"<qII{len(self.rest)}sii").pack
        self.pack_metadata = struct.Struct(f"<qI{len(self.tail)}s").pack

    def metadata(self, sequence_id: int, columns_size: int, key_hash: int, schema_version: int) -> bytes:
        """The metadata of an entry that differs from the common case."""
        if not key_hash and schema_version == self.schema_version:
            return self.pack_metadata(sequence_id, columns_size, self.tail)
        tail = struct.pack("<Ii", key_hash, schema_version) + self.tail[8:]
        return self.pack_metadata(sequence_id, columns_size, tail)


class EntryContent:
    """The messages of one entry before encoding. Lists are as long as `values`, or None for "none has any".

    Args:
        values: payloads.
        first_sequence_id: sequence id of the first message.
        batched: whether messages get batch indexes; False only for a single message.
        keys: partition keys; None for a message without one.
        ordering_keys: ordering keys; None for a message without one.
        properties: str to str maps, packed or not; None or empty for none.
        event_times: ms since the epoch; 0 for none.
        deliver_at: ms since the epoch; 0 for at once.
        sequence_ids: of all messages, when they are not consecutive; then `first_sequence_id` is not used.
        null_values: True for a null value (its payload is empty).
        schema_version: of all messages; -1 for none, or the producer's.
        chunks: fields of a chunk, one map per message.
        transaction: (most, least significant half) of the transaction id of the entry.
    """

    __slots__ = (
        "batched",
        "chunks",
        "deliver_at",
        "event_times",
        "first_sequence_id",
        "keys",
        "null_values",
        "ordering_keys",
        "properties",
        "schema_version",
        "sequence_ids",
        "transaction",
        "values",
    )

    def __init__(
        self,
        values: list[bytes],
        first_sequence_id: int = 0,
        batched: bool = True,
        *,
        keys: list[str | None] | None = None,
        ordering_keys: list[str | None] | None = None,
        properties: Sequence[dict[str, str] | bytes | None] | None = None,
        event_times: list[int] | None = None,
        sequence_ids: list[int] | None = None,
        deliver_at: list[int] | None = None,
        null_values: list[bool] | None = None,
        schema_version: int = -1,
        chunks: list[dict[str, Any] | None] | None = None,
        transaction: tuple[int, int] | None = None,
    ) -> None:
        self.values = values
        self.first_sequence_id = first_sequence_id
        self.batched = batched
        self.keys = keys
        self.ordering_keys = ordering_keys
        self.properties = properties
        self.event_times = event_times
        self.sequence_ids = sequence_ids
        self.deliver_at = deliver_at
        self.null_values = null_values
        self.schema_version = schema_version
        self.chunks = chunks
        self.transaction = transaction


EncodedFields = tuple[list[bytes], int, int, int, int, int, int, int]
"""An `EncodedEntry` that an append alone gets to see: a plain tuple is made in a third of the time."""


class EncodedEntry(NamedTuple):
    """Metadata and columns, ready to be framed. `parts` together are `size` bytes, a multiple of 8.

    The frame is 48 + size + 8 bytes long; `body_crc` covers exactly the parts. A tuple, because an append
    takes it apart in one step.
    """

    parts: list[bytes]
    size: int
    body_crc: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    metadata_length: int
    codec: int
    flags: int
    key_hash: int


def encode_values(values: list[bytes]) -> list[bytes]:
    """The value column as parts: offsets, then the payloads (joined unless they are large), then padding."""
    offsets = offsets_of(values)
    total: int = _I32.unpack_from(offsets, len(offsets) - 4)[0]
    head = offsets + PADDING[-len(offsets) & 7]
    if total > INLINE_BYTES * len(values):
        return [head, *values, PADDING[-total & 7]]
    return [b"".join((head, *values, PADDING[-total & 7]))]


def encode_single(value: bytes, sequence_id: int, prefix: ProducerPrefix) -> EncodedEntry:
    """One unbatched message that has a payload and nothing else.

    Example:
        >>> encode_single(b"hi", 0, ProducerPrefix("p")).size
        56
    """
    return EncodedEntry(*single_fields(value, sequence_id, prefix))


def single_fields(value: bytes, sequence_id: int, prefix: ProducerPrefix) -> EncodedFields:
    """`encode_single` for an append. About 0.5 us for 100 bytes."""
    length = len(value)
    pad = PADDING[-length & 7]
    columns_size = length + len(pad) + 8
    head = prefix.pack_single(sequence_id, columns_size, prefix.tail, 0, length)
    metadata_length = prefix.metadata_length
    size = metadata_length + columns_size
    if length <= INLINE_BYTES:
        part = head + value + pad
        return [part], size, crc32(part), 1, metadata_length, 0, 0, 0
    body_crc = crc32(pad, crc32(value, crc32(head)))
    return [head, value, pad], size, body_crc, 1, metadata_length, 0, 0, 0


def encode_plain(
    values: list[bytes], first_sequence_id: int, prefix: ProducerPrefix, batched: bool = True
) -> EncodedEntry:
    """Messages with consecutive sequence ids that have payloads and nothing else. About 0.1 us per message.

    Example:
        >>> encode_plain([b"a", b"b"], 0, ProducerPrefix("p")).count
        2
    """
    offsets = offsets_of(values)
    total: int = _I32.unpack_from(offsets, len(offsets) - 4)[0]
    gap = PADDING[-len(offsets) & 7]
    pad = PADDING[-total & 7]
    columns_size = len(offsets) + len(gap) + total + len(pad)
    head = prefix.pack_metadata(first_sequence_id, columns_size, prefix.tail)
    if total <= INLINE_BYTES * len(values):
        # One join copies every payload once, straight into the buffer that is checksummed and written.
        part = b"".join((head, offsets, gap, *values, pad))
        parts, crc = [part], crc32(part)
    else:
        parts, crc = [head + offsets + gap, *values, pad], 0
        for part in parts:
            crc = crc32(part, crc)
    metadata_length = prefix.metadata_length
    return EncodedEntry(
        parts,
        metadata_length + columns_size,
        crc,
        len(values),
        metadata_length,
        0,
        FLAG_BATCHED if batched else 0,
        0,
    )


def encode(content: EntryContent, producer: ProducerPrefix, codec: int = 0) -> EncodedEntry:
    """Encode any content; unused columns are left out, and a codec that does not help is not used.

    Raises:
        ValueError: no message, several in an unbatched entry, or lists of different lengths.
    """
    values = content.values
    count = len(values)
    if not count or (count > 1 and not content.batched):
        raise ValueError(f"{count} messages in an entry that is {'' if content.batched else 'not '}a batch")
    flags, optional = optional_columns(content, count)
    if content.batched:
        flags |= FLAG_BATCHED
    first = content.sequence_ids[0] if content.sequence_ids else content.first_sequence_id
    schema_version = content.schema_version if content.schema_version != -1 else producer.schema_version
    return encode_columns(
        encode_values(values) + optional,
        count,
        flags,
        first,
        _key_hash(content),
        producer,
        codec,
        schema_version,
    )


def encode_columns(
    columns: list[Any],
    count: int,
    flags: int,
    first_sequence_id: int,
    key_hash: int,
    producer: ProducerPrefix,
    codec: int = 0,
    schema_version: int = -1,
) -> EncodedEntry:
    """Encode an entry whose columns are laid out as they are stored: value column first, then in the order
    of the flags, each padded to 8 bytes. Buffers are not copied, but for a codec.
    """
    columns_size = sum(map(len, columns))
    if codec and columns_size > MAX_FRAME_SIZE:
        codec = 0  # a reader refuses to unpack that much
    if codec:
        stored = compress(codec, b"".join(columns))
        if len(stored) + 8 < columns_size:
            columns = [struct.pack("<II", len(stored), 0), stored, PADDING[-len(stored) & 7]]
        else:
            codec = 0
    parts = [producer.metadata(first_sequence_id, columns_size, key_hash, schema_version), *columns]
    if sum(map(len, parts)) <= INLINE_BYTES:
        parts = [b"".join(parts)]
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return EncodedEntry(
        parts, sum(map(len, parts)), crc, count, producer.metadata_length, codec, flags, key_hash
    )


def _key_hash(content: EntryContent) -> int:
    for keys in (content.ordering_keys, content.keys):
        if keys is not None and keys[0] is not None:
            return sticky_key_hash(keys[0])
    return 0
