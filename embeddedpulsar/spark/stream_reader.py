"""The source of ``spark.readStream``: offsets and tasks on the driver, record batches in the workers.

How much of what is there a batch of a stream takes: limits of messages and bytes, over several logs.

The driver's part of a streaming read: where it begins, what there is, and which entries a batch has.

It asks the files each time and remembers only what never changes, so a query that starts again from its
checkpoint plans the same batch again.

The subscription that follows a streaming query, so that its backlog is kept and shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from embeddedpulsar._engine.log.segment_snapshot import SegmentInfo, committed_segments, topic_incarnation
from embeddedpulsar._engine.store.catalog.topic_places import read_meta
from embeddedpulsar.arrow.plan import (
    Bounds,
    EntryRange,
    first_publish_ms,
    head,
    messages_in,
    plan_segments,
    topic_directory,
)
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.exceptions import ConsumerBusy, InvalidConfiguration
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.spark.batch_reader import LogPartition, read_task
from embeddedpulsar.spark.log_plan import (
    DataLossPolicy,
    LogOffset,
    Offsets,
    ReadPins,
    Task,
    check_place,
    check_topics,
    decode_offsets,
    encode_offsets,
    is_trimmed_behind,
    place_of,
    selected_logs,
    tasks_of,
)
from embeddedpulsar.spark.options import NO_LIMIT, StreamOptions
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    import pyarrow as pa

    from embeddedpulsar.arrow.typed_columns import Decoding


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a log has behind the offset at which the batch begins.

    Attributes:
        topic: its full name.
        begin, end: offsets around it.
        ranges: its entries, at least one.
    """

    topic: str
    begin: LogOffset
    end: LogOffset
    ranges: list[EntryRange]


@dataclass(frozen=True, slots=True)
class _Taken:
    end: LogOffset
    messages: int = 0
    size: int = 0


def admit(backlogs: Sequence[Backlog], messages: int, size: int) -> Offsets:
    """Where the batch ends in each log, if it may have so many messages and bytes of log.

    Each log gets a share in proportion to its backlog, so that logs advance together. What the shares leave,
    as no entry fits into it, goes to the log whose next message is the oldest, then to the next: no log
    starves. If no entry fits at all, the oldest is taken nevertheless.
    """
    messages_of = [sum(map(messages_in, one.ranges)) for one in backlogs]
    size_of = [sum(piece.size for piece in one.ranges) for one in backlogs]
    if sum(messages_of) <= messages and sum(size_of) <= size:
        return {one.topic: one.end for one in backlogs}
    most = [
        (_share(messages, own, sum(messages_of)), _share(size, own_size, sum(size_of)))
        for own, own_size in zip(messages_of, size_of, strict=True)
    ]
    taken = [_take(one, *share) for one, share in zip(backlogs, most, strict=True)]
    left = messages - sum(one.messages for one in taken), size - sum(one.size for one in taken)
    takes_one = all(one.end == log.begin for one, log in zip(taken, backlogs, strict=True))
    for i in sorted(range(len(backlogs)), key=lambda at: first_publish_ms(backlogs[at].ranges[0])):
        if left[0] <= 0 or left[1] <= 0:
            break
        before = taken[i]
        after = _take(backlogs[i], before.messages + left[0], before.size + left[1], takes_one)
        taken[i], takes_one = after, False
        left = left[0] - after.messages + before.messages, left[1] - after.size + before.size
    return {one.topic: found.end for one, found in zip(backlogs, taken, strict=True)}


def _share(limit: int, own: int, total: int) -> int:
    """In proportion, rounded down; everything if there is enough for all."""
    return limit if total <= limit else limit * own // total


def _take(log: Backlog, messages: int, size: int, takes_one: bool = False) -> _Taken:
    found = _Taken(log.begin)
    for piece in log.ranges:
        part = head(piece, messages - found.messages, size - found.size, takes_one=takes_one)
        takes_one = False
        if part is None:
            break
        end = LogOffset(log.begin.incarnation, part.ledger_id, part.end_entry - bool(part.keep), part.keep)
        found = _Taken(end, found.messages + messages_in(part), found.size + part.size)
        if part is not piece:
            break
    return found


_ANEW: Final = "start the query with a new checkpoint"


class _LogView(NamedTuple):
    """One log as it is now; `segments` begin with the ledger that was asked for, if it is still there."""

    name: TopicName
    incarnation: int
    segments: list[SegmentInfo]

    def end(self) -> LogOffset:
        """Behind the last entry."""
        for info in reversed(self.segments):
            if info.entries:
                return LogOffset(self.incarnation, info.ledger_id, info.entries)
        return self.beginning()

    def beginning(self) -> LogOffset:
        """At the oldest entry."""
        return LogOffset(self.incarnation, self.segments[0].ledger_id if self.segments else 0)


