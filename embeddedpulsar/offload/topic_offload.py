"""The offloading of a topic: which ledgers are due, moving them in the background, and how it went last."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.cold.fetching import has_leftovers, problem_of, refusal, remove_leftovers
from embeddedpulsar._engine.cold.location import (
    LocationError,
    check_location,
    is_own,
    location_of,
    make_owner,
)
from embeddedpulsar._engine.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar._engine.log.cold_ledger import (
    OFFLOADED,
    UPLOADING,
    ColdLedger,
    cold_ledgers,
    damaged_notes,
    remove_unfinished_notes,
)
from embeddedpulsar._engine.log.filenames import COLD_SUFFIX, ledgers_of, log_path, offload_lock_path
from embeddedpulsar._engine.log.segments import SEGMENTS, ClosedLedger
from embeddedpulsar._engine.log.topic_control import is_deleted
from embeddedpulsar._engine.platform import descriptors, package_log
from embeddedpulsar._engine.platform.clock import Clock
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.background.topic_compaction import (
    ExclusiveWork,
    LongRunningProcessStatus,
    status_of,
)
from embeddedpulsar._engine.store.topic import OffloadRecord, read_offload_record
from embeddedpulsar.damage import TOPIC_FILES, Damage
from embeddedpulsar.exceptions import InvalidConfiguration, NotAllowedError, PulsarException, StorageError
from embeddedpulsar.offload.ledger_offload import LedgerSource, discard, release, upload

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
    from embeddedpulsar._engine.store.policies.keeping import OffloadRules

_FETCHED_MS: Final = 600_000
"""How long a log that was fetched back stays at least, unless the topic is offloaded by a call."""


class _Ended(Exception):
    """The topic is being closed, or was deleted: the work ends where it is."""


class TopicOffload:
    """Role: offloads the ledgers of one topic, in whatever process finds it due or is asked, one process at a
    time. Invariants: a ledger is offloaded when it is closed and on the disk; its log stays at least as long
    as the policy says, and until the objects were read back. What fails is noted and tried again.
    Callers: any thread.

    Args:
        directory: of the topic.
        partition: index of the partition; -1 for none.
        folder: of its objects in a location.
        leftovers: where the store keeps notes of topics that were deleted.
        log: of the topic.
        rules: reads the policies.
        clock: makes the thread.
    """

    def __init__(
        self,
        directory: str,
        partition: int,
        folder: str,
        leftovers: str,
        log: ManagedLedger,
        rules: Callable[[], OffloadRules],
        clock: Clock,
    ) -> None:
        self._directory: Final = directory
        self._leftovers: Final = leftovers
        self._root: Final = os.path.dirname(leftovers)
        self._log: Final = log
        self._rules: Final = rules
        self._clock: Final = clock
        self._source: Final = LedgerSource(
            directory, log.name, partition, folder, clock.wall_ms, self._check, leftovers, self._report
        )
        self.work: Final = ExclusiveWork(log.name, "offload", offload_lock_path(directory), clock)
        self.close: Final = self.work.close
        self.abandon: Final = self.work.abandon

    # -- looking -------------------------------------------------------------------------------------------

    def status(self) -> LongRunningProcessStatus:
        """How it stands."""
        is_running, record = self.work.is_running(), self._record()
        return status_of(is_running, record.error, bool(record.succeeded_ms or record.ended_ms))

    def has_work(self) -> bool:
        """Whether a policy or an earlier attempt asks for something now."""
        notes = cold_ledgers(self._directory)
        return has_leftovers(self._leftovers) or (
            any(self._is_over(note) for note in notes)
            or next(self._due(notes), None) is not None
            or next(self._releasable(notes), None) is not None
        )

    def _record(self) -> OffloadRecord:
        return read_offload_record(self._directory, self._report)

    def _report(self, found: Damage) -> None:
        (self._log.damage or package_log.damage)(found._replace(topic=self._log.name))

    # -- what is due ---------------------------------------------------------------------------------------

    def _due(self, notes: list[ColdLedger], before: int | None = None) -> Iterator[ClosedLedger]:
        """The closed ledgers to be offloaded, oldest first: those the policy says, or all before one."""
        rules = self._rules()
        if not rules.location or (before is None and not rules.is_automatic):
            return
        survey = self._log.survey()
        closed, ledgers = survey.closed(), survey.ledgers()
        away = {note.ledger_id for note in notes if self._is_away(note)}
        noted = ledgers_of(descriptors.names_in(self._directory), COLD_SUFFIX)
        away |= set(noted).difference(note.ledger_id for note in notes)  # damaged notes are kept
        sizes = [0 if one.ledger_id in away else _size(one) for one in closed]
        left = sum(sizes) + (ledgers[-1].size if ledgers else 0)
        now_ms = self._clock.wall_ms()
        for number, (ledger, size) in enumerate(zip(closed, sizes, strict=True)):
            if ledger.ledger_id in away or ledger.last_entry_id < 0:
                continue
            if before is not None:
                is_due = ledger.ledger_id < before
            else:
                # Nothing in a ledger was published after the next one began.
                is_last = number + 1 == len(closed)
                ended_ms = ledgers[-1].base_publish_ms if is_last else closed[number + 1].base_publish_ms
                is_due = 0 <= rules.most_bytes < left or (
                    rules.most_seconds >= 0 and now_ms - ended_ms >= rules.most_seconds * 1000
                )
            if not is_due:
                return
            left -= size
            yield ledger

    def due_before(self, ledger_id: int) -> int:
        """How many ledgers before one are not offloaded yet."""
        return sum(1 for _ in self._due(cold_ledgers(self._directory), ledger_id))

    def _is_away(self, note: ColdLedger) -> bool:
        """Whether the location has a ledger. While the log is here still, objects of another store do not
        count: that one may remove them at any time."""
        if note.state != OFFLOADED:
            return False
        is_lent = not note.released_ms and not is_own(note, self._leftovers)
        return not (is_lent and os.path.exists(log_path(self._directory, note.ledger_id)))

    def _is_over(self, note: ColdLedger) -> bool:
        """Whether its objects are to go: the ledger was trimmed, or an attempt to offload it died."""
        return note.state != OFFLOADED or note.ledger_id < self._log.trimming.first_retained

    def _releasable(self, notes: list[ColdLedger], is_asked: bool = False) -> Iterator[ColdLedger]:
        """Offloaded ledgers whose log has been here long enough, since it was fetched back if it was."""
        lag_ms, now_ms = self._rules().lag_ms, self._clock.wall_ms()
        again_ms = lag_ms if is_asked else max(lag_ms, _FETCHED_MS)
        for note in notes:
            if not self._is_away(note):
                continue
            with contextlib.suppress(FileNotFoundError):
                since_ms = os.stat(log_path(self._directory, note.ledger_id)).st_mtime_ns // 1_000_000
                if now_ms - since_ms >= again_ms if note.released_ms else now_ms - note.noted_ms >= lag_ms:
                    yield note

    # -- the work ------------------------------------------------------------------------------------------

    def start(self, before: int, on_end: Callable[[], object] = int) -> None:
        """Offload all closed ledgers before one in the background; closing the topic waits for it.

        Raises:
            NotAllowedError: ledgers of the topic are being offloaded already, in whatever process.
            InvalidConfiguration: no location is set, or there is no such file system.
        """
        location = self._rules().location
        if not location:
            raise InvalidConfiguration(
                f"no location is set for {self._log.name}: call set_offload_policies for the topic or its "
                "namespace, or set managedLedgerOffloadLocation in broker.conf"
            )
        check_location(location, self._root)
        location_of(location)
        work = partial(self._work, before)
        if self.work.is_running_elsewhere() or not self.work.begin(work, on_end, is_wanted=True):
            raise NotAllowedError(f"{self._log.name} is being offloaded already; see offload_status")

    def adopt(self, moved: Mapping[str, str]) -> int:
        """Let the objects of this topic belong to this store, which removes them from now on; see
        `Topics.adopt_offloaded`.

        Returns:
            How many notes were changed.

        Raises:
            NotAllowedError: a process offloads ledgers of the topic.
            ColdReadError: objects are not where they are said to be. What was changed before stays so.
        """
        lock, count = FileLock(offload_lock_path(self._directory)), 0
        try:
            if not lock.try_acquire():
                raise NotAllowedError(f"{self._log.name} is being offloaded; wait for its end")
            owner = make_owner(self._leftovers, self._report)
            for note in cold_ledgers(self._directory):
                location = moved.get(note.location, note.location)
                changed = note._replace(owner=owner, is_shared=False, location=location)
                if changed == note or note.state == UPLOADING:
                    continue  # an attempt, of this store or of another one: what it wrote is not needed
                problem = problem_of(changed) if note.state == OFFLOADED else ""
                if problem:
                    raise refusal(changed, problem, "name the location where they are")
                changed.write(self._directory)
                count += 1
        finally:
            lock.release()
            lock.close()
        return count

    def start_if_due(self) -> None:
        """Do in the background what policies and earlier attempts ask for."""
        if self.work.progress is None and self.has_work() and not self.work.is_running():
            self.work.begin(partial(self._work, None), int, is_wanted=False)

    def _work(self, before: int | None) -> None:
        """Clear away what is to go, offload what is due, and remove the logs that were here long enough.

        Call under the offload lock. Failures are noted, and all else is done.

        Args:
            before: offload all ledgers before this one; None for those that the policy says.
        """
        errors: list[str] = []
        try:
            self._do(before, errors)
        except _Ended:
            return
        except Exception as error:  # noqa: BLE001 - the status says what it was
            if is_deleted(self._log.words):
                return
            errors.append(f"{self._log.name}: {_text(error)}; nothing is lost, it is tried again")
        if errors:
            package_log.info("%s", errors[0])
        try:
            record = self._record()
        except StorageError as error:  # it cannot be read, so it is not replaced; `status` raises the same
            package_log.info("%s: %s", self._log.name, error)
            return
        if errors:
            self._note(record._replace(failed_ms=self._clock.wall_ms(), error=errors[0]))
        elif before is not None:
            self._note(record._replace(ended_ms=self._clock.wall_ms(), error=""))
        elif record.error:
            self._note(record._replace(error=""))

    def _do(self, before: int | None, errors: list[str]) -> None:
        remove_unfinished_notes(self._directory)
        errors += remove_leftovers(self._leftovers)
        for note in cold_ledgers(self._directory):
            if self._is_over(note):
                self._try(errors, note, self._discard, note)
        fresh = self._upload_due(before, errors)
        for note in list(self._releasable(cold_ledgers(self._directory), before is not None)):
            self._try(errors, note, self._release, note, note.ledger_id in fresh)

    def _upload_due(self, before: int | None, errors: list[str]) -> set[int]:
        if before is not None:
            errors += self._damaged_notes(before)
        due = list(self._due(cold_ledgers(self._directory), before))
        fresh: set[int] = set()
        if due:
            self._log.sync()  # what is offloaded must not be newer than what a power loss leaves of the log
        for number, ledger in enumerate(due):
            self.work.progress = (number, len(due))
            first = self._log.trimming.first_retained
            if ledger.ledger_id < first:
                continue
            name = self._rules().location
            what = ColdLedger(
                ledger.ledger_id, UPLOADING, self._log.name, name, entries=ledger.last_entry_id + 1
            )
            failed: list[str] = []
            if self._try(failed, what, self._upload, name, ledger, first):
                fresh.add(ledger.ledger_id)
                record = self._record()
                self._note(record._replace(ledger_id=ledger.ledger_id, succeeded_ms=self._clock.wall_ms()))
                package_log.info("%s: ledger %d was offloaded to %s", self._log.name, ledger.ledger_id, name)
            elif ledger.ledger_id >= self._log.trimming.first_retained:  # not trimmed meanwhile
                errors += failed
        return fresh

    def _damaged_notes(self, before: int) -> list[str]:
        """Report the damaged notes of the ledgers before one; return what is wrong with each."""
        damaged = [error for ledger, error in damaged_notes(self._directory).items() if ledger < before]
        for error in damaged:
            found = Damage(error.path or "", offset=error.offset or 0, reason=error.reason, kind=TOPIC_FILES)
            self._report(found._replace(remedy=error.remedy))
        return [f"{self._log.name}: {error}" for error in damaged]

    def _release(self, note: ColdLedger, is_verified: bool) -> None:
        try:
            now_ms = self._clock.wall_ms()
            release(self._directory, note, location_of(note.location), now_ms, is_verified=is_verified)
        except LocationError:
            if not note.released_ms:  # the log is whole: offload it again, under other names
                note._replace(state=UPLOADING).write(self._directory)
            raise
        SEGMENTS.forget(self._log.view.control.home, note.ledger_id)

    def _upload(self, name: str, ledger: ClosedLedger, first: int) -> None:
        check_location(name, self._root)
        upload(self._source, location_of(name), ledger, first)

    def _discard(self, note: ColdLedger) -> None:
        own = is_own(note, self._leftovers)
        discard(self._source, note, location_of(note.location) if own else None)

    def _try(
        self, errors: list[str], note: ColdLedger, action: Callable[..., object], *arguments: object
    ) -> bool:
        self._check()
        try:
            action(*arguments)
        except _Ended:
            raise
        except Exception as error:
            if is_deleted(self._log.words):
                raise _Ended from error
            errors.append(
                f"{self._log.name}: entries {note.ledger_id}:0 to {note.ledger_id}:{note.entries - 1} and "
                f"their location {note.location}: {_text(error)}; nothing is lost, it is tried again"
            )
            return False
        return True

    def _check(self) -> None:
        if is_deleted(self._log.words) or self.work.is_to_end:
            raise _Ended

    def _note(self, record: OffloadRecord) -> None:
        with contextlib.suppress(PulsarException, OSError):
            record.write(self._directory)


def _text(error: Exception) -> str:
    return str(error).strip() or repr(error)


def _size(ledger: ClosedLedger) -> int:
    return max(0, ledger.end_offset - FIRST_FRAME_OFFSET)
