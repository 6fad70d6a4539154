"""``sinks/<key>/`` of a store: what the tasks of a sink staged, and which batch it committed last."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from embeddedpulsar._engine.format.document import KIND_SINK_COMMIT, decode_document, encode_document
from embeddedpulsar._engine.format.staged_rows import staged_chunks
from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, filesystem
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, StorageError
from embeddedpulsar.topic.catalog import root_layout

_RESTORE: Final = "restore the file from a backup: what was staged is kept until then"
T = TypeVar("T")

LOCK: Final = "lock"
PENDING: Final = filenames.PENDING
DONE: Final = "done"
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
