"""The compaction of a topic: when it is due, running it in the background, and how the last one ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from embeddedpulsar.exceptions import LockTimeout, NotAllowedError, PulsarException
from embeddedpulsar.managed_ledger.compaction.compacted_ledger import CompactedLedger
from embeddedpulsar.managed_ledger.compaction.compaction_record import (
    CompactedLedgers,
    CompactionRecord,
    remove_others,
)
from embeddedpulsar.managed_ledger.compaction.compactor import Compaction, Progress
from embeddedpulsar.managed_ledger.log import Log
from embeddedpulsar.managed_ledger.position import BEFORE_FIRST, Position
from embeddedpulsar.platform import disk, failpoints, package_log, threads
from embeddedpulsar.platform.clock import Clock, ThreadLike
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.platform.processes import lease
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.storage.filenames import compacted_path, compaction_lock_path, under_construction
from embeddedpulsar.storage.topic_control import is_deleted

failpoints.declare("compaction:began", "compaction:renamed")

NOT_RUN: Final = "NOT_RUN"
RUNNING: Final = "RUNNING"
SUCCESS: Final = "SUCCESS"
ERROR: Final = "ERROR"
_REPORT_S: Final = 5.0
_LOOKERS_S: Final = 1.0
"""How long a compaction waits for its lock, which processes that look whether one runs have for moments."""


class CompactionStatus(NamedTuple):
    """How the compaction of a topic stands.

    Attributes:
        status: ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``.
        last_error: why the last one failed; empty if it succeeded.
    """

    status: str
    last_error: str = ""

    def json(self) -> dict[str, str]:
        """Return the fields by their names in Pulsar."""
        return {"status": self.status, "lastError": self.last_error}


class TopicCompaction:
    """Role: compacts one topic, in whatever process that is asked for or found due, and one at a time in the
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
        self.progress: Progress | None = None
        """How far the compaction in this process is; None if there is none."""
        self._log: Final = log
        self._threshold: Final = threshold
        self._settings: Final = settings
        self._clock: Final = clock
        self._lock_path: Final = compaction_lock_path(ledgers.directory)
        self._lock = threads.RLock()  # guards the three below, and the beginning of `progress`
        self._thread: ThreadLike | None = None
        self._is_wanted = self._is_stopped = False

    # -- looking -------------------------------------------------------------------------------------------

    def is_running(self) -> bool:
        """Whether any process compacts the topic."""
        if not os.path.exists(self._lock_path):
            return False
        lock = FileLock(self._lock_path)
        try:
            return not lease.try_lock(lock.fd, shared=True)  # so that two that look do not see each other
        finally:
            lock.close()

    def status(self) -> CompactionStatus:
        """How the compaction of the topic stands."""
        record = self.ledgers.record()
        if self.progress is not None or self.is_running():
            return CompactionStatus(RUNNING, record.error)
        if record.error:
            return CompactionStatus(ERROR, record.error)
        return CompactionStatus(SUCCESS if record.succeeded_ms else NOT_RUN)

    def marks(self, *, is_forced: bool = False) -> Sequence[Position]:
        """Up to where compaction lets the log be trimmed, as the mark-delete positions of subscriptions.

        Args:
            is_forced: only a compaction that is running counts.
        """
        record = self.ledgers.record()
        if is_forced or not record.file:
            is_held = self.is_running() or (not is_forced and self._threshold() > 0)
            return [record.horizon if record.file else BEFORE_FIRST] if is_held else []
        return [record.horizon]

    # -- compacting ----------------------------------------------------------------------------------------

    def start(self, on_end: Callable[[], object] = int) -> None:
        """Compact the topic in the background; closing the topic waits for it.

        Args:
            on_end: called when it has ended, in its thread.

        Raises:
            NotAllowedError: a compaction is running, in whatever process.
        """
        if self.is_running() or not self._begin(on_end, is_wanted=True):
            raise NotAllowedError(f"{self._log.name} is being compacted already; see compaction_status")

    def start_if_due(self) -> None:
        """Compact the topic in the background if as much was appended as the policy says."""
        threshold = self._threshold()
        if not threshold or self.progress is not None:
            return
        record = self.ledgers.record()
        horizon = record.horizon if record.file else BEFORE_FIRST
        if self._log.survey().bytes_after(horizon) >= threshold and not self.is_running():
            self._begin(int, is_wanted=False)

    def _begin(self, on_end: Callable[[], object], *, is_wanted: bool) -> bool:
        """Begin to compact in a thread; False if one does already, or the topic is being closed."""

        def run() -> None:
            lock = FileLock(self._lock_path)
            try:
                lock.acquire(_LOOKERS_S)
                self._compact()
            except LockTimeout:
                package_log.info("%s: another process compacts it", self._log.name)
            finally:
                self.progress, self._is_wanted = None, False
                lock.release()
                lock.close()
                on_end()

        try:
            self._lock.acquire()
            if self.progress is not None or self._is_stopped:
                return False
            self.progress, self._is_wanted = Progress(0, 0), is_wanted
            thread = self._thread = self._clock.thread(run, "compaction")
        finally:
            self._lock.release()
        try:
            thread.start()
        except BaseException:
            self.progress = None
            raise
        return True

    def _compact(self) -> None:
        ledgers, clock = self.ledgers, self._clock
        begun = clock.monotonic()
        record = ledgers.record()
        try:
            remove_others(ledgers.directory, record)
            # Nothing that was chosen for trimming before this process had the lock may go now.
            self._log.trimming.note_retreat()
            failpoints.hit("compaction:began")
            before = ledgers.open()
            try:
                found = self._write(record, before)
            finally:
                if before is not None:
                    before.close()
            if found is None:
                return
            duration_ms = round((clock.monotonic() - begun) * 1000)
            found._replace(succeeded_ms=clock.wall_ms(), duration_ms=duration_ms, error="").write(
                ledgers.directory
            )
            failpoints.hit("compaction:published")
            remove_others(ledgers.directory, found)
        except (PulsarException, OSError, ImportError) as e:
            self._note_failure(record, e)
            return
        self._log.trimming.suggest()
        package_log.info(
            "%s: compacted, %d messages kept, %d removed", self._log.name, found.messages, found.removed
        )

    def _write(self, record: CompactionRecord, before: CompactedLedger | None) -> CompactionRecord | None:
        """Write the next compacted ledger, and give it its name; None if that was stopped."""
        ledgers = self.ledgers
        path = compacted_path(ledgers.directory, record.file + 1)
        made = under_construction(path)
        compaction = Compaction(
            self._log,
            before,
            made,
            ledgers.incarnation,
            keeps_keyless=self._settings.topicCompactionRetainNullKey,
        )
        if not compaction.is_needed:
            return record._replace(removed=0)
        steps = compaction.steps()
        reported = self._clock.monotonic()
        try:
            for self.progress in steps:
                if (self._is_stopped and not self._is_wanted) or is_deleted(self._log.words):
                    return None
                if self._clock.monotonic() - reported > _REPORT_S:
                    reported = self._clock.monotonic()
                    package_log.info("%s: compacting, %d of about %d read", self._log.name, *self.progress)
        finally:
            steps.close()
        result = compaction.result
        assert result is not None
        size = os.stat(made).st_size
        disk.DISK.replace(made, path)
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
        text = f"{self._log.name}: the compaction failed: {error}"
        package_log.info("%s", text)
        with contextlib.suppress(PulsarException, OSError):
            record._replace(failed_ms=self._clock.wall_ms(), error=str(error) or repr(error)).write(
                self.ledgers.directory
            )

    # -- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop a compaction that was begun because it was due, and wait for one that was asked for."""
        try:
            self._lock.acquire()
            self._is_stopped, thread = True, self._thread
        finally:
            self._lock.release()
        if thread is not None and self.progress is not None and thread.ident != threads.current_id():
            thread.join()

    def abandon(self) -> None:
        """Forget the thread, which does not exist in a forked child."""
        self._lock = threads.renewed(self._lock)
        self._thread = self.progress = None
        self._is_stopped = True
