"""The log of a non-persistent topic: ledgers that turn like a ring, and begin anew with every boot."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from functools import partial

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.log_opening import PROCESS, LedgerOptions
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.segments import ClosedLedger
from embeddedpulsar._engine.log.topic_control import TopicControl
from embeddedpulsar._engine.log.trimming import EVERYTHING, remove_trimmed
from embeddedpulsar._engine.platform import descriptors, disk, failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

_LEDGERS: Final = 4
"""Ledgers in a full ring, the tail's among them: a quarter of the messages goes at once."""
_SMALLEST: Final = 8 << 10
_LONGEST_MS: Final = 1 << 40
_KEPT: Final = frozenset(
    (filenames.LOCK, filenames.TOPIC_META, filenames.POLICIES, filenames.SCHEMAS, filenames.CONTROL)
)

failpoints.declare("ring:point_stored", "ring:turned", "ring:emptied")


def volatile_options(options: LedgerOptions, ring_size: int) -> LedgerOptions:
    """The options of a log that keeps ``ring_size`` bytes, in memory as far as the system has it.

    Example:
        >>> volatile_options(LedgerOptions(durability="flush"), 16 << 20)[:1]
        (4194304,)
    """
    size = max(min(ring_size // _LEDGERS, options.segment_size), _SMALLEST)
    return options._replace(
        segment_size=size,
        first_allocation=min(options.first_allocation, size),
        max_age_ms=_LONGEST_MS,
        durability=PROCESS,
    )


class LedgerRing:
    """Gives up the oldest ledgers of a log whenever another one begins, whatever was acknowledged.

    Role: the trimming of a non-persistent topic, by the process that appends. Invariants: the closed ledgers
    that stay are together at most three times as large as a ledger becomes; the tail's always stays. A reader
    that has a ledger mapped reads it to its end, and continues with the first that stays.
    Callers: `drop_oldest` under the topic lock.

    Args:
        words: of the topic.
        view: the ledgers.
        size: bytes of a full ledger.
        remove: removes the files, or entries, of what was given up.
    """

    def __init__(self, words: memoryview, view: LogView, size: int, remove: Callable[[], object]) -> None:
        self._words: Final = words
        self._view: Final = view
        self._room: Final = (_LEDGERS - 1) * size
        self._remove: Final = remove

    def drop_oldest(self) -> None:
        """Give up what is more than there is room for."""
        # Under the topic lock, in the process that rolled. From the newest closed ledger backwards as
        # long as there is room.
        chain = self._view.chain()
        point, room = chain.tail_ledger, self._room
        for ledger in reversed(chain.closed):
            room -= _size(ledger)
            if room < 0:
                break
            point = ledger.ledger_id
        # Nothing new to give up: the point never goes back.
        words = self._words
        if point <= words[TopicWord.TRIM] or not chain.closed:
            return
        # A process that dies behind this store leaves files below the point; the next turn removes them.
        words[TopicWord.TRIM] = point
        failpoints.hit("ring:point_stored")
        self._remove()
        failpoints.hit("ring:turned")


def _size(ledger: ClosedLedger) -> int:
    return ledger.end_offset


def open_volatile_ledger(directory: str, *, options: LedgerOptions, **rest: Any) -> ManagedLedger:
    """Open the log of a non-persistent topic in a directory; arguments as of `ManagedLedger.open`.

    What another boot left, or was copied, is removed first.
    """
    # A process that may only read leaves what is there; its own view of it is empty (`read_control`).
    if options.refusal is None:
        _begin_anew(directory, options)
    ledger = ManagedLedger.open(directory, options=options, **rest)
    remove = partial(remove_trimmed, directory, ledger.view.control, EVERYTHING, math.inf, is_durable=False)
    ledger.on_rolled = LedgerRing(ledger.words, ledger.view, options.segment_size, remove).drop_oldest
    return ledger


def _begin_anew(directory: str, options: LedgerOptions) -> None:
    """Remove the log, the producers and the subscriptions of an earlier boot, if that is what is there."""
    if _is_current(directory, options.boot_id):
        return
    # The usual case took no lock. Of several processes that start after a boot, one empties the
    # directory.
    lock = FileLock(filenames.lock_path(directory))
    try:
        lock.acquire(options.lock_timeout_s)
        if _is_current(directory, options.boot_id):
            return  # another process was faster
        for name in descriptors.names_in(directory):
            if name not in _KEPT:
                _empty(os.path.join(directory, name))
        failpoints.hit("ring:emptied")
        # Last: until it is gone, the next process begins with this again.
        with contextlib.suppress(FileNotFoundError):
            disk.DISK.unlink(filenames.control_path(directory))
    finally:
        lock.release()
        lock.close()


def _is_current(directory: str, boot: bytes) -> bool:
    try:
        control = TopicControl.open(directory)
    except FileNotFoundError:
        # Without a control file: a topic that was just made has no ledgers either.
        return not filenames.ledgers_of(descriptors.names_in(directory))
    except CorruptionError:
        return False
    try:
        return control.is_trusted(boot)
    finally:
        control.close()


def _empty(path: str) -> None:
    """Remove a file, or everything in a directory, which stays."""
    if not os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            disk.DISK.unlink(path)
        return
    for name in descriptors.names_in(path):
        inner = os.path.join(path, name)
        if os.path.isdir(inner):
            _empty(inner)
            disk.DISK.rmdir(inner)
        else:
            disk.DISK.unlink(inner)
