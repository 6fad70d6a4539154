"""``sinks/<key>/`` of a store: what the tasks of a sink staged, and which batch it committed last.

Finishing commits whose jobs died, clearing away what else these left, and what of it a backup has. Needs
neither PySpark nor pyarrow: processes do this that never use Spark.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.columns import staged_chunks
from embeddedpulsar._engine.format.control import split_tail
from embeddedpulsar._engine.format.document import KIND_SINK_COMMIT, decode_document, encode_document
from embeddedpulsar._engine.log.trimming import commit_pin, pin_for_commit, unpin
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, filesystem, package_log
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.platform.timing import CLOCK
from embeddedpulsar._engine.store import root_layout
from embeddedpulsar._engine.store.care.store_cut import hold_for
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, StorageError
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar._engine.store.care.backup_target import BackupTarget


_RESTORE: Final = "restore the file from a backup: what was staged is kept until then"
T = TypeVar("T")

LOCK: Final = "lock"
PENDING: Final = filenames.PENDING
DONE: Final = filenames.DONE
ROWS: Final = ".rows"
failpoints.declare("sink:staging")
_TEMPORARY: Final = ".tmp"
_KEY_DIGITS: Final = 32


def sink_key(producer: str, run: str) -> str:
    """The name of a sink's directory.

    Args:
        producer: name of its producer.
        run: what its batches are counted in: a query, or a name for numbered batches.

    Example:
        >>> len(sink_key("orders", "query-1"))
        32
    """
    from hashlib import sha256  # 0.5 MB, which only the driver of a query needs

    return sha256(f"{producer}\0{run}".encode()).hexdigest()[:_KEY_DIGITS]


def staged_name(batch: int, part: int, attempt: int) -> str:
    """A name for the rows that one attempt of a task stages.

    Example:
        >>> batch_of(staged_name(7, 0, 1))
        7
    """
    return f"{batch}-{part}-{attempt}-{os.urandom(6).hex()}{ROWS}"


def batch_of(name: str) -> int:
    """The batch of a staged file; -1 for any other name."""
    digits = name.partition("-")[0]
    return int(digits) if name.endswith(ROWS) and digits.isdecimal() else -1


class SinkPlace:
    """One sink's directory.

    Role: names and documents; what they mean is `spark.sink_commit`'s. Invariants: `pending` is written
    by the holder of the lock, so one whose lock is free was left by a process that ended. Callers: any
    thread.

    Args:
        root: of the store.
        key: see `sink_key`.
    """

    def __init__(self, root: str, key: str) -> None:
        self.key: Final = key
        self.path: Final = os.path.join(root_layout.in_root(root, root_layout.SINKS), key)

    def file(self, name: str) -> str:
        """The path of one of its files.

        Raises:
            CorruptionError: a document names a file elsewhere.
        """
        if os.sep in name or name in (os.curdir, os.pardir):
            raise CorruptionError(path=self.path, reason=f"a document of the sink names the file {name!r}")
        return os.path.join(self.path, name)

    def make(self) -> None:
        """Make the directory, with the rights of the store's."""
        filesystem.make_directories(self.path, mode=None)

    def locked(self, work: Callable[[], T], timeout_s: float = 30.0) -> T:
        """Run ``work`` while no other process commits for this sink.

        Raises:
            LockTimeout: another process did not finish within ``timeout_s``.
        """
        while True:
            self.make()
            lock = FileLock(self.file(LOCK))
            try:
                lock.acquire(timeout_s)
                if self._is_in_place(lock):
                    return work()
            finally:
                lock.release()
                lock.close()

    def try_locked(self, work: Callable[[], object]) -> bool:
        """Run ``work`` unless another process holds the lock, or the sink is gone; returns whether it ran."""
        try:
            lock = FileLock(self.file(LOCK))
        except FileNotFoundError:
            return False
        try:
            if not lock.try_acquire() or not self._is_in_place(lock):
                return False
            work()
            return True
        finally:
            lock.release()
            lock.close()

    def _is_in_place(self, lock: FileLock) -> bool:
        """Whether the lock is still that of the directory: `remove` may have been faster."""
        try:
            return os.path.samestat(os.fstat(lock.fd), os.stat(lock.path))
        except FileNotFoundError:
            return False

    def read(self, name: str) -> dict[str, Any] | None:
        """One of the two documents; None without it.

        Raises:
            CorruptionError, ForeignFileError: it is damaged.
        """
        path = self.file(name)
        try:
            data = disk.DISK.read_file(path)
        except FileNotFoundError:
            return None
        try:
            return decode_document(data, KIND_SINK_COMMIT)
        except (CorruptionError, ForeignFileError) as e:
            raise type(e)(path=path, offset=e.offset, reason=e.reason, remedy=_RESTORE) from None
        except StorageError as e:
            raise e.at(path) from None

    def write(self, name: str, fields: dict[str, Any], *, durable: bool) -> None:
        """Replace one of the two documents, in one step."""
        disk.DISK.atomic_write(self.file(name), encode_document(KIND_SINK_COMMIT, fields), durable)

    def staged(self, through: int | None = None) -> list[str]:
        """The names of staged files; of batches up to ``through``, or of all."""
        names = [name for name in _names_in(self.path) if name.endswith(ROWS)]
        return [name for name in names if through is None or batch_of(name) <= through]

    def stage(self, name: str, records: Iterable[list[Any]]) -> int:
        """Write records into a file of that name, a MiB or so at a time. Without records no file is made,
        and after an error none is left.

        Returns:
            The size of the file.
        """
        fd = -1
        end = 0
        try:
            for pieces in staged_chunks(records):
                if fd < 0:
                    self.make()
                    fd = disk.DISK.create_exclusive(self.file(name))
                end += disk.DISK.pwrite_all(fd, pieces, end)
                failpoints.hit("sink:staging")
        except BaseException:
            if fd >= 0:
                self.discard([name])
            raise
        finally:
            if fd >= 0:
                os.close(fd)
        return end

    def flush(self, names: Iterable[str]) -> None:
        """Have files on the disk."""
        disk.DISK.flush_files([self.file(name) for name in names])

    def mapped(self, name: str) -> MappedFile:
        """The map of a file, which stays as long as there are slices of it; its descriptor is closed.

        Raises:
            FileNotFoundError: it is gone.
        """
        file = MappedFile.open(self.file(name), writable=False)
        file.close_descriptor()
        return file

    def pin(self, directory: str, end: int) -> None:
        """Keep what is behind an end of a log while its batch may have to be published again.

        Args:
            directory: of the topic or partition.
            end: a tail word of its log.
        """
        pin_for_commit(directory, split_tail(end)[0], self.key, self.file(PENDING), CLOCK.wall_ms())

    def pin_file(self, directory: str, end: int) -> tuple[str, bytes]:
        """The path and the content of the file that `pin` makes."""
        return commit_pin(directory, split_tail(end)[0], self.key, self.file(PENDING))

    def unpin(self, directory: str) -> None:
        """The opposite of `pin`."""
        unpin(directory, self.key)

    def discard_unfinished(self) -> None:
        """Remove what a process left that was killed while it wrote a document. Under the lock."""
        self.discard(name for name in _names_in(self.path) if name.endswith(_TEMPORARY))

    def discard(self, names: Iterable[str]) -> int:
        """Remove files; those that are gone already are no error. Returns how many were there."""
        removed = 0
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(self.file(name))
                removed += 1
        return removed

    def remove(self) -> None:
        """Remove the directory, the lock last. Under the lock."""
        self.discard(name for name in _names_in(self.path) if name != LOCK)
        self.discard([LOCK])
        with contextlib.suppress(OSError):  # a task stages into it once more: the next look removes it
            disk.DISK.rmdir(self.path)


