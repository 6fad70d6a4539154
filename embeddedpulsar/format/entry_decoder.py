"""Decoding entries: one, or many small ones in one go, as unbatched producers store them. Hot."""

from __future__ import annotations

import struct
from typing import Any, Final
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.columns import read_offsets
from embeddedpulsar.format.compression import decompress
from embeddedpulsar.format.entry_view import METADATA, TWO, EntryView, LazyColumns
from embeddedpulsar.format.frame import (
    CODEC_ENCRYPTED,
    COLUMN_FLAGS,
    FLAG_BATCHED,
    FLAG_CHUNK,
    HEADER,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    METADATA_SIZE,
    MIN_FRAME_SIZE,
    TRAILER_SIZE,
    FrameHeader,
)
from embeddedpulsar.format.sealed_view import sealed_view

_AREA: Final = struct.Struct("<II")
_COPY_BYTES: Final = 8 << 10
"""Bodies in a memoryview are copied whole below this size, and only their payload above."""
_AROUND: Final = HEADER_SIZE + TRAILER_SIZE


def decode(
    header: FrameHeader, body: bytes | memoryview, ledger_id: int, _new: Any = object.__new__
) -> EntryView:
    """Decode the body (frame bytes [48, length-8)) of a frame whose `body_crc` was verified.

    About 1 us, and 0.02 us per message. A memoryview (over a map) is copied from, never kept: better for
    payloads above some KiB, which are then copied once instead of twice.

    Raises:
        CorruptionError: the body does not have the shape its header claims.
    """
    _, _, _, _, _, kind, codec, flags, entry_id, publish_time, count, start, _ = header
    size = len(body)
    if kind != KIND_ENTRY or count < 1 or start < METADATA_SIZE or start > size:
        if kind == KIND_ENTRY and not count and flags & FLAG_CHUNK and METADATA_SIZE <= start <= size:
            return decode_part(header, body[:start], ledger_id)
        raise CorruptionError(reason=f"entry {entry_id}: kind {kind}, {count} messages, metadata {start}")
    if type(body) is not bytes and (size < _COPY_BYTES or codec or flags & COLUMN_FLAGS):
        body = bytes(body)
    metadata = body[:start]
    columns = body
    if codec:
        if codec == CODEC_ENCRYPTED:
            return sealed_view(header, bytes(body), ledger_id)
        columns = decompressed_columns(codec, metadata, body, start)
        start = 0
        size = len(columns)
    if count == 1:
        data = start + 8
        if data > size:
            raise CorruptionError(reason=f"entry {entry_id}: no room for a value")
        zero, total = TWO.unpack_from(columns, start)
        offsets = [0, total]
    else:
        width = 4 * count + 4
        data = start + width + (-width & 7)
        if data > size:
            raise CorruptionError(reason=f"entry {entry_id}: no room for {count} values")
        offsets = read_offsets(columns, (start, width))
        zero = offsets[0]
        total = offsets[count]
    end = data + total
    if zero or total < 0 or end > size:
        raise CorruptionError(reason=f"entry {entry_id}: values run from {zero} to {total}")
    payload = columns[data:end]
    # Filled here rather than by __init__: an entry of one message is decoded a quarter faster.
    view: EntryView = _new(EntryView)
    view.ledger_id = ledger_id
    view.entry_id = entry_id
    view.publish_time = publish_time
    view.count = count
    view.flags = flags
    view.codec = codec
    view.batched = flags & FLAG_BATCHED != 0
    view.offsets = offsets
    view.redelivery_count = 0
    view.acked = None
    view.number = 0
    view.skip = None
    if type(payload) is bytes:
        view.payload = payload
        view._metadata = metadata  # type: ignore[assignment]  # bytes, as the payload is
    else:
        view.payload = bytes(payload)
        view._metadata = bytes(metadata)
    has_columns = flags & COLUMN_FLAGS
    view._lazy = LazyColumns(columns, start, flags, count) if has_columns else None  # type: ignore[arg-type]
    return view


