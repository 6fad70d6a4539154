"""Messages the application received and has not acknowledged, while ``unacked_messages_timeout_ms`` runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TICK_S: Final = 1.0

Position = tuple[int, int]


class UnackedMessageTracker:
    """Asks for entries again whose acknowledgement is overdue.

    Role: a ring of buckets, one per tick of a second, so that a million messages cost one dict entry each and
    no timer. An entry is tracked from the moment the application receives its first message, and comes due
    between ``timeout`` and ``timeout`` plus one tick later.

    Called by any thread; operations on the dicts are one step each. ``redeliver`` as for
    `NegativeAcksTracker`.
    """

    __slots__ = ("_armed", "_buckets", "_call_later", "_redeliver", "_where")

    def __init__(
        self,
        timeout_ms: int,
        redeliver: Callable[[list[Position]], bool],
        call_later: Callable[[float, Callable[[], object]], object],
    ) -> None:
        ticks = -(-timeout_ms // int(TICK_S * 1000)) + 1
        self._buckets: list[dict[Position, None]] = [{} for _ in range(ticks)]
        self._where: dict[Position, dict[Position, None]] = {}
        self._redeliver = redeliver
        self._call_later = call_later
        self._armed = False

    def __len__(self) -> int:
        return len(self._where)

    def add(self, position: Position) -> None:
        """The application received a message of this entry."""
        if position not in self._where:
            bucket = self._buckets[-1]
            bucket[position] = None
            self._where[position] = bucket
            if not self._armed:
                self._arm()

    def discard(self, position: Position) -> None:
        """The entry was acknowledged, or given back."""
        bucket = self._where.pop(position, None)
        if bucket is not None:
            bucket.pop(position, None)

    def clear(self) -> None:
        """Everything is fetched anew, or the consumer closes."""
        self._where.clear()
        self._buckets = [{} for _ in self._buckets]

    def _arm(self) -> None:
        try:
            self._armed = True
            self._call_later(TICK_S, self._on_tick)
        except BaseException:
            self._armed = False
            raise

    def _on_tick(self) -> None:
        self._armed = False
        buckets = self._buckets
        overdue = buckets[0]
        self._buckets = [*buckets[1:], {}]
        for position in list(overdue):
            self._where.pop(position, None)
        try:
            if overdue and self._redeliver(sorted(overdue)):
                self.clear()
        except Exception:
            for position in list(overdue):
                self.add(position)
            raise  # to the log; the next time round it is tried again
        if self._where and not self._armed:
            self._arm()
