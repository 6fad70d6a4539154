"""Making appended entries durable: many appends, many processes, one flush."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.filenames import log_path, sync_lock_path
from embeddedpulsar._engine.format.control import TopicWord, split_tail
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.topic_control import DIRTY_SINCE_MS, MUST_ROLL, POISON_FROM, POISON_TO
from embeddedpulsar._engine.platform import deadline, disk, failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.scheduler import Backoff, Timer, is_idle
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CorruptionError,
    DescriptorLimitError,
    LockTimeout,
    PoisonedSegment,
)

failpoints.declare("sync:before", "sync:after")

_SYNCED: Final = TopicWord.SYNCED
Schedule = Callable[[float, Callable[[], object]], Timer]


class GroupCommit:
    """Flushes a topic's log up to its tail, once for all callers that wait.

    Role: `wait_durable` for level "flush"; `note_dirty` and a timer for level "interval"; `sync` for both and
    for closing.
    Invariants: the synced word rises only under the sync lock, after every segment between its old and its
    new value was flushed (a roll may lie between). A flush that failed is final: the kernel dropped the
    pages and would report success the second time. Its range is poisoned: a caller that waits for an entry in
    it gets an error, in every process, and the next append starts a new segment.
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
            if self._lock is None:  # no call between this and the store: no other thread can come between
                self._lock = lock
            else:
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
        # Without the lock first: another process may have flushed beyond this entry already.
        if words[_SYNCED] < end_word:
            lock = self.lock
            try:
                lock.acquire(self._timeout_s)
                if self._failed_from is not None:
                    self._poison(self._failed_from)
                # The process that had the lock may have flushed our entry too.
                if words[_SYNCED] < end_word and not self._is_poisoned(end_word):
                    self._flush()
            finally:
                lock.release()
        self._control.check_in_place()
        if self._is_poisoned(end_word):
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

    def _flush(self) -> None:
        """Flush and publish the synced word. Under the sync lock."""
        words = self._words
        # 1. What is to be durable: everything published by now.
        target = words[TopicWord.TAIL]
        synced = max(words[_SYNCED], words[POISON_TO])
        failpoints.hit("sync:before")
        # 2. Every segment with bytes in the range; its name too if this is its first time.
        try:
            first, _ = split_tail(synced)
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
        words[_SYNCED] = target
        self.syncs += 1
        failpoints.hit("sync:after")

    def _ledgers(self, synced: int, target: int) -> list[int]:
        # From the ledger in which the synced word lies up to the tail's; a roll between them leaves
        # several.
        first, _ = split_tail(synced)
        last, _ = split_tail(target)
        chain = self._view.chain()
        ledgers = [ledger for ledger in chain.ids if first <= ledger < last]
        closed = chain.find(first)
        if closed is not None and synced >= first << 32 | closed.end_offset >> 3:
            ledgers.remove(first)  # all of it was flushed
        return [*ledgers, last] if target > synced else ledgers

    def _flush_segment(self, ledger_id: int) -> None:
        path = log_path(self._view.directory, ledger_id)
        try:
            # A descriptor from before the writes: one opened later may not report a failed write-back.
            segment = self._view.segment(ledger_id)
            own = segment.file.fd
        except FileNotFoundError:
            return  # trimmed meanwhile
        except CorruptionError:
            fd = disk.DISK.open_file(path, os.O_RDWR)
            try:
                disk.DISK.fdatasync(fd, path)
            finally:
                os.close(fd)
        else:
            disk.DISK.fdatasync(own, path)

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
            deadline.try_now(self.sync)
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
        """Forget the timer: the parent's timer thread does not exist here."""
        self._timer = None

    def close(self) -> None:
        """Cancel the timer and close the lock. The owner decides about a last `sync`."""
        self._is_closed = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if self._lock is not None:
            self._lock.close()
