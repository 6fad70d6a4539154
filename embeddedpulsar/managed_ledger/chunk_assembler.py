"""Chunked messages as readers of a topic see them: found by the index, and whole or damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from embeddedpulsar._engine.format.entry_decoder import EntryView, decode
from embeddedpulsar._engine.format.frame import FLAG_CHUNK
from embeddedpulsar.damage import HOLE, Damage
from embeddedpulsar.exceptions import CorruptionError, CryptoError
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.storage.chunk_reader import ChunkReader
from embeddedpulsar.storage.log_view import LogView

_CHUNK: Final = FLAG_CHUNK >> 16
_MOST_LEDGERS: Final = 100
_AHEAD: Final = 1000
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


def read_last_part(view: LogView, place: Position) -> EntryView | None:
    """One entry that is the last part of a chunked message; None if it is another part, or not readable."""
    try:
        header, body, _ = view.part(place)
        return decode(header, body, place.ledger_id) if header.message_count else None
    except (CorruptionError, FileNotFoundError):
        return None


def has_parts(view: LogView, ledger_id: int) -> bool:
    """Whether a ledger holds anything of chunked messages: about 10 ns per entry."""
    try:
        last, _ = view.extent(ledger_id)
        return last >= 0 and bool(view.flags(ledger_id, 0, last + 1).translate(None, _WITHOUT))
    except (CorruptionError, FileNotFoundError):
        return True  # unknown: the caller has to read the entries


class ChunkLocator:
    """Which entries of a log are last parts of chunked messages, asked again and again.

    Role: remembers of each ledger one stretch of entries without anything of chunked messages, as read or
    found in the index. Callers: any thread; two that look at once may forget what one of them saw.

    >>> ChunkLocator.__slots__
    ('_plain', '_view')
    """

    __slots__ = ("_plain", "_view")

    def __init__(self, view: LogView) -> None:
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

    def note_read(self, views: Sequence[EntryView]) -> bool:
        """Note that entries were read; there is at least one. 0.3 us.

        Returns:
            False if one of them belongs to a chunked message: then nothing is noted.
        """
        for view in views:
            if view.flags & FLAG_CHUNK:
                return False
        first, last = views[0], views[-1]
        ledger_id, start, end = first.ledger_id, first.entry_id, last.entry_id + 1
        if last.ledger_id == ledger_id and end - start == len(views):
            known = self._plain.get(ledger_id)
            if known is not None and known[1] == start:
                self._plain[ledger_id] = known[0], end
            else:
                self._note(ledger_id, start, end)
        return True

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


def has_chunks(views: Sequence[EntryView]) -> bool:
    """Whether any of the entries belongs to a chunked message. Hot: one look per entry."""
    for view in views:
        if view.flags & FLAG_CHUNK:
            return True
    return False


def made_whole(
    views: Sequence[EntryView], max_bytes: int, whole: Callable[[EntryView], EntryView | None]
) -> tuple[list[EntryView], EntryView | None]:
    """Of entries that a cursor gave, those with messages, of about ``max_bytes`` of payload.

    Args:
        whole: makes a message of an entry that belongs to a chunked one; None if there is none to be had.

    Returns:
        The entries, and the first that was not looked at because they are large enough.
    """
    found: list[EntryView] = []
    size = 0
    for view in views:
        if size >= max_bytes and found:
            return found, view
        if view.flags & FLAG_CHUNK:
            message = whole(view)
            if message is None:
                continue
            view = message
        found.append(view)
        size += view.offsets[-1]
    return found, None


class ChunkAssembler:
    """Makes messages of the entries a cursor gives.

    Role: between a cursor and the reader of its messages. A message that cannot be put together is
    reported as any other damage is, once each time it is read.
    Callers: any thread; takes the topic lock only where a part does not verify.

    Attributes:
        reader: puts messages together. Its ``opened`` makes encrypted parts readable.
        last_parts: tells which entries are last parts.
    """

    def __init__(self, view: LogView) -> None:
        self._view: Final = view
        self.reader: Final = ChunkReader(view.part)
        self.last_parts: Final = ChunkLocator(view)

    def complete(
        self, views: Sequence[EntryView], max_bytes: int
    ) -> tuple[list[EntryView], EntryView | None]:
        """`made_whole`; parts that are not the last are left out."""
        return made_whole(views, max_bytes, lambda view: self.try_whole(view) if view.count else None)

    def are_in(self, ledger_id: int) -> bool:
        """Whether a ledger holds anything of chunked messages, or cannot tell."""
        return has_parts(self._view, ledger_id)

    def find_last(self, key: tuple[str, int], parts: Iterable[Position]) -> Position | None:
        """The last part of a message, if it is in the log behind the others: by the index, about 0.3 us per
        entry.

        Args:
            key: producer and sequence id.
            parts: those that are known; a last part that can be read names one of them.
        """
        known = set(parts)
        for view in last_parts(self._view, max(known)):
            if (view.producer_name, view.first_sequence_id) == key:
                earlier = self.reader.earlier(view)
                if earlier is None or known.intersection(earlier):
                    return Position(view.ledger_id, view.entry_id)
        return None

    def parts_of(self, place: Position) -> tuple[Position, ...]:
        """The parts before a last part; none if that cannot be read."""
        last = read_last_part(self._view, place)
        earlier = None if last is None else self.reader.earlier(last)
        return tuple(Position(*one) for one in earlier or ())

    def try_whole(self, last: EntryView) -> EntryView | None:
        """The message of a last part; None, and a report, if it is damaged.

        One that cannot be decrypted is left as it is: the caller decides what becomes of it.
        """
        try:
            try:
                return self.reader.whole(last)
            except CorruptionError:
                self._view.barrier()  # for machines that reorder; and a last look at the files
                return self.reader.whole(last)
        except CryptoError:
            return last
        except (CorruptionError, FileNotFoundError) as e:
            reason = e.reason if isinstance(e, CorruptionError) else "a part of it is not in the log any more"
            path = self._view.path_of(last.ledger_id)
            offset = self._offset_of(last)
            lost = (last.entry_id, last.entry_id, offset, offset)
            self._view.report(Damage(path, last.ledger_id, *lost, f"chunked message: {reason}", HOLE))
            return None

    def _offset_of(self, view: EntryView) -> int:
        try:
            return self._view.offset_of(view.ledger_id, view.entry_id)
        except (CorruptionError, FileNotFoundError):
            return 0  # trimmed since it was read
