"""The frames of a range, checked and gathered into groups of a size that is worth a record batch. Hot.

One step of the loop per entry, none per message: both checksums of every frame are verified here, so that
everything behind it may take buffers out of the map as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final
from zlib import crc32

from embeddedpulsar._engine.format.chunk import Entry
from embeddedpulsar._engine.format.entry_decoder import decode
from embeddedpulsar._engine.format.frame import (
    FLAG_CHUNK,
    FLAG_ENCRYPTED,
    FLAG_TXN,
    HEADER,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    METADATA_SIZE,
    MIN_FRAME_SIZE,
    TRAILER_SIZE,
    FrameHeader,
    read_header,
    verify_body,
)
from embeddedpulsar._engine.format.segment_header import SLOT, SLOTS_OFFSET, slot_offset
from embeddedpulsar._engine.log.recovery.chain_scan import scan_log
from embeddedpulsar._engine.log.segment import find_segment_header
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.arrow.damage import REMEDY
from embeddedpulsar.arrow.mapped_segment import MappedSegment
from embeddedpulsar.arrow.plan import EntryRange
from embeddedpulsar.exceptions import CorruptionError, CryptoError
from embeddedpulsar.records import NamedTuple

GROUP_BYTES: Final = 8 << 20
"""A group is closed when its frames have this many bytes together, so that offsets stay far below 2 GiB."""
UNREADABLE: Final = {
    FLAG_TXN: "transactions",
}
_SPECIAL_MASK: Final = FLAG_TXN | FLAG_CHUNK

DamageHandler = Callable[[CorruptionError, int, int], None]
"""Called with the error, and the ids of the first entry lost and of the first one readable again."""


class ChunkedMessage(NamedTuple):
    """What of a chunked message is not in its last part.

    Attributes:
        earlier: the entries of the parts before the last.
        payload: of all parts; None if it cannot be decrypted.
    """

    earlier: tuple[Entry, ...]
    payload: bytes | None


class FrameGroup:
    """Frames that follow each other: `positions[i]` is where the frame of `headers[i]` starts.

    Attributes:
        rows: messages in all of them.
        flags: all flags that any of them has.
        uniform: whether all hold one uncompressed message each and have the same flags.
        chunked: a chunked message, the only one of its group; None for all others.
    """

    __slots__ = ("chunked", "flags", "headers", "positions", "rows", "segment", "uniform")

    def __init__(
        self,
        segment: MappedSegment,
        positions: list[int],
        headers: list[tuple[Any, ...]],
        rows: int,
        flags: int,
        uniform: bool,
        chunked: ChunkedMessage | None = None,
    ) -> None:
        self.segment = segment
        self.chunked = chunked
        self.positions = positions
        self.headers = headers
        self.rows = rows
        self.flags = flags
        self.uniform = uniform


def frame_groups(
    planned: EntryRange, segment: MappedSegment, *, rows: int, large: int, on_damage: DamageHandler
) -> Iterator[FrameGroup]:
    """The entries of `planned` in groups of about `rows` messages.

    Args:
        rows: a group is closed when it has this many messages (or `GROUP_BYTES`).
        large: an entry of this many messages or more is a group of its own, so that nothing of it is copied.
        on_damage: called with what is skipped; may raise.

    Raises:
        NotImplementedError: an entry uses a feature that only consumers understand.
    """
    data, view, unpack = segment.data, segment.view, HEADER.unpack_from
    at, end, expected = planned.first_offset, planned.end_offset, planned.first_entry
    positions: list[int] = []
    headers: list[tuple[Any, ...]] = []
    total, union, uniform, shape = 0, 0, True, -1
    group_end = at + GROUP_BYTES
    special = _SPECIAL_MASK | FLAG_ENCRYPTED if segment.access.discards else _SPECIAL_MASK
    segment.will_need(at, end)
    header: tuple[Any, ...] = ()
    while at < end:
        # The checks of read_header and verify_body, inlined: they would double the cost of small entries.
        if at + MIN_FRAME_SIZE <= end:
            header = unpack(data, at)
            length = header[0]
        else:
            length = 0
        behind = at + length
        if (
            length < MIN_FRAME_SIZE
            or length & 7
            or behind > end
            or header[4] != MAGIC
            or header[8] != expected
            or crc32(data[at + 8 : at + 48], length) != header[1]
            # A slice of the map is a copy and yet the cheaper one, up to some KiB.
            or crc32(data[at + 48 : behind - 8] if length < 4096 else view[at + 48 : behind - 8]) != header[3]
            or header[11] < METADATA_SIZE
            or 48 + header[11] + TRAILER_SIZE > length
            or (header[10] < 1 and not header[7] & FLAG_CHUNK)
        ):
            at, expected = _resume(planned, segment, at, expected, on_damage)
            continue
        flags = header[7]
        if flags & special:
            _refuse(planned, header)
            if header[10] and flags & FLAG_CHUNK:  # the last part: a group of its own. The others have no row
                if positions:
                    yield FrameGroup(segment, positions, headers, total, union, uniform)
                    positions, headers = [], []
                yield from chunked_group(planned, segment, at, header, on_damage)
            if flags & FLAG_CHUNK or not segment.can_open(at, header):
                at, expected = behind, expected + 1
                continue
        if header[5] == KIND_ENTRY:
            count = header[10]
            if positions and (count >= large or at >= group_end or total + count > rows):
                yield FrameGroup(segment, positions, headers, total, union, uniform)
                positions, headers = [], []
            if not positions:
                segment.forget(but=at)
                total, union, uniform, shape = 0, 0, True, flags
                group_end = at + GROUP_BYTES
            positions.append(at)
            headers.append(header)
            total += count
            union |= flags
            if count != 1 or flags != shape or header[6]:
                uniform = False
        at = behind
        expected += 1
    if positions:
        yield FrameGroup(segment, positions, headers, total, union, uniform)


def chunked_group(
    planned: EntryRange,
    segment: MappedSegment,
    at: int,
    header: tuple[Any, ...],
    on_damage: DamageHandler,
) -> Iterator[FrameGroup]:
    """The chunked message whose last part is the frame at ``at``, put together; nothing if it is damaged.

    Nor if an earlier part was trimmed before the plan was made: so was the message, then.
    """
    chunks = segment.access.chunks
    try:
        body = segment.view[at + HEADER_SIZE : at + header[0] - TRAILER_SIZE]
        last = decode(FrameHeader(*header), body, planned.ledger_id)
        earlier = chunks.earlier(last) or ()
        if earlier and earlier[0][0] < planned.log_start:
            return
        payload: bytes | None = chunks.whole(last).payload
    except CryptoError as error:
        if segment.access.discards:
            segment.left_out(header[8], error)
            return
        payload = None  # a caller that asks for more than what is in the clear gets the error
    except (CorruptionError, FileNotFoundError) as error:
        reason = error.reason if isinstance(error, CorruptionError) else "a part of it is in no file any more"
        found = CorruptionError(
            path=segment.path, offset=at, reason=f"chunked message: {reason}", remedy=REMEDY
        )
        on_damage(found, header[8], header[8] + 1)
        return
    segment.forget(but=at)
    chunked = ChunkedMessage(earlier, payload)
    yield FrameGroup(segment, [at], [header], 1, header[7], uniform=False, chunked=chunked)


def _refuse(planned: EntryRange, header: tuple[Any, ...]) -> None:
    for flag, feature in UNREADABLE.items():
        if header[7] & flag:
            raise NotImplementedError(
                f"{planned.topic}: entry {planned.ledger_id}:{header[8]} uses {feature}, which whole-column "
                "reads do not support; read the topic with a Consumer or Reader"
            )


def _resume(
    planned: EntryRange, segment: MappedSegment, at: int, expected: int, on_damage: DamageHandler
) -> tuple[int, int]:
    """Report the damage at `at`, where entry `expected` should be; return where reading continues."""
    error, found = _diagnose(segment, at, planned.end_offset, expected)
    if found is not None:
        after = at + found.length, expected + 1
    else:
        slots = _indexed(planned)
        resumed = _next_readable(planned, segment, at, expected, slots)
        resumed = resumed or _next_readable(planned, segment, at, expected, _scanned(planned))
        # Committed bytes behind the last entry that could be counted are at least one entry more.
        after = resumed or (planned.end_offset, max(planned.end_entry, expected + 1))
    error.remedy = REMEDY
    on_damage(_located(error, segment.path, at), expected, after[1])
    return after


def _located(error: CorruptionError, path: str, at: int) -> CorruptionError:
    return CorruptionError(path=path, offset=at, reason=error.reason, remedy=error.remedy)


def _diagnose(
    segment: MappedSegment, at: int, end: int, expected: int
) -> tuple[CorruptionError, FrameHeader | None]:
    """What is wrong at `at`, and the header if that much of the frame can be believed."""
    try:
        header = read_header(segment.view, at, end)
    except CorruptionError as error:
        return error, None
    if header.entry_id != expected:
        return CorruptionError(reason=f"entry {header.entry_id} where entry {expected} belongs"), None
    try:
        verify_body(segment.view, at, header)
    except CorruptionError as error:
        return error, header
    return CorruptionError(reason=f"entry {expected} has no messages"), header


def _indexed(planned: EntryRange) -> bytes:
    """The index slots of all entries up to the end of the range; empty if there is no such index."""
    try:
        index = MappedFile.open(planned.index_path, writable=False, size=slot_offset(planned.end_entry))
    except (FileNotFoundError, CorruptionError):
        return b""
    slots = bytes(index.view[SLOTS_OFFSET:])
    index.close()
    return slots


def _scanned(planned: EntryRange) -> bytes:
    """The same, derived from all frames of the segment, as recovery would."""
    header = find_segment_header(os.path.dirname(planned.path), planned.ledger_id).header
    scan = scan_log(
        planned.path,
        chain_seed=header.chain_seed,
        base_publish_ms=header.base_publish_ms,
        end=planned.end_offset,
    )
    return bytes(scan.slots)


def _next_readable(
    planned: EntryRange, segment: MappedSegment, at: int, expected: int, slots: bytes
) -> tuple[int, int] | None:
    """The next entry behind `at` whose slot and frame agree; the index alone promises nothing."""
    for entry in range(expected + 1, min(planned.end_entry, len(slots) // SLOT.size)):
        offset, *_, crc = SLOT.unpack_from(slots, SLOT.size * entry)
        offset <<= 3
        if not at < offset < planned.end_offset:
            continue
        try:
            header = read_header(segment.view, offset, planned.end_offset)
        except CorruptionError:
            continue
        if header.crc == crc and header.entry_id == entry:
            return offset, entry
    return None
