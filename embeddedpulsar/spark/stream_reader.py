"""The source of ``spark.readStream``: offsets and tasks on the driver, record batches in the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from embeddedpulsar.spark.batch_reader import LogPartition, read_task
from embeddedpulsar.spark.read_pins import ReadPins
from embeddedpulsar.spark.stream_offsets import LogOffset, Offsets, decode_offsets, encode_offsets
from embeddedpulsar.spark.stream_options import NO_LIMIT, StreamOptions
from embeddedpulsar.spark.stream_planner import StreamPlanner

if TYPE_CHECKING:
    import pyarrow as pa

    from embeddedpulsar.arrow.typed_columns import Decoding
    from embeddedpulsar.spark.stream_subscription import StreamSubscription


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the topics of `options` as they grow.

    Spark keeps one in a process beside the driver for as long as the query runs, and makes another for each
    batch, which it sends to the workers; the store is therefore opened only when the first needs it.
    """

    def __init__(
        self, options: StreamOptions, columns: tuple[str, ...], decoding: Decoding | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._decoding = decoding
        self._planner = StreamPlanner(options)
        self._pins = ReadPins(options.read.path)
        self._subscription: StreamSubscription | None = None

    def __reduce__(self) -> tuple[type[StreamReader], tuple[Any, ...]]:
        """For the workers: they read, and are not attached."""
        return StreamReader, (self._options, self._columns, self._decoding)

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        self._pin(self._planner.initial())
        return encode_offsets(self._planner.initial())  # behind what is pinned

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limits of the options. Spark has no limit of both kinds; `latestOffset` applies both."""
        if self._options.max_messages != NO_LIMIT:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes != NO_LIMIT:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the target of the query."""
        self._planner.freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends."""
        offsets = decode_offsets(start)
        self._pin(offsets)
        is_limited = not isinstance(limit, ReadAllAvailable)
        found = self._planner.latest(offsets, is_limited=is_limited)
        if self._options.subscription:
            self._attached().attach(found, offsets)
        else:  # a topic that appeared is read from its first message
            self._pin(
                {name: LogOffset(end.incarnation) for name, end in found.items() if name not in offsets}
            )
        return encode_offsets(found)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        offsets = decode_offsets(start)
        self._pin(offsets)
        tasks = self._planner.tasks(offsets, decode_offsets(end))
        return [LogPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one task."""
        return read_task(partition, self._options.read, self._columns, self._decoding)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge what Spark has done with, or keep it no more."""
        if self._options.subscription:
            self._attached().follow(decode_offsets(end))
        self._pin(decode_offsets(end))

    def _pin(self, offsets: Offsets) -> None:
        if not self._options.subscription:
            self._pins.follow(offsets)

    def stop(self) -> None:
        """Detach from the subscription, which stays, and pin nothing more."""
        self._pins.close()
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _attached(self) -> StreamSubscription:
        if self._subscription is None:
            from embeddedpulsar.spark.stream_subscription import StreamSubscription

            self._subscription = StreamSubscription(self._options.read.path, self._options.subscription)
        return self._subscription
