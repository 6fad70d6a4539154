"""The compaction of a topic: when it is due, running it in the background, and how the last one ended.

Work on a topic that one process of the store does at a time, in the background: compaction, offloading.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

from embeddedpulsar._engine.filenames import compacted_path, compaction_lock_path, under_construction
from embeddedpulsar._engine.log.compacted_ledger import (
    CompactedLedger,
    CompactedLedgers,
    CompactionRecord,
    remove_others,
)
from embeddedpulsar._engine.log.compactor import Compaction
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.log.topic_control import is_deleted
from embeddedpulsar._engine.platform import disk, failpoints, lease, package_log, threads
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import Clock, ThreadLike
from embeddedpulsar.exceptions import LockTimeout, NotAllowedError, PulsarException, StorageError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log

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
