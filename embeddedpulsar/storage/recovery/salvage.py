"""The tail ledger after an accident: what is known of it where it is damaged, what a dead writer left."""

from __future__ import annotations

from embeddedpulsar._engine.format.frame import next_frame
from embeddedpulsar._engine.format.segment_header import (
    FIRST_FRAME_OFFSET,
    SLOT,
    SLOT_SIZE,
    IndexSlot,
    slot_offset,
)
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.storage.filenames import log_path
from embeddedpulsar.storage.segment import Ending, Segment
from embeddedpulsar.storage.segment_index import SegmentIndex


def salvaged_ending(directory: str, ledger_id: int, end: int, error: Exception) -> tuple[Ending, Damage]:
    """The best account of a ledger that ends at `end` (the tail word is true). Under the topic lock.

    The caller starts a new ledger from it: nothing is ever appended behind damage. Frames first (an index
    alone may be lost), then the index (a last frame alone may be), then only the end offset.
    """
    ending, first_lost = _from_frames(directory, ledger_id, end), 0
    if ending is None:
        ending, first_lost = _from_index(directory, ledger_id, end), -1
    if ending is None:
        ending = Ending(ledger_id, end, -1, 0, 0, 0)
    offset = getattr(error, "offset", None)
    damage = Damage(
        log_path(directory, ledger_id),
        ledger_id,
        first_lost,
        -1,
        offset or 0,
        end,
        f"damage at the tail: {getattr(error, 'reason', '') or error}; the next entry starts a new ledger",
    )
    return ending, damage


def _from_frames(directory: str, ledger_id: int, end: int) -> Ending | None:
    try:
        segment = Segment.open(directory, ledger_id)
        if end == FIRST_FRAME_OFFSET:
            return segment.ending(end)
        messages, offset = 0, FIRST_FRAME_OFFSET
        while True:
            frame = segment.frame_header(offset, end)
            messages += frame.message_count
            offset += frame.length
            if offset == end:
                return Ending(ledger_id, end, frame.entry_id, frame.crc, messages, frame.publish_time)
    except (CorruptionError, FileNotFoundError):
        return None


def _from_index(directory: str, ledger_id: int, end: int) -> Ending | None:
    try:
        index = SegmentIndex.open(directory, ledger_id, writable=False)
        entries = visible_slots(index, end)
        if not entries:
            return None
        slot = index.slot(entries - 1)
    except (CorruptionError, FileNotFoundError):
        return None
    return Ending(ledger_id, end, entries - 1, slot.crc, slot.messages, 0)


def visible_slots(index: SegmentIndex, end: int) -> int:
    """How many slots, from the first on, point below `end`: offsets rise; behind them are zeros or strays.

    By positional reads: beyond the visible slots the file may be a hole, and a mapped hole can kill.
    """
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
    limit = min(allocated, segment.file.size) & ~7
    window = min(end + run, limit)
    if next_frame(segment.data, end, window, limit) < 0:
        return False
    segment.view[end:window] = bytes(window - end)
    disk.DISK.fdatasync(segment.file.fd, segment.path)
    return True
