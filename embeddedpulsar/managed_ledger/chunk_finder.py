"""Entries of chunked messages in a topic's log, found by the index alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.entry_view import EntryView, decode
from embeddedpulsar.format.frame import FLAG_CHUNK, HEADER_SIZE, TRAILER_SIZE
from embeddedpulsar.format.index_slot import SLOT, SLOT_SIZE, slot_offset
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.storage.log_view import LogView
from embeddedpulsar.storage.segment import Segment

_CHUNK: Final = FLAG_CHUNK >> 16
_FLAGS_AT: Final = 16  # of the low byte of a slot's flags
_WITHOUT: Final = bytes(flags for flags in range(256) if not flags & _CHUNK)


def last_parts(view: LogView, after: Position) -> Iterator[EntryView]:
    """Every entry behind ``after`` that is the last part of a chunked message, payload of that part only.

    What cannot be read is left out.
    """
    chain = view.chain()
    for ledger_id in (*chain.ids, chain.tail_ledger):
        if not ledger_id or ledger_id < after.ledger_id:
            continue
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        try:
            last, end = view.extent(ledger_id)
            if first > last:
                continue
            view.slot(ledger_id, last)  # derives the index again, should it need that
            segment = view.segment(ledger_id)
            slots = bytes(segment.index.data[slot_offset(first) : slot_offset(last + 1)])
        except (CorruptionError, FileNotFoundError):
            continue
        for entry_id, (*_, flags, count, _) in enumerate(SLOT.iter_unpack(slots), first):
            if count and flags & _CHUNK:
                found = _entry(segment, entry_id, end)
                if found is not None:
                    yield found


def has_parts(view: LogView, ledger_id: int) -> bool:
    """Whether a ledger holds anything of chunked messages: about 10 ns per entry."""
    try:
        last, _ = view.extent(ledger_id)
        if last < 0:
            return False
        view.slot(ledger_id, last)
        data = view.segment(ledger_id).index.data
    except (CorruptionError, FileNotFoundError):
        return True  # who wants to be sure looks closer
    flags = bytes(data[slot_offset(0) + _FLAGS_AT : slot_offset(last + 1) : SLOT_SIZE])
    return bool(flags.translate(None, _WITHOUT))


def _entry(segment: Segment, entry_id: int, end: int) -> EntryView | None:
    try:
        offset, header = segment.frame_of(entry_id, end)
        body = segment.view[offset + HEADER_SIZE : offset + header.length - TRAILER_SIZE]
        return decode(header, body, segment.ledger_id)
    except (CorruptionError, FileNotFoundError):
        return None
