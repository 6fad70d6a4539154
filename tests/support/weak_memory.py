"""Memory as other processors may see it: old words beside new ones, for a reader that has passed no barrier.

`Stores` is what a writer stored into mapped files between two moments, a change for each aligned word of 8
bytes. A test puts any of them back: the reader, which has the same files mapped, then sees the state that a
processor may show that reorders. The rest arrives at the reader's next barrier (`reordering`): a lock that it
takes, or a pause that is long enough. That is more than any processor permits, as words of one line of the
cache arrive together on most.

`Processor` is a view of words with stores that only it sees, until it passes a fence: what every processor
does, x86 as well.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from embeddedpulsar._engine.platform import file_lock, threads

WORD = 8


class Change(NamedTuple):
    """One aligned word that was stored."""

    path: str
    offset: int
    old: bytes
    new: bytes


class Stores:
    """The words that differ between two moments.

    Args:
        paths: the files.

    Attributes:
        before: what the files had, by path.
        changes: the words, in the order of the files.
    """

    def __init__(self, *paths: str) -> None:
        self.before = {path: _read(path) for path in paths}
        self.changes: list[Change] = []
        self._hidden: list[Change] = []

    def end(self, *paths: str) -> None:
        """The writer is done; ``paths`` are files that it made meanwhile: nothing was seen of them before."""
        for path in (*self.before, *paths):
            new = _read(path)
            old = self.before.get(path, b"").ljust(len(new), b"\0")
            self.changes += [
                Change(path, at, old[at : at + WORD], new[at : at + WORD])
                for at in range(0, len(new), WORD)
                if old[at : at + WORD] != new[at : at + WORD]
            ]

    def of(self, path: str, start: int = 0, stop: int = 1 << 40) -> list[Change]:
        """The words of a stretch of a file."""
        return [each for each in self.changes if each.path == path and start <= each.offset < stop]

    def show(self, seen: Sequence[Change]) -> None:
        """Let the reader see these alone."""
        shown = set(seen)
        self._hidden = [each for each in self.changes if each not in shown]
        _write([(each, each.new if each in shown else each.old) for each in self.changes])

    def deliver(self) -> None:
        """Let the reader see the rest. What it stored itself meanwhile stays."""
        hidden, self._hidden = self._hidden, []
        known = {path: _read(path) for path in {each.path for each in hidden}}
        _write(
            [
                (each, each.new)
                for each in hidden
                if known[each.path][each.offset : each.offset + WORD] == each.old
            ]
        )


def subsets(units: Sequence[Sequence[Change]]) -> Iterator[list[Change]]:
    """Every choice of some of the units, the empty and the full one included."""
    for count in range(len(units) + 1):
        for chosen in combinations(units, count):
            yield [change for unit in chosen for change in unit]


def samples(changes: Sequence[Change], count: int, seed: int) -> Iterator[list[Change]]:
    """So many choices of single words: few that are not seen yet, half of them, few that are."""
    chance = random.Random(seed)
    for number in range(count):
        share = (0.02, 0.5, 0.98)[number % 3]
        yield [change for change in changes if chance.random() < share]


@contextlib.contextmanager
def reordering(deliver: Callable[[], object] = int) -> Iterator[list[str]]:
    """A processor that reorders. ``deliver`` is called at each barrier, the names of which are returned:
    "lock", "pause" and "fence"."""
    passed: list[str] = []
    saved = threads.REORDERS, threads.await_stores, threads.fence, file_lock.flock
    flock = file_lock.flock

    def pause() -> bool:
        passed.append("pause")
        deliver()
        return True

    def fence() -> None:
        passed.append("fence")

    def locked(fd: int, operation: int) -> object:
        result = flock(fd, operation)
        passed.append("lock")
        deliver()
        return result

    threads.REORDERS, threads.await_stores, threads.fence = True, pause, fence
    file_lock.flock = locked
    try:
        yield passed
    finally:
        threads.REORDERS, threads.await_stores, threads.fence, file_lock.flock = saved


class Processor:
    """Words as one processor has them: it sees its own stores at once, others do behind `drain`."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.stored: dict[int, int] = {}

    def __getitem__(self, at: int) -> int:
        return self.stored.get(at, self.words[at])

    def __setitem__(self, at: int, value: int) -> None:
        self.stored[at] = value

    def __len__(self) -> int:
        return len(self.words)

    def drain(self) -> None:
        """Let all see what was stored."""
        for at, value in self.stored.items():
            self.words[at] = value
        self.stored.clear()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(words: list[tuple[Change, bytes]]) -> None:
    # By calls of the system: maps of the files see it at once.
    descriptors: dict[str, int] = {}
    try:
        for change, data in words:
            if change.path not in descriptors:
                descriptors[change.path] = os.open(change.path, os.O_RDWR)
            os.pwrite(descriptors[change.path], data, change.offset)
    finally:
        for fd in descriptors.values():
            os.close(fd)
