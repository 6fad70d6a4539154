"""Filters that Spark pushes down: they narrow what is read, and Spark checks every row again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

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
from embeddedpulsar.arrow.plan import EntryRange, part_of
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import TopicName


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
    found = Pruning()
    for pushed in filters:
        column: tuple[str, ...] = getattr(pushed, "attribute", ())
        if len(column) == 1:
            narrow = _NARROWERS.get(column[0])
            if narrow is not None:
                found = narrow(found, pushed)
    return found


def _narrow_time(found: Pruning, pushed: Filter) -> Pruning:
    start, end = _times(pushed)
    return replace(
        found,
        start_ms=_tighter(found.start_ms, start, max),
        end_ms=_tighter(found.end_ms, end, min),
    )


def _narrow_event_time(found: Pruning, pushed: Filter) -> Pruning:
    start, end = _times(pushed)
    known = found.wanted
    wanted = replace(
        known, start_ms=_tighter(known.start_ms, start, max), end_ms=_tighter(known.end_ms, end, min)
    )
    return replace(found, wanted=wanted)


def _times(pushed: Filter) -> tuple[int | None, int | None]:
    """The first time in ms that can satisfy a filter, and the first one behind those that can."""
    value = getattr(pushed, "value", None)
    if not isinstance(value, datetime):
        return None, None
    time = value if value.tzinfo else value.replace(tzinfo=UTC)
    at = milliseconds(time) or 0  # rounded up: the first whole millisecond not before it
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


def _narrow_topic(found: Pruning, pushed: Filter) -> Pruning:
    if isinstance(pushed, StringStartsWith):
        return replace(found, topic_prefixes=(*found.topic_prefixes, pushed.value))
    return replace(found, topics=_only(found.topics, pushed))


def _narrow_partition(found: Pruning, pushed: Filter) -> Pruning:
    return replace(found, partitions=_only(found.partitions, pushed))


def _narrow_ledger(found: Pruning, pushed: Filter) -> Pruning:
    return replace(found, ledgers=found.ledgers.narrowed(*_span(pushed)))


def _narrow_entry(found: Pruning, pushed: Filter) -> Pruning:
    return replace(found, entries=found.entries.narrowed(*_span(pushed)))


def _narrow_key(found: Pruning, pushed: Filter) -> Pruning:
    if isinstance(pushed, EqualTo):
        values = [pushed.value]
    elif isinstance(pushed, In):
        values = [value for value in pushed.value if value is not None]
    else:
        return found
    if not all(isinstance(value, bytes | bytearray) for value in values):
        return found
    keys, known = frozenset(map(bytes, values)), found.wanted.keys
    return replace(found, wanted=replace(found.wanted, keys=keys if known is None else known & keys))


def _span(pushed: Filter) -> Span:
    """The numbers between which all lie that satisfy a filter."""
    value = getattr(pushed, "value", None)
    if isinstance(pushed, In) and value and all(type(one) is int for one in value):
        return Span(min(value), max(value) + 1)
    if type(value) is not int:
        return EVERY
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
