"""What there is to tell about a producer and a consumer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ProducerStats(NamedTuple):
    """A snapshot of what a producer did, from `Producer.stats`.

    Attributes:
        messages_sent: messages stored since the producer was made.
        bytes_sent: their payloads, with keys and properties where there are any, before compression; to
            within 16 bytes an entry.
        entries_sent: entries they were stored in.
        send_failures: messages that could not be stored.
        pending_messages: messages taken and not stored yet, or not on the disk yet where that is asked for.
        messages_per_second, bytes_per_second: since statistics were last logged, or the producer was made.
        latency_ms_50, latency_ms_95, latency_ms_99, latency_ms_max: from encoding an entry until it was
            stored (at level ``flush``: on the disk). Of batches since statistics were last logged, the last
            1,024; of messages sent one by one, the first 32 since then. 0.0 without any.
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
    """A snapshot of what a consumer did, from `Consumer.stats`.

    Attributes:
        messages_received: messages the application was given.
        bytes_received: their payloads.
        acknowledgements_sent: acknowledgements that were written: entries, partly acknowledged batches, and
            cumulative ones.
        queued_messages: messages fetched ahead.
        messages_per_second, bytes_per_second: received since statistics were last logged, or the consumer was
            made.

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
    """The statistics of several topics together.

    >>> sum_of([ConsumerStats(1, 2, 3, 4, 5.0, 6.0), ConsumerStats(1, 1, 1, 1, 1.0, 1.0)])[:5]
    (2, 3, 4, 5, 6.0)
    """
    columns = list(zip(*parts, strict=True))
    return ConsumerStats(*map(sum, columns)) if columns else ConsumerStats(0, 0, 0, 0, 0.0, 0.0)


def percentiles(seconds: Iterable[float]) -> tuple[float, float, float, float]:
    """Median, 95th and 99th percentile and maximum, in ms.

    >>> percentiles(number / 1000 for number in range(101))
    (50.0, 95.0, 99.0, 100.0)
    """
    ordered = sorted(seconds)
    if not ordered:
        return 0.0, 0.0, 0.0, 0.0
    last = len(ordered) - 1
    half, most, nearly_all = (round(ordered[round(last * share)] * 1000, 3) for share in (0.5, 0.95, 0.99))
    return half, most, nearly_all, round(ordered[-1] * 1000, 3)
