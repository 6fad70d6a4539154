"""A topic's log as everything above sees it: positions, entries, durability, waiting.

The log of a non-persistent topic: ledgers that turn like a ring, and begin anew with every boot.
"""

from __future__ import annotations

import contextlib
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.control import TopicWord, split_tail
from embeddedpulsar._engine.format.entry import EncodedEntry
from embeddedpulsar._engine.format.frame import SlotColumns
from embeddedpulsar._engine.log.group_commit import GroupCommit
from embeddedpulsar._engine.log.log_opening import (
    FLUSH,
    INTERVAL,
    PROCESS,
    DamageLog,
    LedgerOptions,
    open_topic,
    writer_options,
)
from embeddedpulsar._engine.log.log_positions import (
    ChunkAssembler,
    entries_between,
    find_by_publish_time,
    messages_after,
    messages_between,
)
from embeddedpulsar._engine.log.log_view import LogView, MaxReadPosition, Outcomes, ReadableView
from embeddedpulsar._engine.log.segment_reader import EntryCursor
from embeddedpulsar._engine.log.segment_writer import AppendGuard, SegmentWriter
from embeddedpulsar._engine.log.segments import SEGMENTS, ClosedLedger
from embeddedpulsar._engine.log.topic_control import ATTENTION, TERMINATED, TopicControl
from embeddedpulsar._engine.log.trimming import EVERYTHING, Trimming, remove_trimmed
from embeddedpulsar._engine.log.waiter_slots import OnlookerWait, Ringing, TailWait
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, fork
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import Clock, SchedulerLike
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.exceptions import AlreadyClosed, CorruptionError, LockTimeout, StoreGoneError
from embeddedpulsar.message_id import Isolation, Position
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.topic_name import NON_PERSISTENT

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.log.log_survey import LedgerStatistics, LogSurvey
    from embeddedpulsar._engine.log.segment_snapshot import SegmentInfo


_TAIL: Final = TopicWord.TAIL
_FIRST_OPEN: Final = TopicWord.FIRST_OPEN_TXN
_SETTLE_S: Final = 2e-3
_FEW: Final = 8
"""Entries that are read in less time than the index is asked and verified."""


