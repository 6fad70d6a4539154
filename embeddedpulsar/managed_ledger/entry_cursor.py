"""Reading a topic's entries in order, without a lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar.damage import HOLE, Damage
from embeddedpulsar.exceptions import AlreadyClosed, CorruptionError
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.storage.log_view import LogView
from embeddedpulsar.storage.segment_reader import UNKNOWN_CRC, SegmentReader

_TAIL: Final = TopicWord.TAIL
_OFFSET_BITS: Final = 0xFFFFFFFF


class EntryCursor:
    """A place in a topic's log that moves forward as entries are read.

    Role: the lock-free reader behind every consumer and reader.
    Invariants: nothing above the tail is given out. Ledgers are crossed by the next segment's word on where
    this one ends. A frame that does not verify is read again, then once more under the topic lock (a barrier
    for machines that reorder); only then it is damage: reported, skipped, never removed. If a ledger was
    trimmed, reading continues at the first that is retained; a position behind the tail means the tail.
    Callers: one thread at a time.
    """

    __slots__ = ("_limit", "_pending", "_reader", "_view", "_words")

    def __init__(self, view: LogView, position: Position, *, inclusive: bool) -> None:
        self._view: Final = view
        self._words: Final = view.words
        self._reader: SegmentReader | None = None
        self._limit = 0
        self._pending = position if inclusive else position.next()

    @property
    def position(self) -> Position:
        """The entry that is read next, if it is there."""
        reader = self._reader
        if reader is None:
            return self._pending
        return Position(reader.ledger_id, reader.entry_id)

    def is_at(self, tail: int) -> bool:
        """Whether it stands where the log ends by that tail word."""
        reader = self._reader
        return reader is not None and tail == reader.ledger_id << 32 | reader.pos >> 3

    def seek(self, position: Position) -> None:
        """Let `position` be the entry that is read next."""
        self._reader = None
        self._pending = position

    def read(self, max_entries: int, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next entries, at most as many as the three maxima allow but at least one; none at the tail.

        About 3 us per unbatched entry. `max_bytes` counts frames as they are stored.

        Raises:
            AlreadyClosed: the topic was closed.
            ImportError: the next entry is packed by a codec that is not installed here. The cursor stays.
        """
        out: list[EntryView] = []
        words = self._words
        try:
            while True:
                reader = self._reader or self._attach()
                if reader is None:
                    return out
                # After the reader's ledger is known: so if the tail's is another, it is a later one.
                tail = words[_TAIL]
                if tail >> 32 == reader.ledger_id:
                    limit = (tail & _OFFSET_BITS) << 3
                    if reader.pos >= limit:
                        return out
                else:
                    limit = self._closed_limit(reader)
                    if reader.pos >= limit:
                        if not self._next_ledger(reader):
                            return out
                        continue
                try:
                    try:
                        reader.read_into(out, limit, max_entries, max_messages, max_bytes)
                    except CorruptionError as e:
                        if not out:
                            self._step_over(reader, limit, e)
                    except ImportError:
                        if not out:
                            raise
                except FileNotFoundError:  # trimmed, or lost, while this process had not mapped it
                    self.seek(self.position)
                if out:
                    return out
        except ValueError:
            if self._view.is_open():
                raise
            raise AlreadyClosed("the topic is closed") from None

    def read_spans(self, ledger_id: int, spans: Sequence[tuple[int, int]], max_bytes: int) -> list[EntryView]:
        """See `Cursor`. About 1 us per span, and 1 us per entry."""
        out: list[EntryView] = []
        reader, is_whole = self._reader, False
        try:
            if reader is None or reader.ledger_id != ledger_id:
                self.seek(Position(ledger_id, spans[0][0]))
                reader = self._attach()
                if reader is None or reader.ledger_id != ledger_id:
                    return out
            reader.read_spans(out, spans, self._view.end_of(ledger_id), max_bytes)
            is_whole = reader.entry_id > spans[-1][1]
        except (CorruptionError, FileNotFoundError):
            is_whole = False
        except ImportError:
            if not out:
                raise
        except ValueError:
            if self._view.is_open():
                raise
            raise AlreadyClosed("the topic is closed") from None
        if not is_whole:
            assert reader is not None
            self.seek(Position(ledger_id, reader.entry_id))  # a slot may be wrong: the next is verified
        return out

    # -- moving between ledgers ----------------------------------------------------------------------------

    def _closed_limit(self, reader: SegmentReader) -> int:
        """Where the reader's ledger, which is not the tail's any more, ends."""
        if not self._limit:
            self._limit = self._view.end_of(reader.ledger_id) or reader.pos
        return self._limit

    def _next_ledger(self, reader: SegmentReader) -> bool:
        following = self._view.chain().after(reader.ledger_id)
        if not following:
            return False
        reader.forget_pages()
        self.seek(Position(following, 0))
        return True

    def _attach(self) -> SegmentReader | None:
        """Stand at the pending position, or where reading continues from it; None without a ledger."""
        while True:
            wanted = self._pending
            chain = self._view.chain()
            if not chain.tail_ledger:
                return None
            ledger_id = chain.at_or_after(wanted.ledger_id) or chain.tail_ledger
            try:
                if ledger_id < wanted.ledger_id:  # behind the tail: a power loss took what was there
                    self._pending = wanted = Position(ledger_id, self._view.extent(ledger_id)[0] + 1)
                elif ledger_id != wanted.ledger_id:  # trimmed, or not of this topic
                    self._pending = wanted = Position(ledger_id, 0)
                self._reader = reader = self._reader_at(wanted)
            except FileNotFoundError:
                if not self._view.is_trimmed(ledger_id):  # lost; the chain reported it
                    following = chain.after(ledger_id)
                    if not following:
                        return None
                    self._pending = Position(following, 0)
                continue
            except CorruptionError:
                following = chain.after(ledger_id)
                if not following:  # the tail's own segment, reported: reading continues behind it
                    return None
                self._pending = Position(following, 0)
                continue
            self._limit = 0
            return reader

    def _reader_at(self, position: Position) -> SegmentReader:
        view = self._view
        ledger_id, entry_id = position
        segment = view.segment(ledger_id)
        if entry_id <= 0:
            return SegmentReader(segment)
        last, end = view.extent(ledger_id)
        if entry_id > last:
            return SegmentReader(segment, end, last + 1)
        return SegmentReader(segment, view.offset_of(ledger_id, entry_id), entry_id)

    # -- damage --------------------------------------------------------------------------------------------

    def _step_over(self, reader: SegmentReader, limit: int, error: CorruptionError) -> None:
        """Read again where no entry could be read, then continue behind the damage."""
        if self._is_readable_after_all(reader, limit):
            return
        segment, pos, entry_id = reader.segment, reader.pos, reader.entry_id
        try:
            header = segment.frame_header(pos, limit)
            is_framed = header.entry_id == entry_id
        except CorruptionError:
            is_framed = False
        if is_framed:
            found, offset = entry_id + 1, pos + header.length
        else:
            found, offset = self._view.next_readable(segment.ledger_id, entry_id, pos)
        offset = min(max(offset, pos + 8), limit)
        self._view.report(
            Damage(segment.path, segment.ledger_id, entry_id, found - 1, pos, offset, error.reason, HOLE)
        )
        self._reader = SegmentReader(segment, offset, found, UNKNOWN_CRC)

    def _is_readable_after_all(self, reader: SegmentReader, limit: int) -> bool:
        for is_locked in (False, True):
            try:
                if is_locked:
                    self._view.barrier()
                reader.check(limit)
            except CorruptionError:
                continue
            return True
        return False
