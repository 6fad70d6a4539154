"""The statistics of producers and consumers."""

from __future__ import annotations

from collections.abc import Iterable

from embeddedpulsar.records import NamedTuple


class ProducerStats(NamedTuple):
    """A snapshot of the statistics of a producer, returned by `Producer.stats`.

    Attributes:
        messages_sent: messages stored since the producer was made.
        bytes_sent: the size of their payloads, with keys and properties if present, before compression,
            accurate to 16 bytes per entry.
        entries_sent: the number of entries with these messages.
        send_failures: messages that could not be stored.
        pending_messages: messages accepted and not stored yet, or at level ``flush`` not yet on disk.
        messages_per_second, bytes_per_second: since statistics were last logged, or the producer was made.
        latency_ms_50, latency_ms_95, latency_ms_99, latency_ms_max: time from encoding an entry until it was
            stored (at level ``flush``: on disk). Measured over the last 1,024 batches, and the first 32
            messages sent one by one, since statistics were last logged. 0.0 if there were none.
        chunked_messages: how many of the messages were sent in chunks.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     producer = client.create_producer("orders")
        ...     ids = [producer.send(b"one tea") for _ in range(3)]
        ...     stats = producer.stats()
        >>> stats.messages_sent, stats.bytes_sent, stats.send_failures
        (3, 21, 0)
    """

    messages_sent: int
    bytes_sent: int
    entries_sent: int
    send_failures: int
    pending_messages: int
    messages_per_second: float
    bytes_per_second: float
    latency_ms_50: float
    latency_ms_95: float
    latency_ms_99: float
    latency_ms_max: float
    chunked_messages: int


class ConsumerStats(NamedTuple):
    """A snapshot of the statistics of a consumer, returned by `Consumer.stats`.

    Attributes:
        messages_received: messages passed to the application.
        bytes_received: the size of their payloads.
        acknowledgements_sent: written acknowledgements of entries and of partly acknowledged batches, and
            cumulative acknowledgements.
        queued_messages: messages fetched ahead.
        messages_per_second, bytes_per_second: received since statistics were last logged, or since the
            consumer was made.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client, client.subscribe("orders", "s") as consumer:
        ...     message_id = client.create_producer("orders").send(b"one tea")
        ...     consumer.acknowledge(consumer.receive())
        ...     consumer.stats().messages_received, consumer.stats().bytes_received
        (1, 7)
    """

    messages_received: int
    bytes_received: int
    acknowledgements_sent: int
    queued_messages: int
    messages_per_second: float
    bytes_per_second: float


def sum_of(parts: Iterable[ConsumerStats]) -> ConsumerStats:
    """Return the sum of the statistics of several topics.

    >>> sum_of([ConsumerStats(1, 2, 3, 4, 5.0, 6.0), ConsumerStats(1, 1, 1, 1, 1.0, 1.0)])[:5]
    (2, 3, 4, 5, 6.0)
    """
    # Field by field; without parts there are no columns.
    columns = list(zip(*parts, strict=True))
    return ConsumerStats(*map(sum, columns)) if columns else ConsumerStats(0, 0, 0, 0, 0.0, 0.0)


def percentiles(seconds: Iterable[float]) -> tuple[float, float, float, float]:
    """Return the median, the 95th and 99th percentile and the maximum, in ms.

    >>> percentiles(number / 1000 for number in range(101))
    (50.0, 95.0, 99.0, 100.0)
    """
    ordered = sorted(seconds)
    if not ordered:
        return 0.0, 0.0, 0.0, 0.0
    # The nearest rank, without interpolation: a figure that did occur.
    last = len(ordered) - 1
    half, most, nearly_all = (round(ordered[round(last * share)] * 1000, 3) for share in (0.5, 0.95, 0.99))
    return half, most, nearly_all, round(ordered[-1] * 1000, 3)
