"""Which keys have entries that wait for their consumer: so that a claim looks at keys, not at entries."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import compress
from typing import Final

from embeddedpulsar.subscription.state.entry_states import FIRST_OWNER, EntryStates

Entry = tuple[int, int]
Select = Callable[[int], int | None]
_NOTHING: Final[list[Entry]] = []
_CROWD: Final = 4
_FEW: Final = 64
SLOT: Final = 0xFFFF
"""The bits of a hash that count here."""
_UNOWNED: Final = bytes(range(FIRST_OWNER))
_IS_OWNED: Final = bytes(code >= FIRST_OWNER for code in range(256))


class KeyHolds:
    """Entries in flight per key, counted by the low 16 bits of the key's hash.

    Role: derived from `EntryStates`, never stored. Pure, guarded as those are. Two keys that share
    a slot wait for each other now and then, which costs a little time and no order; in return a million keys
    take no more room than 65,536. Where order does not matter (out of order, sticky) a slot may have several
    holders, and `holder` names the last.

    >>> holds = KeyHolds()
    >>> holds.holder(7)
    0
    """

    __slots__ = ("_holders", "_numbers")

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # by slot
        self._numbers: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, key_hash: int) -> int:
        """Code of the consumer that holds entries of this key, 0 for none."""
        return self._holders.get(key_hash & SLOT, 0)

    def number(self, key_hash: int) -> int:
        return self._numbers[key_hash & SLOT]

    def pack(self) -> dict[int, tuple[int, int]]:
        """The whole content, for comparison."""
        return {slot: (code, self._numbers[slot]) for slot, code in self._holders.items()}

    def hold(self, slots: Sequence[int], code: int) -> None:
        """Note that the consumer ``code`` got entries with these slots."""
        self._holders.update(dict.fromkeys(slots, code))
        self._numbers.update(slots)

    def deal(self, slots: Sequence[int], codes: bytes) -> None:
        """Note that consumers got entries with these slots: for each its code."""
        self._holders.update(zip(slots, codes, strict=True))
        self._numbers.update(slots)

    def release(self, slots: Iterable[int]) -> list[int]:
        """Note that entries with these slots are not in flight any more.

        Returns:
            The slots that are free now.
        """
        numbers, free = self._numbers, []
        for slot in slots:
            left = numbers[slot] - 1
            if left > 0:
                numbers[slot] = left
            elif left == 0:
                del numbers[slot], self._holders[slot]
                free.append(slot)
        return free

    def learn(self, states: EntryStates) -> None:
        """Count the entries that a snapshot has in flight."""
        if states.hashes is not None:
            codes = bytes(states.states).translate(None, _UNOWNED)
            owned = states.states.translate(_IS_OWNED)
            self.deal(list(compress(states.slots(states.base, len(owned)), owned)), codes)


class WaitingKeys:
    """Waiting entries of a Key_Shared subscription by the hash of their key, in order.

    Role: derived from `EntryStates`, never stored. Pure, guarded by the subscription's lock. It holds as many
    entries as dispatch looks ahead, and those that came back. The consumer of a key changes only when
    consumers come and go;
    until then the keys of each are kept in order of their first entries, so that a claim costs what it gives,
    and not what waits.

    >>> WaitingKeys().entries_of(7)
    []
    """

    __slots__ = ("_by_hash", "_count", "_generation", "_lanes", "_select", "_slots")

    def __init__(self) -> None:
        self._by_hash: dict[int, list[Entry]] = {}
        self._slots: dict[int, int] = {}  # low 16 bits of hashes -> how many of those wait
        self._count = 0
        # Per consumer, a heap of the first entries of its keys; some say what was so before.
        self._lanes: dict[int | None, list[tuple[Entry, int]]] = {}
        self._select: Select | None = None
        self._generation = -1

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key_hash: int) -> bool:
        return key_hash in self._by_hash

    def entries_of(self, key_hash: int) -> list[Entry]:
        """Its waiting entries, ascending. Not to be changed."""
        return self._by_hash.get(key_hash, _NOTHING)

    def waits_in(self, slot: int) -> bool:
        """Whether entries wait whose key has these low 16 bits."""
        return slot in self._slots

    def add(self, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
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
            if found[0] == entry and self._select is not None:
                self._note_first(entry, key_hash)
        self._count += len(entries)

    def remove(self, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
        hashes, base, by_hash = states.hashes, states.base, self._by_hash
        if hashes is None:
            return
        for entry_id in entries:
            key_hash = hashes[entry_id - base]
            found = by_hash[key_hash]
            if len(found) == 1:
                del by_hash[key_hash]
                self._leave(key_hash & SLOT)
                continue
            at = bisect_left(found, (ledger_id, entry_id))
            del found[at]
            if not at and self._select is not None:
                self._note_first(found[0], key_hash)
        self._count -= len(entries)

    # -- whose they are ----------------------------------------------------------------------------

    def in_order(
        self, consumer_id: int, select: Select, generation: int
    ) -> Generator[tuple[Entry, int], None, None]:
        """The first waiting entry of each key of a consumer, ascending, with the hash of the key.

        To be closed. Nothing changes by going through them; the first time after consumers came or went
        costs a look at every key.
        """
        lane = self._lanes_by(select, generation).get(consumer_id, [])
        taken: list[tuple[Entry, int]] = []
        try:
            while lane:
                first = heappop(lane)
                entry, key_hash = first
                if self.entries_of(key_hash)[:1] == [entry] and taken[-1:] != [first]:
                    taken.append(first)
                    yield first
        finally:
            for first in taken:
                heappush(lane, first)

    def owners(self, select: Select, generation: int) -> list[int | None]:
        """The consumers that have waiting keys, and perhaps some that had; see `in_order`."""
        return [consumer_id for consumer_id, lane in self._lanes_by(select, generation).items() if lane]

    def _lanes_by(self, select: Select, generation: int) -> dict[int | None, list[tuple[Entry, int]]]:
        lanes = self._lanes
        is_crowded = sum(map(len, lanes.values())) > _CROWD * len(self._by_hash) + _FEW
        if generation != self._generation or is_crowded:
            lanes = self._lanes = {}
            for key_hash, entries in self._by_hash.items():
                lanes.setdefault(select(key_hash), []).append((entries[0], key_hash))
            for lane in lanes.values():
                heapify(lane)
            self._select, self._generation = select, generation
        return lanes

    def _note_first(self, entry: Entry, key_hash: int) -> None:
        assert self._select is not None
        heappush(self._lanes.setdefault(self._select(key_hash), []), (entry, key_hash))

    def _leave(self, slot: int) -> None:
        number = self._slots[slot] - 1
        if number:
            self._slots[slot] = number
        else:
            del self._slots[slot]
