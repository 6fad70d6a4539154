"""The producers of a topic: registered in the topic's journal, alive as long as their lease."""

from __future__ import annotations

from typing import Final, NamedTuple

from embeddedpulsar.enums import ProducerAccessMode
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    ProducerFenced,
    StorageError,
    Timeout,
    TopicNotFound,
    TopicTerminated,
)
from embeddedpulsar.format.control import KIND_TOPIC, TopicWord
from embeddedpulsar.format.document import KIND_TOPIC_SNAPSHOT, decode_document, encode_document
from embeddedpulsar.format.topic_record import (
    REASON_CLOSED,
    REASON_DEAD,
    DetachProducer,
    EnqueueProducer,
    TopicCommand,
    decode_command,
    encode_command,
)
from embeddedpulsar.platform import fork
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.platform.mailbox import Mailbox
from embeddedpulsar.platform.peers import Peers
from embeddedpulsar.storage.journal import Journal
from embeddedpulsar.storage.topic_control import DELETED, TERMINATED
from embeddedpulsar.topic.producer_table import ProducerRequest, ProducerTable

JOURNAL_CHECKED: Final = TopicWord.JOURNAL + 1
"""Epoch of the ctl, plus 1, for which the journal word was found true; recovery of the ctl raises the
epoch."""
_LOOK_S: Final = 0.1
"""How long a producer in the queue sleeps before it looks for itself: only a death in mid-ring needs it."""


class ProducerRegistration(NamedTuple):
    """A producer's place in its topic.

    Attributes:
        name: given, or made by the topic.
        epoch: of the topic when an exclusive producer was granted it; 0 for a shared one.
        last_sequence_id: highest sequence id stored under this name, where deduplication keeps it; else -1.
        producer_id: unique for the life of the topic.
        generation: fork generation; a registration of the parent is not the child's to give back.
    """

    name: str
    epoch: int
    last_sequence_id: int = -1
    producer_id: int = 0
    generation: int = 0


class _Replica:
    """The table as the journal sees it."""

    def __init__(self) -> None:
        self.table = ProducerTable()

    def reset(self, snapshot: bytes | None) -> None:
        if snapshot is None:
            self.table = ProducerTable()
        else:
            self.table = ProducerTable.from_fields(decode_document(snapshot, KIND_TOPIC_SNAPSHOT))

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        self.table.apply(decode_command(kind, payload))

    def snapshot(self) -> bytes:
        return encode_document(KIND_TOPIC_SNAPSHOT, self.table.to_fields())


