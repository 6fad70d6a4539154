"""Which keys are in flight, and which entries wait for the consumer of their key."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, repeat
from typing import Final

from embeddedpulsar.subscription.state.entry_states import FIRST_OWNER, WAITING, EntryStates

Entry = tuple[int, int]
Waiting = tuple[Entry, int]
OwnerOf = Callable[[int], int | None]
_CROWD: Final = 4
_FEW: Final = 64
_NO_GENERATION: Final = -1
SLOT: Final = 0xFFFF
"""The bits of a hash that count here."""
_IS_WAITING: Final = bytes(code == WAITING for code in range(256))
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

    @property
    def holders(self) -> Mapping[int, int]:
        """Code of the consumer by slot. Not to be kept."""
        return self._holders

    def number(self, key_hash: int) -> int:
        return self._numbers[key_hash & SLOT]

    def pack(self) -> dict[int, tuple[int, int]]:
        """The whole content, for comparison."""
        return {slot: (code, self._numbers[slot]) for slot, code in self._holders.items()}

    def hold(self, slots: Sequence[int], code: int) -> None:
        """Note that the consumer ``code`` got entries with these slots."""
        self._holders.update(dict.fromkeys(slots, code))
        self._numbers.update(slots)

    def hold_one(self, slot: int, code: int) -> None:
        """Note that the consumer ``code`` got an entry with this slot."""
        self._holders[slot] = code
        self._numbers[slot] = self._numbers.get(slot, 0) + 1

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
                numbers.pop(slot)  # faster than `del` for a Counter
                del self._holders[slot]
                free.append(slot)
        return free

    def learn(self, states: EntryStates) -> None:
        """Count the entries that a snapshot has in flight."""
        if states.hashes is not None:
            codes = bytes(states.states).translate(None, _UNOWNED)
            owned = states.states.translate(_IS_OWNED)
            self.deal(list(compress(states.slots(states.base, len(owned)), owned)), codes)


class WaitingKeys:
    """Waiting entries of a Key_Shared subscription by key, and by the consumer of the key.

    Role: derived from `EntryStates`, never stored. Pure, guarded by the subscription's lock. It holds as many
    entries as dispatch looks ahead, and those that came back. A replica that only follows the commands of
    others is not asked, so changes are noted here, and taken in when it is; after many of them everything is
    found anew in the states. The consumer of a key changes only when consumers come and go; until then the
    entries of each are kept in order, so that a claim costs what it gives, and not what waits.

    Attributes:
        is_replay: commands of others are applied: `waits_in` may answer True when nothing waits there.

    >>> WaitingKeys({}).number_of(7)
    0
    """

    __slots__ = (
        "_count",
        "_generation",
        "_has_slots",
        "_is_built",
        "_lanes",
        "_ledgers",
        "_noted",
        "_notes",
        "_numbers",
        "_owner_of",
        "_slots",
        "is_replay",
    )

    def __init__(self, ledgers: Mapping[int, EntryStates]) -> None:
        self.is_replay = False
        self._ledgers: Final = ledgers
        self._count = 0
        self._is_built = False
        self._notes: list[tuple[int, int, Sequence[int], list[int]]] = []
        self._noted = 0  # entries in the notes
        self._numbers: Counter[int] = Counter()  # entries by hash
        self._slots: Counter[int] = Counter()  # entries by the low 16 bits, once it was asked for them
        self._has_slots = False
        self._lanes: dict[int | None, list[Waiting]] = {}  # by consumer, ascending
        self._owner_of: OwnerOf | None = None
        self._generation = _NO_GENERATION

    def __len__(self) -> int:
        return self._count

    def number_of(self, key_hash: int) -> int:
        """How many entries of a key wait."""
        return self.numbers().get(key_hash, 0)

    def waits_in(self, slot: int) -> bool:
        """Whether entries wait whose key has these low 16 bits."""
        if self.is_replay or not self._count:
            return self._count > 0
        keys = self.numbers()
        if not self._has_slots:
            self._slots.clear()
            for key_hash, number in keys.items():
                self._slots[key_hash & SLOT] += number
            self._has_slots = True
        return self._slots[slot] > 0

    # -- changes -----------------------------------------------------------------------------------

    def add(self, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
        """Note that entries wait now."""
        self._note(1, ledger_id, states, entries)

    def remove(self, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
        """Note that entries wait no more."""
        self._note(-1, ledger_id, states, entries)

    def _note(self, change: int, ledger_id: int, states: EntryStates, entries: Sequence[int]) -> None:
        hashes, base = states.hashes, states.base
        if hashes is None:
            return
        self._count += change * len(entries)
        if not self._is_built:
            return
        self._noted += len(entries)
        if self._noted > _FEW + self._count // _CROWD:
            self._is_built = False
            self._notes.clear()
            return
        self._notes.append((change, ledger_id, entries, [hashes[entry - base] for entry in entries]))

    def numbers(self) -> Mapping[int, int]:
        """How many entries of each key wait, by hash, with all changes. 0 stands for none, too."""
        if not self._is_built:
            self._notes.clear()
            self._numbers.clear()
            self._has_slots = False
            for states in self._ledgers.values():
                if states.hashes is not None and self._count:
                    waiting = states.states.translate(_IS_WAITING)
                    self._numbers.update(compress(states.hashes, waiting))
            self._generation = _NO_GENERATION
            self._is_built, self._noted = True, 0
        elif self._noted:
            self._is_built = False  # an interrupt may strike: no note may be taken in twice
            for change, ledger_id, entries, hashes in self._notes:
                for entry_id, key_hash in zip(entries, hashes, strict=True):
                    self._change(change, (ledger_id, entry_id), key_hash)
            self._notes.clear()
            self._is_built, self._noted = True, 0
        return self._numbers

    def _change(self, change: int, entry: Entry, key_hash: int) -> None:
        _count_by(change, self._numbers, key_hash)
        if self._has_slots:
            _count_by(change, self._slots, key_hash & SLOT)
        if self._owner_of is None or self._generation == _NO_GENERATION:
            return
        lane = self._lanes.get(self._owner_of(key_hash))
        if lane is None:
            return
        if change < 0:
            del lane[bisect_left(lane, (entry, key_hash))]
        elif not lane or lane[-1][0] < entry:
            lane.append((entry, key_hash))
        else:
            insort(lane, (entry, key_hash))

    # -- whose they are ----------------------------------------------------------------------------

    def divide_anew(self) -> None:
        """Forget whose they are: consumers came or went."""
        self._generation = _NO_GENERATION

    def of_consumer(self, consumer_id: int, owner_of: OwnerOf, generation: int) -> Sequence[Waiting]:
        """The waiting entries of a consumer's keys, ascending, each with the hash of its key.

        The first time after consumers came or went costs a look at every entry. Not to be changed.
        """
        keys = self.numbers()
        if generation != self._generation:
            self._lanes = {}
            self._owner_of, self._generation = owner_of, generation
        lane = self._lanes.get(consumer_id)
        if lane is None:
            own = {key_hash for key_hash in keys if owner_of(key_hash) == consumer_id}
            lane = self._lanes[consumer_id] = self._entries_of(own) if own else []
        return lane

    def _entries_of(self, own: set[int]) -> list[Waiting]:
        found: list[Waiting] = []
        for ledger_id in sorted(self._ledgers):
            states = self._ledgers[ledger_id]
            if states.hashes is not None:
                waiting = states.states.translate(_IS_WAITING)
                hashes = list(compress(states.hashes, waiting))
                is_own = list(map(own.__contains__, hashes))
                entries = compress(compress(range(states.base, states.end), waiting), is_own)
                found += zip(
                    zip(repeat(ledger_id), entries, strict=False), compress(hashes, is_own), strict=True
                )
        return found

    def owners(self, owner_of: OwnerOf) -> set[int | None]:
        """The consumers that have waiting entries."""
        return set(map(owner_of, self.numbers()))


def _count_by(change: int, counter: Counter[int], key: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]
