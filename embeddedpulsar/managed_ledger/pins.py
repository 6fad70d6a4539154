"""Pins: files that keep ledgers of a topic from being trimmed, for users that are no subscription.

``pins/<ledger>`` in a topic's directory keeps that ledger and all behind it, for readers: while a process has
it locked, and for `LEASE_S` after it was made or used last. All who begin with one ledger share the file.
``pins/<ledger>.<key>`` keeps them while the sink of that key has a commit that is not finished.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from embeddedpulsar._engine.platform import descriptors, disk, nofollow
from embeddedpulsar._engine.platform.clock import CLOCK
from embeddedpulsar._engine.platform.mapped_file import HeldFile, is_held, remove_if_free
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.storage.filenames import pending_commit_path, pin_path, pins_path

LEASE_S: Final = 600
"""A plan of Spark is made by one process and read by others: so long may pass between, and after."""
_NS: Final = 10**6


def pin_for_reading(directory: str, ledger_id: int, now_ms: int) -> HeldFile | None:
    """Keep a ledger and all behind it, while the result is open and for `LEASE_S` from now on.

    Returns:
        None where the process may not write: a reader without that right reads unpinned.
    """
    path = pin_path(directory, ledger_id)
    try:
        _make_directory(directory)
        held = HeldFile.open(path)
    except OSError:
        return None
    nofollow.utime(path, (now_ms * _NS, now_ms * _NS))
    # A trimming that looked before this looks again: see `pinned_word`.
    word = CLOCK.wall_ns()  # finer than the time that the system would take
    nofollow.utime(pins_path(directory), (word, word))
    return held


def pin_for_commit(directory: str, ledger_id: int, key: str, pending: str, now_ms: int) -> None:
    """Keep a ledger and all behind it for `LEASE_S`, and then as long as the file ``pending`` is there.

    Args:
        directory: of the topic.
        ledger_id: the ledger.
        key: of the sink.
        pending: the path of the document that says that its commit is not finished.
        now_ms: the time of day.
    """
    _make_directory(directory)
    path, content = commit_pin(directory, ledger_id, key, pending)
    try:
        fd = disk.DISK.create_exclusive(path)
    except FileExistsError:  # of a process that was killed here
        fd = disk.DISK.open_file(path, os.O_RDWR)
    try:
        disk.DISK.pwrite_all(fd, [content], 0)
    finally:
        os.close(fd)
    nofollow.utime(path, (now_ms * _NS, now_ms * _NS))


def commit_pin(directory: str, ledger_id: int, key: str, pending: str) -> tuple[str, bytes]:
    """The path and the content of the pin of a commit."""
    return pin_path(directory, ledger_id, key), os.fsencode(os.path.relpath(pending, directory))


def unpin(directory: str, key: str) -> None:
    """Remove the pins of a sink."""
    place = pins_path(directory)
    for name in descriptors.names_in(place) if os.path.isdir(place) else ():
        if name.endswith(f".{key}"):
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(os.path.join(place, name))


def pinned_word(directory: str) -> int:
    """Changes whenever a reader pins; to be compared under the topic lock with what it was before the pins
    were looked at. 0 without any pin."""
    try:
        return os.stat(pins_path(directory)).st_mtime_ns
    except FileNotFoundError:
        return 0


def pinned_from(directory: str, now_ms: int, *, removes: bool, with_readers: bool = True) -> Position | None:
    """The position behind which pins keep everything; None if there is no pin that counts.

    Args:
        directory: of the topic.
        now_ms: the time of day.
        removes: whether pins that count no more are removed.
        with_readers: whether pins of readers count, too.
    """
    place = pins_path(directory)
    ledgers = []
    try:
        names = descriptors.names_in(place)
    except FileNotFoundError:
        return None
    for name in names:
        digits, _, key = name.partition(".")
        path = os.path.join(place, name)
        with contextlib.suppress(FileNotFoundError):
            age_ms = now_ms - os.stat(path).st_mtime_ns // _NS
            if not key and not with_readers:
                continue
            is_young = abs(age_ms) <= LEASE_S * 1000
            if is_young or (_is_pending(directory, path, key) if key else is_held(path)):
                ledgers.append(int(digits))
                if removes and not is_young and not key:  # the lease begins when its reader dies, or nearly
                    nofollow.utime(path, (now_ms * _NS, now_ms * _NS))
            elif removes and key:
                disk.DISK.unlink(path)
            elif removes and not remove_if_free(path):
                ledgers.append(int(digits))  # of a reader that came meanwhile
    return Position(min(ledgers), -1) if ledgers else None


def _is_pending(directory: str, path: str, key: str) -> bool:
    """Whether the commit is not finished. What names anything but a file of its sink, as a damaged pin does,
    is not followed: the sink of the pin's key is asked."""
    pending = os.path.normpath(os.path.join(directory, os.fsdecode(disk.DISK.read_file(path))))
    if os.path.basename(os.path.dirname(pending)) == key and os.path.isfile(pending):
        return True
    return os.path.isfile(pending_commit_path(directory, key))


def _make_directory(directory: str) -> None:
    with contextlib.suppress(FileExistsError):
        disk.DISK.mkdir(pins_path(directory))
