"""The waiters for an append: a slot per process, and groups of which one is rung (docs/format/control.md).

Every method but `is_announced` runs under the topic lock. A waiter looks at the state and sets its bit in one
section, a sender changes the state and takes bits in another, so neither can miss the other and no fence is
needed. A sender whose ``words[waiters_word]`` reads 0 pays that one read.

Sleeping until something is appended to a topic.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from embeddedpulsar._engine.format.control import (
    GROUP_SIZE,
    GROUP_TABLE_OFFSET,
    GROUPS,
    UUID_SIZE,
    UUID_SLOTS,
    UUID_TABLE_OFFSET,
    TopicWord,
)
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.threads import system
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, StoreGoneError
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log_view import MaxReadPosition

EACH: Final = 0
"""The group, and the key, of waiters that are all rung: readers, and consumers that share with no other."""
OTHERS: Final = UUID_SLOTS
"""In place of a slot, for a process that found none."""
OTHERS_POLL_S: Final = 0.05  # how often such a process looks for itself
_RECLAIM_EVERY: Final = 64
_TWO_WORDS: Final = struct.Struct("=QQ")
_BITS: Final = 64
_BITMAP_WORDS: Final = UUID_SLOTS // _BITS
_SLOT_WORDS: Final = UUID_SIZE // 8
_GROUP_WORDS: Final = GROUP_SIZE // 8
_UUIDS: Final = UUID_TABLE_OFFSET // 8
_GROUP_TABLE: Final = GROUP_TABLE_OFFSET // 8
_OF_EACH: Final = 1 << EACH
_EACH_BITMAP: Final = _GROUP_TABLE + _GROUP_WORDS * EACH + 1
_LOCK_S: Final = 5e-3


class WaiterSlots:
    """The waiter word, the slots and the groups in the ctl of one topic.

    Role: an append rings every process in the group `EACH`, and one of each other group: those of a
    group do the same work, and one is enough. A group is known by a key, the same in all processes.

    Invariants: a bit in a group's bitmap is set only while the slot of that number carries the uuid of the
    process that set it; a slot changes hands only when its process gave it up, is dead, or waits for nothing.
    Bit g of the waiter word is set whenever the bitmap of group g is not empty, and perhaps when it is.
    Callers: the holder of the topic lock. Nothing here is durable: after a reboot the ctl starts afresh.

    Args:
        words: the ctl as 8-byte words; the only access used, so every store is one store.
        waiters_word: index of the waiter word.
        peers: to tell living processes from dead ones when the table is full.
    """

    __slots__ = ("_claims_when_full", "_peers", "_waiters_word", "_words")

    def __init__(self, words: memoryview, waiters_word: int, peers: Peers) -> None:
        if _GROUP_TABLE + GROUPS * _GROUP_WORDS > len(words):
            raise ValueError(f"the tables of waiters do not fit a ctl of {len(words) * 8} bytes")
        self._words = words
        self._waiters_word = waiters_word
        self._peers = peers
        self._claims_when_full = 0

    # -- slots -------------------------------------------------------------------------------------

    def claim(self, uuid: bytes, hint: int = 0) -> int:
        """The slot of ``uuid``, taking a free one if need be; `OTHERS` when all are in use.

        Args:
            uuid: the lease of the calling process.
            hint: the slot of the last claim; checked first, which makes repeated claims cheap.
        """
        low, high = _TWO_WORDS.unpack(uuid)
        words = self._words
        # A slot once claimed is mostly still ours: two loads.
        if hint < OTHERS and words[_UUIDS + 2 * hint] == low and words[_UUIDS + 2 * hint + 1] == high:
            return hint
        # One copy of the table in the place of 2 loads for each slot. The lock is held, so it cannot
        # change.
        table = words[_UUIDS : _UUIDS + _SLOT_WORDS * UUID_SLOTS].tolist()
        free = -1
        for slot in range(UUID_SLOTS):
            first, second = table[2 * slot], table[2 * slot + 1]
            if first == low and second == high:
                return slot
            if free < 0 and not first and not second:
                free = slot
        if free < 0:
            free = self._reclaim()
        if free < 0:
            return OTHERS
        self._set(free, low, high)
        return free

    def _reclaim(self) -> int:
        """A slot of a process that waits for nothing, else of a dead one; -1 for none."""
        # First slots whose processes wait for nothing: they claim another one when they wait again.
        # No process is asked.
        busy = [0] * _BITMAP_WORDS
        for group in range(GROUPS):
            at = self._bitmap_of(group)
            for word in range(_BITMAP_WORDS):
                busy[word] |= self._words[at + word]
        for slot in range(UUID_SLOTS):
            if not busy[slot // _BITS] >> slot % _BITS & 1:
                return slot
        # Hundreds of probes take a millisecond under the lock: not at every claim of a crowded topic.
        self._claims_when_full += 1
        if self._claims_when_full % _RECLAIM_EVERY != 1:
            return -1
        for slot in range(UUID_SLOTS):
            if not self._peers.is_alive(self._uuid(slot)):
                self._clear(slot)
                return slot
        return -1

    def free_slot(self, uuid: bytes) -> None:
        """Give the slot of ``uuid`` back: its process closes, or is known to be dead."""
        low, high = _TWO_WORDS.unpack(uuid)
        # Bits first, then the id: a bit never stands for a process that did not set it.
        for slot in range(UUID_SLOTS):
            at = _UUIDS + _SLOT_WORDS * slot
            if self._words[at] == low and self._words[at + 1] == high:
                self._clear(slot)
                self._set(slot, 0, 0)
                return

    def _clear(self, slot: int) -> None:
        for group in range(GROUPS):
            self.withdraw(slot, group)

    def _uuid(self, slot: int) -> bytes:
        at = _UUIDS + _SLOT_WORDS * slot
        return _TWO_WORDS.pack(self._words[at], self._words[at + 1])

    def _set(self, slot: int, low: int, high: int) -> None:
        at = _UUIDS + _SLOT_WORDS * slot
        self._words[at] = low
        self._words[at + 1] = high

    # -- groups ------------------------------------------------------------------------------------

    def group_of(self, key: int, hint: int = EACH) -> int:
        """The group with that key, made if need be; `EACH` when there are too many groups: then each of its
        processes is rung."""
        words = self._words
        # Groups keep their keys when they are empty, so that the next waiter with the key finds the
        # same one. A group that was never used is taken before one that is empty now.
        if not key or words[_key_of(hint)] == key:
            return hint if key else EACH
        free = fresh = EACH
        for group in range(1, GROUPS):
            key_there = words[_key_of(group)]
            if key_there == key:
                return group
            if not key_there:
                fresh = fresh or group
            elif not free and not self._is_used(group):
                free = group
        free = fresh or free
        if free:
            words[_key_of(free)] = key
        return free

    def is_of(self, group: int, key: int) -> bool:
        """Whether the group still has that key."""
        return bool(self._words[_key_of(group)] == key)

    def _is_used(self, group: int) -> bool:
        at = self._bitmap_of(group)
        return any(self._words[at : at + _BITMAP_WORDS])

    @staticmethod
    def _bitmap_of(group: int) -> int:
        return _key_of(group) + 1

    def is_announced(self, slot: int, group: int, key: int, uuid: bytes) -> bool:
        """Whether ``uuid`` is announced there. Lock-free: a sender may take the bit the next moment."""
        words = self._words
        # Without the lock the answer may be old in one way only: a sender took the bit. Then it
        # rings, and the caller wakes.
        return bool(
            slot < OTHERS
            and words[self._waiters_word] >> group & 1  # first: after an append it is seldom set
            and words[self._bitmap_of(group) + slot // _BITS] >> slot % _BITS & 1
            and words[_key_of(group)] == key
            and self._uuid(slot) == uuid
        )

    def announce(self, slot: int, group: int) -> None:
        """Announce that the process of ``slot`` goes to sleep. Look at the state again in the same
        section."""
        if slot < OTHERS:
            words = self._words
            # The bitmap before the word: a sender reads the word first.
            words[_GROUP_TABLE + _GROUP_WORDS * group + 1 + slot // _BITS] |= 1 << slot % _BITS
            words[self._waiters_word] |= 1 << group

    def withdraw(self, slot: int, group: int) -> bool:
        """Withdraw the announcement; False if a sender took it, and rings."""
        if slot >= OTHERS:
            return True
        at, bit = self._bitmap_of(group) + slot // _BITS, 1 << slot % _BITS
        bitmap = self._words[at]
        # Taken: that sender rings this process. The bit in the waiter word stays, and is cleared by
        # the next sender.
        if not bitmap & bit:
            return False
        self._words[at] = bitmap ^ bit
        return True

    # -- ringing -----------------------------------------------------------------------------------

    def take_all(self) -> list[bytes]:
        """The processes to ring after the lock: all of `EACH`, and one of each other group. Clears their
        bits."""
        # The group of all in a loop of its own: readers and single consumers, nearly always the only
        # waiters.
        waiting = still = self._words[self._waiters_word]
        uuids: list[bytes] = []
        if waiting & _OF_EACH:
            words, first = self._words, _UUIDS
            for at in range(_EACH_BITMAP, _EACH_BITMAP + _BITMAP_WORDS):
                armed = words[at]
                if armed:
                    words[at] = 0
                    while armed:
                        lowest = armed & -armed
                        armed ^= lowest
                        slot = first + _SLOT_WORDS * (lowest.bit_length() - 1)
                        uuids.append(_TWO_WORDS.pack(words[slot], words[slot + 1]))  # `_uuid`
                first += _SLOT_WORDS * _BITS
            still ^= _OF_EACH
            waiting ^= _OF_EACH
        # One of each other group. Its bit in the word goes when no process of it waits any more.
        while waiting:
            lowest = waiting & -waiting
            waiting ^= lowest
            group = lowest.bit_length() - 1
            uuid = self.take_one(group)
            if uuid is not None:
                uuids.append(uuid)
            if not self._is_used(group):
                still ^= lowest
        self._words[self._waiters_word] = still
        return uuids

    def take_all_of(self, key: int) -> list[bytes]:
        """The processes to ring after the lock: all of the group with that key, and all of `EACH`. Clears
        their bits."""
        words = self._words
        waiting = still = words[self._waiters_word]
        uuids: list[bytes] = []
        while waiting:
            lowest = waiting & -waiting
            waiting ^= lowest
            group = lowest.bit_length() - 1
            if group == EACH or words[_key_of(group)] == key:
                while (uuid := self.take_one(group)) is not None:
                    uuids.append(uuid)
                still ^= lowest
        words[self._waiters_word] = still
        return uuids

    def take_one(self, group: int) -> bytes | None:
        """One of a group, the lowest slot first: it ran most recently, and its memory is warm."""
        words, at = self._words, self._bitmap_of(group)
        for number in range(_BITMAP_WORDS):
            waiting = words[at + number]
            if waiting:
                lowest = waiting & -waiting
                words[at + number] = waiting ^ lowest
                return self._uuid(number * _BITS + lowest.bit_length() - 1)
        return None


def _key_of(group: int) -> int:
    """Index of the word with the key of a group; its bitmap follows."""
    return _GROUP_TABLE + _GROUP_WORDS * group


class Ringing:
    """Rings a process that was taken from the waiters; if it is gone, the next of its group.

    Role: between the waiters, which a sender takes from under the lock, and the doorbells, which it rings
    without. Callers: any thread, holding no lock.

    Attributes:
        waiters: of the topic.
        bell: ``bell(uuid)`` rings a process; False if it is gone: then `others` is to be called.
    """

    __slots__ = ("_lock", "bell", "waiters")

    def __init__(self, words: memoryview, lock: FileLock, peers: Peers) -> None:
        self.waiters: Final = WaiterSlots(words, TopicWord.WAITERS, peers)
        self._lock: Final = lock
        self.bell: Final = peers.ring

    def __call__(self, uuid: bytes) -> bool:
        """Ring; False if another process was rung instead, or none is left."""
        if self.bell(uuid):
            return True
        self.others([uuid])
        return False

    def others(self, gone: list[bytes]) -> None:
        """Ring the next of the groups of processes that are gone."""
        # Each round takes the processes that were gone out of the table, so the rounds end.
        while gone:
            gone = [uuid for uuid in self._instead_of(gone) if not self.bell(uuid)]

    def _instead_of(self, gone: list[bytes]) -> list[bytes]:
        lock = self._lock
        if lock.held:
            return []  # a signal handler inside a section of its own thread: the back-stop finds it
        try:
            lock.acquire(_LOCK_S)
            for uuid in gone:
                self.waiters.free_slot(uuid)
            return self.waiters.take_all()
        except (LockTimeout, ValueError):
            return []  # held for long, or closed; the back-stop finds it
        finally:
            lock.release()


_TAIL: Final = TopicWord.TAIL
_SPIN_S: Final = 50e-6
_BUSY_S: Final = 5e-3
"""A wait that begins this soon after the last one ended with an append is worth a spin."""
_BACKSTOP_S: Final = 0.1
"""A sender that dies between taking our bit and ringing costs this much."""
_IDLE_AFTER_S: Final = 10.0
_IDLE_BACKSTOP_S: Final = 1.0
_LEAVE_S: Final = 2e-3
"""How long a waiter that leaves waits for the topic lock, in which it withdraws its bit."""
_yield_cpu: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


failpoints.declare("group:entry_stored", "group:unlocked")


class AppendHold:
    """Stands for the topic lock in appends of a caller that has it.

    Role: `SegmentWriter.append` takes and gives back a lock; given a hold, it takes nothing, and adds the
    processes to be rung to the hold. So a group of entries costs one ``flock``, and the interpreter is not
    handed on between its entries. Entries are committed in order, alone or with their neighbours
    (`SegmentWriter.append_run`): a crash leaves a prefix of the group.

    Used in this shape, in one thread::

        hold = ledger.hold()
        try:
            ledger.lock.acquire(timeout_s)
            for entry in entries:
                ledger.append_nowait(entry, None, None, hold)
        finally:
            ledger.lock.release()
            hold.ring_all()

    Attributes:
        rung: the processes whose doorbells are to be rung after the lock is free.
    """

    __slots__ = ("_ring", "rung")

    def __init__(self, ring: Callable[[bytes], bool]) -> None:
        self.rung: list[bytes] = []
        self._ring = ring

    def acquire(self, timeout_s: float) -> None:
        """Do nothing: the caller has the lock."""

    def release(self) -> None:
        """Do nothing: the caller keeps the lock."""
        if failpoints.ACTIVE:
            failpoints.hit("group:entry_stored")

    def ring_all(self) -> None:
        """Ring the processes that waited. Without the lock."""
        if failpoints.ACTIVE:
            failpoints.hit("group:unlocked")
        rung, self.rung = self.rung, []
        for uuid in rung:
            self._ring(uuid)


class TailWait:
    """Waits for the tail word of one topic to move, on behalf of all threads of the process.

    Role: spin shortly where appends come fast, else announce the process in the topic's waiters and sleep in
    its mailbox. Waiters with a key share it with waiters of other processes that do the same work: an append
    rings one of them, and one that was rung and does not look has to `end_wait`.
    Invariants: the mailbox's generation is read before the tail is looked at, and the bit is set under the
    topic lock with the tail unmoved; so a process that appends later finds the bit and rings.
    Callers: any thread.
    """

    def __init__(
        self,
        words: memoryview,
        lock: FileLock,
        ringing: Ringing,
        mailbox: Mailbox,
        lock_timeout_s: float,
        on_idle: Callable[[], None],
    ) -> None:
        self._words: Final = words
        self._lock: Final = lock
        self._timeout_s: Final = lock_timeout_s
        self._on_idle: Final = on_idle
        self._moved_at = -1.0
        self.max_read: MaxReadPosition | None = None
        """Where readers stop because of transactions, the end of which they wait for as well."""
        self.rebind(ringing, mailbox)

    def rebind(self, ringing: Ringing, mailbox: Mailbox) -> None:
        self._ring = ringing
        self._waiters = ringing.waiters
        self._mailbox = mailbox
        self._slot = OTHERS
        self._groups: dict[int, int] = {}
        self._sharing: dict[int, set[object]] = {}  # the waiters by key
        self._announced: set[int] = set()

    @property
    def must_poll(self) -> bool:
        """Whether this process waits and has no slot, so that no append rings it."""
        return self._slot == OTHERS

    @property
    def is_blocked(self) -> bool:
        """Whether something in this process stopped at a transaction that is not decided."""
        return self.max_read is not None and bool(self.max_read.blocked)

    def forget_ended(self) -> bool:
        """Return whether something that stopped at a transaction may go on: once for each that ended."""
        return self.max_read is None or self.max_read.forget_ended()

    def has_moved(self, seen_tail: int) -> bool:
        """Whether there may be more to read than when the tail was ``seen_tail``: something was appended, or
        a transaction has ended.

        Raises:
            AlreadyClosed: the topic was closed.
        """
        try:
            if self._words[_TAIL] != seen_tail:
                return True
        except ValueError:
            raise AlreadyClosed("the topic is closed") from None
        max_read = self.max_read
        return max_read is not None and bool(max_read.blocked) and max_read.has_ended()

    def request_ring(self, seen_tail: int, key: int = EACH, waiter: object = None) -> bool:
        """Ask for a ring at the next append, and when a transaction ends at which a reader stopped; False if
        there was one since `seen_tail`.

        Args:
            seen_tail: the tail when the caller last looked.
            key: identifies the waiters of which an append rings only one; `EACH` if there are none.
            waiter: stands for the caller until it leaves; with a key only.
        """
        words, lock, waiters = self._words, self._lock, self._waiters
        if self.max_read is not None and self.max_read.blocked and self.max_read.is_unblocked():
            return False
        try:
            # Looked at twice: without the lock, which saves taking it, and under it, which decides.
            if words[_TAIL] != seen_tail:
                return False
            group = EACH
            if key:
                self._sharing.setdefault(key, set()).add(waiter)
                group = self._groups.get(key, EACH)
            uuid = self._mailbox.uuid
            # A bit that is still set saves the lock: no append came since, because an append takes
            # it.
            if waiters.is_announced(self._slot, group, key, uuid):
                return True  # still announced: the next append clears the bit and rings
            lock.acquire(self._timeout_s)
            if words[_TAIL] != seen_tail:
                return False
            slot = self._slot = waiters.claim(uuid, self._slot)
            if key:
                group = self._groups[key] = waiters.group_of(key, group)
                self._announced.add(key)
            waiters.announce(slot, group)
            return True
        # The words are released when the topic is closed.
        except ValueError:
            raise AlreadyClosed("the topic is closed") from None
        finally:
            lock.release()

    def end_wait(self, key: int, waiter: object, seen_tail: int, is_served: bool) -> None:
        """End the wait of the caller: it must not be rung in the place of another waiter.

        Waits 2 ms for the topic lock at most. If it is not free, a process that left may be rung later, and
        the others notice the append by their back-stop.

        Args:
            key, waiter: as for `request_ring`.
            seen_tail: the tail before the caller last looked.
            is_served: it found something then, so that a ring up to there was of use.
        """
        # No lock between threads: the sets are changed by single calls, and the process is one waiter
        # for all of them.
        sharing = self._sharing.get(key)
        if sharing is None:
            return
        sharing.discard(waiter)
        if sharing or key not in self._announced:
            return  # another thread of this process waits for the same, and was rung with this one
        try:
            is_announced = self._waiters.is_announced(self._slot, self._groups[key], key, self._mailbox.uuid)
            self._announced.discard(key)
            # A ring that was of use needs no withdrawal: the bit is gone. In every other case the bit
            # must go, or the ring be passed on to another of the group.
            if is_announced or not is_served or self._words[_TAIL] != seen_tail:
                self._withdraw(key, is_served, seen_tail)
        except (LockTimeout, ValueError):
            return

    def _withdraw(self, key: int, is_served: bool, seen_tail: int) -> None:
        waiters, lock, group = self._waiters, self._lock, self._groups[key]
        instead = None
        try:
            # Taken: the ring that comes is for this process, which leaves. If an entry is there for
            # it, another has to be woken.
            lock.acquire(_LEAVE_S)
            is_taken = waiters.is_of(group, key) and not waiters.withdraw(self._slot, group)
            if is_taken and group and (not is_served or self._words[_TAIL] != seen_tail):
                instead = waiters.take_one(group)
        finally:
            lock.release()
        if instead is not None:
            self._ring(instead)

    def wait(self, seen_tail: int, timeout_s: float | None, key: int = EACH, waiter: object = None) -> bool:
        """Sleep until the tail is not `seen_tail`; False after the timeout."""
        monotonic = SYSTEM_CLOCK.monotonic  # sleeping takes real time, whatever clock stamps entries
        began = monotonic()
        deadline = None if timeout_s is None else began + timeout_s
        # Where appends come fast the next one is nearer than a sleep and its wake-up.
        if began - self._moved_at < _BUSY_S and self._spin(seen_tail):
            self._moved_at = monotonic()
            return True
        # Generation, then the tail under the lock, then sleep: a ring between any two of these ends
        # the sleep at once.
        while True:
            generation = self._mailbox.generation
            if not self.request_ring(seen_tail, key, waiter):
                self._moved_at = monotonic()
                return True
            now = monotonic()
            # The back-stop is for rings that are lost with their senders. A topic that was silent for
            # 10 s is looked at less often.
            nap = _BACKSTOP_S if now - began < _IDLE_AFTER_S else _IDLE_BACKSTOP_S
            if self._slot == OTHERS:
                nap = OTHERS_POLL_S
            if deadline is not None:
                if now >= deadline:
                    return False
                nap = min(nap, deadline - now)
            # Nothing was rung: time to look after what dead processes left.
            if self._mailbox.wait(generation, nap) == generation:
                self._on_idle()

    def _spin(self, seen_tail: int) -> bool:
        words, until = self._words, system.perf_counter() + _SPIN_S
        while words[_TAIL] == seen_tail:
            _yield_cpu()  # not sleep(0), which takes 90 us
            if system.perf_counter() >= until:
                return False
        return True

    def close(self) -> None:
        """Give the slot back, if there is one and the lock is free."""
        if self._slot == OTHERS:
            return
        try:
            if self._lock.try_acquire():
                self._waiters.free_slot(self._mailbox.uuid)
        except (AlreadyClosed, StoreGoneError):
            return  # the lock was at rest, and its file is gone: so is the slot
        finally:
            self._lock.release()


class OnlookerWait(TailWait):
    """`TailWait` of a process that may not announce itself, because it writes nothing: it looks at the tail
    every 50 ms."""

    def request_ring(self, seen_tail: int, key: int = EACH, waiter: object = None) -> bool:
        """Whether the tail is still that; nothing is asked for. See `must_poll`."""
        return not self.has_moved(seen_tail)

    def end_wait(self, key: int, waiter: object, seen_tail: int, is_served: bool) -> None:
        """Do nothing."""