class ManagedLedger:
    """The endless log of one topic, cut into ledgers, shared with every process that opens its directory.

    Role: one per process and topic directory; producers append, cursors read, housekeeping trims.
    Invariants: entries appear in the order of their positions and publish times, all at once and for ever
    (until trimmed). Ids are never given out twice, not even after a recovery.
    Callers: any thread. After a fork the child may continue to append and read; it must `rebind` to its
    own mailbox before it waits.
    Durable: what `append` promises at its level (`LedgerOptions.durability`); of a non-persistent topic, and
    of a store in memory, nothing.
    """

    def __init__(
        self,
        name: str,
        view: LogView,
        writer: SegmentWriter,
        commit: GroupCommit,
        waits: TailWait,
        damage: DamageLog,
        options: LedgerOptions,
    ) -> None:
        self.name: Final = name
        self.view: Final = view
        self.words: Final = view.words  # for the topic's journal, too
        self.chunks: Final = partial(ChunkAssembler, view)  # makes what puts chunked messages together
        self.is_volatile: Final = name.startswith(NON_PERSISTENT)
        self._is_flushed: Final = not (self.is_volatile or options.is_temporary)
        self._is_closed = False
        self.directory: Final = view.directory
        # What figures and positions are asked of: as far as the log can be read.
        self._readable: Final = view if view.max_read is None else ReadableView(view, view.max_read)
        self.options: Final = options
        self.lock: Final = view.lock  # for the topic's journal, too
        self.waits: Final = waits
        self._control: Final = view.control
        self._writer: Final = writer
        self._commit: Final = commit
        self._damage: Final = damage
        self._durability: Final = options.durability
        # Bound once: the paths of a send and a receive pass here, and each attribute between costs as
        # much as a call.
        self.check_in_place, self.is_in_place = view.control.check_in_place, view.control.place_check
        self._is_dirty = False
        self._own_scheduler: SchedulerLike | None = None
        self._ring: Ringing
        SEGMENTS.allow(options.max_open_segments)
        # What a store in memory or a non-persistent topic gives up need not be durable before it is
        # removed.
        remove = partial(remove_trimmed, view.directory, view.control, is_durable=self._is_flushed)
        self.trimming: Final = Trimming(view.control, view.lock, view, view.timeout_s, remove)
        # Through attributes, so that the layers above may put something else there while the log is
        # open.
        self.on_rolled: Callable[[], object] = lambda: self.trimming.suggest()
        writer.on_rolled = lambda: self.on_rolled()
        writer.on_full = lambda: self.trimming.relieve()
        writer.bars_transactions = self.is_volatile
        # The writer's own methods: an append from above is one call.
        self.hold, self.append_nowait, self.append_run = writer.hold, writer.append, writer.append_run
        """Append without waiting for durability: (ledger, entry, publish ms, word for `wait_durable`)."""
        fork.register(self)

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        name: str,
        incarnation: int,
        store_id: bytes,
        allocate_ledger_id: Callable[[int], int],
        mailbox: Mailbox,
        peers: Peers,
        options: LedgerOptions,
        clock: Clock,
        scheduler: SchedulerLike | None = None,
        damage: DamageHook | None = None,
        raise_format: Callable[[int], object] = int,
        outcomes: Outcomes | None = None,
    ) -> ManagedLedger:
        """Open the log of a topic; recover it first if its control words are of another boot or damaged.

        Some 0.1 ms, whatever the topic holds; a recovery reads the last two minutes of log.

        Args:
            directory: the topic's; must exist.
            name: for messages.
            incarnation: which life of the topic this is.
            store_id: of the store, for new segments.
            allocate_ledger_id: returns a ledger id never returned before in the store, above its argument.
                Called under the topic lock.
            mailbox, peers: how this process waits, and wakes others.
            options: layout and durability.
            clock: stamps entries.
            scheduler: runs the syncs of level "interval"; one of its own if None.
            damage: called with what cannot be read, outside all locks; it is logged if None.
            raise_format: called under the topic lock before a segment of a later version begins, with the
                version that the store needs from then on.
            outcomes: of transactions; without them, entries of transactions count as any other.

        Raises:
            FileNotFoundError: the directory is gone.
            StorageError: it belongs to another incarnation, or the segments contradict each other.
            LockTimeout: another process stayed in the topic lock.
        """
        # A store passes its scheduler; a log that is opened alone has one of its own, which ends with
        # it.
        own_scheduler = scheduler if scheduler is not None else clock.scheduler()
        # First the control words, which may need a recovery. Nothing below reads a file: segments are
        # mapped when they are asked for, so opening takes the same time whatever the topic holds.
        topic = open_topic(directory, name, incarnation, options, own_scheduler, damage)
        control, lock, timeout_s = topic.control, topic.lock, options.lock_timeout_s
        with contextlib.ExitStack() as undo:
            undo.callback(topic.close)
            view_type, waits_type = _types(options)
            view = view_type(directory, control, lock, timeout_s, topic.damage.report)
            if outcomes is not None and not name.startswith(NON_PERSISTENT):
                view.max_read = MaxReadPosition(view, outcomes)
            # Writer and waiters share the slots of the topic; the writer rings, a waiter asks for it.
            ring = Ringing(control.words, lock, peers)
            writer = SegmentWriter(
                control,
                lock,
                ring,
                writer_options(options, store_id, incarnation),
                wall_ns=clock.wall_ns,
                allocate_ledger_id=allocate_ledger_id,
                report=topic.damage.report,
                raise_format=raise_format,
            )
            commit = GroupCommit(
                view,
                interval_s=options.interval_ms / 1000,
                wall_ms=clock.wall_ms,
                schedule=own_scheduler.call_later,
            )
            # A waiter that wakes for nothing looks whether a sync of another process is overdue.
            waits = waits_type(control.words, lock, ring, mailbox, timeout_s, commit.help_if_overdue)
            waits.max_read = view.max_read
            # From here on the object owns everything: `close` undoes it.
            ledger = cls(name, view, writer, commit, waits, topic.damage, options)
            ledger._ring = ring
            if scheduler is None:
                ledger._own_scheduler = own_scheduler
            undo.pop_all()
            return ledger

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<ManagedLedger {self.name} closed>"
        return "<ManagedLedger {} ledger={} end={}>".format(self.name, *self._control.tail_position)

    @property
    def is_derived(self) -> bool:
        """Whether the log may not be written, and its end was found by its segments; see `DerivedControl`."""
        return self._control.is_derived

    # -- writing -------------------------------------------------------------------------------------------

    def append(
        self,
        entry: EncodedEntry,
        durability: str | None = None,
        guard: AppendGuard | None = None,
        check_open: Callable[[], object] | None = None,
    ) -> tuple[int, int, int]:
        """Append one entry and return its ledger id, entry id and publish time in ms.

        At level "process" it survives the death of any process when this returns, at "flush" a power loss,
        at "interval" a power loss a second later. Thread- and process-safe; about 3 us at level "process".

        Raises:
            StorageFullError: no room; nothing was published.
            PoisonedSegment: published, but the flush failed.
            LockTimeout, TopicTerminated, TopicNotFound, AlreadyClosed, InvalidTxnStatusError: see
                `SegmentWriter.append`.
        """
        ledger_id, entry_id, publish_ms, end_word = self.append_nowait(entry, guard, None, None, check_open)
        level = durability or self._durability
        # The level "process" needs nothing more: the entry is in the page cache, which outlives
        # processes.
        if level != PROCESS:
            if level == FLUSH:
                self.wait_durable(end_word)
            elif level == INTERVAL:
                self.note_dirty()
            else:
                raise ValueError(f"durability must be process, interval or flush, not {level!r}")
        return ledger_id, entry_id, publish_ms

    def wait_durable(self, end_word: int) -> None:
        """Wait until everything before `end_word` (from `append_nowait`) survives a power loss.

        Raises:
            PoisonedSegment, AlreadyClosed: a flush failed, or it was closed. The entries may not survive.
        """
        self._check_open()
        if self._is_flushed:
            self._commit.wait_durable(end_word)

    def note_dirty(self) -> None:
        """An entry of level "interval" was appended by `append_nowait`."""
        if self._is_flushed:
            # Remembered for `close`, which syncs what this process left.
            self._is_dirty = True
            self._commit.note_dirty()

    def sync(self) -> None:
        """Make everything appended so far, by any process, survive a power loss."""
        self._check_open()
        if self._is_flushed:
            self._commit.sync()

    def sync_if_due(self) -> bool:
        """Do the sync that a dead process of level "interval" left undone."""
        self._check_open()
        return self._commit.sync_if_due()

    def roll(self) -> int:
        """Start a new ledger now and return its id; an empty tail ledger is kept."""
        self._check_open()
        return self._writer.roll()

    def trim_before(self, ledger_id: int) -> int:
        """Remove the ledgers before `ledger_id`, never the tail's; return how many segments went."""
        self._check_open()
        # What must be remembered is saved first, then the point moves, then files go.
        trimming = self.trimming
        trimming.give_up(trimming.snapshot_before(ledger_id, None), trimming.rewind_count())
        return trimming.remove(EVERYTHING, math.inf)

    def terminate(self) -> Position | None:
        """Refuse all appends until the next reboot (the topic's journal remembers it beyond)."""
        self._check_open()
        self._control.demand_under(self.lock, self.view.timeout_s, TERMINATED)
        return self.last_position()

    # -- reading -------------------------------------------------------------------------------------------

    def cursor(
        self, position: Position, *, inclusive: bool, isolation: int = Isolation.COMMITTED
    ) -> EntryCursor:
        """A cursor whose next entry is that at `position`, or (not `inclusive`) the one behind it."""
        self._check_open()
        return EntryCursor(self.view, position, inclusive=inclusive, isolation=isolation)

    def find_by_publish_time(self, publish_ms: int) -> Position:
        self._check_open()
        return find_by_publish_time(self.view, publish_ms)

    def sequence_ids(
        self,
        wanted: Iterable[str] | None,
        end_word: int,
        floor_word: int,
        on_progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """The highest sequence id of each producer between two tail words; see `SequenceScan`."""
        self._check_open()
        if end_word == floor_word or not split_tail(end_word)[0]:
            return {}  # nothing was appended since: most openings, which need no survey then
        with late_imports():
            from embeddedpulsar._engine.log.log_survey import SequenceScan
        return SequenceScan(self.view, wanted, on_progress).run(end_word, floor_word)

    @property
    def tail(self) -> int:
        """The tail word: it differs from what it was when something was appended, or a ledger begun."""
        try:
            return self.words[_TAIL]
        except ValueError:
            raise AlreadyClosed(f"{self.name} is closed") from None

    def reaches(self, word: int) -> bool:
        """Whether the log goes as far as when its tail word was ``word``: a recovery may have cut it."""
        # A ledger that was trimmed is behind us, so the log went as far.
        ledger_id, end = split_tail(word)
        return ledger_id < self.words[TopicWord.TRIM] or self.view.end_of(ledger_id) >= end

    def first_position(self) -> Position:
        """The first retained entry, or where it will be; (0, 0) before the first ledger."""
        self._check_open()
        # Ledgers without an entry are left by a roll without traffic, and are passed over.
        chain = self.view.chain()
        for closed in chain.closed:
            if closed.last_entry_id >= 0:
                return Position(closed.ledger_id, 0)
        return Position(chain.tail_ledger, 0)

    def last_position(self) -> Position | None:
        """See `Log`."""
        return self._last_position(self.view)

    def max_read_position(self) -> Position | None:
        """See `Log`."""
        return self._last_position(self._readable)

    def last_readable(self) -> Position | None:
        """See `Log`."""
        last, max_read = self._last_position(self._readable), self.view.max_read
        return last if last is None or max_read is None else max_read.last_committed(last)

    def _last_position(self, view: LogView) -> Position | None:
        """The last entry of a view, trimmed or not."""
        self._check_open()
        # Each further pass means that the ledger which was the tail's has been left and trimmed meanwhile.
        while True:
            chain = view.chain()
            tail_ledger = chain.tail_ledger
            if not tail_ledger:
                return None
            # The tail's ledger, else the newest closed one that has an entry, else what the tail's header
            # remembers of the ledger before it, which may be trimmed.
            last, _ = view.extent(tail_ledger)
            if last >= 0:
                return Position(tail_ledger, last)
            if view.is_trimmed(tail_ledger):
                continue
            for closed in reversed(chain.closed):
                if closed.last_entry_id >= 0:
                    return Position(closed.ledger_id, closed.last_entry_id)
            try:
                previous = view.trimmed_before(tail_ledger)
            except FileNotFoundError:
                continue
            return Position(*previous) if previous is not None else None

    def ended_before(self, ledger_id: int) -> Position | None:
        """See `Log`."""
        self._check_open()
        try:
            previous = self.view.trimmed_before(ledger_id)
        except (FileNotFoundError, CorruptionError):
            return None
        return Position(*previous) if previous is not None else None

    def upcoming(self, position: Position, max_messages: int, max_bytes: int) -> SlotColumns | None:
        """See `Log`. About 10 us, and 0.1 us per entry."""
        self._check_open()
        view = self.view
        ledger_id, first = position
        try:
            # Few entries are read sooner than the index is verified for them.
            last, _ = view.extent(ledger_id)
            if first < 0 or last - first < _FEW:
                return None
            # An estimate by the first entry: so many slots are looked at, not all of the ledger.
            each = view.slot(ledger_id, first).count or 1
            entries = min(last + 1 - first, -(-max_messages // each))
            columns = view.slots(ledger_id, first, first + entries)
        except (FileNotFoundError, CorruptionError):
            return None
        offsets, messages, hashes, flags, counts = columns
        # Cut at the first entry by which the messages are reached, and at the bytes unless a chunked
        # message is among them.
        stop = bisect_left(messages, messages[0] - counts[0] + max_messages) + 1
        if 0 not in counts:  # parts of chunked messages are not read by those who get the message
            stop = min(stop, bisect_left(offsets, offsets[0] + (max_bytes >> 3)))
        some = slice(max(stop, 1))
        return SlotColumns(offsets[some], messages[some], hashes[some], flags[some], counts[some])

    def columns(self, position: Position, entries: int) -> SlotColumns | None:
        """See `Log`. About 3 us, and 0.1 us per entry."""
        self._check_open()
        ledger_id, first = position
        try:
            return self.view.slots(ledger_id, first, first + entries)
        except (FileNotFoundError, CorruptionError):
            return None

    def messages_after(self, position: Position) -> int:
        """See `Log`: from the index."""
        self._check_open()
        return messages_after(self._readable, position)

    def messages_between(self, after: Position, through: Position) -> int:
        """Messages behind `after`, up to and including `through`."""
        self._check_open()
        return messages_between(self.view, after, through)

    def ledgers(self) -> list[tuple[int, int]]:
        """See `Log`."""
        self._check_open()
        chain = self.view.chain()
        sizes = [(closed.ledger_id, closed.last_entry_id + 1) for closed in chain.closed]
        if chain.tail_ledger:
            sizes.append((chain.tail_ledger, -1))
        return sizes

    def survey(self) -> LogSurvey:
        """See `Log`."""
        self._check_open()
        with late_imports():
            from embeddedpulsar._engine.log.log_survey import LogSurvey
        return LogSurvey(self.view, self._readable)

    def entries_between(self, after: Position, through: Position) -> int:
        """Entries behind `after`, up to and including `through`."""
        self._check_open()
        return entries_between(self.view, after, through)

    def segments(self) -> list[SegmentInfo]:
        """The retained segments, oldest first, with what they hold now."""
        self._check_open()
        with late_imports():
            from embeddedpulsar._engine.log.log_survey import segment_infos
        return segment_infos(self.view)

    def statistics(self) -> LedgerStatistics:
        """A snapshot of sizes and counts."""
        here = (self._writer.rolls, self._commit.syncs, self._damage.count)
        with late_imports():
            from embeddedpulsar._engine.log.log_survey import gathered
        return gathered(self.segments(), self.words, *here)

    @property
    def damage(self) -> DamageHook | None:
        """Called with unreadable stretches of the log (None: they are logged). Settable."""
        return self._damage.hook

    @damage.setter
    def damage(self, hook: DamageHook | None) -> None:
        self._damage.hook = hook

    def aborted_behind(
        self, after: Position, through: Position | None = None, acked: Sequence[tuple[int, int, int]] = ()
    ) -> tuple[int, int]:
        """See `Log`."""
        max_read = self.view.max_read
        if max_read is None:
            return 0, 0
        self._check_open()
        return max_read.aborted_behind(after, through, acked)

    def past_aborted(self, position: Position) -> Position:
        """See `Log`."""
        max_read = self.view.max_read
        return position if max_read is None else max_read.past_aborted(position)

    def settle_transactions(self, timeout_s: float = _SETTLE_S) -> bool:
        """See `Log`. Some 15 us for each entry of a transaction that ended since the last time."""
        words, max_read, rung = self.words, self.view.max_read, list[bytes]()
        try:
            if max_read is None or not words[_FIRST_OPEN]:
                return True
            if max_read.is_any_open():
                max_read.horizon()  # most of the look is made without the lock
            self.lock.acquire(timeout_s)
            # Nested in an append of this thread, the entry of which is about to stand; or a writer died.
            if words[TopicWord.OWNER] not in (0, ATTENTION):
                return False
            # With no open transaction in the store, nothing here waits for one: entries are admitted under
            # this lock, and a transaction has its slot before.
            horizon = max_read.horizon() if max_read.is_any_open() else None
            words[_FIRST_OPEN] = 0 if horizon is None else horizon.word
            if words[TopicWord.WAITERS]:
                rung = self._ring.waiters.take_all()
        except LockTimeout:
            return False
        except ValueError:
            self._check_open()
            raise
        finally:
            self.lock.release()
        for uuid in rung:
            self._ring(uuid)
        return True

    # -- waiting -------------------------------------------------------------------------------------------

    def request_ring(self, seen_tail: int) -> bool:
        """Ask to be rung at the next append; False, and nothing asked, if the tail moved from `seen_tail`.

        The mailbox's generation must have been read before.
        """
        return self.waits.request_ring(seen_tail)

    def wait(self, seen_tail: int, timeout_s: float | None = None) -> bool:
        """Sleep until the tail is not `seen_tail`; False after `timeout_s` seconds (None: for ever)."""
        return self.waits.wait(seen_tail, timeout_s)

    # -- the end -------------------------------------------------------------------------------------------

    def call_on_look(self, listener: Callable[[], object]) -> None:
        self._writer.on_look = listener

    def rebind(self, mailbox: Mailbox, peers: Peers) -> None:
        """Wait and ring through another mailbox: after a fork, the child's own."""
        ring = Ringing(self.words, self.lock, peers)
        self._ring = ring
        self.waits.rebind(ring, mailbox)
        self._writer.rebind(ring)

    def after_fork_in_child(self) -> None:
        """Maps and files are shared with the parent and stay; identity, locks and timers are new."""
        self._writer.after_fork_in_child()
        self._commit.after_fork_in_child()
        self.view.after_fork_in_child()

    def close(self) -> None:
        """Give files and maps back; at level "interval", sync first. Idempotent; cursors end too."""
        # Order: a last sync while files are open, then no new append, the timer, the waiter's slot,
        # the maps, the lock.
        if self._is_closed:
            return
        try:
            if self._is_dirty:
                with contextlib.suppress(StoreGoneError):  # nothing is left to sync
                    self._commit.sync()
        finally:
            self._is_closed = True
            # The bound method of the writer would touch words that are unmapped.
            self.append_nowait = self._refuse
            self._commit.close()
            self.waits.close()
            self._writer.close()
            SEGMENTS.drop(self._control.home)
            SEGMENTS.allow(-self.options.max_open_segments)
            self.lock.close()
            self._control.close()
            if self._own_scheduler is not None:
                self._own_scheduler.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosed(f"{self.name} is closed")

    def _refuse(self, *_: object, **__: object) -> tuple[int, int, int, int]:
        raise AlreadyClosed(f"{self.name} is closed")


def _types(options: LedgerOptions) -> tuple[type[LogView], type[TailWait]]:
    """The classes of the read side of a log, and of waiting for it."""
    if options.refusal is None:
        return LogView, TailWait
    with late_imports():
        from embeddedpulsar._engine.log.log_opening import ReadOnlyLogView
    return ReadOnlyLogView, OnlookerWait


_LEDGERS: Final = 4
"""Ledgers in a full ring, the tail's among them: a quarter of the messages goes at once."""
_SMALLEST: Final = 8 << 10
_LONGEST_MS: Final = 1 << 40
_KEPT: Final = frozenset(
    (filenames.LOCK, filenames.TOPIC_META, filenames.POLICIES, filenames.SCHEMAS, filenames.CONTROL)
)

failpoints.declare("ring:point_stored", "ring:turned", "ring:emptied")


def volatile_options(options: LedgerOptions, ring_size: int) -> LedgerOptions:
    """The options of a log that keeps ``ring_size`` bytes, in memory as far as the system has it.

    Example:
        >>> volatile_options(LedgerOptions(durability="flush"), 16 << 20)[:1]
        (4194304,)
    """
    size = max(min(ring_size // _LEDGERS, options.segment_size), _SMALLEST)
    return options._replace(
        segment_size=size,
        first_allocation=min(options.first_allocation, size),
        max_age_ms=_LONGEST_MS,
        durability=PROCESS,
    )


class LedgerRing:
    """Gives up the oldest ledgers of a log whenever another one begins, whatever was acknowledged.

    Role: the trimming of a non-persistent topic, by the process that appends. Invariants: the closed ledgers
    that stay are together at most three times as large as a ledger becomes; the tail's always stays. A reader
    that has a ledger mapped reads it to its end, and continues with the first that stays.
    Callers: `drop_oldest` under the topic lock.

    Args:
        words: of the topic.
        view: the ledgers.
        size: bytes of a full ledger.
        remove: removes the files, or entries, of what was given up.
    """

    def __init__(self, words: memoryview, view: LogView, size: int, remove: Callable[[], object]) -> None:
        self._words: Final = words
        self._view: Final = view
        self._room: Final = (_LEDGERS - 1) * size
        self._remove: Final = remove

    def drop_oldest(self) -> None:
        """Give up what is more than there is room for."""
        # Under the topic lock, in the process that rolled. From the newest closed ledger backwards as
        # long as there is room.
        chain = self._view.chain()
        point, room = chain.tail_ledger, self._room
        for ledger in reversed(chain.closed):
            room -= _size(ledger)
            if room < 0:
                break
            point = ledger.ledger_id
        # Nothing new to give up: the point never goes back.
        words = self._words
        if point <= words[TopicWord.TRIM] or not chain.closed:
            return
        # A process that dies behind this store leaves files below the point; the next turn removes them.
        words[TopicWord.TRIM] = point
        failpoints.hit("ring:point_stored")
        self._remove()
        failpoints.hit("ring:turned")


def _size(ledger: ClosedLedger) -> int:
    return ledger.end_offset


def open_volatile_ledger(directory: str, *, options: LedgerOptions, **rest: Any) -> ManagedLedger:
    """Open the log of a non-persistent topic in a directory; arguments as of `ManagedLedger.open`.

    What another boot left, or was copied, is removed first.
    """
    # A process that may only read leaves what is there; its own view of it is empty (`read_control`).
    if options.refusal is None:
        _begin_anew(directory, options)
    ledger = ManagedLedger.open(directory, options=options, **rest)
    remove = partial(remove_trimmed, directory, ledger.view.control, EVERYTHING, math.inf, is_durable=False)
    ledger.on_rolled = LedgerRing(ledger.words, ledger.view, options.segment_size, remove).drop_oldest
    return ledger


def _begin_anew(directory: str, options: LedgerOptions) -> None:
    """Remove the log, the producers and the subscriptions of an earlier boot, if that is what is there."""
    if _is_current(directory, options.boot_id):
        return
    # The usual case took no lock. Of several processes that start after a boot, one empties the
    # directory.
    lock = FileLock(filenames.lock_path(directory))
    try:
        lock.acquire(options.lock_timeout_s)
        if _is_current(directory, options.boot_id):
            return  # another process was faster
        for name in descriptors.names_in(directory):
            if name not in _KEPT:
                _empty(os.path.join(directory, name))
        failpoints.hit("ring:emptied")
        # Last: until it is gone, the next process begins with this again.
        with contextlib.suppress(FileNotFoundError):
            disk.DISK.unlink(filenames.control_path(directory))
    finally:
        lock.release()
        lock.close()


def _is_current(directory: str, boot: bytes) -> bool:
    try:
        control = TopicControl.open(directory)
    except FileNotFoundError:
        # Without a control file: a topic that was just made has no ledgers either.
        return not filenames.ledgers_of(descriptors.names_in(directory))
    except CorruptionError:
        return False
    try:
        return control.is_trusted(boot)
    finally:
        control.close()


def _empty(path: str) -> None:
    """Remove a file, or everything in a directory, which stays."""
    if not os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            disk.DISK.unlink(path)
        return
    for name in descriptors.names_in(path):
        inner = os.path.join(path, name)
        if os.path.isdir(inner):
            _empty(inner)
            disk.DISK.rmdir(inner)
        else:
            disk.DISK.unlink(inner)
