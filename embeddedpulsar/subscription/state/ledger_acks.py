"""Acknowledgements of one ledger: one bit per entry. Hot: runs for every acknowledgement.

Everything here is a slice, an integer or one C search. A window of bits is merged as one big integer and
the first gap is found by a regular expression over the bytes, so a thousand acknowledgements cost about
as much as ten; only scattered ones pay for a Python loop (90 ns each).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

OPEN: Final = -1
"""Number of entries of a ledger that may still grow."""

_find_gap: Final = re.compile(rb"[^\xff]").search
_find_ack: Final = re.compile(rb"[^\x00]").search
_BIT: Final = tuple(1 << i for i in range(8))


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
        return 0 <= self.entries <= self.floor

    def add_range(self, first: int, last: int) -> None:
        if 0 <= self.entries <= last:
            last = self.entries - 1
        if last < self.floor or last < first:
            return
        if first <= self.floor:
            self.floor = last + 1
            self._settle(first, last)
        else:
            self._merge(first, last, (1 << (last - first + 1)) - 1)

    def add_bits(self, first: int, data: bytes) -> None:
        """Acknowledge entry ``first + i`` for every bit ``i`` that is set in ``data`` (lowest bit first)."""
        window = int.from_bytes(data, "little")
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
        self._reserve(last)
        bits, bit = self.bits, _BIT
        for entry in entries:
            bits[entry >> 3] |= bit[entry & 7]
        self.top = max(self.top, last + 1)
        self._settle(first, last)

    def add_indexes(self, entry: int, size: int, indexes: int) -> None:
        """Acknowledge batch indexes (a bit set) of an entry that holds ``size`` messages."""
        if self.is_acked(entry) or 0 <= self.entries <= entry:
            return
        whole = self.partial.get(entry, 1 << size)
        size = whole.bit_length() - 1
        whole |= indexes & ((1 << size) - 1)
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

    def indexes(self, entry: int) -> int:
        """Acknowledged batch indexes of an entry that is not acknowledged as a whole, as a bit set."""
        whole = self.partial.get(entry)
        return 0 if whole is None else whole & ~(1 << (whole.bit_length() - 1))

    def next_unacked(self, entry: int) -> int:
        """First unacknowledged entry at or after ``entry``; it may lie beyond the end of the ledger."""
        entry = max(entry, self.floor)
        if entry >= self.top:
            return entry
        at = entry >> 3
        gaps = (self.bits[at] | (_BIT[entry & 7] - 1)) ^ 0xFF
        if not gaps:
            found = _find_gap(self.bits, at + 1)
            if found is None:
                return self.top
            at = found.start()
            gaps = self.bits[at] ^ 0xFF
        return min(self.top, 8 * at + (gaps & -gaps).bit_length() - 1)

    def next_acked(self, entry: int) -> int:
        """First acknowledged entry at or after ``entry``, or -1."""
        if entry < self.floor:
            return entry
        if entry >= self.top:
            return -1
        at = entry >> 3
        acked = self.bits[at] & ~(_BIT[entry & 7] - 1)
        if not acked:
            found = _find_ack(self.bits, at + 1)
            if found is None:
                return -1
            at = found.start()
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
        window = self.bits[self.floor >> 3 : (self.top + 7) >> 3]
        window[0] &= ~(_BIT[self.floor & 7] - 1) & 0xFF
        return bytes(window.rstrip(b"\0"))

    def restore(self, floor: int, window: bytes) -> None:
        """Take over what `window` returned for this ledger when its floor was ``floor``, now or later on."""
        self.floor = floor
        self.bits.extend(bytes(max((floor >> 3) - len(self.bits), 0)))
        self.bits[floor >> 3 :] = window
        self.top = (floor & ~7) + int.from_bytes(window, "little").bit_length()

    def _merge(self, first: int, last: int, window: int) -> None:
        """Set the bits of ``window``, whose lowest bit is entry ``first`` and whose highest is ``last``."""
        self._reserve(last)
        start, stop = first >> 3, (last >> 3) + 1
        bits = self.bits
        merged = int.from_bytes(bits[start:stop], "little") | window << (first & 7)
        bits[start:stop] = merged.to_bytes(stop - start, "little")
        self.top = max(self.top, last + 1)
        self._settle(first, last)

    def _reserve(self, last: int) -> None:
        """Make `bits` long enough for entry ``last``; bytearray grows ahead, so the total cost stays
        linear.
        """
        missing = (last >> 3) + 1 - len(self.bits)
        if missing > 0:
            self.bits.extend(bytes(missing))

    def _settle(self, first: int, last: int) -> None:
        """Raise `floor` over what is now contiguous, and forget batches that are complete."""
        self.floor = self.next_unacked(self.floor)
        if self.partial:
            for entry in [entry for entry in self.partial if first <= entry <= last]:
                if self.is_acked(entry):
                    del self.partial[entry]
        self._free()

    def _free(self) -> None:
        if self.complete:
            self.bits = bytearray()
            self.top = 0
