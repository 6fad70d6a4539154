"""The compaction of a topic: when it is due, running it in the background, and how the last one ended.

Work on a topic that one process of the store does at a time, in the background: compaction, offloading.

Compacting a topic: one pass finds the newest message of each key, a second one copies these.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import blake2b

from embeddedpulsar._engine.filenames import compacted_path, compaction_lock_path, under_construction
from embeddedpulsar._engine.format.compacted import Block, only_key
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.frame import CODEC_ENCRYPTED, FLAG_CHUNK, FLAG_KEY_ABSENT
from embeddedpulsar._engine.log.compacted_ledger import (
    MOST_ROWS,
    CompactedLedger,
    CompactedLedgers,
    CompactedWriter,
    CompactionRecord,
    horizon_of,
    remove_others,
    rows_of,
)
from embeddedpulsar._engine.log.topic_control import is_deleted
from embeddedpulsar._engine.platform import disk, failpoints, lease, package_log, threads
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import Clock, ThreadLike
from embeddedpulsar.exceptions import (
    CorruptionError,
    LockTimeout,
    NotAllowedError,
    PulsarException,
    StorageError,
)
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Cursor, Log


_INDEX_BITS: Final = 24
_INDEXES: Final = (1 << _INDEX_BITS) - 1
_LONG_KEY: Final = 40
"""Characters of a key that is kept as it is; a digest stands for a longer one."""
_DIGEST_BYTES: Final = 16
_ENTRIES: Final = 1000
_MESSAGES: Final = 100_000
_BYTES: Final = 1 << 20
_FAR: Final = 2000
"""Entries without a survivor over which the second pass jumps rather than reads."""


class Compacted(NamedTuple):
    """What a compaction made.

    Attributes:
        horizon: the last entry it looked at.
        messages: how many it kept.
        removed: how many it left out.
    """

    horizon: Position
    messages: int
    removed: int


class Progress(NamedTuple):
    """How far a compaction is: entries and rows read so far in both passes, of about so many."""

    done: int
    total: int


class Compaction:
    """One compaction of a topic, up to the entry that is the last when it begins.

    Role: reads the compacted ledger that holds and the log behind it, and writes the next compacted ledger.
    `steps` does both passes piece by piece. Takes no lock; the caller holds that for compactions, and keeps
    the log from being trimmed behind the old horizon. Memory: a dictionary entry for each key, and 8 bytes
    for each survivor; nothing per message. A key of more than 40 characters counts by a digest of 16 bytes.
    Callers: one thread.

    Args:
        log: of the topic.
        before: the compacted ledger that holds; None for the first compaction.
        path: of the new one; must not exist.
        incarnation: which life of the topic this is.
        keeps_keyless: whether messages without a key are kept.
    """

    def __init__(
        self, log: Log, before: CompactedLedger | None, path: str, incarnation: int, *, keeps_keyless: bool
    ) -> None:
        self._log: Final = log
        self._before: Final = before
        self._path: Final = path
        self._incarnation: Final = incarnation
        self._keeps_keyless: Final = keeps_keyless
        self._chunks: Final = log.chunks()
        self._start: Final = horizon_of(before)
        self._latest: dict[str | bytes, int] = {}
        self._bases: dict[int, int] = {}
        self._ledger_id = -1
        self._entry_id = self._base = 0
        self._seen = self._done = 0
        self._has_sealed = False
        self._survivors: array[int] = array("Q")
        self._at = self._found = 0
        # Fixed when it begins: what is appended during the passes stays in the log behind the
        # horizon, and so does what waits for a transaction. The cursor leaves out what was aborted.
        last = log.max_read_position() or self._start
        self._horizon: Final = max(last, self._start)
        new = 0
        if self._horizon > self._start:
            new = log.survey().entries_after(self._start)
        # Both passes go through everything once. Entries without a survivor may be jumped over, so it
        # is an upper bound.
        self._total: Final = 2 * ((0 if before is None else before.messages) + new)
        self.result: Compacted | None = None
        """What was made, once `steps` has ended."""

    @property
    def is_needed(self) -> bool:
        """Whether anything was appended since the last compaction."""
        return self._horizon > self._start

    def steps(self) -> Generator[Progress, None, None]:
        """Compact. Each step takes some milliseconds; the new file is complete, and flushed, at the end.

        Raises:
            StorageError: something cannot be read or written, or a survivor was trimmed meanwhile. No file is
                left.
            ImportError: a codec is not installed here.
        """
        # First pass: for each key the number of its newest message. Then only the numbers are kept,
        # sorted, so the second pass compares each entry with the next number and needs no dictionary.
        yield from self._find()
        self._latest.pop("", None)  # an empty key is none
        self._survivors = array("Q", sorted(self._latest.values()))
        self._latest = {}
        writer = CompactedWriter(self._path, self._incarnation)
        is_complete = False
        try:
            # A survivor that was not met was trimmed between the passes. A file that lacks it must
            # not hold.
            yield from self._copy(writer)
            if self._found != len(self._survivors):
                lost = len(self._survivors) - self._found
                raise CorruptionError(
                    path=self._path,
                    reason=f"{lost} messages were removed from the log while it was compacted",
                    remedy="compact the topic again",
                )
            writer.finish(self._horizon)
            self.result = Compacted(self._horizon, writer.messages, max(0, self._seen - writer.messages))
            is_complete = True
        # Also for a caller that gives the generator up half way. The file has no header then, and no
        # document names it.
        finally:
            writer.close()
            if not is_complete:
                with contextlib.suppress(FileNotFoundError):
                    disk.DISK.unlink(self._path)

    def _progress(self, more: int) -> Progress:
        self._done += more
        return Progress(self._done, max(self._done, self._total))

    # -- numbers -------------------------------------------------------------------------------------------

    def _number(self, ledger_id: int, entry_id: int) -> int:
        """A number for an entry that rises with its position, and leaves room for batch indexes. Ledgers are
        numbered on from each other when the first pass meets them, so that few bits do."""
        # Runs of one ledger ask no dictionary. What the first pass numbered stays in `_bases`, so the
        # second gives the same numbers.
        if ledger_id != self._ledger_id:
            base = self._bases.get(ledger_id)
            if base is None:
                base = self._bases[ledger_id] = self._base + self._entry_id + 1
            self._ledger_id, self._base = ledger_id, base
        self._entry_id = entry_id
        return (self._base + entry_id) << _INDEX_BITS

    def _place(self, number: int) -> Position:
        """The entry of a number of the first pass."""
        ledgers, bases = list(self._bases), list(self._bases.values())
        at = bisect_right(bases, number >> _INDEX_BITS) - 1
        return Position(ledgers[at], (number >> _INDEX_BITS) - bases[at])

    # -- the first pass ------------------------------------------------------------------------------------

    def _find(self) -> Iterator[Progress]:
        for block in rows_of(self._before):
            self._find_in_block(block)
            yield self._progress(block.rows)
        for views in self._read(self._log.cursor(self._start, inclusive=False)):
            for view in views:
                self._find_in_entry(view)
            yield self._progress(len(views))

    def _read(self, cursor: Cursor) -> Iterator[list[EntryView]]:
        """The entries of the log up to the horizon."""
        horizon = self._horizon
        # Entries behind the horizon that a read brought along are dropped, not kept for the next
        # compaction.
        while cursor.position <= horizon and (views := cursor.read(_ENTRIES, _MESSAGES, _BYTES)):
            if (views[-1].ledger_id, views[-1].entry_id) > horizon:
                views = [view for view in views if (view.ledger_id, view.entry_id) <= horizon]
            if views:
                yield views

    def _find_in_block(self, block: Block) -> None:
        # A later row of a key replaces an earlier one. Rows of keys with a null are not in the file
        # any more, so each has a value.
        self._seen += block.rows
        self._has_sealed |= block.is_sealed
        keys, latest, ids = None if block.is_sealed else block.content.keys(), self._latest, block.ids
        for row in range(block.rows):
            number = self._number(ids.ledgers[row], ids.entries[row])
            key = None if keys is None else keys[row]
            if key:
                latest[key if len(key) <= _LONG_KEY else _digest(key)] = number | ids.indexes[row]

    def _find_in_entry(self, view: EntryView) -> None:
        count = view.count
        number = self._number(view.ledger_id, view.entry_id)
        # Keys of an encrypted entry cannot be read, so it is kept whole. Its parts in chunks could
        # not be joined without a key.
        if view.codec == CODEC_ENCRYPTED:
            self._seen += 1
            if view.flags & FLAG_CHUNK:
                raise StorageError(
                    reason=f"the message {view.ledger_id}:{view.entry_id} is chunked and encrypted",
                    remedy="a topic with such messages cannot be compacted",
                )
            self._has_sealed = True
            return
        # A part that is not the last, or a message that is damaged: neither counts as the newest of
        # its key.
        if view.flags & FLAG_CHUNK and (not count or self._chunks.try_whole(view) is None):
            return
        self._seen += count
        latest = self._latest
        # The usual case, without a list. A message without a value removes its key, as in Pulsar.
        if count == 1:
            key = only_key(view)
            if key:
                if len(key) > _LONG_KEY:
                    self._set_newest(_digest(key), number, view.offsets[0] < view.offsets[1])
                elif view.offsets[0] < view.offsets[1]:
                    latest[key] = number
                else:
                    latest.pop(key, None)
            return
        # The number has 24 bits for the place in the batch.
        if count > _INDEXES:
            raise StorageError(
                reason=f"the entry {view.ledger_id}:{view.entry_id} has {count} messages",
                remedy=f"a topic with batches of more than {_INDEXES} messages cannot be compacted",
            )
        keys = view.keys()
        if keys is None:
            return
        offsets = view.offsets
        # All keys are there and all values too (offsets that differ): then one `update` does what the
        # loop below does, and later messages of a key win because they come later.
        is_plain = not view.flags & FLAG_KEY_ABSENT and len(set(offsets)) == len(offsets)
        if is_plain and max(map(len, keys)) <= _LONG_KEY:  # type: ignore[arg-type]  # all are there
            latest.update(zip(keys, range(number, number + count), strict=True))  # type: ignore[arg-type]
            return
        for index, key in enumerate(keys):
            if key:
                short = key if len(key) <= _LONG_KEY else _digest(key)
                self._set_newest(short, number | index, offsets[index] < offsets[index + 1])

    def _set_newest(self, key: str | bytes, number: int, has_value: bool) -> None:
        if has_value:
            self._latest[key] = number
        else:
            self._latest.pop(key, None)

    # -- the second pass -----------------------------------------------------------------------------------

    def _copy(self, writer: CompactedWriter) -> Iterator[Progress]:
        for block in rows_of(self._before):
            self._copy_block(writer, block)
            yield self._progress(block.rows)
        cursor = self._log.cursor(self._start, inclusive=False)
        keeps_others = self._keeps_keyless or self._has_sealed
        # Entries without any key, and encrypted ones, may lie anywhere: then nothing is jumped over.
        for views in self._read(cursor):
            for view in views:
                self._copy_entry(writer, view)
            if not keeps_others and not self._jump(cursor):
                break
            yield self._progress(len(views))

    def _jump(self, cursor: Cursor) -> bool:
        """Stand at the next survivor if it is far; False if there is none."""
        # Reading on costs less than finding a place in the index, up to some thousand entries.
        if self._at >= len(self._survivors):
            return False
        place, position = self._place(self._survivors[self._at]), cursor.position
        if place.ledger_id > position.ledger_id or place.entry_id > position.entry_id + _FAR:
            cursor.seek(place)
        return True

    def _copy_block(self, writer: CompactedWriter, block: Block) -> None:
        if block.is_sealed:
            writer.add_sealed(block.content)
            return
        keys, ids = block.content.keys(), block.ids
        # A block that is at least half full and of which every row stays is copied as it is, without
        # decoding. Small blocks are decoded and joined, or each compaction would add one.
        if 2 * block.rows >= MOST_ROWS and self._is_kept_whole(block):
            writer.copy(ids, block.data)
            return
        start = 0
        for view, end in block.entries(0):
            # Rows keep their batch index, by which a message id of the log still names them.
            number = self._number(view.ledger_id, view.entry_id)
            chosen = self._chosen(number, number | _INDEXES)
            for row in range(start, end):
                key = None if keys is None else keys[row]
                if number | ids.indexes[row] in chosen or (self._keeps_keyless and not key):
                    writer.add(view, ids.indexes[row], key)
            start = end

    def _is_kept_whole(self, block: Block) -> bool:
        """Whether every row of a block is a survivor; then these are taken."""
        # `_chosen` has moved on; if rows are missing it is put back, and the block is gone through
        # row by row.
        ids, at = block.ids, self._at
        first, last = (self._number(ids.ledgers[row], ids.entries[row]) | ids.indexes[row] for row in (0, -1))
        if len(self._chosen(first, last)) == block.rows:
            return True
        self._found -= self._at - at
        self._at = at
        return False

    def _chosen(self, first: int, last: int) -> Sequence[int]:
        """The survivors from one number to another."""
        # The pass goes forward, so the search begins where the last one ended.
        survivors, start = self._survivors, self._at
        if start < len(survivors) and survivors[start] < first:
            start = bisect_left(survivors, first, start)
        end = start
        if start < len(survivors) and survivors[start] <= last:
            end = bisect_right(survivors, last, start)
        self._at = end
        self._found += end - start
        return survivors[start:end]

    def _copy_entry(self, writer: CompactedWriter, view: EntryView) -> None:
        # Always kept: it was not read in the first pass.
        if view.codec == CODEC_ENCRYPTED:
            writer.add_sealed(view)
            return
        # A part that is not the last has no message; an entry of a ledger that the first pass did not
        # meet has no survivor.
        if not view.count or view.ledger_id not in self._bases:
            return
        number = self._number(view.ledger_id, view.entry_id)
        # The survivors among the messages of this entry, by the range of their numbers.
        chosen = self._chosen(number, number | _INDEXES)
        if not chosen and not self._keeps_keyless:
            return
        keys = [only_key(view)] if view.count == 1 else view.keys()
        # It was whole in the first pass. Parts that were trimmed since make it a message that is
        # lost, which `steps` reports.
        if view.flags & FLAG_CHUNK:
            whole = self._chunks.try_whole(view)
            if whole is None:
                self._found -= len(chosen)
                return
            view = whole
        # Messages without a key are kept in any number, so each message is looked at; else the
        # survivors alone.
        if self._keeps_keyless:
            kept = {survivor & _INDEXES for survivor in chosen}
            for index in range(view.count):
                key = None if keys is None else keys[index]
                if not key or index in kept:
                    writer.add(view, index, key)
            return
        assert keys is not None
        for survivor in chosen:
            index = survivor & _INDEXES
            writer.add(view, index, keys[index])


def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest()


NOT_RUN: Final = "NOT_RUN"
RUNNING: Final = "RUNNING"
SUCCESS: Final = "SUCCESS"
ERROR: Final = "ERROR"
_LOOKERS_S: Final = 1.0
"""How long the work waits for its lock, which processes that look whether it goes on have for moments."""


class LongRunningProcessStatus(NamedTuple):
    """How the compaction or the offloading of a topic stands.

    Attributes:
        status: ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``.
        last_error: why it failed last; empty if what was tried since succeeded.
    """

    status: str
    last_error: str = ""

    def json(self) -> dict[str, str]:
        """Return the fields by their names in Pulsar."""
        return {"status": self.status, "lastError": self.last_error}


def status_of(is_running: bool, error: str, has_succeeded: bool) -> LongRunningProcessStatus:
    """The status by what the record of the work says. It is read after it was asked whether the work goes on:
    then an end that comes between is in the record."""
    if is_running:
        return LongRunningProcessStatus(RUNNING, error)
    if error:
        return LongRunningProcessStatus(ERROR, error)
    return LongRunningProcessStatus(SUCCESS if has_succeeded else NOT_RUN)


def joint_status(statuses: Iterable[LongRunningProcessStatus]) -> LongRunningProcessStatus:
    """The status of a partitioned topic: ``RUNNING`` or ``ERROR`` if that holds for a partition."""
    order = (RUNNING, ERROR, SUCCESS, NOT_RUN)
    return min(
        statuses, key=lambda status: order.index(status.status), default=LongRunningProcessStatus(NOT_RUN)
    )


Step = tuple[Callable[[], object], Callable[[], object]]
"""What to do, and what to call when it has ended."""


class ExclusiveWork:
    """Does what is asked for, one after the other, in a thread that ends with the last of it. A file
    lock says to all processes that it goes on, and keeps them apart. Callers: any thread.

    Args:
        topic: full name, for the log.
        verb: what is done with the topic, for the log and as the name of the thread.
        lock_path: of the file lock.
        clock: makes the thread.
    """

    def __init__(self, topic: str, verb: str, lock_path: str, clock: Clock) -> None:
        self.progress: tuple[int, int] | None = None
        """What is done in this process, and what there is to do; None if nothing goes on here."""
        self._topic: Final = topic
        self._verb: Final = verb
        self._lock_path: Final = lock_path
        self._clock: Final = clock
        self._lock = threads.RLock()  # guards the four below, and whether there is a `progress`
        self._thread: ThreadLike | None = None
        self._is_wanted = self._is_stopped = False
        self._asked: list[Step] = []

    @property
    def is_to_end(self) -> bool:
        """Whether what goes on is to end where it is: the topic is being closed, and no call asked for it."""
        return self._is_stopped and not self._is_wanted

    def is_running(self) -> bool:
        """Whether any process does it."""
        return self.progress is not None or self._is_locked()

    def is_running_elsewhere(self) -> bool:
        """Whether another process does it. Nothing begins in this one meanwhile: what began between a look at
        `progress` and one at the file would be taken for another process."""
        try:
            self._lock.acquire()
            return self.progress is None and self._is_locked()
        finally:
            self._lock.release()

    def _is_locked(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return lease.is_locked(self._lock_path)
        return False

    def begin(self, work: Callable[[], object], on_end: Callable[[], object], *, is_wanted: bool) -> bool:
        """Work in a thread; or let the one that works by itself do that, too.

        Args:
            work: called under the file lock.
            on_end: called in the thread when that has ended, or another process has the lock.
            is_wanted: whether a call asked for it. `close` waits for the end of it then.

        Returns:
            False if the thread does what was asked for before, or the topic is being closed.
        """
        lock = FileLock(self._lock_path)  # makes the file, which says that there is a status
        try:
            self._lock.acquire()
            is_busy = self.progress is not None
            is_refused = self._is_stopped or (is_busy and (self._is_wanted or not is_wanted))
            if not is_refused:
                self._asked.append((work, on_end))
                self._is_wanted = is_wanted
            if is_refused or is_busy:
                lock.close()
                return not is_refused
            self.progress = (0, 0)
            thread = self._thread = self._clock.thread(lambda: self._run(lock), self._verb)
        finally:
            self._lock.release()
        try:
            thread.start()
        except BaseException:
            lock.close()
            self._give_up(1)
            raise
        return True

    def _run(self, lock: FileLock) -> None:
        try:
            while (request := self._next()) is not None:
                work, on_end = request
                try:
                    self._do(work, lock)
                finally:
                    lock.release()
                    on_end()
        except BaseException:
            self._give_up()
            raise
        finally:
            lock.close()

    def _do(self, work: Callable[[], object], lock: FileLock) -> None:
        try:
            lock.acquire(_LOOKERS_S)
        except LockTimeout:
            text = "%s: another process does this already: %s"
            package_log.info(text, self._topic, self._verb, topic=self._topic)
            return
        work()

    def _next(self) -> Step | None:
        """What to do next; None if nothing is left, and the thread is as good as ended."""
        try:
            self._lock.acquire()
            if self._asked:
                return self._asked.pop(0)
            self.progress, self._is_wanted = None, False
            return None
        finally:
            self._lock.release()

    def _give_up(self, first: int = 0) -> None:
        """End without doing what is left, and call what is to be called then, from that step on."""
        try:
            self._lock.acquire()
            abandoned, self._asked = self._asked[first:], []
            self.progress, self._is_wanted = None, False
        finally:
            self._lock.release()
        for _, on_end in abandoned:
            on_end()

    def close(self) -> None:
        """End what no call asked for, and wait for the rest."""
        try:
            self._lock.acquire()
            self._is_stopped, thread = True, self._thread
        finally:
            self._lock.release()
        if thread is not None and self.progress is not None and not thread.is_current:
            thread.join()

    def abandon(self) -> None:
        """Forget the thread, which does not exist in a forked child."""
        self._lock = threads.renewed(self._lock)
        self._thread = self.progress = None
        self._asked.clear()
        self._is_stopped = True


failpoints.declare("compaction:began", "compaction:renamed")

_REPORT_S: Final = 5.0


class TopicCompaction:
    """Compacts one topic, in whatever process that is asked for or found due, and one at a time in the
    store. Invariants: the log behind the horizon is not trimmed once the topic was compacted, and all of it
    is kept during the first compaction, or while a threshold demands one. A compaction that is ended by the
    closing of the topic, or with its process, has changed nothing.
    Callers: any thread.

    Args:
        ledgers: the compacted ledger that holds.
        log: of the topic.
        threshold: reads the policy.
        settings: says whether messages without a key are kept.
        clock: makes the thread, and measures.
    """

    def __init__(
        self,
        ledgers: CompactedLedgers,
        log: Log,
        threshold: Callable[[], int],
        settings: BrokerSettings,
        clock: Clock,
    ) -> None:
        self.ledgers: Final = ledgers
        lock_path = compaction_lock_path(ledgers.directory)
        self.work: Final = ExclusiveWork(log.name, "compaction", lock_path, clock)
        self.is_running: Final = self.work.is_running
        self._log: Final = log
        self._threshold: Final = threshold
        self._settings: Final = settings
        self._clock: Final = clock
        self.close: Final = self.work.close
        self.abandon: Final = self.work.abandon

    # -- looking -------------------------------------------------------------------------------------------

    def status(self) -> LongRunningProcessStatus:
        """How the compaction of the topic stands."""
        is_running, record = self.is_running(), self.ledgers.record()
        return status_of(is_running, record.error, bool(record.succeeded_ms))

    def marks(self, *, is_forced: bool = False) -> Sequence[Position]:
        """Up to where compaction lets the log be trimmed, as the mark-delete positions of subscriptions.

        Args:
            is_forced: only a compaction that is running counts.
        """
        record = self.ledgers.record()
        if record.file and not is_forced:
            return [record.horizon]
        if not self.is_running() and (is_forced or self._threshold() <= 0):
            record = self.ledgers.record()  # once more: one that just ended is in it
            return [record.horizon] if record.file and not is_forced else []
        return [record.horizon if record.file else BEFORE_FIRST]

    # -- compacting ----------------------------------------------------------------------------------------

    def start(self, on_end: Callable[[], object] = int) -> None:
        """Compact the topic in the background; closing the topic waits for it.

        Args:
            on_end: called when it has ended, in its thread.

        Raises:
            NotAllowedError: a compaction is running, in whatever process.
        """
        if self.is_running() or not self.work.begin(self._compact, on_end, is_wanted=True):
            raise NotAllowedError(f"{self._log.name} is being compacted already; see compaction_status")

    def start_if_due(self) -> None:
        """Compact the topic in the background if as much was appended as the policy says."""
        threshold = self._threshold()
        if not threshold or self.work.progress is not None:
            return
        record = self.ledgers.record()
        horizon = record.horizon if record.file else BEFORE_FIRST
        if self._log.survey().bytes_after(horizon) >= threshold and not self.is_running():
            self.work.begin(self._compact, int, is_wanted=False)

    def _compact(self) -> None:
        ledgers, clock = self.ledgers, self._clock
        begun = clock.monotonic()
        try:
            record = ledgers.record()
        except StorageError as e:  # what cannot be read is not replaced; the status raises the same
            self._log_info("the compaction failed: %s", e)
            return
        try:
            remove_others(ledgers.directory, record)
            # Nothing that was chosen for trimming before this process had the lock may go now.
            self._log.trimming.note_retreat()
            failpoints.hit("compaction:began")
            before = ledgers.open()
            try:
                written = self._write(record, before)
            finally:
                if before is not None:
                    before.close()
            if written is None:
                return
            duration_ms = round((clock.monotonic() - begun) * 1000)
            written = written._replace(succeeded_ms=clock.wall_ms(), duration_ms=duration_ms, error="")
            written.write(ledgers.directory)
            record = written  # of the ledger that holds, whatever fails from here on
            failpoints.hit("compaction:published")
            remove_others(ledgers.directory, written)
        except Exception as e:  # noqa: BLE001 - the status says what it was
            self._note_failure(record, e)
            return
        self._log.trimming.suggest()
        self._log_info("compacted, %d messages kept, %d removed", written.messages, written.removed)

    def _log_info(self, text: str, *values: object) -> None:
        name = self._log.name
        package_log.info(f"%s: {text}", name, *values, topic=name)

    def _write(self, record: CompactionRecord, before: CompactedLedger | None) -> CompactionRecord | None:
        """Write the next compacted ledger, and give it its name; None if that was stopped."""
        ledgers = self.ledgers
        path = compacted_path(ledgers.directory, record.file + 1)
        unfinished = under_construction(path)
        compaction = Compaction(
            self._log,
            before,
            unfinished,
            ledgers.incarnation,
            keeps_keyless=self._settings.topicCompactionRetainNullKey,
        )
        # Nothing was appended since the last compaction: the compacted ledger stays as it is.
        if not compaction.is_needed:
            return record._replace(removed=0)
        steps = compaction.steps()
        reported = self._clock.monotonic()
        # Step by step, so that closing the topic ends it within one step; what was written so far is removed
        # with the next compaction.
        try:
            for progress in steps:
                self.work.progress = progress
                if self.work.is_to_end or is_deleted(self._log.words):
                    return None
                if self._clock.monotonic() - reported > _REPORT_S:
                    reported = self._clock.monotonic()
                    self._log_info("compacting, %d of about %d read", *progress)
        finally:
            steps.close()
        result = compaction.result
        assert result is not None
        size = os.stat(unfinished).st_size
        # Three steps: the file gets its name, the name is made durable, and the record of the caller makes it
        # the compacted ledger that holds. A kill before the record leaves a file that no record names: the
        # compaction before still holds, and the next one removes it.
        disk.DISK.replace(unfinished, path)
        failpoints.hit("compaction:renamed")
        disk.DISK.fsync_dir(ledgers.directory)
        return record._replace(
            file=record.file + 1,
            ledger=result.horizon.ledger_id,
            entry=result.horizon.entry_id,
            messages=result.messages,
            size=size,
            removed=result.removed,
        )

    def _note_failure(self, record: CompactionRecord, error: Exception) -> None:
        if is_deleted(self._log.words):
            return
        self._log_info("the compaction failed: %s", error)
        with contextlib.suppress(PulsarException, OSError):
            record._replace(failed_ms=self._clock.wall_ms(), error=str(error) or repr(error)).write(
                self.ledgers.directory
            )
