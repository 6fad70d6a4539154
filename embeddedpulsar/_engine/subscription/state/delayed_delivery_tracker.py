"""The entries of a subscription that wait for their time: Pulsar's DelayedDeliveryTracker."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import compress, pairwise
from operator import eq, le

from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

# Above each time that fits into the column.
_NEVER: Final = 1 << 63
_ENTRY_MASK: Final = (1 << 32) - 1
_WORD: Final = 8

# A full bucket becomes eight: the more pieces, the less often an entry is moved. Cutting takes 2 ms.
_FULL: Final = 4096
_PIECE: Final = 512
_POSITION: Final = (1 << 64) - 1


def is_ascending(times: array[int], positions: array[int]) -> bool:
    """Whether two columns are in order."""
    # All comparisons run in C, as a snapshot may have a million entries.
    following = times[1:]
    if not all(map(le, times, following)):
        return False
    # Positions matter only among entries of the same time.
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
    >>> list(bucket.pop_first(2)), list(bucket.times), list(bucket.positions)
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

    def ordered(self) -> DelayedBucket:
        """The bucket itself if it is in order, otherwise one with its entries that is."""
        return self if self.is_sorted else DelayedBucket.of(sorted(self.keys()))

    def insert(self, time: int, position: int) -> None:
        """Add an entry to a bucket that is in order, at its place. `lowest` is left to the caller."""
        times = self.times
        at = bisect_left(self.positions, position, bisect_left(times, time), bisect_right(times, time))
        times.insert(at, time)
        self.positions.insert(at, position)

    def pop_first(self, count: int) -> array[int]:
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
        # Also if nothing went: the bound was too low then, and each call would look here again.
        self.lowest = min(self.positions, default=_POSITION)
        return len(kept) < len(positions)


class DelayedDeliveryTracker:
    """Entries by (time, ledger, entry), for millions of them.

    Role: part of the replicated state. Pure: it has no clock, the caller passes the time. Guarded by
    the subscription's lock. An entry added twice is there twice.

    The order is kept only as far as it is asked for: entries lie in buckets that follow each other in
    time, a few thousand at most in each, in any order within. A bucket that is full is cut into several; the
    first one is put in order when its first entry is due, and kept so. So an entry costs 16 bytes and no
    object, and no step but the whole of a `pack` or a `drop_before` takes longer than sorting one bucket.

    Invariants: no key of bucket ``i`` is above ``_bounds[i]``, none of bucket ``i + 1`` below; no bucket is
    empty unless it is the only one; `_next` is the earliest time; no position is below `_lowest`, and that is
    not above the `lowest` of any bucket.

    >>> tracker = DelayedDeliveryTracker()
    >>> for time, entry_id in (1700, 0), (1500, 2), (1500, 1):
    ...     tracker.add(time, 4, entry_id)
    >>> tracker.next_due(), tracker.pop_due(1499), tracker.pop_due(1600), len(tracker)
    (1500, [], [(4, 1), (4, 2)], 1)
    """

    __slots__ = ("_bounds", "_buckets", "_count", "_lowest", "_next")

    def __init__(self) -> None:
        # Always a bucket: `add` needs one, and `pop_due` looks at the first.
        self._buckets = [DelayedBucket(array("q"), array("Q"))]
        self._bounds: list[int] = []
        self._count = 0
        self._next = _NEVER
        self._lowest = _POSITION

    def clear(self) -> None:
        """Forget all entries."""
        if self._count:
            self._take_over([], [])

    def __len__(self) -> int:
        return self._count

    def add(self, deliver_at_ms: int, ledger_id: int, entry_id: int) -> None:
        """Add an entry and the time it is due at, which may have passed.

        Raises:
            ValueError: an id that does not fit into 32 bits.
            OverflowError: a time that does not fit into 64 bits, the sign included.
        """
        # Negative numbers do not pass either: a shift keeps their sign.
        if (ledger_id | entry_id) >> 32:
            raise ValueError(f"there cannot be an entry {ledger_id}:{entry_id}")
        position = ledger_id << 32 | entry_id
        at = bisect_right(self._bounds, deliver_at_ms << 64 | position)
        bucket = self._buckets[at]
        # Only the first bucket is ever taken from, so only that one is kept in order, once it is.
        if at or not bucket.is_sorted:
            bucket.times.append(deliver_at_ms)
            bucket.positions.append(position)
            bucket.is_sorted = False
        else:
            bucket.insert(deliver_at_ms, position)
        self._count += 1
        if deliver_at_ms < self._next:
            self._next = deliver_at_ms
        if position < bucket.lowest:
            bucket.lowest = position
            if position < self._lowest:
                self._lowest = position
        if len(bucket.times) >= _FULL:
            self._cut(at)

    def _cut(self, at: int) -> None:
        keys = sorted(self._buckets[at].keys())
        pieces = [keys[first : first + _PIECE] for first in range(0, len(keys), _PIECE)]
        self._buckets[at : at + 1] = [DelayedBucket.of(piece) for piece in pieces]
        self._bounds[at:at] = [piece[0] for piece in pieces[1:]]
        # A caller that fills the tracker asks for no order yet, and inserting in order costs twice as much.
        self._buckets[0].is_sorted = False

    def next_due(self) -> int | None:
        """The earliest time of all; None without entries."""
        return self._next if self._count else None

    def pop_due(self, cutoff_ms: int, limit: int | None = None) -> list[tuple[int, int]]:
        """Remove the entries whose time is not after ``cutoff_ms``, at most ``limit`` of them.

        Returns:
            Their (ledger, entry), in order of (time, ledger, entry).
        """
        due: list[tuple[int, int]] = []
        while self._count and self._next <= cutoff_ms and (limit is None or len(due) < limit):
            # Ordered in a new object, and stored in one step: an interrupt leaves the one or the
            # other, and both are right.
            bucket = self._buckets[0] = self._buckets[0].ordered()
            count = bisect_right(bucket.times, cutoff_ms)
            if limit is not None:
                count = min(count, limit - len(due))
            due += [(position >> 32, position & _ENTRY_MASK) for position in bucket.pop_first(count)]
            self._count -= count
            # The only bucket stays although it is empty: `add` always finds one.
            if not bucket.times and self._bounds:
                del self._buckets[0], self._bounds[0]
            self._next = self._earliest()
        return due

    def _earliest(self) -> int:
        first = self._buckets[0]
        # The earliest entry is in the first bucket, but perhaps not in order there.
        return first.times[0] if first.is_sorted and first.times else min(first.times, default=_NEVER)

    def drop_before(self, ledger_id: int, entry_id: int) -> None:
        """Forget the entries below a position: they were acknowledged or trimmed.

        Cheap where there are none, so it may follow every move of the mark-delete position.
        """
        limit = (ledger_id << 32) + max(entry_id, 0)
        # No bucket has anything below: the usual case, after each acknowledgement.
        if limit <= self._lowest:
            return
        dropped = [bucket.drop_below(limit) for bucket in self._buckets if bucket.lowest < limit]
        if any(dropped):
            self._take_over(self._buckets, self._bounds)
        else:
            # Nothing went, so the bound was too low. It rises, or each call would look at the
            # buckets.
            self._lowest = min(bucket.lowest for bucket in self._buckets)

    def _take_over(self, buckets: list[DelayedBucket], bounds: list[int]) -> None:
        """Keep what is left of these buckets; small neighbours become one."""
        self._buckets, self._bounds = [], []
        for at, bucket in enumerate(buckets):
            if not bucket.times:
                continue
            # Small neighbours are merged: else entries that go here and there would leave thousands
            # of buckets.
            if self._buckets and len(self._buckets[-1]) + len(bucket) <= _PIECE:
                self._buckets[-1].extend(bucket)
                continue
            if self._buckets:
                self._bounds.append(bounds[at - 1])
            self._buckets.append(bucket)
        if not self._buckets:
            self._buckets.append(DelayedBucket(array("q"), array("Q")))
        self._count = sum(len(bucket) for bucket in self._buckets)
        self._next = self._earliest()
        self._lowest = min(bucket.lowest for bucket in self._buckets)

    def pack(self) -> bytes:
        """All entries in order: a column of their times (i64), then one of ``ledger << 32 | entry`` (u64).

        The same entries give the same bytes, however they came together. Nothing changes, but that the next
        time is cheaper.
        """
        for at, bucket in enumerate(self._buckets):
            self._buckets[at] = bucket.ordered()  # in one step: an interrupt leaves the one or the other
        columns = [bucket.times for bucket in self._buckets] + [bucket.positions for bucket in self._buckets]
        return b"".join(columns)

    @classmethod
    def unpack(cls, data: bytes) -> DelayedDeliveryTracker:
        """The tracker that packs like this."""
        if len(data) % (2 * _WORD):
            raise ValueError(f"delayed entries in {len(data)} bytes, which is no multiple of {2 * _WORD}")
        count = len(data) // (2 * _WORD)
        times, positions = array("q"), array("Q")
        times.frombytes(memoryview(data)[: count * _WORD])
        positions.frombytes(memoryview(data)[count * _WORD :])
        buckets = []
        for first in range(0, count, _FULL // 2):
            last = first + _FULL // 2
            # With the first entry of the next one, for the order must hold across the border too.
            if not is_ascending(times[first : last + 1], positions[first : last + 1]):
                raise ValueError("delayed entries that are not in order")
            buckets.append(DelayedBucket(times[first:last], positions[first:last]))
        tracker = cls()
        tracker._take_over(buckets, [bucket.times[0] << 64 | bucket.positions[0] for bucket in buckets[1:]])
        return tracker
