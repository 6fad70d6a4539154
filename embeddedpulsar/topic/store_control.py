"""``store.ctl``: the mapped words of a store, counters that only rise, and the ledger ids they give out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    CONTROL_SIZE,
    KIND_STORE,
    ControlHeader,
    StoreWord,
    are_possible,
    pack_control_header,
    parse_control_header,
)
from embeddedpulsar._engine.log.filenames import under_construction
from embeddedpulsar._engine.log.roll import MAX_LEDGER_ID
from embeddedpulsar._engine.log.topic_control import FIRST_WORD
from embeddedpulsar._engine.platform import disk, failpoints, fork, lease, threads
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import MappedFile, MemoryFile
from embeddedpulsar.exceptions import CorruptionError, StorageFullError, UnsupportedFormatVersion

_CLIENT_JUMP: Final = 10_000
"""Client numbers are not flushed one by one; a new boot skips more than the last seconds can have handed
out."""
_BLOCK: Final = 512
"""The unit of ``st_blocks``."""
SMALLEST_BLOCK: Final = 8
LARGEST_BLOCK: Final = 1024
LAST_ID: Final = (1 << 32) - 1

failpoints.declare("policies:changing", "policies:written")


class StoreControl:
    """The words of the store's ctl.

    Invariants: every word only rises, but for those of resource groups. `NEXT_LEDGER_ID` is flushed before an
    id below it is used, so it holds after a reboot too; `NEXT_CLIENT_NUMBER` is not, and jumps ahead then.
    Callers: any thread; everything that writes, under the store lock.
    """

    __slots__ = ("_file", "path", "words")

    def __init__(self, path: str, *, writable: bool = True) -> None:
        self._file = _mapped(path) if writable else _read(path)
        self.path = path
        self.words = self._file.words

    @staticmethod
    def make(path: str) -> None:
        """Make the file, all zeros, where there is none. Under the store lock."""
        building = under_construction(path)
        if os.path.lexists(building):  # of a process that died here
            disk.DISK.unlink(building)
        MappedFile.open(building, writable=True, size=CONTROL_SIZE, create=True).close()
        disk.DISK.replace(building, path)

    @property
    def fd(self) -> int:
        """The descriptor, for flushing."""
        return self._file.fd

    def header(self) -> ControlHeader | None:
        """The identity under which the words were written; None when it cannot be believed."""
        try:
            return parse_control_header(bytes(self._file.view[:CONTROL_HEADER_SIZE]), KIND_STORE)
        except CorruptionError:
            return None
        except UnsupportedFormatVersion as e:
            raise e.at(self.path) from None

    @property
    def is_damaged(self) -> bool:
        """Whether it has a header that does not verify. A new file has none."""
        return self.header() is None and any(self._file.view[:CONTROL_HEADER_SIZE])

    def is_current(self, boot: bytes) -> bool:
        """Whether the store was checked in this boot, in this very file (not a copy of it)."""
        header = self.header()
        return (
            header is not None
            and header.boot_id == boot
            and (header.device, header.inode) == (self._file.device, self._file.inode)
            and self.is_possible()
        )

    def join(self, boot: bytes) -> bool:
        """Vouch for the words, if they were written in the boot ``boot``; see `join_or_claim`.

        Returns:
            Whether this process is a member now. Its hold ends with the process, or with `close`.
        """
        return self.is_current(boot) and lease.try_lock(self.fd, shared=True) and self.is_current(boot)

    def join_or_claim(self, boot: bytes) -> bytes:
        """The boot in which the words are true, found out under the catalog lock.

        Every process that uses the store holds a shared ``flock`` on this file from the moment it has made
        sure that the words are of this boot. So a hold of another process proves that the machine was not
        rebooted since, whatever a container shows as the boot id; and without any, nothing is lost if
        the words are derived again. A process that finds other holds joins; one that finds none has the file
        to itself until it calls `share`.

        Args:
            boot: the boot id that the machine reports.
        """
        header = self.header()
        if not lease.try_lock(self.fd, shared=False) and header is not None:
            return header.boot_id
        return boot

    def share(self) -> None:
        """Let others join: the words are true. Under the catalog lock."""
        lease.try_lock(self.fd, shared=True)

    def is_in_place(self) -> bool:
        """Whether the path still leads to this very file, so to this store. 1.5 us."""
        return self._file.is_current()

    def is_next_id_possible(self) -> bool:
        """Whether the word of the next ledger id can have been stored; else it is damaged."""
        return bool(self.words[StoreWord.NEXT_LEDGER_ID] <= MAX_LEDGER_ID)

    def is_possible(self) -> bool:
        """Whether the words can have been stored, once the store was checked; see `are_possible`."""
        return self.is_next_id_possible() and are_possible(KIND_STORE, self.words)

    def adopt(self, boot: bytes, lowest_ledger_id: int) -> None:
        """Note that the store was checked in this boot; the last step of the check.

        Args:
            boot: the boot.
            lowest_ledger_id: at least this is the next ledger id.
        """
        words = self.words
        found = words[StoreWord.NEXT_LEDGER_ID] if self.is_next_id_possible() else 0
        if self.is_damaged or not (self.is_possible() or self.header() is None):
            # Names of producers stay unique with a number that no client had.
            for word in range(FIRST_WORD, len(words)):
                words[word] = 0
            words[StoreWord.NEXT_CLIENT_NUMBER] = int.from_bytes(os.urandom(5), "big") + 1
        words[StoreWord.NEXT_LEDGER_ID] = max(found, lowest_ledger_id, 1)
        numbers = words[StoreWord.NEXT_CLIENT_NUMBER]
        if numbers:
            words[StoreWord.NEXT_CLIENT_NUMBER] = (numbers // _CLIENT_JUMP + 1) * _CLIENT_JUMP
        # The file's name too: a file that a power loss takes would give the same ids again.
        self.flush()
        disk.DISK.fsync_dir(os.path.dirname(self.path))
        header = ControlHeader(KIND_STORE, boot, self._file.device, self._file.inode, 0)
        self._file.view[:CONTROL_HEADER_SIZE] = pack_control_header(header)
        self.flush()

    def next_client_number(self) -> int:
        """A number no other client of the store has."""
        number = int(self.words[StoreWord.NEXT_CLIENT_NUMBER])
        self.words[StoreWord.NEXT_CLIENT_NUMBER] = number + 1
        return number

    def change_policies(self, write: Callable[[], object]) -> None:
        """Call ``write()``, which changes what policies hold; open topics of all processes read theirs anew.

        Under the catalog lock. The word is odd meanwhile, and stays so if this process dies.
        """
        words = self.words
        words[StoreWord.POLICIES] |= 1
        try:
            if failpoints.ACTIVE:
                failpoints.hit("policies:changing")
            write()
            if failpoints.ACTIVE:
                failpoints.hit("policies:written")
        finally:
            words[StoreWord.POLICIES] = (words[StoreWord.POLICIES] | 1) + 1

    def flush(self) -> None:
        """Make the words survive a power loss."""
        disk.DISK.fdatasync(self.fd, self.path)

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._file.close()


def _mapped(path: str) -> MappedFile:
    """The file, whole and reserved. It nearly always is: two calls of the system tell, seven make sure."""
    with contextlib.suppress(CorruptionError, FileNotFoundError):  # too short, or not there
        file = MappedFile.open(path, writable=True, size=CONTROL_SIZE)
        if os.fstat(file.fd).st_blocks * _BLOCK >= CONTROL_SIZE:
            return file
        file.close()
    return MappedFile.open(path, writable=True, size=CONTROL_SIZE, create=True)


def _read(path: str) -> MappedFile:
    """The file, for those that only look; zeros if a copy lacks it."""
    with contextlib.suppress(CorruptionError, FileNotFoundError):  # too short, or not there
        return MappedFile.open(path, writable=False, size=CONTROL_SIZE)
    return MemoryFile(path, b"", CONTROL_SIZE)


failpoints.declare("ledger_ids:raised", "ledger_ids:synced")


class LedgerIds:
    """This process's share of the ids.

    Role: a process reserves a block of ids, with one flush, and hands them out from memory. The first block
    is small, because most processes write to few topics; each further one is twice as large, so that
    opening a thousand topics flushes a dozen times.
    Invariants: an id is handed out once in the life of the store: the word in ``store.ctl`` is above it,
    durably, before. Ids a process leaves unused are lost, which is fine: 32 bits last for decades of
    restarts.
    Callers: any thread, with a topic's append lock held; takes the store lock, the innermost of all.
    """

    __slots__ = ("__weakref__", "_block", "_control", "_end", "_lock", "_mutex", "_next")

    def __init__(self, control: StoreControl, lock: FileLock) -> None:
        self._control = control
        self._lock = lock
        self._mutex = threads.RLock()  # guards the three below
        self._next = 0
        self._end = 0
        self._block = SMALLEST_BLOCK
        fork.register(self)

    def allocate(self, above: int) -> int:
        """A new ledger id greater than ``above``, the newest ledger of the topic it is for.

        Raises:
            StorageFullError: all 4 billion ids are used.
            CorruptionError: the word that says which is the next is damaged.
            LockTimeout: the store lock was not free in time.
            OSError: the reservation could not be made durable; no id was used.
        """
        try:
            self._mutex.acquire()
            if not above < self._next < self._end:
                # Another process is ahead on this topic, or the block is used up. What is left of it is
                # dropped: ids must rise within a topic, and keeping several blocks would buy nothing.
                self._reserve(above)
            ledger_id = self._next
            self._next += 1
            return ledger_id
        finally:
            self._mutex.release()

    def _reserve(self, above: int) -> None:
        self._next = self._end = 0
        words = self._control.words
        try:
            self._lock.acquire()
            if not self._control.is_next_id_possible():
                raise CorruptionError(
                    path=self._control.path,
                    offset=8 * StoreWord.NEXT_LEDGER_ID,
                    reason="the next ledger id is damaged",
                    remedy="close the store in every process and remove this file; it is derived again",
                )
            first = max(words[StoreWord.NEXT_LEDGER_ID], above + 1, 1)
            if first + self._block > LAST_ID:
                raise StorageFullError(
                    path=self._control.path,
                    reason="all ledger ids are used",
                    remedy="copy the messages into a new store",
                )
            # 1. Take the block. A crash from here on wastes it.
            words[StoreWord.NEXT_LEDGER_ID] = first + self._block
            if failpoints.ACTIVE:
                failpoints.hit("ledger_ids:raised")
            # 2. Durably, before one of its ids names a file: after a power loss an id must not come twice.
            self._control.flush()
            if failpoints.ACTIVE:
                failpoints.hit("ledger_ids:synced")
        finally:
            self._lock.release()
        # 3. Use it.
        self._next, self._end = first, first + self._block
        self._block = min(2 * self._block, LARGEST_BLOCK)

    def after_fork_in_child(self) -> None:
        """Drop the inherited block: what is left of it is the parent's."""
        self._mutex = threads.RLock()
        self._next = self._end = 0
