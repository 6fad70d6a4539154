"""A topic of which nothing may be written: its control words, and the read side of its log.

Where the control words are not true (after a reboot, in a copied directory, or where they are damaged), those
that a recovery would store are derived from the segments, into the memory of this process. No file is
changed: the first process that may write recovers the topic.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar import damage
from embeddedpulsar._engine.format.control import CONTROL_SIZE
from embeddedpulsar._engine.format.segment_header import SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar._engine.platform.mapped_file import NO_FILE, MemoryFile
from embeddedpulsar.damage import Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.storage.filenames import control_path, index_path
from embeddedpulsar.storage.log_view import LogView
from embeddedpulsar.storage.segment_cache import SEGMENTS
from embeddedpulsar.storage.segment_index import index_in_memory
from embeddedpulsar.storage.topic_control import TopicControl


class DerivedControl(TopicControl):
    """Control words in the memory of this process, in the place of words in the file that are not true.

    Invariants: they do not follow the file. Once that changes, because a process recovered the topic,
    `is_outdated` says so, and the topic is to be opened anew.
    """

    __slots__ = ("_read",)

    def __init__(self, directory: str) -> None:
        path = control_path(directory)
        status, data = _read(path)
        self._read: Final = data
        super().__init__(MemoryFile(path, data, CONTROL_SIZE, status))

    @property
    def is_outdated(self) -> bool:
        """Whether the file is another one by now, or has other contents."""
        status, data = _read(self.path)
        return (data, status.st_dev, status.st_ino) != (self._read, self.home.device, self.home.inode)

    @property
    def is_derived(self) -> bool:
        """True."""
        return True

    @property
    def place_check(self) -> Callable[[], bool]:
        """As of `TopicControl`."""
        return lambda: not self.is_outdated

    def check_in_place(self) -> None:
        """Do nothing: what is read is read by names."""


def _read(path: str) -> tuple[os.stat_result, bytes]:
    with contextlib.suppress(FileNotFoundError):
        return disk.DISK.read_start(path, CONTROL_SIZE)
    return NO_FILE, b""


def read_control(
    directory: str, incarnation: int, boot: bytes, report: DamageHook, *, is_kept: bool = True
) -> TopicControl:
    """The control words of a topic: mapped for reading where they are true, else derived.

    Args:
        directory: of the topic.
        incarnation: which life of the topic is meant.
        boot: in which control words are believed.
        report: called with what the segments lack.
        is_kept: whether the log outlives a boot; else it is empty after one.

    Raises:
        FileNotFoundError: the directory is gone.
        StorageError: it belongs to another incarnation of the topic, or the segments contradict each other.
    """
    with contextlib.suppress(FileNotFoundError, CorruptionError):
        control = TopicControl.open(directory, writable=False)
        try:
            control.check_incarnation(incarnation)
            if control.is_trusted(boot) and control.is_possible() and not control.has_lost_tail():
                return control
        except BaseException:
            control.close()
            raise
        control.close()
    derived = DerivedControl(directory)
    derived.check_incarnation(incarnation)
    if not is_kept:
        derived.clear()
        return derived
    late_import("embeddedpulsar.storage.recovery.recovery").derive_words(directory, derived, report)
    return derived


class ReadOnlyLogView(LogView):
    """`LogView` for a process that may not write: an index that does not fit is derived into its memory."""

    def barrier(self) -> None:
        """Do nothing. The lock orders the stores of its holders on machines that reorder; without it, an
        entry that was stored a moment ago may look damaged there, once."""

    def _repair_index(self, ledger_id: int, entry_id: int) -> bytes:
        """Derive the index of a ledger from its frames, use it in this process, and return its slots."""
        SEGMENTS.forget(self.control.home, ledger_id)  # its owner may have repaired it
        segment = self.segment(ledger_id)
        last, _ = self.extent(ledger_id)
        if entry_id <= last and self._fits(segment, entry_id):
            index = segment.index.data
            return bytes(index[SLOTS_OFFSET : SLOTS_OFFSET + SLOT_SIZE * (last + 1)])
        slots = self._derived_slots(segment)
        path = index_path(self.directory, ledger_id)
        segment.use_index(index_in_memory(path, segment.header, slots))
        reason = "it does not fit its segment and is derived from the log in memory: the store is read-only"
        self.report(Damage(path, ledger_id, -1, -1, 0, 0, reason, damage.INDEX))
        return slots
