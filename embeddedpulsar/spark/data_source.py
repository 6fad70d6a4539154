"""The format ``embeddedpulsar`` of Spark's Python Data Source API.

The source of ``spark.readStream``: offsets and tasks on the driver, record batches in the workers.

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

from embeddedpulsar.arrow.schema import FAILFAST, check_mode, require_pyarrow
from embeddedpulsar.exceptions import InvalidConfiguration

try:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType
except ImportError as error:
    raise ImportError(
        'reading topics in Spark needs PySpark 4.2 or later: pip install "embeddedpulsar[spark]"'
    ) from error

from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.exceptions import ConsumerBusy
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.spark.batch_reader import BatchReader, LogPartition, PushdownBatchReader, read_task
from embeddedpulsar.spark.engine import (
    Bounds,
    EntryRange,
    LogTransactions,
    SegmentInfo,
    committed_segments,
    first_publish_ms,
    head,
    incarnation_in,
    is_trimmed_behind,
    messages_in,
    plan_segments,
    topic_directory,
    transaction_fates,
)
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
    place_of,
    selected_logs,
    tasks_of,
)
from embeddedpulsar.spark.options import (
    NO_LIMIT,
    SinkOptions,
    StreamOptions,
    known_options,
    parse_columns,
    parse_options,
    parse_sink_options,
    parse_stream_options,
    requested_columns,
    struct_type,
    switch,
    written_columns,
)
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    import pyarrow as pa

    from embeddedpulsar.arrow.typed_columns import Decoding
    from embeddedpulsar.spark.batch_reader import TypedSource
    from embeddedpulsar.spark.sink_writer import BatchWriter, StreamWriter


class DefaultSource(DataSource):
    """The format as Spark finds it by itself: everything but filter pushdown.

    What Spark does not offer to Python sources is not here either: it does not tell which columns a query
    uses. Give option ``columns``, or a schema, to read fewer.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return "embeddedpulsar"

    # Spark makes the source once for a query and asks it for the schema and then for a reader. Topics may get
    # a new schema between the two.
    _typed: TypedSource | None = None  # made by `schema`, so that what it found holds for the reader, too

    def schema(self) -> StructType | str:
        """All columns, or those of option ``columns``; fields of payloads with option ``decode``."""
        if not self._is_typed():
            return struct_type(parse_columns(self.options))
        return self._typed_source().schema()

    def reader(self, schema: StructType) -> BatchReader:
        """A reader of the columns of `schema`, which may be one the user gave."""
        # The planner of a source has no JVM and no file of the store open: this says what there could be, and
        # checks options, nothing else.
        require_pyarrow()
        return BatchReader(parse_options(self.options), *self._requested(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """A reader of the columns of `schema`, for `spark.readStream`."""
        require_pyarrow()
        return StreamReader(parse_stream_options(self.options), *self._requested(schema))

    def _requested(self, schema: StructType) -> tuple[tuple[str, ...], Decoding | None]:
        if not self._is_typed():
            return requested_columns(schema), None
        return tuple(schema.names), self._typed_source().decoding(schema)

    def _typed_source(self) -> TypedSource:
        require_pyarrow()
        from embeddedpulsar.spark.batch_reader import TypedSource

        if self._typed is None:
            self._typed = TypedSource(self.options)
        return self._typed

    def _is_typed(self) -> bool:
        """Whether the options ask for columns made of payloads."""
        options = known_options(self.options)
        # A schema of the user's own means decoding, as in `embeddedpulsar.arrow.read_topic`.
        decodes = switch("decode", options.get("decode", "true" if "valueschema" in options else "false"))
        check_mode(options.get("mode", FAILFAST))
        if "valueschema" in options and not decodes:
            raise InvalidConfiguration("option valueSchema is about decoded payloads; set decode to true")
        return decodes

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A writer of rows of `schema`, for `df.write`.

        Raises:
            InvalidConfiguration: an option or a column that is not known, or a mode other than append.
        """
        from embeddedpulsar.spark.sink_writer import BatchWriter

        return BatchWriter(*self._written(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """A writer of rows of `schema`, for `df.writeStream`; errors as of `writer`."""
        from embeddedpulsar.spark.sink_writer import StreamWriter

        return StreamWriter(*self._written(schema, overwrite))

    def _written(self, schema: StructType, overwrite: bool) -> tuple[SinkOptions, tuple[str, ...]]:
        require_pyarrow()
        # Spark asks for `overwrite` also where a stream has the output mode "complete".
        if overwrite:
            raise InvalidConfiguration(
                'a topic is a log, and nothing of it is overwritten: write with mode("append"), or '
                'outputMode("append") or "update"; delete the topic to begin anew'
            )
        from embeddedpulsar.spark.sink_commit import with_growth

        options = with_growth(parse_sink_options(self.options))
        types_by_name = {field.name: field.dataType.simpleString() for field in schema.fields}
        return options, written_columns(types_by_name, options)


class PushdownDataSource(DefaultSource):
    """The format as `embeddedpulsar.spark.register` sets it up: with filter pushdown."""

    def reader(self, schema: StructType) -> BatchReader:
        """As `DefaultSource.reader`, with filters deciding what is read."""
        require_pyarrow()
        return PushdownBatchReader(parse_options(self.options), *self._requested(schema))


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
    messages_of = [sum(map(messages_in, backlog.ranges)) for backlog in backlogs]
    size_of = [sum(piece.size for piece in backlog.ranges) for backlog in backlogs]
    # Everything fits, which is the usual case of a query that keeps up.
    if sum(messages_of) <= messages and sum(size_of) <= size:
        return {backlog.topic: backlog.end for backlog in backlogs}
    # First each log its share, then what is left over to the logs with the oldest messages.
    shares = [
        (_share(messages, own, sum(messages_of)), _share(size, own_size, sum(size_of)))
        for own, own_size in zip(messages_of, size_of, strict=True)
    ]
    taken = [_take_head(backlog, *share) for backlog, share in zip(backlogs, shares, strict=True)]
    room = (
        messages - sum(log_taken.messages for log_taken in taken),
        size - sum(log_taken.size for log_taken in taken),
    )
    # Progress: if no share holds a whole entry, the first log below may take one that is too large.
    takes_one = all(log_taken.end == log.begin for log_taken, log in zip(taken, backlogs, strict=True))
    # By the publish time of the next message, so that no log is passed over for ever.
    for i in sorted(range(len(backlogs)), key=lambda at: first_publish_ms(backlogs[at].ranges[0])):
        if room[0] <= 0 or room[1] <= 0:
            break
        before = taken[i]
        # Taken anew, with its share and all that is left: a range is cut from its start.
        after = _take_head(backlogs[i], before.messages + room[0], before.size + room[1], takes_one)
        taken[i], takes_one = after, False
        # What this log has taken in addition is gone from the rest.
        room = room[0] - after.messages + before.messages, room[1] - after.size + before.size
    return {backlog.topic: log_taken.end for backlog, log_taken in zip(backlogs, taken, strict=True)}


def _share(limit: int, own: int, total: int) -> int:
    """In proportion, rounded down; everything if there is enough for all."""
    return limit if total <= limit else limit * own // total


def _take_head(log: Backlog, messages: int, size: int, takes_one: bool = False) -> _Taken:
    so_far = _Taken(log.begin)
    for piece in log.ranges:
        part = head(piece, messages - so_far.messages, size - so_far.size, takes_one=takes_one)
        # Only the first entry may be too large.
        takes_one = False
        if part is None:
            break
        # A range that ends within an entry: the offset names that entry and how many of its messages were
        # read.
        end = LogOffset(log.begin.incarnation, part.ledger_id, part.end_entry - bool(part.keep), part.keep)
        so_far = _Taken(end, so_far.messages + messages_in(part), so_far.size + part.size)
        # Cut short: what follows in the log is for the next batch.
        if part is not piece:
            break
    return so_far


_ANEW: Final = "start the query with a new checkpoint"


class _LogView(NamedTuple):
    """One log as it is now; `segments` begin with the ledger that was asked for, if it is still there.
    `visible` is what of them can be read: up to the first undecided transaction."""

    name: TopicName
    incarnation: int
    segments: list[SegmentInfo]
    visible: list[SegmentInfo]

    def end(self) -> LogOffset:
        """Behind the last entry that can be read."""
        # The newest ledger is empty after a roll: its predecessor has the end.
        for info in reversed(self.visible):
            if info.entries:
                return LogOffset(self.incarnation, info.ledger_id, info.entries)
        return self.beginning()

    def beginning(self) -> LogOffset:
        """At the oldest entry."""
        return LogOffset(self.incarnation, self.segments[0].ledger_id if self.segments else 0)


class _Decided(NamedTuple):
    """Entries of a log of which all transactions are decided, and so for ever.

    Attributes:
        incarnation: which life of the topic.
        start, end: ledger and entry; from the one on, up to and without the other.
        aborted: runs of what was aborted between them, by ledger.
    """

    incarnation: int
    start: tuple[int, int]
    end: tuple[int, int]
    aborted: dict[int, tuple[tuple[int, int], ...]]


class StreamPlanner:
    """Turns offsets into the next offsets, and pairs of offsets into tasks. Callers: one thread.

    Args:
        options: of the query.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options: Final = options
        self._policy: Final = DataLossPolicy(options.read.fail_on_data_loss)
        self._known: Final[dict[str, str]] = {}
        self._target: Offsets | None = None
        self._decided: Final[dict[str, _Decided]] = {}

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
        # A topic that was deleted since the names were listed has no place to begin.
        return {name.full: self._initial(view) for name in logs if (view := self._view(name)) is not None}

    def freeze(self) -> None:
        """Let nothing that is published from now on be in any batch."""
        views = map(self._view, self._logs())
        # For trigger(availableNow): what is published from here on is for another query.
        self._target = {view.name.full: view.end() for view in views if view is not None}

    def latest(self, start: Offsets, *, is_limited: bool) -> Offsets:
        """Where the batch that begins at ``start`` ends; ``start`` itself if there is nothing to read.

        A log that is not in ``start`` appeared since: it is read from its first message.

        Raises:
            InvalidConfiguration: an offset behind the end of its log.
            DataLossError: messages behind an offset are gone, and losses are errors.
        """
        options = self._options
        limits = (options.max_messages, options.max_bytes) if is_limited else (NO_LIMIT, NO_LIMIT)
        ends: Offsets = {}
        behind: list[Backlog] = []
        for name in self._logs():
            begin = start.get(name.full)
            view = self._view(name, begin)
            if view is None:
                # Deleted meanwhile: reported below if the query has read of it.
                continue
            entered = self._entered(begin, view)
            end = self._end(view, entered)
            # Without limits the batch ends where the logs end, and nothing has to be counted.
            if limits == (NO_LIMIT, NO_LIMIT):
                entered = end
            elif end != entered:
                ranges = self._ranges(view, entered, end)
                # Entries may have been trimmed behind `entered`; then there is nothing to take of this log.
                if ranges:
                    behind.append(Backlog(name.full, entered, end, ranges))
            # A log that appeared and is still empty is not in the offset: it would be "read before" if it is
            # deleted again.
            if begin is not None or end.entry:
                ends[name.full] = entered
        # Sorted: the first one is in the error, and a query that is repeated gets the same.
        for full in sorted(start.keys() - ends.keys()):
            self._policy.lost(
                f"{full} was read before, and was deleted or is not among the topics any more", _ANEW
            )
        # `admit` knows only the logs with a backlog; the others stay where they are.
        return ends | admit(behind, *limits)

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
            view = self._view(name, read_from=begin)
            # Spark plans a batch again after a restart, so the log may have gone since its end was decided.
            if view is None or view.incarnation != stop.incarnation:
                self._policy.lost(f"{full} was deleted before a batch up to {stop.text} was read", _ANEW)
                continue
            # The batch begins in a log that was deleted and ends in the one made after it: all of the new one
            # is read.
            if begin is not None and begin.incarnation != stop.incarnation:
                begin = None
            # The end was there when it was decided: behind the end now means an older store, before the
            # beginning means it was trimmed.
            check_place("the batch's end", stop.place, name, view.segments, self._policy)
            entered = self._entered(begin, view)
            ranges = self._ranges(view, entered, stop)
            # Trimming goes on between the listing of the segments and the plan.
            self._check_covered(view, entered, stop, ranges)
            planned.append(ranges)
        return tasks_of(planned, self._options.read)

    def _logs(self) -> list[TopicName]:
        return selected_logs(self._options.read, waits=True, known=self._known)

    def _view(
        self, name: TopicName, begin: LogOffset | None = None, read_from: LogOffset | None = None
    ) -> _LogView | None:
        """The log from the ledger of ``begin`` on; None if it is gone. What of it can be read is known from
        there on, or from ``read_from`` on."""
        directory = topic_directory(self._options.read.path, name)
        try:
            incarnation = incarnation_in(directory)
            # Ledgers before the offset are not looked at: a topic may have thousands.
            since = begin.ledger if begin is not None and begin.incarnation == incarnation else 0
            segments = committed_segments(directory, self._policy.segment_lost, since)
        except FileNotFoundError:
            return None
        start = begin or read_from
        if start is None or start.incarnation != incarnation:
            start = LogOffset(incarnation)
        return _LogView(name, incarnation, segments, self._visible(name, segments, start))

    def _visible(self, name: TopicName, segments: list[SegmentInfo], start: LogOffset) -> list[SegmentInfo]:
        """The segments up to the first undecided transaction, with what was aborted from ``start`` on."""
        read, place = self._options.read, (start.ledger, start.entry)
        if read.uncommitted or not any(info.is_revised for info in segments):
            return segments
        known = self._decided.get(name.full)
        # What is known to be decided is not looked at again: a query with limits that is far behind would
        # look at all of its backlog for each batch.
        if known is None or known.incarnation != start.incarnation or place < known.start:
            known = _Decided(start.incarnation, place, place, {})
        with transaction_fates(read.path) as fate:
            visible = LogTransactions(segments, fate, known.end).visible()
        aborted = {
            info.ledger_id: runs
            for info in visible
            if (runs := (*known.aborted.get(info.ledger_id, ()), *info.aborted))
        }
        end = max(known.end, (visible[-1].ledger_id, visible[-1].entries))
        self._decided[name.full] = _Decided(start.incarnation, max(known.start, place), end, aborted)
        return [info._replace(aborted=aborted.get(info.ledger_id, ())) for info in visible]

    def _initial(self, view: _LogView) -> LogOffset:
        read, name = self._options.read, view.name
        place = place_of(read.start, name)
        if place is None or place == MessageId.latest:
            return view.end()
        # A time: the first entry at or behind it, or the end where none is so new.
        if isinstance(place, int):
            later = plan_segments(view.visible, name, Bounds(start_ms=place))
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
            # A log that appeared after the query began is read from its first message on.
            return LogOffset(view.incarnation)
        # Its messages are gone, and those of the new one have other numbers.
        if begin.incarnation != view.incarnation:
            self._policy.lost(f"{name} was deleted and made again since {begin.text} of it was read", _ANEW)
            return LogOffset(view.incarnation)
        # Ledger 0 is before everything: nothing of the log was read, so nothing can be missing.
        if not begin.ledger:
            return begin
        # A batch that was decided cannot lie behind the end, unless the store is a copy from before.
        last = segments[-1] if segments else None
        if last is None or begin[1:] > (last.ledger_id, last.entries, 0):
            end = "empty" if last is None else f"{last.ledger_id}:{last.entries}"
            raise InvalidConfiguration(
                f"the checkpoint's offset {begin.text} lies behind the end of {name} ({end}): the "
                f"store is older than the checkpoint; {_ANEW}"
            )
        if is_trimmed_behind((begin.ledger, begin.entry), segments[0]):
            oldest = LogOffset(view.incarnation, segments[0].ledger_id)
            self._policy.lost(
                f"{name}: messages from {begin.text} on were trimmed before the query read them; "
                f"the log begins at {oldest.text}"
            )
            return oldest
        return begin

    def _end(self, view: _LogView, entered: LogOffset) -> LogOffset:
        # An empty log, or one of which only an empty ledger is left: the offset stays, so that no batch is
        # made of nothing.
        if not any(info.entries for info in view.visible):
            return entered
        end = view.end()
        if self._target is not None:
            target = self._target.get(view.name.full)
            # A log, or a life of one, that appeared after the target was frozen is not read.
            if target is None or target.incarnation != view.incarnation:
                return entered
            end = min(end, target)
        # Never back: a target, or a ledger that was trimmed away, may lie before what was read.
        return max(end, entered)

    def _ranges(self, view: _LogView, begin: LogOffset, end: LogOffset) -> list[EntryRange]:
        return plan_segments(view.visible, view.name, Bounds(begin.place, end.place))

    def _check_covered(
        self, view: _LogView, begin: LogOffset, end: LogOffset, ranges: list[EntryRange]
    ) -> None:
        """Report what was trimmed between the listing of the segments and their planning."""
        planned = {part.ledger_id for part in ranges}
        missing = [ledger for ledger in _ledgers_between(view.segments, begin, end) if ledger not in planned]
        if missing:
            self._policy.lost(
                f"{view.name.full}: ledgers {', '.join(map(str, missing))} were trimmed while a batch from "
                f"{begin.text} to {end.text} was planned"
            )


def _ledgers_between(segments: list[SegmentInfo], begin: LogOffset, end: LogOffset) -> Iterator[int]:
    """The ledgers with entries between two offsets."""
    for info in segments:
        # Between the two offsets, with entries behind the first.
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
        # Pins and subscription stay with the process of the query; a worker has the options alone.
        return StreamReader, (self._options, self._columns, self._decoding)

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        # Twice, in this order: the first place is pinned, and what trimming took before that is seen by the
        # second look.
        self._pin(self._planner.initial())
        return encode_offsets(self._planner.initial())  # behind what is pinned

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limits of the options. Spark has no limit of both kinds; `latestOffset` applies both."""
        # Spark takes one limit and asks for it again in `latestOffset`; which kind it is does not matter
        # there.
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
        ends = self._planner.latest(offsets, is_limited=is_limited)
        # A subscription keeps what is not acknowledged, so it takes the place of pins.
        if self._options.subscription:
            self._attached().attach(ends, offsets)
        else:  # a topic that appeared is read from its first message
            self._pin({name: LogOffset(end.incarnation) for name, end in ends.items() if name not in offsets})
        return encode_offsets(ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        # The batch may be one from before a restart, which nothing has pinned in this process.
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
            # Acknowledged only now: Spark commits a batch when its result is stored.
            self._attached().acknowledge_to(decode_offsets(end))
        self._pin(decode_offsets(end))

    def _pin(self, offsets: Offsets) -> None:
        if not self._options.subscription:
            self._pins.pin_behind(offsets)

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
    """One exclusive consumer for each log of a query, which receives nothing. Callers: one thread.

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

        The process of a query that ended a moment ago may still be attached; `acknowledge_to` tries again.
        """
        for topic, end in logs.items():
            with contextlib.suppress(ConsumerBusy):
                self.acknowledge_to({topic: start.get(topic, LogOffset(end.incarnation))})

    def acknowledge_to(self, offsets: Offsets) -> None:
        """Acknowledge everything before the offsets; a batch that was read in part counts as not read.

        Raises:
            ConsumerBusy: another query or consumer has the subscription.
        """
        for topic, offset in offsets.items():
            consumer = self._consumer(topic, offset)
            # Entry 0 has nothing before it in its ledger; what was before that ledger was acknowledged with
            # an earlier offset. The same offset again costs no call.
            if offset.entry and self._followed.get(topic) != offset:
                partition = TopicName.parse(topic).partition
                core = consumer._core
                if isinstance(core, ConsumerCore):  # always, of one log
                    core.voided()  # follows a move by others: else no acknowledgement counts any more
                # The entry before the offset is the last one that was read whole.
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
            # The consumer of a topic that was deleted is of no use to the one made after it.
            del self._consumers[topic]
        consumer = self._client.subscribe(
            topic,
            self._name,
            consumer_name="spark",
            # It receives nothing: a queue would take permits and memory for messages that tasks read by
            # themselves.
            receiver_queue_size=0,
            # The subscription is made with the query; what is before the batch is acknowledged by `attach`,
            # so nothing in between is missed.
            initial_position=InitialPosition.Earliest,
            # Acknowledgements are stored at once: `commit` returning means that the position is.
            ack_group_time_ms=0,
        )
        self._consumers[topic] = offset.incarnation, consumer
        return consumer
