"""Which keys have messages in flight, and at which consumer: this keeps the order of a key on Key_Shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from embeddedpulsar.subscription.state.entry_states import FIRST_OWNER, EntryStates

SLOT: Final = 0xFFFF
"""The bits of a hash that count here."""
_COUNT: Final = 0xFFFFFFFF


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

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, int] = {}  # slot -> code of the holder << 32 | entries

    def __len__(self) -> int:
        return len(self._held)

    def holder(self, key_hash: int) -> int:
        """Code of the consumer that holds entries of this key, 0 for none."""
        return self._held.get(key_hash & SLOT, 0) >> 32

    def number(self, key_hash: int) -> int:
        """Entries of this key in flight."""
        return self._held.get(key_hash & SLOT, 0) & _COUNT

    def pack(self) -> dict[int, int]:
        """The whole content, for comparison."""
        return dict(self._held)

    def hold(self, states: EntryStates, entries: Sequence[int], code: int) -> None:
        """Note that the consumer ``code`` got these entries."""
        hashes, base, held = states.hashes, states.base, self._held
        if hashes is None:
            return
        for entry in entries:
            slot = hashes[entry - base] & SLOT
            held[slot] = code << 32 | (held.get(slot, 0) & _COUNT) + 1

    def release(self, states: EntryStates, changed: Sequence[tuple[int, int]]) -> list[int]:
        """Note that entries, given with the state they had, are not in flight any more.

        Returns:
            The slots that are free now.
        """
        hashes, base, held = states.hashes, states.base, self._held
        free: list[int] = []
        if hashes is None:
            return free
        for entry, code in changed:
            if code < FIRST_OWNER:
                continue
            slot = hashes[entry - base] & SLOT
            number = held.get(slot, 0)
            if number & _COUNT <= 1:
                held.pop(slot, None)
                free.append(slot)
            else:
                held[slot] = number - 1
        return free

    def learn(self, states: EntryStates) -> None:
        """Count the entries that a snapshot has in flight."""
        for at, code in enumerate(states.states):
            if code >= FIRST_OWNER:
                self.hold(states, (states.base + at,), code)
