"""The entry index of one segment: `<ledger>.idx`, 24 bytes per entry (docs/format/index.md)."""

from __future__ import annotations

import os
from itertools import accumulate

from embeddedpulsar._engine.filenames import index_path, under_construction
from embeddedpulsar._engine.format.frame import (
    BLOCK_CRC,
    BLOCK_SIZE,
    FIRST_FRAME_OFFSET,
    INDEX_HEADER_SIZE,
    SLOT,
    SLOT_SIZE,
    SLOTS_OFFSET,
    SLOTS_PER_BLOCK,
    IndexHeader,
    IndexSlot,
    SegmentHeader,
    SlotColumns,
    block_crc,
    block_crc_offset,
    block_range,
    index_file_size,
    is_block_sealed_and_intact,
    pack_index_header,
    parse_index_header,
    read_slot,
    read_slots,
    slot_offset,
)
from embeddedpulsar._engine.platform import disk, threads
from embeddedpulsar._engine.platform.mapped_file import MappedFile, MemoryFile
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.records import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.segments import Link

FIRST_ALLOCATION: Final = INDEX_HEADER_SIZE + 4096
"""The header and a page of slots: a topic of few messages needs no more."""
_STEP_BLOCKS: Final = 16
_PAGE: Final = 4096
_DELTA: Final = 1


