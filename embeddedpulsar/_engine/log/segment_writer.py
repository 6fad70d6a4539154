"""Appending entries to a topic: the hot path of every send (benchmarks/micro/append.py).

acquire the topic lock -> frame bytes -> index slot -> tail word -> release -> wake

Where the next entry of a topic goes, and making room for it there: the writer's slow paths. Several appends
in one hold of the topic lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from os import fstat, getpid, lstat
from zlib import crc32

from embeddedpulsar._engine.format.control import TopicWord, split_tail, tail_word
from embeddedpulsar._engine.format.entry import EncodedFields
from embeddedpulsar._engine.format.frame import (
    COVERED,
    FIRST_FRAME_OFFSET,
    FLAG_TXN,
    FORMAT_VERSION,
    FRONT,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    MAX_COUNT,
    NEEDS_REVISION,
    REVISED_VERSION,
    SLOT,
    SLOT_SIZE,
    SLOTS_OFFSET,
    SLOTS_PER_BLOCK,
    TRAILER,
    TRAILER_SIZE,
)
from embeddedpulsar._engine.log.segment import (
    KEPT_FREE,
    Ending,
    Segment,
    grown_allocation,
    touch,
)
from embeddedpulsar._engine.log.segment_index import reserved_slots
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar._engine.log.topic_control import (
    ATTENTION,
    DELETED,
    HELD,
    HELD_TEXT,
    MUST_ROLL,
    TERMINATED,
    TOUCHED,
    TopicControl,
)
from embeddedpulsar._engine.log.trimming import (
    NewLedger,
    RollPolicy,
    WriterOptions,
    start_ledger,
    undo_unpublished,
)
from embeddedpulsar._engine.log.waiter_slots import AppendHold, Ringing
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, threads, timing
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CorruptionError,
    DescriptorLimitError,
    NotAllowedError,
    StorageError,
    StorageFullError,
    TopicNotFound,
    TopicTerminated,
)
from embeddedpulsar.policies import TopicHeld
from embeddedpulsar.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Final, NoReturn

failpoints.declare("append:index_reserved")

_TAIL: Final = TopicWord.TAIL
_OWNER: Final = TopicWord.OWNER
_LAST_PUBLISH_MS: Final = TopicWord.LAST_PUBLISH_MS
_FIRST_OPEN: Final = TopicWord.FIRST_OPEN_TXN
BY_MAP: Final = 64 << 10
"""Larger frames go by pwritev: a cold page costs 10 times as much through the map.

