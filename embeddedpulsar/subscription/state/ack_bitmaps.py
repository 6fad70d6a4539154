"""Acknowledgements of a subscription over all ledgers, and the mark-delete position they add up to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from embeddedpulsar._engine.format.acknowledgement import AckGroup
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar.subscription.state.ledger_acks import OPEN, LedgerAcks


class AckBitmaps:
    """The chain of ledgers from the mark-delete position on, with one bitmap each.

    Role: answers what is acknowledged; knows nothing of consumers. Pure: the ids and lengths of ledgers
    are facts that come in by `learn_ledgers`. Invariants: everything up to and including `mark_delete` is
    acknowledged and the entry after it is not; ledgers before it are dropped, those acknowledged as a
    whole keep no bitmap. The mark-delete position crosses into the next ledger only when that one is
    known to follow.

    >>> acks = AckBitmaps(Position(4, -1))
    >>> acks.learn_ledgers([(4, 2), (9, OPEN)])
    >>> acks.ledger(4).add_range(0, 1)
    >>> acks.settle()
    >>> acks.mark_delete
    Position(ledger_id=9, entry_id=-1)
    """

    __slots__ = ("_chain", "_ledgers", "mark_delete")

    def __init__(self, mark_delete: Position) -> None:
        self.reset(mark_delete)

    @classmethod
    def of(cls, ledgers: Sequence[tuple[int, LedgerAcks]]) -> AckBitmaps:
        """Bitmaps with the contents that `ledgers` returned.

        Raises:
            ValueError: no ledger, or ledgers out of order.
        """
        acks = cls(BEFORE_FIRST)
        acks._ledgers = dict(ledgers)
        acks._chain = sorted(acks._ledgers)
        if not ledgers or acks._chain != [ledger_id for ledger_id, _ in ledgers]:
            raise ValueError("ledgers missing or out of order")
        acks.settle()
        return acks

    def reset(self, mark_delete: Position) -> None:
        """Acknowledge everything up to ``mark_delete`` and nothing after it."""
        acks = LedgerAcks()
        acks.floor = mark_delete.entry_id + 1
        self._chain = [mark_delete.ledger_id]
        self._ledgers = {mark_delete.ledger_id: acks}
        self.mark_delete = mark_delete

    def ledger(self, ledger_id: int) -> LedgerAcks | None:
        """Acknowledgements of one ledger; None if it lies before the mark-delete position or is not known."""
        return self._ledgers.get(ledger_id)

    def ledgers(self) -> list[tuple[int, LedgerAcks]]:
        """All known ledgers, ascending, the first being the one of the mark-delete position."""
        return [(ledger_id, self._ledgers[ledger_id]) for ledger_id in self._chain]

    @property
    def newest(self) -> LedgerAcks:
        """Acknowledgements of the last known ledger."""
        return self._ledgers[self._chain[-1]]

    @property
    def newest_ledger(self) -> int:
        """Id of the last known ledger."""
        return self._chain[-1]

    def learn_ledgers(self, listed: Sequence[tuple[int, int]]) -> None:
        """Take over which ledgers exist: (id, entries or OPEN), all of them from the mark-delete position on.

        Known ledgers that are missing from the list, up to its last, are gone (trimmed, or lost with the
        power); the mark-delete position passes over them. Known ledgers behind
        the last one of the list stay: the list was made before they were.
        """
        if not listed:
            return
        existing, last = dict(listed), listed[-1][0]
        for ledger_id in self._chain:
            if ledger_id <= last and ledger_id not in existing:
                del self._ledgers[ledger_id]
        for ledger_id, entries in listed:
            acks = self._ledgers.get(ledger_id)
            if acks is None and ledger_id > self.mark_delete.ledger_id:
                acks = self._ledgers[ledger_id] = LedgerAcks()
            if acks is not None and entries != OPEN:
                acks.close(entries)
        self._chain = sorted(self._ledgers)
        if not self._chain:
            self.reset(Position(last, -1))
        self.settle()

    def settle(self) -> None:
        """Move the mark-delete position over what is contiguous. To be called after changes of a ledger."""
        chain, ledgers = self._chain, self._ledgers
        first = ledgers[chain[0]]
        while first.complete and len(chain) > 1:
            del ledgers[chain.pop(0)]
            first = ledgers[chain[0]]
        if self.mark_delete != (chain[0], first.floor - 1):
            self.mark_delete = Position(chain[0], first.floor - 1)

    def acknowledge_through(self, position: Position) -> bool:
        """Acknowledge everything up to and including ``position``; False if its ledger is not known."""
        acks = self._ledgers.get(position.ledger_id)
        if acks is None:
            return False
        for ledger_id in self._chain[: self._chain.index(position.ledger_id)]:
            del self._ledgers[ledger_id]
        self._chain = sorted(self._ledgers)
        acks.add_range(0, position.entry_id)
        self.settle()
        return True

    def clamp(self, last: Position) -> None:
        """Forget acknowledgements beyond ``last``: those entries were lost with the power."""
        if last.ledger_id < self._chain[0]:
            self.reset(last)
            return
        for ledger_id in self._chain:
            if ledger_id > last.ledger_id:
                del self._ledgers[ledger_id]
        self._chain = sorted(self._ledgers)
        acks = self._ledgers.get(last.ledger_id)
        if acks is not None:
            acks.cut(last.entry_id + 1)
        self.settle()

    def is_acked(self, position: Position) -> bool:
        """Whether the entry is acknowledged as a whole."""
        acks = self._ledgers.get(position.ledger_id)
        return acks.is_acked(position.entry_id) if acks is not None else position <= self.mark_delete

    def has(self, group: AckGroup) -> bool:
        """Whether a range of entries is acknowledged as a whole."""
        acks = self._ledgers.get(group.ledger_id)
        if acks is None:
            return group.ledger_id < self.mark_delete.ledger_id
        return acks.next_unacked(group.first) > group.last

    def indexes(self, position: Position) -> int:
        """Acknowledged batch indexes of a partly acknowledged entry, as a bit set."""
        acks = self._ledgers.get(position.ledger_id)
        return 0 if acks is None else acks.indexes(position.entry_id)

    def next_unacked(self, position: Position) -> Position:
        """First entry at or after ``position`` that is not acknowledged; in a known ledger or just
        ``position``.
        """
        for ledger_id in self._chain:
            if ledger_id < position.ledger_id:
                continue
            acks = self._ledgers[ledger_id]
            entry = acks.next_unacked(position.entry_id if ledger_id == position.ledger_id else 0)
            if not 0 <= acks.entries <= entry or ledger_id == self._chain[-1]:
                return Position(ledger_id, entry)
        return position

    def run_length(self, position: Position, most: int) -> int:
        """How many entries from ``position`` on (unacknowledged, same ledger) precede the next
        acknowledged one.
        """
        acks = self._ledgers.get(position.ledger_id)
        following = -1 if acks is None else acks.next_acked(position.entry_id)
        return most if following < 0 else min(most, following - position.entry_id)

    def last_touched(self) -> Position:
        """The highest position of which anything, be it one batch index, is acknowledged."""
        for ledger_id in reversed(self._chain):
            acks = self._ledgers[ledger_id]
            last = max(acks.floor, acks.top, *(entry + 1 for entry in acks.partial)) - 1
            if last >= 0:
                return Position(ledger_id, last)
        return self.mark_delete

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Acknowledged runs beyond the mark-delete position as (ledger, first, last), ascending."""
        for ledger_id in self._chain:
            acks = self._ledgers[ledger_id]
            if ledger_id != self._chain[0] and acks.floor:
                yield ledger_id, 0, acks.floor - 1
            for first, last in acks.runs():
                yield ledger_id, first, last

    def partials(self) -> Iterator[tuple[int, int, int, int]]:
        """Partly acknowledged batches as (ledger, entry, size, acknowledged indexes)."""
        for ledger_id in self._chain:
            acks = self._ledgers[ledger_id]
            for entry, whole in sorted(acks.partial.items()):
                yield ledger_id, entry, whole.bit_length() - 1, acks.indexes(entry)
