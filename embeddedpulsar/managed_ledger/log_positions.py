"""Positions in a log, and what lies between them: the same for every kind of log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Final

from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.format.control import TopicWord, split_tail
from embeddedpulsar.managed_ledger import index_queries
from embeddedpulsar.managed_ledger.chunk_assembler import ChunkAssembler
from embeddedpulsar.managed_ledger.ledgers_view import LedgersView
from embeddedpulsar.managed_ledger.position import Position

_TAIL: Final = TopicWord.TAIL


class LogPositions(ABC):
    """The part of `Log` that only asks where entries are."""

    def __init__(self, name: str, view: LedgersView) -> None:
        self.name: Final = name
        self._ledgers: Final = view
        self.words: Final = view.words  # for the topic's journal, too
        self.chunks: Final = partial(ChunkAssembler, view)  # makes what puts chunked messages together
        self._is_closed = False

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

    @abstractmethod
    def find_by_publish_time(self, publish_ms: int) -> Position:
        """The first entry published at `publish_ms` or later; the position behind the last if none was."""

    def messages_after(self, position: Position) -> int:
        """Messages behind `position` up to the tail: the exact backlog, from the index."""
        self._check_open()
        return index_queries.messages_after(self._ledgers, position)

    def messages_between(self, after: Position, through: Position) -> int:
        """Messages behind `after`, up to and including `through`."""
        self._check_open()
        return index_queries.messages_between(self._ledgers, after, through)

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosed(f"{self.name} is closed")
