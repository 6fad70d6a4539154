"""Columns of an entry body: building blocks, and where each column lies (docs/format/frame.md).

A variable column is `int32 offsets[n+1]`, zero padding to 8, the bytes, zero padding to 8: what Arrow calls
a binary array and numpy can cast. A fixed column is `int64[n]`. A bitmap is one bit per message, least
significant first, padded to 8. Value column first, then the optional ones in the order of their flag bits.

Rows that a task of a sink has staged are columns, too: a file of them has a header, then records
(docs/format/sink.md), each the columns of one entry, and the number of the log that it goes to. Sequence ids,
producer and publish time are added when the entry is published.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Any, Final
from zlib import crc32

from embeddedpulsar._engine.format.frame import (
    FLAG_CHUNKS,
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
    FORMAT_VERSION,
    Buffer,
    FrameHeader,
)
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple

PADDING: Final = tuple(bytes(n) for n in range(8))
"""`PADDING[-n & 7]` fills n bytes up to a multiple of 8."""
_I32: Final = struct.Struct("<i")

Slice = tuple[int, int]
"""(start, length) in bytes."""


class ColumnSlices(NamedTuple):
    """Where the columns lie in a buffer, each (start, length) in bytes or None when absent.

    Offsets arrays hold count + 1 little-endian int32, relative to the start of their data slice. Bounds and
    both ends of every offsets array are checked; the offsets between are covered by the body checksum only.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    value_offsets: Slice
    value_data: Slice
    key_offsets: Slice | None = None
    key_data: Slice | None = None
    ordering_key_offsets: Slice | None = None
    ordering_key_data: Slice | None = None
    property_offsets: Slice | None = None
    property_data: Slice | None = None
    event_times: Slice | None = None
    sequence_ids: Slice | None = None
    null_values: Slice | None = None
    deliver_at: Slice | None = None
    chunk_offsets: Slice | None = None
    chunk_data: Slice | None = None
    transaction: Slice | None = None
    key_absent: Slice | None = None
    ordering_key_absent: Slice | None = None


# (flag, kind, field or prefix of fields) in stored order; persistent, never reorder.
OPTIONAL: Final = (
    (FLAG_KEYS, "var", "key"),
    (FLAG_ORDERING_KEYS, "var", "ordering_key"),
    (FLAG_PROPERTIES, "var", "property"),
    (FLAG_EVENT_TIMES, "i64", "event_times"),
    (FLAG_SEQUENCE_IDS, "i64", "sequence_ids"),
    (FLAG_NULL_VALUES, "bits", "null_values"),
    (FLAG_DELIVER_AT, "i64", "deliver_at"),
    (FLAG_CHUNKS, "var", "chunk"),
    (FLAG_TRANSACTION, "once", "transaction"),
    (FLAG_KEY_ABSENT, "bits", "key_absent"),
    (FLAG_ORDERING_KEY_ABSENT, "bits", "ordering_key_absent"),
)


def offsets_of(values: list[bytes] | list[str]) -> bytes:
    """`int32 offsets[n+1]` of `values`, not padded. About 50 ns per value.

    Raises:
        ValueError: the values are 2 GiB or more together.
    """
    try:
        return struct.pack(f"<{len(values) + 1}i", *accumulate(map(len, values), initial=0))
    except struct.error as e:
        raise ValueError("a column holds less than 2 GiB") from e


def encode_var(values: list[bytes]) -> bytes:
    """One variable column.

    Example:
        >>> encode_var([b"ab"]).hex(" ", 4)
        '00000000 02000000 61620000 00000000'
    """
    offsets = offsets_of(values)
    data = b"".join(values)
    return b"".join((offsets, PADDING[-len(offsets) & 7], data, PADDING[-len(data) & 7]))


