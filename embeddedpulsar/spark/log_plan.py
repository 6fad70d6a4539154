"""From options to the tasks of a read: which logs, from where to where, cut by bytes. Batches and streams.

A topic as a DataFrame whose offloaded ledgers Spark reads itself, as Parquet.

What a read does about lost data: an error with a stable code, or a warning.

Filters that Spark pushes down: they narrow what is read, and Spark checks every row again.

What reads of Spark keep from being trimmed: pins of the ledgers that they are about to read.

Offsets of a streaming read: a place in each log, as they stand in Spark's checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from embeddedpulsar.arrow import milliseconds
from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.entry_pruning import ANYTHING, Wanted, with_wanted
from embeddedpulsar.arrow.mapped_segment import gone
from embeddedpulsar.arrow.schema import SCHEMA_VERSION, check_columns
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    InvalidConfiguration,
    ReadError,
    TopicNotFound,
)
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.spark.engine import (
    Bounds,
    EntryRange,
    HeldFile,
    SegmentInfo,
    is_trimmed_behind,
    listed_logs,
    listed_segments,
    message_tables,
    part_of,
    pin_for_plan,
    pin_for_reading,
    plan_segments,
    root_of,
    split,
    topic_directory,
    topic_partitions,
    topics_in,
)
from embeddedpulsar.spark.options import Limits, Place, ReadOptions, parse_place, struct_type, topics_matching
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """See `embeddedpulsar.spark.table`."""
    root, names = root_of(path), check_columns(columns)
    if SCHEMA_VERSION in names or {"decode", "valueschema"} & {name.lower() for name in options}:
        raise InvalidConfiguration(
            "a table of offloaded messages has payloads and no schema versions; decode them with "
            'spark.read.format("embeddedpulsar")'
        )
    # The cold part is a table of its own, so each log has two parts: ledgers that Spark reads as Parquet, and
    # what is behind them.
    cold: list[str] = []
    starts: dict[str, str] = {}
    logs = topic_partitions(root, topic)
    for log in logs:
        uris, start = cold_part(root, log)
        if uris:
            cold += uris
            # The rest of the log begins where its cold part ends, or every row of it would be there twice.
            starts[log.full] = start
    reader = spark.read.format("embeddedpulsar").options(
        **{name: str(value) for name, value in options.items()},
        path=root,
        # A partitioned topic none of whose partitions was used is read by its own name, and has no rows.
        topics=",".join(log.full for log in logs) or topic,
        columns=",".join(names),
    )
    if starts:
        reader = reader.option("startingOffsets", json.dumps(starts))
    tail = reader.load()
    if not cold:
        return tail
    # With a schema Spark needs to look into no file before the query runs.
    return spark.read.schema(struct_type(names)).parquet(*cold).select(*names).unionByName(tail)


def cold_part(root: str, log: TopicName) -> tuple[list[str], str]:
    """The tables of the oldest ledgers of a log, as long as each has one; and the position behind them."""
    tables = message_tables(topic_directory(root, log))
    uris: list[str] = []
    end = ""
    for info in listed_segments(root, log):
        table = tables.get(info.ledger_id)
        # The cold part ends with the first ledger that has no table: it is not offloaded, or encrypted.
        # Ledgers behind it may have tables; they are read by the format, since the cut is one place.
        if info.entries and table is None:
            return uris, f"{info.ledger_id}:0"
        if table is not None:
            uris.append(table.uri)
        # An empty ledger is passed over; it has no table and no rows.
        end = f"{info.ledger_id}:{info.entries}"
    return uris, end


CODE: Final = "EMBEDDEDPULSAR_DATA_LOSS"


class DataLossError(ReadError):
    """Part of what was asked for is damaged or gone.

    Spark shows errors of its workers as text; the code in brackets stays the same.
    """

    def __init__(self, detail: str, remedy: str = "") -> None:
        other = f"{remedy}, or " if remedy else ""
        super().__init__(f"[{CODE}] {detail}; {other}set failOnDataLoss to false to read what is left")


class DataLossPolicy:
    """What to do about lost data: fail, or log it and continue.

    Args:
        fail: whether it is an error (option failOnDataLoss).
    """

    def __init__(self, fail: bool) -> None:
        self._fail = fail

    def lost(self, detail: str, remedy: str = "") -> None:
        """Report a loss; ``remedy`` is what else can be done than to read on.

        Raises:
            DataLossError: losses are errors.
        """
        if self._fail:
            raise DataLossError(detail, remedy)
        import logging

        logging.getLogger("embeddedpulsar.spark").warning("[%s] %s", CODE, detail)

    def damaged(self, error: CorruptionError, first: int, after: int) -> None:
        """Report entries that do not verify; the handler `record_batches` wants."""
        lost = f"entry {first}" if after == first + 1 else f"entries {first} to {after - 1}"
        where = f"{error.path} at offset {error.offset}"
        self.lost(f"{lost} of {where}: {error.reason}")

    def gone(self, planned: EntryRange) -> None:
        """Report a range whose segment went after the query was planned; the handler `open_ahead` wants."""
        self.lost(gone(planned))

    def segment_lost(self, report: Damage) -> None:
        """Report a segment that cannot be read at all; the handler `committed_segments` wants."""
        self.lost(str(report))


class Span(NamedTuple):
    """Numbers from `first` up to, not including, `end`."""

    first: int = 0
    end: int = sys.maxsize

    def narrowed(self, first: int, end: int) -> Span:
        """What this has in common with another one."""
        return Span(max(self.first, first), min(self.end, end))


EVERY: Final = Span()


@dataclass(frozen=True, slots=True)
class Pruning:
    """What rows can satisfy all filters: in publish time [start_ms, end_ms), in these topics and partitions,
    ledgers and entries of ledgers, with these keys and event times.

    None means that nothing is known. Pure numbers and strings: it travels with the reader.
    """

    start_ms: int | None = None
    end_ms: int | None = None
    topics: frozenset[str] | None = None
    topic_prefixes: tuple[str, ...] = ()
    partitions: frozenset[int] | None = None
    ledgers: Span = EVERY
    entries: Span = EVERY
    wanted: Wanted = ANYTHING

    def narrowed(self, planned: EntryRange) -> list[EntryRange]:
        """What of a range can satisfy the filters on ledgers, entries, keys and event times.

        Raises:
            FileNotFoundError: its segment is gone.
        """
        if not self.ledgers.first <= planned.ledger_id < self.ledgers.end:
            return []
        first, end = self.entries.narrowed(planned.first_entry, planned.end_entry)
        part = part_of(planned, first, end)
        if part is None:
            return []
        return with_wanted(part, self.wanted)

    def admits(self, name: TopicName) -> bool:
        """Whether rows of this topic or partition can satisfy the filters."""
        return (
            (self.topics is None or name.full in self.topics)
            and all(name.full.startswith(prefix) for prefix in self.topic_prefixes)
            and (self.partitions is None or name.partition in self.partitions)
        )


NO_PRUNING: Final = Pruning()


def prune(filters: Iterable[Filter]) -> Pruning:
    """What `filters`, all of which must hold, say about what is read."""
    pruning = Pruning()
    for pushed in filters:
        # A filter on a field of a struct, `a.b`, is on no column of messages.
        column: tuple[str, ...] = getattr(pushed, "attribute", ())
        if len(column) == 1:
            # An unknown column or comparison narrows nothing: Spark checks every row again.
            narrow = _NARROWERS.get(column[0])
            if narrow is not None:
                pruning = narrow(pruning, pushed)
    return pruning


def _narrow_time(pruning: Pruning, pushed: Filter) -> Pruning:
    start, end = _times(pushed)
    return replace(
        pruning,
        start_ms=_tighter(pruning.start_ms, start, max),
        end_ms=_tighter(pruning.end_ms, end, min),
    )


def _narrow_event_time(pruning: Pruning, pushed: Filter) -> Pruning:
    start, end = _times(pushed)
    known = pruning.wanted
    wanted = replace(
        known, start_ms=_tighter(known.start_ms, start, max), end_ms=_tighter(known.end_ms, end, min)
    )
    return replace(pruning, wanted=wanted)


def _times(pushed: Filter) -> tuple[int | None, int | None]:
    """The first time in ms that can satisfy a filter, and the first one behind those that can."""
    value = getattr(pushed, "value", None)
    if not isinstance(value, datetime):
        return None, None
    # Spark gives times of its session as UTC without a zone.
    time = value if value.tzinfo else value.replace(tzinfo=UTC)
    at = milliseconds(time) or 0  # rounded up: the first whole millisecond not before it
    # Messages have whole milliseconds. With a part of one in the filter, `at` is the next millisecond: then >
    # and >= allow the same times, and so do < and <=.
    exact = time.microsecond % 1000 == 0
    if isinstance(pushed, GreaterThanOrEqual):
        return at, None
    if isinstance(pushed, GreaterThan):
        return at + exact, None
    if isinstance(pushed, LessThan):
        return None, at
    if isinstance(pushed, LessThanOrEqual):
        return None, at + exact
    return (at, at + exact) if isinstance(pushed, EqualTo) else (None, None)


def _narrow_topic(pruning: Pruning, pushed: Filter) -> Pruning:
    if isinstance(pushed, StringStartsWith):
        return replace(pruning, topic_prefixes=(*pruning.topic_prefixes, pushed.value))
    return replace(pruning, topics=_only(pruning.topics, pushed))


def _narrow_partition(pruning: Pruning, pushed: Filter) -> Pruning:
    return replace(pruning, partitions=_only(pruning.partitions, pushed))


def _narrow_ledger(pruning: Pruning, pushed: Filter) -> Pruning:
    return replace(pruning, ledgers=pruning.ledgers.narrowed(*_span(pushed)))


def _narrow_entry(pruning: Pruning, pushed: Filter) -> Pruning:
    return replace(pruning, entries=pruning.entries.narrowed(*_span(pushed)))


def _narrow_key(pruning: Pruning, pushed: Filter) -> Pruning:
    if isinstance(pushed, EqualTo):
        values = [pushed.value]
    elif isinstance(pushed, In):
        # Null is in no key; `In` with null is not true for a message without one.
        values = [value for value in pushed.value if value is not None]
    else:
        return pruning
    # Not bytes: a filter on a cast column, say.
    if not all(isinstance(value, bytes | bytearray) for value in values):
        return pruning
    # Filters are joined by AND, so sets of keys are intersected. An empty one leaves nothing.
    keys, known = frozenset(map(bytes, values)), pruning.wanted.keys
    return replace(pruning, wanted=replace(pruning.wanted, keys=keys if known is None else known & keys))


def _span(pushed: Filter) -> Span:
    """The numbers between which all lie that satisfy a filter."""
    value = getattr(pushed, "value", None)
    # `type`, not `isinstance`: True is an int in Python, and no number here.
    if isinstance(pushed, In) and value and all(type(number) is int for number in value):
        return Span(min(value), max(value) + 1)
    if type(value) is not int:
        return EVERY
    # Only one interval is kept: what lies between the numbers of `In` is read in vain.
    if isinstance(pushed, EqualTo):
        return Span(value, value + 1)
    if isinstance(pushed, GreaterThan | GreaterThanOrEqual):
        return Span(value + isinstance(pushed, GreaterThan))
    if isinstance(pushed, LessThan | LessThanOrEqual):
        return Span(0, value + isinstance(pushed, LessThanOrEqual))
    return EVERY


_NARROWERS: dict[str, Callable[[Pruning, Filter], Pruning]] = {
    names.PUBLISH_TIME: _narrow_time,
    names.TOPIC: _narrow_topic,
    names.PARTITION: _narrow_partition,
    names.LEDGER_ID: _narrow_ledger,
    names.ENTRY_ID: _narrow_entry,
    names.KEY: _narrow_key,
    names.EVENT_TIME: _narrow_event_time,
}


def _only(known: frozenset[Any] | None, pushed: Filter) -> frozenset[Any] | None:
    if isinstance(pushed, EqualTo):
        values = frozenset([pushed.value])
    elif isinstance(pushed, In):
        values = frozenset(pushed.value)
    else:
        return known
    return values if known is None else known & values


def _tighter(known: int | None, other: int | None, choose: Callable[[int, int], int]) -> int | None:
    if known is None or other is None:
        return other if known is None else known
    return choose(known, other)


Task = tuple[EntryRange, ...]
"""What one worker reads: ranges of one log, in order."""


def selected_logs(
    options: ReadOptions, *, waits: bool = False, known: dict[str, str] | None = None
) -> list[TopicName]:
    """The topics and partitions the options name, each once.

    Args:
        waits: whether topics that do not exist are left out.
        known: the topics of directories, of a caller that asks again; a directory never changes its topic.

    Raises:
        TopicNotFound: a topic that does not exist, or a pattern that matches none.
    """
    topics: Iterable[str] = options.topics
    if options.pattern is not None:
        matches = topics_matching(options.pattern)
        # Partitions are matched by the name of their topic, as consumers match them.
        topics = sorted(filter(matches, topics_in(options.path, {} if known is None else known)))
        if not topics and not waits:
            raise TopicNotFound(f"no topic of {options.path} matches {options.pattern}")
    # A dict keeps the order and leaves out a log that two names mean.
    logs: dict[TopicName, None] = {}
    for topic in topics:
        try:
            logs.update(dict.fromkeys(topic_partitions(options.path, topic)))
        except TopicNotFound:
            # A stream waits for topics; a batch read of one that does not exist is a mistake.
            if not waits:
                raise
    return list(logs)


def plan_tasks(options: ReadOptions, pruning: Pruning) -> list[Task]:
    """Cut what is to be read into tasks, by bytes of log and between entries.

    The committed ends are frozen here. Nothing is read but index slots and the frame headers they point to.

    Raises:
        TopicNotFound: a topic that does not exist, or a pattern that matches none.
        DataLossError: the start is not in the log any more, and losses are errors.
        InvalidConfiguration: an offset behind the end of the log, or one for a topic that is not read.
    """
    logs = selected_logs(options)
    check_topics(options, logs)
    is_pruned = pruning != NO_PRUNING
    policy = DataLossPolicy(options.fail_on_data_loss)
    planned, total = [], 0
    # A topic that no row of the filters can come from is not opened, so nothing of it is checked either.
    admitted = list(filter(pruning.admits, logs))
    for name in admitted:
        _check_order(place_of(options.start, name), place_of(options.end, name), name)
    # One listing for checks and plan, so both speak of the same log. Places are checked in all of it: one
    # that an open transaction holds back is in the log.
    for name, segments, visible in listed_logs(
        options.path, admitted, policy.segment_lost, uncommitted=options.uncommitted
    ):
        start, end = place_of(options.start, name), place_of(options.end, name)
        check_place("startingOffsets", start, name, segments, policy)
        check_place("endingOffsets", end, name, segments, policy)
        # What filters leave out is counted against the plan without them, which costs a second one in the
        # index.
        whole = plan_segments(visible, name, _bounds(start, end, NO_PRUNING)) if is_pruned else []
        total += _entries(whole)
        ranges = plan_segments(visible, name, _bounds(start, end, pruning))
        planned.append(_narrowed(ranges, pruning) if is_pruned else ranges)
    if is_pruned:
        kept = sum(map(_entries, planned))
        logging.getLogger("embeddedpulsar.spark").info(
            "filters leave %d of %d entries to be read; %d are pruned", kept, total, total - kept
        )
    return tasks_of(planned, options)


def _entries(ranges: list[EntryRange]) -> int:
    return sum(planned.end_entry - planned.first_entry for planned in ranges)


def _narrowed(ranges: list[EntryRange], pruning: Pruning) -> list[EntryRange]:
    parts: list[EntryRange] = []
    for planned in ranges:
        try:
            parts += pruning.narrowed(planned)
        except FileNotFoundError:  # the task that reads it reports that
            parts.append(planned)
    return parts


def tasks_of(planned: list[list[EntryRange]], options: ReadOptions) -> list[Task]:
    """The ranges of each log, cut into tasks of the size the options say."""
    total = sum(piece.size for ranges in planned for piece in ranges)
    limit = options.max_partition_bytes
    if options.min_partitions:
        # At least so many tasks, of equal size; never larger than a partition may be, never of no byte.
        limit = max(1, min(limit, total // options.min_partitions))
    return [task for ranges in planned for task in _tasks(ranges, limit)]


def check_topics(options: ReadOptions, logs: list[TopicName]) -> None:
    """Check that offsets and times name logs that are read.

    Raises:
        InvalidConfiguration: one names another topic, or a partitioned topic as if it were one log.
    """
    # An offset may name a partition, or a topic for all of its partitions.
    known = {name.full for name in logs} | {name.base for name in logs}
    for side, limits in (("starting", options.start), ("ending", options.end)):
        for topic, place in limits.by_topic:
            if topic not in known:
                raise InvalidConfiguration(f"{side} offsets or times name {topic}, which is not read")
            keyword = place in (MessageId.earliest, MessageId.latest)
            # `earliest`, `latest` and times hold for every partition; the id of a message is a place in one
            # of them.
            if topic not in {name.full for name in logs} and isinstance(place, MessageId) and not keyword:
                raise InvalidConfiguration(
                    f"{topic} is partitioned and a message id is a place in one partition; "
                    f"name {topic}-partition-0"
                )


def place_of(limits: Limits, name: TopicName) -> Place | None:
    """Where the options enter or leave a log; None if they do not say."""
    by_topic = dict(limits.by_topic)
    return by_topic.get(name.full, by_topic.get(name.base, limits.everywhere))


def check_place(
    option: str, place: Place | None, name: TopicName, segments: list[SegmentInfo], policy: DataLossPolicy
) -> None:
    """Check that a place is in the log.

    Raises:
        InvalidConfiguration: it lies behind the end.
        DataLossError: what was there was trimmed, and losses are errors.
    """
    # A time, or an end that is not a place, is always within the log.
    if not isinstance(place, MessageId) or place in (MessageId.earliest, MessageId.latest):
        return
    # Behind the end: another topic, or a store from before the offset was taken. Reading from there would
    # skip what comes next without a word.
    if not segments or (place.ledger_id(), place.entry_id()) > (segments[-1].ledger_id, segments[-1].entries):
        end = f"{segments[-1].ledger_id}:{segments[-1].entries}" if segments else "empty"
        raise InvalidConfiguration(f"{option} {place} lies behind the end of {name.full} ({end})")
    if is_trimmed_behind((place.ledger_id(), place.entry_id()), segments[0]):
        policy.lost(f"{name.full}: {option} {place} was trimmed; the log begins at {segments[0].ledger_id}:0")


def _check_order(start: Place | None, end: Place | None, name: TopicName) -> None:
    is_time = isinstance(start, int)
    # Only two ids, or two times, can be compared without the log.
    if start is None or end is None or is_time != isinstance(end, int) or MessageId.latest in (start, end):
        return
    if isinstance(start, int) and isinstance(end, int):
        is_wrong = start > end
    else:
        is_wrong = _order(start) > _order(end)
    if is_wrong:
        kind = "Time" if is_time else "Offsets"
        raise InvalidConfiguration(f"starting{kind} {start} lies behind ending{kind} {end} of {name.full}")


def _order(place: Any) -> tuple[int, int, int]:
    return place.ledger_id(), place.entry_id(), max(0, place.batch_index())


def _bounds(start: Place | None, end: Place | None, pruning: Pruning) -> Bounds:
    # Of several limits by time the narrowest counts.
    start_ms = [ms for ms in (start, pruning.start_ms) if isinstance(ms, int)]
    end_ms = [ms for ms in (end, pruning.end_ms) if isinstance(ms, int)]
    return Bounds(
        start if isinstance(start, MessageId) else None,
        end if isinstance(end, MessageId) else None,
        max(start_ms, default=None),
        min(end_ms, default=None),
    )


def _tasks(ranges: list[EntryRange], most: int) -> list[Task]:
    """Large ranges cut, small neighbours put together; a task never mixes logs."""
    tasks: list[Task] = []
    task: list[EntryRange] = []
    size = 0
    # Cut first, then gather: a task has at most `most` bytes, or one entry that is larger.
    for piece in [piece for planned in ranges for piece in split(planned, most)]:
        if task and size + piece.size > most:
            tasks.append(tuple(task))
            task, size = [], 0
        task.append(piece)
        size += piece.size
    if task:
        tasks.append(tuple(task))
    return tasks


class LogOffset(NamedTuple):
    """The first message of a log that was not read. Of one incarnation, they are in the order of the log.

    Attributes:
        incarnation: which life of the topic; one that was deleted and made again has another.
        ledger, entry: the entry; ledger 0 is before everything that is ever published.
        done: messages of the entry that were read.
    """

    incarnation: int
    ledger: int = 0
    entry: int = 0
    done: int = 0

    @property
    def place(self) -> MessageId:
        """As a limit of a plan."""
        # -1 is "no batch index" for a place between two entries.
        return MessageId(-1, self.ledger, self.entry, self.done or -1)

    @property
    def text(self) -> str:
        """As in option startingOffsets."""
        return f"{self.ledger}:{self.entry}:{self.done}" if self.done else f"{self.ledger}:{self.entry}"


Offsets = dict[str, LogOffset]
"""By the full name of the topic or partition."""


def encode_offsets(offsets: Offsets) -> dict[str, Any]:
    """Offsets as what Spark writes as JSON. In the order of names, because Spark compares the text.

    Example:
        >>> encode_offsets({"persistent://public/default/t": LogOffset(3, 7, 5)})
        {'persistent://public/default/t': {'incarnation': 3, 'position': '7:5'}}
    """
    return {
        name: {"incarnation": offsets[name].incarnation, "position": offsets[name].text}
        for name in sorted(offsets)
    }


def decode_offsets(stored: Mapping[str, Any]) -> Offsets:
    """The opposite of `encode_offsets`.

    Raises:
        InvalidConfiguration: another source or release wrote the checkpoint.
    """
    offsets: Offsets = {}
    for name, position in stored.items():
        if not isinstance(position, Mapping) or not isinstance(position.get("incarnation"), int):
            # Another source, another release, or a person: an offset that is not understood must not begin
            # anywhere else.
            raise InvalidConfiguration(f"the checkpoint's offset {position!r} of {name} is of another source")
        place = parse_place(f"the checkpoint's offset of {name}", position.get("position"))
        at = place.ledger_id(), place.entry_id(), max(0, place.batch_index())
        offsets[name] = LogOffset(position["incarnation"], *at)
    return offsets


class ReadPins:
    """Keeps what a streaming query has not read yet. Callers: one thread of the query's process, with
    whose end the pins go.

    Args:
        path: directory of the store.
    """

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._held: Final[dict[str, tuple[LogOffset, HeldFile | None]]] = {}

    def pin_behind(self, offsets: Offsets) -> None:
        """Keep what is behind the offsets, and nothing before them."""
        for topic, offset in offsets.items():
            # A pin keeps whole ledgers, so an offset within the same ledger needs no other one.
            at = LogOffset(offset.incarnation, offset.ledger)
            held = self._held.get(topic)
            if held is None or held[0] != at:
                # The new pin before the old one goes: between the two, what is behind both stays. A file
                # without the right to write cannot be pinned; its read goes on without.
                directory = topic_directory(self._path, TopicName.parse(topic))
                self._held[topic] = at, pin_for_plan(directory, at.ledger)
                if held is not None and held[1] is not None:
                    held[1].close()

    def close(self) -> None:
        """Keep nothing more."""
        # One by one, so that an interrupt leaves the rest to a second call.
        while self._held:
            _, (_, held) = self._held.popitem()
            if held is not None:
                held.close()


def pin_plan(tasks: Iterable[Task]) -> bool:
    """Keep what tasks are about to read until they begin; they have the time of a lease for that.

    Returns:
        Whether it is all there still: some of it may have been trimmed just before.
    """
    # Of each log the first task: a pin keeps its ledger and all behind it. Reversed, so that the first of a
    # log is the last to be put in.
    first = {task[0].directory: task[0] for task in reversed(list(tasks))}
    for directory, planned in first.items():
        held = pin_for_plan(directory, planned.ledger_id)
        # The lock goes, and the file keeps the ledger for the time of a lease: tasks take it again when they
        # begin, in other processes.
        if held is not None:
            held.close()
    # Looked at after pinning: what is there now stays.
    return all(os.path.exists(planned.path) for planned in first.values())


@contextlib.contextmanager
def pinned(task: Task | None) -> Iterator[None]:
    """Keep what a task reads while it does."""
    held = pin_for_reading(task[0].directory, task[0].ledger_id) if task else None
    try:
        yield
    finally:
        if held is not None:
            held.close()