def _names_in(path: str) -> list[str]:
    """What is in a directory, sorted; nothing if it is not there."""
    try:
        return sorted(descriptors.names_in(path))
    except FileNotFoundError:
        return []


def sinks_of(root: str) -> list[SinkPlace]:
    """The sinks that a store knows."""
    place = root_layout.in_root(root, root_layout.SINKS)
    return [SinkPlace(root, key) for key in _names_in(place)]


STAGED_KEPT_S: Final = 24 * 3600
"""Rows that no commit took are removed so long after they were written: until then a job may still commit
them."""
SINK_KEPT_S: Final = 90 * 24 * 3600
"""Which batch a sink committed last is forgotten so long after it did."""
_MS: Final = 1000


class SinkUpkeep:
    """The chore of a store that finishes commits, and removes staged rows that no commit took and sinks that
    are not used any more.

    Role: one per store and process, made when the store has a sink, under the housekeeping lock. Invariants:
    rows that a pending commit names stay; nothing of a sink is touched whose lock is held. A commit is
    finished in a thread with a client of its own, as it may take long; if the process ends meanwhile, the
    commit is begun still. Callers: the thread of housekeeping.

    Args:
        root: of the store.
        clock: the time of day is compared with that of files.
        finish: finishes the commits of the store, and returns how many messages it published.
    """

    def __init__(self, root: str, clock: Clock, finish: Callable[[], int]) -> None:
        self._root: Final = root
        self._clock: Final = clock
        self._finish_commits: Final = finish
        self._is_finishing = False

    def do_chores(self, done: list[str]) -> bool:
        """Look at every sink; what was removed is noted in ``done``. Always False."""
        begun: list[str] = []
        for place in sinks_of(self._root):
            place.try_locked(partial(self._look_at, place, done, begun))
        if begun and not self._is_finishing:
            self._is_finishing = True
            self._clock.thread(self._finish, "sinks").start()
        return False

    def _finish(self) -> None:
        """Finish the commits that were begun, as the next write would."""
        try:
            stored = self._finish_commits()
        finally:
            self._is_finishing = False
        if stored:
            package_log.info("%s: %d messages of commits that were begun were published", self._root, stored)

    def _look_at(self, place: SinkPlace, done: list[str], begun: list[str]) -> None:
        place.discard_unfinished()
        if os.path.exists(place.file(PENDING)):
            begun.append(place.key)
            return
        orphans = [name for name in place.staged() if self._age_s(place, name) > STAGED_KEPT_S]
        removed = place.discard(orphans)
        if removed:
            done.append(f"{place.path}: {removed} files of rows that no commit took were removed")
        if (
            not place.staged()
            and self._age_s(place, DONE) > SINK_KEPT_S
            and self._age_s(place, "") > STAGED_KEPT_S
        ):
            place.remove()

    def _age_s(self, place: SinkPlace, name: str) -> float:
        """How long ago a file was written; any length without one."""
        try:
            return self._clock.wall_ms() / _MS - os.stat(place.file(name)).st_mtime
        except FileNotFoundError:
            return float("inf")


