"""Appending entries to a topic: the hot path of every send (benchmarks/micro/append.py).

acquire the topic lock -> frame bytes -> index slot -> tail word -> release -> wake
"""

from __future__ import annotations

from collections.abc import Sequence
from os import fstat, getpid
from typing import Final, Protocol
from zlib import crc32

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import EncodedFields
from embeddedpulsar._engine.format.frame import (
    COVERED,
    FRONT,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    TRAILER,
    TRAILER_SIZE,
)
from embeddedpulsar._engine.format.segment_header import MAX_COUNT, SLOT, SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar._engine.platform import deadline, descriptors, failpoints
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import AlreadyClosed, DescriptorLimitError, StorageFullError
from embeddedpulsar.storage.append_hold import AppendHold
from embeddedpulsar.storage.append_point import BY_MAP, LOOK_NS, AppendPoint, State
from embeddedpulsar.storage.waiter_slots import Ringing

failpoints.declare(
    "append:owner_set",
    "append:body_part",
    "append:body_done",
    "append:index_done",
    "append:tail_stored",
    "append:owner_cleared",
    "append:unlocked",
    "append:woken",
)

_TAIL: Final = TopicWord.TAIL
_OWNER: Final = TopicWord.OWNER
_WAITERS: Final = TopicWord.WAITERS
_LAST_PUBLISH_MS: Final = TopicWord.LAST_PUBLISH_MS
_JOURNAL: Final = TopicWord.JOURNAL
_FRAMING: Final = HEADER_SIZE + TRAILER_SIZE
pack_trailer: Final = TRAILER.pack
_pack_front: Final = FRONT.pack
_pack_covered: Final = COVERED.pack
_pack_slot: Final = SLOT.pack


class AppendGuard(Protocol):
    """Appends under a registration that another producer can take away.

    Attributes:
        checked: the topic's journal word at which it was last found registered.
    """

    checked: int

    def check_connected(self) -> None:
        """Follow the journal and bring `checked` up to date. Under the topic lock; raises to refuse."""


