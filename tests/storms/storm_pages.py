"""What the processes of a storm leave behind when they are killed.

One page of words, each with one writer, and one file of receipts per consumer. Both are in the page cache the
moment they are written, so nothing that was said is lost with its speaker.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from embeddedpulsar._engine.platform.mapped_file import MappedFile

RECEIVED: Final = 1
ACKNOWLEDGED: Final = 2
ATTACHED: Final = 3
ACKNOWLEDGED_UP_TO: Final = 4

STOP: Final = 0
DRAIN: Final = 1
_FIRST: Final = 64
_WORDS_EACH: Final = 8
_REACHED: Final = 3
_SIZE: Final = 32 * 1024
_RECEIPT: Final = struct.Struct("<IIQQQ")  # kind, life, ledger, entry, batch index + 1


class Page:
    """The words all processes of a storm share.

    ``acknowledged[p]``: how many messages of producer ``p`` are stored, for all it was told. ``progress``: a
    count that moves while a process gets on. Written by the process itself only.
    """

    def __init__(self, path: str) -> None:
        self._file = MappedFile.open(path, writable=True, size=_SIZE, create=True)
        self.words = self._file.words

    @property
    def is_stopped(self) -> bool:
        """Producers are to end."""
        return bool(self.words[STOP])

    @property
    def is_draining(self) -> bool:
        """Producers have ended; consumers end when nothing more comes."""
        return bool(self.words[DRAIN])

    def stop(self) -> None:
        self.words[STOP] = 1

    def drain(self) -> None:
        self.words[DRAIN] = 1

    @staticmethod
    def slot(member: int) -> int:
        """The first of the words of process ``member``: stored, lives, progress."""
        return _FIRST + member * _WORDS_EACH

    def stored(self, member: int) -> int:
        """Messages the producer was told are stored."""
        return int(self.words[self.slot(member)])

    def set_stored(self, member: int, count: int) -> None:
        self.words[self.slot(member)] = count

    def next_life(self, member: int) -> int:
        """Count one more life of a process, and return its number (from 1). Called by the supervisor."""
        at = self.slot(member) + 1
        life = self.words[at] + 1
        self.words[at] = life
        return int(life)

    def lives(self, member: int) -> int:
        return int(self.words[self.slot(member) + 1])

    def move(self, member: int) -> None:
        """Say that something got done."""
        self.words[self.slot(member) + 2] += 1

    def progress(self, member: int) -> int:
        return int(self.words[self.slot(member) + 2])

    def reach(self, member: int, producer: int, number: int) -> None:
        """Consumer ``member`` got a message of a producer (0 or 1) with this number, from 0."""
        at = self.slot(member) + _REACHED + producer
        if self.words[at] <= number:
            self.words[at] = number + 1

    def reached(self, member: int, producer: int) -> int:
        """One more than the highest number it got of that producer."""
        return int(self.words[self.slot(member) + _REACHED + producer])

    def close(self) -> None:
        self._file.close()


class Receipt(NamedTuple):
    """One thing a consumer saw or did."""

    kind: int
    life: int
    ledger_id: int
    entry_id: int
    batch_index: int


class Receipts:
    """The diary of one consumer: one write call per line, so a line is there or not, never half."""

    def __init__(self, path: str, life: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._life = life

    def write(self, kind: int, ledger_id: int = 0, entry_id: int = 0, batch_index: int = -1) -> None:
        os.write(self._fd, _RECEIPT.pack(kind, self._life, ledger_id, entry_id, batch_index + 1))

    def close(self) -> None:
        os.close(self._fd)


def read_receipts(path: str) -> Iterator[Receipt]:
    """All lines of a diary, in order."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        while lines := file.read(_RECEIPT.size * 4096):
            for kind, life, ledger_id, entry_id, batch_index in _RECEIPT.iter_unpack(lines):
                yield Receipt(kind, life, ledger_id, entry_id, batch_index - 1)


def last_acknowledged(path: str) -> tuple[int, int, int]:
    """Place of the newest acknowledgement in a diary; (0, -1, -1) when there is none."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            while end:
                end -= _RECEIPT.size
                file.seek(end)
                kind, _, ledger_id, entry_id, batch_index = _RECEIPT.unpack(file.read(_RECEIPT.size))
                if kind == ACKNOWLEDGED:
                    return ledger_id, entry_id, batch_index - 1
    except FileNotFoundError:
        return 0, -1, -1
    return 0, -1, -1