If each append is flushed, all go by pwritev. A store through the map makes the whole folio dirty, up to 1 MiB
where zeros were written ahead, and all of it is flushed; pwritev makes those blocks dirty that it writes.
"""

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
Stored = list[tuple[int, int, int]]


class AppendPoint:
    """The cached end of a topic's log, for one process.

    Role: the part of the writer that is not hot: finding the end again when it moved, repairing what a dead
    holder of the lock left, reserving disk, starting the next ledger.
    Invariants: `_state` is a function of the tail word and is used only while the tail word is what it was.
    A nonzero owner word at entry means that a holder died, or that a process demands attention.
    Callers: the holder of the topic lock.
    """

    __slots__ = (
        "__weakref__", "_allocate_ledger_id", "_barred", "_base_ms", "_bell", "_by_map", "_control",
        "_control_path", "_device", "_directory", "_end_stop", "_entry_limit", "_entry_stop", "_index",
        "_inode", "_is_closed", "_is_exclusive", "_is_revised", "_lock", "_log", "_look_by_ns", "_looked_ns",
        "_options", "_owner", "_place_by_ns", "_policy", "_raise_format", "_report", "_ring", "_segment",
        "_size", "_state", "_time_stop", "_timeout_s", "_trim", "_waiters", "_wall_ms", "_wall_ns", "_words",
        "bars_transactions", "on_full", "on_look", "on_rolled", "rolls",
    )  # fmt: skip

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
        raise_format: Callable[[int], object] = int,
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
        self._looked_ns = self._wall_ms = 0  # when it was looked whether the lock file has its name; in ms
        self._look_by_ns = self._place_by_ns = 0  # when that is due again, and a look at the topic's place
        self._ring, self._bell = ring, ring.bell
        self._allocate_ledger_id: Final = allocate_ledger_id
        self._raise_format: Final = raise_format
        self._report: Final = report
        self._timeout_s: Final = options.lock_timeout_s
        self._owner = getpid() << 32
        self._trim = 0  # ledgers before this one are not mapped here
        self._by_map: Final = -1 if options.is_flushed else BY_MAP
        """Up to this length a frame is stored through the map."""
        self._is_closed = False
        self._is_exclusive = False
        """In a stretch that must not be re-entered by a signal handler of this thread."""
        self.rolls = 0
        self.bars_transactions = False
        """Whether entries of transactions are refused, as a log that keeps nothing has to."""
        self.on_rolled: Callable[[], object] = int
        """Called when a ledger was closed, under the topic lock: must not wait for anything."""
        self.on_look: Callable[[], object] = int
        """Called by appends, every 10 ms at most, under the topic lock: must not wait for anything."""
        self.on_full: Callable[[], object] = int
        """Called when an append found no room, under the topic lock: must not wait for anything."""
        self._reset()

    def _reset(self) -> None:
        self._state: State = _UNKNOWN
        self._segment: Segment | None = None
        self._log: bytearray = _NOTHING
        self._index: bytearray = _NOTHING
        self._size = self._base_ms = self._entry_limit = 0
        # Flags that send an append the slow way: those the segment cannot have, and that of transactions.
        self._barred, self._is_revised = NEEDS_REVISION, False
        # At or beyond any of these the slow path takes over.
        self._end_stop = self._entry_stop = self._time_stop = 0

    def _refresh(self) -> State:
        """Find out where the log stands: others appended, a holder died, or attention is demanded."""
        # A signal handler that appends while its own thread is inside would use state that is half
        # changed.
        if self._is_exclusive:
            self._refuse_reentry()
        try:
            self._is_exclusive = True
            # Void first: an interrupt below leaves state that no tail word equals.
            self._state = _UNKNOWN
            if self._is_closed:
                raise AlreadyClosed("the topic is closed")
            owner = self._words[_OWNER]
            if owner:
                self._look_at_owner(owner)
            # Found, then the slots of a dead writer are cleared, then the mark goes: a crash between
            # leaves the mark for the next.
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
            status = lstat(self._control_path)
            is_there = status.st_ino == self._inode and status.st_dev == self._device
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
        SEGMENTS.drop_below(self._control.home, trim)

    def _refuse_reentry(self) -> NoReturn:
        raise StorageError(
            path=self._directory,
            reason="a signal handler or finalizer appended while its own thread was making room here",
            remedy="send from the program's main flow, or try again",
        )

    def _look_at_owner(self, owner: int) -> None:
        words = self._words
        # The mark stays in these cases, so that the next append of any process comes here again.
        state = words[TopicWord.STATE]
        if state & (TERMINATED | DELETED):
            words[_OWNER] = ATTENTION
            if state & DELETED:
                raise TopicNotFound("the topic was deleted")
            raise TopicTerminated("nothing can be appended to a terminated topic")
        # A process id: its holder died between setting the mark and clearing it.
        if owner != ATTENTION:
            undo_unpublished(self._control, BY_MAP)
        if state & HELD:
            words[_OWNER] = ATTENTION
            raise TopicHeld(HELD_TEXT)

    def _clear_slots(self, next_entry: int) -> None:
        """Clear the slots of a run that died: one behind the next entry would stay, and be taken for that of
        a published entry once the log has grown beyond its offset. They are all in one block."""
        start, slots = SLOTS_OFFSET + SLOT_SIZE * next_entry, SLOTS_PER_BLOCK - next_entry % SLOTS_PER_BLOCK
        end = min(start + SLOT_SIZE * slots, self._words[TopicWord.INDEX_ALLOCATED])
        if self._segment is not None and start < end:
            self._index[start:end] = bytes(end - start)
            threads.keep_order()  # see `clear_unpublished`

    def _found_state(self) -> State:
        words = self._words
        tail = words[_TAIL]
        ledger_id, end = split_tail(tail)
        if not ledger_id:
            self._reset()
            return (0, 0, -1, 0, 0, words[_LAST_PUBLISH_MS])
        try:
            segment = self._segment
            if segment is None or segment.ledger_id != ledger_id:
                # Of the mapped segment the end is compared in O(1). What does not agree is damage at
                # the tail: the entry that comes next begins a new ledger, and nothing is appended
                # behind damage.
                segment = SEGMENTS.get(self._control.home, ledger_id, writable=True)
                self._use(segment)
            ending = segment.agreed_ending(end)
        except (CorruptionError, FileNotFoundError) as e:
            self._control.check_in_place()
            self._reset()
            words[TopicWord.STATE] |= MUST_ROLL
            with descriptors.late_imports():
                from embeddedpulsar._engine.log.recovery import salvaged_ending
            ending, damage = salvaged_ending(self._directory, ledger_id, end, e)
            self._report(damage)
        _, _, entry_id, crc, messages, published = ending
        last_ms = words[_LAST_PUBLISH_MS]
        self._set_stops(entry_id + 1)
        return (tail, end, entry_id, crc, messages, published if published > last_ms else last_ms)

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
        self._is_revised = header.version >= REVISED_VERSION
        self._barred = FLAG_TXN if self._is_revised else NEEDS_REVISION
        self._entry_limit = self._policy.entry_limit(header.index_capacity)
        self._time_stop = self._policy.time_limit(header.base_publish_ms, header.created_ms)
        self._segment = segment

    def _set_stops(self, next_entry: int) -> None:
        """Where the fast path ends: untouched pages, slots not reserved, the limits of the ledger."""
        words = self._words
        # 0 sends every append the slow way, which rolls.
        if self._segment is None or words[TopicWord.STATE] & MUST_ROLL:
            self._end_stop = 0
            return
        touched, allocated = words[TOUCHED], words[TopicWord.ALLOCATED]
        end_stop = touched if touched < allocated else allocated
        self._end_stop = end_stop if end_stop < self._size else self._size
        slots = reserved_slots(words[TopicWord.INDEX_ALLOCATED], next_entry)
        self._entry_stop = slots if slots < self._entry_limit else self._entry_limit

    def _is_barred(self, flags: int) -> bool:
        return not self._is_revised and flags & NEEDS_REVISION != 0

    def _refuse_transaction(self) -> NoReturn:
        if self.bars_transactions:
            raise NotAllowedError("a non-persistent topic has no part in transactions")
        raise ValueError("an entry of a transaction is appended with the check that it is open")

    def _room_for(
        self,
        size: int,
        now_ms: int,
        flags: int,
        check_open: Callable[[], object] | None,
        timeout_s: float | None,
    ) -> State:
        """Let an entry of ``size`` bytes be appended that has flags to be looked at, or needs room."""
        is_in_transaction = flags & FLAG_TXN != 0
        if is_in_transaction:
            # The transaction may be aborted behind this check: then the entry is one of an aborted
            # transaction. It is committed only when its operations have ended, those of joined processes by a
            # hold of this lock. So no entry is added to a transaction that was committed.
            try:
                if check_open is None or self.bars_transactions:
                    self._refuse_transaction()
                check_open()
            except BaseException:
                self._words[_OWNER] = 0  # nothing was written, so no repair is due
                raise
        state = self._state
        if (
            state[1] + size > self._end_stop
            or state[2] + 1 >= self._entry_stop
            or now_ms >= self._time_stop
            or (not self._is_revised and self._is_barred(flags))
        ):
            # A new segment needs an id, perhaps the store's lock: a caller that tries, tries that too.
            room_s = self._timeout_s if timeout_s is None else timeout_s
            state = timing.within(room_s, self._make_room, size, now_ms, flags)
        # Before the tail: a reader that sees the entry sees the word. A crash leaves a word that names no
        # entry, which is as good as one that names an entry of a transaction that ended.
        if is_in_transaction and not self._words[_FIRST_OPEN]:
            self._words[_FIRST_OPEN] = state[0]
            if failpoints.ACTIVE:
                failpoints.hit("append:first_open_stored")
        # A signal handler that appended during these calls has cleared it. One that comes later changes the
        # state, and the append begins again.
        self._words[_OWNER] = self._owner
        return state

    def _make_room(self, length: int, now_ms: int, flags: int) -> State:
        """Let an entry of `length` bytes at `now_ms` fit: roll, reserve disk, touch pages, seal index blocks.
        An entry with `NEEDS_REVISION` begins a ledger where the segment has version 1.

        Raises:
            StorageFullError, DescriptorLimitError: no room; nothing changed.
        """
        if self._is_exclusive:
            self._refuse_reentry()
        try:
            self._is_exclusive = True
            # First the roll, which may replace the segment, then room in the one that holds.
            if self._is_barred(flags) or self._full_reason(self._state[1] + length, now_ms) is not None:
                self._roll(length, now_ms, flags)
            self._extend(length)
        except (StorageFullError, DescriptorLimitError) as e:
            # Nothing was written, so no repair is due. Other errors leave the mark, and the next
            # append repairs.
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
        # The word follows the reservation: a crash between wastes blocks, and the other order would
        # let a store hit a hole.
        if end > allocated:
            allocated = grown_allocation(segment, end, allocated, self._options.allocation_step)
            words[TopicWord.ALLOCATED] = allocated
        if end > words[TOUCHED]:
            is_written, in_memory = length > BY_MAP, self._options.is_temporary
            touched = words[TOUCHED]
            words[TOUCHED] = touch(segment, start, end, touched, allocated, is_written, in_memory=in_memory)
        reserved = words[TopicWord.INDEX_ALLOCATED]
        # The block before is sealed here, when it is full and before the first slot of the next is
        # used.
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

    def _roll(self, length: int, now_ms: int, flags: int = 0) -> None:
        self._control.check_in_place()
        self._control.check_words()
        # A topic that needed the version keeps it: its processes would begin a ledger for each other's
        # entries else. The store is raised first, so no release of version 1 opens it from here on.
        version = REVISED_VERSION if flags & NEEDS_REVISION or self._is_revised else FORMAT_VERSION
        if version == REVISED_VERSION:
            self._raise_format(version)
        words, options = self._words, self._options
        tail, end, entry_id, crc, messages, last_ms = self._state
        ledger_id = tail >> 32
        # What the new header records of the old ledger, of the state that the tail word proves.
        previous = Ending(ledger_id, end, entry_id, crc, messages, last_ms) if ledger_id else None
        self._seal_before(entry_id + 1)
        # After a recovery, or a flush that failed, the new header alone says where the old ledger ends: more
        # frames may stand behind that, or come back. One that is merely full ends where its frames end.
        is_demanded = words[TopicWord.STATE] & MUST_ROLL != 0
        first_allocation = options.first_allocation
        if previous is not None:  # the topic has traffic: begin with more than its last ledger needed first
            first_allocation = max(first_allocation, min(options.allocation_step, end))
        is_synced = options.is_rolled_synced or (previous is not None and is_demanded)
        new_id = self._allocate_ledger_id(ledger_id)
        new = options.new_ledger(new_id, now_ms, length, first_allocation, is_synced, version)
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
        # A large first allocation only where it leaves what keeps a full disk usable.
        if new.first_allocation > least:
            if disk.DISK.free_bytes(self._lock.fd) >= new.first_allocation + KEPT_FREE:
                with contextlib.suppress(StorageFullError):  # a quota; no file is left
                    return start(new, previous)
            new = new._replace(first_allocation=least)
        return start(new, previous)

    def let_go(self, segment: Segment) -> bool:
        """Unmap to make room in the cache, unless an append is in progress (then False)."""
        try:
            # An append of this process is in progress: the segment may go only if it is not the
            # tail's.
            if not self._lock.enter_alone():
                return self._segment is not segment
            if self._segment is segment:
                self._reset()
            return True
        finally:
            self._lock.release()


failpoints.declare(
    "append:owner_set",
    "append:body_part",
    "append:body_done",
    "append:index_done",
    "append:first_open_stored",
    "append:tail_stored",
    "append:owner_cleared",
    "append:unlocked",
    "append:woken",
)

_WAITERS: Final = TopicWord.WAITERS
_JOURNAL: Final = TopicWord.JOURNAL
_FRAMING: Final = HEADER_SIZE + TRAILER_SIZE
pack_trailer: Final = TRAILER.pack
_pack_front: Final = FRONT.pack
_pack_covered: Final = COVERED.pack
_pack_slot: Final = SLOT.pack


class AppendGuard(Protocol):
    """Appends under a registration that another producer can take away.

    Attributes:
        checked: the topic's journal word at which it was last found registered.
    """

    checked: int

    def check_connected(self) -> None:
        """Follow the journal and bring `checked` up to date. Under the topic lock; raises to refuse."""


class SegmentWriter(AppendPoint):
    """Appends to the tail ledger of a topic, from any number of threads and processes.

    Role: one per process and topic. `append` decides nothing but *where*; roll.py says when a ledger is full,
    and starts the next.
    Invariants: everything between setting the owner word and storing the tail word changes only bytes that
    are never read, so a writer may die at any instruction.
    Callers: any thread; a signal handler of a thread that is inside an append, too.
    Durable: on return an entry survives the death of any process, not a power loss (group_commit.py).
    """

    __slots__ = ()

    def append(
        self,
        entry: EncodedFields,
        guard: AppendGuard | None = None,
        timeout_s: float | None = None,
        hold: AppendHold | None = None,
        check_open: Callable[[], object] | None = None,
    ) -> tuple[int, int, int, int]:
        """Append one entry. About 3 us for a small one without other writers.

        Args:
            entry: its bytes.
            guard: the producer of the entry; asked under the lock whether it may append, when producers came
                or went since it looked last. So a producer that was fenced out cannot append, however late.
            timeout_s: seconds to wait for the lock; None for as long as the options say.
            hold: says that the caller has the lock, and keeps it; see `AppendHold`.
            check_open: of an entry of a transaction, with `FLAG_TXN`: raises if that is not open any more, as
                `Transaction.check_open`. Called under the lock, before anything is written.

        Returns:
            Ledger id, entry id, publish time (ms, never below that of the entry before), and the tail word
            behind the entry.

        Raises:
            StorageFullError, DescriptorLimitError: no room, or no descriptors left; nothing was published,
                and the next append tries again.
            LockTimeout: another process stayed inside the lock.
            TopicTerminated, TopicNotFound, AlreadyClosed: nothing can be appended here any more.
            StoreGoneError: the store was removed, moved or replaced.
            InvalidTxnStatusError: of ``check_open``; nothing was published.
            NotAllowedError: the topic is non-persistent, and the entry one of a transaction.
        """
        lock = self._lock if hold is None else hold
        rung = None
        try:
            lock.acquire(self._timeout_s if timeout_s is None else timeout_s)
            words, wall_ns = self._words, self._wall_ns  # a local is called in half the time of an attribute
            if guard is not None and words[_JOURNAL] != guard.checked:
                guard.check_connected()
            state = self._state
            tail, start, entry_id, crc, messages, now = state
            if words[_OWNER] or words[_TAIL] != tail:
                tail, start, entry_id, crc, messages, now = state = self._refresh()
            now_ns = wall_ns()
            if not self._looked_ns <= now_ns < self._look_by_ns:  # or the clock was set back
                status = fstat(self._lock.fd)
                if status.st_ino != self._lock.inode:
                    raise descriptors.lost(self._lock.path)
                if not self._looked_ns <= now_ns < self._place_by_ns or not status.st_nlink:
                    self._look_at_place(now_ns)
                self._wall_ms = wall = now_ns // 1_000_000
                next_ms, next_look = (wall + 1) * 1_000_000, now_ns + LOOK_NS
                self._looked_ns, self._look_by_ns = now_ns, next_ms if next_ms < next_look else next_look
            # 1. Say that we are inside. A crash up to step 4 leaves a nonzero owner and nothing visible.
            words[_OWNER] = self._owner
            active = failpoints.ACTIVE
            if active:
                failpoints.hit("append:owner_set")
            wall = self._wall_ms
            if wall > now:
                words[_LAST_PUBLISH_MS] = now = wall
            parts, size, body_crc, count, metadata_length, codec, flags, key_hash = entry
            length = size + _FRAMING
            entry_id += 1
            end = start + length
            if (
                end > self._end_stop
                or entry_id >= self._entry_stop
                or now >= self._time_stop
                or (flags >= FLAG_TXN and flags & self._barred)  # the lowest of them
            ):
                state = self._room_for(length, now, flags, check_open, timeout_s)
                tail, start, entry_id, crc, messages, last = state
                if last > now:  # a signal handler of this thread has appended since the clock was read
                    now = last
                entry_id += 1
                end = start + length
            # All calls, and new slices, come before step 2: from the check there to the commit neither signal
            # handlers run, which do after calls, nor finalizers: up to 3.11 they do where objects are made.
            # `seal` and `pack_slot`, without their calls.
            covered = _pack_covered(
                crc, body_crc, MAGIC, KIND_ENTRY, codec, flags, entry_id, now, count, metadata_length, 0
            )
            crc = crc32(covered, length)
            front = _pack_front(length, crc)
            frame = None
            if length <= self._by_map:
                frame = b"".join((front, covered, *parts, pack_trailer(0, length)))
            else:
                self._write_large(state, start, [front, covered, *parts, pack_trailer(0, length)])
            messages += count
            # Below 0 only if a signal handler has rolled since the clock was read: then step 2 starts again.
            since = now - self._base_ms
            slot = _pack_slot(
                start >> 3,
                since if since > 0 else 0,
                messages,
                key_hash,
                flags >> 16,
                count if count < MAX_COUNT else MAX_COUNT,
                crc,
            )
            slot_start = SLOTS_OFFSET + SLOT_SIZE * entry_id
            place, slot_place = slice(start, end), slice(slot_start, slot_start + SLOT_SIZE)
            if active:
                self._write_part(start, front + covered, parts)
            if self._state is not state:  # a signal handler of this thread appended meanwhile
                return self.append(entry, guard, timeout_s, hold, check_open)
            # 2. The frame, above the tail. A crash leaves garbage that the next append overwrites.
            if frame is not None:
                self._log[place] = frame
            if active:
                failpoints.hit("append:body_done")
            # 3. The index slot. A crash leaves a slot beyond the last entry, which is never read.
            self._index[slot_place] = slot
            if active:
                failpoints.hit("append:index_done")
            # 4. THE commit: one store. From here on the entry exists, whatever happens to us.
            words[_TAIL] = tail = tail + (length >> 3)
            self._state = (tail, end, entry_id, crc, messages, now)
            if active:
                failpoints.hit("append:tail_stored")
            # 5. Outside again.
            words[_OWNER] = 0
            if active:
                failpoints.hit("append:owner_cleared")
            # 6. The waiters are read under the lock under which they announce themselves: none can be missed.
            if words[_WAITERS]:
                rung = self._waiters.take_all()
        except ValueError:
            if self._is_closed:  # lock and words are gone
                raise AlreadyClosed("the topic is closed") from None
            raise
        finally:
            release = lock.release
            release()
        if active:
            failpoints.hit("append:unlocked")
        # 7. A crash before this costs the sleepers their back-stop, 100 ms.
        if rung and hold is not None:
            hold.rung += rung
        elif rung:
            for uuid in rung:
                if not self._bell(uuid):
                    self._ring.others([uuid])
            if active:
                failpoints.hit("append:woken")
        return tail >> 32, entry_id, now, tail

    def append_run(
        self,
        entries: Sequence[EncodedFields],
        hold: AppendHold,
        stored: Stored,
        check_open: Callable[[], object] | None = None,
    ) -> None:
        """Append entries one after the other: those that fit together are written and committed at once.

        Args:
            entries: their bytes.
            hold: says that the caller has the lock; see `AppendHold`.
            stored: gets the ledger id, the entry id and the tail word behind each entry that is stored. An
                error is that of the entry after them.
            check_open: as for `append`; the entries are all of this one transaction then.

        Raises: as `append`.
        """
        while len(stored) < len(entries):
            is_possible, entry = True, entries[len(stored)]
            if check_open is not None:
                check_open()
                is_possible = self._is_revised and not self.bars_transactions
            barred = self._barred if check_open is None else 0
            if not is_possible or not self._append_together(entries[len(stored) :], hold, stored, barred):
                ledger_id, entry_id, _, word = self.append(entry, None, None, hold, check_open)
                stored.append((ledger_id, entry_id, word))

    def _append_together(
        self, entries: Sequence[EncodedFields], hold: AppendHold, stored: Stored, barred: int
    ) -> bool:
        """Append the first entries, with the order of writes of `append`; False if `append` has to do it.
        Those with a flag that is ``barred`` are not among them; 0 for entries of a transaction.
        """
        words, state, now_ns = self._words, self._state, self._wall_ns()
        # Each condition that `append` treats in a slow way ends the run here; `append` takes the next entry.
        tail, start, entry_id, crc, messages, now = state
        if self._is_closed or words[_OWNER] or words[_TAIL] != tail:
            return False
        now = max(now, now_ns // 1_000_000)
        if not self._looked_ns <= now_ns < self._look_by_ns or not self._base_ms <= now < self._time_stop:
            return False
        first, end, since, ledger_id = entry_id + 1, start, now - self._base_ms, tail >> 32
        limit = min(start + BY_MAP, self._end_stop)
        frames: list[bytes] = []
        slots: list[bytes] = []
        appended: list[tuple[int, int, int]] = []
        for parts, size, body_crc, count, metadata_length, codec, flags, key_hash in entries:
            length = size + _FRAMING
            # What does not fit below the limits is left to the next round.
            if end + length > limit or entry_id + 1 >= self._entry_stop or flags & barred:
                break
            entry_id += 1
            covered = _pack_covered(
                crc, body_crc, MAGIC, KIND_ENTRY, codec, flags, entry_id, now, count, metadata_length, 0
            )
            crc = crc32(covered, length)
            frames += (_pack_front(length, crc), covered, *parts, pack_trailer(0, length))
            messages += count
            slots.append(
                _pack_slot(end >> 3, since, messages, key_hash, flags >> 16, min(count, MAX_COUNT), crc)
            )
            end += length
            tail += length >> 3
            appended.append((ledger_id, entry_id, tail))
        frame, slot = b"".join(frames), b"".join(slots)
        begin = SLOTS_OFFSET + SLOT_SIZE * first
        place, slot_place = slice(start, end), slice(begin, begin + len(slot))
        active = failpoints.ACTIVE
        if not appended or self._state is not state:  # a signal handler of this thread appended meanwhile
            return False
        # From the last check to the store of the tail nothing is called or made, as in `append`.
        words[_OWNER] = self._owner
        if active:
            failpoints.hit("append:owner_set")
        if self._by_map < 0:
            self._write_large(state, start, [frame])
            if self._state is not state:  # as above: the frame lies behind the tail, or was written over
                return False
        words[_LAST_PUBLISH_MS] = now
        if not barred and not words[_FIRST_OPEN]:  # see `_room_for`
            words[_FIRST_OPEN] = state[0]
            if active:
                failpoints.hit("append:first_open_stored")
        if self._by_map >= 0:
            self._log[place] = frame
        if active:
            failpoints.hit("append:body_done")
        self._index[slot_place] = slot
        if active:
            failpoints.hit("append:index_done")
        words[_TAIL] = tail
        self._state = (tail, end, entry_id, crc, messages, now)
        if active:
            failpoints.hit("append:tail_stored")
        words[_OWNER] = 0
        stored += appended
        if words[_WAITERS]:
            hold.rung += self._waiters.take_all()
        hold.release()
        return True

    def hold(self) -> AppendHold:
        """A hold for several appends in one hold of the lock."""
        return AppendHold(self._ring)

    def _write_part(self, start: int, header: bytes, parts: list[bytes]) -> None:
        """For tests: leave a torn frame and stop."""
        torn = b"".join((header, *parts))
        torn = torn[: len(torn) // 2]
        self._log_file().pwrite([torn], start)
        failpoints.hit("append:body_part")

    def _write_large(self, state: State, start: int, buffers: list[bytes]) -> None:
        try:
            self._is_exclusive = True
            if self._state is state:
                self._log_file().pwrite(buffers, start)
        except StorageFullError:
            self._words[_OWNER] = 0  # nothing was published
            raise
        finally:
            self._is_exclusive = False

    def _log_file(self) -> MappedFile:
        if self._segment is None:
            raise AlreadyClosed("the topic was closed during an append")
        return self._segment.file

    def roll(self) -> int:
        """Start a new ledger now; return its id. An empty tail ledger is kept."""
        try:
            self._lock.acquire(self._timeout_s)
            # An empty ledger is not closed: it would be one without entries in the chain.
            words = self._words
            if words[_OWNER] or words[_TAIL] != self._state[0]:
                self._refresh()
            if self._state[2] >= 0:
                self._roll_now()
            return int(words[_TAIL]) >> 32
        finally:
            self._lock.release()

    def _roll_now(self) -> None:
        if self._is_exclusive:
            self._refuse_reentry()
        try:
            self._is_exclusive = True
            self._words[_OWNER] = self._owner
            self._roll(0, max(self._wall_ns() // 1_000_000, self._state[5]))
            self._set_stops(0)
            self._words[_OWNER] = 0
        except (StorageFullError, DescriptorLimitError):
            self._words[_OWNER] = 0
            raise
        finally:
            self._is_exclusive = False

    def rebind(self, ring: Ringing) -> None:
        """Wake other processes by another mailbox from now on."""
        self._waiters, self._ring, self._bell = ring.waiters, ring, ring.bell

    def after_fork_in_child(self) -> None:
        """Take the process id of the child. The maps are shared and remain valid."""
        self._owner = getpid() << 32

    def close(self) -> None:
        """Refuse further appends and drop the maps. Waits for an append of this process that is in progress.

        Not for other processes: one that is stopped inside the lock must not keep this one from ending.
        """
        try:
            self._lock.keep_threads_out(self._timeout_s)
            self._is_closed = True
            self._reset()
        finally:
            self._lock.release()
