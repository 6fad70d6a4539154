"""AUTO_SPLIT by hash range: every consumer has one range of slots. `select` is hot."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from embeddedpulsar.subscription.state.key_slot import SLOTS


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
        """The selector that packs like this.

        Raises:
            ValueError, TypeError: none does.
        """
        selector = cls()
        for bound, owner in packed:
            if type(bound) is not int or type(owner) is not int:
                raise TypeError(f"bound {bound!r} of consumer {owner!r}")
            selector._bounds.append(bound)
            selector._owners.append(owner)
        bounds, owners = selector._bounds, selector._owners
        is_ascending = all(low < high for low, high in zip([0, *bounds], bounds, strict=False))
        if not is_ascending or bounds[-1:] not in ([], [SLOTS]) or len(set(owners)) < len(owners):
            raise ValueError(f"bounds {bounds} of consumers {owners}")
        return selector

    def add(self, consumer_id: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """A consumer joins.

        Raises:
            ValueError: it is there already, or every consumer has but one slot left.
        """
        bounds = self._bounds
        if consumer_id in self._owners:
            raise ValueError(f"consumer {consumer_id} has a range already")
        at, bound = 0, SLOTS
        if bounds:
            sizes = [high - low for low, high in zip([0, *bounds], bounds, strict=False)]
            largest = max(sizes)
            if largest < 2:
                raise ValueError(
                    f"no range of slots is left for consumer {name!r}: {len(bounds)} consumers divide them; "
                    "close one first"
                )
            at = sizes.index(largest)
            bound = bounds[at] - (largest >> 1)
        bounds.insert(at, bound)
        self._owners.insert(at, consumer_id)

    def remove(self, consumer_id: int) -> None:
        """A consumer leaves; nothing happens if it is not there."""
        if consumer_id not in self._owners:
            return
        at = self._owners.index(consumer_id)
        del self._owners[at]
        # Without its bound a range belongs to the next one; the last goes when the bound before it does.
        del self._bounds[at - 1 if at and at == len(self._owners) else at]

    def select(self, hash31: int) -> int | None:
        """The consumer of that hash; None only if there is no consumer at all."""
        owners = self._owners
        return owners[bisect_left(self._bounds, hash31 % SLOTS)] if owners else None

    def ranges_of(self, consumer_id: int) -> list[tuple[int, int]]:
        """The slots of a consumer: one range, or none if it is not there."""
        if consumer_id not in self._owners:
            return []
        at = self._owners.index(consumer_id)
        first = self._bounds[at - 1] + 1 if at else 0
        return [(first, min(self._bounds[at], SLOTS - 1))]

    def pack(self) -> list[Any]:
        """Bound and consumer of every range, ascending."""
        return [list(pair) for pair in zip(self._bounds, self._owners, strict=True)]
