"""The ctl of a topic: its control words (docs/format/control.md), and the identity of its directory.

The ctl of a topic or a subscription: a mapped file of control words, and whether they may be believed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

from embeddedpulsar._engine.filenames import CONTROL, control_path, ledgers_of, log_path, under_construction
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    CONTROL_SIZE,
    KIND_STORE,
    KIND_TOPIC,
    LARGEST_COUNT,
    ControlHeader,
    TopicWord,
    are_possible,
    pack_control_header,
    parse_control_header,
    split_tail,
)
from embeddedpulsar._engine.format.frame import FIRST_FRAME_OFFSET, HEADER_SIZE
from embeddedpulsar._engine.platform import descriptors, disk, lease, threads, timing
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import CorruptionError, StorageError, StoreGoneError, UnsupportedFormatVersion
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import ClassVar, Final, Self

STORE_CONTROL: Final = "store.ctl"
CLIENTS: Final = "clients"
FIRST_WORD: Final = CONTROL_HEADER_SIZE // 8
_DEPTH: Final = 5  # of a subscription's directory below the root: topics/<xx>/<dir>/subscriptions/<dir>


class ControlFile:
    """Control words, and the identity of the file they are in.

    Durable: nothing. The words are believed only in the boot, and on the inode, they were written in
    (`is_trusted`). Otherwise they are derived again, and then made true by `adopt`.
    Callers: any thread; `create` and `adopt` under the lock of the directory.
    """

    __slots__ = ("_file", "header", "path", "view", "words")
    _kind: ClassVar[int]
    _size: ClassVar[int]

    def __init__(self, file: MappedFile) -> None:
        self._file: Final = file
        self.path: Final = file.path
        self.view: Final = file.view
        self.words: Final = file.words
        self.header: ControlHeader | None = self._parse()

    @classmethod
    def open(cls, directory: str, *, writable: bool = True) -> Self:
        """Map the ctl of a directory; with ``writable=False`` for those that only look at it.

        Raises:
            FileNotFoundError: there is none.
            CorruptionError: it is too short to be one.
            UnsupportedFormatVersion: written by a newer release, or in the other byte order.
        """
        file = MappedFile.open(control_path(directory), writable=writable, size=cls._size, lean=True)
        try:
            return cls(file)
        except BaseException:
            file.close()
            raise

    @classmethod
    def create(
        cls,
        directory: str,
        incarnation: int = 0,
        boot: bytes = b"",
        words: Mapping[int, int] = MappingProxyType({}),
    ) -> Self:
        """Make a ctl where there is none, or replace one that was cut short. Under the lock.

        The file gets its name when it is complete. Without ``boot`` it is not trusted until `adopt`; with it,
        the ``words`` are, and all others are zeros.
        """
        # A control file under its name is complete. One that was cut short is replaced under the
        # lock; processes that have the old one mapped notice that its name leads elsewhere.
        path = control_path(directory)
        building = under_construction(path)
        if os.path.lexists(building):  # of a process that died here
            disk.DISK.unlink(building)
        file = MappedFile.open(building, writable=True, size=cls._size, create=True, lean=True)
        try:
            file.allocate(cls._size)  # a large one is a hole until then
            for word, value in words.items():
                file.words[word] = value
            if boot:
                cls._store_header(file, incarnation, boot)
            disk.DISK.replace(building, path)
            file.note_renamed(path)  # under the lock no other gets this name
            return cls(file)
        except BaseException:
            file.close()
            raise

    def _parse(self) -> ControlHeader | None:
        data = bytes(self.view[:CONTROL_HEADER_SIZE])
        threads.keep_order()  # loads, too: of the words behind a whole header
        if not any(data):
            return None  # of a new file: no error, which takes as long as the rest of its opening
        try:
            return parse_control_header(data, self._kind)
        except CorruptionError:
            return None  # not trusted; recovery makes it anew
        except UnsupportedFormatVersion as e:
            raise e.at(self.path) from None

    @classmethod
    def _store_header(cls, file: MappedFile, incarnation: int, boot: bytes) -> None:
        header = ControlHeader(cls._kind, boot, file.device, file.inode, incarnation)
        threads.keep_order()  # who sees the header believes the words
        file.view[:CONTROL_HEADER_SIZE] = pack_control_header(header)

    @property
    def is_damaged(self) -> bool:
        """Whether it has a header that does not verify. A new file may have none yet."""
        return self.header is None and any(self.view[:CONTROL_HEADER_SIZE])

    def is_trusted(self, boot: bytes) -> bool:
        """Whether the words were written in this boot, into this very file (it may have been copied)."""
        # Boot: words are not flushed, so after a reboot they may be of any moment. Device and inode:
        # a copy has the words of its original.
        header = self.header
        return (
            header is not None
            and header.boot_id == boot
            and (header.device, header.inode) == (self._file.device, self._file.inode)
        )

    def is_possible(self) -> bool:
        """See `are_possible`. Without the lock, words may be seen in another order than they were stored."""
        return are_possible(self._kind, self.words) or (
            threads.await_stores() and are_possible(self._kind, self.words)
        )

    def clear(self, *kept: int) -> None:
        """Zero every word but these: what a recovery does not derive is not believed. Under the lock."""
        # One store each. A word in the middle of this may be read by an onlooker, which asks for
        # trust before.
        words = self.words
        for word in range(FIRST_WORD, len(words)):
            if word not in kept:
                words[word] = 0

    def raise_epoch(self, word: int) -> None:
        """Make what other processes follow void: the next number, or one that none of them has if the word is
        damaged."""
        # A damaged epoch may be the largest number: adding one would wrap to one that a process may
        # have seen.
        epoch = self.words[word]
        self.words[word] = epoch + 1 if epoch < LARGEST_COUNT else int.from_bytes(os.urandom(5), "big") + 1

    def reload(self) -> None:
        """Read the header again: another process may have recovered the words while this one waited."""
        self.header = self._parse()

    def adopt(self, incarnation: int, boot: bytes) -> None:
        """Declare the words true from now on. The last step of a recovery, under the lock."""
        self._store_header(self._file, incarnation, boot)
        self.header = self._parse()

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._file.close()


def is_of_this_boot(header: ControlHeader, directory: str) -> bool:
    """Whether the words of a topic or subscription in ``directory``, with that header, are of this boot.

    Containers may show another boot id than their neighbours. A process that opens the store takes the boot
    that the processes in it agree on (`_engine.store.store_session`); one that only reads the files asks
    whether any
    of those processes lives: then the machine was not rebooted since, and the words of their boot are true.
    """
    return header.boot_id == timing.boot_id() or header.boot_id == _boot_of_neighbours(directory)


def boot_in(directory: str) -> bytes:
    """The boot whose words are true in a directory of a store, by the rule of `is_of_this_boot`."""
    return _boot_of_neighbours(directory) or timing.boot_id()


def _boot_of_neighbours(directory: str) -> bytes | None:
    """The boot of the living processes of the store; None if there are none, or no store."""
    # A topic lies two levels below the root, or three where there are many, and a subscription two
    # more.
    root = os.path.abspath(directory)
    for _ in range(_DEPTH):
        root = os.path.dirname(root)
        header = _header(os.path.join(root, STORE_CONTROL))
        if header is not None:
            return header.boot_id if has_living(root) else None
    return None


def _header(path: str) -> ControlHeader | None:
    try:
        return parse_control_header(disk.DISK.read_file(path, CONTROL_HEADER_SIZE), KIND_STORE)
    except (OSError, CorruptionError):
        return None


def has_living(root: str) -> bool:
    """Whether a process has the store in ``root`` open, as far as this one can see."""
    # The bytes on ``store.ctl`` answer at once. Leases are asked where the file system has no such
    # locks.
    if lease.has_any(os.path.join(root, STORE_CONTROL)):
        return True
    clients = os.path.join(root, CLIENTS)
    if not os.path.isdir(clients):
        return False
    for name in descriptors.names_in(clients):
        with contextlib.suppress(OSError):
            if lease.is_held(os.path.join(clients, name)):
                return True
    return False


# Words this package adds on the lines of their neighbours; like all words they mean nothing after a reboot.
DIRTY_SINCE_MS: Final = TopicWord.SYNCED + 1
"""Wall time since when entries of level "interval" wait for a sync; 0: none do. A hint, without a lock."""
FLUSHER: Final = TopicWord.SYNCED + 2
"""Which `GroupCommit` had the sync lock last, by a random number: it alone may flush without that lock."""
FLUSHING: Final = TopicWord.SYNCED + 3
"""pid << 32 | the low half of `FLUSHER`, of a flush that is under way without the sync lock; 0: none is."""
TOUCHED: Final = TopicWord.ALLOCATED + 2
"""Bytes of the tail segment's log whose pages are in memory, zeroed ahead of the writers."""
POISON_FROM: Final = TopicWord.STATE + 1
POISON_TO: Final = TopicWord.STATE + 2
"""Tail words: entries that end in (from, to] were hit by a failed flush and are never called durable."""

