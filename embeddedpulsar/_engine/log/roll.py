"""When a ledger is full, and starting the next one."""

from __future__ import annotations

import contextlib
import os

from embeddedpulsar._engine.filenames import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    NEW_SUFFIX,
    control_path,
    index_path,
    ledgers_of,
    log_path,
    under_construction,
)
from embeddedpulsar._engine.format.control import TopicWord, split_tail, tail_word
from embeddedpulsar._engine.format.frame import FORMAT_VERSION
from embeddedpulsar._engine.format.segment_header import FIRST_FRAME_OFFSET, SLOTS_PER_BLOCK, SegmentHeader
from embeddedpulsar._engine.log.segment import (
    Ending,
    Segment,
    clear_unpublished,
    is_never_written,
    read_segment_header,
)
from embeddedpulsar._engine.log.segment_index import SegmentIndex
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar._engine.log.topic_control import (
    MUST_ROLL,
    POISON_FROM,
    POISON_TO,
    TOUCHED,
    TopicControl,
    has_frame,
    overwritten,
)
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, file_lock, nofollow
from embeddedpulsar.exceptions import CorruptionError, DescriptorLimitError, StorageError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

failpoints.declare("roll:file_created", "roll:header_written", "roll:synced", "roll:tail_switched")

MAX_LEDGER_ID: Final = (1 << 32) - 1
"""The tail word has 32 bits for it."""
MAX_TIME_DELTA_MS: Final = 1 << 31
"""Publish times in index slots are 32-bit offsets from the segment's base; half of that is the limit."""
MAX_MESSAGES: Final = 1 << 31
"""Message counts in index slots are 32 bits; checked once per block of slots, hence the distance to 2**32."""


class RollPolicy:
    """Limits of one ledger. An empty ledger is never full: it takes any entry its file can hold.

    Example:
        >>> policy = RollPolicy(max_entries=2, max_age_ms=1_000)
        >>> policy.entry_limit(capacity=1024), policy.time_limit(5_000, 5_000)
        (2, 6000)
        >>> fresh = dict(now_ms=5_000, base_ms=5_000, created_ms=5_000, capacity=1024, end=0, log_size=1)
        >>> policy.reason(entries=1, messages=1, **fresh), policy.reason(entries=2, messages=2, **fresh)
        (None, 'entries')
    """

    __slots__ = ("max_age_ms", "max_entries")

    def __init__(self, max_entries: int, max_age_ms: int) -> None:
        self.max_entries = max_entries
        self.max_age_ms = max_age_ms

    def entry_limit(self, capacity: int) -> int:
        """The first entry id the ledger does not take."""
        return min(self.max_entries, capacity)

    def time_limit(self, base_ms: int, created_ms: int) -> int:
        """The first publish time the ledger does not take."""
        return min(base_ms + MAX_TIME_DELTA_MS, created_ms + self.max_age_ms)

    def reason(
        self,
        *,
        entries: int,
        capacity: int,
        now_ms: int,
        base_ms: int,
        created_ms: int,
        end: int,
        log_size: int,
        messages: int,
    ) -> str | None:
        """Why a ledger of `entries` entries may not take one more, ending at byte `end`; None if it may.

        An empty ledger is full only where the formats would not hold: size, or a time delta out of range.
        """
        # First what the formats cannot hold, then, for a ledger with entries, what the options want.
        if end > log_size:
            return "size"
        if now_ms - base_ms >= MAX_TIME_DELTA_MS:
            return "time delta"
        if not entries:
            return None
        if entries >= self.entry_limit(capacity):
            return "entries"
        if messages >= MAX_MESSAGES:
            return "messages"
        if now_ms - created_ms >= self.max_age_ms:
            return "age"
        return None


class NewLedger(NamedTuple):
    """The parameters of a new ledger, besides those the ledger before gives."""

    ledger_id: int
    created_ms: int
    base_publish_ms: int
    boot_id: bytes
    store_id: bytes
    incarnation: int
    log_size: int
    index_capacity: int
    first_allocation: int
    is_synced: bool
    """Flush files and directory before the ledger becomes the tail."""
    version: int = FORMAT_VERSION
    """Of the segment: 1, or `REVISED_VERSION`."""