class StreamPlanner:
    """Role: turns offsets into the next offsets, and pairs of offsets into tasks. Callers: one thread.

    Args:
        options: of the query.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options: Final = options
        self._policy: Final = DataLossPolicy(options.read.fail_on_data_loss)
        self._known: Final[dict[str, str]] = {}
        self._target: Offsets | None = None

    def initial(self) -> Offsets:
        """Where a query without a checkpoint begins: at its starting offsets or time, else at the end.

        Raises:
            TopicNotFound: a topic that does not exist, unless the query waits for it.
            InvalidConfiguration: a start behind the end of a log, or in a topic that is not read.
            DataLossError: the start was trimmed, and losses are errors.
        """
        read = self._options.read
        logs = selected_logs(read, waits=self._options.waits, known=self._known)
        check_topics(read, logs)
        return {name.full: self._initial(view) for name in logs if (view := self._view(name)) is not None}

    def freeze(self) -> None:
        """Let nothing that is published from now on be in any batch."""
        views = map(self._view, self._logs())
        self._target = {view.name.full: view.end() for view in views if view is not None}

    def latest(self, start: Offsets, *, is_limited: bool) -> Offsets:
        """Where the batch that begins at ``start`` ends; ``start`` itself if there is nothing to read.

        A log that is not in ``start`` appeared since: it is read from its first message.

        Raises:
            InvalidConfiguration: an offset behind the end of its log.
            DataLossError: messages behind an offset are gone, and losses are errors.
        """
        options = self._options
        most = (options.max_messages, options.max_bytes) if is_limited else (NO_LIMIT, NO_LIMIT)
        found: Offsets = {}
        behind: list[Backlog] = []
        for name in self._logs():
            begin = start.get(name.full)
            view = self._view(name, begin)
            if view is None:
                continue
            entered = self._entered(begin, view)
            end = self._end(view, entered)
            if most == (NO_LIMIT, NO_LIMIT):
                entered = end
            elif end != entered:
                ranges = self._ranges(view, entered, end)
                if ranges:
                    behind.append(Backlog(name.full, entered, end, ranges))
            if begin is not None or end.entry:
                found[name.full] = entered
        for full in sorted(start.keys() - found.keys()):
            self._policy.lost(
                f"{full} was read before, and was deleted or is not among the topics any more", _ANEW
            )
        return found | admit(behind, *most)

    def tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        """The tasks of a batch.

        Raises:
            InvalidConfiguration: an offset behind the end of its log.
            DataLossError: messages of the batch are gone, and losses are errors.
        """
        planned = []
        for full in sorted(end):
            begin, stop = start.get(full), end[full]
            if begin == stop:
                continue
            name = TopicName.parse(full)
            view = self._view(name)
            if view is None or view.incarnation != stop.incarnation:
                self._policy.lost(f"{full} was deleted before a batch up to {stop.text} was read", _ANEW)
                continue
            if begin is not None and begin.incarnation != stop.incarnation:
                begin = None
            check_place("the batch's end", stop.place, name, view.segments, self._policy)
            entered = self._entered(begin, view)
            ranges = self._ranges(view, entered, stop)
            self._check_covered(view, entered, stop, ranges)
            planned.append(ranges)
        return tasks_of(planned, self._options.read)

    def _logs(self) -> list[TopicName]:
        return selected_logs(self._options.read, waits=True, known=self._known)

    def _view(self, name: TopicName, begin: LogOffset | None = None) -> _LogView | None:
        """The log from the ledger of ``begin`` on; None if it is gone."""
        directory = topic_directory(self._options.read.path, name)
        try:
            incarnation = topic_incarnation(directory)
            if not incarnation:
                meta = read_meta(directory)
                incarnation = 0 if meta is None else meta.incarnation
            since = begin.ledger if begin is not None and begin.incarnation == incarnation else 0
            segments = committed_segments(directory, self._policy.segment_lost, since)
        except FileNotFoundError:
            return None
        return _LogView(name, incarnation, segments)

    def _initial(self, view: _LogView) -> LogOffset:
        read, name = self._options.read, view.name
        place = place_of(read.start, name)
        if place is None or place == MessageId.latest:
            return view.end()
        if isinstance(place, int):
            later = plan_segments(view.segments, name, Bounds(start_ms=place))
            if not later:
                return view.end()
            return LogOffset(view.incarnation, later[0].ledger_id, later[0].first_entry)
        if place == MessageId.earliest:
            return view.beginning()
        check_place("startingOffsets", place, name, view.segments, self._policy)
        at = place.ledger_id(), place.entry_id(), max(0, place.batch_index())
        return LogOffset(view.incarnation, *at)

    def _entered(self, begin: LogOffset | None, view: _LogView) -> LogOffset:
        """Where reading goes on: at ``begin``, or at the first message if that is gone and may be."""
        name, segments = view.name.full, view.segments
        if begin is None:
            return LogOffset(view.incarnation)
        if begin.incarnation != view.incarnation:
            self._policy.lost(f"{name} was deleted and made again since {begin.text} of it was read", _ANEW)
            return LogOffset(view.incarnation)
        if not begin.ledger:
            return begin
        last = segments[-1] if segments else None
        if last is None or begin[1:] > (last.ledger_id, last.entries, 0):
            end = "empty" if last is None else f"{last.ledger_id}:{last.entries}"
            raise InvalidConfiguration(
                f"the checkpoint's offset {begin.text} lies behind the end of {name} ({end}): the "
                f"store is older than the checkpoint; {_ANEW}"
            )
        if is_trimmed_behind(begin.place, segments[0]):
            oldest = LogOffset(view.incarnation, segments[0].ledger_id)
            self._policy.lost(
                f"{name}: messages from {begin.text} on were trimmed before the query read them; "
                f"the log begins at {oldest.text}"
            )
            return oldest
        return begin

    def _end(self, view: _LogView, entered: LogOffset) -> LogOffset:
        if not any(info.entries for info in view.segments):
            return entered
        end = view.end()
        if self._target is not None:
            target = self._target.get(view.name.full)
            if target is None or target.incarnation != view.incarnation:
                return entered
            end = min(end, target)
        return max(end, entered)

    def _ranges(self, view: _LogView, begin: LogOffset, end: LogOffset) -> list[EntryRange]:
        return plan_segments(view.segments, view.name, Bounds(begin.place, end.place))

    def _check_covered(
        self, view: _LogView, begin: LogOffset, end: LogOffset, ranges: list[EntryRange]
    ) -> None:
        """Report what was trimmed between the listing of the segments and their planning."""
        planned = {one.ledger_id for one in ranges}
        missing = [ledger for ledger in _ledgers_between(view.segments, begin, end) if ledger not in planned]
        if missing:
            self._policy.lost(
                f"{view.name.full}: ledgers {', '.join(map(str, missing))} were trimmed while a batch from "
                f"{begin.text} to {end.text} was planned"
            )


def _ledgers_between(segments: list[SegmentInfo], begin: LogOffset, end: LogOffset) -> Iterator[int]:
    """The ledgers with entries between two offsets."""
    for info in segments:
        if info.entries and (info.ledger_id, info.entries) > (begin.ledger, begin.entry):
            if (info.ledger_id, 0, 0) < end[1:]:
                yield info.ledger_id


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
            self._subscription = StreamSubscription(self._options.read.path, self._options.subscription)
        return self._subscription


class StreamSubscription:
    """Role: one exclusive consumer for each log of a query, which receives nothing. Callers: one thread.

    Args:
        path: directory of the store.
        name: of the subscription.
    """

    def __init__(self, path: str, name: str) -> None:
        self._name: Final = name
        self._client: Final = Client(path)
        self._followed: Final[Offsets] = {}
        self._consumers: Final[dict[str, tuple[int, Consumer[bytes]]]] = {}

    def attach(self, logs: Offsets, start: Offsets) -> None:
        """Attach to each log, which keeps what is not acknowledged from then on, and acknowledge what is
        before the start of the batch: Spark commits a batch only when there is something behind it.

        The process of a query that ended a moment ago may still be attached; `follow` tries again.
        """
        for topic, end in logs.items():
            with contextlib.suppress(ConsumerBusy):
                self.follow({topic: start.get(topic, LogOffset(end.incarnation))})

    def follow(self, offsets: Offsets) -> None:
        """Acknowledge everything before the offsets; a batch that was read in part counts as not read.

        Raises:
            ConsumerBusy: another query or consumer has the subscription.
        """
        for topic, offset in offsets.items():
            consumer = self._consumer(topic, offset)
            if offset.entry and self._followed.get(topic) != offset:
                partition = TopicName.parse(topic).partition
                core = consumer._core
                if isinstance(core, ConsumerCore):  # always, of one log
                    core.voided()  # follows a move by others: else no acknowledgement counts any more
                consumer.acknowledge_cumulative(MessageId(partition, offset.ledger, offset.entry - 1))
                self._followed[topic] = offset

    def close(self) -> None:
        """Detach; the subscription stays."""
        self._client.close()

    def _consumer(self, topic: str, offset: LogOffset) -> Consumer[bytes]:
        attached = self._consumers.get(topic)
        if attached is not None:
            if attached[0] == offset.incarnation:
                return attached[1]
            attached[1].close()  # of a topic that was deleted
            del self._consumers[topic]
        consumer = self._client.subscribe(
            topic,
            self._name,
            consumer_name="spark",
            receiver_queue_size=0,
            initial_position=InitialPosition.Earliest,
            ack_group_time_ms=0,
        )
        self._consumers[topic] = offset.incarnation, consumer
        return consumer
