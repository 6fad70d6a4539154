"""The ctl of a topic or a subscription: a mapped file of control words, and whether they may be believed."""

from __future__ import annotations

import contextlib
import os
from typing import ClassVar, Final, Self

from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    KIND_STORE,
    LARGEST_COUNT,
    ControlHeader,
    are_possible,
    pack_control_header,
    parse_control_header,
)
from embeddedpulsar._engine.platform import clock, descriptors, disk, lease
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.storage.filenames import control_path, under_construction

STORE_CONTROL: Final = "store.ctl"
CLIENTS: Final = "clients"
FIRST_WORD: Final = CONTROL_HEADER_SIZE // 8
_DEPTH: Final = 4  # of a subscription's directory below the root


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
    def create(cls, directory: str, incarnation: int = 0, boot: bytes = b"") -> Self:
        """Make a ctl where there is none, or replace one that was cut short. Under the lock.

        The file gets its name when it is complete. Without ``boot`` it is not trusted until `adopt`.
        """
        path = control_path(directory)
        building = under_construction(path)
        if os.path.lexists(building):  # of a process that died here
            disk.DISK.unlink(building)
        file = MappedFile.open(building, writable=True, size=cls._size, create=True)
        try:
            if boot:
                cls._store_header(file, incarnation, boot)
            disk.DISK.replace(building, path)
        finally:
            file.close()
        return cls.open(directory)

    def _parse(self) -> ControlHeader | None:
        try:
            return parse_control_header(bytes(self.view[:CONTROL_HEADER_SIZE]), self._kind)
        except CorruptionError:
            return None  # not trusted; recovery makes it anew
        except UnsupportedFormatVersion as e:
            raise e.at(self.path) from None

    @classmethod
    def _store_header(cls, file: MappedFile, incarnation: int, boot: bytes) -> None:
        header = ControlHeader(cls._kind, boot, file.device, file.inode, incarnation)
        file.view[:CONTROL_HEADER_SIZE] = pack_control_header(header)

    @property
    def is_damaged(self) -> bool:
        """Whether it has a header that does not verify. A new file may have none yet."""
        return self.header is None and any(self.view[:CONTROL_HEADER_SIZE])

    def is_trusted(self, boot: bytes) -> bool:
        """Whether the words were written in this boot, into this very file (it may have been copied)."""
        header = self.header
        return (
            header is not None
            and header.boot_id == boot
            and (header.device, header.inode) == (self._file.device, self._file.inode)
        )

    def is_possible(self) -> bool:
        """See `are_possible`."""
        return are_possible(self._kind, self.words)

    def clear(self, *kept: int) -> None:
        """Zero every word but these: what a recovery does not derive is not believed. Under the lock."""
        words = self.words
        for word in range(FIRST_WORD, len(words)):
            if word not in kept:
                words[word] = 0

    def raise_epoch(self, word: int) -> None:
        """Make what other processes follow void: the next number, or one that none of them has if the word is
        damaged."""
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
    that the processes in it agree on (`topic.store_control`); one that only reads the files asks whether any
    of those processes lives: then the machine was not rebooted since, and the words of their boot are true.
    """
    return header.boot_id == clock.boot_id() or header.boot_id == _boot_of_neighbours(directory)


def _boot_of_neighbours(directory: str) -> bytes | None:
    """The boot of the living processes of the store; None if there are none, or no store."""
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
