"""Entries of chunked messages in a topic's log, found by the index alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.entry_decoder import decode
from embeddedpulsar.format.entry_view import EntryView
from embeddedpulsar.format.frame import FLAG_CHUNK
from embeddedpulsar.managed_ledger.ledgers_view import LedgersView
from embeddedpulsar.managed_ledger.position import Position

_CHUNK: Final = FLAG_CHUNK >> 16
_MOST_LEDGERS: Final = 100
_AHEAD: Final = 1000
_WITHOUT: Final = bytes(flags for flags in range(256) if not flags & _CHUNK)


def last_parts(view: LedgersView, after: Position) -> Iterator[EntryView]:
    """Every entry behind ``after`` that is the last part of a chunked message, payload of that part only.

    What cannot be read is left out.
    """
    chain = view.chain()
    for ledger_id in (*chain.ids, chain.tail_ledger):
        if not ledger_id or ledger_id < after.ledger_id:
            continue
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        try:
            last, _ = view.extent(ledger_id)
            if first > last:
                continue
            flags = view.flags(ledger_id, first, last + 1)
        except (CorruptionError, FileNotFoundError):
            continue
        for entry_id, flag in enumerate(flags, first):
            if flag & _CHUNK:
                found = read_last_part(view, Position(ledger_id, entry_id))
                if found is not None:
                    yield found


def read_last_part(view: LedgersView, place: Position) -> EntryView | None:
    """One entry that is the last part of a chunked message; None if it is another part, or not readable."""
    try:
        header, body, _ = view.part(place)
        return decode(header, body, place.ledger_id) if header.message_count else None
    except (CorruptionError, FileNotFoundError):
        return None


def has_parts(view: LedgersView, ledger_id: int) -> bool:
    """Whether a ledger holds anything of chunked messages: about 10 ns per entry."""
    try:
        last, _ = view.extent(ledger_id)
        return last >= 0 and bool(view.flags(ledger_id, 0, last + 1).translate(None, _WITHOUT))
    except (CorruptionError, FileNotFoundError):
        return True  # unknown: the caller has to read the entries


class ChunkLocator:
    """Which entries of a log are last parts of chunked messages, asked again and again.

    Role: remembers of each ledger one stretch of entries without anything of chunked messages, so a reader
    of a log without any pays for each entry once. Callers: any thread; two that look at once
    may forget what one of them saw.

    >>> ChunkLocator.__slots__
    ('_plain', '_view')
    """

    __slots__ = ("_plain", "_view")

    def __init__(self, view: LedgersView) -> None:
        self._view = view
        self._plain: dict[int, tuple[int, int]] = {}

    def between(self, ledger_id: int, first: int, last: int) -> list[Position]:
        """The last parts among entries ``first`` to ``last`` of a ledger; what cannot be read is left out.

        0.2 us if it is known that there are none; else 10 us, and 1 ns per entry.
        """
        start, end = self._plain.get(ledger_id, (first, first))
        if start <= first and last < end:
            return []
        try:
            newest, _ = self._view.extent(ledger_id)
            if last > newest:
                return []  # made up
            stop = min(newest, last + _AHEAD) + 1
            flags = self._view.flags(ledger_id, first, stop)
        except (CorruptionError, FileNotFoundError):
            return []
        parts = []
        if flags.translate(None, _WITHOUT):
            parts = [entry_id for entry_id, flag in enumerate(flags, first) if flag & _CHUNK]
        if not parts or parts[0] > last:
            self._note(ledger_id, first, parts[0] if parts else stop)
        return [Position(ledger_id, one) for one in parts if one <= last and self._is_last(ledger_id, one)]

    def _is_last(self, ledger_id: int, entry_id: int) -> bool:
        try:
            return self._view.slot(ledger_id, entry_id).count > 0
        except (CorruptionError, FileNotFoundError):
            return False

    def _note(self, ledger_id: int, first: int, end: int) -> None:
        if len(self._plain) >= _MOST_LEDGERS:
            self._plain = {}
        start, before = self._plain.get(ledger_id, (first, first))
        self._plain[ledger_id] = (start, max(before, end)) if start <= first <= before else (first, end)
