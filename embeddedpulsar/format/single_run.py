"""Small entries of one message each, many in one go, as unbatched producers store them. Hot."""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

from embeddedpulsar.format.entry_view import TWO, EntryView
from embeddedpulsar.format.frame import (
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
)

_AROUND: Final = HEADER_SIZE + TRAILER_SIZE


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
