"""The compaction of a topic: when it is due, running it in the background, and how the last one ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Final

from embeddedpulsar._engine.log.compaction.compacted_ledger import (
    CompactedLedger,
    CompactedLedgers,
    CompactionRecord,
    remove_others,
)
from embeddedpulsar._engine.log.compaction.compactor import Compaction
from embeddedpulsar._engine.log.filenames import compacted_path, compaction_lock_path, under_construction
from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.log.topic_control import is_deleted
from embeddedpulsar._engine.platform import disk, failpoints, package_log
from embeddedpulsar._engine.platform.clock import Clock
from embeddedpulsar.exceptions import NotAllowedError, PulsarException, StorageError
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic.exclusive_work import ExclusiveWork, LongRunningProcessStatus, status_of

failpoints.declare("compaction:began", "compaction:renamed")

_REPORT_S: Final = 5.0


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
            package_log.info("%s: the compaction failed: %s", self._log.name, e)
            return
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
            found = found._replace(succeeded_ms=clock.wall_ms(), duration_ms=duration_ms, error="")
            found.write(ledgers.directory)
            record = found  # of the ledger that holds, whatever fails from here on
            failpoints.hit("compaction:published")
            remove_others(ledgers.directory, found)
        except Exception as e:  # noqa: BLE001 - the status says what it was
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
            for progress in steps:
                self.work.progress = progress
                if self.work.is_to_end or is_deleted(self._log.words):
                    return None
                if self._clock.monotonic() - reported > _REPORT_S:
                    reported = self._clock.monotonic()
                    package_log.info("%s: compacting, %d of about %d read", self._log.name, *progress)
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
