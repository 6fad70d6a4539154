"""The journal of a topic as its processes share it: producers, and what they stored.

The producers of a topic: a pure state machine over the commands of the topic's journal.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from embeddedpulsar._engine.filenames import OUTBOX
from embeddedpulsar._engine.format.control import KIND_TOPIC, TopicWord
from embeddedpulsar._engine.format.document import KIND_TOPIC_SNAPSHOT, decode_document, encode_document
from embeddedpulsar._engine.format.journal_record import (
    REASON_DEAD,
    REASON_FENCED,
    RECORDS,
    AttachProducer,
    DetachProducer,
    EnqueueProducer,
    ForgetProducer,
    ProducerCommand,
    RememberProducer,
    SetDeduplication,
    Terminate,
    TopicCommand,
    decode_command,
    encode_command,
)
from embeddedpulsar._engine.log.journal import Journal
from embeddedpulsar._engine.log.journal_file import JournalPlace
from embeddedpulsar._engine.log.topic_control import ATTENTION, TERMINATED
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import Clock
from embeddedpulsar.damage import DamageHook
from embeddedpulsar.enums import ProducerAccessMode
from embeddedpulsar.exceptions import CorruptionError, ProducerBusy, ProducerFenced, TopicNotFound
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing import Any, Final


class Remembered(NamedTuple):
    """What is known of one name.

    Attributes:
        highest: sequence id stored under it, as far as accounted for; -1 for none.
        word: a tail word: what of this name lies before it is accounted for.
        final: whether nothing of this name lies behind it, unless a producer took the name since.
        since_ms: when this was last heard of, in ms since the epoch.
    """

    highest: int
    word: int
    final: bool
    since_ms: int


def is_kept(name: str) -> bool:
    """Whether a name is never forgotten: that of an outbox, whose rows may wait for longer than any time that
    is set, and have to be found published when its relay comes back.

    Example:
        >>> is_kept("outbox.4f0a"), is_kept("till-1")
        (True, False)
    """
    return name.startswith(OUTBOX)


class SequenceTable:
    """The memory of deduplication.

    Role: replayed by `ProducerTable`, which it is a part of. It knows enough to find the rest in the log:
    a producer that takes a name reads what lies behind `Remembered.word`.
    Invariants: while it is on, every name in use is in `names`, since before its first append; what is
    known of a name never shrinks, but is forgotten as a whole. `base` covers all names: one that is not in
    the table has no entry before it, or was forgotten. After a reboot it counts as off, until a process has
    read what the log holds behind `base`: a power loss may have taken the end of the journal.
    """

    def __init__(self) -> None:
        self.was_on = False
        self.boot = b""
        self.base = 0
        self.names: dict[str, Remembered] = {}

    def switch(self, command: SetDeduplication, time_ms: int) -> None:
        """Follow the command that switches deduplication."""
        self.was_on, self.boot = command.on, command.boot
        self.base = max(self.base, command.base)

    def forget_name(self, command: ForgetProducer, time_ms: int) -> None:
        """Follow the command that forgets a name."""
        self.names.pop(command.name, None)

    def remember(self, command: RememberProducer, time_ms: int) -> None:
        """Follow the command that says what is stored under a name."""
        highest, word = command.highest, command.word
        known = self.names.get(command.name)
        if known is not None:
            # What is known of a name never shrinks: an older command may be replayed behind a newer one.
            highest, word = max(highest, known.highest), max(word, known.word)
        self.names[command.name] = Remembered(highest, word, command.final, time_ms)

    def is_on(self, boot: bytes) -> bool:
        """Whether duplicates are dropped, and the names are complete."""
        return self.was_on and self.boot == boot

    def note_left(self, name: str, time_ms: int) -> None:
        """Note when the producer left that had the name."""
        known = self.names.get(name)
        if known is not None:
            self.names[name] = known._replace(since_ms=time_ms)

    def surplus(self, in_use: Container[str], most: int, before_ms: int) -> list[ForgetProducer]:
        """The commands that forget names unused since ``before_ms``, and the oldest beyond ``most``.

        Args:
            in_use: names that are not forgotten.
            most: how many names may be remembered.
            before_ms: ms since the epoch.
        """
        idle = [
            (known.since_ms, name)
            for name, known in self.names.items()
            if name not in in_use and not is_kept(name)
        ]
        # Two limits: names unused for too long, and of the others the oldest that are too many.
        forgotten = [name for since_ms, name in idle if since_ms < before_ms]
        too_many = len(self.names) - len(forgotten) - most
        if too_many > 0:
            kept = sorted((since_ms, name) for since_ms, name in idle if since_ms >= before_ms)
            forgotten += [name for _, name in kept[:too_many]]
        return [ForgetProducer(name) for name in forgotten]

    # -- snapshots ---------------------------------------------------------------------------------

    def to_fields(self) -> dict[str, Any]:
        """The state as part of a document."""
        return {
            "on": self.was_on,
            "boot": self.boot,
            "base": self.base,
            "names": [[name, *known] for name, known in self.names.items()],
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> SequenceTable:
        """The state of a part of a document.

        Raises:
            KeyError, TypeError, ValueError: it is malformed.
        """
        table = cls()
        table.was_on, table.base = bool(fields["on"]), int(fields["base"])
        table.boot = bytes(fields["boot"])
        for name, highest, word, final, since_ms in fields["names"]:
            table.names[str(name)] = Remembered(int(highest), int(word), bool(final), int(since_ms))
        return table


_SHARED: Final = ProducerAccessMode.Shared
_EXCLUSIVE: Final = ProducerAccessMode.Exclusive
_WAIT: Final = ProducerAccessMode.WaitForExclusive
_FENCING: Final = ProducerAccessMode.ExclusiveWithFencing


class ProducerRequest(NamedTuple):
    """What a producer that attaches asks for."""

    client_uuid: bytes
    access_mode: int
    named: bool
    name: str


class ProducerTable:
    """Connected and waiting producers, the topic's epoch, and the sequence ids stored by name.

    Role: `apply` follows the journal; `admit` and `promote` say which commands a request leads to, without
    changing anything. The same commands in the same order give the same state everywhere: it reads no
    clock and no file and probes no process. The caller first journals the detachment of dead producers.
    Invariants: at most one connected producer that is not shared, and then no other; ids and the epoch only
    rise.
    """

    def __init__(self) -> None:
        self.connected: dict[int, AttachProducer] = {}
        self.waiting: dict[int, EnqueueProducer] = {}
        self.fenced: dict[int, bytes] = {}
        """Producers that were fenced out, and their clients, until those have seen it."""
        self.next_id = 1
        self.epoch = 0
        self.sequences = SequenceTable()
        self.terminated: Terminate | None = None
        """Where the topic ends, once it was terminated."""

    # -- following the journal ---------------------------------------------------------------------

    def apply(self, command: TopicCommand, time_ms: int = 0) -> None:
        """Follow one command, which was decided at ``time_ms``."""
        RECORDS.handlers[type(command)](self, command, time_ms)

    def _attach(self, command: AttachProducer, time_ms: int) -> None:
        self._note_grant(command)
        self.waiting.pop(command.producer_id, None)
        self.connected[command.producer_id] = command

    def _enqueue(self, command: EnqueueProducer, time_ms: int) -> None:
        self._note_grant(command)
        self.waiting[command.producer_id] = command

    def _note_grant(self, command: ProducerCommand) -> None:
        # Numbers and epochs rise whatever the order in which producers go.
        self.next_id = max(self.next_id, command.producer_id + 1)
        self.epoch = max(self.epoch, command.epoch)

    def _detach(self, command: DetachProducer, time_ms: int) -> None:
        number = command.producer_id
        gone = self.connected.pop(number, None) or self.waiting.pop(number, None)
        if gone is not None and gone.name in self.sequences.names:
            self.sequences.note_left(gone.name, time_ms)
        # A producer that was fenced is kept until its client has seen it: it would take itself for connected
        # otherwise.
        if gone is not None and command.reason == REASON_FENCED:
            self.fenced[number] = gone.client_uuid
        else:
            self.fenced.pop(number, None)

    def _terminate(self, command: Terminate, time_ms: int) -> None:
        # The first end counts; a topic is terminated once.
        self.terminated = self.terminated or command

    def everybody(self) -> list[ProducerCommand]:
        """The connected, then those who wait, each in order of arrival."""
        producers: list[ProducerCommand] = list(self.connected.values())
        producers += self.waiting.values()
        return producers

    def connected_names(self) -> set[str]:
        """The names that are in use."""
        return {producer.name for producer in self.everybody()}

    def clients(self) -> set[bytes]:
        """The leases of all producers in the table: those to probe."""
        uuids = set(self.fenced.values())
        for producers in (self.connected, self.waiting):
            for producer in producers.values():
                uuids.add(producer.client_uuid)
        return uuids

    def detach_commands(self, dead: set[bytes], reason: int) -> list[TopicCommand]:
        """The commands that detach all producers of the clients ``dead``."""
        gone = [producer.producer_id for producer in self.everybody() if producer.client_uuid in dead]
        # A dead client need not see that it was fenced.
        gone += [number for number, uuid in self.fenced.items() if uuid in dead]
        return [DetachProducer(number, reason) for number in gone]

    # -- deciding ----------------------------------------------------------------------------------

    def admit(self, request: ProducerRequest, most: int = 0) -> list[TopicCommand]:
        """The commands that attach a producer, or put it in the queue; the last one is its own.

        Args:
            request: what it asks for.
            most: how many producers may be connected; 0 for any number.

        Raises:
            ProducerBusy: its name is taken, the topic is exclusively another's, or full.
            ProducerFenced: it wants the topic for itself, at once, and is not alone.
        """
        # Four modes, and a topic that is free, shared, or held. First the cases that are refused.
        mode = request.access_mode
        # Exclusive waits for nothing: the topic must be without any producer.
        if mode == _EXCLUSIVE and (self.connected or self.waiting):
            raise ProducerFenced(
                f"the topic is in use by {self._holder(request)}; close it, wait for it with "
                "ProducerAccessMode.WaitForExclusive, or replace it with ExclusiveWithFencing"
            )
        self._check_name(request)
        # At most one of these, by the invariant of the table.
        held = [producer for producer in self.connected.values() if producer.access_mode != _SHARED]
        if mode == _SHARED:
            # A shared producer may not pass those that wait for the topic alone, or they would wait for ever.
            if held or self.waiting:
                raise ProducerBusy(
                    f"the topic is exclusively held by, or promised to, {self._holder(request)}; close it, "
                    "or wait for its end with ProducerAccessMode.WaitForExclusive"
                )
            if most and len(self.connected) >= most:
                raise ProducerBusy(f"the topic has {most} producers, as many as maxProducersPerTopic allows")
            return [AttachProducer(self.next_id, 0, *request)]
        # Free: any exclusive mode gets it, with the next epoch.
        if not self.connected and not self.waiting:
            return [self._grant(self.next_id, request)]
        # Waits in the queue; it is promoted when the last of those before it goes.
        if mode == _WAIT:
            return [EnqueueProducer(self.next_id, 0, *request)]
        # Fencing: all that are connected or wait are detached first, so that the new one is alone from its
        # first entry on. Their next append finds the higher epoch.
        out: list[TopicCommand] = [
            DetachProducer(number, REASON_FENCED) for number in (*self.connected, *self.waiting)
        ]
        return [*out, self._grant(self.next_id, request)]

    def promote(self) -> list[TopicCommand]:
        """The command that grants the topic to the first in the queue, if it is free."""
        # Only when the topic is free: a shared producer that is still there keeps it.
        if self.connected or not self.waiting:
            return []
        # In the order of arrival.
        first = next(iter(self.waiting.values()))
        return [self._grant(first.producer_id, ProducerRequest(*first[2:]))]

    def _grant(self, producer_id: int, request: ProducerRequest) -> AttachProducer:
        # A higher epoch with each grant, so that an append of a holder before is recognized.
        return AttachProducer(producer_id, self.epoch + 1, *request)

    def _check_name(self, request: ProducerRequest) -> None:
        if request.access_mode == _FENCING:
            return  # it replaces the producer that has the name
        for producer in self.everybody():
            if producer.name == request.name:
                where = " by this very process" if producer.client_uuid == request.client_uuid else ""
                raise ProducerBusy(
                    f"a producer named {request.name!r} is connected{where}; close it, or give another name"
                )

    def _holder(self, request: ProducerRequest) -> str:
        """The producers that are there, for the text of an error; which are of the process that asks."""
        everybody = self.everybody()
        names = ", ".join(
            repr(producer.name)
            + (" of this very process" if producer.client_uuid == request.client_uuid else "")
            for producer in everybody[:3]
        )
        return names + (f" and {len(everybody) - 3} more" if len(everybody) > 3 else "")

    # -- snapshots ---------------------------------------------------------------------------------

    def to_fields(self) -> dict[str, Any]:
        """The state as a document."""
        return {
            "connected": [list(producer) for producer in self.connected.values()],
            "waiting": [list(producer) for producer in self.waiting.values()],
            "fenced": [[number, uuid] for number, uuid in self.fenced.items()],
            "next_id": self.next_id,
            "epoch": self.epoch,
            "sequences": self.sequences.to_fields(),
            "terminated": None if self.terminated is None else list(self.terminated),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> ProducerTable:
        """The state of a document.

        Raises:
            CorruptionError: it is malformed.
        """
        table = cls()
        try:
            for row in fields["connected"]:
                attached = AttachProducer(*row)
                table.connected[attached.producer_id] = attached
            for row in fields["waiting"]:
                waiting = EnqueueProducer(*row)
                table.waiting[waiting.producer_id] = waiting
            table.fenced = {int(number): bytes(uuid) for number, uuid in fields["fenced"]}
            table.next_id, table.epoch = int(fields["next_id"]), int(fields["epoch"])
            table.sequences = SequenceTable.from_fields(fields["sequences"])
            if fields.get("terminated") is not None:  # not in stores of the first releases
                table.terminated = Terminate(*map(int, fields["terminated"]))
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptionError(reason=f"the snapshot of a topic's producers is incomplete: {e!r}") from e
        return table


RECORDS.handlers.update(
    {
        AttachProducer: ProducerTable._attach,
        EnqueueProducer: ProducerTable._enqueue,
        DetachProducer: ProducerTable._detach,
        Terminate: ProducerTable._terminate,
        RememberProducer: lambda table, *command: table.sequences.remember(*command),
        ForgetProducer: lambda table, *command: table.sequences.forget_name(*command),
        SetDeduplication: lambda table, *command: table.sequences.switch(*command),
    }
)


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
        own: bytes,
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
        self._own: Final = {own}
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
        # Collected under the lock, rung after it: a process that wakes up takes the lock at once.
        to_ring: set[bytes] = set()

        def commit(commands: Sequence[TopicCommand]) -> None:
            to_ring.update(self._append(commands))

        try:
            self.lock.acquire(self.lock_timeout_s if timeout_s is None else timeout_s)
            # Looked at under the lock: deletion sets the bit under it.
            if self.words[TopicWord.STATE] & refused:
                raise TopicNotFound("the topic was deleted")
            # First what others have decided, then the dead, then the caller: it decides on the table as it is
            # now.
            self.catch_up()
            dead = self._dead()
            if dead:
                commit(self.replica.table.detach_commands(dead, REASON_DEAD))
            return work(commit)
        finally:
            # Released before ringing and reporting, which take system calls and code of the application.
            self.lock.release()
            for uuid in to_ring:
                self.peers.ring(uuid)
            while self.journal.damage:
                self._report(self.journal.damage.pop(0)._replace(remedy=_REMEDY))

    def catch_up(self) -> None:
        """Catch up with the journal, after looking whether its word may be believed in this boot.

        Under the topic lock.
        """
        words = self.words
        # After a reboot the word of the journal is one of before; recovery finds the end by the records.
        wanted = words[TopicWord.EPOCH] + 1
        if words[JOURNAL_CHECKED] != wanted:
            self.journal.recover(self._clock.wall_ms())
            # Noted after the recovery: a kill during it leaves it to the next process.
            words[JOURNAL_CHECKED] = wanted
        self.journal.catch_up()
        # A terminated topic stays so in every process: the word alone does not survive a reboot.
        if self.replica.table.terminated is not None:
            self.enforce_end()

    def enforce_end(self) -> None:
        """Have all processes refuse appends, as the table says: the word that they look at is lost with a
        reboot, or when the process that terminated the topic was killed. Under the topic lock."""
        # Written only if it is not set, since this is called in every section.
        if not self.words[TopicWord.STATE] & TERMINATED:
            self.words[TopicWord.STATE] |= TERMINATED
            self.words[TopicWord.OWNER] = ATTENTION

    def _dead(self) -> set[bytes]:
        """The clients in the table that do not live any more."""
        dead = set()
        # This process lives, and most topics have no producers of others.
        for uuid in self.replica.table.clients() - self._own:
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
        records = list(map(encode_command, commands))
        # Most topics never have a journal: it is made with the first command.
        if self.journal.exists:
            self.journal.append(records, self._clock.wall_ms())
        else:
            self.journal.create(records, self._clock.wall_ms())
        # Who may act now: the fenced, who must see it; those who wait, who may be promoted; and exclusive
        # holders, who may have lost the topic.
        table = self.replica.table
        concerned = set(table.fenced.values())
        for waiting in table.waiting.values():
            concerned.add(waiting.client_uuid)
        for producer in table.connected.values():
            if producer.epoch:
                concerned.add(producer.client_uuid)
        return concerned

    def sync(self) -> None:
        """Make everything committed so far survive a power loss. Without the lock.

        Raises:
            OSError: the flush failed; what the disk has is unknown.
        """
        # The journal first, then the name of its file: without the name after a power loss, the content is
        # lost.
        self.journal.sync()
        if not self._is_named:
            disk.DISK.fsync_dir(self._directory)
            self._is_named = True

    def close(self) -> None:
        """Give the journal's descriptor back. Idempotent."""
        self.journal.close()
