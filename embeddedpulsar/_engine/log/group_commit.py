"""Making appended entries durable: many appends, many processes, one flush."""

from __future__ import annotations

import os
from collections.abc import Callable

from embeddedpulsar._engine.filenames import log_path, sync_lock_path
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.topic_control import (
    DIRTY_SINCE_MS,
    FLUSHER,
    FLUSHING,
    MUST_ROLL,
    POISON_FROM,
    POISON_TO,
)
from embeddedpulsar._engine.platform import disk, failpoints, threads, timing
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.lease import hold_number, is_number_held, seems_to_run
from embeddedpulsar._engine.platform.threads import system
from embeddedpulsar._engine.platform.timing import Backoff, Timer, is_idle
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CorruptionError,
    DescriptorLimitError,
    LockTimeout,
    PoisonedSegment,
)
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

failpoints.declare("sync:before", "sync:alone", "sync:after")

_SYNCED: Final = TopicWord.SYNCED
_TAIL: Final = TopicWord.TAIL
_LOW: Final = 0xFFFFFFFF
_NOBODY: Final = -1  # no word has this value
_LONGEST_ALONE_S: Final = 2.0
_FIRST_PAUSE_S: Final = 50e-6
_LONGEST_PAUSE_S: Final = 1e-3
Schedule = Callable[[float, Callable[[], object]], Timer]


