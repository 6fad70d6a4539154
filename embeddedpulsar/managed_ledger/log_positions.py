"""Positions in a log, and what lies between them by its indexes: the same for every kind of log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from embeddedpulsar.exceptions import AlreadyClosed, CorruptionError
from embeddedpulsar.format.control import TopicWord, split_tail
from embeddedpulsar.format.index import SlotColumns
from embeddedpulsar.managed_ledger.chunk_assembler import ChunkAssembler
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.platform.descriptors import late_import
from embeddedpulsar.storage.log_view import LedgersView, LogView
from embeddedpulsar.storage.segment_chain import LedgerChain
from embeddedpulsar.topic_name import NON_PERSISTENT

if TYPE_CHECKING:
    from embeddedpulsar.managed_ledger.log_survey import LogSurvey


def messages_between(view: LedgersView, after: Position, through: Position) -> int:
    """Messages in the retained entries behind `after`, up to and including `through`. O(log ledgers)."""
    if through <= after:
        return 0
    chain = view.chain()
    return max(0, _messages_through(view, chain, through) - _messages_through(view, chain, after))


def messages_after(view: LedgersView, after: Position) -> int:
    """Messages in the retained entries behind `after`, up to the tail."""
    chain = view.chain()
    if not chain.tail_ledger:
        return 0
    last, _ = view.extent(chain.tail_ledger)
    return messages_between(view, after, Position(chain.tail_ledger, last))


def entries_between(view: LedgersView, after: Position, through: Position) -> int:
    """Retained entries behind `after`, up to and including `through`."""
    chain = view.chain()
    count = 0
    for ledger_id in (*chain.ids, chain.tail_ledger):
        if not ledger_id or not after.ledger_id <= ledger_id <= through.ledger_id:
            continue
        last, _ = view.extent(ledger_id)
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        if ledger_id == through.ledger_id:
            last = min(last, through.entry_id)
        count += max(0, last - max(first, 0) + 1)
    return count


def _messages_through(view: LedgersView, chain: LedgerChain, position: Position) -> int:
    """Messages from the chain's origin up to and including `position`, or where it would be."""
    ledger_id = chain.at_or_after(position.ledger_id)
    if not ledger_id:  # behind the tail
        ledger_id, entry_id = chain.tail_ledger, -1
        last, _ = view.extent(ledger_id)
        entry_id = last
    elif ledger_id != position.ledger_id:  # trimmed: nothing of the first retained ledger yet
        entry_id = -1
    else:
        last, _ = view.extent(ledger_id)
        entry_id = min(position.entry_id, last)
    closed = chain.find(ledger_id)
    if closed is not None and entry_id == closed.last_entry_id:
        return closed.messages_before + closed.messages
    before = closed.messages_before if closed is not None else chain.messages_before_tail
    try:
        return before + view.messages_through(ledger_id, entry_id)
    except (FileNotFoundError, CorruptionError):
        return before  # lost or trimmed meanwhile: count the whole ledger


def find_by_publish_time(view: LogView, publish_ms: int) -> Position:
    """The first entry published at `publish_ms` or later; the position behind the last if there is none.

    Binary search over ledgers, then over index slots: some 10 us, whatever the topic holds. Position (0, 0)
    for a topic without a ledger.
    """
    chain = view.chain()
    ledger_id = chain.floor_by_time(publish_ms)
    while ledger_id:
        try:
            found, entries = _find_in(view, ledger_id, publish_ms)
        except (FileNotFoundError, CorruptionError):  # trimmed or lost: what can be read begins behind it
            found = entries = 0
        following = chain.after(ledger_id)
        if found < entries or not following:
            return Position(ledger_id, found)
        ledger_id = following
    return Position(0, 0)


def _find_in(view: LogView, ledger_id: int, publish_ms: int) -> tuple[int, int]:
    """The first entry of a ledger at `publish_ms` or later, and how many entries the ledger has."""
    last, end = view.extent(ledger_id)
    entries = last + 1
    segment = view.segment(ledger_id)
    delta = publish_ms - segment.header.base_publish_ms
    if delta <= 0:
        return 0, entries
    found = segment.index.first_published_at(delta, entries)
    # The index is only a hint: both frames around the answer must agree.
    at, before = (_published(view, ledger_id, entry, end) for entry in (found, found - 1))
    if (at is not None and at < publish_ms) or (before is not None and before >= publish_ms):
        found = _scan(view, ledger_id, publish_ms, entries, end)
    return found, entries


def _published(view: LogView, ledger_id: int, entry_id: int, end: int) -> int | None:
    """The publish time in the frame of a visible entry; None if there is none, or it is unreadable."""
    last, _ = view.extent(ledger_id)
    if not 0 <= entry_id <= last:
        return None
    try:
        return view.segment(ledger_id).frame_of(entry_id, end)[1].publish_time
    except (FileNotFoundError, CorruptionError):
        return None


