"""The frames of a ledger without the values of their messages, which a table of messages has already.

An entry whose values stand in its frame as they are has a hole there: the bytes before it, the bytes behind
it, and how large it is. The frame of any other entry (compressed, encrypted, a part of a chunked message) is
whole. So the log comes back byte for byte, whatever is in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embeddedpulsar._engine.format.columns import locate
from embeddedpulsar._engine.format.frame import (
    FLAG_CHUNK,
    HEADER_SIZE,
    KIND_ENTRY,
    TRAILER_SIZE,
    FrameHeader,
    frames,
    verify_body,
)
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

SCHEMA: Final = pa.schema(
    [
        ("entry", pa.int64()),
        ("hole_at", pa.int64()),  # where in the frame the values stand; -1 for a whole frame
        ("hole_size", pa.int64()),
        ("frame", pa.binary()),  # without the values
    ]
)
ENTRY_ID: Final = "__entryId"
VALUE: Final = "value"
_GROUP_BYTES: Final = 8 << 20
_GROUP_ENTRIES: Final = 1 << 16


def hole_of(buffer: Any, at: int, header: FrameHeader, has_rows: bool) -> tuple[int, int]:
    """Where in the frame at ``at`` its values stand, and how many bytes they have; (-1, 0) for no hole."""
    # Values of compressed or encrypted entries do not stand in the frame as the table has them.
    if not has_rows or header.codec or header.kind != KIND_ENTRY or header.flags & FLAG_CHUNK:
        return -1, 0
    start, end = at + HEADER_SIZE + header.metadata_length, at + header.length - TRAILER_SIZE
    data = locate(header.flags, header.message_count, buffer, start, end).value_data
    return data[0] - at, data[1]


def write_frames(
    buffer: Any, start: int, end: int, has_rows: bool, out: Any, rowless: Container[int] = ()
) -> str:
    """Write the frames from ``start`` to ``end`` of a log as a file of Parquet, verified.

    Args:
        buffer: of the log, as memoryview.
        has_rows: whether the values are in a table of messages.
        out: takes the file.
        rowless: entries that have no rows there all the same: those of aborted transactions.

    Returns:
        SHA-256 of the frames.

    Raises:
        CorruptionError: a frame is damaged.
    """
    digest = hashlib.sha256()
    with pq.ParquetWriter(out, SCHEMA, compression="zstd", use_dictionary=False) as writer:
        # A group of rows holds 8 MiB or 65,536 entries: what a reader has in memory at a time.
        rows: list[tuple[int, int, int, bytes]] = []
        size = 0
        for at, header in frames(buffer, start, end):
            # Nothing damaged is offloaded: the log is removed afterwards, and the damage would be all
            # there is.
            verify_body(buffer, at, header)
            hole_at, hole_size = hole_of(buffer, at, header, has_rows and header.entry_id not in rowless)
            frame = bytes(buffer[at : at + header.length])
            # Of the whole frames, so that what is put together later is compared with what was in the
            # log.
            digest.update(frame)
            if hole_at >= 0:
                frame = frame[:hole_at] + frame[hole_at + hole_size :]
            rows.append((header.entry_id, hole_at, hole_size, frame))
            size += len(frame)
            if size >= _GROUP_BYTES or len(rows) >= _GROUP_ENTRIES:
                _write(writer, rows)
                rows, size = [], 0
        if rows:
            _write(writer, rows)
    return digest.hexdigest()


def _write(writer: Any, rows: list[tuple[int, int, int, bytes]]) -> None:
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
    ]
    writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), row_group_size=len(rows))


class _Values(NamedTuple):
    """The values of the messages of one entry, one behind the other."""

    entry: int
    data: bytes


def read_frames(file: Any, messages: Any | None) -> Iterator[bytes]:
    """The frames of a ledger as they were in its log.

    Args:
        file: the frames.
        messages: the table of messages, or None if there is none.

    Raises:
        CorruptionError: the two do not fit together.
    """
    # Two streams side by side, both in the order of entries: one group of each is in memory.
    values = iter(()) if messages is None else _joined(_values(pq.ParquetFile(messages)))
    current = next(values, None)
    source = pq.ParquetFile(file)
    if source.schema_arrow != SCHEMA:
        raise CorruptionError(reason="it is no file of frames")
    for group in range(source.num_row_groups):
        table = source.read_row_group(group)
        for entry, at, size, frame in zip(*(column.to_pylist() for column in table.columns), strict=True):
            if at < 0:
                yield frame
                continue
            # The table has rows of every entry, also of those whose frames are whole.
            while current is not None and current.entry < entry:
                current = next(values, None)
            data = current.data if current is not None and current.entry == entry else b""
            # Frames and table of different attempts do not fit together.
            if len(data) != size:
                raise CorruptionError(reason=f"entry {entry} has {len(data)} bytes of values, not {size}")
            yield b"".join((frame[:at], data, frame[at:]))


def _values(file: Any) -> Iterator[_Values]:
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=[ENTRY_ID, VALUE])
        for batch in table.combine_chunks().to_batches():
            yield from _runs(batch.column(ENTRY_ID), batch.column(VALUE))


def _runs(entries: Any, values: Any) -> Iterator[_Values]:
    """The values of each entry of a batch."""
    # Run ends say where each entry's rows end, and the offsets of the column where its bytes do: no
    # step per message.
    encoded = pc.run_end_encode(entries)
    ends, ids = encoded.run_ends.to_pylist(), encoded.values.to_pylist()
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = memoryview(offsets_buffer).cast("i")[values.offset :]
    data = memoryview(data_buffer) if data_buffer is not None else memoryview(b"")
    start = 0
    for entry, end in zip(ids, ends, strict=True):
        yield _Values(entry, bytes(data[offsets[start] : offsets[end]]))
        start = end


def _joined(pieces: Iterable[_Values]) -> Iterator[_Values]:
    """Entries whose messages were read in several pieces put together."""
    # An entry may be cut by the end of a batch or a group of rows.
    last: _Values | None = None
    for piece in pieces:
        if last is not None and last.entry == piece.entry:
            last = _Values(last.entry, last.data + piece.data)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last
