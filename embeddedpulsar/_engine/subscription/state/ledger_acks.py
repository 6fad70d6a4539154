"""Acknowledgements of one ledger: one bit per entry. Hot: runs for every acknowledgement.

Everything here is a slice, an integer or one C search. A window of bits is merged as one big integer and
the first gap is found by a regular expression over the bytes, so a thousand acknowledgements cost about
as much as ten; only scattered ones pay for a Python loop (90 ns each).

Acknowledgements of a subscription over all ledgers, and the mark-delete position they add up to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from embeddedpulsar._engine.format.acknowledgement import AckGroup
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

OPEN: Final = -1
"""Number of entries of a ledger that may still grow."""

# The first byte that is not full, and the first that is not empty.
_GAP: Final = rb"[^\xff]"
_ACK: Final = rb"[^\x00]"
_BIT: Final = tuple(1 << i for i in range(8))
_new: Final = tuple.__new__  # as a call of the class, without another one
_pattern: Final = cache(re.compile)  # compiled by the first search: most processes make none


class LedgerAcks:
    """Which entries of one ledger are acknowledged. Pure; guarded by the subscription's lock.

    Invariants: entries below `floor` are acknowledged and `floor` itself is not; entries from `top` on
    are not acknowledged; between the two `bits` tells (bit ``e & 7`` of byte ``e >> 3``). What `bits`
    holds below `floor` means nothing. In-order acknowledgement only moves `floor` and allocates no bits
    at all. `partial` maps an entry that is a partly acknowledged batch to its acknowledged indexes, with
    one more bit on top that marks the size of the batch.

    >>> acks = LedgerAcks(entries=10)
    >>> acks.add_range(0, 3), acks.add_list(6, 9, [9, 6])
    (None, None)
    >>> acks.floor, acks.next_unacked(6), list(acks.runs())
    (4, 7, [(6, 6), (9, 9)])
    """

    __slots__ = ("bits", "entries", "floor", "partial", "top")

    def __init__(self, entries: int = OPEN) -> None:
        self.entries = entries
        self.floor = 0
        self.top = 0
        self.bits = bytearray()
        self.partial: dict[int, int] = {}

    @property
    def complete(self) -> bool:
        """Whether the ledger is closed and every entry of it is acknowledged."""
        # OPEN is -1, so a ledger that may grow is never complete.
        return 0 <= self.entries <= self.floor

    def add_range(self, first: int, last: int) -> None:
        # Ids beyond the end of a closed ledger are made up, or of entries that were lost with the
        # power.
        if 0 <= self.entries <= last:
            last = self.entries - 1
        if last < self.floor or last < first:
            return
        # Acknowledged in order: only the floor moves, and the bits below it mean nothing.
        if first <= self.floor:
            self.floor = last + 1
            # Unless something behind it is acknowledged, or a batch in part, or the ledger is closed.
            if self.top > self.floor or self.partial or self.entries >= 0:
                self._raise_floor(first, last)
        else:
            self._merge(first, last, (1 << (last - first + 1)) - 1)

    def add_bits(self, first: int, data: bytes) -> None:
        """Acknowledge entry ``first + i`` for every bit ``i`` that is set in ``data`` (lowest bit first)."""
        window = int.from_bytes(data, "little")
        # As in `add_range`, nothing beyond the end of a closed ledger counts.
        if 0 <= self.entries < first + window.bit_length():
            window &= (1 << max(0, self.entries - first)) - 1
        if window:
            self._merge(first, first + window.bit_length() - 1, window)

    def add_list(self, first: int, last: int, entries: Sequence[int]) -> None:
        """Acknowledge entries that lie far apart, all within ``first..last``, in any order."""
        if 0 <= self.entries <= last:
            limit = self.entries
            entries = [entry for entry in entries if entry < limit]
            if not entries:
                return
            last = max(entries)
        # Entries below the floor may be among them. Their bits mean nothing, so the loop need not
        # look.
        self._reserve(last)
        bits, bit = self.bits, _BIT
        for entry in entries:
            bits[entry >> 3] |= bit[entry & 7]
        self.top = max(self.top, last + 1)
        self._raise_floor(first, last)

    def add_indexes(self, entry: int, size: int, indexes: int) -> None:
        """Acknowledge batch indexes (a bit set) of an entry that holds ``size`` messages."""
        if self.is_acked(entry) or 0 <= self.entries <= entry:
            return
        # The size that came first stays, whatever a later acknowledgement says of the batch.
        whole = self.partial.get(entry, 1 << size)
        size = whole.bit_length() - 1
        whole |= indexes & ((1 << size) - 1)
        # A number of which all bits are set has none in common with its successor. Then all messages
        # are acknowledged, and the entry is.
        if whole & (whole + 1):
            self.partial[entry] = whole
        else:
            self.add_range(entry, entry)

    def close(self, entries: int) -> None:
        """Learn the final number of entries. Acknowledgements beyond it were of entries that were lost."""
        if self.entries == entries:
            return
        self.entries = entries
        self.cut(entries)

    def cut(self, entries: int) -> None:
        """Forget the acknowledgements of entry ``entries`` and all after it."""
        # Whole bytes go, and of the byte with the border the upper bits. What is left says where
        # `top` is.
        if self.top > entries:
            del self.bits[(entries + 7) >> 3 :]
            if entries & 7 and entries >> 3 < len(self.bits):
                self.bits[entries >> 3] &= (1 << (entries & 7)) - 1
            self.top = int.from_bytes(self.bits, "little").bit_length()
        self.floor = min(self.floor, entries)
        for entry in [entry for entry in self.partial if entry >= entries]:
            del self.partial[entry]
        self._free()

    def is_acked(self, entry: int) -> bool:
        if entry < self.floor:
            return True
        return entry < self.top and self.bits[entry >> 3] & _BIT[entry & 7] != 0

    def lacks(self, entry: int) -> bool:
        """Whether the entry may exist, and is not acknowledged as a whole."""
        if entry < self.floor or 0 <= self.entries <= entry:
            return False
        return entry >= self.top or not self.bits[entry >> 3] & _BIT[entry & 7]

    def indexes(self, entry: int) -> int:
        """Acknowledged batch indexes of an entry that is not acknowledged as a whole, as a bit set."""
        # The highest bit marks the size, and is no index.
        whole = self.partial.get(entry)
        return 0 if whole is None else whole & ~(1 << (whole.bit_length() - 1))

    def next_unacked(self, entry: int) -> int:
        """First unacknowledged entry at or after ``entry``; it may lie beyond the end of the ledger."""
        entry = max(entry, self.floor)
        if entry >= self.top:
            return entry
        at = entry >> 3
        # Bits below the entry count as set, so that a gap is one at the entry or behind it.
        gaps = (self.bits[at] | (_BIT[entry & 7] - 1)) ^ 0xFF
        if not gaps:
            # The rest of this byte is full; one search in C finds the next one that is not.
            match = _pattern(_GAP).search(self.bits, at + 1)
            if match is None:
                return self.top
            at = match.start()
            gaps = self.bits[at] ^ 0xFF
        return min(self.top, 8 * at + (gaps & -gaps).bit_length() - 1)

    def next_acked(self, entry: int) -> int:
        """First acknowledged entry at or after ``entry``, or -1."""
        if entry < self.floor:
            return entry
        if entry >= self.top:
            return -1
        at = entry >> 3
        # Bits below the entry do not count.
        acked = self.bits[at] & ~(_BIT[entry & 7] - 1)
        if not acked:
            match = _pattern(_ACK).search(self.bits, at + 1)
            if match is None:
                return -1
            at = match.start()
            acked = self.bits[at]
        return 8 * at + (acked & -acked).bit_length() - 1

    def runs(self) -> Iterator[tuple[int, int]]:
        """Acknowledged runs above `floor` as (first, last), ascending."""
        entry = self.floor
        while (first := self.next_acked(entry)) >= 0:
            entry = self.next_unacked(first)
            yield first, entry - 1

    def window(self) -> bytes:
        """The bits above `floor`, from the byte that holds it to the last that is not zero.

        Equal for equal acknowledgements, however they were reached.
        """
        if self.floor >= self.top:
            return b""
        # The first byte may have bits below the floor. They are cleared, so that equal
        # acknowledgements give equal bytes.
        window = self.bits[self.floor >> 3 : (self.top + 7) >> 3]
        window[0] &= ~(_BIT[self.floor & 7] - 1) & 0xFF
        return bytes(window.rstrip(b"\0"))

    def restore(self, floor: int, window: bytes) -> None:
        """Take over what `window` returned for this ledger when its floor was ``floor``, now or later on."""
        self.floor = floor
        # Bytes below the floor mean nothing, but the others stand behind them.
        self.bits.extend(bytes(max((floor >> 3) - len(self.bits), 0)))
        self.bits[floor >> 3 :] = window
        self.top = (floor & ~7) + int.from_bytes(window, "little").bit_length()

    def _merge(self, first: int, last: int, window: int) -> None:
        """Set the bits of ``window``, whose lowest bit is entry ``first`` and whose highest is ``last``."""
        self._reserve(last)
        start, stop = first >> 3, (last >> 3) + 1
        bits = self.bits
        # The window is shifted to where its first byte begins, and one or takes it in.
        merged = int.from_bytes(bits[start:stop], "little") | window << (first & 7)
        bits[start:stop] = merged.to_bytes(stop - start, "little")
        self.top = max(self.top, last + 1)
        self._raise_floor(first, last)

    def _reserve(self, last: int) -> None:
        """Make `bits` long enough for entry ``last``; bytearray grows ahead, so the total cost stays
        linear.
        """
        missing = (last >> 3) + 1 - len(self.bits)
        if missing > 0:
            self.bits.extend(bytes(missing))

    def _raise_floor(self, first: int, last: int) -> None:
        """Raise `floor` over what is now contiguous, and forget batches that are complete."""
        self.floor = self.next_unacked(self.floor)
        if self.partial:
            # Only batches among what was just acknowledged can have become whole.
            for entry in [entry for entry in self.partial if first <= entry <= last]:
                if self.is_acked(entry):
                    del self.partial[entry]
        self._free()

    def _free(self) -> None:
        # The floor says everything about a complete ledger.
        if self.complete:
            self.bits = bytearray()
            self.top = 0


class AckBitmaps:
    """The chain of ledgers from the mark-delete position on, with one bitmap each.

    Role: answers what is acknowledged; knows nothing of consumers. Pure: the ids and lengths of ledgers
    are facts that come in by `learn_ledgers`. Invariants: everything up to and including `mark_delete` is
    acknowledged and the entry after it is not; ledgers before it are dropped, those acknowledged as a
    whole keep no bitmap. The mark-delete position crosses into the next ledger only when that one is
    known to follow.

    >>> acks = AckBitmaps(Position(4, -1))
    >>> acks.learn_ledgers([(4, 2), (9, OPEN)])
    >>> acks.ledger(4).add_range(0, 1)
    >>> acks.advance_mark_delete()
    >>> acks.mark_delete
    Position(ledger_id=9, entry_id=-1)
    """

    __slots__ = ("_chain", "_ledgers", "mark_delete")

    def __init__(self, mark_delete: Position) -> None:
        self.reset(mark_delete)

    @classmethod
    def of(cls, ledgers: Sequence[tuple[int, LedgerAcks]]) -> AckBitmaps:
        """Bitmaps with the contents that `ledgers` returned.

        Raises:
            ValueError: no ledger, or ledgers out of order.
        """
        acks = cls(BEFORE_FIRST)
        acks._ledgers = dict(ledgers)
        acks._chain = sorted(acks._ledgers)
        if not ledgers or acks._chain != [ledger_id for ledger_id, _ in ledgers]:
            raise ValueError("ledgers missing or out of order")
        acks.advance_mark_delete()
        return acks

    def reset(self, mark_delete: Position) -> None:
        """Acknowledge everything up to ``mark_delete`` and nothing after it."""
        acks = LedgerAcks()
        acks.floor = mark_delete.entry_id + 1
        self._chain = [mark_delete.ledger_id]
        self._ledgers = {mark_delete.ledger_id: acks}
        self.mark_delete = mark_delete

    def ledger(self, ledger_id: int) -> LedgerAcks | None:
        """Acknowledgements of one ledger; None if it lies before the mark-delete position or is not known."""
        return self._ledgers.get(ledger_id)

    def ledgers(self) -> list[tuple[int, LedgerAcks]]:
        """All known ledgers, ascending, the first being the one of the mark-delete position."""
        return [(ledger_id, self._ledgers[ledger_id]) for ledger_id in self._chain]

    @property
    def newest(self) -> LedgerAcks:
        """Acknowledgements of the last known ledger."""
        return self._ledgers[self._chain[-1]]

    @property
    def newest_ledger(self) -> int:
        """Id of the last known ledger."""
        return self._chain[-1]

    def learn_ledgers(self, listed: Sequence[tuple[int, int]]) -> None:
        """Take over which ledgers exist: (id, entries or OPEN), all of them from the mark-delete position on.

        Known ledgers that are missing from the list, up to its last, are gone (trimmed, or lost with the
        power); the mark-delete position passes over them. Known ledgers behind
        the last one of the list stay: the list was made before they were.
        """
        if not listed:
            return
        existing, last = dict(listed), listed[-1][0]
        # Beside those of now, which readers without a lock look at, also when this is interrupted.
        ledgers = {
            # Its acknowledgements go with a ledger: nothing of it can be read.
            ledger_id: acks
            for ledger_id, acks in self._ledgers.items()
            if ledger_id > last or ledger_id in existing
        }
        for ledger_id, entries in listed:
            acks = ledgers.get(ledger_id)
            # A ledger before the mark-delete position is acknowledged, and not taken up again.
            if acks is None and ledger_id > self.mark_delete.ledger_id:
                acks = ledgers[ledger_id] = LedgerAcks()
            if acks is not None and entries != OPEN:
                acks.close(entries)
        self._chain, self._ledgers = sorted(ledgers), ledgers
        # All that were known are gone and no later one exists: the subscription goes on at the
        # beginning of the last one there is.
        if not self._chain:
            self.reset(Position(last, -1))
        self.advance_mark_delete()

    def advance_mark_delete(self) -> None:
        """Move the mark-delete position over what is contiguous. To be called after changes of a ledger."""
        chain, ledgers = self._chain, self._ledgers
        first = ledgers[chain[0]]
        # Not beyond the last known ledger: until another one is known the position stays at its end.
        while len(chain) > 1 and first.complete:
            del ledgers[chain.pop(0)]
            first = ledgers[chain[0]]
        place = chain[0], first.floor - 1
        if self.mark_delete != place:
            self.mark_delete = _new(Position, place)

    def acknowledge_through(self, position: Position) -> bool:
        """Acknowledge everything up to and including ``position``; False if its ledger is not known."""
        acks = self._ledgers.get(position.ledger_id)
        if acks is None:
            return False
        # Ledgers before the position are acknowledged as a whole, and keep no bitmap.
        for ledger_id in self._chain[: self._chain.index(position.ledger_id)]:
            del self._ledgers[ledger_id]
        self._chain = sorted(self._ledgers)
        acks.add_range(0, position.entry_id)
        self.advance_mark_delete()
        return True

    def clamp(self, last: Position) -> None:
        """Forget acknowledgements beyond ``last``: those entries were lost with the power."""
        # The mark-delete position itself was lost: it goes back to the new end.
        if last.ledger_id < self._chain[0]:
            self.reset(last)
            return
        for ledger_id in self._chain:
            if ledger_id > last.ledger_id:
                del self._ledgers[ledger_id]
        self._chain = sorted(self._ledgers)
        acks = self._ledgers.get(last.ledger_id)
        if acks is not None:
            acks.cut(last.entry_id + 1)
        self.advance_mark_delete()

    def is_acked(self, position: Position) -> bool:
        """Whether the entry is acknowledged as a whole."""
        # Without a bitmap a ledger is either before the mark-delete position or not known yet; the
        # comparison tells which.
        acks = self._ledgers.get(position.ledger_id)
        return acks.is_acked(position.entry_id) if acks is not None else position <= self.mark_delete

    def has(self, group: AckGroup) -> bool:
        """Whether a range of entries is acknowledged as a whole."""
        acks = self._ledgers.get(group.ledger_id)
        if acks is None:
            return group.ledger_id < self.mark_delete.ledger_id
        return acks.next_unacked(group.first) > group.last

    def indexes(self, position: Position) -> int:
        """Acknowledged batch indexes of a partly acknowledged entry, as a bit set."""
        acks = self._ledgers.get(position.ledger_id)
        return 0 if acks is None else acks.indexes(position.entry_id)

    def next_unacked(self, position: Position) -> Position:
        """First entry at or after ``position`` that is not acknowledged; in a known ledger or just
        ``position``.
        """
        for ledger_id in self._chain:
            if ledger_id < position.ledger_id:
                continue
            acks = self._ledgers[ledger_id]
            entry = acks.next_unacked(position.entry_id if ledger_id == position.ledger_id else 0)
            # The entry lies within this ledger, or the ledger may still grow, or no later one is
            # known. Else the search goes on in the next one.
            if not 0 <= acks.entries <= entry or ledger_id == self._chain[-1]:
                return Position(ledger_id, entry)
        return position

    def run_length(self, position: Position, most: int) -> int:
        """How many entries from ``position`` on (unacknowledged, same ledger) precede the next
        acknowledged one.
        """
        acks = self._ledgers.get(position.ledger_id)
        following = -1 if acks is None else acks.next_acked(position.entry_id)
        return most if following < 0 else min(most, following - position.entry_id)

    def last_touched(self) -> Position:
        """The highest position of which anything, be it one batch index, is acknowledged. A hint without the
        lock of the subscription."""
        for ledger_id in reversed(self._chain):
            acks = self._ledgers.get(ledger_id)
            if acks is None:
                continue  # another thread removes it, or was interrupted there
            # From the last ledger back, the first one with any acknowledgement has the highest
            # position.
            last = max(acks.floor, acks.top, *(entry + 1 for entry in acks.partial)) - 1
            if last >= 0:
                return Position(ledger_id, last)
        return self.mark_delete

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Acknowledged runs beyond the mark-delete position as (ledger, first, last), ascending."""
        for ledger_id in self._chain:
            acks = self._ledgers[ledger_id]
            # In ledgers behind the first, all below their floor is beyond the mark-delete position as
            # well.
            if ledger_id != self._chain[0] and acks.floor:
                yield ledger_id, 0, acks.floor - 1
            for first, last in acks.runs():
                yield ledger_id, first, last

    def partials(self) -> Iterator[tuple[int, int, int, int]]:
        """Partly acknowledged batches as (ledger, entry, size, acknowledged indexes)."""
        for ledger_id in self._chain:
            acks = self._ledgers[ledger_id]
            for entry, whole in sorted(acks.partial.items()):
                yield ledger_id, entry, whole.bit_length() - 1, acks.indexes(entry)