def encode_texts(texts: list[str]) -> bytes:
    r"""One variable column of UTF-8.

    Example:
        >>> encode_texts(["a", "\u00e9"]) == encode_var([b"a", "\u00e9".encode()])
        True
    """
    # All is ASCII as a rule: then each text is as long as its bytes, and one call encodes them all.
    joined = "".join(texts)
    if not joined.isascii():
        return encode_var(list(map(str.encode, texts)))
    offsets, data = offsets_of(texts), joined.encode()
    return b"".join((offsets, PADDING[-len(offsets) & 7], data, PADDING[-len(data) & 7]))


def encode_fixed(values: list[int]) -> bytes:
    """One column of signed 64-bit integers."""
    return struct.pack(f"<{len(values)}q", *values)


def encode_bitmap(bits: list[bool]) -> bytes:
    """One bit per message, padded to 8 bytes.

    Example:
        >>> encode_bitmap([True, False, True]).hex()
        '0500000000000000'
    """
    out = bytearray((len(bits) + 63) // 64 * 8)
    for i, bit in enumerate(bits):
        if bit:
            out[i >> 3] |= 1 << (i & 7)
    return bytes(out)


def locate(flags: int, count: int, buf: Buffer, pos: int, end: int) -> ColumnSlices:
    """Find every column of `count` messages in the uncompressed columns at `buf[pos:end]`."""
    offsets, data, pos = _locate_var(count, buf, pos, end)
    # `OPTIONAL` is in stored order, so one pass finds each column behind the one before. Every end is
    # compared with ``end`` before the next begins: flags that lie cannot lead out of the body.
    slices: dict[str, Slice] = {}
    for flag, kind, name in OPTIONAL:
        if not flags & flag:
            continue
        if kind == "var":
            slices[name + "_offsets"], slices[name + "_data"], pos = _locate_var(count, buf, pos, end)
        else:
            size = count * 8 if kind == "i64" else 16 if kind == "once" else (count + 7) // 8
            if pos + size > end:
                raise CorruptionError(reason=f"column {name} of {count} messages does not fit")
            slices[name] = (pos, size)
            pos += size + (-size & 7)
    # All bytes have to be used. Columns that are too short mean that flags or count are not those of
    # this body.
    if pos != end:
        raise CorruptionError(reason=f"columns end at {pos}, not at {end}")
    return ColumnSlices(count, offsets, data, **slices)


def _locate_var(count: int, buf: Buffer, pos: int, end: int) -> tuple[Slice, Slice, int]:
    size = 4 * count + 4
    # The sizes are compared with the buffer before the first offset is read.
    data = pos + size + (-size & 7)
    if count < 1 or data > end or end > len(buf):
        raise CorruptionError(reason=f"offsets of {count} messages do not fit")
    (first,) = _I32.unpack_from(buf, pos)
    (total,) = _I32.unpack_from(buf, pos + size - 4)
    if first != 0 or total < 0 or data + total > end:
        raise CorruptionError(reason=f"offsets run from {first} to {total} in {end - data} bytes")
    return (pos, size), (data, total), data + total + (-total & 7)


def column_slices(header: FrameHeader, body: Buffer) -> ColumnSlices:
    """Where each column lies in the body (frame bytes [48, length-8)) of an uncompressed entry.

    For zero-copy readers. The body must have been verified: the offsets inside a column are not looked at.

    Raises:
        CorruptionError: the columns do not fit.
        ValueError: the entry is compressed; decode it instead.
    """
    if header.codec:
        raise ValueError("the columns of a compressed entry are not laid out in its body")
    return locate(header.flags, header.message_count, body, header.metadata_length, len(body))


def read_offsets(buf: Buffer, part: Slice) -> list[int]:
    """An offsets array as a list. About 15 ns per value."""
    return memoryview(buf)[part[0] : part[0] + part[1]].cast("i").tolist()


def read_fixed(buf: Buffer, part: Slice) -> list[int]:
    """A column of 64-bit integers as a list."""
    return memoryview(buf)[part[0] : part[0] + part[1]].cast("q").tolist()


def read_texts(buf: Buffer, offsets: Slice, data: Slice) -> list[str]:
    """A variable column of UTF-8 as a list of str.

    Raises:
        CorruptionError: not UTF-8.
    """
    ends = read_offsets(buf, offsets)
    content = bytes(buf[data[0] : data[0] + data[1]])
    try:
        # A slice of a text that is decoded once costs less than decoding each item. In other texts a
        # byte offset is no offset of a character.
        text = content.decode()
        if len(text) == len(content):  # ASCII: byte offsets are text offsets, one decode serves all
            return [text[a:b] for a, b in pairwise(ends)]
        return [content[a:b].decode() for a, b in pairwise(ends)]
    except UnicodeDecodeError as e:
        raise CorruptionError(reason=f"a key is not UTF-8: {e.reason}") from e


def read_bit(buf: Buffer, part: Slice, i: int) -> bool:
    """Bit `i` of a bitmap column."""
    return bool(buf[part[0] + (i >> 3)] >> (i & 7) & 1)


STAGED_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  reserved
)
STAGED_RECORD: Final = struct.Struct(
    "<"
    "I"  # 0  crc: crc32 of the columns, seeded with the crc32 of bytes [4,32)
    "I"  # 4  log: its number in the task's list
    "I"  # 8  count: messages
    "I"  # 12 flags: as in the frame header
    "I"  # 16 key_hash: of the first message
    "I"  # 20 schema_version: of the messages, plus 1; 0 for none
    "Q"  # 24 size: bytes of the columns, a multiple of 8
)
MAGIC: Final = b"EPSR"
HEADER: Final = STAGED_HEADER.pack(MAGIC, FORMAT_VERSION, 0)
_GATHERED: Final = 1 << 20
_CRC: Final = struct.Struct("<I")


