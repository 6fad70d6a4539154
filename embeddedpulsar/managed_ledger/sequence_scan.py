"""The sequence ids in the log by producer name: deduplication needs them after a producer died."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from embeddedpulsar._engine.format.control import split_tail
from embeddedpulsar._engine.format.entry import decode
from embeddedpulsar._engine.format.entry_decoder import METADATA
from embeddedpulsar._engine.format.frame import (
    FLAG_SEQUENCE_IDS,
    HEADER,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    MIN_FRAME_SIZE,
    TRAILER,
    TRAILER_SIZE,
    FrameHeader,
    read_header,
    verify_body,
)
from embeddedpulsar._engine.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.managed_ledger.entry_cursor import EntryCursor
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.storage.log_view import LogView
from embeddedpulsar.storage.segment import Segment

_PROGRESS_EVERY: Final = 1 << 16
_NAME_AT: Final = HEADER_SIZE + METADATA.size
_ENTRIES_A_LOOK: Final = 256
_BYTES_A_LOOK: Final = 8 << 20

Progress = Callable[[int], object]


class SequenceScan:
    """The highest sequence id of each producer in a stretch of the log.

    Role: goes from the end to the front, by the lengths that frames end with, and looks at their metadata
    alone: some 1 us per entry. What the answer rests on is verified. Where only certain names are wanted it
    stops when each was met once, because their ids rise while duplicates are dropped. Where frames do not fit
    together, or the answer would rest on damage, it reads the ledger forward, as consumers do.
    Callers: any thread, without a lock: what lies below a tail word never changes.
    """

    def __init__(
        self, view: LogView, wanted: Iterable[str] | None = None, on_progress: Progress | None = None
    ) -> None:
        self._view: Final = view
        self._left: Final = None if wanted is None else {name.encode() for name in wanted}
        self._on_progress: Final = on_progress
        self._found: Final[dict[bytes, int]] = {}
        self._entries = 0

    def run(self, end_word: int, floor_word: int) -> dict[str, int]:
        """Look at the entries before ``end_word``, down to ``floor_word`` (both tail words)."""
        ledger_id, end = split_tail(end_word)
        floor_ledger, floor = split_tail(floor_word)
        while ledger_id and ledger_id >= floor_ledger and self._left != set():
            with contextlib.suppress(FileNotFoundError):  # trimmed, or lost and reported
                self._look_at(ledger_id, floor if ledger_id == floor_ledger else FIRST_FRAME_OFFSET, end)
            before = self._view.chain().before(ledger_id)
            if before is None:
                break
            ledger_id, end = before.ledger_id, before.end_offset
        return {name.decode(errors="replace"): highest for name, highest in self._found.items()}

    def _look_at(self, ledger_id: int, floor: int, end: int) -> None:
        try:
            segment = self._view.segment(ledger_id)
            self._read_back(segment, max(floor, FIRST_FRAME_OFFSET), end)
        except CorruptionError:
            self._read_forward(ledger_id)

    def _read_back(self, segment: Segment, floor: int, end: int) -> None:
        data: Any = segment.data  # a map: its slices are bytes
        left, found = self._left, self._found
        header, metadata, trailer = HEADER.unpack_from, METADATA.unpack_from, TRAILER.unpack_from
        while end > floor:
            zero, length = trailer(data, end - TRAILER_SIZE)
            start = end - length
            if zero or length < MIN_FRAME_SIZE or length & 7 or start < FIRST_FRAME_OFFSET:
                raise CorruptionError(reason="no frame ends here", offset=end)
            own, _, _, _, magic, kind, _, flags, _, _, count, _, _ = header(data, start)
            if own != length or magic != MAGIC:
                raise CorruptionError(reason="no frame starts here", offset=start)
            first, _, _, _, _, name_length, _, _ = metadata(data, start + HEADER_SIZE)
            name = data[start + _NAME_AT : start + _NAME_AT + name_length]
            # A part of a message that is not the last counts 0 messages, and says nothing.
            if count and kind == KIND_ENTRY and (left is None or name in left):
                highest = first + count - 1
                if flags & FLAG_SEQUENCE_IDS:
                    highest = self._highest_of(segment, start, end)
                if highest > found.get(name, -1):
                    # By an id that is damage, what was never stored would be taken for stored.
                    self._verified(segment, start, end)
                    found[name] = highest
                if left is not None:
                    left.discard(name)
                    if not left:
                        return
            end = start
            self._count()

    def _count(self) -> None:
        self._entries += 1
        if self._on_progress is not None and not self._entries % _PROGRESS_EVERY:
            self._on_progress(self._entries)

    @staticmethod
    def _verified(segment: Segment, start: int, end: int) -> FrameHeader:
        header = read_header(segment.data, start, end)
        verify_body(segment.data, start, header)
        return header

    def _highest_of(self, segment: Segment, start: int, end: int) -> int:
        header = self._verified(segment, start, end)
        body = bytes(segment.data[start + HEADER_SIZE : end - TRAILER_SIZE])
        return max(decode(header, body, segment.ledger_id).sequence_ids())

    def _read_forward(self, ledger_id: int) -> None:
        cursor = EntryCursor(self._view, Position(ledger_id, 0), inclusive=True)
        while views := cursor.read(_ENTRIES_A_LOOK, 1 << 30, _BYTES_A_LOOK):
            for view in views:
                if view.ledger_id != ledger_id:
                    self._note_found()
                    return
                name = view.producer_name.encode()
                if view.count and (self._left is None or name in self._left or name in self._found):
                    self._found[name] = max(self._found.get(name, -1), *view.sequence_ids())
                self._count()
        self._note_found()

    def _note_found(self) -> None:
        if self._left is not None:
            self._left.difference_update(self._found)
