"""From options to the tasks of a read: which logs, from where to where, cut by bytes. Batches and streams."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segment_snapshot import SegmentInfo
from embeddedpulsar._engine.store.catalog.root_layout import TOPICS
from embeddedpulsar._engine.store.catalog.topic_places import directories_in, read_meta
from embeddedpulsar.arrow.plan import (
    Bounds,
    EntryRange,
    listed_segments,
    plan_segments,
    split,
    topic_partitions,
)
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    InvalidConfiguration,
    TopicNotFound,
)
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.spark.data_loss import DataLossPolicy
from embeddedpulsar.spark.filters import NO_PRUNING, Pruning
from embeddedpulsar.spark.options import Limits, Place, ReadOptions, topics_matching
from embeddedpulsar.topic_name import TopicName

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
        topics = _matching(options.path, options.pattern, {} if known is None else known)
        if not topics and not waits:
            raise TopicNotFound(f"no topic of {options.path} matches {options.pattern}")
    found: dict[TopicName, None] = {}
    for topic in topics:
        try:
            found.update(dict.fromkeys(topic_partitions(options.path, topic)))
        except TopicNotFound:
            if not waits:
                raise
    return list(found)


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
    for name in filter(pruning.admits, logs):
        start, end = place_of(options.start, name), place_of(options.end, name)
        _check_order(start, end, name)
        segments = listed_segments(options.path, name, policy.segment_lost)
        check_place("startingOffsets", start, name, segments, policy)
        check_place("endingOffsets", end, name, segments, policy)
        whole = plan_segments(segments, name, _bounds(start, end, NO_PRUNING)) if is_pruned else []
        total += _entries(whole)
        ranges = plan_segments(segments, name, _bounds(start, end, pruning))
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
    found: list[EntryRange] = []
    for planned in ranges:
        try:
            found += pruning.narrowed(planned)
        except FileNotFoundError:  # the task that reads it reports that
            found.append(planned)
    return found


def tasks_of(planned: list[list[EntryRange]], options: ReadOptions) -> list[Task]:
    """The ranges of each log, cut into tasks of the size the options say."""
    total = sum(piece.size for ranges in planned for piece in ranges)
    most = options.max_partition_bytes
    if options.min_partitions:
        most = max(1, min(most, total // options.min_partitions))
    return [task for ranges in planned for task in _tasks(ranges, most)]


def _matching(root: str, pattern: str, known: dict[str, str]) -> list[str]:
    matches = topics_matching(pattern)
    found = set()
    try:
        directories = list(directories_in(os.path.join(root, TOPICS)))
    except (FileNotFoundError, NotADirectoryError):
        raise TopicNotFound(f"{root} is not the directory of a store") from None
    for directory in directories:
        if directory not in known:
            try:
                entry = read_meta(os.path.join(root, TOPICS, directory))
            except (CorruptionError, ForeignFileError) as error:
                raise TopicNotFound(f"cannot tell which topic this is: {error}") from error
            if entry is None:
                continue
            known[directory] = TopicName.parse(entry.name).base
        if matches(known[directory]):
            found.add(known[directory])
    return sorted(found)


def check_topics(options: ReadOptions, logs: list[TopicName]) -> None:
    """Check that offsets and times name logs that are read.

    Raises:
        InvalidConfiguration: one names another topic, or a partitioned topic as if it were one log.
    """
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
    if not isinstance(place, MessageId) or place in (MessageId.earliest, MessageId.latest):
        return
    if not segments or (place.ledger_id(), place.entry_id()) > (segments[-1].ledger_id, segments[-1].entries):
        end = f"{segments[-1].ledger_id}:{segments[-1].entries}" if segments else "empty"
        raise InvalidConfiguration(f"{option} {place} lies behind the end of {name.full} ({end})")
    if is_trimmed_behind(place, segments[0]):
        policy.lost(f"{name.full}: {option} {place} was trimmed; the log begins at {segments[0].ledger_id}:0")


def is_trimmed_behind(place: MessageId, oldest: SegmentInfo) -> bool:
    """Whether entries at or behind a place were trimmed; the oldest segment tells."""
    if not 0 < place.ledger_id() < oldest.ledger_id:
        return False
    try:
        segment = Segment.open(os.path.dirname(oldest.path), oldest.ledger_id)
    except (FileNotFoundError, CorruptionError):
        return True
    last = segment.header.prev_ledger_id, segment.header.prev_last_entry_id
    segment.close()
    return last >= (place.ledger_id(), place.entry_id())


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