class StagedRecord(NamedTuple):
    """One entry of a staged file.

    Attributes:
        log: the number of the log that it goes to.
        count: messages.
        flags: which columns it has, as in a frame header.
        key_hash: of the key of its first message.
        columns: the columns as they are stored, uncompressed.
        schema_version: of the messages; -1 for none.
    """

    log: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    flags: int
    key_hash: int
    columns: Any
    schema_version: int = -1


def record_head(
    log: int, count: int, flags: int, key_hash: int, columns: list[Any], schema_version: int = -1
) -> bytes:
    """What precedes the columns of an entry in a staged file."""
    size = sum(map(len, columns))
    rest = STAGED_RECORD.pack(0, log, count, flags, key_hash, schema_version + 1, size)[4:]
    crc = crc32(rest)
    for part in columns:
        crc = crc32(part, crc)
    return _CRC.pack(crc) + rest


def staged_chunks(records: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """What is written to a file with these records, each a head and columns: a MiB or so at a time."""
    pieces: list[Any] = [HEADER]
    size = 0
    for record in records:
        pieces += record
        size += sum(map(len, record))
        if size >= _GATHERED:
            yield pieces
            pieces, size = [], 0
    if size:
        yield pieces


def staged_records(data: memoryview, *, verifies: bool) -> Iterator[StagedRecord]:
    """The entries of a staged file.

    Args:
        data: the whole file.
        verifies: whether checksums are compared, for a file that an earlier process wrote.

    Raises:
        CorruptionError: the file is damaged or cut short.
    """
    if bytes(data[: len(HEADER)]) != HEADER:
        raise CorruptionError(reason="these are no staged rows of this format version", offset=0)
    at, end = len(HEADER), len(data)
    while at < end:
        if end - at < STAGED_RECORD.size:
            raise CorruptionError(reason="the staged rows are cut short", offset=at)
        crc, log, count, flags, key_hash, schema, size = STAGED_RECORD.unpack_from(data, at)
        begin = at + STAGED_RECORD.size
        if size > end - begin or not count:
            raise CorruptionError(reason="the staged rows are cut short", offset=at)
        columns = data[begin : begin + size]
        if verifies and crc != crc32(columns, crc32(data[at + _CRC.size : begin])):
            raise CorruptionError(reason="the staged rows are damaged", offset=at)
        yield StagedRecord(log, count, flags, key_hash, columns, schema - 1)
        at = begin + size
