"""A log in the memory of this process: as a managed ledger, without files and without durability."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from embeddedpulsar.backlog_quota import TopicHeld
from embeddedpulsar.exceptions import AlreadyClosed, TopicNotFound, TopicTerminated
from embeddedpulsar.format.control import TopicWord, split_tail, tail_word
from embeddedpulsar.format.entry import EncodedFields, decode
from embeddedpulsar.format.entry_view import METADATA
from embeddedpulsar.format.frame import (
    FLAG_SEQUENCE_IDS,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    TRAILER_SIZE,
    FrameHeader,
)
from embeddedpulsar.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar.managed_ledger.log_positions import LogPositions
from embeddedpulsar.managed_ledger.memory_ledgers import (
    Contents,
    MemoryCursor,
    MemoryLedger,
    MemoryLedgers,
    Record,
)
from embeddedpulsar.managed_ledger.opening import open_topic
from embeddedpulsar.managed_ledger.options import LedgerOptions
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.managed_ledger.tail_wait import TailWait
from embeddedpulsar.managed_ledger.trimming import EVERYTHING, Trimming
from embeddedpulsar.managed_ledger.volatile_ledger import LedgerRing
from embeddedpulsar.platform import deadline, fork, indivisible
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.platform.processes.mailbox import Mailbox
from embeddedpulsar.platform.processes.peers import Peers
from embeddedpulsar.platform.scheduler import SchedulerLike
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.append_hold import AppendHold
from embeddedpulsar.storage.roll import RollPolicy
from embeddedpulsar.storage.segment_writer import AppendGuard
from embeddedpulsar.storage.topic_control import (
    DELETED,
    HELD,
    HELD_TEXT,
    TERMINATED,
    TopicControl,
    is_deleted,
)
from embeddedpulsar.storage.waiter_slots import Ringing

_TAIL: Final = TopicWord.TAIL
_OWNER: Final = TopicWord.OWNER
_WAITERS: Final = TopicWord.WAITERS
_LAST_PUBLISH_MS: Final = TopicWord.LAST_PUBLISH_MS
_JOURNAL: Final = TopicWord.JOURNAL
_FRAMING: Final = HEADER_SIZE + TRAILER_SIZE
_PROGRESS_EVERY: Final = 1 << 16

_State = tuple[int, MemoryLedger | None, int, int, int]
"""(tail word, tail ledger, end offset, next entry id, messages in the ledger): a function of the tail word,
and valid while the tail word is what it was."""


class _Counts(NamedTuple):
    ledger_id: int
    entries: int
    messages: int


class MemoryLog(LogPositions):
    """The `Log` of a topic in a store in memory; the entries end with the store, not with this object.

    Role: one per topic of a `memory://` store. The control words and the lock are those of the topic's
    directory, which is a temporary one; they serve the producers' journal, waiters and deletion.
    Invariants: as of `Log`. An entry is there from the store of the tail word on. Ledgers are as large as
    segments would be, and are removed by the same rules.
    Callers: any thread of the process that opened it; a signal handler of a thread that is inside an append,
    too. A forked child cannot use it.
    Durable: nothing.
    """

    def __init__(
        self,
        ledgers: MemoryLedgers,
        control: TopicControl,
        ring: Ringing,
        waits: TailWait,
        options: LedgerOptions,
        clock: Clock,
        allocate_ledger_id: Callable[[int], int],
    ) -> None:
        super().__init__(ledgers.name, ledgers)
        self._view: Final = ledgers
        self.options: Final = options
        self.lock: Final = ledgers.lock
        self.waits: Final = waits
        self.check_in_place, self.is_in_place = control.check_in_place, control.home.is_current
        self._control: Final = control
        self._ring: Final = ring
        self._wall_ns: Final = clock.wall_ns
        self._allocate_ledger_id: Final = allocate_ledger_id
        self._policy: Final = RollPolicy(options.max_entries, options.max_age_ms)
        self._timeout_s: Final = options.lock_timeout_s
        self.trimming: Final = Trimming(
            control, self.lock, ledgers, self._timeout_s, lambda most, _: ledgers.remove_trimmed(most)
        )
        self._on_rolled: Callable[[], object] = lambda: self.trimming.suggest()
        if self.is_volatile:
            remove = partial(ledgers.remove_trimmed, EVERYTHING)
            self._on_rolled = LedgerRing(ledgers.words, ledgers, options.segment_size, remove).turn
        self._time_stop = 0
        self._state: _State = (-1, None, 0, 0, 0)
        self.append_nowait = self._append
        fork.register(self)

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        name: str,
        incarnation: int,
        keep: dict[str, Contents],
        allocate_ledger_id: Callable[[int], int],
        mailbox: Mailbox,
        peers: Peers,
        options: LedgerOptions,
        clock: Clock,
        scheduler: SchedulerLike,
    ) -> MemoryLog:
        """Open the log of a topic; arguments as of `ManagedLedger.open`.

        Args:
            keep: the entries of each topic of the store, by directory: what is there when a topic is opened
                again.
        """
        topic = open_topic(directory, name, incarnation, options, scheduler, None)
        with contextlib.ExitStack() as undo:
            undo.callback(topic.close)
            lock, words, timeout_s = topic.lock, topic.control.words, options.lock_timeout_s
            ledgers = MemoryLedgers(name, keep, directory, words, lock, timeout_s, topic.damage.report)
            ring = Ringing(words, lock, peers)
            waits = TailWait(words, lock, ring, mailbox, timeout_s, lambda: None)
            log = cls(ledgers, topic.control, ring, waits, options, clock, allocate_ledger_id)
            undo.pop_all()
            return log

    def __repr__(self) -> str:
        return f"<MemoryLog {self.name}{' closed' if self._is_closed else ''}>"

    # -- writing -------------------------------------------------------------------------------------------

    def hold(self) -> AppendHold:
        """See `Log`."""
        return AppendHold(self._ring)

    def append_run(
        self, entries: Sequence[EncodedFields], hold: AppendHold, stored: list[tuple[int, int, int]]
    ) -> None:
        """See `SegmentWriter.append_run`."""
        for entry in entries:
            ledger_id, entry_id, _, word = self.append_nowait(entry, None, None, hold)
            stored.append((ledger_id, entry_id, word))

    def _append(
        self,
        entry: EncodedFields,
        guard: AppendGuard | None = None,
        timeout_s: float | None = None,
        hold: AppendHold | None = None,
    ) -> tuple[int, int, int, int]:
        """See `SegmentWriter.append`."""
        lock = self.lock if hold is None else hold
        room_s = self._timeout_s if timeout_s is None else timeout_s
        rung = None
        try:
            lock.acquire(room_s)
            words = self.words
            if guard is not None and words[_JOURNAL] != guard.checked:
                guard.check_connected()
            if words[_OWNER]:
                self._look_at_owner()
            tail, ledger, start, entry_id, messages = self._state
            if words[_TAIL] != tail:
                tail, ledger, start, entry_id, messages = self._found_state()
            now = max(self._wall_ns() // 1_000_000, words[_LAST_PUBLISH_MS])
            parts, size, body_crc, count, metadata_length, codec, flags, _ = entry
            length = size + _FRAMING
            if ledger is None or self._is_full(start + length, entry_id, now):
                state = deadline.within(room_s, self._roll, now)
                tail, ledger, start, entry_id, messages = state
            end = start + length
            fields = (codec, flags, entry_id, now, count, metadata_length, 0)
            header = FrameHeader(length, 0, 0, body_crc, MAGIC, KIND_ENTRY, *fields)
            record = (end, messages + count, header, b"".join(parts))
            state = (tail + (length >> 3), ledger, end, entry_id + 1, messages + count)
            assert ledger is not None
            records = ledger.records
            # From this test to the new tail word no call is made, so no signal handler comes between.
            if words[_TAIL] != tail:  # one has appended since the state was read
                return self._append(entry, guard, timeout_s, hold)
            records[entry_id] = record
            words[_TAIL] = state[0]
            self._state = state
            words[_LAST_PUBLISH_MS] = now
            if words[_WAITERS]:
                rung = self._ring.waiters.take()
        except ValueError:
            self._check_open()  # the words are gone when it is closed
            raise
        finally:
            release = lock.release
            release()
        if rung:
            ring = self._ring if hold is None else hold.rung.append
            for uuid in rung:
                ring(uuid)
        return state[0] >> 32, entry_id, now, state[0]

    def _look_at_owner(self) -> None:
        words = self.words
        state = words[TopicWord.STATE]
        if state & DELETED:
            raise TopicNotFound("the topic was deleted")
        if state & TERMINATED:
            raise TopicTerminated("nothing can be appended to a terminated topic")
        if state & HELD:
            raise TopicHeld(HELD_TEXT)
        words[_OWNER] = 0

    def _found_state(self) -> _State:
        self._check_open()
        tail = self.words[_TAIL]
        ledger_id, end = split_tail(tail)
        if not ledger_id:
            return 0, None, 0, 0, 0
        ledger = self._view.ledger(ledger_id)
        last, _ = self._view.extent(ledger_id)
        self._time_stop = self._policy.time_limit(ledger.base_ms, ledger.base_ms)
        return tail, ledger, end, last + 1, self._view.messages_through(ledger_id, last)

    def _is_full(self, end: int, entries: int, now_ms: int) -> bool:
        if not entries:
            return False
        options = self.options
        return end > options.segment_size or entries >= options.max_entries or now_ms >= self._time_stop

    def _roll(self, now_ms: int) -> _State:
        """Begin the next ledger, under the topic lock."""
        words = self.words
        tail, ledger, end, entries, messages = self._found_state()
        ledger_id = self._allocate_ledger_id(tail >> 32)
        before, closed = None, {}
        if ledger is not None:
            ledger.records.pop(entries, None)  # an append that was interrupted
            before = (ledger.ledger_id, entries - 1)
            closed = {
                TopicWord.TOTAL_MESSAGES: words[TopicWord.TOTAL_MESSAGES] + messages,
                TopicWord.TOTAL_BYTES: words[TopicWord.TOTAL_BYTES] + end - FIRST_FRAME_OFFSET,
                TopicWord.TOTAL_ENTRIES: words[TopicWord.TOTAL_ENTRIES] + entries,
            }
        new = MemoryLedger(ledger_id, now_ms, before)
        switch = {**closed, _TAIL: tail_word(ledger_id, FIRST_FRAME_OFFSET)}
        # As in `_append`: `indivisible.store` is a call, but what follows takes the new tail word as given.
        if words[_TAIL] == tail:
            self._view.add(new)
            indivisible.store(words, switch)
        self._state = self._found_state()
        if ledger is not None:
            self._on_rolled()
        return self._state

    def roll(self) -> int:
        """Start a new ledger now and return its id; an empty open ledger stays."""
        try:
            self.lock.acquire(self._timeout_s)
            if self.words[_OWNER]:
                self._look_at_owner()
            if self._found_state()[3]:
                self._roll(max(self._wall_ns() // 1_000_000, self.words[_LAST_PUBLISH_MS]))
            return int(self.words[_TAIL]) >> 32
        finally:
            self.lock.release()

    def wait_durable(self, end_word: int) -> None:
        """Do nothing: ``end_word`` is as durable as this log can make it when it is appended."""
        self._check_open()

    def note_dirty(self) -> None:
        """Do nothing: there is no disk."""

    def sync(self) -> None:
        """Do nothing: there is no disk."""
        self._check_open()

    # -- reading -------------------------------------------------------------------------------------------

    def cursor(self, position: Position, *, inclusive: bool) -> MemoryCursor:
        """See `Log`."""
        self._check_open()
        return MemoryCursor(self._view, position, inclusive=inclusive)

    def find_by_publish_time(self, publish_ms: int) -> Position:
        self._check_open()
        chain = self._view.chain()
        ledger_id = chain.floor_by_time(publish_ms)
        while ledger_id:
            found = entries = 0
            with contextlib.suppress(FileNotFoundError):  # trimmed: what can be read begins behind it
                records = self._view.ledger(ledger_id).records
                entries = self._view.extent(ledger_id)[0] + 1
                found = _first_published(records, entries, publish_ms)
            following = chain.after(ledger_id)
            if found < entries or not following:
                return Position(ledger_id, found)
            ledger_id = following
        return Position(0, 0)

    def segments(self) -> list[_Counts]:
        """See `Log`."""
        self._check_open()
        chain = self._view.chain()
        found = [_Counts(one.ledger_id, one.last_entry_id + 1, one.messages) for one in chain.closed]
        tail = chain.tail_ledger
        if tail:
            last, _ = self._view.extent(tail)
            found.append(_Counts(tail, last + 1, self._view.messages_through(tail, last)))
        return found

    def sequence_ids(
        self,
        wanted: Iterable[str] | None,
        end_word: int,
        floor_word: int,
        on_progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """See `Log`. About 1 us per entry."""
        self._check_open()
        names = None if wanted is None else {name.encode() for name in wanted}
        found: dict[bytes, int] = {}
        looked = 0
        chain = self._view.chain()
        for ledger_id in (*chain.ids, chain.tail_ledger):
            for end, _, header, body in self._view.records(ledger_id):
                if not floor_word < ledger_id << 32 | end >> 3 <= end_word:
                    continue
                looked += 1
                if on_progress is not None and not looked % _PROGRESS_EVERY:
                    on_progress(looked)
                first, _, _, _, _, name_length, _, _ = METADATA.unpack_from(body)
                name = body[METADATA.size : METADATA.size + name_length]
                # A part of a message that is not the last counts 0 messages, and says nothing.
                if header.message_count and (names is None or name in names):
                    highest = first + header.message_count - 1
                    if header.flags & FLAG_SEQUENCE_IDS:
                        highest = max(decode(header, body, ledger_id).sequence_ids())
                    found[name] = max(found.get(name, -1), highest)
        return {name.decode(errors="replace"): highest for name, highest in found.items()}

    # -- the end -------------------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        """Close it in the child: what the parent appends from here on would not be seen."""
        self._refuse_appends()

    def _refuse_appends(self) -> None:
        self._is_closed = True
        self._state = (-1, None, 0, 0, 0)
        self.append_nowait = self._refuse

    def close(self) -> None:
        """See `Log`. The entries of a deleted topic are removed, others stay with the store."""
        if self._is_closed:
            return
        self.waits.close()
        try:
            self.lock.keep_threads_out(self._timeout_s)
            self._refuse_appends()
        finally:
            self.lock.release()
        if is_deleted(self.words):
            self._view.forget()
        self.lock.close()
        self._control.close()

    def _refuse(self, *_: object, **__: object) -> tuple[int, int, int, int]:
        raise AlreadyClosed(f"{self.name} is closed")


def _first_published(records: dict[int, Record], entries: int, publish_ms: int) -> int:
    return bisect_left(range(entries), publish_ms, key=lambda entry_id: records[entry_id][2].publish_time)
