"""Positions: where an entry stands in a topic; and which of them a reader gets."""

from __future__ import annotations

from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final


class Position(NamedTuple):
    """An entry by ledger and entry id; ordered as the log is. Entry -1 stands before a ledger's first entry.

    Example:
        >>> Position(3, 9) < Position(4, 0) < Position(4, 0).next()
        True
        >>> str(Position(4, 1).previous())
        '4:0'
    """

    ledger_id: int
    entry_id: int

    def next(self) -> Position:
        """The position behind this one in the same ledger, whether or not an entry is there."""
        return Position(self.ledger_id, self.entry_id + 1)

    def previous(self) -> Position:
        """The position before this one in the same ledger; entry -1 from the first."""
        return Position(self.ledger_id, self.entry_id - 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


BEFORE_FIRST: Final = Position(0, -1)
"""Before every entry of every topic: ledger ids start at 1."""


class Isolation:
    """Which entries of transactions a reader gets.

    COMMITTED: those that committed; it stops before the first that is not decided. UNCOMMITTED: also those
    that are not decided, and none that is known to be aborted. EVERYTHING: all, whatever became of them.
    """

    COMMITTED: Final = 0
    UNCOMMITTED: Final = 1
    EVERYTHING: Final = 2
