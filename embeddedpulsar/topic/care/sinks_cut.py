"""What a backup has of the sinks: which batch each committed last, and commits that were begun.

The records are taken first and the topics after them, so the copied logs have every batch that a record
counts as stored. They must not have more: a batch that was begun since is in the logs, whole or in part, and
no record says so. Then both are taken again. A commit that is under way does no harm: its document `pending`
says behind which end of each log it is, and the copied store finishes it, as any store does after a crash.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from embeddedpulsar.exceptions import LockTimeout, StorageError
from embeddedpulsar.format.control import split_tail
from embeddedpulsar.format.document import KIND_SINK_COMMIT, decode_document
from embeddedpulsar.managed_ledger.pins import commit_pin
from embeddedpulsar.platform import disk, failpoints
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.care.backup_target import BackupTarget
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.sinks.sink_place import DONE, LOCK, PENDING, SinkPlace, sinks_of

_ATTEMPTS: Final = 50
_UNLOCKED: Final = 3
"""So often without a lock: each attempt copies what was published during the one before, so they become
short, and then the sinks wait for one."""
_WAIT_S: Final = 1.0

failpoints.declare("backup:sinks_taken")


class _Begun(NamedTuple):
    """The records of all sinks at one moment.

    Attributes:
        batches: the last batch of each sink whose commit was begun; -1 for none.
        changed: the time at which a sink came or went last.
    """

    batches: dict[str, int]
    changed: int


class SinksCut:
    """Takes the records of the sinks, and the topics in agreement with them. One thread; the store may be in
    use.

    Args:
        root: of the store.
        target: takes the files.
    """

    def __init__(self, root: str, target: BackupTarget) -> None:
        self._root: Final = root
        self._target: Final = target
        self._plans: Final[dict[str, dict[str, Any]]] = {}

    def take_around(self, take_topics: Callable[[], object]) -> None:
        """Take the records, and the topics by a function that copies what is new since it ran last.

        Raises:
            StorageError: commits were begun during every attempt.
        """
        busy: set[str] = set()
        for attempt in range(_ATTEMPTS):
            locks: list[FileLock] = []
            try:
                for key in sorted(busy) if attempt >= _UNLOCKED else ():
                    self._hold(key, locks)
                before = self._take()
                failpoints.hit("backup:sinks_taken")
                take_topics()
                after = self._begun()
            finally:
                for lock in locks:
                    lock.release()
                    lock.close()
            if before == after:
                return
            both = before.batches.keys() | after.batches.keys()
            busy |= {key for key in both if before.batches.get(key) != after.batches.get(key)}
        raise StorageError(
            path=root_layout.in_root(self._root, root_layout.SINKS),
            reason="Spark committed batches whenever the topics were copied",
            remedy="make the backup when fewer writes of Spark run; the one before is as it was",
        )

    def _hold(self, key: str, locks: list[FileLock]) -> None:
        """Keep a sink from beginning a commit. One that commits for longer than `_WAIT_S` is not waited
        for."""
        with contextlib.suppress(FileNotFoundError, PermissionError, LockTimeout):
            lock = FileLock(SinkPlace(self._root, key).file(LOCK))
            locks.append(lock)
            lock.acquire(_WAIT_S)

    def finish(self, directories: Mapping[str, str]) -> None:
        """Settle which commits that were begun are in the backup.

        Args:
            directories: of the topics in the backup, by full name.
        """
        for key, plan in self._plans.items():
            place = SinkPlace(self._root, key)
            found = [(directories[name], floor) for name, _, floor in plan["logs"] if name in directories]
            if not found:  # a backup of other topics: the batch is stored when it comes again
                for name in (PENDING, *(file for file, *_ in plan["files"])):
                    self._target.forget(self._relative(place, name))
            for directory, floor in found:
                path, content = commit_pin(directory, split_tail(floor)[0], key, place.file(PENDING))
                self._target.take_bytes(os.path.relpath(path, self._root).replace(os.sep, "/"), content)

    def _take(self) -> _Begun:
        self._plans.clear()
        self._target.drop(root_layout.SINKS)
        changed = self._changed()
        return _Begun({one.key: self._take_sink(one) for one in sinks_of(self._root)}, changed)

    def _begun(self) -> _Begun:
        changed = self._changed()
        return _Begun({one.key: self._read(one)[0] for one in sinks_of(self._root)}, changed)

    def _changed(self) -> int:
        try:
            return os.stat(root_layout.in_root(self._root, root_layout.SINKS)).st_mtime_ns
        except FileNotFoundError:
            return 0

    def _read(self, place: SinkPlace) -> tuple[int, dict[str, bytes], dict[str, Any] | None]:
        """The last batch that was begun, the documents, and the plan of a commit that is not finished.

        `pending` first: what it no longer says, `done` says.
        """
        found: dict[str, bytes] = {}
        fields: dict[str, dict[str, Any]] = {}
        for name in (PENDING, DONE):
            with contextlib.suppress(FileNotFoundError):
                found[name] = disk.DISK.read_file(place.file(name))
                with contextlib.suppress(StorageError):  # a damaged one is copied as it is
                    fields[name] = decode_document(found[name], KIND_SINK_COMMIT)
        plan, done = fields.get(PENDING), fields.get(DONE)
        if plan is not None and done is not None and done["batch"] >= plan["batch"]:
            del found[PENDING]
            plan = None
        return max((int(one["batch"]) for one in fields.values()), default=-1), found, plan

    def _take_sink(self, place: SinkPlace) -> int:
        """Take the documents of a sink, and the rows that its unfinished commit names."""
        while True:
            batch, found, plan = self._read(place)
            names = [name for name, *_ in plan["files"]] if plan is not None else []
            missing = [name for name in names if not self._take_rows(place, name)]
            if missing and self._read(place)[1].get(PENDING) != found[PENDING]:
                self._target.drop(f"{root_layout.SINKS}/{place.key}")
                continue  # the commit was finished meanwhile
            if plan is not None:
                self._plans[place.key] = plan
            for name, data in found.items():
                self._target.take_bytes(self._relative(place, name), data)
            return batch

    def _take_rows(self, place: SinkPlace, name: str) -> bool:
        try:
            self._target.take_unchanging(self._relative(place, name), place.file(name))
        except FileNotFoundError:
            return False
        return True

    def _relative(self, place: SinkPlace, name: str) -> str:
        return f"{root_layout.SINKS}/{place.key}/{name}"
