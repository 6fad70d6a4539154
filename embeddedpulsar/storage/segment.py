"""A segment: the file that holds one ledger, and its index (docs/format/segment.md)."""

from __future__ import annotations

import errno
import os
import struct
from typing import Final, cast

from embeddedpulsar._engine.format.frame import (
    HEADER,
    TRAILER,
    TRAILER_SIZE,
    FrameHeader,
    last_frame_start,
    read_header,
)
from embeddedpulsar._engine.format.segment_header import (
    FIRST_FRAME_OFFSET,
    SEGMENT_HEADER_SIZE,
    SLOT,
    SLOT_SIZE,
    SLOTS_OFFSET,
    SegmentHeader,
    pack_segment_header,
)
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import CorruptionError, StorageFullError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.cold_ledger import offloaded_ledger
from embeddedpulsar.storage.filenames import log_path
from embeddedpulsar.storage.segment_headers import checked_header, find_segment_header
from embeddedpulsar.storage.segment_index import SegmentIndex
from embeddedpulsar.storage.topic_control import DirectoryIdentity

_FIRST_PAGES: Final = 16 << 10
"""So much is brought into memory with a header: enough for a topic of few messages."""
_PAGE: Final = 4096
_FIRST_STRIDE: Final = 64 << 10
KEPT_FREE: Final = 1 << 20
"""A log of more than `SMALL_LOG` bytes does not grow into the last bytes of a disk. They are what
acknowledgements and the next ledger take, without which a full disk could not be emptied."""
SMALL_LOG: Final = 64 << 10
_LONGEST_STRIDE: Final = 1 << 20
_zeros: bytes = b""


class Ending(NamedTuple):
    """How far a ledger goes: what the next segment's header records of it, and the next frame chains to."""

    ledger_id: int
    end_offset: int
    last_entry_id: int
    last_crc: int
    messages: int
    last_publish_ms: int


class Closing:
    """Closes a file with the last reference to itself."""

    __slots__ = ("_file",)

    def __init__(self, file: MappedFile) -> None:
        self._file = file

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # an interrupt may end the constructor before
            self._file.close()