class Producers:
    """Registration of producers, decided under the topic's append lock.

    Role: one per process and topic. Whoever decides first probes the leases of everybody registered and
    journals the departure of the dead, so the name of a killed producer is free at once, and nobody has to
    clean up.
    Invariants: see `ProducerTable`. Durable: nothing is flushed, because no producer survives a power loss.
    Who may call: any thread, without the topic's lock.
    """

    def __init__(
        self,
        directory: str,
        words: memoryview,
        lock: FileLock,
        mailbox: Mailbox,
        peers: Peers,
        clock: Clock,
        *,
        most: int,
        lock_timeout_s: float,
    ) -> None:
        self._words = words
        self._lock = lock
        self._mailbox = mailbox
        self._peers = peers
        self._clock = clock
        self._most = most
        self._lock_timeout_s = lock_timeout_s
        self._replica = _Replica()
        self._journal = Journal(
            directory, words=words, word=TopicWord.JOURNAL, owner_kind=KIND_TOPIC, replica=self._replica
        )
        lock.on_rest = self._journal.rest
        self._checked = -1  # journal word at the last `check` that found its producer connected

    # -- joining and leaving -----------------------------------------------------------------------

    def attach(
        self,
        name: str,
        *,
        named: bool,
        access_mode: int = ProducerAccessMode.Shared,
        timeout_s: float | None = None,
    ) -> ProducerRegistration:
        """Register a producer; `WaitForExclusive` waits its turn.

        Raises:
            ProducerBusy: a living producer has the name, or the topic, or there are too many.
            ProducerFenced: exclusive access is not to be had, or was taken away while waiting.
            Timeout: not granted within ``timeout_s``.
            TopicTerminated: nothing can be appended any more.
        """
        request = ProducerRequest(self._mailbox.uuid, int(access_mode), named, name)
        commands: list[TopicCommand] = []
        try:
            self._admit(request, commands)
            own = commands[-1]
            if isinstance(own, EnqueueProducer):
                return self._wait_turn(own, timeout_s)
            return self._registration(own)
        except BaseException:
            # Whoever asked will never learn of his place (Ctrl-C, a time-out): it is given back, or his own
            # next attempt would find the name taken.
            if commands:
                self._leave(commands[-1].producer_id)
            raise

    def _admit(self, request: ProducerRequest, commands: list[TopicCommand]) -> None:
        to_ring: set[bytes] = set()
        try:
            self._lock.acquire(self._lock_timeout_s)
            if self._words[TopicWord.STATE] & DELETED:
                raise TopicNotFound("the topic was deleted")
            if self._words[TopicWord.STATE] & TERMINATED:
                raise TopicTerminated("nothing can be appended to the topic any more")
            to_ring |= self._catch_up()
            commands += self._replica.table.admit(request, self._most)
            to_ring |= self._append(commands)
        finally:
            self._lock.release()
            self._ring(to_ring)

    def _registration(self, own: TopicCommand) -> ProducerRegistration:
        if isinstance(own, DetachProducer):
            raise ProducerFenced("the registration was taken back")
        return ProducerRegistration(own.name, own.epoch, -1, own.producer_id, fork.GENERATION)

    def detach(self, registration: ProducerRegistration, timeout_s: float | None = None) -> None:
        """Take a producer out and let the next in the queue in. Nothing in a forked child of its owner."""
        if registration.generation == fork.GENERATION:
            self._leave(registration.producer_id, timeout_s)

    def _leave(self, producer_id: int, timeout_s: float | None = None) -> None:
        to_ring: set[bytes] = set()
        try:
            self._lock.acquire(self._lock_timeout_s if timeout_s is None else timeout_s)
            to_ring |= self._catch_up()
            to_ring |= self._append([DetachProducer(producer_id, REASON_CLOSED)])
            to_ring |= self._append(self._replica.table.promote())
        finally:
            self._lock.release()
            self._ring(to_ring)

    def _wait_turn(self, own: EnqueueProducer, timeout_s: float | None) -> ProducerRegistration:
        """Sleep until granted. Deaths of those ahead ring the doorbell, as does whoever leaves in order."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        watched: set[bytes] = set()
        try:
            while True:
                generation = self._mailbox.generation
                granted, ahead = self._look(own)
                if granted is not None:
                    return granted
                for uuid in ahead - watched:
                    watched.add(uuid)
                    self._mailbox.watch(uuid, _wake)
                left = _LOOK_S if deadline is None else min(deadline - self._clock.monotonic(), _LOOK_S)
                if left <= 0:
                    raise Timeout(f"producer {own.name!r} was not granted exclusive access in {timeout_s} s")
                self._mailbox.wait(generation, left)
        finally:
            for uuid in watched:
                self._mailbox.unwatch(uuid, _wake)

    def _look(self, own: EnqueueProducer) -> tuple[ProducerRegistration | None, set[bytes]]:
        to_ring: set[bytes] = set()
        try:
            self._lock.acquire(self._lock_timeout_s)
            to_ring |= self._catch_up()
            to_ring |= self._append(self._replica.table.promote())
            table = self._replica.table
            connected = table.connected.get(own.producer_id)
            if connected is None and own.producer_id not in table.waiting:
                raise ProducerFenced(f"producer {own.name!r} was fenced out while it waited")
            ahead = {one.client_uuid for one in table.everybody()}
        finally:
            self._lock.release()
            self._ring(to_ring)
        granted = None if connected is None else self._registration(connected)
        return granted, ahead - {self._mailbox.uuid}

    # -- being there -------------------------------------------------------------------------------

    def check(self, registration: ProducerRegistration) -> None:
        """Make sure that the producer was not fenced out. One read of a word when nothing happened.

        Raises:
            ProducerFenced: another producer has the topic now.
            AlreadyClosed: the registration was given back, or is the parent's.
        """
        if self._words[TopicWord.JOURNAL] == self._checked and registration.generation == fork.GENERATION:
            return
        if registration.generation != fork.GENERATION:
            raise AlreadyClosed(f"producer {registration.name!r} belongs to the parent of this process")
        try:
            self._lock.acquire(self._lock_timeout_s)
            self._follow()
            table = self._replica.table
            is_connected = registration.producer_id in table.connected
            is_fenced = registration.producer_id in table.fenced
            # Only all is well for everybody here: another producer of this process may have been fenced.
            all_well = not any(uuid == self._mailbox.uuid for uuid in table.fenced.values())
            self._checked = self._words[TopicWord.JOURNAL] if is_connected and all_well else -1
        finally:
            self._lock.release()
        if is_fenced:
            raise ProducerFenced(f"producer {registration.name!r} was fenced out by another")
        if not is_connected:
            raise AlreadyClosed(f"producer {registration.name!r} is not registered any more")

    def names(self) -> list[str]:
        """Names of the connected producers whose process lives, in order of arrival."""
        return [name for name, _ in self.connected()]

    def connected(self) -> list[tuple[str, bytes]]:
        """(name, lease) of the connected producers whose process lives, in order of arrival."""
        try:
            self._lock.acquire(self._lock_timeout_s)
            to_ring = self._catch_up()
            found = [(one.name, one.client_uuid) for one in self._replica.table.connected.values()]
        finally:
            self._lock.release()
        self._ring(to_ring)
        return found

    # -- the journal (all under the topic lock) ----------------------------------------------------

    def _follow(self) -> None:
        """Catch up with the journal, after looking whether its word may be believed in this boot."""
        words = self._words
        wanted = words[TopicWord.EPOCH] + 1
        if words[JOURNAL_CHECKED] != wanted:
            self._journal.recover(self._clock.wall_ms())
            words[JOURNAL_CHECKED] = wanted
        self._journal.catch_up()

    def _catch_up(self) -> set[bytes]:
        """Follow the journal and take out the dead; returns whom to ring."""
        self._follow()
        dead = {uuid for uuid in self._replica.table.clients() if not self._is_alive(uuid)}
        return self._append(self._replica.table.departures(dead, REASON_DEAD)) if dead else set()

    def _is_alive(self, uuid: bytes) -> bool:
        try:
            return self._peers.is_alive(uuid)
        except OSError:
            return True  # no answer (no descriptors left, no permission): nobody is declared dead on that

    def _append(self, commands: list[TopicCommand]) -> set[bytes]:
        """Commit commands; returns the clients who wait and should look."""
        if not commands:
            return set()
        records = [encode_command(command) for command in commands]
        if self._journal.exists:
            self._journal.append(records, self._clock.wall_ms())
        else:
            self._journal.create(records, self._clock.wall_ms())
        table = self._replica.table
        concerned = {one.client_uuid for one in table.waiting.values()} | set(table.fenced.values())
        return concerned | {one.client_uuid for one in table.connected.values() if one.epoch}

    def _ring(self, uuids: set[bytes]) -> None:
        for uuid in uuids:
            self._peers.ring(uuid)

    def take_damage(self) -> list[StorageError]:
        """What of the journal could not be read since the last call; for the log, outside all locks."""
        found, self._journal.damage = self._journal.damage, []
        return found

    def close(self) -> None:
        """Give the journal's descriptor back. Idempotent."""
        self._journal.close()


def _wake(_: bytes) -> None:
    """A death concerns the waiting producer: the ring that comes with it is all it needs."""
