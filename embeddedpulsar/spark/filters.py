"""Filters that Spark pushes down: they narrow what is read, and Spark checks every row again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

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
from embeddedpulsar.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class Pruning:
    """What rows can satisfy all filters: in publish time [start_ms, end_ms), in these topics and partitions.

    None means that nothing is known. Pure numbers and strings: it travels with the reader.
    """

    start_ms: int | None = None
    end_ms: int | None = None
    topics: frozenset[str] | None = None
    topic_prefixes: tuple[str, ...] = ()
    partitions: frozenset[int] | None = None

    def admits(self, name: TopicName) -> bool:
        """Whether rows of this topic or partition can satisfy the filters."""
        return (
            (self.topics is None or name.full in self.topics)
            and all(name.full.startswith(prefix) for prefix in self.topic_prefixes)
            and (self.partitions is None or name.partition in self.partitions)
        )


def prune(filters: Iterable[Filter]) -> Pruning:
    """What `filters`, all of which must hold, say about topics, partitions and publish times."""
    found = Pruning()
    for pushed in filters:
        column: tuple[str, ...] = getattr(pushed, "attribute", ())
        if len(column) == 1:
            narrow = _NARROWERS.get(column[0])
            if narrow is not None:
                found = narrow(found, pushed)
    return found


def _narrow_time(found: Pruning, pushed: Filter) -> Pruning:
    value = getattr(pushed, "value", None)
    if not isinstance(value, datetime):
        return found
    time = value if value.tzinfo else value.replace(tzinfo=UTC)
    at = milliseconds(time) or 0  # rounded up: the first whole millisecond not before it
    exact = time.microsecond % 1000 == 0
    start: int | None = None
    end: int | None = None
    if isinstance(pushed, GreaterThanOrEqual):
        start = at
    elif isinstance(pushed, GreaterThan):
        start = at + exact
    elif isinstance(pushed, LessThan):
        end = at
    elif isinstance(pushed, LessThanOrEqual):
        end = at + exact
    elif isinstance(pushed, EqualTo):
        start, end = at, at + exact
    return replace(
        found,
        start_ms=_tighter(found.start_ms, start, max),
        end_ms=_tighter(found.end_ms, end, min),
    )


def _narrow_topic(found: Pruning, pushed: Filter) -> Pruning:
    if isinstance(pushed, StringStartsWith):
        return replace(found, topic_prefixes=(*found.topic_prefixes, pushed.value))
    return replace(found, topics=_only(found.topics, pushed))


def _narrow_partition(found: Pruning, pushed: Filter) -> Pruning:
    return replace(found, partitions=_only(found.partitions, pushed))


_NARROWERS: dict[str, Callable[[Pruning, Filter], Pruning]] = {
    names.PUBLISH_TIME: _narrow_time,
    names.TOPIC: _narrow_topic,
    names.PARTITION: _narrow_partition,
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