class SegmentWriter(AppendPoint):
    """Appends to the tail ledger of a topic, from any number of threads and processes.

    Role: one per process and topic. `append` decides nothing but *where*; roll_policy.py says when a ledger
    is full, roll.py starts the next.
    Invariants: everything between setting the owner word and storing the tail word changes only bytes that
    are never read, so a writer may die at any instruction.
    Callers: any thread; a signal handler of a thread that is inside an append, too.
    Durable: on return an entry survives the death of any process, not a power loss (group_commit.py).
    """

    def append(
        self,
        entry: EncodedFields,
        guard: AppendGuard | None = None,
        timeout_s: float | None = None,
        hold: AppendHold | None = None,
    ) -> tuple[int, int, int, int]:
        """Append one entry. About 3 us for a small one without other writers.

        Args:
            entry: its bytes.
            guard: the producer of the entry; asked under the lock whether it may append, when producers came
                or went since it looked last. So a producer that was fenced out cannot append, however late.
            timeout_s: seconds to wait for the lock; None for as long as the options say.
            hold: says that the caller has the lock, and keeps it; see `AppendHold`.

        Returns:
            Ledger id, entry id, publish time (ms, never below that of the entry before), and the tail word
            behind the entry.

        Raises:
            StorageFullError, DescriptorLimitError: no room, or no descriptors left; nothing was published,
                and the next append tries again.
            LockTimeout: another process stayed inside the lock.
            TopicTerminated, TopicNotFound, AlreadyClosed: nothing can be appended here any more.
            StoreGoneError: the store was removed, moved or replaced.
        """
        lock = self._lock if hold is None else hold
        rung = None
        try:
            lock.acquire(self._timeout_s if timeout_s is None else timeout_s)
            words, wall_ns = self._words, self._wall_ns  # a local is called in half the time of an attribute
            if guard is not None and words[_JOURNAL] != guard.checked:
                guard.check_connected()
            state = self._state
            tail, start, entry_id, crc, messages, now = state
            if words[_OWNER] or words[_TAIL] != tail:
                tail, start, entry_id, crc, messages, now = state = self._refresh()
            now_ns = wall_ns()
            if not self._looked_ns <= now_ns < self._look_by_ns:  # or the clock was set back
                found = fstat(self._lock.fd)
                if found.st_ino != self._lock.inode:
                    raise descriptors.lost(self._lock.path)
                if not self._looked_ns <= now_ns < self._place_by_ns or not found.st_nlink:
                    self._look_at_place(now_ns)
                self._looked_ns, self._look_by_ns = now_ns, now_ns + LOOK_NS
            # 1. Say that we are inside. A crash up to step 4 leaves a nonzero owner and nothing visible.
            words[_OWNER] = self._owner
            active = failpoints.ACTIVE
            if active:
                failpoints.hit("append:owner_set")
            wall = now_ns // 1_000_000
            if wall > now:
                words[_LAST_PUBLISH_MS] = now = wall
            parts, size, body_crc, count, metadata_length, codec, flags, key_hash = entry
            length = size + _FRAMING
            entry_id += 1
            end = start + length
            if end > self._end_stop or entry_id >= self._entry_stop or now >= self._time_stop:
                # A new segment needs an id, perhaps the store's lock: a caller that tries, tries that too.
                room_s = self._timeout_s if timeout_s is None else timeout_s
                state = deadline.within(room_s, self._make_room, length, now)
                tail, start, entry_id, crc, messages, last = state
                if last > now:  # a signal handler of this thread has appended since the clock was read
                    now = last
                entry_id += 1
                end = start + length
            # All that has to be called is called before step 2: from the check there to the commit no signal
            # handler (or finalizer) of this thread can come between, as Python runs them after calls.
            # `seal` and `pack_slot`, without their calls.
            covered = _pack_covered(
                crc, body_crc, MAGIC, KIND_ENTRY, codec, flags, entry_id, now, count, metadata_length, 0
            )
            crc = crc32(covered, length)
            front = _pack_front(length, crc)
            frame = None
            if length <= BY_MAP:
                frame = b"".join((front, covered, *parts, pack_trailer(0, length)))
            else:
                self._write_large(state, start, [front, covered, *parts, pack_trailer(0, length)])
            messages += count
            # Below 0 only if a signal handler has rolled since the clock was read: then step 2 starts again.
            since = now - self._base_ms
            slot = _pack_slot(
                start >> 3,
                since if since > 0 else 0,
                messages,
                key_hash,
                flags >> 16,
                count if count < MAX_COUNT else MAX_COUNT,
                crc,
            )
            slot_start = SLOTS_OFFSET + SLOT_SIZE * entry_id
            if active:
                self._write_part(start, front + covered, parts)
            if self._state is not state:  # a signal handler of this thread appended meanwhile
                return self.append(entry, guard, timeout_s, hold)
            # 2. The frame, above the tail. A crash leaves garbage that the next append overwrites.
            if frame is not None:
                self._log[start:end] = frame
            if active:
                failpoints.hit("append:body_done")
            # 3. The index slot. A crash leaves a slot beyond the last entry, which is never read.
            self._index[slot_start : slot_start + SLOT_SIZE] = slot
            if active:
                failpoints.hit("append:index_done")
            # 4. THE commit: one store. From here on the entry exists, whatever happens to us.
            words[_TAIL] = tail = tail + (length >> 3)
            self._state = (tail, end, entry_id, crc, messages, now)
            if active:
                failpoints.hit("append:tail_stored")
            # 5. Outside again.
            words[_OWNER] = 0
            if active:
                failpoints.hit("append:owner_cleared")
            # 6. The waiters are read under the lock under which they announce themselves: none can be missed.
            if words[_WAITERS]:
                rung = self._waiters.take()
        except ValueError:
            if self._is_closed:  # lock and words are gone
                raise AlreadyClosed("the topic is closed") from None
            raise
        finally:
            release = lock.release
            release()
        if active:
            failpoints.hit("append:unlocked")
        # 7. A crash before this costs the sleepers their back-stop, 100 ms.
        if rung and hold is not None:
            hold.rung += rung
        elif rung:
            for uuid in rung:
                if not self._bell(uuid):
                    self._ring.others([uuid])
            if active:
                failpoints.hit("append:woken")
        return tail >> 32, entry_id, now, tail

    def append_run(
        self, entries: Sequence[EncodedFields], hold: AppendHold, stored: list[tuple[int, int, int]]
    ) -> None:
        """Append entries one after the other: those that fit together are written and committed at once.

        Args:
            entries: their bytes.
            hold: says that the caller has the lock; see `AppendHold`.
            stored: gets the ledger id, the entry id and the tail word behind each entry that is stored. An
                error is that of the entry after them.

        Raises: as `append`.
        """
        while len(stored) < len(entries):
            if not self._append_together(entries[len(stored) :], hold, stored):
                ledger_id, entry_id, _, word = self.append(entries[len(stored)], None, None, hold)
                stored.append((ledger_id, entry_id, word))

    def _append_together(
        self, entries: Sequence[EncodedFields], hold: AppendHold, stored: list[tuple[int, int, int]]
    ) -> bool:
        """Append the first entries, with the order of writes of `append`; False if `append` has to do it."""
        words, state, now_ns = self._words, self._state, self._wall_ns()
        tail, start, entry_id, crc, messages, now = state
        if self._is_closed or words[_OWNER] or words[_TAIL] != tail:
            return False
        now = max(now, now_ns // 1_000_000)
        if not self._looked_ns <= now_ns < self._look_by_ns or not self._base_ms <= now < self._time_stop:
            return False
        first, end, since, ledger_id = entry_id + 1, start, now - self._base_ms, tail >> 32
        most = min(start + BY_MAP, self._end_stop)
        frames: list[bytes] = []
        slots: list[bytes] = []
        made: list[tuple[int, int, int]] = []
        for parts, size, body_crc, count, metadata_length, codec, flags, key_hash in entries:
            length = size + _FRAMING
            if end + length > most or entry_id + 1 >= self._entry_stop:
                break
            entry_id += 1
            covered = _pack_covered(
                crc, body_crc, MAGIC, KIND_ENTRY, codec, flags, entry_id, now, count, metadata_length, 0
            )
            crc = crc32(covered, length)
            frames += (_pack_front(length, crc), covered, *parts, pack_trailer(0, length))
            messages += count
            slots.append(
                _pack_slot(end >> 3, since, messages, key_hash, flags >> 16, min(count, MAX_COUNT), crc)
            )
            end += length
            tail += length >> 3
            made.append((ledger_id, entry_id, tail))
        frame, slot = b"".join(frames), b"".join(slots)
        begin = SLOTS_OFFSET + SLOT_SIZE * first
        active = failpoints.ACTIVE
        if not made or self._state is not state:  # a signal handler of this thread appended meanwhile
            return False
        words[_OWNER] = self._owner
        if active:
            failpoints.hit("append:owner_set")
        words[_LAST_PUBLISH_MS] = now
        self._log[start:end] = frame
        if active:
            failpoints.hit("append:body_done")
        self._index[begin : begin + len(slot)] = slot
        if active:
            failpoints.hit("append:index_done")
        words[_TAIL] = tail
        self._state = (tail, end, entry_id, crc, messages, now)
        if active:
            failpoints.hit("append:tail_stored")
        words[_OWNER] = 0
        stored += made
        if words[_WAITERS]:
            hold.rung += self._waiters.take()
        hold.release()
        return True

    def hold(self) -> AppendHold:
        """A hold for several appends in one hold of the lock."""
        return AppendHold(self._ring)

    def _write_part(self, start: int, header: bytes, parts: list[bytes]) -> None:
        """For tests: leave a torn frame and stop."""
        torn = b"".join((header, *parts))
        torn = torn[: len(torn) // 2]
        self._log_file().pwrite([torn], start)
        failpoints.hit("append:body_part")

    def _write_large(self, state: State, start: int, buffers: list[bytes]) -> None:
        try:
            self._is_exclusive = True
            if self._state is state:
                self._log_file().pwrite(buffers, start)
        except StorageFullError:
            self._words[_OWNER] = 0  # nothing was published
            raise
        finally:
            self._is_exclusive = False

    def _log_file(self) -> MappedFile:
        if self._segment is None:
            raise AlreadyClosed("the topic was closed during an append")
        return self._segment.file

    def roll(self) -> int:
        """Start a new ledger now; return its id. An empty tail ledger is kept."""
        try:
            self._lock.acquire(self._timeout_s)
            words = self._words
            if words[_OWNER] or words[_TAIL] != self._state[0]:
                self._refresh()
            if self._state[2] >= 0:
                self._roll_now()
            return int(words[_TAIL]) >> 32
        finally:
            self._lock.release()

    def _roll_now(self) -> None:
        if self._is_exclusive:
            self._refuse_reentry()
        try:
            self._is_exclusive = True
            self._words[_OWNER] = self._owner
            self._roll(0, max(self._wall_ns() // 1_000_000, self._state[5]))
            self._set_stops(0)
            self._words[_OWNER] = 0
        except (StorageFullError, DescriptorLimitError):
            self._words[_OWNER] = 0
            raise
        finally:
            self._is_exclusive = False

    def rebind(self, ring: Ringing) -> None:
        """Wake other processes by another mailbox from now on."""
        self._waiters, self._ring, self._bell = ring.waiters, ring, ring.bell

    def after_fork_in_child(self) -> None:
        """Take the process id of the child. The maps are shared and remain valid."""
        self._owner = getpid() << 32

    def close(self) -> None:
        """Refuse further appends and drop the maps. Waits for an append of this process that is in progress.

        Not for other processes: one that is stopped inside the lock must not keep this one from ending.
        """
        try:
            self._lock.keep_threads_out(self._timeout_s)
            self._is_closed = True
            self._forget()
        finally:
            self._lock.release()
