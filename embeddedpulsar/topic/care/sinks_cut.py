"""What a backup has of the sinks: which batch each committed last, and commits that were begun.

The records are taken before the ends of the logs are read, so the copied logs have every batch that a record
counts as stored. They must not have more: a batch that was begun since is in the logs, whole or in part, and
no record says so. Then both are taken again. A commit that is under way does no harm: its document `pending`
says behind which end of each log it is, and the copied store finishes it, as any store does after a crash.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, Final

from embeddedpulsar._engine.format.control import split_tail
from embeddedpulsar._engine.format.document import KIND_SINK_COMMIT, decode_document
from embeddedpulsar._engine.log.trimming import commit_pin
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, LockTimeout
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.care.backup_target import BackupTarget
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.sinks.sink_place import DONE, LOCK, PENDING, SinkPlace, sinks_of

WAIT_S: Final = 1.0
"""So long a backup waits for the lock of a sink or a function that commits."""


class _Begun(NamedTuple):
    """The records of all sinks at one moment.

    Attributes:
        batches: the last batch of each sink whose commit was begun; -1 for none.
        changed: the time at which a sink came or went last.
    """

    batches: dict[str, int]
    changed: int


class SinksCut:
    """Takes the records of the sinks. One thread; the store may be in use.

    Args:
        root: of the store.
        target: takes the files.
    """

    def __init__(self, root: str, target: BackupTarget) -> None:
        self._root: Final = root
        self._target: Final = target
        self._plans: Final[dict[str, dict[str, Any]]] = {}
        self._busy: Final[set[str]] = set()
        self._taken = _Begun({}, 0)

    def hold(self, locks: contextlib.ExitStack) -> None:
        """Keep those sinks from beginning a commit that did during an attempt before. One that commits for
        longer than `WAIT_S` is not waited for."""
        for key in sorted(self._busy):
            hold_for(SinkPlace(self._root, key).file(LOCK), locks)

    def take(self) -> None:
        """Take the records, and the staged rows that an unfinished commit names."""
        self._plans.clear()
        self._target.drop(root_layout.SINKS)
        changed = self._changed()
        self._taken = _Begun({one.key: self._take_sink(one) for one in sinks_of(self._root)}, changed)

    def is_current(self) -> bool:
        """Whether no sink began a commit, came or went since `take`."""
        changed, taken = self._changed(), self._taken
        begun = _Begun({one.key: self._read(one)[0] for one in sinks_of(self._root)}, changed)
        both = begun.batches.keys() | taken.batches.keys()
        self._busy.update(key for key in both if begun.batches.get(key) != taken.batches.get(key))
        return begun == taken

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
                with contextlib.suppress(CorruptionError, ForeignFileError):  # it is copied as it is
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


def hold_for(path: str, locks: contextlib.ExitStack) -> bool:
    """Take a file lock until ``locks`` are closed.

    Returns:
        False where that may not be, or its holder keeps it for longer than `WAIT_S`.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError, LockTimeout):
        lock = FileLock(path)
        locks.callback(lock.close)
        locks.callback(lock.release)
        lock.acquire(WAIT_S)
        return True
    return False
