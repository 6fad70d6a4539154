"""A segment: the file that holds one ledger, and its index (docs/format/segment.md).

The header of a segment: as it was written or, where both copies are damaged, derived from what is left.

Its fields can be found elsewhere: the first frame names the chain's seed, the index what its times count
from, the file its size, and the log before where that one ends. Where the first frame is damaged, too, and
the index knows none of the next, nothing says that the bytes are of this ledger at all: it is skipped.

The segment of an offloaded ledger, as long as its log is not here.
"""

from __future__ import annotations

import errno
import os
import struct
from zlib import crc32

from embeddedpulsar._engine.filenames import COLD_SUFFIX, cold_path, index_path, ledgers_of, log_path
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    HEADER,
    INDEX_HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    METADATA_SIZE,
    SEGMENT_HEADER_SIZE,
    SLOT,
    SLOT_SIZE,
    SLOTS_OFFSET,
    TRAILER,
    TRAILER_SIZE,
    FrameHeader,
    SegmentHeader,
    last_frame_start,
    next_frame,
    pack_segment_header,
    parse_index_header,
    parse_segment_header,
    read_header,
)
from embeddedpulsar._engine.log.segment_index import SegmentIndex
from embeddedpulsar._engine.log.topic_control import DirectoryIdentity
from embeddedpulsar._engine.platform import descriptors, disk, threads
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.damage import SEGMENT_HEADER, Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    StorageFullError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final

    from embeddedpulsar._engine.cold.cold_ledger import ColdLedger
    from embeddedpulsar._engine.log.chain_scan import LogWindow


_REMEDY: Final = "put a good copy of the file in its place; until then what is in it is skipped"
_DERIVED: Final = "it was derived from the frames; a good copy of the file in its place ends this report"
_NO_ID: Final = bytes(16)
_REMEMBERED: Final = 64
_MOST_ASKED: Final = 64
"""Entries the index is asked for where the first frame is damaged, too."""
_derived: Final[dict[tuple[str, FrameHeader], SegmentHeader]] = {}
"""By path and first frame: deriving reads the ledger before, which never changes again."""


class FoundHeader(NamedTuple):
    """A header; `damage` says what is wrong with the one in the file, if it was derived, else it is empty."""

    header: SegmentHeader
    damage: str = ""

    def report(self, path: str) -> Damage:
        """The damage report of a derived header: nothing is lost by it."""
        return Damage(path, self.header.ledger_id, 0, -1, 0, 0, self.damage, SEGMENT_HEADER)


def note_of_offloaded(directory: str, ledger_id: int) -> ColdLedger | None:
    """The note of a ledger whose log was offloaded; None if there is none.

    Raises:
        ForeignFileError: it is damaged.
    """
    # Looked for where a log is missing. Most stores offload nothing, and load nothing of it.
    if not os.path.exists(cold_path(directory, ledger_id)):
        return None
    with descriptors.late_imports():
        from embeddedpulsar._engine.cold.cold_ledger import offloaded_ledger

    return offloaded_ledger(directory, ledger_id)


def ledgers_with_cold(directory: str, names: Iterable[str]) -> list[int]:
    """The ledgers of a directory that have a log, here or in a location, ascending."""
    names = list(names)
    ledgers = set(ledgers_of(names))
    # Only ledgers that have a note and no log cost a read. Most topics have none.
    for ledger_id in set(ledgers_of(names, COLD_SUFFIX)) - ledgers:
        try:
            is_readable = note_of_offloaded(directory, ledger_id) is not None
        except ForeignFileError:
            is_readable = True  # reading its header raises the error
        if is_readable:
            ledgers.add(ledger_id)
    return sorted(ledgers)


