"""Statistics of one producer, for the log and for the application."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.scheduler import Timer
    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.client.statistics import ProducerStats

ONE: Final = 1 << 48
"""The increment of a tally per message, besides its bytes: one number counts both, to save time."""
SAMPLES: Final = 1024
BURST: Final = 32
"""Messages sent one by one that take the slow path, which measures time, at the start of each interval."""
_NO_LATENCIES: Final[deque[float]] = deque(maxlen=0)
"""Of a producer that has measured nothing: a deque takes 0.7 KiB, and there may be thousands of producers."""
_COLUMNS_SIZE: Final = struct.Struct("<I")
_COLUMNS_SIZE_AT: Final = 8


class Totals(NamedTuple):
    """Counters that only increase."""

    messages: int
    size: int
    failures: int


class CountingPublisher(Protocol):
    """The interface of a publisher to its meter.

    Attributes:
        tally: messages and bytes of the hot path.
    """

    @property
    def tally(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def pending(self) -> int: ...
    def sample(self, messages: int) -> None: ...


class ProducerMeter:
    """Counts what one attachment of a producer stores, and logs it every ``stats_interval_in_seconds``.

    The hot path adds to the publisher's `tally`; everything else is counted here, once per entry. An
    interval without messages is not logged.

    `begin` and `stored` are called under the publisher's lock; any thread may call the other methods.

    Attributes:
        publisher: its tally counts too; the publisher sets this attribute.
        chunked: messages sent in chunks.
        burst: number of messages that are still to take the slow path, to be measured.
    """

    def __init__(self, session: ProducerSession) -> None:
        self.publisher: CountingPublisher | None = None
        self._session = session
        self._interval_s = session.stats_interval_s
        self._monotonic = session.monotonic
        self.reset()

    def reset(self) -> None:
        self.chunked = self.burst = 0
        self._entries = self._messages = self._size = self._failures = 0
        self._latencies = _NO_LATENCIES
        self._begun = self._monotonic()
        self._before = Totals(0, 0, 0)
        self._timer: Timer | None = None
        self._is_closed = False

    def start(self) -> None:
        if self._interval_s:
            self._timer = self._session.call_later(self._interval_s, self._on_timer)

    def stored(self, out: PendingEntry) -> None:
        """An entry is in the log; at level ``flush`` `durable` follows."""
        encoded = out.encoded
        self._entries += 1
        self._messages += out.count
        if out.chunks is not None:
            self._entries += len(out.chunks.earlier)
            self._size += out.chunks.length
            self.chunked += 1
        elif encoded is not None:
            columns = encoded.size - encoded.metadata_length
            if encoded.codec:
                (columns,) = _COLUMNS_SIZE.unpack_from(encoded.parts[0], _COLUMNS_SIZE_AT)
            self._size += columns - 4 * out.count - 4
        if out.began and not out.end_word:
            (self._latencies or self._measured()).append(self._monotonic() - out.began)
            out.began = 0.0

    def durable(self, out: PendingEntry) -> None:
        began, out.began = out.began, 0.0
        if began:
            (self._latencies or self._measured()).append(self._monotonic() - began)

    def _measured(self) -> deque[float]:
        if self._latencies is _NO_LATENCIES:
            self._latencies = deque(maxlen=SAMPLES)
        return self._latencies

    def failed(self, count: int) -> None:
        self._failures += count

    def close(self) -> None:
        self._is_closed = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def totals(self) -> Totals:
        tally = 0 if self.publisher is None else self.publisher.tally
        size = tally & (ONE - 1)
        return Totals(self._messages + (tally >> 48), self._size + size, self._failures)

    @property
    def entries(self) -> int:
        return self._entries + (0 if self.publisher is None else self.publisher.tally >> 48)

    def _on_timer(self) -> None:
        if self._is_closed:
            return
        # The next interval begins before anything is logged: rates are of whole intervals, and a handler of
        # the log that takes long shifts none.
        self._timer = self._session.call_later(self._interval_s, self._on_timer)
        stats, totals, before = snapshot_of([self]), self.totals(), self._before
        samples = len(self._latencies)
        self._before, self._begun = totals, self._monotonic()
        self._latencies.clear()
        if self.publisher is not None:
            self.publisher.sample(BURST)
        if totals == before:
            return
        self._session.log.info(
            "Producer %s on %s, in %d s: sent %d messages, %d bytes; %d failed; %d pending; latency in ms of "
            "%d entries: %.3f median, %.3f 95 %%, %.3f 99 %%, %.3f at most. In all: %d messages, %d bytes; "
            "%d failed",
            self.publisher.name if self.publisher is not None else "",
            self._session.topic_name,
            self._interval_s,
            totals.messages - before.messages,
            totals.size - before.size,
            totals.failures - before.failures,
            stats.pending_messages,
            samples,
            stats.latency_ms_50,
            stats.latency_ms_95,
            stats.latency_ms_99,
            stats.latency_ms_max,
            *totals,
        )


def snapshot_of(meters: Iterable[ProducerMeter]) -> ProducerStats:
    """Return the sum of the statistics of all attachments of one producer."""
    from embeddedpulsar.client.statistics import ProducerStats, percentiles  # on first use: few ask for them

    messages = size = entries = failures = pending = chunked = 0
    message_rate = byte_rate = 0.0
    latencies: list[float] = []
    for meter in meters:
        totals, before = meter.totals(), meter._before
        passed = max(meter._monotonic() - meter._begun, 1e-9)
        messages += totals.messages
        size += totals.size
        failures += totals.failures
        entries += meter.entries
        chunked += meter.chunked
        pending += 0 if meter.publisher is None else meter.publisher.pending
        message_rate += (totals.messages - before.messages) / passed
        byte_rate += (totals.size - before.size) / passed
        latencies += meter._latencies.copy()
    return ProducerStats(
        messages,
        size,
        entries,
        failures,
        pending,
        message_rate,
        byte_rate,
        *percentiles(latencies),
        chunked,
    )
