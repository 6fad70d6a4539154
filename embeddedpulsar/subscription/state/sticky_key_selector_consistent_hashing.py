"""AUTO_SPLIT by consistent hashing: every consumer has many points on a ring. `select` is hot."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

from embeddedpulsar.format.key_hash import sticky_key_hash

_MAX_POINTS: Final = 10_000


class ConsistentHashingSelector:
    """The ring of 31-bit hashes with the points of all consumers on it; a `StickyKeySelector`.

    The points of a consumer are the hashes of its name followed by 1, 2, 3 and so on. A key goes to the
    first point at or after its hash, round the ring. Consumers that meet in one point, which those of one
    name do in all, share it: the hash modulo their number picks one. Each change moves a few keys of every
    consumer, and the shares stay alike.

    Invariants: the ring follows from the attached consumers, not from the order in which they came; consumers
    that share a point are ordered by name, then by id.

    >>> selector = ConsistentHashingSelector(2)
    >>> selector.add(7, "orders", [])
    >>> selector.pack(), selector.select(123)
    ([2, [[7, 'orders']]], 7)
    """

    __slots__ = ("_names", "_number_of_points", "_owners", "_points")

    def __init__(self, points: int) -> None:
        if type(points) is not int or not 1 <= points <= _MAX_POINTS:
            raise ValueError(f"{points!r} points for each consumer, where 1 to {_MAX_POINTS} are possible")
        self._number_of_points: Final = points
        self._names: dict[int, str] = {}
        self._points: list[int] = []
        self._owners: list[tuple[int, ...]] = []

    @classmethod
    def of(cls, packed: Sequence[Any]) -> ConsistentHashingSelector:
        """The selector that packs like this.

        Raises:
            ValueError, TypeError: none does.
        """
        points, consumers = packed
        selector = cls(points)
        for consumer_id, name in consumers:
            if type(consumer_id) is not int or type(name) is not str:
                raise TypeError(f"consumer {consumer_id!r} of name {name!r}")
            selector.add(consumer_id, name, ())
        return selector

    def add(self, consumer_id: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """A consumer joins.

        Raises:
            ValueError: it is there already.
        """
        if consumer_id in self._names:
            raise ValueError(f"consumer {consumer_id} has its points already")
        self._names[consumer_id] = name
        points, owners = self._points, self._owners
        alone = (consumer_id,)
        for point in self._points_of(name):
            at = bisect_left(points, point)
            if at == len(points) or points[at] != point:
                points.insert(at, point)
                owners.insert(at, alone)
            else:
                owners[at] = tuple(sorted((*owners[at], consumer_id), key=self._rank))

    def remove(self, consumer_id: int) -> None:
        """A consumer leaves; nothing happens if it is not there."""
        if consumer_id not in self._names:
            return
        points, owners = self._points, self._owners
        for point in self._points_of(self._names.pop(consumer_id)):
            at = bisect_left(points, point)
            others = tuple(owner for owner in owners[at] if owner != consumer_id)
            if others:
                owners[at] = others
            else:
                del points[at], owners[at]

    def select(self, hash31: int) -> int | None:
        """The consumer of that hash; None only if there is no consumer at all."""
        points, owners = self._points, self._owners
        if not points:
            return None
        at = bisect_left(points, hash31)
        sharers = owners[at if at < len(points) else 0]
        return sharers[hash31 % len(sharers)]

    def ranges_of(self, consumer_id: int) -> list[tuple[int, int]]:
        """Always []: points divide the ring of hashes, not the slots."""
        return []

    def pack(self) -> list[Any]:
        """Number of points, and the consumers by id with their names."""
        return [self._number_of_points, [[each, name] for each, name in sorted(self._names.items())]]

    def _points_of(self, name: str) -> set[int]:
        """As a set: a consumer that meets itself in a point has it once."""
        return {sticky_key_hash(f"{name}{number}") for number in range(1, self._number_of_points + 1)}

    def _rank(self, consumer_id: int) -> tuple[str, int]:
        return self._names[consumer_id], consumer_id