def read_segment_header(directory: str, ledger_id: int) -> SegmentHeader:
    """The header of a ledger's segment as it was written.

    Raises:
        FileNotFoundError: trimmed, or lost.
        CorruptionError: neither copy is intact, or it is another ledger's.
        UnsupportedFormatVersion: a newer release wrote it.
    """
    path = log_path(directory, ledger_id)
    try:
        # Of an offloaded ledger the note has the header page, so links and times can be read without
        # fetching the log.
        page = disk.DISK.read_file(path, SEGMENT_HEADER_SIZE)
    except FileNotFoundError:
        note = note_of_offloaded(directory, ledger_id)
        if note is None:
            raise
        page = note.page()
    return checked_header(page, path, ledger_id)


def checked_header(page: bytes, path: str, ledger_id: int) -> SegmentHeader:
    """The header in the first page of the segment `path`; errors as of `read_segment_header`."""
    try:
        header = parse_segment_header(page)
    except (CorruptionError, ForeignFileError) as e:
        # Under this name it can only be a segment, so what is not one is a damaged one.
        raise CorruptionError(
            path=path, offset=e.offset, reason=e.reason, remedy=e.remedy or _REMEDY
        ) from None
    except UnsupportedFormatVersion as e:
        raise e.at(path) from None
    if header.ledger_id != ledger_id:
        raise CorruptionError(
            path=path,
            reason=f"the header says ledger {header.ledger_id}",
            offset=0,
            remedy="the file was renamed or copied; give it its own name back",
        )
    return header


def find_segment_header(directory: str, ledger_id: int) -> FoundHeader:
    """The header of a ledger's segment, derived if the one in the file is damaged.

    Deriving costs a scan of the ledger before, once per process.

    Raises:
        FileNotFoundError: trimmed, or lost.
        CorruptionError: it cannot be derived either, or it is another ledger's.
        UnsupportedFormatVersion: a newer release wrote it.
    """
    try:
        # A header of another ledger is intact: the file has the wrong name, and deriving would give
        # its frames a wrong id.
        return FoundHeader(read_segment_header(directory, ledger_id))
    except CorruptionError as e:
        if is_of_another(e):
            raise
        return FoundHeader(_derive(directory, ledger_id, e), f"{e.reason}; {_DERIVED}")


def is_of_another(error: CorruptionError) -> bool:
    """Whether the header is intact, and that of another ledger: then the frames are not those of this one."""
    return error.reason.startswith("the header says")


def is_never_written(path: str) -> bool:
    """Whether there is nothing in a segment: its creator died before it wrote the header."""
    with descriptors.late_imports():
        from embeddedpulsar._engine.log.chain_scan import LogWindow
    log = LogWindow(path)
    try:
        return log.is_empty_behind(0, log.size)
    finally:
        log.close()


def _derive(directory: str, ledger_id: int, error: CorruptionError) -> SegmentHeader:
    path = log_path(directory, ledger_id)
    # Without a frame that proves itself, the bytes could be those of any file.
    witness = _witness(directory, ledger_id)
    if witness is None:
        reason = f"{error.reason}, and neither its first frame nor its index tells what it was"
        raise CorruptionError(path=path, offset=0, reason=reason, remedy=_REMEDY) from None
    known = _derived.get((path, witness.frame))
    if known is not None:
        return known
    # Boot, store and incarnation are lost with the header. Creation time and base are one here: a
    # ledger begins with its first entry or just before.
    header = SegmentHeader(
        ledger_id=ledger_id,
        created_ms=witness.base_ms,
        base_publish_ms=witness.base_ms,
        boot_id=_NO_ID,
        store_id=_NO_ID,
        topic_incarnation=0,
        chain_seed=witness.seed,
        log_size=os.stat(path).st_size,
        index_capacity=witness.capacity,
    )
    header = _behind(directory, header)
    if len(_derived) >= _REMEMBERED:
        _derived.clear()
    _derived[path, witness.frame] = header
    return header


class _Witness(NamedTuple):
    """A frame that proves which ledger the bytes belong to, and what it and the index tell of the header."""

    frame: FrameHeader
    seed: int
    base_ms: int
    capacity: int


