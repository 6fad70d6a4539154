"""The two ends of a batch read: planning on the driver, record batches in the workers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from embeddedpulsar.arrow.damage import gone
from embeddedpulsar.arrow.plan import (
    Bounds,
    EntryRange,
    listed_segments,
    plan_segments,
    split,
    topic_partitions,
)
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    InvalidConfiguration,
    ReadError,
    TopicNotFound,
)
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.spark.filters import Pruning, prune
from embeddedpulsar.spark.options import Limits, Place, ReadOptions, key_reader
from embeddedpulsar.storage.segment_snapshot import SegmentInfo
from embeddedpulsar.topic.catalog.root_layout import TOPICS
from embeddedpulsar.topic.catalog.topic_places import directories_in, read_meta
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    import pyarrow as pa


CODE = "EMBEDDEDPULSAR_DATA_LOSS"
ROWS: Final = 16_384
"""Small entries are gathered into batches of about this many rows; fewer cost Spark more."""
LARGE_ENTRY: Final = 4_096
"""Entries of this many messages are worth a batch of their own, which is not copied."""


class DataLossError(ReadError):
    """Part of what was asked for is damaged or gone.

    Spark shows errors of its workers as text; the code in brackets stays the same.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(f"[{CODE}] {detail}; set failOnDataLoss to false to read what is left")


class DataLossPolicy:
    """What to do about lost data: fail, or log it and continue.

    Args:
        fail: whether it is an error (option failOnDataLoss).
    """

    def __init__(self, fail: bool) -> None:
        self._fail = fail

    def lost(self, detail: str) -> None:
        """Report a loss.

        Raises:
            DataLossError: losses are errors.
        """
        if self._fail:
            raise DataLossError(detail)
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


Task = tuple[EntryRange, ...]
"""What one worker reads: ranges of one log, in order."""


def selected_logs(options: ReadOptions) -> list[TopicName]:
    """The topics and partitions the options name, each once.

    Raises:
        TopicNotFound: a topic that does not exist, or a pattern that matches none.
    """
    topics: Iterable[str] = options.topics
    if options.pattern is not None:
        topics = _matching(options.path, options.pattern)
    found = [name for topic in topics for name in topic_partitions(options.path, topic)]
    return list(dict.fromkeys(found))


def plan_tasks(options: ReadOptions, pruning: Pruning) -> list[Task]:
    """Cut what is to be read into tasks, by bytes of log and between entries.

    The committed ends are frozen here. Nothing is read but index slots and the frame headers they point to.

    Raises:
        TopicNotFound: a topic that does not exist, or a pattern that matches none.
        DataLossError: the start is not in the log any more, and losses are errors.
        InvalidConfiguration: an offset behind the end of the log, or one for a topic that is not read.
    """
    logs = selected_logs(options)
    _check_topics(options, logs)
    policy = DataLossPolicy(options.fail_on_data_loss)
    planned = []
    for name in filter(pruning.admits, logs):
        start, end = _place(options.start, name), _place(options.end, name)
        _check_order(start, end, name)
        segments = listed_segments(options.path, name, policy.segment_lost)
        _check_place("startingOffsets", start, name, segments, policy)
        _check_place("endingOffsets", end, name, segments, policy)
        planned.append(plan_segments(segments, name, _bounds(start, end, pruning)))
    total = sum(piece.size for ranges in planned for piece in ranges)
    most = options.max_partition_bytes
    if options.min_partitions:
        most = max(1, min(most, total // options.min_partitions))
    return [task for ranges in planned for task in _tasks(ranges, most)]


def _matching(root: str, pattern: str) -> list[str]:
    matches = re.compile(pattern).fullmatch
    found = set()
    try:
        directories = list(directories_in(os.path.join(root, TOPICS)))
    except (FileNotFoundError, NotADirectoryError):
        raise TopicNotFound(f"{root} is not the directory of a store") from None
    for directory in directories:
        try:
            entry = read_meta(os.path.join(root, TOPICS, directory))
        except (CorruptionError, ForeignFileError) as error:
            raise TopicNotFound(f"cannot tell which topic this is: {error}") from error
        if entry is not None:
            base = TopicName.parse(entry.name).base
            if matches(base):
                found.add(base)
    if not found:
        raise TopicNotFound(f"no topic of {root} matches {pattern}")
    return sorted(found)


def _check_topics(options: ReadOptions, logs: list[TopicName]) -> None:
    known = {name.full for name in logs} | {name.base for name in logs}
    for side, limits in (("starting", options.start), ("ending", options.end)):
        for topic, place in limits.by_topic:
            if topic not in known:
                raise InvalidConfiguration(f"{side} offsets or times name {topic}, which is not read")
            keyword = place in (MessageId.earliest, MessageId.latest)
            if topic not in {name.full for name in logs} and isinstance(place, MessageId) and not keyword:
                raise InvalidConfiguration(
                    f"{topic} is partitioned and a message id is a place in one partition; "
                    f"name {topic}-partition-0"
                )


def _place(limits: Limits, name: TopicName) -> Place | None:
    by_topic = dict(limits.by_topic)
    return by_topic.get(name.full, by_topic.get(name.base, limits.everywhere))


def _check_place(
    option: str, place: Place | None, name: TopicName, segments: list[SegmentInfo], policy: DataLossPolicy
) -> None:
    if not isinstance(place, MessageId) or place in (MessageId.earliest, MessageId.latest):
        return
    if not segments or (place.ledger_id(), place.entry_id()) > (segments[-1].ledger_id, segments[-1].entries):
        end = f"{segments[-1].ledger_id}:{segments[-1].entries}" if segments else "empty"
        raise InvalidConfiguration(f"{option} {place} lies behind the end of {name.full} ({end})")
    if place.ledger_id() < segments[0].ledger_id:
        policy.lost(f"{name.full}: {option} {place} was trimmed; the log begins at {segments[0].ledger_id}:0")


def _check_order(start: Place | None, end: Place | None, name: TopicName) -> None:
    is_time = isinstance(start, int)
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
    found: list[Task] = []
    task: list[EntryRange] = []
    size = 0
    for piece in [piece for planned in ranges for piece in split(planned, most)]:
        if task and size + piece.size > most:
            found.append(tuple(task))
            task, size = [], 0
        task.append(piece)
        size += piece.size
    if task:
        found.append(tuple(task))
    return found


class LogPartition(InputPartition):
    """What one task reads. `value` is None in the partition Spark makes up when there is nothing to read."""

    value: Task | None


class BatchReader(DataSourceReader):
    """Reads the topics of `options`.

    Made on the driver, asked there for `partitions` once, then sent to every worker: it holds numbers and
    strings only. The plan freezes what was committed; a DataFrame that is used again reads the same again.
    """

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._pruning = Pruning()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, from index slots alone."""
        return [LogPartition(task) for task in plan_tasks(self._options, self._pruning)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one task."""
        from embeddedpulsar.arrow.columns import record_batches
        from embeddedpulsar.arrow.mapped_segment import open_ahead

        options, policy = self._options, DataLossPolicy(self._options.fail_on_data_loss)
        opened = open_ahead(
            partition.value or (), key_reader(options.private_keys), policy.gone, discards=options.discards
        )
        yield from record_batches(
            opened, self._columns, rows=ROWS, large=LARGE_ENTRY, on_damage=policy.damaged
        )


class PushdownBatchReader(BatchReader):
    """A `BatchReader` whose plan filters narrow; Spark refuses it unless its setting allows that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note what the filters say; all of them go back, so that Spark checks every row itself."""
        self._pruning = prune(filters)
        return filters