def decode_part(header: FrameHeader, metadata: bytes | memoryview, ledger_id: int) -> EntryView:
    """The entry of a part of a chunked message that is not the last: no messages, and no payload."""
    view = EntryView()
    view.ledger_id = ledger_id
    view.entry_id = header.entry_id
    view.publish_time = header.publish_time
    view.count = 0
    view.flags = header.flags
    view.codec = 0
    view.batched = False
    view.offsets = [0]
    view.payload = b""
    view.redelivery_count = 0
    view.acked = None
    view.number = 0
    view.skip = None
    view._metadata = bytes(metadata)
    view._lazy = None
    return view


def decompressed_columns(
    codec: int, metadata: bytes | memoryview, body: bytes | memoryview, start: int
) -> bytes:
    """All columns of a compressed entry; `start` is where its metadata ends in `body`.

    Raises:
        CorruptionError: the compressed area does not fit, or does not decompress to what the metadata says.
    """
    if start + _AREA.size > len(body):
        raise CorruptionError(reason="no room for compressed columns")
    length, zero = _AREA.unpack_from(body, start)
    start += _AREA.size
    if zero or length > len(body) - start:
        raise CorruptionError(reason=f"compressed columns of {length} bytes in {len(body) - start}")
    return decompress(codec, body[start : start + length], METADATA.unpack_from(metadata)[1])


def decode_singles(
    out: list[EntryView],
    buf: bytes,
    at: int,
    most: int,
    max_bytes: int,
    ledger_id: int,
    entry_id: int,
    crc: int,
    # Bound as defaults: local names.
    _unpack: Any = HEADER.unpack_from,
    _two: Any = TWO.unpack_from,
    _new: Any = object.__new__,
) -> tuple[int, int, int, int]:
    """Append entries of one message that is not compressed, up to the first frame that is anything else.

    What it takes is checked as `read_header` and `decode` check it, in half the time. It raises nothing: a
    frame that does not verify, or is not all in ``buf``, is left to them.

    Args:
        out: where the entries go. Each keeps one copy of the bytes of its body.
        buf: a copy of a stretch of a segment.
        at: where the first frame begins in it.
        most: entries, at most.
        max_bytes: once so many bytes of frames were taken, no more are.
        ledger_id: of the segment.
        entry_id: expected at ``at``.
        crc: of the frame before, which the first one must repeat.

    Returns:
        The place behind the last entry that was taken, the entry id expected there, the crc of that entry's
        frame, and how long the frame at the place claims to be; if its header is not all in ``buf``, the
        least length of a frame.
    """
    size = len(buf)
    stop = min(size - MIN_FRAME_SIZE, at + max_bytes - 1)
    end_id = entry_id + most
    length = MIN_FRAME_SIZE
    while at <= stop and entry_id < end_id:
        length, own_crc, before, body_crc, magic, kind, codec, flags, found, time, count, start, _ = _unpack(
            buf, at
        )
        data = start + 8
        body = buf[at + HEADER_SIZE : at + length - TRAILER_SIZE]
        if (
            count != 1
            or codec
            or flags & FLAG_CHUNK
            or kind != KIND_ENTRY
            or magic != MAGIC
            or before != crc
            or found != entry_id
            or length & 7
            or length > size - at
            or not METADATA_SIZE <= start <= length - _AROUND - 8
            or crc32(buf[at + 8 : at + HEADER_SIZE], length) != own_crc
            or crc32(body) != body_crc
        ):
            break
        zero, end = _two(body, start)
        end += data
        if zero or not data <= end <= length - _AROUND:
            break
        view: EntryView = _new(EntryView)
        view.ledger_id = ledger_id
        view.entry_id = entry_id
        view.publish_time = time
        view.count = 1
        view.flags = flags
        view.codec = 0
        view.batched = flags & FLAG_BATCHED != 0
        view.offsets = [data, end]
        view.redelivery_count = 0
        view.acked = None
        view.number = 0
        view.skip = None
        view.payload = view._metadata = body
        view._lazy = start if flags & COLUMN_FLAGS else None
        out.append(view)
        at += length
        entry_id += 1
        crc = own_crc
        length = MIN_FRAME_SIZE
    return at, entry_id, crc, length
