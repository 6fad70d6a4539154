"""Received messages that are not acknowledged, while ``unacked_messages_timeout_ms`` runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar.client.consumer.due_entries import DueEntries, Position

if TYPE_CHECKING:
    from embeddedpulsar.client.consumer.redelivery_backoff import MultiplierRedeliveryBackoff
    from embeddedpulsar.platform.scheduler import Timer


class UnackedMessageTracker(DueEntries):
    """Redelivers entries whose acknowledgement is overdue.

    Role: an entry is tracked from the moment the application receives its first message, and is due between
    the timeout and one tick later. With a backoff, its delay for the entry's redelivery count is added to the
    timeout.
    """

    __slots__ = ("_backoff", "_timeout_ms")

    def __init__(
        self,
        timeout_ms: int,
        tick_ms: int,
        redeliver: Callable[[list[Position]], object],
        call_later: Callable[[float, Callable[[], object]], Timer],
        monotonic: Callable[[], float],
        backoff: MultiplierRedeliveryBackoff | None = None,
    ) -> None:
        super().__init__(tick_ms, redeliver, call_later, monotonic)
        self._timeout_ms = timeout_ms
        self._backoff = backoff

    def watch(self, position: Position, redelivery_count: int) -> None:
        """Track an entry, one of whose messages the application received."""
        delay_ms = self._timeout_ms
        if self._backoff is not None:
            delay_ms += self._backoff.next(redelivery_count)
        self.add(position, delay_ms)
