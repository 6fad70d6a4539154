"""Rows that a task of a sink has staged: entries as they will be stored, without what a commit adds.

A file has a header, then records (docs/format/sink.md): the columns of one entry, and the number of the log
that it goes to. Sequence ids, producer and publish time are added when the entry is published.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final
from zlib import crc32

from embeddedpulsar._engine.format.frame import FORMAT_VERSION
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple

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
