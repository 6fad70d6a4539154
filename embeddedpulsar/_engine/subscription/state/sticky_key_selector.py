"""Which consumer of a Key_Shared subscription gets a key: the three ways to divide the keys."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from embeddedpulsar._engine.format.entry import sticky_key_hash
from embeddedpulsar.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Any, Final

# Kinds are persistent: they are never renumbered.
HASH_RANGE: Final = 1
CONSISTENT_HASHING: Final = 2
STICKY: Final = 3

DEFAULT_POINTS: Final = 100
"""Points of a consumer on the ring, ``subscriptionKeySharedConsistentHashingReplicaPoints``."""
_MAX_POINTS: Final = 10_000
SLOTS: Final = 65536
"""The slot of a key is its hash (`_engine.format.key_hash.sticky_key_hash`) modulo this."""


class StickyKeySelector(Protocol):
    """The keys of a subscription, divided among its consumers.

    Role: part of the replicated state. Pure: what is selected follows from the calls of `add` and `remove`
    alone, so replicas that saw the same calls select the same consumers. Guarded by the subscription's lock.
    """

    def add(self, consumer_id: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """A consumer joins. Only STICKY looks at ``ranges``, inclusive slots 0..65535.

        Raises:
            ValueError: it cannot be added, and the text says why; nothing has changed.
        """

    def remove(self, consumer_id: int) -> None:
        """A consumer leaves. One that is not there, perhaps because it was refused, changes nothing."""

    def select(self, hash31: int) -> int | None:
        """The consumer that gets keys of this hash; None if no consumer does."""

    def pack(self) -> list[Any]:
        """The state in lists, numbers and strings; equal states give equal values. See `selector_of`."""


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
        selector = cls()
        for consumer_id, name, ranges in packed:
            # From a document: `add` checks the ranges only.
            if type(consumer_id) is not int or type(name) is not str:
                raise TypeError(f"consumer {consumer_id!r} of name {name!r}")
            selector.add(consumer_id, name, ranges)
        return selector

    def add(self, consumer_id: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
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
        # Everything is checked before anything is changed: a consumer that is refused leaves no
        # trace.
        for own, following in pairwise(wanted):
            if following[0] <= own[1]:
                raise ValueError(f"{_text(*own)} and {_text(*following)} of consumer {name!r} overlap")
        for start, end in wanted:
            self._check_free(name, start, end)
        self._by_id[consumer_id] = (name, wanted)
        self._index()

    def _check_free(self, name: str, start: int, end: int) -> None:
        # Ranges do not overlap, so of those that begin at or before the end only the last one can
        # meet this one.
        at = bisect_right(self._starts, end) - 1
        if at >= 0 and self._ends[at] >= start:
            holder, _ = self._by_id[self._owners[at]]
            taken = _text(self._starts[at], self._ends[at])
            raise ValueError(
                f"{_text(start, end)} of consumer {name!r} overlaps {taken} of {holder!r}; "
                "give it free slots, or close that one first"
            )

    def _index(self) -> None:
        # Made anew, as consumers come and go seldom; a slot is looked up for each key.
        everything = sorted(
            (start, end, each) for each, (_, ranges) in self._by_id.items() for start, end in ranges
        )
        self._starts = [start for start, _, _ in everything]
        self._ends = [end for _, end, _ in everything]
        self._owners = [owner for _, _, owner in everything]

    def remove(self, consumer_id: int) -> None:
        if self._by_id.pop(consumer_id, None) is not None:
            self._index()

    def select(self, hash31: int) -> int | None:
        slot = hash31 % SLOTS
        # The ranges may leave gaps, so the end has to be compared as well.
        at = bisect_right(self._starts, slot) - 1
        return self._owners[at] if at >= 0 and slot <= self._ends[at] else None

    def pack(self) -> list[Any]:
        return [
            [each, name, [list(pair) for pair in ranges]]
            for each, (name, ranges) in sorted(self._by_id.items())
        ]


def _text(start: int, end: int) -> str:
    return f"{start}..{end}"


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
        points, consumers = packed
        selector = cls(points)
        for consumer_id, name in consumers:
            if type(consumer_id) is not int or type(name) is not str:
                raise TypeError(f"consumer {consumer_id!r} of name {name!r}")
            selector.add(consumer_id, name, ())
        return selector

    def add(self, consumer_id: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        if consumer_id in self._names:
            raise ValueError(f"consumer {consumer_id} has its points already")
        self._names[consumer_id] = name
        points, owners = self._points, self._owners
        alone = (consumer_id,)
        # The ring stays sorted, so that a bisection finds the point of a key.
        for point in self._points_of(name):
            at = bisect_left(points, point)
            if at == len(points) or points[at] != point:
                points.insert(at, point)
                owners.insert(at, alone)
            else:
                # By name and id, not by arrival: a snapshot does not keep the order in which they
                # came.
                owners[at] = tuple(sorted((*owners[at], consumer_id), key=self._rank))

    def remove(self, consumer_id: int) -> None:
        if consumer_id not in self._names:
            return
        points, owners = self._points, self._owners
        for point in self._points_of(self._names.pop(consumer_id)):
            at = bisect_left(points, point)
            # Consumers of one name share all their points, others by chance a few.
            others = tuple(owner for owner in owners[at] if owner != consumer_id)
            if others:
                owners[at] = others
            else:
                del points[at], owners[at]

    def select(self, hash31: int) -> int | None:
        points, owners = self._points, self._owners
        if not points:
            return None
        at = bisect_left(points, hash31)
        # Behind the last point the ring begins again.
        sharers = owners[at if at < len(points) else 0]
        return sharers[hash31 % len(sharers)]

    def pack(self) -> list[Any]:
        return [self._number_of_points, [[each, name] for each, name in sorted(self._names.items())]]

    def _points_of(self, name: str) -> set[int]:
        """As a set: a consumer that meets itself in a point has it once."""
        return {sticky_key_hash(f"{name}{number}") for number in range(1, self._number_of_points + 1)}

    def _rank(self, consumer_id: int) -> tuple[str, int]:
        return self._names[consumer_id], consumer_id


class HashRangeSelector:
    """Ranges side by side that cover all slots, one for each consumer; a `StickyKeySelector`.

    A new consumer takes the lower half of the largest range, the first of these if there are several. The
    range of a consumer that leaves goes to its right neighbour; that of the last one goes to the left. So
    each change concerns two consumers, and the ranges are of unequal sizes.

    Invariants: consumer ``i`` has the slots above bound ``i - 1`` up to and including bound ``i``, and the
    first has slot 0 too; the last bound, SLOTS, is above every slot.

    >>> selector = HashRangeSelector()
    >>> for consumer_id in (1, 2, 3, 4):
    ...     selector.add(consumer_id, "", [])
    >>> selector.pack()
    [[16384, 3], [32768, 2], [49152, 4], [65536, 1]]
    """

    __slots__ = ("_bounds", "_owners")

    def __init__(self) -> None:
        self._bounds: list[int] = []
        self._owners: list[int] = []

    @classmethod
    def of(cls, packed: Sequence[Any]) -> HashRangeSelector:
        selector = cls()
        for bound, owner in packed:
            if type(bound) is not int or type(owner) is not int:
                raise TypeError(f"bound {bound!r} of consumer {owner!r}")
            selector._bounds.append(bound)
            selector._owners.append(owner)
        bounds, owners = selector._bounds, selector._owners
        # `select` relies on this: the bounds rise, the last is SLOTS, and no consumer has two ranges.
        is_ascending = all(low < high for low, high in zip([0, *bounds], bounds, strict=False))
        if not is_ascending or bounds[-1:] not in ([], [SLOTS]) or len(set(owners)) < len(owners):
            raise ValueError(f"bounds {bounds} of consumers {owners}")
        return selector

    def add(self, consumer_id: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        bounds = self._bounds
        if consumer_id in self._owners:
            raise ValueError(f"consumer {consumer_id} has a range already")
        # The first consumer gets everything.
        at, bound = 0, SLOTS
        if bounds:
            sizes = [high - low for low, high in zip([0, *bounds], bounds, strict=False)]
            largest = max(sizes)
            if largest < 2:
                raise ValueError(
                    f"no range of slots is left for consumer {name!r}: {len(bounds)} consumers divide them; "
                    "close one first"
                )
            # The first of the largest, as all replicas must find the same one. The new consumer gets
            # its lower half, and that of an odd size is the larger.
            at = sizes.index(largest)
            bound = bounds[at] - (largest >> 1)
        bounds.insert(at, bound)
        self._owners.insert(at, consumer_id)

    def remove(self, consumer_id: int) -> None:
        if consumer_id not in self._owners:
            return
        at = self._owners.index(consumer_id)
        del self._owners[at]
        # Without its bound a range belongs to the next one; the last goes when the bound before it does.
        del self._bounds[at - 1 if at and at == len(self._owners) else at]

    def select(self, hash31: int) -> int | None:
        owners = self._owners
        return owners[bisect_left(self._bounds, hash31 % SLOTS)] if owners else None

    def pack(self) -> list[Any]:
        return [list(pair) for pair in zip(self._bounds, self._owners, strict=True)]


class KeyOwners(dict[int, "int | None"]):
    """What a selector answered, by hash, until consumers come or go: it is asked for each entry.

    >>> owners = KeyOwners(lambda key_hash: key_hash % 3)
    >>> owners[7], len(owners)
    (1, 1)
    """

    __slots__ = ("_select",)

    def __init__(self, select: Callable[[int], int | None]) -> None:
        super().__init__()
        self._select: Final = select

    def __missing__(self, key_hash: int) -> int | None:
        # A topic may have any number of keys. Emptying it as a whole costs less than keeping an order
        # of use.
        if len(self) >= SLOTS:
            self.clear()
        owner = self[key_hash] = self._select(key_hash)
        return owner


def make_selector(kind: int, points: int = DEFAULT_POINTS) -> StickyKeySelector:
    """A selector without consumers. ``points`` are those of a consumer under CONSISTENT_HASHING.

    Raises:
        ValueError: no such kind, or no usable number of points.

    >>> selector = make_selector(HASH_RANGE)
    >>> selector.add(1, "C1", [])
    >>> selector.add(2, "C2", [])
    >>> selector.select(6067)
    2
    """
    return ConsistentHashingSelector(points) if kind == CONSISTENT_HASHING else _of(kind)([])


def selector_of(kind: int, packed: Sequence[Any]) -> StickyKeySelector:
    """The selector of that kind whose `pack` returned ``packed``."""
    return _of(kind)(packed)


def _of(kind: int) -> Callable[[Sequence[Any]], StickyKeySelector]:
    if kind == HASH_RANGE:
        return HashRangeSelector.of
    if kind == CONSISTENT_HASHING:
        return ConsistentHashingSelector.of
    if kind == STICKY:
        return StickyRangeSelector.of
    raise ValueError(f"{kind!r} is no kind of sticky key selector")
