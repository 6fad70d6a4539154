"""Redeliveries of entries that were given to an application, while no consumer is attached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform.descriptors import late_import

if TYPE_CHECKING:
    from sortedcontainers import SortedDict


class RestingCounts:
    """Counts that outlive the consumers: dispatch forgets its entries with the last one, and reads them anew.

    Role: part of the replicated state; pure. Invariants: only entries that came back at least once are here,
    none before the mark-delete position, and none that dispatch knows.

    >>> counts = RestingCounts()
    >>> counts.keep([(7, 3, 2), (7, 9, 1)])
    >>> counts.take(7, 0, 5), len(counts)
    ([(3, 2)], 1)
    """

    __slots__ = ("_ledgers",)

    def __init__(self) -> None:
        self._ledgers: dict[int, SortedDict[int, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._ledgers.values()))

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def keep(self, counted: Iterable[tuple[int, int, int]]) -> None:
        for ledger_id, entry, count in counted:
            known = self._ledgers.get(ledger_id)
            if known is None:
                # Late: few subscriptions have such counts, and the package takes 1 MB.
                known = self._ledgers[ledger_id] = late_import("sortedcontainers").SortedDict()
            known[entry] = count

    def take(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """Remove and return the counts of the entries ``first..last`` of a ledger, which were read: (entry,
        count)."""
        known = self._ledgers.get(ledger_id)
        if known is None:
            return []
        taken = [(entry, known.pop(entry)) for entry in list(known.irange(first, last))]
        if not known:
            del self._ledgers[ledger_id]
        return taken

    def count(self, ledger_id: int, entry: int) -> int:
        """How often an entry came back."""
        known = self._ledgers.get(ledger_id)
        return 0 if known is None else known.get(entry, 0)

    def drop_before(self, position: Position) -> None:
        """Forget everything before a position: it is acknowledged.

        Called each time the mark-delete position moves, so it costs as much as it drops and no more.
        """
        for ledger_id in [one for one in self._ledgers if one < position.ledger_id]:
            del self._ledgers[ledger_id]
        known = self._ledgers.get(position.ledger_id)
        if known is None:
            return
        while known and known.peekitem(0)[0] < position.entry_id:
            known.popitem(0)
        if not known:
            del self._ledgers[position.ledger_id]

    def clear(self) -> None:
        self._ledgers = {}

    def pack(self) -> list[Any]:
        """The content for a snapshot; equal contents give equal values."""
        return [[one, *map(list, self._ledgers[one].items())] for one in sorted(self._ledgers)]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> RestingCounts:
        counts = cls()
        for ledger_id, *pairs in packed:
            if ledger_id < 0 or any(entry < 0 or count < 1 for entry, count in pairs):
                raise ValueError(f"redelivery counts of ledger {ledger_id}")
            counts.keep((ledger_id, entry, count) for entry, count in pairs)
        return counts