MUST_ROLL: Final = 1 << 0
"""State bit: the next append starts a new ledger (after a recovery, a failed flush, damage at the tail)."""
TERMINATED: Final = 1 << 1
"""State bit: nothing can be appended any more; reading continues."""
DELETED: Final = 1 << 2
"""State bit: the topic's files are being removed."""

HELD: Final = 1 << 3
"""State bit: the backlog is beyond its quota, and producers wait or are refused. Found out again after a
reboot."""

ATTENTION: Final = 1
"""Owner word without an owner (pid 0): each process drops its cached state and looks at the state word.

The hot path reads the owner word anyway, so a rare event costs it nothing.
"""
HELD_TEXT: Final = "the backlog of the topic is beyond its quota"
_REMEDY: Final = "nothing is stored there by what is open here; close the client, and open a new one"

_EVERY_S: Final = 0.01


class DirectoryIdentity(NamedTuple):
    """The directory of a topic, and the identity of the ctl in it.

    Invariant: its owner has that ctl mapped, so the inode is not given to another file meanwhile. A
    store that is removed and made again, or a copy in its place, has other ones.
    """

    directory: str
    device: int = 0
    inode: int = 0

    def is_current(self) -> bool:
        """Whether the path still leads to it. About 1.5 us."""
        try:
            status = os.lstat(f"{self.directory}{os.sep}{CONTROL}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (status.st_dev, status.st_ino) == (self.device, self.inode)

    def check(self) -> None:
        """Raise if the path leads elsewhere."""
        if self.inode and not self.is_current():
            raise gone(self.directory)


class ThrottledCheck:
    """Makes a check that is too slow to be made every time: 10 ms late at most. One thread at a time."""

    __slots__ = ("_check", "_looked_at", "_monotonic")

    def __init__(self, check: Callable[[], object], monotonic: Callable[[], float]) -> None:
        self._check: Final = check
        self._monotonic: Final = monotonic
        self._looked_at = -1.0

    def check_if_due(self) -> None:
        """Make the check, unless it was made a moment ago."""
        # After the check, so that one that raises is made again by the next call.
        now = self._monotonic()
        if now - self._looked_at >= _EVERY_S or self._looked_at < 0:
            self._check()
            self._looked_at = now


def gone(path: str) -> StoreGoneError:
    """The error that says that ``path``, a store or a topic, is not what was opened."""
    return StoreGoneError(
        path=path,
        reason="it was removed, moved or replaced while it was open in this process",
        remedy=_REMEDY,
    )


def overwritten(path: str, reason: str) -> CorruptionError:
    """The error that says that a control file was overwritten while it was in use."""
    return CorruptionError(
        path=path,
        reason=f"the control file was overwritten while it was in use: {reason}",
        remedy="close the topic in all processes, and open it again: its words are derived again",
    )


def is_deleted(words: memoryview) -> bool:
    """Whether the words say that their topic was deleted. False if they are closed: then it is unknown."""
    try:
        return bool(words[TopicWord.STATE] & DELETED)
    except ValueError:
        return False


class TopicControl(ControlFile):
    """The words of a topic and the identity of the file they are in.

    Role: one per process and topic; all other classes work on `words`. A word with several writers is changed
    only under the lock that docs/format/control.md names for it, by one aligned store.
    Durable: nothing; recovery derives the words from the log where they are not trusted. Callers: any thread;
    `create` and `adopt` under the topic lock.
    """

    __slots__ = ("home",)
    _kind = KIND_TOPIC
    _size = CONTROL_SIZE

    def __init__(self, file: MappedFile) -> None:
        self.home: Final = DirectoryIdentity(os.path.dirname(file.path), file.device, file.inode)
        super().__init__(file)

    @property
    def is_derived(self) -> bool:
        """Whether the words are not those of the file, which are not true; see `DerivedControl`."""
        return False

    @property
    def place_check(self) -> Callable[[], bool]:
        """Tells whether these words are still those of the topic."""
        return self.home.is_current

    def has_lost_tail(self) -> bool:
        """Whether the tail word says that there is no ledger, and there is one with a message.

        A process that is killed while it makes the first ledger leaves one that has none: the word is stored
        before the first message is written.
        """
        # Only a log with a message proves that the word is wrong: nothing below the frames tells
        # more.
        if self.tail:
            return False
        directory = self.home.directory
        ledgers = ledgers_of(descriptors.names_in(directory))
        return any(has_frame(log_path(directory, ledger)) for ledger in ledgers)

    def check_incarnation(self, incarnation: int) -> None:
        """Raise if this ctl belongs to another topic of the same name.

        Raises:
            StorageError: the topic was deleted and created again since the caller looked it up.
        """
        if self.header is not None and self.header.incarnation != incarnation:
            raise StorageError(
                path=self.path,
                reason=f"this is incarnation {self.header.incarnation} of the topic, not {incarnation}",
                remedy="it was deleted and created again; look it up again",
            )

    def check_in_place(self) -> None:
        """Refuse to use files that the path of the topic does not lead to any more. About 1.5 us.

        Does not notice a topic deleted by `delete_topic`: the state word shows that.

        Raises:
            StoreGoneError: the store or the topic was removed, moved or replaced.
        """
        # A topic that is being deleted loses its directory too; its state word is the better reason.
        if not self.home.is_current() and not is_deleted(self.words):
            raise gone(self.home.directory)

    @property
    def tail(self) -> int:
        """The commit word: ledger and end offset; 0 before the first ledger."""
        return int(self.words[TopicWord.TAIL])

    @property
    def tail_position(self) -> tuple[int, int]:
        """(ledger id, end offset) of the tail."""
        return split_tail(self.words[TopicWord.TAIL])

    def check_words(self) -> None:
        """To be called before something is removed, or a ledger begun, because of the words.

        Raises:
            CorruptionError: the words are not those that were stored.
        """
        header = self._parse()
        if (
            header is None
            or (header.device, header.inode) != (self.home.device, self.home.inode)
            or not self.is_possible()
        ):
            raise overwritten(self.path, "its words are noise, so nothing is removed by them")

    def trim_point(self) -> int:
        """Ledgers before this one were given up. For those who remove what is stored of them.

        Raises:
            CorruptionError: the words are not those that were stored.
        """
        # The header first: a recovery derives the words, and stores the header after them. So a word that is
        # read behind a whole header was derived.
        self.check_words()
        return int(self.words[TopicWord.TRIM])

    def describe_owner(self) -> str:
        """The process inside the topic lock, for the text of `LockTimeout`."""
        try:
            # Read without the lock, for a text.
            owner = self.words[TopicWord.OWNER]
        except ValueError:
            return ""
        pid = owner >> 32
        return f"process {pid}" if pid else ""

    def demand(self, state_bits: int) -> None:
        """Set bits of the state word and make every process notice. Under the topic lock."""
        # The bits before the mark: a process that sees the mark finds the reason.
        self.words[TopicWord.STATE] |= state_bits
        self.words[TopicWord.OWNER] = ATTENTION

    def demand_under(self, lock: FileLock, timeout_s: float, state_bits: int) -> None:
        """`demand`, taking the topic lock for it."""
        try:
            lock.acquire(timeout_s)
            self.demand(state_bits)
        finally:
            lock.release()

    def flush(self) -> None:
        """Make the words survive a power loss, as far as recovery believes them (the trim point)."""
        self._file.flush()


def has_frame(segment: str) -> bool:
    """Whether a message was written into a segment."""
    try:
        start = disk.DISK.read_start(segment, FIRST_FRAME_OFFSET + HEADER_SIZE)[1]
    except FileNotFoundError:
        return False  # removed meanwhile
    return any(start[FIRST_FRAME_OFFSET:])
