"""Which keys have entries that wait for their consumer: so that a claim looks at keys, not at entries."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Final

from embeddedpulsar.subscription.entry_states import EntryStates
from embeddedpulsar.subscription.key_holds import SLOT

Entry = tuple[int, int]
_NOTHING: Final[list[Entry]] = []


class WaitingKeys:
    """Waiting entries of a Key_Shared subscription by the hash of their key, in order.

    Role: derived from `EntryStates`, never stored. Pure, guarded by whoever guards those. As many entries as
    dispatch looks ahead, and those that came back.

    >>> WaitingKeys().entries_of(7)
    []
    """

    __slots__ = ("_by_hash", "_count", "_slots")

    def __init__(self) -> None:
        self._by_hash: dict[int, list[Entry]] = {}
        self._slots: dict[int, int] = {}  # low 16 bits of hashes -> how many of those wait
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key_hash: int) -> bool:
        return key_hash in self._by_hash

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_hash)

    def entries_of(self, key_hash: int) -> list[Entry]:
        """Its waiting entries, ascending. Not to be changed."""
        return self._by_hash.get(key_hash, _NOTHING)

    def waits_in(self, slot: int) -> bool:
        """Whether entries wait whose key has these low 16 bits."""
        return slot in self._slots

    def add(self, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
        """These entries wait."""
        hashes, base, by_hash, slots = states.hashes, states.base, self._by_hash, self._slots
        if hashes is None:
            return
        for entry_id in entries:
            key_hash, entry = hashes[entry_id - base], (ledger_id, entry_id)
            found = by_hash.get(key_hash)
            if found is None:
                found = by_hash[key_hash] = []
                slots[key_hash & SLOT] = slots.get(key_hash & SLOT, 0) + 1
            if not found or found[-1] < entry:
                found.append(entry)
            else:
                insort(found, entry)
        self._count += len(entries)

    def remove(self, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
        """These entries waited, and do no more."""
        hashes, base, by_hash = states.hashes, states.base, self._by_hash
        if hashes is None:
            return
        for entry_id in entries:
            key_hash = hashes[entry_id - base]
            found = by_hash[key_hash]
            if len(found) == 1:
                del by_hash[key_hash]
                self._leave(key_hash & SLOT)
            else:
                del found[bisect_left(found, (ledger_id, entry_id))]
        self._count -= len(entries)

    def _leave(self, slot: int) -> None:
        number = self._slots[slot] - 1
        if number:
            self._slots[slot] = number
        else:
            del self._slots[slot]
