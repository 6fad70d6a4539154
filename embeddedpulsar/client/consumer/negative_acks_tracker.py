"""Negatively acknowledged entries, until their delay is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embeddedpulsar.client.consumer.due_entries import DueEntries, Position

if TYPE_CHECKING:
    from embeddedpulsar.client.consumer.redelivery_backoff import MultiplierRedeliveryBackoff
    from embeddedpulsar.platform.scheduler import Timer

_SHORTEST_TICK_MS: Final = 10
_LONGEST_TICK_MS: Final = 100


class NegativeAcksTracker(DueEntries):
    """Keeps negatively acknowledged entries and redelivers them when the delay is over.

    Role: the delay is fixed, or grows with the entry's redelivery count. It is exact to a tenth of the
    shortest delay, or 100 ms. Repeated negative acknowledgements of one entry, as for the messages of a
    batch, do not postpone it. A million entries take about 100 MB.
    """

    __slots__ = ("_backoff", "_delay_ms")

    def __init__(
        self,
        delay_ms: int,
        redeliver: Callable[[list[Position]], object],
        call_later: Callable[[float, Callable[[], object]], Timer],
        monotonic: Callable[[], float],
        backoff: MultiplierRedeliveryBackoff | None = None,
    ) -> None:
        shortest = delay_ms if backoff is None else backoff.next(0)
        tick_ms = min(max(shortest // 10, _SHORTEST_TICK_MS), _LONGEST_TICK_MS)
        super().__init__(tick_ms, redeliver, call_later, monotonic)
        self._delay_ms = delay_ms
        self._backoff = backoff

    def give_back(self, position: Position, redelivery_count: int = 0) -> None:
        """Redeliver an entry after the delay, which may depend on its redelivery count."""
        self.add(position, self._delay_ms if self._backoff is None else self._backoff.next(redelivery_count))