class Segment:
    """One ledger, mapped: log, header and (when first asked for) index.

    Role: bytes and where they are. It knows neither the tail nor its neighbours; callers bring the end.
    Invariants: the header never changes; bytes below the ledger's end never change; nothing at or above the
    end may be read (it may be a hole, or what a dead writer left).
    Callers: any thread. Files are closed when the last reference goes, so a reader that holds a segment
    may continue after it was trimmed or dropped from the cache. By its parts, not by a finalizer of its own:
    while that ran, a weak reference would still give out the segment.
    """

    def __init__(
        self, directory: str, file: MappedFile, header: SegmentHeader, *, lean: bool = False
    ) -> None:
        self.file: Final = file
        self._is_lean: Final = lean
        self._closing: Final = Closing(file)
        self._index: SegmentIndex | None = None
        self._opened_index: Final[dict[int, SegmentIndex]] = {}  # of threads that open it at once, one wins
        self.directory: Final = directory
        self.home = DirectoryIdentity(directory)
        """The key under which the cache holds it."""
        self.path: Final = file.path
        self.writable: Final = file.writable
        self.header: Final = header
        self.ledger_id: Final = header.ledger_id
        self.given_back = 0
        """Up to here, a reader took what it had read out of the memory of this process."""
        self.data: Final = cast("bytearray", file.view.obj)
        """The map itself, for reading: its slices are bytes."""
        self.view: Final = file.view
        """The same as a memoryview, whose slices copy nothing."""

    @classmethod
    def open(cls, directory: str, ledger_id: int, *, writable: bool = False, lean: bool = False) -> Segment:
        """Map the segment of a ledger. For writing its header must be intact; for reading it may be derived.

        Args:
            lean: as of `MappedFile.open`, for log and index.

        Raises:
            FileNotFoundError: trimmed, or lost.
            CorruptionError: the header is damaged, or it is another ledger's.
            UnsupportedFormatVersion: a newer release wrote it.
        """
        try:
            file = MappedFile.open(log_path(directory, ledger_id), writable=writable, lean=lean)
        except FileNotFoundError:
            note = None if writable else offloaded_ledger(directory, ledger_id)
            if note is None:
                raise
            late = late_import("embeddedpulsar.storage.cold_segment")
            found: Segment = late.ColdSegment(directory, note, lean=lean)
            return found
        try:
            header = _header_of(file, directory, ledger_id)
        except BaseException:
            file.close()
            raise
        if not writable:
            file.rest()
        return cls(directory, file, header, lean=lean)

    @classmethod
    def create(
        cls, directory: str, header: SegmentHeader, first_allocation: int, *, lean: bool = False
    ) -> Segment:
        """Make the log file of a new ledger, without header yet (`write_header`). Under the topic lock."""
        path = log_path(directory, header.ledger_id)
        file = MappedFile.open(path, writable=True, size=header.log_size, create=True, lean=lean)
        try:
            if not file.created:
                raise CorruptionError(
                    path=path, reason="a file of the new ledger's name is there", remedy="move it away"
                )
            file.allocate(min(max(first_allocation, SEGMENT_HEADER_SIZE), header.log_size))
        except BaseException:
            file.close()
            raise
        return cls(directory, file, header, lean=lean)

    def write_header(self) -> int:
        """Write the header page, and zeros behind it. Once, before the tail points into this ledger.

        By one call, not through the map: the first fault of a mapped file lets the kernel read ahead, which
        is 2 ms of clearing pages where that is set to 8 MiB.

        Returns:
            Bytes whose pages are in memory now.
        """
        page = pack_segment_header(self.header)
        touched = min(_FIRST_PAGES, self.file.allocated)
        disk.DISK.pwrite_all(self.file.fd, [page, bytes(touched - len(page))], 0)
        return touched

    @property
    def index(self) -> SegmentIndex:
        """The entry index, mapped on first use."""
        index = self._index
        if index is None:
            opened = SegmentIndex.open(
                self.directory, self.ledger_id, writable=self.writable, lean=self._is_lean
            )
            self.home.check()  # after it was opened: so it is this segment's
            self._index = index = self._opened_index.setdefault(self.ledger_id, opened)
        return index

    def use_index(self, index: SegmentIndex | None) -> None:
        """Replace the mapped index; None maps it again when asked for."""
        self._opened_index.clear()
        self._index = index

    def frame_header(self, offset: int, end: int) -> FrameHeader:
        """The verified frame header at `offset`, of a frame that ends at or before `end`."""
        return read_header(self.data, offset, min(end, self.file.size))

    def frame_of(self, entry_id: int, end: int) -> tuple[int, FrameHeader]:
        """Offset and header of a visible entry, by its index slot.

        Raises:
            CorruptionError: slot and frame disagree: the one or the other is damaged.
            FileNotFoundError: no index.
        """
        slot = self.index.slot(entry_id)
        header = self.frame_header(slot.offset, end)
        if header.entry_id != entry_id or header.crc != slot.crc:
            raise CorruptionError(
                path=self.path,
                offset=slot.offset,
                reason=f"the index slot of entry {entry_id} does not match",
            )
        return slot.offset, header

    def ending(self, end: int) -> Ending:
        """What the ledger holds below `end`, from its last frame and that frame's slot, both verified: O(1).

        Raises:
            CorruptionError: the last frame, its trailer or its slot is damaged.
            FileNotFoundError: no index.
        """
        if end <= FIRST_FRAME_OFFSET:
            seed, base_ms = self.header.chain_seed, self.header.base_publish_ms
            return Ending(self.ledger_id, FIRST_FRAME_OFFSET, -1, seed, 0, base_ms)
        data = self.data
        start = last_frame_start(data, FIRST_FRAME_OFFSET, end)
        frame = read_header(data, start, end)
        if start + frame.length != end:
            raise CorruptionError(
                path=self.path, offset=start, reason=f"the last frame does not end at {end}"
            )
        index = self.index
        if frame.entry_id >= index.capacity:
            raise CorruptionError(
                path=self.path, offset=start, reason=f"entry {frame.entry_id} is out of range"
            )
        slot = index.slot(frame.entry_id)
        if slot.offset != start or slot.crc != frame.crc:
            raise CorruptionError(path=self.path, offset=start, reason="the last index slot does not match")
        return Ending(self.ledger_id, end, frame.entry_id, frame.crc, slot.messages, frame.publish_time)

    def agreed_ending(self, end: int) -> Ending:
        """`ending` for the writer, which comes here after every append of another process: half the cost.

        Trailer, header and slot were written one after the other; where they agree on length, place,
        checksum and time, what the writer needs of them is not damaged.
        """
        if end <= FIRST_FRAME_OFFSET:
            return self.ending(end)
        data, slots = self.data, self.index.data
        try:
            zero, length = TRAILER.unpack_from(data, end - TRAILER_SIZE)
            start = end - length
            fields = HEADER.unpack_from(data, start)
            crc, entry_id = fields[1], fields[8]
            offset, delta, messages, _, _, _, slot_crc = SLOT.unpack_from(
                slots, SLOTS_OFFSET + SLOT_SIZE * entry_id
            )
        except (struct.error, OverflowError):  # beyond the map, or beyond what an offset can be
            is_agreed = False
        else:
            is_agreed = (
                zero == 0
                and fields[0] == length
                and offset << 3 == start
                and slot_crc == crc
                and fields[9] - delta == self.header.base_publish_ms
            )
        if not is_agreed:
            return self.ending(end)
        return Ending(self.ledger_id, end, entry_id, crc, messages, fields[9])

    def give_back(self, end: int) -> None:
        """Take what lies before ``end`` out of the memory of this process, until it is read again."""
        self.file.not_needed(0, end)
        self.given_back = max(self.given_back, end)

    def close(self) -> None:
        """Unmap now. For an owner that shares the segment with no other; else drop the reference."""
        index, self._index = self._index, None
        if index is not None:
            index.close()
        self.file.close()

    def __repr__(self) -> str:
        return f"<Segment {self.path}>"


