"""Entries and the times they are due at, in 16 bytes each: the buckets of delayed delivery. Hot."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import compress, pairwise
from operator import eq, le
from typing import Final

_POSITION: Final = (1 << 64) - 1


def is_ascending(times: array[int], positions: array[int]) -> bool:
    """Whether two columns are in order."""
    following = times[1:]
    if not all(map(le, times, following)):
        return False
    ties = compress(pairwise(positions), map(eq, times, following))
    return all(first <= second for first, second in ties)


class DelayedBucket:
    """Entries as two columns.

    Role: a leaf of `DelayedDeliveryTracker`, which alone calls it. A position is ``ledger << 32 | entry``;
    a key is ``time << 64 | position``, so that keys sort by time, ledger and entry. Keys are made for sorting
    and thrown away. Invariants: the columns are equally long and in order if `is_sorted`; no position is
    below `lowest`.

    >>> bucket = DelayedBucket.of([(5 << 64) + 7, (5 << 64) + 9])
    >>> bucket.insert(5, 8)
    >>> list(bucket.take(2)), list(bucket.times), list(bucket.positions)
    ([7, 8], [5], [9])
    """

    __slots__ = ("is_sorted", "lowest", "positions", "times")

    def __init__(self, times: array[int], positions: array[int]) -> None:
        """Take over columns that are in order."""
        self.times = times
        self.positions = positions
        self.is_sorted = True
        self.lowest = min(positions, default=_POSITION)

    @classmethod
    def of(cls, keys: Sequence[int]) -> DelayedBucket:
        """The entries of these keys, which are in order."""
        return cls(array("q", [key >> 64 for key in keys]), array("Q", [key & _POSITION for key in keys]))

    def __len__(self) -> int:
        return len(self.times)

    def keys(self) -> list[int]:
        """The keys of all entries, as they lie."""
        return [time << 64 | position for time, position in zip(self.times, self.positions, strict=True)]

    def sort(self) -> None:
        """Put the entries in order, if they are not."""
        if not self.is_sorted:
            ordered = DelayedBucket.of(sorted(self.keys()))
            self.times, self.positions, self.is_sorted = ordered.times, ordered.positions, True

    def insert(self, time: int, position: int) -> None:
        """Add an entry to a bucket that is in order, at its place. `lowest` is left to the caller."""
        times = self.times
        at = bisect_left(self.positions, position, bisect_left(times, time), bisect_right(times, time))
        times.insert(at, time)
        self.positions.insert(at, position)

    def take(self, count: int) -> array[int]:
        """Remove the first entries and return their positions. `lowest` may be too low from then on."""
        taken = self.positions[:count]
        del self.times[:count], self.positions[:count]
        return taken

    def extend(self, following: DelayedBucket) -> None:
        """Add the entries of a bucket whose keys are all above those of this one."""
        self.times.extend(following.times)
        self.positions.extend(following.positions)
        self.is_sorted = self.is_sorted and following.is_sorted
        self.lowest = min(self.lowest, following.lowest)

    def drop_below(self, limit: int) -> bool:
        """Forget entries whose position is below ``limit``; False if there are none."""
        times, positions = self.times, self.positions
        kept = [at for at, position in enumerate(positions) if position >= limit]
        if len(kept) < len(positions):
            self.times = array("q", [times[at] for at in kept])
            self.positions = array("Q", [positions[at] for at in kept])
        self.lowest = min(self.positions, default=_POSITION)
        return len(kept) < len(positions)
