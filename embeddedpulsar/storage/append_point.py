"""Where the next entry of a topic goes, and making room for it there: the writer's slow paths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from os import getpid, lstat
from typing import Final, NoReturn

from embeddedpulsar._engine.format.control import TopicWord, split_tail, tail_word
from embeddedpulsar._engine.format.segment_header import (
    FIRST_FRAME_OFFSET,
    SLOT_SIZE,
    SLOTS_OFFSET,
    SLOTS_PER_BLOCK,
)
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.backlog_quota import TopicHeld
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CorruptionError,
    DescriptorLimitError,
    StorageError,
    StorageFullError,
    TopicNotFound,
    TopicTerminated,
)
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.recovery.salvage import clear_unpublished, salvaged_ending
from embeddedpulsar.storage.roll import NewLedger, RollPolicy, remove_strays, start_ledger
from embeddedpulsar.storage.segment import KEPT_FREE, Ending, Segment, grown_allocation, touch
from embeddedpulsar.storage.segment_cache import SEGMENTS
from embeddedpulsar.storage.segment_index import reserved_slots
from embeddedpulsar.storage.topic_control import (
    ATTENTION,
    DELETED,
    HELD,
    HELD_TEXT,
    MUST_ROLL,
    POISON_FROM,
    POISON_TO,
    TERMINATED,
    TOUCHED,
    TopicControl,
)
from embeddedpulsar.storage.waiter_slots import Ringing

failpoints.declare("append:index_reserved")

_TAIL: Final = TopicWord.TAIL
_OWNER: Final = TopicWord.OWNER
_LAST_PUBLISH_MS: Final = TopicWord.LAST_PUBLISH_MS
BY_MAP: Final = 64 << 10
"""Larger frames go by pwritev: a cold page costs 10 times as much through the map."""

LOOK_NS: Final = 50_000
"""How long an appender may believe that the topic's files still have their names: the shortest time in which
an append that looked every time would not cost more than 2 % (docs/decisions/0092)."""
PLACE_NS: Final = 10_000_000
"""The same for the place of the topic: entries stored in a topic that was moved are not lost."""

State = tuple[int, int, int, int, int, int]
"""(tail word, end offset, last entry id, last crc, messages in the ledger, last publish time).