def _header_of(file: MappedFile, directory: str, ledger_id: int) -> SegmentHeader:
    try:
        return checked_header(bytes(file.view[:SEGMENT_HEADER_SIZE]), file.path, ledger_id)
    except CorruptionError:
        if file.writable:
            raise  # nothing is appended behind damage
    return find_segment_header(directory, ledger_id).header


def grown_allocation(segment: Segment, end: int, allocated: int, step: int) -> int:
    """Reserve disk up to `end` and some way beyond; return how far. Under the topic lock.

    A topic of a few messages keeps the 8 KiB it began with. From 64 KiB on it doubles up to `step`: a busy
    one is back here every 4 MiB (5 us).

    Raises:
        StorageFullError: not even `end` fits, or less than `KEPT_FREE` would be left; nothing changed.
    """
    least = min(segment.file.size, _page_up(end))
    ahead = min(
        segment.file.size,
        max(least, allocated + min(step, max(allocated, _FIRST_STRIDE - allocated))),
    )
    try:
        _reserve(segment, allocated, ahead)
    except StorageFullError:
        ahead = least  # the last space of the disk
        _reserve(segment, allocated, ahead)
    return ahead


def _reserve(segment: Segment, allocated: int, upto: int) -> None:
    """Reserve disk, unless too little of it would be left. The files of a topic of few messages count less
    than what keeps it usable, so those may take the last of a disk."""
    if upto > SMALL_LOG and disk.DISK.free_bytes(segment.file.fd) < upto - allocated + KEPT_FREE:
        segment.file.rest_if_lean()
        raise StorageFullError(
            f"cannot reserve {upto - allocated} bytes: {os.strerror(errno.ENOSPC)}, but for "
            f"{KEPT_FREE >> 20} MiB that are left to acknowledgements and to the next ledger",
            path=segment.path,
            errno=errno.ENOSPC,
            remedy="nothing was published; acknowledge messages, or free space, and try again",
        )
    segment.file.allocate(upto, start=allocated)


def touch(
    segment: Segment,
    start: int,
    end: int,
    touched: int,
    allocated: int,
    is_written: bool,
    *,
    in_memory: bool = False,
) -> int:
    """Bring pages up to `end` and some way beyond into memory; return how far. Under the topic lock.

    The first store into a page of a reserved file through its map costs about 3 us: the file system is asked
    for every page. Zeros written ahead with one call bring a MiB in large folios, and the stores then cost
    what a memcpy costs: 1 KiB entries go from 1.2 us to 0.5 us. Only bytes from the tail, `start`, on change.

    Args:
        is_written: the entry itself goes by pwrite and brings its pages.
        in_memory: the file is on a tmpfs, where there are no large folios: mapping the pages ahead takes two
            thirds of the time of zeros and faults.
    """
    if is_written:
        return max(touched, end)
    first = max(start, touched)
    stride = max(_FIRST_STRIDE, min(_LONGEST_STRIDE, first))
    upto = min(allocated, _page_up(max(end, first + stride)))
    if in_memory and segment.file.populate(first, upto):
        return upto
    segment.file.pwrite([_some_zeros(upto - first)], first)
    return upto


def _some_zeros(count: int) -> memoryview:
    global _zeros
    if len(_zeros) < count:
        _zeros = bytes(count)
    return memoryview(_zeros)[:count]


def _page_up(offset: int) -> int:
    return (offset + _PAGE - 1) & -_PAGE
