"""Statistics of one consumer, for the log and for the application."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform.deadline import TURN_S
from embeddedpulsar.message import size_of

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.scheduler import Timer
    from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker
    from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
    from embeddedpulsar.client.consumer.receiver_queue import ReceiverQueue
    from embeddedpulsar.client.statistics import ConsumerStats


class ConsumerMeter:
    """Logs every ``stats_interval_in_seconds`` what a consumer received and acknowledged.

    Role: receiving a message costs no counter: the number received is the number fetched minus the number in
    the queue. An interval without messages is not logged."""

    __slots__ = (
        "__weakref__",
        "_acks",
        "_before",
        "_begun",
        "_interval_s",
        "_is_closed",
        "_queue",
        "_session",
        "_timer",
    )

    def __init__(self, session: ConsumerSession, queue: ReceiverQueue, acks: AckGroupingTracker) -> None:
        self._session = session
        self._queue = queue
        self._acks = acks
        self._before = (0, 0, 0)
        self._begun = session.monotonic()
        self._interval_s = session.client.config.stats_interval_s
        self._timer: Timer | None = None
        self._is_closed = False
        if self._interval_s:
            self._arm()

    def totals(self) -> tuple[int, int, int]:
        """Messages received, their payload bytes, and acknowledgements written, so far."""
        queue = self._queue
        try:
            queue.lock.acquire(True, TURN_S)  # without the lock the numbers are slightly inexact
            waiting = queue.valid()
            return queue.fetched - len(waiting), queue.fetched_bytes - size_of(waiting), self._acks.sent
        finally:
            queue.lock.release()

    def snapshot(self) -> ConsumerStats:
        totals = self.totals()
        passed = max(self._session.monotonic() - self._begun, 1e-9)
        from embeddedpulsar.client.statistics import (
            ConsumerStats,  # on first use: most processes ask for none
        )

        return ConsumerStats(
            *totals,
            self._queue.ahead,
            (totals[0] - self._before[0]) / passed,
            (totals[1] - self._before[1]) / passed,
        )

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        mine = weakref.ref(self)  # the timer must not keep a dropped consumer alive

        def on_timer() -> None:
            meter = mine()
            if meter is not None:
                meter._on_timer()

        self._timer = self._session.call_later(self._interval_s, on_timer)

    def _on_timer(self) -> None:
        if self._is_closed:
            return
        self._arm()
        totals = self.totals()
        messages, size, acks = (now - before for now, before in zip(totals, self._before, strict=True))
        self._before, self._begun = totals, self._session.monotonic()
        if messages or acks:
            self._session.client.log.info(
                "Consumer %s of %s on %s, in %d s: received %d messages, %d bytes; sent %d acknowledgements. "
                "In all: %d messages, %d bytes; %d acknowledgements",
                self._session.consumer_name,
                self._session.config.subscription_name,
                self._session.topic_name,
                self._interval_s,
                messages,
                size,
                acks,
                *totals,
            )
