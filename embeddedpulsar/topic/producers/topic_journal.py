"""The journal of a topic as its processes share it: producers, and what they stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from embeddedpulsar._engine.format.control import KIND_TOPIC, TopicWord
from embeddedpulsar._engine.format.document import KIND_TOPIC_SNAPSHOT, decode_document, encode_document
from embeddedpulsar._engine.format.topic_record import (
    REASON_DEAD,
    TopicCommand,
    decode_command,
    encode_command,
)
from embeddedpulsar._engine.log.journal.journal import Journal
from embeddedpulsar._engine.log.journal.journal_file import JournalPlace
from embeddedpulsar._engine.log.topic_control import ATTENTION, TERMINATED
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.clock import Clock
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.exceptions import TopicNotFound
from embeddedpulsar.topic.producers.producer_table import ProducerTable

JOURNAL_CHECKED: Final = TopicWord.JOURNAL + 1
"""Epoch of the ctl, plus 1, for which the journal word was found true; recovery of the ctl raises the
epoch."""

_REMEDY: Final = "repair the store; a producer that sends again what it sent may store it twice until then"

T = TypeVar("T")
Commit = Callable[[Sequence[TopicCommand]], None]


class TopicReplica:
    """The table as the journal sees it."""

    def __init__(self) -> None:
        self.table = ProducerTable()

    def reset(self, snapshot: bytes | None) -> None:
        if snapshot is None:
            self.table = ProducerTable()
        else:
            self.table = ProducerTable.from_fields(decode_document(snapshot, KIND_TOPIC_SNAPSHOT))

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        self.table.apply(decode_command(kind, payload), time_ms)

    def leap(self, kind: int, payload: bytes) -> bool:
        """Do nothing: no command of a topic holds the state before it."""
        return False

    def snapshot(self) -> bytes:
        return encode_document(KIND_TOPIC_SNAPSHOT, self.table.to_fields())


class TopicJournal:
    """Decisions about a topic, one after the other, under its append lock.

    Role: one per process and topic. `section` follows the journal, journals the detachment of the dead, and
    lets the caller decide on the table; processes that this concerns are rung after the lock.
    Durable: nothing but compactions, and what was committed before a `sync`.
    Callers: any thread. Within a section another may be begun.
    """

    def __init__(
        self,
        directory: str,
        words: memoryview,
        lock: FileLock,
        peers: Peers,
        clock: Clock,
        report: DamageHook,
        *,
        lock_timeout_s: float,
    ) -> None:
        self.words: Final = words
        self.replica: Final = TopicReplica()
        place = JournalPlace(
            directory, words, TopicWord.JOURNAL, KIND_TOPIC, check_in_place=lock.check_reopened
        )
        self.journal: Final = Journal(place, self.replica)
        self.lock_timeout_s: Final = lock_timeout_s
        self._directory: Final = directory
        self.lock: Final = lock
        self.peers: Final = peers
        self._clock: Final = clock
        self._report: Final = report
        self._is_named = False

    @property
    def table(self) -> ProducerTable:
        """The state, as far as it was followed. To be used within a section."""
        return self.replica.table

    @property
    def tail(self) -> int:
        """The tail word of the log; within a section it stands still."""
        return int(self.words[TopicWord.TAIL])

    @property
    def now_ms(self) -> int:
        """The time commands are decided at, in ms since the epoch."""
        return self._clock.wall_ms()

    def section(self, work: Callable[[Commit], T], timeout_s: float | None = None, refused: int = 0) -> T:
        """Run ``work(commit)`` under the topic's lock, on the table as it is now without the dead.

        Raises:
            TopicNotFound: the topic's state word has one of the bits ``refused``: it was deleted.
            LockTimeout: the lock was not free within ``timeout_s`` (default: that of the ledger).
        """
        to_ring: set[bytes] = set()

        def commit(commands: Sequence[TopicCommand]) -> None:
            to_ring.update(self._append(commands))

        try:
            self.lock.acquire(self.lock_timeout_s if timeout_s is None else timeout_s)
            if self.words[TopicWord.STATE] & refused:
                raise TopicNotFound("the topic was deleted")
            self.follow()
            dead = self._dead()
            if dead:
                commit(self.table.detach_commands(dead, REASON_DEAD))
            return work(commit)
        finally:
            self.lock.release()
            for uuid in to_ring:
                self.peers.ring(uuid)
            while self.journal.damage:
                self._report(self.journal.damage.pop(0)._replace(remedy=_REMEDY))

    def follow(self) -> None:
        """Catch up with the journal, after looking whether its word may be believed in this boot.

        Under the topic lock.
        """
        words = self.words
        wanted = words[TopicWord.EPOCH] + 1
        if words[JOURNAL_CHECKED] != wanted:
            self.journal.recover(self._clock.wall_ms())
            words[JOURNAL_CHECKED] = wanted
        self.journal.catch_up()
        if self.table.terminated is not None:
            self.enforce_end()

    def enforce_end(self) -> None:
        """Have all processes refuse appends, as the table says: the word that they look at is lost with a
        reboot, or when the process that terminated the topic was killed. Under the topic lock."""
        if not self.words[TopicWord.STATE] & TERMINATED:
            self.words[TopicWord.STATE] |= TERMINATED
            self.words[TopicWord.OWNER] = ATTENTION

    def _dead(self) -> set[bytes]:
        """The clients in the table that do not live any more."""
        dead = set()
        for uuid in self.table.clients():
            try:
                if not self.peers.is_alive(uuid):
                    dead.add(uuid)
            except OSError:
                continue  # no answer (no descriptors left, no permission): that proves no death
        return dead

    def _append(self, commands: Sequence[TopicCommand]) -> set[bytes]:
        """Commit commands; returns the clients that wait and should look."""
        if not commands:
            return set()
        records = [encode_command(command) for command in commands]
        if self.journal.exists:
            self.journal.append(records, self._clock.wall_ms())
        else:
            self.journal.create(records, self._clock.wall_ms())
        table = self.table
        concerned = set(table.fenced.values())
        for waiting in table.waiting.values():
            concerned.add(waiting.client_uuid)
        for one in table.connected.values():
            if one.epoch:
                concerned.add(one.client_uuid)
        return concerned

    def sync(self) -> None:
        """Make everything committed so far survive a power loss. Without the lock.

        Raises:
            OSError: the flush failed; what the disk has is unknown.
        """
        self.journal.sync()
        if not self._is_named:
            disk.DISK.fsync_dir(self._directory)
            self._is_named = True

    def close(self) -> None:
        """Give the journal's descriptor back. Idempotent."""
        self.journal.close()
