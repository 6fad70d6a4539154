"""The optional columns of an entry: keys, properties, times and the like, in the order of their flags."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.format.columns import encode_bitmap, encode_fixed, encode_var
from embeddedpulsar.format.frame import (
    FLAG_CHUNK,
    FLAG_CHUNKS,
    FLAG_DELAYED,
    FLAG_DELIVER_AT,
    FLAG_EVENT_TIMES,
    FLAG_KEY_ABSENT,
    FLAG_KEYS,
    FLAG_NULL_VALUES,
    FLAG_ORDERING_KEY_ABSENT,
    FLAG_ORDERING_KEYS,
    FLAG_PROPERTIES,
    FLAG_SEQUENCE_IDS,
    FLAG_TRANSACTION,
    FLAG_TXN,
)
from embeddedpulsar.format.packed_map import pack_map

if TYPE_CHECKING:
    from embeddedpulsar.format.entry import EntryContent

_PACKED: Final = {bytes}


def optional_columns(content: EntryContent, count: int) -> tuple[int, list[bytes]]:
    """Flags and encoded columns, in the order of the flags."""
    flags = 0
    columns: list[bytes] = []
    absent: list[bytes] = []
    for keys, flag, absent_flag in (
        (content.keys, FLAG_KEYS, FLAG_KEY_ABSENT),
        (content.ordering_keys, FLAG_ORDERING_KEYS, FLAG_ORDERING_KEY_ABSENT),
    ):
        if keys is None:
            continue
        _same_length(keys, count)
        missing = keys.count(None)
        if missing == count:
            continue
        flags |= flag
        if missing:
            flags |= absent_flag
            absent.append(encode_bitmap([key is None for key in keys]))
            keys = [key or "" for key in keys]
        columns.append(encode_var(list(map(str.encode, keys))))  # type: ignore[arg-type]
    if content.properties is not None and any(content.properties):
        _same_length(content.properties, count)
        flags |= FLAG_PROPERTIES
        columns.append(encode_var(_packed(content.properties)))
    if content.event_times is not None and any(content.event_times):
        _same_length(content.event_times, count)
        flags |= FLAG_EVENT_TIMES
        columns.append(encode_fixed(content.event_times))
    ids = content.sequence_ids
    if ids is not None:
        _same_length(ids, count)
        if ids != list(range(ids[0], ids[0] + count)):
            flags |= FLAG_SEQUENCE_IDS
            columns.append(encode_fixed(ids))
    if content.null_values is not None and any(content.null_values):
        _same_length(content.null_values, count)
        flags |= FLAG_NULL_VALUES
        columns.append(encode_bitmap(content.null_values))
    if content.deliver_at is not None and any(content.deliver_at):
        _same_length(content.deliver_at, count)
        flags |= FLAG_DELIVER_AT | FLAG_DELAYED
        columns.append(encode_fixed(content.deliver_at))
    if content.chunks is not None and any(content.chunks):
        _same_length(content.chunks, count)
        flags |= FLAG_CHUNKS | FLAG_CHUNK
        columns.append(encode_var([pack_map(fields) if fields else b"" for fields in content.chunks]))
    if content.transaction is not None:
        flags |= FLAG_TRANSACTION | FLAG_TXN
        columns.append(struct.pack("<QQ", *content.transaction))
    return flags, columns + absent


def _packed(properties: Sequence[dict[str, str] | bytes | None]) -> list[bytes]:
    if set(map(type, properties)) == _PACKED:
        return properties  # type: ignore[return-value] # the usual case, without a step per message
    return [
        fields if fields.__class__ is bytes else pack_map(fields) if fields else b""  # type: ignore[arg-type]
        for fields in properties
    ]


def _same_length(values: Sequence[Any], count: int) -> None:
    if len(values) != count:
        raise ValueError(f"{len(values)} values in a column of {count} messages")
