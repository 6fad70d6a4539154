"""Entries whose messages have a key and nothing else, which is what most keyed producers send. Hot."""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from embeddedpulsar.format.columns import PADDING, encode_fixed
from embeddedpulsar.format.entry import EncodedEntry, ProducerPrefix, encode_values
from embeddedpulsar.format.frame import FLAG_BATCHED, FLAG_KEYS, FLAG_SEQUENCE_IDS
from embeddedpulsar.format.key_hash import sticky_key_hash

_ONE: Final = struct.Struct("<ii").pack
_INLINE_BYTES: Final = 32 << 10


def encode_keyed(
    values: list[bytes], key: str, ids: list[int], prefix: ProducerPrefix, batched: bool
) -> EncodedEntry:
    """Encode messages that have one partition key, and nothing else: the same bytes as `entry.encode`.

    Takes a third of its time for one message, and half for ten.

    Args:
        values: payloads.
        key: of all messages; not empty.
        ids: sequence ids.
        prefix: of the producer.
        batched: whether messages get batch indexes.

    Example:
        >>> encode_keyed([b"a", b"b"], "k", [4, 7], ProducerPrefix("p"), True).flags == (
        ...     FLAG_KEYS | FLAG_SEQUENCE_IDS | FLAG_BATCHED
        ... )
        True
    """
    count, first = len(values), ids[0]
    flags = FLAG_KEYS | FLAG_BATCHED if batched else FLAG_KEYS
    data = key.encode()
    length = len(data)
    if count == 1:
        size = len(values[0])
        columns = [_ONE(0, size), values[0], PADDING[-size & 7], _ONE(0, length), data, PADDING[-length & 7]]
    else:
        ends = struct.pack(f"<{count + 1}i", *range(0, length * count + 1, length))
        columns = [*encode_values(values), ends, PADDING[-len(ends) & 7], data * count]
        columns.append(PADDING[-length * count & 7])
        if ids[-1] - first != count - 1 or ids != list(range(first, first + count)):
            flags |= FLAG_SEQUENCE_IDS
            columns.append(encode_fixed(ids))
    columns_size = sum(map(len, columns))
    key_hash = sticky_key_hash(key)
    parts = [prefix.metadata(first, columns_size, key_hash, prefix.schema_version), *columns]
    metadata_length = prefix.metadata_length
    size = metadata_length + columns_size
    if size <= _INLINE_BYTES:
        parts = [b"".join(parts)]
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return EncodedEntry(parts, size, crc, count, metadata_length, 0, flags, key_hash)