def _witness(directory: str, ledger_id: int) -> _Witness | None:
    """The first frame if it is intact; else one of the next that the index knows at their place."""
    slots, capacity = _index(directory, ledger_id)
    with descriptors.late_imports():
        from embeddedpulsar._engine.log.chain_scan import LogWindow
    log = LogWindow(log_path(directory, ledger_id))
    try:
        # The first frame names the seed of the chain. Its time and its slot give the base from which
        # the index counts.
        frame = _frame(log, FIRST_FRAME_OFFSET, 0)
        if frame is not None:
            base_ms = frame.publish_time
            if slots:
                _, delta, *_, crc = SLOT.unpack_from(slots)
                base_ms -= delta if crc == frame.crc else 0
            return _Witness(frame, frame.prev_crc, base_ms, capacity)
        # The first frame is damaged as well. A later one proves that the bytes are of this ledger;
        # the seed stays unknown.
        for entry, (offset, delta, *_, crc) in enumerate(SLOT.iter_unpack(slots)):
            frame = _frame(log, offset << 3, entry)
            if frame is not None and frame.crc == crc:
                return _Witness(frame, 0, frame.publish_time - delta, capacity)
    finally:
        log.close()
    return None


def _frame(log: LogWindow, pos: int, entry_id: int) -> FrameHeader | None:
    try:
        frame, _ = log.read_frame(pos, log.size)
    except CorruptionError:
        return None
    return frame if frame.entry_id == entry_id else None


