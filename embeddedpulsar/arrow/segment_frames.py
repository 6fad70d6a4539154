"""The frames of a range, checked and gathered into groups of a size that is worth a record batch. Hot.

One step of the loop per entry, none per message: both checksums of every frame are verified here, so that
everything behind it may take buffers out of the map as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from embeddedpulsar.arrow.damage import REMEDY
from embeddedpulsar.arrow.entry_range import EntryRange
from embeddedpulsar.crypto.entry_opener import EntryOpener
from embeddedpulsar.crypto.key_reader import CryptoKeyReader
from embeddedpulsar.exceptions import CorruptionError, CryptoError
from embeddedpulsar.format.entry_view import EntryView, decode, decompressed_columns
from embeddedpulsar.format.frame import (
    FLAG_CHUNK,
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
from embeddedpulsar.format.index_slot import SLOT, SLOTS_OFFSET, slot_offset
from embeddedpulsar.format.sealed_entry import SealedView, sealed_view
from embeddedpulsar.format.whole_entry import WholeEntryView
from embeddedpulsar.platform.mapped_file import MappedFile
from embeddedpulsar.storage.chain_scan import scan_log
from embeddedpulsar.storage.chunk_reader import ChunkReader
from embeddedpulsar.storage.segment import Segment
from embeddedpulsar.storage.segment_headers import find_segment_header

GROUP_BYTES: Final = 8 << 20
"""A group is closed when its frames have this many bytes together, so that offsets stay far below 2 GiB."""
UNREADABLE: Final = {
    FLAG_TXN: "transactions",
}
_SPECIAL_MASK: Final = FLAG_TXN | FLAG_CHUNK

DamageHandler = Callable[[CorruptionError, int, int], None]
"""Called with the error, and the ids of the first entry lost and of the first one readable again."""


class MappedSegment:
    """The segment of a range, mapped up to the end of the range, with the views that columns are cut from.

    The map lives as long as any array made from it. `ints` and `longs` are the same bytes as 32- and 64-bit
    numbers: frames and columns are aligned to 8. `data` is the map itself, whose slices are bytes.

    Args:
        planned: what is to be read.
        key_reader: where the private keys of encrypted entries come from, or None.
    """

    __slots__ = ("_opener", "buffer", "data", "ints", "longs", "path", "view")

    def __init__(self, planned: EntryRange, key_reader: CryptoKeyReader | None = None) -> None:
        self._opener = EntryOpener(planned.topic, key_reader)
        mapped = MappedFile.open(planned.path, writable=False)
        end = planned.end_offset
        try:
            if end > mapped.size:
                raise CorruptionError(
                    path=planned.path,
                    reason=f"the segment has {mapped.size} bytes where {end} were committed",
                    remedy="restore the file from a backup",
                )
            self.view = mapped.view[:end]
            self.data: Any = mapped.view.obj
            mapped.will_need(planned.first_offset, end)
        finally:
            mapped.close()  # the descriptor goes, the map stays with the slice
        self.path = planned.path
        self.ints = self.view.cast("i")
        self.longs = self.view.cast("q")
        self.buffer = pa.py_buffer(self.view)

    def open(self, view: EntryView) -> EntryView:
        """An encrypted entry decrypted, for chunked messages; `CryptoError` if that is not possible."""
        return self._opener.open(view) if isinstance(view, SealedView) else view

    def decrypted(self, at: int, header: tuple[Any, ...]) -> bytes:
        """The columns of the encrypted entry whose frame is at that offset.

        Raises:
            CryptoError: they cannot be decrypted.
        """
        body = bytes(self.view[at + HEADER_SIZE : at + header[0] - TRAILER_SIZE])
        sealed = sealed_view(FrameHeader(*header), body, 0)
        try:
            plain = self._opener.plain(sealed)[1]
        except CryptoError as error:
            raise CryptoError(
                f"entry {header[8]} of {self.path} is encrypted, and whole columns were asked for; give the "
                "private key: crypto_key_reader, or the option cryptoPrivateKeyPath of Spark. "
                f"{error}"
            ) from error
        codec, start = sealed.envelope[3], header[11]
        return decompressed_columns(codec, body, body[:start] + plain, start) if codec else plain


class FrameGroup:
    """Frames that follow each other: `positions[i]` is where the frame of `headers[i]` starts.

    Attributes:
        rows: messages in all of them.
        flags: all flags that any of them has.
        uniform: whether all hold one uncompressed message each and have the same flags.
        whole: a chunked message put together, the only one of its group; None for all others.
    """

    __slots__ = ("flags", "headers", "positions", "rows", "segment", "uniform", "whole")

    def __init__(
        self,
        segment: MappedSegment,
        positions: list[int],
        headers: list[tuple[Any, ...]],
        rows: int,
        flags: int,
        uniform: bool,
        whole: WholeEntryView | None = None,
    ) -> None:
        self.segment = segment
        self.whole = whole
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
        on_damage: told about what is skipped; may raise.

    Raises:
        NotImplementedError: an entry uses a feature that only consumers understand.
    """
    data, view, unpack = segment.data, segment.view, HEADER.unpack_from
    at, end, expected = planned.first_offset, planned.end_offset, planned.first_entry
    positions: list[int] = []
    headers: list[tuple[Any, ...]] = []
    total, union, uniform, shape = 0, 0, True, -1
    group_end = at + GROUP_BYTES
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
        if flags & _SPECIAL_MASK:
            _refuse(planned, header)
            if header[10]:  # the last part of a chunked message: a group of its own. The others have no row
                if positions:
                    yield FrameGroup(segment, positions, headers, total, union, uniform)
                    positions, headers = [], []
                yield from chunked_group(planned, segment, at, header, on_damage)
            at, expected = behind, expected + 1
            continue
        if header[5] == KIND_ENTRY:
            count = header[10]
            if positions and (count >= large or at >= group_end or total + count > rows):
                yield FrameGroup(segment, positions, headers, total, union, uniform)
                positions, headers = [], []
            if not positions:
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
    """The chunked message whose last part is the frame at ``at``, put together; nothing if it is damaged."""
    whole: WholeEntryView | None
    try:
        body = segment.view[at + HEADER_SIZE : at + header[0] - TRAILER_SIZE]
        last = decode(FrameHeader(*header), body, planned.ledger_id)
        whole = ChunkReader(_Segments(os.path.dirname(planned.path)), segment.open).whole(last)
    except CryptoError:
        whole = None  # whoever asks for more than what is in the clear will be told
    except (CorruptionError, FileNotFoundError) as error:
        reason = error.reason if isinstance(error, CorruptionError) else "a part of it is in no file any more"
        found = CorruptionError(
            path=segment.path, offset=at, reason=f"chunked message: {reason}", remedy=REMEDY
        )
        on_damage(found, header[8], header[8] + 1)
        return
    yield FrameGroup(segment, [at], [header], 1, header[7], uniform=False, whole=whole)


class _Segments:
    """The segments of a topic, one at a time: the parts of a message are in order."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._last: Segment | None = None

    def __call__(self, ledger_id: int) -> Segment:
        if self._last is None or self._last.ledger_id != ledger_id:
            self._last = Segment.open(self._directory, ledger_id)
        return self._last


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
    """Report the damage at `at`, where entry `expected` should be; return where reading goes on."""
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
