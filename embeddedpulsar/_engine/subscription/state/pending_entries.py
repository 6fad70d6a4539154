"""Entries of all ledgers that were read and are not acknowledged: the consumer of each, and which wait.

Entries that wait for their time: Pulsar's DelayedDeliveryTracker.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress, pairwise
from operator import eq, le
from zlib import crc32

from embeddedpulsar._engine.format.acknowledgement import FORM_BITMAP, FORM_RANGE, MAX_ENTRY_ID, AckGroup
from embeddedpulsar._engine.format.subscription_record import FreshRun, column_bytes, column_of
from embeddedpulsar._engine.subscription.state.entry_states import (
    DELAY,
    DELAYED,
    FIRST_OWNER,
    HOLD,
    IN_TRANSACTION,
    IS_OWNED,
    NONE,
    PART,
    RELEASE,
    SETTLE,
    SLOT,
    WAITING,
    EntryStates,
    KeyHolds,
    WaitingKeys,
    changing,
    moving,
)
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final


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


# So many entries are let go of at once: cutting the front of a column moves the rest.
_TRIM_STEP: Final = 4096
_U32: Final = 0xFFFFFFFF
_IS_WAITING: Final = bytes(code == WAITING for code in range(256))


class PendingEntries:
    """One byte per entry, and a few numbers, for everything between the mark-delete and the read position.

    Role: part of the replicated state; pure, guarded as it is. Invariants: an entry has a state
    exactly while it was read and is not acknowledged; `totals` are the messages in each state, `keys` what
    key hashes consumers hold, `waiting_keys` the waiting entries by key. `has_parts` is true if any entry may
    be in state PART; it is not stored.
    """

    __slots__ = ("_ledgers", "_moves", "has_parts", "keys", "totals", "waiting_keys")

    def __init__(self) -> None:
        self._moves = 0
        self.has_parts = False
        self.totals = [0] * 256
        self.keys = KeyHolds()
        self._ledgers: dict[int, EntryStates] = {}
        self.waiting_keys = WaitingKeys(self._ledgers)

    def clear(self) -> None:
        self.has_parts = False
        self.totals = [0] * 256
        self.keys = KeyHolds()
        self._ledgers = {}
        self.waiting_keys = WaitingKeys(self._ledgers)

    def take_moves(self) -> int:
        """A checksum of all changes since the last call, and of the state before each."""
        # All replicas that applied the same commands get the same number: it is mixed into the digest
        # of the state.
        moves, self._moves = self._moves, 0
        return moves

    def _move(self, states: EntryStates, first: int, last: int, table: bytes) -> bytes:
        old = states.move(first, last, table)
        # Replicas keep states of settled entries to different lengths: that must not show in the result.
        known = old.lstrip(b"\0")
        if known:
            at = max(first, states.base) + len(old) - len(known)
            self._moves = crc32(known.rstrip(b"\0"), self._moves + at & _U32)
        return old

    def _move_some(self, states: EntryStates, entries: Sequence[int], table: bytes) -> list[tuple[int, int]]:
        changed = states.move_some(entries, table)
        if changed:
            self._moves = crc32(bytes([code for _, code in changed]), self._moves + changed[0][0] & _U32)
        return changed

    # -- entries come and go -----------------------------------------------------------------------

    def add(self, run: FreshRun) -> None:
        """Add entries that were read: they wait."""
        states = self._ledgers.get(run.ledger_id)
        if states is None:
            states = self._ledgers[run.ledger_id] = EntryStates(run.first, self.totals)
        if run.first < states.end:
            return  # no writer does that: the read position only rises
        states.add(run.first, run.last, run.messages, run.hashes)
        # Parts of chunked messages wait for no consumer, so they are not among the waiting keys.
        entries: Sequence[int] = range(run.first, run.last + 1)
        if run.messages is not None and 0 in run.messages:
            self.has_parts = True
            entries = [entry for entry in entries if states.state(entry) == WAITING]
        self.waiting_keys.add(run.ledger_id, states, entries)

    def deal(
        self,
        run: FreshRun,
        ranges: Sequence[tuple[int, int, int]],
        shares: Sequence[tuple[int, bytes]] = (),
    ) -> tuple[list[int], list[dict[int, int] | None]]:
        """Add entries that were read, and give some of them to consumers at once.

        Args:
            run: the entries. None of them is acknowledged.
            ranges: (first, last, code): entries of the run, and the consumer that gets them.
            shares: (first, codes): the same for entries that go to several; see `EntryStates.share`.

        Returns:
            For each range how many messages it is; -1 if it could not be given, because not all of it waits.
            For each share what `share` returns.
        """
        states = self._ledgers.get(run.ledger_id)
        if states is None:
            states = self._ledgers[run.ledger_id] = EntryStates(run.first, self.totals)
        if run.first < states.end:
            return [-1] * len(ranges), [None] * len(shares)  # no writer does that
        states.add(run.first, run.last, run.messages, run.hashes)
        self.has_parts |= run.messages is not None and 0 in run.messages
        given = []
        # The entries get their consumers first: only what is left over is noted as waiting.
        for first, last, code in ranges:
            given.append(states.give(first, last, code))
            if given[-1] >= 0 and states.hashes is not None:
                if first == last:
                    self.keys.hold_one(states.hashes[first - states.base] & SLOT, code)
                else:
                    self.keys.hold(states.slots(first, last - first + 1), code)
        shared = [self.share(run.ledger_id, *share, is_known=False) for share in shares] if shares else []
        # One checksum of the outcome stands for all ranges.
        codes = bytes(states.states[run.first - states.base :])
        self._moves = crc32(codes, self._moves + run.first & _U32)
        if states.hashes is not None and WAITING in codes:
            waiting = compress(range(run.first, run.last + 1), codes.translate(_IS_WAITING))
            self.waiting_keys.add(run.ledger_id, states, list(waiting))
        return given, shared

    def _moved(
        self, ledger_id: int, states: EntryStates, changed: Sequence[tuple[int, int]], after: int
    ) -> bool:
        """Note that entries, given with the state they had, have another now that no consumer has. True if
        that frees a key for which entries wait."""
        if states.hashes is None or not changed:
            return False
        # ``changed`` has the states from before, which say what is to be taken back.
        waited = [entry for entry, before in changed if before == WAITING]
        if waited:
            self.waiting_keys.remove(ledger_id, states, waited)
        if after == WAITING:
            self.waiting_keys.add(ledger_id, states, [entry for entry, _ in changed])
        slots = [states.hashes[entry - states.base] & SLOT for entry, _ in changed]
        owned = [slot for slot, (_, code) in zip(slots, changed, strict=True) if IS_OWNED[code]]
        # A key is free once its last entry in flight is gone. That matters only if others of it wait.
        return any(map(self.waiting_keys.waits_in, self.keys.release(owned)))

    def _moved_run(self, ledger_id: int, states: EntryStates, first: int, changed: bytes, after: int) -> bool:
        """The same for entries from ``first`` on: each with the state it had, or 0 if that is unchanged."""
        if states.hashes is None or changed.count(NONE) == len(changed):
            return False
        # 0 stands for entries that did not change, so ``changed`` selects those that did.
        span = range(first, first + len(changed))
        if WAITING in changed:
            waited = changed.translate(_IS_WAITING)
            self.waiting_keys.remove(ledger_id, states, list(compress(span, waited)))
        if after == WAITING:
            self.waiting_keys.add(ledger_id, states, list(compress(span, changed)))
        slots = states.slots(first, len(changed))
        free = self.keys.release(compress(slots, changed.translate(IS_OWNED)))
        if after >= FIRST_OWNER:
            self.keys.hold(list(compress(slots, changed)), after)
        return any(map(self.waiting_keys.waits_in, free))

    def acknowledge(self, group: AckGroup) -> bool:
        """Note that entries were acknowledged. True if that frees a key for which entries wait."""
        states = self._ledgers.get(group.ledger_id)
        if states is None:
            return False
        # Each form of a group has its cheapest way: one entry, a run, a bit for each entry, or
        # scattered entries.
        if group.form == FORM_RANGE:
            if group.first == group.last:
                return self._acknowledge_one(group.ledger_id, states, group.first)
            return self.acknowledge_range(group.ledger_id, group.first, group.last)
        if group.form == FORM_BITMAP:
            first, codes = states.acknowledge_masked(group.first, group.mask())
            known = codes.lstrip(b"\0")
            if known:
                at = first + len(codes) - len(known)
                self._moves = crc32(known.translate(None, b"\0"), self._moves + at & _U32)
            return self._moved_run(group.ledger_id, states, first, codes, NONE)
        changed = self._move_some(states, group.expanded(), SETTLE)
        if states.counts is not None:
            for entry, _ in changed:
                states.counts[entry - states.base] = 0
        return self._moved(group.ledger_id, states, changed, NONE)

    def _acknowledge_one(self, ledger_id: int, states: EntryStates, entry: int) -> bool:
        code = states.acknowledge_one(entry)
        if code == NONE:
            return False
        self._moves = crc32(bytes((code,)), self._moves + entry & _U32)
        if states.hashes is None:
            return False
        if code == WAITING:
            self.waiting_keys.remove(ledger_id, states, (entry,))
        free = self.keys.release((states.hashes[entry - states.base] & SLOT,)) if IS_OWNED[code] else []
        return bool(free) and self.waiting_keys.waits_in(free[0])

    def acknowledge_range(self, ledger_id: int, first: int, last: int) -> bool:
        """The same for all entries ``first..last`` of a ledger."""
        states = self._ledgers.get(ledger_id)
        if states is None:
            return False
        old = self._move(states, first, last, SETTLE)
        states.forget_counts(first, last)
        return self._moved_run(ledger_id, states, max(first, states.base), old, NONE)

    def assign(self, ledger_id: int, first: int, last: int, code: int) -> int:
        """Give waiting entries to the consumer ``code``; returns how many messages."""
        states = self._ledgers.get(ledger_id)
        if states is None:
            return 0
        # The difference of the totals tells the messages: an entry may have several, and some may not
        # wait.
        before = self.totals[code]
        table = moving(WAITING, code)
        old = self._move(states, first, last, table)
        # Only entries that waited have changed; the table turns the states of all others into 0.
        self._moved_run(ledger_id, states, max(first, states.base), old.translate(changing(table)), code)
        return self.totals[code] - before

    def share(
        self, ledger_id: int, first: int, codes: bytes, *, is_known: bool = True
    ) -> dict[int, int] | None:
        """Give waiting entries to consumers; see `EntryStates.share`. While `waiting_keys` does not have them
        yet, ``is_known`` is False."""
        states = self._ledgers.get(ledger_id)
        given = None if states is None else states.share(first, codes)
        if states is None or given is None:
            return None
        self._moves = crc32(codes, self._moves + first & _U32)
        if states.hashes is not None:
            slots = list(compress(states.slots(first, len(codes)), codes))
            self.keys.deal(slots, codes.translate(None, b"\0"))
            if is_known:
                entries = list(compress(range(first, first + len(codes)), codes))
                self.waiting_keys.remove(ledger_id, states, entries)
        return given

    def recall(self, ledger_id: int, counted: Sequence[tuple[int, int]]) -> None:
        """Set the counts of entries that were just added and came back before, as (entry, count)."""
        states = self._ledgers.get(ledger_id)
        if states is not None:
            # An entry without a state is acknowledged, and needs no count. A part of a chunked message
            # has none: its message counts.
            for entry, count in counted:
                if states.state(entry) not in (NONE, PART):
                    states.set_count(entry, count)

    def redeliveries(self, ledger_id: int, entry: int) -> int:
        """How often an entry came back; 0 for one that is not here."""
        states = self._ledgers.get(ledger_id)
        if states is None or states.counts is None or not 0 <= entry - states.base < len(states.counts):
            return 0
        return states.redeliveries(entry)

    def counted(self) -> Iterator[tuple[int, int, int]]:
        for ledger_id, states in self._ledgers.items():
            for entry, count in states.counted():
                yield ledger_id, entry, count

    def delay(self, ledger_id: int, entry_id: int) -> bool:
        """Let an entry that waits, or that open transactions acknowledged, wait until it is due. True if it
        is one of these."""
        states = self._ledgers.get(ledger_id)
        if states is None:
            return False
        changed = self._move_some(states, (entry_id,), DELAY)
        self._moved(ledger_id, states, changed, DELAYED)
        return bool(changed)

    def come_due(self, ledger_id: int, entry_id: int) -> None:
        """Let a delayed entry wait for a consumer: it is due. It may have been acknowledged meanwhile."""
        states = self._ledgers.get(ledger_id)
        if states is not None:
            changed = self._move_some(states, (entry_id,), moving(DELAYED, WAITING))
            self._moved(ledger_id, states, changed, WAITING)

    def give_back(self, code: int, group: AckGroup) -> list[int]:
        """Take back entries of the consumer ``code``, and count that; returns those that were its own."""
        states = self._ledgers.get(group.ledger_id)
        if states is None:
            return []
        # The table changes its code and no other: entries that are not its own any more stay as they
        # are.
        changed = self._move_some(states, group.expanded(), moving(code, WAITING))
        entries = [entry for entry, _ in changed]
        states.count_redelivery(entries)
        self._moved(group.ledger_id, states, changed, WAITING)
        return entries

    def give_back_all(self, code: int, spared: Sequence[tuple[int, int, int]], *, counted: bool) -> None:
        """Take back everything of the consumer ``code``.

        Args:
            code: of the consumer.
            spared: (ledger, first, last): not counted as redelivered.
            counted: whether the rest is.
        """
        # Those that are not counted come first; what has the code of the consumer afterwards is the
        # rest.
        for ledger_id, first, last in spared:
            self._give_back_runs(code, ledger_id, first, last, counted=False)
        for ledger_id in self._ledgers:
            self._give_back_runs(code, ledger_id, 0, MAX_ENTRY_ID, counted=counted)

    def _give_back_runs(self, code: int, ledger_id: int, first: int, last: int, *, counted: bool) -> None:
        if (states := self._ledgers.get(ledger_id)) is None:
            return
        table = moving(code, WAITING)
        for start, stop in states.runs(code, first, last):
            old = self._move(states, start, stop, table)
            if counted:
                states.count_redelivery(range(start, stop + 1))
            self._moved_run(ledger_id, states, start, old, WAITING)

    def hold(self, ledger_id: int, entries: Sequence[int]) -> bool:
        """Take entries from their consumers, and from those that wait: open transactions acknowledged them.
        True if that frees a key for which entries wait."""
        states = self._ledgers.get(ledger_id)
        if states is None or not entries:
            return False
        changed = self._move_some(states, entries, HOLD)
        return self._moved(ledger_id, states, changed, IN_TRANSACTION)

    def release(self, ledger_id: int, entries: Sequence[int], *, counted: bool) -> list[int]:
        """Let entries wait again of which a transaction acknowledged something and aborted.

        Returns:
            Those that are known here and not acknowledged. They count as redelivered, if ``counted``.
        """
        states = self._ledgers.get(ledger_id)
        if states is None:
            return []
        changed = self._move_some(states, entries, RELEASE)
        self._moved(ledger_id, states, changed, WAITING)
        known = [entry for entry in entries if states.state(entry) != NONE]
        back = [entry for entry in known if states.state(entry) != PART] if counted else []
        if back:
            # Counts are no states: without this the digest would not tell that they rose.
            self._moves = crc32(b"%d" % len(back), self._moves + back[0] & _U32)
            states.count_redelivery(back)
        return known

    def trim(self, ledger_id: int, floor: int) -> None:
        """Forget everything before an entry: the mark-delete position passed it."""
        # Through `_move`, so that the totals, the keys and the waiting entries lose them as well.
        ledgers = self._ledgers
        is_only = len(ledgers) == 1 and ledger_id in ledgers
        for passed in () if is_only else [passed for passed in ledgers if passed < ledger_id]:
            states = self._ledgers.pop(passed)
            old = self._move(states, states.base, states.end, SETTLE)
            self._moved_run(passed, states, states.base, old, NONE)
        first = ledgers.get(ledger_id)
        # Within a ledger not each time. Until then the acknowledged entries have the state NONE,
        # which disturbs nothing.
        if first is not None and floor - first.base >= _TRIM_STEP:
            first.trim(floor)

    # -- looking -----------------------------------------------------------------------------------

    def state(self, ledger_id: int, entry_id: int) -> int:
        states = self._ledgers.get(ledger_id)
        return NONE if states is None else states.state(entry_id)

    def ledger(self, ledger_id: int) -> EntryStates | None:
        return self._ledgers.get(ledger_id)

    def waiting_runs(self) -> Iterator[tuple[int, int, int]]:
        """Waiting entries as (ledger, first, last), ascending."""
        if not self.totals[WAITING]:
            return
        for ledger_id in sorted(self._ledgers):
            states = self._ledgers[ledger_id]
            entry = 0
            while (run := states.waiting(entry)) is not None:
                yield ledger_id, *run
                entry = run[1] + 1

    def runs(self, code: int) -> Iterator[tuple[int, int, int]]:
        """Entries of a state as (ledger, first, last), ascending."""
        for ledger_id in sorted(self._ledgers):
            for run in self._ledgers[ledger_id].runs(code):
                yield ledger_id, *run

    def first_of(self, code: int) -> tuple[int, int] | None:
        """The first entry of a state as (ledger, entry); None without one."""
        for ledger_id in sorted(self._ledgers):
            states = self._ledgers[ledger_id]
            at = states.states.find(code)
            if at >= 0:
                return ledger_id, states.base + at
        return None

    def parts(self) -> list[tuple[int, int]]:
        """Parts of chunked messages that are not the last, as (ledger, entry), ascending."""
        if not self.has_parts:
            return []
        runs = self.runs(PART)
        places = [(ledger_id, entry) for ledger_id, first, last in runs for entry in range(first, last + 1)]
        # The search goes through all states: once it finds nothing it is spared until the next part
        # is read.
        self.has_parts = bool(places)
        return places

    # -- snapshots ---------------------------------------------------------------------------------

    def pack(self, floors: dict[int, int]) -> list[list[Any]]:
        packed = []
        for ledger_id in sorted(self._ledgers):
            states = self._ledgers[ledger_id]
            # Replicas trim at different times. What is below the floor is left out, so that equal
            # states give equal bytes.
            skip = min(max(floors.get(ledger_id, 0) - states.base, 0), len(states.states))
            live = states.states[skip:]
            packed.append([ledger_id, states.base + skip, bytes(live), *_pack_numbers(states, skip, live)])
        return packed

    def unpack(self, packed: Sequence[Sequence[Any]]) -> None:
        self.clear()
        for ledger_id, base, live, messages, hashes, counts in packed:
            if not (0 <= base <= MAX_ENTRY_ID and ledger_id >= 0):
                raise ValueError(f"entries from {base} of ledger {ledger_id}")
            states = self._ledgers[ledger_id] = EntryStates(base, self.totals)
            states.states = bytearray(live)
            states.messages = _unpack_column(messages, len(live))
            states.hashes = _unpack_column(hashes, len(live))
            if counts:
                states.set_counts(counts)
            for at, code in enumerate(live):
                if code:
                    self.totals[code] += 1 if states.messages is None else states.messages[at]
            # The totals, the keys and the waiting entries are derived: they are found again in the
            # states.
            self.has_parts |= PART in live
            self.keys.learn(states)
            waiting = compress(range(base, states.end), live.translate(_IS_WAITING))
            self.waiting_keys.add(ledger_id, states, list(waiting))


def _pack_numbers(states: EntryStates, skip: int, live: bytes | bytearray) -> list[Any]:
    columns: list[Any] = []
    for numbers, default in ((states.messages, 1), (states.hashes, -1)):
        if numbers is None:
            columns.append(b"")
            continue
        # Numbers of entries without a state mean nothing, and differ between replicas.
        kept = [number if code else 0 for number, code in zip(numbers[skip:], live, strict=True)]
        # Any column of hashes, even of zeros, means that keys matter, as long as there are entries.
        is_plain = all(number == default for number, code in zip(kept, live, strict=True) if code)
        columns.append(b"" if is_plain else column_bytes(kept))
    counts = states.counts
    counted: list[list[int]] = (
        []
        if counts is None
        else [[at, counts[skip + at]] for at, code in enumerate(live) if code and counts[skip + at]]
    )
    return [*columns, counted]


def _unpack_column(data: bytes, number: int) -> array[int] | None:
    if not data:
        return None
    column = column_of(data)
    if len(column) != number:
        raise ValueError(f"{len(column)} numbers for {number} entries")
    return column