class GroupCommit:
    """Flushes a topic's log up to its tail, once for all callers that wait.

    `wait_durable` is for level "flush"; `note_dirty` and a timer for level "interval"; `sync` for both and
    for closing.

    Invariants: one flush of a topic at a time. The synced word rises only in a flush, after every segment
    between its old and its new value was flushed (a roll may lie between). A flush that failed is final: the
    kernel dropped the pages and would report success the second time. Its range is poisoned, before another
    flush begins: a caller that waits for an entry in it gets an error, in every process, and the next append
    starts a new segment.

    The one that flushes is the holder of the sync lock, which stores a number of its own (`FLUSHER`). While
    that word is its own, no other one had the lock, and it flushes without, which saves a pair of ``flock``:
    it stores that it is flushing (`FLUSHING`), and looks at `FLUSHER` again. Another one that gets the lock
    stores its number there first, and then waits for the end of a flush that is under way. So of two, at
    least one sees the other: between the store and the look of either there is a fence. A process that
    was killed in its flush leaves `FLUSHING` behind; one that is stopped there is waited for 2 s. Whether it
    lives, a byte of the sync lock's file says, which it has locked since it became the one that flushes: the
    numbers of processes differ between containers.

    Lock order: sync lock, then topic lock, never the other way round.
    Callers: any thread, without the topic lock.
    """

    def __init__(
        self,
        view: LogView,
        *,
        interval_s: float,
        wall_ms: Callable[[], int],
        schedule: Schedule,
    ) -> None:
        self._lock: FileLock | None = None
        self._view: Final = view
        self._control: Final = view.control
        self._words: Final = view.words
        self._topic_lock: Final = view.lock
        self._timeout_s: Final = view.timeout_s
        self._interval_s: Final = interval_s
        self._wall_ms: Final = wall_ms
        self._schedule: Final = schedule
        self._timer: Timer | None = None
        self._backoff: Final = Backoff()
        self._is_closed = False
        self._failed_from: int | None = None  # of a flush that failed, until its range is poisoned
        self._identity = _NOBODY  # what this one stores as FLUSHER; not inherited by a forked child
        self._mark = 0  # what it stores as FLUSHING: the number of this process, and half of the identity
        self._segment: Segment | None = None  # that of the last flush
        self.syncs = 0
        """Flushes this process did."""
        self.help_if_overdue()

    @property
    def lock(self) -> FileLock:
        """The sync lock. Its file is made by the first flush: most topics are never flushed.

        Raises:
            StoreGoneError: the store was removed, moved or replaced.
            AlreadyClosed: the topic was closed or deleted.
        """
        if self._lock is None:
            self._control.check_in_place()
            directory = self._view.directory
            if self._is_closed or not os.path.isdir(directory):
                raise AlreadyClosed(f"{directory}: the topic was closed or deleted")
            lock = FileLock(sync_lock_path(directory))
            lock.check_reopened = self._control.check_in_place
            lock.close_others = self._forget_identity  # the byte that shows that it lives ends with the file
            # In one step: of two threads that make one, the first one's is that of both.
            self._lock = vars(self).setdefault("_first_lock", lock)
            if self._lock is not lock:
                lock.close()
        return self._lock

    def wait_durable(self, end_word: int) -> None:
        """Return once everything before `end_word`, a tail word, survives a power loss.

        Raises:
            PoisonedSegment: a flush failed, and the entry may not survive.
            LockTimeout: another process stayed in its flush.
            StoreGoneError: the store was removed, moved or replaced.
        """
        words = self._words
        # Without a lock first: another process may have flushed beyond this entry already.
        if words[_SYNCED] < end_word and not self._flush_alone(end_word):
            lock = self.lock
            try:
                lock.acquire(self._timeout_s)
                self._become_flusher()
                if self._failed_from is not None:
                    self._poison(self._failed_from)
                # The process that had the lock may have flushed our entry too.
                if words[_SYNCED] < end_word and not self._is_poisoned(end_word):
                    self._flush()
            finally:
                lock.release()
        self._control.check_in_place()
        if words[POISON_TO] and self._is_poisoned(end_word):
            raise PoisonedSegment(
                path=self._control.path,
                reason="a flush failed, so the entry may not survive a power loss",
                remedy="check the disk, then send the message again: writing continues in a new segment",
            )

    def sync(self) -> None:
        """Make everything appended so far durable, except what is poisoned already."""
        tail = self._view.tail
        if tail and not self._is_poisoned(tail):
            self.wait_durable(tail)
        self._words[DIRTY_SINCE_MS] = 0

    def _is_poisoned(self, end_word: int) -> bool:
        words = self._words
        return bool(words[POISON_FROM] < end_word <= words[POISON_TO])

    def _flush_alone(self, end_word: int) -> bool:
        """Flush without the sync lock if this one had it last; False if the lock is needed.

        The threads of this process take turns by the thread part of the lock: who waited may find that its
        entry was flushed meanwhile.
        """
        words, lock = self._words, self._lock
        if words[FLUSHER] != self._identity or lock is None:
            return False
        let_threads_in = lock.let_threads_in
        try:
            lock.keep_threads_out(self._timeout_s)
            if words[_SYNCED] >= end_word or (words[POISON_TO] and self._is_poisoned(end_word)):
                return True
            # 1. Say that a flush is under way. A crash from here to step 4 lets the next flusher wait until
            # it has found out that this process is gone.
            words[FLUSHING] = self._mark
            try:
                threads.fence()
                # 2. Look again: another one may have got the lock, and have seen no flush. Or its file was
                # closed here.
                if words[FLUSHER] != self._identity or self._failed_from is not None:
                    return False
                if failpoints.ACTIVE:
                    failpoints.hit("sync:alone")
                # 3. Flush, and after a failure poison: both before another flush begins.
                self._flush()
            finally:
                # 4. A process that waits may flush.
                words[FLUSHING] = 0
        finally:
            let_threads_in()
        return True

    def _become_flusher(self) -> None:
        """Store that this one has the sync lock, and wait for a flush without it. Under the sync lock.

        Raises:
            LockTimeout: the flush did not end within the deadline of the call.
        """
        words = self._words
        if self._identity == _NOBODY:
            identity = int.from_bytes(os.urandom(8), "little") >> 1
            hold_number(self.lock.fd, identity & _LOW)
            self._mark = os.getpid() << 32 | identity & _LOW
            self._identity = identity
        if words[FLUSHER] == self._identity:
            return
        words[FLUSHER] = self._identity
        threads.fence()  # without it, the load may run ahead of the store, here and in `_flush_alone`
        flushing = words[FLUSHING]
        if not flushing:
            return
        began, pause_s = system.monotonic(), _FIRST_PAUSE_S
        patience_s = timing.left(self._timeout_s)
        while words[FLUSHING] == flushing and self._lives(flushing):
            waited_s = system.monotonic() - began
            if waited_s >= _LONGEST_ALONE_S:
                break  # it was interrupted, or its number is another process's
            if waited_s >= patience_s:
                words[FLUSHER] = 0  # the next one that gets the lock has to wait as well
                raise LockTimeout(
                    f"{self._view.directory}: process {flushing >> 32} did not end its flush within "
                    f"{patience_s:g} s. Try again, or end that process"
                )
            threads.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if words[FLUSHING] == flushing:
            words[FLUSHING] = 0

    def _lives(self, flushing: int) -> bool:
        """Whether the process that stored `FLUSHING` may still be there. Under the sync lock."""
        # The byte is true in every container. A file system may have no such locks: there the number of the
        # process decides, which another one may have by now.
        return is_number_held(self.lock.fd, flushing & _LOW) or seems_to_run(flushing >> 32)

    def _forget_identity(self) -> None:
        """Take the sync lock for the next flush: its file is closed, and with it the byte of this one."""
        self._identity = _NOBODY

    def _flush(self) -> None:
        """Flush and publish the synced word. No other flush of the topic is under way."""
        words = self._words
        # 1. What is to be durable: everything published by now.
        target = words[_TAIL]
        synced = max(words[_SYNCED], words[POISON_TO])
        if failpoints.ACTIVE:
            failpoints.hit("sync:before")
        # 2. Every segment with bytes in the range; its name too if this is its first time.
        try:
            first = synced >> 32
            if first == target >> 32:  # as nearly always
                self._flush_segment(first)
            else:
                directory = self._view.directory
                for ledger_id in self._ledgers(synced, target):
                    self._flush_segment(ledger_id)
                    if ledger_id > first:
                        disk.DISK.fsync_dir(directory)
                if not first:
                    disk.DISK.fsync_dir(os.path.dirname(directory))
        except (DescriptorLimitError, LockTimeout):
            raise  # no flush was tried that could have lost a page
        except OSError as e:
            self._failed_from = words[_SYNCED]  # before the wait for the topic: the next flush would succeed
            self._poison(self._failed_from)
            raise PoisonedSegment(
                path=self._control.path,
                reason=f"a flush failed ({e}); what became of the entries since the last is unknown",
                remedy="check the disk, then send the messages again: writing continues in a new segment",
            ) from e
        # 3. The synced word. A crash before costs the next waiter one more flush.
        if words[_SYNCED] < target:
            words[_SYNCED] = target
        self.syncs += 1
        if failpoints.ACTIVE:
            failpoints.hit("sync:after")

    def _ledgers(self, synced: int, target: int) -> list[int]:
        # From the ledger in which the synced word lies up to the tail's; a roll between them leaves
        # several.
        first, last = synced >> 32, target >> 32
        chain = self._view.chain()
        ledgers = [ledger for ledger in chain.ids if first <= ledger < last]
        closed = chain.find(first)
        if closed is not None and synced >= first << 32 | closed.end_offset >> 3:
            ledgers.remove(first)  # all of it was flushed
        return [*ledgers, last] if target > synced else ledgers

    def _flush_segment(self, ledger_id: int) -> None:
        segment = self._segment
        try:
            # A descriptor from before the writes: one opened later may not report a failed write-back.
            fd = segment.file.fd if segment is not None and segment.ledger_id == ledger_id else -1
            if segment is None or fd < 0:  # another ledger than last time, or it was unmapped meanwhile
                self._segment = segment = self._view.segment(ledger_id)
                fd = segment.file.fd
        except FileNotFoundError:
            return  # trimmed meanwhile
        except CorruptionError:
            path = log_path(self._view.directory, ledger_id)
            fd = disk.DISK.open_file(path, os.O_RDWR)
            try:
                disk.DISK.fdatasync(fd, path)
            finally:
                os.close(fd)
        else:
            disk.DISK.fdatasync(fd, segment.path)

    def _poison(self, synced: int) -> None:
        words = self._words
        try:
            self._topic_lock.acquire(self._timeout_s)
            if not words[POISON_TO]:
                words[POISON_FROM] = synced
            words[POISON_TO] = words[TopicWord.TAIL]
            self._control.demand(MUST_ROLL)
            self._failed_from = None
        finally:
            self._topic_lock.release()

    # -- level "interval" ---------------------------------------------------------------------------------

    def note_dirty(self) -> None:
        """An entry of level "interval" was appended: flush within the interval. About 0.1 us."""
        timer = self._timer  # as `is_idle`, without its call
        if timer is None or timer.function is None:
            self._start_timer()

    def _start_timer(self, delay_s: float | None = None) -> None:
        if not self._words[DIRTY_SINCE_MS]:
            self._words[DIRTY_SINCE_MS] = self._wall_ms()
        self._timer = self._schedule(self._interval_s if delay_s is None else delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None  # first, so that an append during the flush arms the next
        if self._is_closed:
            return
        try:
            timing.try_now(self.sync)
            self._backoff.reset()
        except LockTimeout:  # another process is in its flush, or stopped there
            if is_idle(self._timer):
                self._start_timer(self._backoff.next())
        except PoisonedSegment:
            raise  # callers that wait for it get the error, and what follows goes elsewhere
        except Exception:
            self.note_dirty()  # the flush is still due
            raise

    def sync_if_due(self) -> bool:
        """Flush what a dead process left dirty beyond the interval; return whether there was anything."""
        # Written by any process without a lock: a hint. A flush too many is harmless, one too few is
        # found by the next.
        since = self._words[DIRTY_SINCE_MS]
        if not since or self._wall_ms() - since < 1000 * self._interval_s:
            return False
        self.sync()
        return True

    def help_if_overdue(self) -> None:
        """Take over a sync whose process had twice the time it needed; by timer, off the caller's thread."""
        since = self._words[DIRTY_SINCE_MS]
        if since and is_idle(self._timer) and self._wall_ms() - since > 2000 * self._interval_s:
            self._timer = self._schedule(0.0, self._on_timer)

    def after_fork_in_child(self) -> None:
        """Forget the timer, whose thread does not exist here, and that this one had the lock: the parent
        goes on to flush by that."""
        self._timer = None
        self._forget_identity()

    def close(self) -> None:
        """Cancel the timer and close the lock. The owner decides about a last `sync`."""
        self._is_closed = True
        self._identity, self._segment = _NOBODY, None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if self._lock is not None:
            self._lock.close()
