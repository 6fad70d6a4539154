"""Who waits for a change of a shared structure: one bit and one uuid per process, in its mapped ctl.

Every method runs under the lock that guards what is waited for (the topic lock for appends, the
subscription lock for everything else). That is the whole trick: a waiter looks at the state and sets its
bit in one section, a sender changes the state and takes the bits in another, so neither can miss the other
and no fence is needed. A sender whose ``words[waiters_word]`` reads 0 pays that one read.
"""

from __future__ import annotations

import struct
from typing import Final

from embeddedpulsar.platform.peers import Peers

SLOTS: Final = 63  # slot numbers 0..62 name a process
OTHERS: Final = 63  # the bit of everybody else
OTHERS_POLL_S: Final = 0.005  # how often those look for themselves
_UUID_WORDS: Final = 2
_RECLAIM_EVERY: Final = 64
_TWO_WORDS: Final = struct.Struct("=QQ")


class WaiterSlots:
    """The waiter word and the slot table of one ctl file.

    Args:
        words: the ctl as 8-byte words; the only access used, so every store is one store.
        view: the ctl as bytes; only to find out that the table fits.
        waiters_word: index of the bitmap word.
        table_offset: byte offset of the table of 64 uuids, a multiple of 8.
        peers: to tell living processes from dead ones when the table is full.

    Invariants: bit n is set only while slot n carries the uuid of the process that set it. A slot changes
    hands only when its process gave it up or is dead.
    Who may call: whoever holds the guarding lock. Nothing here is durable: after a reboot the ctl starts
    afresh.
    """

    __slots__ = ("_base", "_claims_when_full", "_peers", "_waiters_word", "_words")

    def __init__(
        self, words: memoryview, view: memoryview, waiters_word: int, table_offset: int, peers: Peers
    ) -> None:
        if table_offset % 8 or table_offset + (SLOTS + 1) * 16 > len(view):
            raise ValueError(
                f"a table of 64 uuids at byte {table_offset} does not fit a ctl of {len(view)} bytes"
            )
        self._words = words
        self._waiters_word = waiters_word
        self._base = table_offset // 8
        self._peers = peers
        self._claims_when_full = 0

    def claim(self, uuid: bytes, hint: int = 0) -> int:
        """The slot of ``uuid``, taking a free one or a dead process's if need be; `OTHERS` when all are in
        use.

        Args:
            uuid: the lease of the calling process.
            hint: the slot of the last claim; checked first, which makes repeated claims cheap.
        """
        low, high = _TWO_WORDS.unpack(uuid)
        words, base = self._words, self._base
        if hint < SLOTS and words[base + 2 * hint] == low and words[base + 2 * hint + 1] == high:
            return hint
        free = -1
        for slot in range(SLOTS):
            at = base + _UUID_WORDS * slot
            there = words[at], words[at + 1]
            if there == (low, high):
                return slot
            if free < 0 and there == (0, 0):
                free = slot
        if free < 0:
            free = self._reclaim()
        if free < 0:
            return OTHERS
        self._set(free, low, high)
        return free

    def _reclaim(self) -> int:
        # 63 probes take a quarter of a millisecond under the lock: not at every claim of a crowded topic.
        self._claims_when_full += 1
        if self._claims_when_full % _RECLAIM_EVERY != 1:
            return -1
        for slot in range(SLOTS):
            if not self._peers.is_alive(self._uuid(slot)):
                self.disarm(slot)
                return slot
        return -1

    def arm(self, slot: int) -> None:
        """Announce that the process of ``slot`` goes to sleep. Look at the state again in the same
        section."""
        self._words[self._waiters_word] |= 1 << slot

    def disarm(self, slot: int) -> None:
        """Withdraw the announcement. The bit of the others stays: it is not one process's to clear."""
        if slot != OTHERS:
            self._words[self._waiters_word] &= ~(1 << slot)

    def take(self) -> list[bytes]:
        """Whom to ring, once the lock is released: everybody who announced himself. Clears all bits.

        The others (more than 63 processes) are not in the list: they look for themselves every
        `OTHERS_POLL_S`.
        """
        waiting = self._words[self._waiters_word]
        if not waiting:
            return []
        self._words[self._waiters_word] = 0
        uuids = []
        waiting &= ~(1 << OTHERS)
        while waiting:
            lowest = waiting & -waiting
            uuids.append(self._uuid(lowest.bit_length() - 1))
            waiting ^= lowest
        return uuids

    def take_one(self, after: int = -1) -> bytes | None:
        """One to ring, the first slot above ``after`` and round again; the bits of the rest stay set."""
        waiting = self._words[self._waiters_word] & ~(1 << OTHERS)
        if not waiting:
            return None
        above = waiting >> (after + 1) << (after + 1)
        chosen = above or waiting
        slot = (chosen & -chosen).bit_length() - 1
        self.disarm(slot)
        return self._uuid(slot)

    def forget(self, uuid: bytes) -> None:
        """Give the slot of ``uuid`` back: its process closes, or is known to be dead."""
        low, high = _TWO_WORDS.unpack(uuid)
        for slot in range(SLOTS):
            at = self._base + _UUID_WORDS * slot
            if self._words[at] == low and self._words[at + 1] == high:
                self.disarm(slot)
                self._set(slot, 0, 0)
                return

    def _uuid(self, slot: int) -> bytes:
        at = self._base + _UUID_WORDS * slot
        return _TWO_WORDS.pack(self._words[at], self._words[at + 1])

    def _set(self, slot: int, low: int, high: int) -> None:
        at = self._base + _UUID_WORDS * slot
        self._words[at] = low
        self._words[at + 1] = high