def _scan(view: LogView, ledger_id: int, publish_ms: int, entries: int, end: int) -> int:
    for entry_id in range(entries):
        published = _published(view, ledger_id, entry_id, end)
        if published is not None and published >= publish_ms:
            return entry_id
    return entries


_TAIL: Final = TopicWord.TAIL
_FEW: Final = 8
"""Entries that are read in less time than the index is asked and verified."""


class LogPositions(ABC):
    """The part of `Log` that only asks where entries are."""

    def __init__(self, name: str, view: LedgersView) -> None:
        self.name: Final = name
        self._ledgers: Final = view
        self.words: Final = view.words  # for the topic's journal, too
        self.chunks: Final = partial(ChunkAssembler, view)  # makes what puts chunked messages together
        self.is_volatile: Final = name.startswith(NON_PERSISTENT)
        self._is_closed = False

    def call_on_look(self, listener: Callable[[], object]) -> None:  # noqa: B027 - `ManagedLedger` has one
        """See `Log.call_on_look`. Nothing to do for a log that one process has."""

    @property
    def is_derived(self) -> bool:
        """See `Log.is_derived`."""
        return False

    @property
    def tail(self) -> int:
        """The tail word: it differs from what it was when something was appended, or a ledger begun."""
        try:
            return self.words[_TAIL]
        except ValueError:
            raise AlreadyClosed(f"{self.name} is closed") from None

    def reaches(self, word: int) -> bool:
        """Whether the log goes as far as when its tail word was ``word``: a recovery may have cut it."""
        ledger_id, end = split_tail(word)
        return ledger_id < self.words[TopicWord.TRIM] or self._ledgers.end_of(ledger_id) >= end

    def first_position(self) -> Position:
        """The first retained entry, or where it will be; (0, 0) before the first ledger."""
        self._check_open()
        chain = self._ledgers.chain()
        for closed in chain.closed:
            if closed.last_entry_id >= 0:
                return Position(closed.ledger_id, 0)
        return Position(chain.tail_ledger, 0)

    def last_position(self) -> Position | None:
        """The last entry, trimmed or not; None if nothing was ever appended."""
        self._check_open()
        chain = self._ledgers.chain()
        if not chain.tail_ledger:
            return None
        last, _ = self._ledgers.extent(chain.tail_ledger)
        if last >= 0:
            return Position(chain.tail_ledger, last)
        for closed in reversed(chain.closed):
            if closed.last_entry_id >= 0:
                return Position(closed.ledger_id, closed.last_entry_id)
        previous = self._ledgers.trimmed_before(chain.tail_ledger)
        return Position(*previous) if previous is not None else None

    def ended_before(self, ledger_id: int) -> Position | None:
        """See `Log`."""
        self._check_open()
        try:
            previous = self._ledgers.trimmed_before(ledger_id)
        except (FileNotFoundError, CorruptionError):
            return None
        return Position(*previous) if previous is not None else None

    def upcoming(self, position: Position, max_messages: int, max_bytes: int) -> SlotColumns | None:
        """See `Log`. About 10 us, and 0.1 us per entry."""
        self._check_open()
        ledgers = self._ledgers
        ledger_id, first = position
        try:
            last, _ = ledgers.extent(ledger_id)
            if first < 0 or last - first < _FEW:
                return None
            each = ledgers.slot(ledger_id, first).count or 1
            most = min(last + 1 - first, -(-max_messages // each))
            found = ledgers.slots(ledger_id, first, first + most)
        except (FileNotFoundError, CorruptionError):
            return None
        offsets, messages, hashes, flags, counts = found
        stop = bisect_left(messages, messages[0] - counts[0] + max_messages) + 1
        if 0 not in counts:  # parts of chunked messages are not read by those who get the message
            stop = min(stop, bisect_left(offsets, offsets[0] + (max_bytes >> 3)))
        some = slice(max(stop, 1))
        return SlotColumns(offsets[some], messages[some], hashes[some], flags[some], counts[some])

    @abstractmethod
    def find_by_publish_time(self, publish_ms: int) -> Position:
        """The first entry published at `publish_ms` or later; the position behind the last if none was."""

    def messages_after(self, position: Position) -> int:
        """Messages behind `position` up to the tail: the exact backlog, from the index."""
        self._check_open()
        return messages_after(self._ledgers, position)

    def messages_between(self, after: Position, through: Position) -> int:
        """Messages behind `after`, up to and including `through`."""
        self._check_open()
        return messages_between(self._ledgers, after, through)

    def ledgers(self) -> list[tuple[int, int]]:
        """See `Log`."""
        self._check_open()
        chain = self._ledgers.chain()
        found = [(closed.ledger_id, closed.last_entry_id + 1) for closed in chain.closed]
        if chain.tail_ledger:
            found.append((chain.tail_ledger, -1))
        return found

    def survey(self) -> LogSurvey:
        """See `Log`."""
        self._check_open()
        found: LogSurvey = late_import("embeddedpulsar.managed_ledger.log_survey").LogSurvey(self._ledgers)
        return found

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosed(f"{self.name} is closed")