def reserved_slots(allocated: int, next_entry: int) -> int:
    """The first slot behind `next_entry` for which the writer has to call `SegmentIndex.allocate` and `seal`.

    Args:
        allocated: bytes of the index that are reserved.
        next_entry: the entry that is appended next.

    Example:
        >>> reserved_slots(8192, 0), reserved_slots(8192, 170), reserved_slots(28672, 171)
        (170, 170, 1024)
        >>> reserved_slots(28672, 1024), reserved_slots(28672, 1025)
        (1024, 2048)
    """
    # In the first block pages are reserved as they are needed. Behind it a whole block at once, and
    # its begin is also where the block before is sealed.
    if next_entry <= SLOTS_PER_BLOCK:
        return min((allocated - SLOTS_OFFSET) // SLOT_SIZE, SLOTS_PER_BLOCK)
    return -(-next_entry // SLOTS_PER_BLOCK) * SLOTS_PER_BLOCK


class SegmentIndex:
    """Where each entry of a ledger lies, when it was published, how many messages there are up to it.

    Role: found by position, by time and by message count in O(1) or O(log n), without touching the log.
    Never authoritative: every slot can be derived from its frame, and a reader checks the slot against
    that frame (`slot.crc`).
    Invariants: a slot is written before the tail that makes its entry visible; slots of visible entries are
    never changed except to the value their frames give. Only slots below the entry count may be read: beyond
    them the file may be a hole.
    Callers: readers, any thread; `seal`, `allocate` and stores, the holder of the topic lock.
    Durable: nothing is flushed. Sealed blocks carry a checksum; the rest is rebuilt after an unclean boot.
    """

    __slots__ = ("_intact", "capacity", "data", "file", "header", "path")

    def __init__(self, file: MappedFile, header: IndexHeader) -> None:
        self.file: Final = file
        self.path: Final = file.path
        self.header: Final = header
        self.capacity: Final = header.capacity
        self.data: Final = cast("bytearray", file.view.obj)
        """The map itself: its slices are bytes, and cost a third of a memoryview's."""
        self._intact: Final[set[int]] = set()

    @classmethod
    def open(cls, directory: str, ledger_id: int, *, writable: bool, lean: bool = False) -> SegmentIndex:
        """Map the index of a ledger; ``lean`` as of `MappedFile.open`."""
        file = MappedFile.open(index_path(directory, ledger_id), writable=writable, lean=lean)
        try:
            # Every kind of damage is the same here: this file is not the index, and the frames can
            # make it again.
            header = parse_index_header(bytes(file.view[:INDEX_HEADER_SIZE]))
            if header.ledger_id != ledger_id or file.size < index_file_size(header.capacity):
                raise CorruptionError(
                    reason=f"index of ledger {header.ledger_id} with {file.size} bytes", offset=0
                )
        except (CorruptionError, ForeignFileError) as e:
            file.close()
            # The file is not this index, and this index can be derived.
            raise CorruptionError(path=file.path, offset=e.offset, reason=e.reason) from None
        except UnsupportedFormatVersion as e:
            file.close()
            raise e.at(file.path) from None
        except BaseException:
            file.close()
            raise
        # An index is written through the map only, so it keeps no descriptor.
        file.close_descriptor()
        return cls(file, header)

    @classmethod
    def create(
        cls,
        path: str,
        ledger_id: int,
        capacity: int,
        created_ms: int,
        entries: int = 0,
        *,
        lean: bool = False,
    ) -> SegmentIndex:
        """Make an index file for `entries` slots and some beyond. Under the topic lock."""
        header = IndexHeader(ledger_id, capacity, created_ms)
        file = MappedFile.open(path, writable=True, size=index_file_size(capacity), create=True, lean=lean)
        try:
            index = cls(file, header)
            index.allocate(entries, 0)
            # With the first slots, and not through the map; see `Segment.write_header`.
            zeros = bytes(min(file.allocated, INDEX_HEADER_SIZE + BLOCK_SIZE) - INDEX_HEADER_SIZE)
            disk.DISK.pwrite_all(file.fd, [pack_index_header(header), zeros], 0)
        except BaseException:
            file.close()
            raise
        return index

    def allocate(self, entries: int, already: int) -> int:
        """Reserve disk for slot `entries`, the first that is not visible, and for slots behind it.

        In the first block the reserved part doubles, from a page on. Behind it whole blocks are reserved, of
        large indexes several at once: so the writer looks at it once in a block (`reserved_slots`).

        Returns:
            Bytes reserved now.
        """
        size, block = self.file.size, entries // self.header.slots_per_block
        first, needed = block_range(block)
        # The first block doubles from a page on: most topics have few entries, and 24 KiB for each
        # would be most of their disk.
        if not block:
            doubled = max(FIRST_ALLOCATION, first + 2 * (already - first))
            needed = min(needed, max(doubled, slot_offset(entries + 1) + _PAGE - 1 & -_PAGE))
        # Several blocks at once for large indexes, one for each block there is, up to 16.
        if already < needed and already < size:
            upto = min(size, needed + min(_STEP_BLOCKS, block) * BLOCK_SIZE)
            self.file.allocate(upto, start=already)
            if already and not block:
                # Not through the map; see `Segment.write_header`. What a dead writer left there goes too.
                start = max(already, slot_offset(entries))
                self.file.pwrite([bytes(upto - start)], start)
            return upto
        return already

    def slot(self, entry_id: int) -> IndexSlot:
        """The slot of a visible entry, not yet compared with its frame."""
        try:
            return read_slot(self.data, entry_id)
        except CorruptionError as e:
            raise e.at(self.path) from None

    def slots(self, first: int, stop: int) -> SlotColumns:
        """The slots of visible entries, `first` to `stop` - 1. The checksum of sealed blocks is verified
        once; of other blocks only the sum of the messages, where processors reorder of each slot.

        Raises:
            CorruptionError: damaged.
        """
        data = self.data
        # A sealed block never changes, so it is verified once. 0 is a block that is not full, or was
        # never sealed.
        for block in range(first // SLOTS_PER_BLOCK, (stop - 1) // SLOTS_PER_BLOCK + 1):
            if block in self._intact or BLOCK_CRC.unpack_from(data, block_crc_offset(block)) == (0,):
                continue
            if not is_block_sealed_and_intact(data, block):
                raise CorruptionError(path=self.path, reason=f"block {block} of the index is damaged")
            self._intact.add(block)
        columns = read_slots(data, first, stop)
        # Of a slot between, which no frame was compared with, a word may not be seen yet.
        if threads.REORDERS:
            counts, messages = columns.counts, columns.messages
            if list(accumulate(counts, initial=messages[0] - counts[0]))[1:] != messages:
                raise CorruptionError(path=self.path, reason=f"slots {first} to {stop - 1} are not complete")
        return columns

    def packed_slots(self, first: int, stop: int) -> bytes:
        """The slots of entries `first` to `stop` - 1 as they are in the file, not verified; fewer where the
        index ends before."""
        return bytes(self.data[slot_offset(first) : slot_offset(stop)])

    def first_published_at(self, delta_ms: int, entries: int) -> int:
        """The first of `entries` slots whose publish delta is at least `delta_ms`; `entries` if none is.

        Relies on publish times never going back; a damaged slot may mislead it, so callers look at the frame.
        """
        low, high = 0, min(entries, self.capacity)
        # Plain binary search without checks: the result is a guess that its caller compares with
        # frames.
        unpack, data = SLOT.unpack_from, self.data
        while low < high:
            middle = (low + high) // 2
            if unpack(data, SLOTS_OFFSET + SLOT_SIZE * middle)[_DELTA] < delta_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def seal(self, block: int) -> None:
        """Store the checksum of a block whose entries are all visible. Under the topic lock."""
        # The slots first, then the checksum over them: a crash between leaves a block without one,
        # which is not damage.
        start, end = block_range(block)
        at = block_crc_offset(block)
        self.file.view[at : at + BLOCK_CRC.size] = BLOCK_CRC.pack(block_crc(self.data[start:end]))

    def close(self) -> None:
        self.file.close()

    def __del__(self) -> None:
        if hasattr(self, "file"):  # an interrupt may end the constructor before
            self.close()


def index_fits(directory: str, link: Link, slots: bytes | None = None) -> bool:
    """Whether the index of a ledger can be used as it is.

    Args:
        directory: the topic's.
        link: the ledger.
        slots: what its slots must be, byte for byte. Without, the ledger must be closed: its full blocks must
            have their checksums, its slots must rise, and the last must be that of the last entry.
    """
    header = link.header
    count = link.last_entry_id + 1 if slots is None else len(slots) // SLOT_SIZE
    try:
        # Only as much as is needed is read. An index that is too short for its ledger does not fit.
        path = index_path(directory, header.ledger_id)
        data = disk.DISK.read_file(path, max(SLOTS_OFFSET + count * SLOT_SIZE, INDEX_HEADER_SIZE))
        own = parse_index_header(data)
    except (FileNotFoundError, CorruptionError, ForeignFileError):
        return False
    except UnsupportedFormatVersion as e:
        raise e.at(path) from None
    size = os.path.getsize(path)
    if own.ledger_id != header.ledger_id or own.capacity < count or size < index_file_size(own.capacity):
        return False
    if len(data) < SLOTS_OFFSET + count * SLOT_SIZE:
        return False
    # Byte for byte where the frames were scanned; else by what is cheap: checksums of full blocks,
    # and order in the last.
    if slots is not None:
        return data[SLOTS_OFFSET : SLOTS_OFFSET + len(slots)] == slots
    sealed = count // SLOTS_PER_BLOCK
    return all(is_block_sealed_and_intact(data, block) for block in range(sealed)) and _rises(
        data, sealed * SLOTS_PER_BLOCK, count, link
    )


def _rises(data: bytes, first: int, count: int, link: Link) -> bool:
    """Whether slots [first, count) are in order and end with the last entry of the ledger."""
    if not count:
        return True
    offset, delta, messages = FIRST_FRAME_OFFSET - 8, 0, 0
    crc = -1
    for entry in range(max(first - 1, 0), count):
        at, slot_delta, slot_messages, _, _, _, crc = SLOT.unpack_from(data, SLOTS_OFFSET + SLOT_SIZE * entry)
        at <<= 3
        if at <= offset or slot_delta < delta or slot_messages <= messages:
            return False
        # Offsets rise by at least a frame, times never fall, and message counts rise.
        offset, delta, messages = at, slot_delta, slot_messages
    return crc == link.last_crc and offset < link.end_offset


def index_in_memory(path: str, header: SegmentHeader, slots: bytes) -> SegmentIndex:
    """The index of a ledger as `write_index` would write it to ``path``, in the memory of this process."""
    own = IndexHeader(
        header.ledger_id, max(header.index_capacity, len(slots) // SLOT_SIZE), header.created_ms
    )
    file = MemoryFile(path, pack_index_header(own), index_file_size(own.capacity))
    file.view[SLOTS_OFFSET : SLOTS_OFFSET + len(slots)] = slots
    return SegmentIndex(file, own)


def write_index(directory: str, header: SegmentHeader, slots: bytes) -> None:
    """Write the whole index of a ledger beside the old one and put it in its place, durably.

    A process that has the old one mapped keeps it; its slots are checked against the frames on every use.
    """
    path = index_path(directory, header.ledger_id)
    building = under_construction(path)
    if os.path.lexists(building):
        disk.DISK.unlink(building)
    count = len(slots) // SLOT_SIZE
    index = SegmentIndex.create(
        building, header.ledger_id, max(header.index_capacity, count), header.created_ms, entries=count
    )
    try:
        # Built under another name, flushed, then renamed: a crash leaves the old index or the new
        # one, and a stray to remove.
        index.file.view[SLOTS_OFFSET : SLOTS_OFFSET + len(slots)] = slots
        for block in range(count // SLOTS_PER_BLOCK):
            index.seal(block)
        disk.DISK.fsync(index.file.fd, building)
        disk.DISK.replace(building, path)
    finally:
        index.close()
    disk.DISK.fsync_dir(directory)


def visible_slots(index: SegmentIndex, end: int) -> int:
    """How many slots, from the first on, point below `end`: offsets rise; behind them are zeros or strays.

    By positional reads: beyond the visible slots the file may be a hole, and a mapped hole can kill.
    """
    # Binary search for the first slot that is not below the end: zeros count as behind it.
    low, high = 0, index.capacity
    while low < high:
        middle = (low + high) // 2
        packed = disk.DISK.pread(index.file.fd, SLOT_SIZE, slot_offset(middle))
        offset = slot_of(packed, 0).offset if len(packed) == SLOT_SIZE else 0
        if FIRST_FRAME_OFFSET <= offset < end:
            low = middle + 1
        else:
            high = middle
    return low


def slot_of(slots: bytes, i: int) -> IndexSlot:
    """Slot `i` of packed slots without an index header before them."""
    offset, *rest = SLOT.unpack_from(slots, SLOT_SIZE * i)
    return IndexSlot(offset << 3, *rest)