class _Begun(NamedTuple):
    """The records of all sinks at one moment.

    Attributes:
        batches: the last batch of each sink whose commit was begun; -1 for none.
        changed: the time at which a sink came or went last.
    """

    batches: dict[str, int]
    changed: int


class SinksCut:
    """What a backup has of the sinks: which batch each committed last, and commits that were begun. Is the
    `SharedRecords` of Spark.

    The records are taken before the ends of the logs are read, so the copied logs have every batch that a
    record counts as stored. They must not have more: a batch that was begun since is in the logs, whole or in
    part, and no record says so. Then both are taken again. A commit that is under way does no harm: its
    document `pending` says behind which end of each log it is, and the copied store finishes it, as any store
    does after a crash.

    Args:
        root: of the store.
        target: takes the files.
    """

    reason: Final = "Spark committed batches whenever the topics were copied"

    def __init__(self, root: str, target: BackupTarget) -> None:
        self._root: Final = root
        self._target: Final = target
        self._plans: Final[dict[str, dict[str, Any]]] = {}
        self._busy: Final[set[str]] = set()
        self._taken = _Begun({}, 0)

    def hold(self, locks: contextlib.ExitStack) -> None:
        """Keep those sinks from beginning a commit that did during an attempt before. One that commits for
        longer than `WAIT_S` is not waited for."""
        # In the order of the keys, as every backup takes them, so that two backups do not wait for each
        # other.
        for key in sorted(self._busy):
            hold_for(SinkPlace(self._root, key).file(LOCK), locks)

    def take_records(self) -> None:
        """Take the records, and the staged rows that an unfinished commit names."""
        self._plans.clear()
        self._target.drop(root_layout.SINKS)
        # Before the sinks are read: one that comes or goes later is a change then.
        changed = self._changed()
        self._taken = _Begun({place.key: self._take_sink(place) for place in sinks_of(self._root)}, changed)

    def is_current(self) -> bool:
        """Whether no sink began a commit, came or went since `take_records`."""
        changed, taken = self._changed(), self._taken
        begun = _Begun({place.key: self._read(place)[0] for place in sinks_of(self._root)}, changed)
        # A sink that is only in one of the two has begun or ended its first commit.
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
            logs = [(directories[name], floor) for name, _, floor in plan["logs"] if name in directories]
            # None of its topics is in the backup: the commit could not be finished there.
            if not logs:  # a backup of other topics: the batch is stored when it comes again
                for name in (PENDING, *(file for file, *_ in plan["files"])):
                    self._target.drop_record(self._relative(place, name))
            # The copied store finishes the commit as after a crash, so it needs the pins that keep the end of
            # each log.
            for directory, floor in logs:
                path, content = place.pin_file(directory, floor)
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
        documents: dict[str, bytes] = {}
        fields: dict[str, dict[str, Any]] = {}
        # In this order, as the commit writes `done` before it removes `pending`: read the other way round, a
        # commit could seem to be neither begun nor done.
        for name in (PENDING, DONE):
            with contextlib.suppress(FileNotFoundError):
                documents[name] = disk.DISK.read_file(place.file(name))
                with contextlib.suppress(CorruptionError, ForeignFileError):  # it is copied as it is
                    fields[name] = decode_document(documents[name], KIND_SINK_COMMIT)
        plan, done = fields.get(PENDING), fields.get(DONE)
        # Finished, and only not cleared away yet.
        if plan is not None and done is not None and done["batch"] >= plan["batch"]:
            del documents[PENDING]
            plan = None
        return max((int(document["batch"]) for document in fields.values()), default=-1), documents, plan

    def _take_sink(self, place: SinkPlace) -> int:
        """Take the documents of a sink, and the rows that its unfinished commit names."""
        while True:
            batch, documents, plan = self._read(place)
            names = [name for name, *_ in plan["files"]] if plan is not None else []
            missing = [name for name in names if not self._take_rows(place, name)]
            # The rows are gone: either the commit was finished meanwhile, or they were lost; the document
            # tells which.
            if missing and self._read(place)[1].get(PENDING) != documents[PENDING]:
                self._target.drop(f"{root_layout.SINKS}/{place.key}")
                continue  # the commit was finished meanwhile
            if plan is not None:
                self._plans[place.key] = plan
            for name, data in documents.items():
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