class WriterOptions(NamedTuple):
    """The writer's view of the topic and its options."""

    segment_size: int
    first_allocation: int
    allocation_step: int
    max_entries: int
    max_age_ms: int
    lock_timeout_s: float
    is_rolled_synced: bool
    boot_id: bytes
    store_id: bytes
    incarnation: int
    is_temporary: bool = False
    is_flushed: bool = False

    def new_ledger(
        self,
        ledger_id: int,
        now_ms: int,
        length: int,
        first_allocation: int,
        is_synced: bool,
        version: int,
    ) -> NewLedger:
        """The next ledger of the topic, which begins with an entry of `length` bytes."""
        return NewLedger(
            ledger_id=ledger_id,
            created_ms=now_ms,
            base_publish_ms=now_ms,
            boot_id=self.boot_id,
            store_id=self.store_id,
            incarnation=self.incarnation,
            log_size=max(self.segment_size, -(-(FIRST_FRAME_OFFSET + length) // 4096) * 4096),
            index_capacity=-(-self.max_entries // SLOTS_PER_BLOCK) * SLOTS_PER_BLOCK,
            first_allocation=first_allocation,
            is_synced=is_synced,
            version=version,
        )


def start_ledger(
    directory: str,
    words: memoryview,
    new: NewLedger,
    previous: Ending | None,
    *,
    lean: bool = False,
) -> Segment:
    """Create a segment and make it the tail. Under the topic lock.

    Args:
        directory: the topic's.
        words: its control words.
        new: the ledger to start; its id is above the tail's.
        previous: where the present tail ledger ends; None if there is none.
        lean: as of `MappedFile.open`.

    Raises:
        StorageFullError: no room; the old ledger is still the tail, and no file is left.
        StorageError: the new id is out of range.
    """
    return nofollow.within(directory, _start_within, directory, words, new, previous, lean)


def _start_within(
    directory: str, words: memoryview, new: NewLedger, previous: Ending | None, lean: bool
) -> Segment:
    # Ids are reserved durably in blocks and rise. A lower one could give a message id a second time.
    tail_ledger = previous.ledger_id if previous else 0
    if not tail_ledger < new.ledger_id <= MAX_LEDGER_ID:
        raise StorageError(
            path=directory, reason=f"ledger id {new.ledger_id} after {tail_ledger}; ids rise and have 32 bits"
        )
    # 1. Strays of a roll that died here. Ids above the tail's are unused.
    remove_strays(directory, tail_ledger)
    header = _header(new, previous)
    segment: Segment | None = None
    try:
        # 2. The files, with disk space. A crash leaves strays.
        segment = Segment.create(directory, header, new.first_allocation, lean=lean)
        index = SegmentIndex.create(
            index_path(directory, new.ledger_id),
            new.ledger_id,
            new.index_capacity,
            new.created_ms,
            lean=lean,
        )
        segment.use_index(index)
        if failpoints.ACTIVE:
            failpoints.hit("roll:file_created")
        # 3. The header: among the rest, where the ledger before ends. A crash leaves a stray that looks fine.
        touched = segment.write_header()
        if failpoints.ACTIVE:
            failpoints.hit("roll:header_written")
        # 4. Content and names survive a power loss before anything refers to them.
        if new.is_synced:
            disk.DISK.fsync(index.file.fd, index.path)
            disk.DISK.fsync(segment.file.fd, segment.path)
            disk.DISK.fsync_dir(directory)
        if failpoints.ACTIVE:
            failpoints.hit("roll:synced")
        index.file.close_descriptor()
        segment.file.close_descriptor_if_lean()
    # The old ledger is still the tail. Files that were made so far are removed here, or by the next
    # roll.
    except OSError:
        if segment is not None:
            segment.close()
        # Under the same lock, so no other process can have taken a file of this id.
        _discard(directory, new.ledger_id)
        raise
    # 5. What the words say about the tail's files. Too small is harmless for the old ledger.
    words[TopicWord.ALLOCATED] = segment.file.allocated
    words[TopicWord.INDEX_ALLOCATED] = index.file.allocated
    words[TOUCHED] = touched
    # 6. The switch: one store. The old ledger is closed, its end is in the new header. No interrupt may come
    # between it and the totals: the roll would be repeated, and count the old ledger twice.
    switch: dict[int, int] = {}
    if previous is not None:
        switch = {
            TopicWord.TOTAL_MESSAGES: words[TopicWord.TOTAL_MESSAGES] + previous.messages,
            TopicWord.TOTAL_BYTES: words[TopicWord.TOTAL_BYTES] + previous.end_offset - FIRST_FRAME_OFFSET,
            TopicWord.TOTAL_ENTRIES: words[TopicWord.TOTAL_ENTRIES] + previous.last_entry_id + 1,
        }
    switch[TopicWord.TAIL] = tail_word(new.ledger_id, FIRST_FRAME_OFFSET)
    file_lock.store(words, switch)
    words[TopicWord.STATE] &= ~MUST_ROLL
    if failpoints.ACTIVE:
        failpoints.hit("roll:tail_switched")
    return segment


def _header(new: NewLedger, previous: Ending | None) -> SegmentHeader:
    # The header of the new ledger is the only place that says where the old one ends.
    header = SegmentHeader(
        ledger_id=new.ledger_id,
        created_ms=new.created_ms,
        base_publish_ms=new.base_publish_ms,
        boot_id=new.boot_id,
        store_id=new.store_id,
        topic_incarnation=new.incarnation,
        chain_seed=int.from_bytes(os.urandom(4), "little"),  # so that bytes of another file never chain
        log_size=new.log_size,
        index_capacity=new.index_capacity,
        version=new.version,
    )
    if previous is None:
        return header
    return header._replace(
        prev_ledger_id=previous.ledger_id,
        prev_end_offset=previous.end_offset,
        prev_last_entry_id=previous.last_entry_id,
        prev_last_crc=previous.last_crc,
        prev_messages=previous.messages,
    )


def undo_unpublished(control: TopicControl, by_map: int) -> None:
    """Remove what a holder of the lock left that died inside, or was interrupted: it must not come back.

    Otherwise a recovery after a power loss might take its frame, or its half-made ledger, for published.

    Args:
        control: of the topic, under its lock.
        by_map: frames up to this length were stored through the map.
    """
    words = control.words
    # The epoch makes void what other processes have read of words that the dead holder may have
    # changed half.
    words[TopicWord.RECOVERIES] += 1
    words[TopicWord.EPOCH] += 1
    ledger_id, end = split_tail(words[TopicWord.TAIL])
    try:
        control.check_in_place()
        remove_strays(control.home.directory, ledger_id)
        if ledger_id:
            segment = SEGMENTS.get(control.home, ledger_id, writable=True)
            clear_unpublished(segment, end, words[TopicWord.ALLOCATED], by_map)
    except (FileNotFoundError, CorruptionError):
        return  # the refresh that follows meets it too, and deals with it
    except DescriptorLimitError:
        raise  # nothing was tried; the owner word still says that it is to be done
    except OSError:
        # A failed flush loses everything that was not flushed before, and a later flush that succeeds
        # would not report that. The next ledger's header records the end instead.
        # The range grows: everything since the last successful flush counts as lost.
        if not words[POISON_TO]:
            words[POISON_FROM] = words[TopicWord.SYNCED]
        words[POISON_TO] = words[TopicWord.TAIL]
        words[TopicWord.STATE] |= MUST_ROLL


def remove_strays(directory: str, tail_ledger: int) -> int:
    """Unlink segments and indexes above the tail's ledger, and all unfinished indexes; return how many files.
    Under the topic lock, as every index is built.

    Not one that was written and cannot be read: it may be the tail that a recovery could not find.
    Durably: a stray that came back after a power loss, when the old ledger had gone on, would claim its end.

    Raises:
        CorruptionError: one has a message. A ledger is the tail before its first message is written, so the
            tail is another one than the words say. Nothing was removed.
    """
    # Indexes go with their logs, and also those whose log is gone already: a removal may have died
    # between the two.
    names = descriptors.names_in(directory)
    logs = [ledger for ledger in ledgers_of(names, LOG_SUFFIX) if ledger > tail_ledger]
    kept = {ledger for ledger in logs if _is_damaged(directory, ledger)}
    strays = [log_path(directory, ledger) for ledger in logs if ledger not in kept]
    for path in strays:
        if has_frame(path):
            reason = f"they say that ledger {tail_ledger} is the last one, and {path} has messages"
            raise overwritten(control_path(directory), reason)
    strays += [
        index_path(directory, ledger)
        for ledger in ledgers_of(names, INDEX_SUFFIX)
        if ledger > tail_ledger and ledger not in kept
    ]
    strays += [
        under_construction(index_path(directory, ledger))
        for ledger in ledgers_of(names, INDEX_SUFFIX + NEW_SUFFIX)
    ]
    for path in strays:
        disk.DISK.unlink(path)
    if strays:
        disk.DISK.fsync_dir(directory)
    return len(strays)


def _is_damaged(directory: str, ledger: int) -> bool:
    try:
        read_segment_header(directory, ledger)
    except CorruptionError:
        return not is_never_written(log_path(directory, ledger))
    return False


def _discard(directory: str, ledger_id: int) -> None:
    with contextlib.suppress(OSError):  # the error that brought us here is the one to report
        remove_strays(directory, ledger_id - 1)
