"""The driver's part of a streaming read: where it begins, what there is, and which entries a batch has.

It asks the files each time and remembers only what never changes, so a query that starts again from its
checkpoint plans the same batch again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from embeddedpulsar._engine.log.segment_snapshot import SegmentInfo, committed_segments, topic_incarnation
from embeddedpulsar._engine.store.catalog.topic_places import read_meta
from embeddedpulsar.arrow.plan import Bounds, EntryRange, plan_segments, topic_directory
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.spark.admission import Backlog, admit
from embeddedpulsar.spark.data_loss import DataLossPolicy
from embeddedpulsar.spark.log_plan import (
    Task,
    check_place,
    check_topics,
    is_trimmed_behind,
    place_of,
    selected_logs,
    tasks_of,
)
from embeddedpulsar.spark.stream_offsets import LogOffset, Offsets
from embeddedpulsar.spark.stream_options import NO_LIMIT, StreamOptions
from embeddedpulsar.topic_name import TopicName

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