A pure function of the tail word, so it is valid exactly while the tail word is what it was; replaced by one
store, so that no interrupt can leave half of it."""
_UNKNOWN: Final[State] = (-1, 0, -1, 0, 0, 0)
_NOTHING: Final = bytearray()


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


class AppendPoint:
    """The cached end of a topic's log, for one process.

    Role: the part of the writer that is not hot: finding the end again when it moved, repairing what a dead
    holder of the lock left, reserving disk, starting the next ledger.
    Invariants: `_state` is a function of the tail word and is used only while the tail word is what it was.
    A nonzero owner word at entry means that a holder died, or that a process demands attention.
    Callers: the holder of the topic lock.
    """

    def __init__(
        self,
        control: TopicControl,
        lock: FileLock,
        ring: Ringing,
        options: WriterOptions,
        *,
        wall_ns: Callable[[], int],
        allocate_ledger_id: Callable[[int], int],
        report: DamageHook,
    ) -> None:
        self._control: Final = control
        self._words: memoryview = control.words
        self._lock: Final = lock
        self._waiters = ring.waiters
        self._directory: Final = control.home.directory
        self._control_path: Final = control.path
        self._inode, self._device = control.home.inode, control.home.device
        self._options: Final = options
        self._policy: Final = RollPolicy(options.max_entries, options.max_age_ms)
        self._wall_ns: Final = wall_ns
        self._looked_ns = 0  # when it was looked whether the lock file has its name
        self._look_by_ns = self._place_by_ns = 0  # when that is due again, and a look at the topic's place
        self._ring, self._bell = ring, ring.bell
        self._allocate_ledger_id: Final = allocate_ledger_id
        self._report: Final = report
        self._timeout_s: Final = options.lock_timeout_s
        self._owner = getpid() << 32
        self._trim = 0  # ledgers before this one are not mapped here
        self._is_closed = False
        self._is_exclusive = False
        """In a stretch that must not be re-entered by a signal handler of this thread."""
        self.rolls = 0
        self.on_rolled: Callable[[], object] = int
        """Called when a ledger was closed, under the topic lock: must not wait for anything."""
        self.on_look: Callable[[], object] = int
        """Called by appends, every 10 ms at most, under the topic lock: must not wait for anything."""
        self.on_full: Callable[[], object] = int
        """Called when an append found no room, under the topic lock: must not wait for anything."""
        self._forget()

    def _forget(self) -> None:
        self._state: State = _UNKNOWN
        self._segment: Segment | None = None
        self._log: bytearray = _NOTHING
        self._index: bytearray = _NOTHING
        self._size = 0
        self._base_ms = 0
        self._entry_limit = 0
        # At or beyond any of these the slow path takes over.
        self._end_stop = 0
        self._entry_stop = 0
        self._time_stop = 0

    def _refresh(self) -> State:
        """Find out where the log stands: others appended, a holder died, or attention is demanded."""
        if self._is_exclusive:
            self._refuse_reentry()
        try:
            self._is_exclusive = True
            self._state = _UNKNOWN
            if self._is_closed:
                raise AlreadyClosed("the topic is closed")
            owner = self._words[_OWNER]
            if owner:
                self._look_at_owner(owner)
            self._state = self._found_state()
            if owner:
                self._clear_slots(self._state[2] + 1)
                self._words[_OWNER] = 0
        finally:
            self._is_exclusive = False
        return self._state

    def _look_at_place(self, now_ns: int) -> None:
        """Refuse to append to a file that has no name any more. Under the topic lock.

        The name of the lock file, which `append` looks at (0.7 us), shows that the store was removed; the
        place of the ctl (1.5 us) also that it was moved or replaced. See `LOOK_NS`.

        Raises:
            StoreGoneError: the store or the topic was removed, moved or replaced.
        """
        # As `is_current`, without its calls: an appender that slept pays 3 us for each.
        try:
            found = lstat(self._control_path)
            is_there = found.st_ino == self._inode and found.st_dev == self._device
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        if not is_there:
            self._control.check_in_place()
        self._place_by_ns = now_ns + PLACE_NS
        if self._words[TopicWord.TRIM] != self._trim:  # appenders come here often: no call without need
            self._drop_trimmed()
        self.on_look()

    def _drop_trimmed(self) -> None:
        """Unmap the segments that any process trimmed: as long as one maps them, the disk keeps their space,
        and a process that only publishes asks for no chain of ledgers."""
        self._trim = trim = self._words[TopicWord.TRIM]
        SEGMENTS.forget_below(self._control.home, trim)

    def _refuse_reentry(self) -> NoReturn:
        raise StorageError(
            path=self._directory,
            reason="a signal handler or finalizer appended while its own thread was making room here",
            remedy="send from the program's main flow, or try again",
        )

    def _look_at_owner(self, owner: int) -> None:
        words = self._words
        state = words[TopicWord.STATE]
        if state & (TERMINATED | DELETED):
            words[_OWNER] = ATTENTION
            if state & DELETED:
                raise TopicNotFound("the topic was deleted")
            raise TopicTerminated("nothing can be appended to a terminated topic")
        if owner != ATTENTION:
            self._repair()
        if state & HELD:
            words[_OWNER] = ATTENTION
            raise TopicHeld(HELD_TEXT)

    def _clear_slots(self, next_entry: int) -> None:
        """Clear the slots of a run that died: one behind the next entry would stay, and be taken for that of
        a published entry once the log has grown beyond its offset. They are all in one block."""
        block_end = (next_entry // SLOTS_PER_BLOCK + 1) * SLOTS_PER_BLOCK
        start = SLOTS_OFFSET + SLOT_SIZE * next_entry
        end = min(SLOTS_OFFSET + SLOT_SIZE * block_end, self._words[TopicWord.INDEX_ALLOCATED])
        if self._segment is not None and start < end:
            self._index[start:end] = bytes(end - start)

    def _found_state(self) -> State:
        words = self._words
        tail = words[_TAIL]
        ledger_id, end = split_tail(tail)
        if not ledger_id:
            self._forget()
            return (0, 0, -1, 0, 0, words[_LAST_PUBLISH_MS])
        try:
            segment = self._segment
            if segment is None or segment.ledger_id != ledger_id:
                segment = SEGMENTS.get(self._control.home, ledger_id, writable=True)
                self._use(segment)
            ending = segment.agreed_ending(end)
        except (CorruptionError, FileNotFoundError) as e:
            self._control.check_in_place()
            self._forget()
            words[TopicWord.STATE] |= MUST_ROLL
            ending, damage = salvaged_ending(self._directory, ledger_id, end, e)
            self._report(damage)
        _, _, entry_id, crc, messages, published = ending
        last_ms = words[_LAST_PUBLISH_MS]
        self._set_stops(entry_id + 1)
        return (tail, end, entry_id, crc, messages, published if published > last_ms else last_ms)

    def _repair(self) -> None:
        """Remove what a holder of the lock left that died inside, or was interrupted: it must not come back.

        Otherwise a recovery after a power loss might take its frame, or its half-made ledger, for published.
        """
        words = self._words
        words[TopicWord.RECOVERIES] += 1
        words[TopicWord.EPOCH] += 1
        ledger_id, end = split_tail(words[_TAIL])
        try:
            self._control.check_in_place()
            remove_strays(self._directory, ledger_id)
            if ledger_id:
                segment = SEGMENTS.get(self._control.home, ledger_id, writable=True)
                clear_unpublished(segment, end, words[TopicWord.ALLOCATED], BY_MAP)
        except (FileNotFoundError, CorruptionError):
            return  # the refresh that follows meets it too, and deals with it
        except DescriptorLimitError:
            raise  # nothing was tried; the owner word still says that it is to be done
        except OSError:
            # A failed flush loses everything that was not flushed before, and a later flush that succeeds
            # would not report that. The next ledger's header records the end instead.
            if not words[POISON_TO]:
                words[POISON_FROM] = words[TopicWord.SYNCED]
            words[POISON_TO] = words[_TAIL]
            words[TopicWord.STATE] |= MUST_ROLL

    def _use(self, segment: Segment) -> None:
        index = segment.index
        SEGMENTS.put(self._control.home, segment, holder=self)
        self._segment = None  # an interrupt must not leave this segment with the base time of another
        self._log = segment.file.slices
        self._index = index.file.slices
        header = segment.header
        self._size = segment.file.size
        if self._words[TopicWord.TRIM] != self._trim:
            self._drop_trimmed()
        self._base_ms = header.base_publish_ms
        self._entry_limit = self._policy.entry_limit(header.index_capacity)
        self._time_stop = self._policy.time_limit(header.base_publish_ms, header.created_ms)
        self._segment = segment

    def _set_stops(self, next_entry: int) -> None:
        """Where the fast path ends: untouched pages, slots not reserved, the limits of the ledger."""
        words = self._words
        if self._segment is None or words[TopicWord.STATE] & MUST_ROLL:
            self._end_stop = 0
            return
        touched, allocated = words[TOUCHED], words[TopicWord.ALLOCATED]
        end_stop = touched if touched < allocated else allocated
        self._end_stop = end_stop if end_stop < self._size else self._size
        slots = reserved_slots(words[TopicWord.INDEX_ALLOCATED], next_entry)
        self._entry_stop = slots if slots < self._entry_limit else self._entry_limit

    def _make_room(self, length: int, now_ms: int) -> State:
        """Let an entry of `length` bytes at `now_ms` fit: roll, reserve disk, touch pages, seal index blocks.

        Raises:
            StorageFullError, DescriptorLimitError: no room; nothing changed.
        """
        if self._is_exclusive:
            self._refuse_reentry()
        try:
            self._is_exclusive = True
            if self._full_reason(self._state[1] + length, now_ms) is not None:
                self._roll(length, now_ms)
            self._extend(length)
        except (StorageFullError, DescriptorLimitError) as e:
            self._words[_OWNER] = 0
            if isinstance(e, StorageFullError):
                self.on_full()
            raise
        except (FileNotFoundError, CorruptionError):
            self._control.check_in_place()
            raise
        finally:
            self._is_exclusive = False
        return self._state

    def _extend(self, length: int) -> None:
        words, segment = self._words, self._segment
        if segment is None:
            raise CorruptionError(path=self._directory, reason="no segment to append to")
        _, start, entry_id, *_ = self._state
        end = start + length
        allocated = words[TopicWord.ALLOCATED]
        if end > allocated:
            allocated = grown_allocation(segment, end, allocated, self._options.allocation_step)
            words[TopicWord.ALLOCATED] = allocated
        if end > words[TOUCHED]:
            is_written, in_memory = length > BY_MAP, self._options.is_temporary
            touched = words[TOUCHED]
            words[TOUCHED] = touch(segment, start, end, touched, allocated, is_written, in_memory=in_memory)
        reserved = words[TopicWord.INDEX_ALLOCATED]
        if entry_id + 1 >= reserved_slots(reserved, entry_id + 1):
            reserved = segment.index.allocate(entry_id + 1, reserved)
            if failpoints.ACTIVE:
                failpoints.hit("append:index_reserved")
            words[TopicWord.INDEX_ALLOCATED] = reserved
            self._seal_before(entry_id + 1)
        self._set_stops(entry_id + 2)

    def _seal_before(self, next_entry: int) -> None:
        """Put the checksum on a block of slots that has just become full."""
        block, within = divmod(next_entry, SLOTS_PER_BLOCK)
        if block and not within and self._segment is not None:
            self._segment.index.seal(block - 1)

    def _full_reason(self, end: int, now_ms: int) -> str | None:
        segment = self._segment
        if segment is None:
            return "no segment"
        if self._words[TopicWord.STATE] & MUST_ROLL:
            return "demanded"
        header = segment.header
        return self._policy.reason(
            entries=self._state[2] + 1,
            capacity=header.index_capacity,
            now_ms=now_ms,
            base_ms=header.base_publish_ms,
            created_ms=header.created_ms,
            end=end,
            log_size=min(header.log_size, segment.file.size),
            messages=self._state[4],
        )

    def _roll(self, length: int, now_ms: int) -> None:
        self._control.check_in_place()
        words, options = self._words, self._options
        tail, end, entry_id, crc, messages, last_ms = self._state
        ledger_id = tail >> 32
        previous = Ending(ledger_id, end, entry_id, crc, messages, last_ms) if ledger_id else None
        self._seal_before(entry_id + 1)
        # After a recovery, or a flush that failed, the new header alone says where the old ledger ends: more
        # frames may stand behind that, or come back. One that is merely full ends where its frames end.
        is_demanded = words[TopicWord.STATE] & MUST_ROLL != 0
        first_allocation = options.first_allocation
        if previous is not None:  # the topic has traffic: begin with more than its last ledger needed first
            first_allocation = max(first_allocation, min(options.allocation_step, end))
        new = NewLedger(
            ledger_id=self._allocate_ledger_id(ledger_id),
            created_ms=now_ms,
            base_publish_ms=now_ms,
            boot_id=options.boot_id,
            store_id=options.store_id,
            incarnation=options.incarnation,
            log_size=max(options.segment_size, -(-(FIRST_FRAME_OFFSET + length) // 4096) * 4096),
            index_capacity=-(-options.max_entries // SLOTS_PER_BLOCK) * SLOTS_PER_BLOCK,
            first_allocation=first_allocation,
            is_synced=options.is_rolled_synced or (previous is not None and is_demanded),
        )
        segment = self._started(new, previous)
        self._use(segment)
        self.rolls += 1
        word = tail_word(new.ledger_id, FIRST_FRAME_OFFSET)
        self._state = (word, FIRST_FRAME_OFFSET, -1, segment.header.chain_seed, 0, now_ms)
        if previous is not None:
            self.on_rolled()

    def _started(self, new: NewLedger, previous: Ending | None) -> Segment:
        """The next ledger, with as much disk as `new` says, or with the least where the disk has no more: a
        full disk is emptied by closing the ledger that fills it."""
        least = self._options.first_allocation
        start = partial(start_ledger, self._directory, self._words, lean=SEGMENTS.is_crowded)
        if new.first_allocation > least:
            if disk.DISK.free_bytes(self._lock.fd) >= new.first_allocation + KEPT_FREE:
                with contextlib.suppress(StorageFullError):  # a quota; no file is left
                    return start(new, previous)
            new = new._replace(first_allocation=least)
        return start(new, previous)

    def let_go(self, segment: Segment) -> bool:
        """Unmap to make room in the cache, unless an append is in progress (then False)."""
        try:
            if not self._lock.enter_alone():
                return self._segment is not segment
            if self._segment is segment:
                self._forget()
            return True
        finally:
            self._lock.release()
