"""Columns of Python values, checked and cut into entries, with few steps per message."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from embeddedpulsar._engine.format.entry import (
    EncodedEntry,
    EntryContent,
    ProducerPrefix,
    encode,
    encode_plain,
)
from embeddedpulsar.client.common.arguments import INT64_MAX
from embeddedpulsar.client.producer.partitioned.message_router import TURN, BulkRouting
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")
BULK_MESSAGES: Final = 10_000
BULK_BYTES: Final = 1 << 20
WINDOW: Final = 1 << 16
"""Messages processed together: an iterable is read in such portions, and keys are grouped within them."""
_NONE: Final = type(None)


class BulkLimits(NamedTuple):
    """The limits of an entry, and whether an entry holds one key only."""

    messages: int
    payload: int
    key_based: bool


class OptionColumns(NamedTuple):
    """The options of messages: an iterable for each option, or None."""

    keys: Iterable[str | None] | None
    ordering_keys: Iterable[str | None] | None
    properties: Iterable[dict[str, str] | None] | None
    event_times: Iterable[int | None] | None
    sequence_ids: Iterable[int] | None


class Rows:
    """The messages of one entry or of one portion: a list for each column, or None.

    Attributes:
        sequence_ids: explicit ones, or None.
        numbers: the indexes of the values.
        partition: their partition; 0 without partitions.
    """

    is_copied = True

    __slots__ = (
        "event_times",
        "keys",
        "nulls",
        "numbers",
        "ordering_keys",
        "partition",
        "properties",
        "sequence_ids",
        "values",
    )

    def __init__(
        self,
        numbers: Sequence[int],
        values: list[bytes],
        nulls: list[bool] | None = None,
        keys: list[str | None] | None = None,
        ordering_keys: list[str | None] | None = None,
        properties: list[dict[str, str] | None] | None = None,
        event_times: list[int] | None = None,
        sequence_ids: list[int] | None = None,
    ) -> None:
        self.numbers = numbers
        self.values = values
        self.nulls = nulls
        self.keys = keys
        self.ordering_keys = ordering_keys
        self.properties = properties
        self.event_times = event_times
        self.sequence_ids = sequence_ids
        self.partition = 0

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def explicit_ids(self) -> tuple[int, int, int] | None:
        """The first, last and highest sequence id if they are explicit."""
        ids = self.sequence_ids
        return None if ids is None else (ids[0], ids[-1], max(ids))

    def encode(self, first: int, prefix: ProducerPrefix, codec: int) -> EncodedEntry:
        """Return the entry; ``first`` is its first automatic sequence id."""
        options = self._columns()[2:]
        if not codec and options.count(None) == len(options):
            return encode_plain(self.values, first, prefix)
        content = EntryContent(
            self.values,
            first,
            keys=self.keys,
            ordering_keys=self.ordering_keys,
            properties=self.properties,
            event_times=self.event_times,
            null_values=self.nulls,
            sequence_ids=self.sequence_ids,
        )
        return encode(content, prefix, codec)

    def part(self, start: int, stop: int) -> Rows:
        found = self._with([None if one is None else one[start:stop] for one in self._columns()])
        found.partition = self.partition
        return found

    def sticky_keys(self) -> list[str]:
        none: list[str | None] = [None] * self.count
        pairs = zip(self.ordering_keys or none, self.keys or none, strict=True)
        return [ordering_key or key or "" for ordering_key, key in pairs]

    def grouped(self, marks: Sequence[Hashable]) -> list[tuple[Any, Rows]]:
        """Group the messages by marks, in the order of first appearance; the order within a group is kept."""
        codes = {mark: code for code, mark in enumerate(dict.fromkeys(marks))}
        if len(codes) == 1:
            return [(marks[0], self)]
        coded = list(map(codes.__getitem__, marks))
        order = sorted(range(self.count), key=coded.__getitem__)  # stable
        take = itemgetter(*order)
        rows = self._with([None if one is None else list(take(one)) for one in self._columns()])
        ends = accumulate(Counter(coded).values(), initial=0)
        return [
            (mark, rows.part(start, end)) for mark, (start, end) in zip(codes, pairwise(ends), strict=True)
        ]

    def partitions(self, routing: BulkRouting) -> list[int]:
        if not routing.is_custom:
            keys = self.keys or [None] * self.count
            distinct = list(dict.fromkeys(keys))
            return list(map(dict(zip(distinct, routing.of_keys(distinct), strict=True)).__getitem__, keys))
        columns = self._columns()[1:]
        given: list[list[Any]] = [[None] * self.count if one is None else one for one in columns]
        return [routing.choose(*row) for row in zip(*given, strict=True)]

    def _with(self, columns: list[Any]) -> Rows:
        return Rows(*columns)

    def _columns(self) -> list[Any]:
        return [
            self.numbers,
            self.values,
            self.nulls,
            self.keys,
            self.ordering_keys,
            self.properties,
            self.event_times,
            self.sequence_ids,
        ]


def entries_of(
    contents: Iterable[Any],
    options: OptionColumns,
    encode_value: Callable[[Any], bytes] | None,
    limits: BulkLimits,
    routing: BulkRouting | None = None,
) -> Iterator[Rows]:
    """Cut columns into entries.

    Args:
        contents: the values, None for a null value.
        options: the other columns, each of the same length.
        encode_value: the schema's encoding; None if the values are payloads.
        limits: of an entry.
        routing: chooses partitions; None without partitions.

    Raises:
        ValueError: an option of a wrong type or value, or columns of different lengths.
        TypeError: a value that the schema rejects.
    """
    _check_lengths(contents, options)
    for window in _windows(contents, options, encode_value):
        routed = [(0, window)] if routing is None else window.grouped(window.partitions(routing))
        for partition, rows in routed:
            groups = rows.grouped(rows.sticky_keys()) if limits.key_based else [("", rows)]
            for _, group in groups:
                start = 0
                for stop in _cuts(group.values, limits):
                    entry = group.part(start, stop)
                    entry.partition = routing.turn() if routing and partition == TURN else partition
                    yield entry
                    start = stop


def _cuts(values: list[bytes], limits: BulkLimits) -> Iterator[int]:
    """Yield the index after the last message of each entry."""
    sizes = list(accumulate(map(len, values), initial=0))
    at, count = 0, len(values)
    while at < count:
        stop = bisect_right(sizes, sizes[at] + limits.payload, at + 1, min(at + limits.messages, count) + 1)
        at = max(stop - 1, at + 1)
        yield at


def _check_lengths(contents: Iterable[Any], options: OptionColumns) -> None:
    """Check lengths that are known before anything is stored."""
    if not isinstance(contents, Sequence):
        return
    for name, column in zip(_NAMES, options, strict=True):
        if isinstance(column, Sequence) and len(column) != len(contents):
            raise ValueError(f"{name} has {len(column)} elements for {len(contents)} values")


_NAMES: Final = ("partition_keys", "ordering_keys", "properties", "event_timestamps", "sequence_ids")


def _windows(
    contents: Iterable[Any], options: OptionColumns, encode_value: Callable[[Any], bytes] | None
) -> Iterator[Rows]:
    values = iter(contents)
    columns = [None if column is None else iter(column) for column in options]
    base = 0
    while window := list(islice(values, WINDOW)):
        payloads, nulls = _payloads(window, encode_value)
        parts = []
        for name, column, check in zip(_NAMES, columns, _CHECKS, strict=True):
            part = None if column is None else list(islice(column, len(window)))
            if part is not None and len(part) != len(window):
                raise ValueError(f"{name} ends after {base + len(part)} elements, and there are more values")
            parts.append(None if part is None else check(part, name, base))
        yield Rows(range(base, base + len(window)), payloads, nulls, *parts)
        base += len(window)
    for name, column in zip(_NAMES, columns, strict=True):
        if column is not None and next(column, _NAMES) is not _NAMES:
            raise ValueError(f"{name} has more than {base} elements, and there are {base} values")


def _payloads(
    window: list[Any], encode_value: Callable[[Any], bytes] | None
) -> tuple[list[bytes], list[bool] | None]:
    kinds = set(map(type, window))
    if encode_value is None and kinds == {bytes}:
        return window, None
    nulls = [value is None for value in window] if _NONE in kinds else None
    if encode_value is None and kinds <= {bytes, _NONE}:
        return [value or b"" for value in window], nulls
    encode_value = encode_value or _as_bytes
    payloads = [b"" if value is None else encode_value(value) for value in window]
    for payload in payloads:
        if payload.__class__ is not bytes:
            raise TypeError(f"the schema encoded a value to {type(payload).__name__}, not to bytes")
    return payloads, nulls


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return bytes(value)
    raise TypeError(f"a value is {type(value).__name__}, not bytes; encode it, or give the producer a schema")


def _texts(column: list[Any], name: str, base: int) -> list[str | None] | None:
    _check_kinds(column, name, base, {str, _NONE})
    if "" in column:  # not set, as in `Producer.send`
        column = [text or None for text in column]
    return None if column.count(None) == len(column) else column


def _maps(column: list[Any], name: str, base: int) -> list[dict[str, str] | None] | None:
    _check_kinds(column, name, base, {dict, _NONE})
    if not any(column):
        return None
    for number, fields in enumerate(column, base):
        if fields:
            for one in (*fields, *fields.values()):
                if not isinstance(one, str):
                    raise ValueError(f"{name}[{number}] holds {one!r}, which is not a str")
    return column


def _times(column: list[Any], name: str, base: int) -> list[int] | None:
    _check_kinds(column, name, base, {int, _NONE})
    column = [time or 0 for time in column] if None in column else column
    _check_numbers(column, name)
    return column if any(column) else None


def _ids(column: list[Any], name: str, base: int) -> list[int]:
    _check_kinds(column, name, base, {int})
    _check_numbers(column, name)
    return column


def _check_kinds(column: list[Any], name: str, base: int, kinds: set[type[Any]]) -> None:
    if set(map(type, column)) <= kinds:
        return
    for number, one in enumerate(column, base):
        if type(one) not in kinds:
            wanted = " or ".join(sorted("None" if kind is _NONE else kind.__name__ for kind in kinds))
            raise ValueError(f"{name}[{number}] is {type(one).__name__}, not {wanted}")


def _check_numbers(column: list[int], name: str) -> None:
    if min(column) < 0 or max(column) > INT64_MAX:
        raise ValueError(f"{name} must be between 0 and {INT64_MAX}, not {min(column)} to {max(column)}")


_CHECKS: Final[tuple[Callable[[list[Any], str, int], Any], ...]] = (_texts, _texts, _maps, _times, _ids)
