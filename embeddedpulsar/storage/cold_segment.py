"""The segment of an offloaded ledger, as long as its log is not here."""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

from embeddedpulsar._engine.format.frame import KIND_ENTRY, MAGIC, METADATA_SIZE, FrameHeader
from embeddedpulsar._engine.format.segment_header import SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar.storage.cold_ledger import ColdLedger, map_log
from embeddedpulsar.storage.filenames import log_path
from embeddedpulsar.storage.segment import Closing, Ending, Segment
from embeddedpulsar.storage.segment_index import SegmentIndex
from embeddedpulsar.storage.topic_control import DirectoryIdentity

_OF_LOG: Final = ("file", "data", "view", "_closing")


class ColdSegment(Segment):
    """The segment of an offloaded ledger whose log is not here: header and index, and the log when it is
    first asked for.

    Invariants: what the index alone says (`frame_of`, for times, offsets and checksums) needs no log, as long
    as the slots have the checksum that the note has.
    """

    def __init__(self, directory: str, note: ColdLedger, *, lean: bool) -> None:
        # What `Segment` has, without a file; `__getattr__` adds the rest.
        self.__dict__.update(
            _is_lean=lean,
            _index=None,
            _opened_index={},
            directory=directory,
            home=DirectoryIdentity(directory),
            path=log_path(directory, note.ledger_id),
            writable=False,
            given_back=0,
            header=note.segment_header(),
            ledger_id=note.ledger_id,
            note=note,
        )
        self._checked: SegmentIndex | None = None

    note: ColdLedger

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_LOG:
            raise AttributeError(name)
        file = map_log(self.path, lean=self._is_lean)
        file.rest()
        found = {"file": file, "data": file.view.obj, "view": file.view, "_closing": Closing(file)}
        self.__dict__.update(found)  # of threads that fetch at once, the last one wins; all maps are good
        return found[name]

    @property
    def is_here(self) -> bool:
        """Whether the log was fetched."""
        return "view" in self.__dict__

    def frame_of(self, entry_id: int, end: int) -> tuple[int, FrameHeader]:
        """As of `Segment`; while the log is not here, what the index says of the frame. Its length is right,
        the checksum of its body is not."""
        if self.is_here or not self._is_index_good():
            return super().frame_of(entry_id, end)
        slot = self.index.slot(entry_id)
        is_last = entry_id + 1 >= self.note.entries
        behind = self.note.end_offset if is_last else self.index.slot(entry_id + 1).offset
        before = self.index.slot(entry_id - 1).crc if entry_id else self.header.chain_seed
        published = self.header.base_publish_ms + slot.publish_delta_ms
        return slot.offset, FrameHeader(
            *(behind - slot.offset, slot.crc, before, 0, MAGIC, KIND_ENTRY, 0, slot.flags << 16, entry_id),
            *(published, slot.count, METADATA_SIZE, 0),
        )

    def ending(self, end: int) -> Ending:
        """As of `Segment`; while the log is not here, what note and index say."""
        note = self.note
        if self.is_here or end != note.end_offset or not self._is_index_good() or not note.entries:
            return super().ending(end)
        last = note.entries - 1
        published = self.header.base_publish_ms + self.index.slot(last).publish_delta_ms
        return Ending(self.ledger_id, end, last, note.last_crc, note.messages, published)

    def _is_index_good(self) -> bool:
        """Whether the slots are those that were there when the ledger was offloaded. Looked at once."""
        index = self.index
        if self._checked is not index:
            slots = bytes(index.data[SLOTS_OFFSET : SLOTS_OFFSET + SLOT_SIZE * self.note.entries])
            if crc32(slots) != self.note.index_crc:
                return False
            self._checked = index
        return True

    def give_back(self, end: int) -> None:
        """As of `Segment`; of a log that is not here, nothing is in memory."""
        if self.is_here:
            super().give_back(end)

    def close(self) -> None:
        """As of `Segment`."""
        if self.is_here:
            super().close()
        elif self._index is not None:
            self._index.close()
            self._index = None
