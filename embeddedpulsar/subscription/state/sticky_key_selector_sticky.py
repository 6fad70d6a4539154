"""STICKY: every consumer names the ranges of slots it wants. `select` is hot."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from embeddedpulsar.subscription.state.key_slot import SLOTS


class StickyRangeSelector:
    """The ranges consumers asked for, which need not cover all slots; a `StickyKeySelector`.

    Invariants: no two ranges overlap, so one search finds the only range a slot may lie in.

    >>> selector = StickyRangeSelector()
    >>> selector.add(1, "a", [(0, 16383), (32768, 49151)])
    >>> selector.select(6067), selector.select(16384)
    (1, None)
    """

    __slots__ = ("_by_id", "_ends", "_owners", "_starts")

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[str, list[tuple[int, int]]]] = {}
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._owners: list[int] = []

    @classmethod
    def of(cls, packed: Sequence[Any]) -> StickyRangeSelector:
        """The selector that packs like this.

        Raises:
            ValueError, TypeError: none does.
        """
        selector = cls()
        for consumer_id, name, ranges in packed:
            if type(consumer_id) is not int or type(name) is not str:
                raise TypeError(f"consumer {consumer_id!r} of name {name!r}")
            selector.add(consumer_id, name, ranges)
        return selector

    def add(self, consumer_id: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """A consumer joins.

        Raises:
            ValueError: the consumer is there already, names no range, or names one that is no range of slots
                or overlaps another range, its own or that of another consumer.
        """
        wanted = sorted((start, end) for start, end in ranges)
        if consumer_id in self._by_id:
            raise ValueError(f"consumer {consumer_id} has ranges already")
        if not wanted:
            raise ValueError(f"consumer {name!r} is sticky and names no ranges of slots; give it some")
        for start, end in wanted:
            if type(start) is not int or type(end) is not int or not 0 <= start <= end < SLOTS:
                raise ValueError(
                    f"{_text(start, end)} of consumer {name!r} is no range within 0..{SLOTS - 1}"
                )
        for own, following in pairwise(wanted):
            if following[0] <= own[1]:
                raise ValueError(f"{_text(*own)} and {_text(*following)} of consumer {name!r} overlap")
        for start, end in wanted:
            self._check_free(name, start, end)
        self._by_id[consumer_id] = (name, wanted)
        self._index()

    def _check_free(self, name: str, start: int, end: int) -> None:
        at = bisect_right(self._starts, end) - 1
        if at >= 0 and self._ends[at] >= start:
            holder, _ = self._by_id[self._owners[at]]
            taken = _text(self._starts[at], self._ends[at])
            raise ValueError(
                f"{_text(start, end)} of consumer {name!r} overlaps {taken} of {holder!r}; "
                "give it free slots, or close that one first"
            )

    def _index(self) -> None:
        everything = sorted(
            (start, end, each) for each, (_, ranges) in self._by_id.items() for start, end in ranges
        )
        self._starts = [start for start, _, _ in everything]
        self._ends = [end for _, end, _ in everything]
        self._owners = [owner for _, _, owner in everything]

    def remove(self, consumer_id: int) -> None:
        """A consumer leaves; nothing happens if it is not there."""
        if self._by_id.pop(consumer_id, None) is not None:
            self._index()

    def select(self, hash31: int) -> int | None:
        """The consumer of that hash; None if no consumer has its slot."""
        slot = hash31 % SLOTS
        at = bisect_right(self._starts, slot) - 1
        return self._owners[at] if at >= 0 and slot <= self._ends[at] else None

    def ranges_of(self, consumer_id: int) -> list[tuple[int, int]]:
        """The ranges a consumer asked for, ascending; none if it is not there."""
        _, ranges = self._by_id.get(consumer_id, ("", []))
        return list(ranges)

    def pack(self) -> list[Any]:
        """The consumers by id with their names and ranges."""
        return [
            [each, name, [list(pair) for pair in ranges]]
            for each, (name, ranges) in sorted(self._by_id.items())
        ]


def _text(start: int, end: int) -> str:
    return f"{start}..{end}"