def _index(directory: str, ledger_id: int) -> tuple[bytes, int]:
    """The first slots of the index, as they are, and for how many entries it was made (0: unknown)."""
    try:
        # Slots are used one by one and each is proved by its frame, so the index may be damaged too.
        data = disk.DISK.read_file(index_path(directory, ledger_id), SLOTS_OFFSET + _MOST_ASKED * SLOT.size)
    except FileNotFoundError:
        return b"", 0
    slots = data[SLOTS_OFFSET:]
    slots = slots[: len(slots) // SLOT.size * SLOT.size]
    try:
        return slots, parse_index_header(data[:INDEX_HEADER_SIZE]).capacity
    except (CorruptionError, ForeignFileError):
        return slots, 0


def _behind(directory: str, header: SegmentHeader) -> SegmentHeader:
    """`header` with what it says of the ledger before: the next lower file, and where its frames end."""
    # What the header said of the ledger before is found again by its frames. It is closed, so they
    # never change.
    older = [ledger for ledger in ledgers_of(descriptors.names_in(directory)) if ledger < header.ledger_id]
    if not older:
        return header
    previous = max(older)
    path = log_path(directory, previous)
    header = header._replace(prev_ledger_id=previous)
    try:
        own = read_segment_header(directory, previous)
        seed, base_ms = own.chain_seed, own.base_publish_ms
    except FileNotFoundError:
        return header._replace(prev_ledger_id=0)  # trimmed meanwhile
    except CorruptionError:
        witness = _witness(directory, previous)
        if witness is None:
            return header
        seed, base_ms = witness.seed, witness.base_ms
    with descriptors.late_imports():
        from embeddedpulsar._engine.log.chain_scan import scan_log
    scan = scan_log(path, chain_seed=seed, base_publish_ms=base_ms)
    return header._replace(
        prev_end_offset=scan.end_offset,
        prev_last_entry_id=scan.last_entry_id,
        prev_last_crc=scan.last_crc,
        prev_messages=scan.messages,
    )


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
            # The log is here unless it was offloaded. For writing it has to be here: only closed
            # ledgers are offloaded.
            file = MappedFile.open(log_path(directory, ledger_id), writable=writable, lean=lean)
        except FileNotFoundError:
            note = None if writable else note_of_offloaded(directory, ledger_id)
            if note is None:
                raise
            return ColdSegment(directory, note, lean=lean)
        try:
            # Read through the map: the page is there, because a segment is reserved from its start.
            header = _header_of(file, directory, ledger_id)
        except BaseException:
            file.close()
            raise
        if not writable:
            file.close_descriptor()
        return cls(directory, file, header, lean=lean)

    @classmethod
    def create(
        cls, directory: str, header: SegmentHeader, first_allocation: int, *, lean: bool = False
    ) -> Segment:
        """Make the log file of a new ledger, without header yet (`write_header`). Under the topic lock."""
        path = log_path(directory, header.ledger_id)
        file = MappedFile.open(path, writable=True, size=header.log_size, create=True, lean=lean)
        try:
            # Strays were removed before, so what has the name now is damaged, or not of this topic.
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
        # Header and the first pages by one call. What is written later goes through the map.
        page = pack_segment_header(self.header)
        touched = min(_FIRST_PAGES, self.file.allocated)
        disk.DISK.pwrite_all(self.file.fd, [page, bytes(touched - len(page))], 0)
        return touched

    @property
    def index(self) -> SegmentIndex:
        """The entry index, mapped on first use."""
        # Readers of a lean process may never ask for it. Of two threads that map it at once, one map
        # is kept and the other goes.
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
        # The index is not authoritative. Header and slot were written by one append, so two checksums
        # that agree prove both.
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
        # An empty ledger: the first frame chains to the seed, and no time lies before its base.
        if end <= FIRST_FRAME_OFFSET:
            seed, base_ms = self.header.chain_seed, self.header.base_publish_ms
            return Ending(self.ledger_id, FIRST_FRAME_OFFSET, -1, seed, 0, base_ms)
        data = self.data
        # From the end backwards by the trailer, then everything that was written of this entry is
        # compared.
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
            # Plain unpacking in the place of checks that raise. Any disagreement takes the way that
            # finds out what is damaged.
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
        # A reader may derive what is lost; a writer starts another ledger instead.
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
    # Up to the end of the entry at least. Beyond it to 64 KiB at first, then as much again as there
    # is, up to the step.
    least = min(segment.file.size, _page_up(end))
    ahead = min(
        segment.file.size,
        max(least, allocated + min(step, max(allocated, _FIRST_STRIDE - allocated))),
    )
    try:
        # Reserving ahead may fail where the entry itself still fits.
        _reserve(segment, allocated, ahead)
    except StorageFullError:
        ahead = least  # the last space of the disk
        _reserve(segment, allocated, ahead)
    return ahead


def _reserve(segment: Segment, allocated: int, upto: int) -> None:
    """Reserve disk, unless too little of it would be left. The files of a topic of few messages count less
    than what keeps it usable, so those may take the last of a disk."""
    # Small topics may take the last of a disk: they need so little that refusing them would not help.
    if upto > SMALL_LOG and disk.DISK.free_bytes(segment.file.fd) < upto - allocated + KEPT_FREE:
        segment.file.close_descriptor_if_lean()
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
    # Larger frames bring their pages by the write itself.
    if is_written:
        return max(touched, end)
    # The further the log, the longer the stretch: 64 KiB at first, as much as there is, up to 1 MiB.
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


_OF_LOG: Final = ("file", "data", "view", "_closing")


class ColdSegment(Segment):
    """The segment of an offloaded ledger whose log is not here: header and index, and the log when it is
    first asked for.

    Invariants: what the index alone says (`frame_of`, for times, offsets and checksums) needs no log, as long
    as the slots have the checksum that the note has.
    """

    def __init__(self, directory: str, note: ColdLedger, *, lean: bool) -> None:
        # What `Segment` has, without a file; `__getattr__` adds the rest.
        self.__dict__.update(
            _is_lean=lean,
            _index=None,
            _opened_index={},
            directory=directory,
            home=DirectoryIdentity(directory),
            path=log_path(directory, note.ledger_id),
            writable=False,
            given_back=0,
            header=note.segment_header(),
            ledger_id=note.ledger_id,
            note=note,
        )
        self._checked: SegmentIndex | None = None

    note: ColdLedger

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_LOG:
            raise AttributeError(name)
        # Only these attributes need the log, and asking for one of them fetches it, which may take
        # minutes.
        with descriptors.late_imports():
            from embeddedpulsar._engine.log.chain_scan import map_log
        file = map_log(self.path, lean=self._is_lean)
        file.close_descriptor()
        parts = {"file": file, "data": file.view.obj, "view": file.view, "_closing": Closing(file)}
        self.__dict__.update(parts)  # of threads that fetch at once, the last one wins; all maps are good
        return parts[name]

    @property
    def is_here(self) -> bool:
        """Whether the log was fetched."""
        return "view" in self.__dict__

    def frame_of(self, entry_id: int, end: int) -> tuple[int, FrameHeader]:
        """As of `Segment`; while the log is not here, what the index says of the frame. Its length is right,
        the checksum of its body is not."""
        # While the log is away, the length of a frame is the distance to the next one by the index,
        # and the checksum before it is that of the slot before.
        if self.is_here or not self._is_index_good():
            return super().frame_of(entry_id, end)
        slot = self.index.slot(entry_id)
        is_last = entry_id + 1 >= self.note.entries
        behind = self.note.end_offset if is_last else self.index.slot(entry_id + 1).offset
        before = self.index.slot(entry_id - 1).crc if entry_id else self.header.chain_seed
        published = self.header.base_publish_ms + slot.publish_delta_ms
        return slot.offset, FrameHeader(
            *(behind - slot.offset, slot.crc, before, 0, MAGIC, KIND_ENTRY, 0, slot.flags << 16, entry_id),
            *(published, slot.count, METADATA_SIZE, 0),
        )

    def ending(self, end: int) -> Ending:
        """As of `Segment`; while the log is not here, what note and index say."""
        note = self.note
        # An end that is not the note's is one of a moment when the ledger was still open: the log has
        # to be asked.
        if self.is_here or end != note.end_offset or not self._is_index_good() or not note.entries:
            return super().ending(end)
        last = note.entries - 1
        published = self.header.base_publish_ms + self.index.slot(last).publish_delta_ms
        return Ending(self.ledger_id, end, last, note.last_crc, note.messages, published)

    def _is_index_good(self) -> bool:
        """Whether the slots are those that were there when the ledger was offloaded. Looked at once."""
        index = self.index
        # One pass over all slots, for each index that is mapped: it may be replaced by a repair.
        if self._checked is not index:
            slots = bytes(index.data[SLOTS_OFFSET : SLOTS_OFFSET + SLOT_SIZE * self.note.entries])
            if crc32(slots) != self.note.index_crc:
                return False
            self._checked = index
        return True

    def give_back(self, end: int) -> None:
        """As of `Segment`; of a log that is not here, nothing is in memory."""
        if self.is_here:
            super().give_back(end)

    def close(self) -> None:
        """As of `Segment`."""
        if self.is_here:
            super().close()
        elif self._index is not None:
            self._index.close()
            self._index = None


def clear_unpublished(segment: Segment, end: int, allocated: int, run: int) -> bool:
    """Make sure that no whole frame stands behind `end`, also after a power loss. Under the topic lock.

    A writer that died after its frames were complete and before the tail word was stored leaves frames that
    verify and chain. They are not read now; but the next one to write here may lose power before its own
    bytes reach the disk, or may start a new ledger instead; a recovery would then take such a frame for one
    that was. So they are zeroed, and that is flushed, before anything else happens. Torn frames never
    verify and need no flush: this costs 0.3 ms, once, for a death in those few nanoseconds.

    Args:
        segment: the tail ledger.
        end: of what is published.
        allocated: where the reserved part of the file ends.
        run: most bytes of frames that are written together; a larger frame is written alone.

    Returns:
        Whether there was one.

    Raises:
        OSError: the flush failed; the next append must not go to this ledger.
    """
    # Looked for in what is reserved only: a page beyond may be a hole, and touching it could kill the
    # process.
    limit = min(allocated, segment.file.size) & ~7
    window = min(end + run, limit)
    # Nothing to clear is the usual case, and costs a search of 64 KiB.
    if next_frame(segment.data, end, window, limit) < 0:
        return False
    segment.view[end:window] = bytes(window - end)
    threads.keep_order()  # a reader that sees the tail of what comes next here sees at least the zeros
    disk.DISK.fdatasync(segment.file.fd, segment.path)
    return True
