"""The ctl of a topic: its control words (docs/format/control.md), and the identity of its directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.format.control import CONTROL_SIZE, KIND_TOPIC, TopicWord, split_tail
from embeddedpulsar._engine.format.frame import HEADER_SIZE
from embeddedpulsar._engine.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar._engine.platform import descriptors, disk
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import StorageError, StoreGoneError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.control_file import ControlFile
from embeddedpulsar.storage.filenames import CONTROL, ledgers_of, log_path

# Words this package adds on the lines of their neighbours; like all words they mean nothing after a reboot.
DIRTY_SINCE_MS: Final = TopicWord.SYNCED + 1
"""Wall time since when entries of level "interval" wait for a sync; 0: none do. A hint, without a lock."""
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

    def look(self) -> None:
        """Make the check, unless it was made a moment ago."""
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
        if self.tail:
            return False
        directory = self.home.directory
        ledgers = ledgers_of(descriptors.names_in(directory))
        return any(_has_frame(log_path(directory, ledger)) for ledger in ledgers)

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

    def describe_owner(self) -> str:
        """The process inside the topic lock, for the text of `LockTimeout`."""
        try:
            owner = self.words[TopicWord.OWNER]
        except ValueError:
            return ""
        pid = owner >> 32
        return f"process {pid}" if pid else ""

    def demand(self, state_bits: int) -> None:
        """Set bits of the state word and make every process notice. Under the topic lock."""
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


def _has_frame(segment: str) -> bool:
    try:
        start = disk.DISK.read_start(segment, FIRST_FRAME_OFFSET + HEADER_SIZE)[1]
    except FileNotFoundError:
        return False  # removed meanwhile
    return any(start[FIRST_FRAME_OFFSET:])
