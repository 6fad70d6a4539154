"""What a log must hold, told from the outside: the judge of the storms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Place = tuple[int, int]
"""(ledger id, entry id)."""
Payloads = tuple[bytes, ...]


class Seen(NamedTuple):
    """An entry as it was read."""

    place: Place
    payloads: Payloads
    publish_ms: int


class LogModel:
    """Every entry that was ever tried, and what may be expected of it.

    * committed: `append` returned, or the entry was read: it is in the log, with these payloads, for ever;
    * durable: committed, and a flush that covers it succeeded: it survives a power loss;
    * poisoned: committed, and a flush that covers it failed: it may be lost, whatever later flushes say;
    * pending: `append` raised and nothing was appended since: it may be there, once, at the end;
    * buried: `append` raised, and later entries took its place: it must never be seen, unless it is
      excused: the flush that was to make sure of that failed;
    * lost: committed, and not there after a recovery: it must not come back.
    """

    def __init__(self) -> None:
        self.committed: dict[Place, Payloads] = {}
        self.durable: set[Place] = set()
        self.poisoned: set[Place] = set()
        self.pending: list[Payloads] = []
        self.buried: set[Payloads] = set()
        self.excused: set[Payloads] = set()
        self._just_buried: set[Payloads] = set()
        self.lost: set[Place] = set()
        self.trimmed_below = 0
        self.highest: Place = (0, -1)

    def copy(self) -> LogModel:
        """As things are now."""
        other = LogModel()
        other.committed = dict(self.committed)
        other.durable = set(self.durable)
        other.poisoned = set(self.poisoned)
        other.pending = list(self.pending)
        other.buried = set(self.buried)
        other.excused = set(self.excused)
        other.lost = set(self.lost)
        other.trimmed_below = self.trimmed_below
        other.highest = self.highest
        return other

    def commit(self, place: Place, payloads: Payloads) -> None:
        """An append returned."""
        if place <= self.highest:
            raise AssertionError(f"{place} was given out after {self.highest}")
        self.committed[place] = payloads
        self.highest = place

    def sync(self) -> None:
        """A flush of everything committed so far succeeded."""
        self.durable.update(place for place in self.committed if place not in self.poisoned)

    def poison(self, last_ledger: int | None = None) -> None:
        """A flush failed: also the one that was to clear a ghost for good, if it was that one.

        Args:
            last_ledger: in which the range of the failed flush ends; None if it covers everything committed.
        """
        self.excused |= self._just_buried | set(self.pending)
        self.poisoned.update(
            place
            for place in self.committed
            if place not in self.durable and (last_ledger is None or place[0] <= last_ledger)
        )

    def settle(self, seen: Iterable[Seen]) -> None:
        """Entries tried and not confirmed: those that are in the log now are committed, the others buried."""
        for entry in seen:
            if entry.payloads in self.pending and entry.place not in self.committed:
                self.pending.remove(entry.payloads)
                self.commit(entry.place, entry.payloads)
        self._just_buried = set(self.pending)
        self.buried |= self._just_buried
        self.pending.clear()

    def violations(self, seen: list[Seen]) -> list[str]:
        """What is wrong with a log that was read from its first entry to its last; empty if nothing is."""
        found: list[str] = []
        pending = list(self.pending)
        last: Place = (0, -1)
        publish_ms = 0
        for place, payloads, at in seen:
            if place <= last:
                found.append(f"entry {place} after {last}")
            if at < publish_ms:
                found.append(f"entry {place}: publish time {at} after {publish_ms}")
            last, publish_ms = place, at
            expected = self.committed.get(place)
            if place in self.lost:
                found.append(f"entry {place} was lost and came back")
            elif payloads in self.excused and place not in self.committed:
                continue
            elif payloads in self.buried:
                found.append(f"entry {place} is a ghost: its append failed and others came after it")
            elif expected is not None:
                if payloads != expected:
                    found.append(f"entry {place} holds {payloads!r:.60} instead of {expected!r:.60}")
            elif payloads in pending and place > self.highest:
                pending.remove(payloads)
            else:
                found.append(f"entry {place} was never appended: {payloads!r:.60}")
        places = {entry.place for entry in seen}
        found += [
            f"durable entry {place} is gone"
            for place in sorted(self.durable)
            if place not in places and place[0] >= self.trimmed_below
        ]
        return found

    def after_recovery(self, seen: list[Seen]) -> LogModel:
        """What to expect of a recovered log: what was seen is durable, what was not is lost for ever."""
        other = self.copy()
        places = {entry.place for entry in seen}
        other.lost.update(place for place in self.committed if place not in places)
        other.committed = {entry.place: entry.payloads for entry in seen}
        other.durable = set(places)
        other.poisoned = set()
        other.highest = max([self.highest, *places])
        # An excused one that is shown is an entry like others from now on.
        shown = {entry.payloads for entry in seen}
        other.buried = (self.buried | set(self.pending)) - shown
        other.excused -= shown
        other.pending = []
        return other
