"""The producers of a topic: registered in the topic's journal, alive as long as their lease.

Deduplication: which sequence ids are stored by which name, found in the log and kept in the journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.journal_record import (
    REASON_CLOSED,
    AttachProducer,
    DetachProducer,
    EnqueueProducer,
    ForgetProducer,
    RememberProducer,
    SetDeduplication,
    Terminate,
    TopicCommand,
)
from embeddedpulsar._engine.log.topic_control import DELETED, TERMINATED
from embeddedpulsar._engine.platform import failpoints, fork, threads, timing
from embeddedpulsar._engine.platform.lease import Holder
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.timing import (
    FIRST_PAUSE_S,
    SYSTEM_CLOCK,
    BackgroundWork,
    Clock,
    SchedulerLike,
)
from embeddedpulsar._engine.store.topic_journal import (
    Commit,
    ProducerRequest,
    ProducerTable,
    Remembered,
    TopicJournal,
    is_kept,
)
from embeddedpulsar.enums import ProducerAccessMode
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    LockTimeout,
    ProducerBusy,
    ProducerFenced,
    PulsarException,
    StoreGoneError,
    Timeout,
    TopicTerminated,
)
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log

_MOST_PASSES: Final = 8
_SMALL_REST: Final = 1 << 20
"""Bytes of log that may be read under the topic lock."""

failpoints.declare("dedup:scanned", "dedup:remembered", "dedup:switched", "dedup:saved_before_trim")


class _Plan(NamedTuple):
    """What has to be read before deduplication can be switched on."""

    noted_base: int
    base: int
    tail: int
    lost: frozenset[str]
    pending: frozenset[str]
    lowest: int


class SequenceMemory:
    """Deduplication, as far as it concerns more than one producer.

    Role: one per process and topic. A name belongs to one producer at a time, which knows without a look at
    the journal what it stored last; so the journal has to say it only where a name changes hands. It says it
    when a producer leaves and now and then before; a producer that takes the name of a dead one reads the log
    behind that.
    Callers: any thread, without the topic's lock, except `beginnings`, `ending` and `is_on`, which are
    for within a section. The log is read outside the lock.
    """

    def __init__(
        self,
        journal: TopicJournal,
        log: Log,
        settings: BrokerSettings,
        boot: bytes,
        on_progress: Callable[[int], object] | None = None,
    ) -> None:
        self._boot: Final = boot
        self._journal: Final = journal
        self._log: Final = log
        self._on_progress: Final = on_progress
        self._max_names: Final = settings.brokerDeduplicationMaxNumberOfProducers
        self._forget_after_ms: Final = settings.brokerDeduplicationProducerInactivityTimeoutMinutes * 60_000

    @property
    def is_on(self) -> bool:
        """Whether the topic drops duplicates."""
        return self._journal.replica.table.sequences.is_on(self._boot)

    def known(self, name: str) -> int:
        """The highest sequence id known of a name; -1 for none."""
        known = self._journal.table.sequences.names.get(name)
        return -1 if known is None else known.highest

    # -- a name changes hands ----------------------------------------------------------------------

    def beginnings(self, commands: Iterable[TopicCommand]) -> list[TopicCommand]:
        """The commands to be committed with those that connect producers."""
        if not self.is_on:
            return []
        beginnings: list[TopicCommand] = []
        names = self._journal.table.sequences.names
        before_ms = self._journal.now_ms - self._forget_after_ms
        for command in commands:
            if not isinstance(command, AttachProducer):
                continue
            known = names.get(command.name)
            is_old = known is not None and known.since_ms < before_ms and not is_kept(command.name)
            if is_old and not self._is_in_use(command.name):
                beginnings.append(ForgetProducer(command.name))
                known = None
            if known is None or known.final:
                highest = -1 if known is None else known.highest
                beginnings.append(RememberProducer(highest, self._journal.tail, False, command.name))
        return beginnings

    def _is_in_use(self, name: str) -> bool:
        return name in self._journal.table.connected_names()

    def ending(self, name: str, highest: int | None) -> list[TopicCommand]:
        """The commands to be committed before the one that disconnects a producer in good order.

        Args:
            name: the producer's name.
            highest: the last sequence id it stored; None if that is unknown.
        """
        if highest is None or not self.is_on:
            return []
        return [RememberProducer(highest, self._journal.tail, True, name)]

    def account_for(self, name: str) -> int | None:
        """The highest sequence id stored under a name the caller holds and has not used; None if not needed.

        Reads the log from where the name was last accounted for, if its last producer died.
        """
        journal = self._journal

        def read_known(_: Commit) -> tuple[Remembered | None, int]:
            return (journal.table.sequences.names.get(name) if self.is_on else None), journal.tail

        known, tail = journal.section(read_known)
        if known is None:
            return None
        if known.word == tail:
            return known.highest
        scanned = self._scan(tail, known.word, [name]).get(name, -1)
        if failpoints.ACTIVE:
            failpoints.hit("dedup:scanned")

        def remember(commit: Commit) -> int:
            commit([RememberProducer(max(scanned, known.highest), tail, False, name)])
            # Not only what was found: the process that trimmed the log meanwhile noted what was there.
            return self.known(name)

        highest = journal.section(remember)
        if failpoints.ACTIVE:
            failpoints.hit("dedup:remembered")
        return highest

    def highest_now(self, name: str) -> int:
        """The highest sequence id known of a name, with what others noted; -1 for none."""
        return self._journal.section(lambda _: self.known(name))

    def remember(self, name: str, highest: int, *, durable: bool) -> None:
        """Note how far a connected producer has come, and that all names are known up to here.

        Args:
            name: the producer's name.
            highest: the last sequence id it stored. The producer must not append meanwhile.
            durable: whether that survives a power loss when this returns.
        """
        journal = self._journal

        def record(commit: Commit) -> None:
            if not self.is_on or not self._is_in_use(name):
                return
            tail, table = journal.tail, journal.table
            before_ms = journal.now_ms - self._forget_after_ms
            forgotten = table.sequences.surplus(table.connected_names(), self._max_names, before_ms)
            commit(
                [
                    *forgotten,
                    RememberProducer(highest, tail, False, name),
                    SetDeduplication(tail, self._boot, True),
                ]
            )

        journal.section(record)
        if failpoints.ACTIVE:
            failpoints.hit("dedup:remembered")
        if durable:
            journal.sync()

    # -- on and off --------------------------------------------------------------------------------

    def switch(self, is_on: bool) -> None:
        """Let the topic drop duplicates from now on, or no longer. Does nothing if it is so already.

        Switched on, it knows what the log holds: that is read, behind where the names were last complete.
        """
        journal = self._journal
        if not is_on:

            def switch_off(commit: Commit) -> None:
                if self.is_on:
                    commit([SetDeduplication(journal.tail, self._boot, False)])

            journal.section(switch_off)
            return
        while (plan := journal.section(self._plan)) is not None:
            if journal.section(self._switching_on(plan, self._read(plan))):
                if failpoints.ACTIVE:
                    failpoints.hit("dedup:switched")
                return

    def _plan(self, _: Commit) -> _Plan | None:
        if self.is_on:
            return None
        sequences, tail = self._journal.table.sequences, self._journal.tail
        lost = frozenset(name for name, known in sequences.names.items() if not self._log.reaches(known.word))
        pending = {
            name: known.word
            for name, known in sequences.names.items()
            if not known.final and known.word < sequences.base and name not in lost
        }
        base = sequences.base if self._log.reaches(sequences.base) else 0
        return _Plan(sequences.base, base, tail, lost, frozenset(pending), min(pending.values(), default=0))

    def _read(self, plan: _Plan) -> dict[str, int]:
        """The highest ids up to `_Plan.tail`, of all names that need it. Without the lock."""
        highest = self._scan(plan.tail, plan.base, None)
        for names, end, floor in (
            (plan.pending, plan.base, plan.lowest),
            (plan.lost, plan.base, 0),
        ):
            if names:
                _merge(highest, self._scan(end, floor, names))
        # What others append meanwhile, until little is left to read under the lock.
        behind = plan.tail
        for _ in range(_MOST_PASSES):
            tail = self._log.tail
            if tail - behind < _SMALL_REST >> 3:
                break
            _merge(highest, self._scan(tail, behind, None))
            behind = tail
        return highest

    def _scan(self, end: int, floor: int, names: Iterable[str] | None) -> dict[str, int]:
        return self._log.sequence_ids(names, end, floor, self._on_progress)

    def _switching_on(self, plan: _Plan, highest: dict[str, int]) -> Callable[[Commit], bool]:
        return lambda commit: self._switch_on(commit, plan, highest)

    def _switch_on(self, commit: Commit, plan: _Plan, highest: dict[str, int]) -> bool:
        if self.is_on:
            return True
        journal = self._journal
        table, tail = journal.table, journal.tail
        if table.sequences.base != plan.noted_base:
            return False  # switched on and off by others meanwhile
        latest = self._scan(tail, plan.tail, None)
        _merge(latest, highest)
        in_use = table.connected_names()
        names = dict.fromkeys([*sorted(in_use), *sorted(plan.pending), *latest])
        commit(
            [
                *(ForgetProducer(name) for name in sorted(plan.lost)),
                *(
                    RememberProducer(latest.get(name, -1), tail, name not in in_use, name)
                    for name in list(names)[: max(self._max_names, len(in_use))]
                ),
                SetDeduplication(tail, self._boot, True),
            ]
        )
        return True

    # -- trimming ----------------------------------------------------------------------------------

    def save_before_trim(self, ledger_id: int, lock_timeout_s: float | None = None) -> int:
        """Account for all names that need ledgers before ``ledger_id``, durably.

        Returns:
            Up to which ledger may be trimmed: what is needed of the others is not accounted for.
        """
        journal = self._journal

        def read_needed(_: Commit) -> tuple[dict[str, Remembered], int]:
            names = journal.table.sequences.names if self.is_on else {}
            needed = {
                name: known
                for name, known in names.items()
                if known.word >> 32 < ledger_id and (not known.final or self._is_in_use(name))
            }
            return needed, journal.tail

        needed, tail = journal.section(read_needed, lock_timeout_s)
        if not needed:
            return ledger_id
        highest = self._scan(tail, min(known.word for known in needed.values()), needed)

        def save(commit: Commit) -> None:
            if not self.is_on:
                return
            names, in_use = journal.table.sequences.names, journal.table.connected_names()
            # Producers that were there meanwhile may have left more behind than was read here.
            commit(
                [
                    RememberProducer(
                        highest.get(name, -1), tail, names[name] == known and name not in in_use, name
                    )
                    for name, known in needed.items()
                    if name in names
                ]
            )

        journal.section(save, lock_timeout_s)
        if failpoints.ACTIVE:
            failpoints.hit("dedup:saved_before_trim")
        journal.sync()
        return min(ledger_id, tail >> 32)


def _merge(into: dict[str, int], more: dict[str, int]) -> None:
    for name, highest in more.items():
        if highest > into.get(name, -1):
            into[name] = highest


failpoints.declare("termination:recorded")

T = TypeVar("T")
Applicant = AttachProducer | EnqueueProducer

_LOOK_S: Final = 0.1
"""How long a producer in the queue sleeps before it looks for itself: whether it is still wanted, and for a
death in mid-ring."""
_DETACH_TIMEOUT_S: Final = 1.0
"""How long a producer that closes waits for the topic's lock; later attempts are made for it."""
_GONE: Final = (StoreGoneError, FileNotFoundError)
"""There is nothing to leave: the store was removed, or the topic, whose journal had to be recovered first."""


class ProducerRegistration(NamedTuple):
    """A producer's place in its topic.

    Attributes:
        name: given, or made by the topic.
        epoch: of the topic when an exclusive producer was granted it; 0 for a shared one.
        last_sequence_id: highest sequence id stored under this name, where deduplication keeps it; else -1.
        producer_id: unique for the life of the topic.
        generation: fork generation; a registration of the parent is not the child's to give back.
        deduplicates: whether the topic drops duplicates.
    """

    name: str
    epoch: int
    last_sequence_id: int = -1
    producer_id: int = 0
    generation: int = 0
    deduplicates: bool = False


class Producers:
    """Registration of producers, decided under the topic's append lock.

    Role: one per process and topic. A process that decides first probes the leases of all producers and
    journals the detachment of the dead, so the name of a killed producer is free at once, without a clean-up.
    A producer that leaves while a stopped process holds the lock is taken out later.
    Invariants: see `ProducerTable`. Durable: nothing is flushed, because no producer survives a power loss.
    Callers: any thread, without the topic's lock.
    """

    def __init__(
        self,
        journal: TopicJournal,
        memory: SequenceMemory,
        mailbox: Mailbox,
        clock: Clock,
        scheduler: SchedulerLike,
        *,
        max_producers: Callable[[], Sequence[int]],
    ) -> None:
        self.memory: Final = memory
        self._shared: Final = journal
        self.journal: Final = journal.journal
        self._words: Final = journal.words
        self._mailbox = mailbox
        self._max_producers = max_producers
        self._checked = -1  # journal word at the last `check` that found its producer connected
        self._leaving: dict[int, int | None] = {}
        """Producers that left while another process held the lock, and the last sequence ids they stored."""
        self._rejoined: dict[int, int] = {}
        """The ids of shared producers that were fenced out and came back, by those of their registrations."""
        self._threads: Final[dict[int, str]] = {}
        """The threads that attached producers of this process, by the ids of the producers."""
        self._is_closed = False
        self._detaching: Final = BackgroundWork(scheduler.call_later, self._take_out_left)

    # -- joining and leaving -----------------------------------------------------------------------

    def attach(
        self,
        name: str,
        *,
        named: bool,
        access_mode: int = ProducerAccessMode.Shared,
        deduplicate: bool = False,
        max_producers: int = 0,
        timeout_s: float | None = None,
        check_wanted: Callable[[], object] = int,
        keep: Callable[[ProducerRegistration], object] = id,
    ) -> ProducerRegistration:
        """Register a producer; `WaitForExclusive` waits its turn.

        Args:
            deduplicate: whether the topic is to drop duplicates; it is switched if it is otherwise.
            max_producers: how many producers may be connected; 0 for any number.
            check_wanted: called now and then while it waits; what it raises ends that.
            keep: called with the registration as the last step. A caller that is interrupted before the call
                returns detaches what was kept.

        Raises:
            ProducerBusy: a living producer has the name, or the topic, or there are too many.
            ProducerFenced: exclusive access is not to be had, or was taken away while waiting.
            Timeout: not granted within ``timeout_s``.
            TopicTerminated: nothing can be appended any more.
        """
        request = ProducerRequest(self._mailbox.uuid, int(access_mode), named, name)
        given: list[Applicant] = []
        try:
            while not self._admit(request, deduplicate, max_producers, given):
                self.memory.switch(deduplicate)
            own = given[-1]
            if isinstance(own, EnqueueProducer):  # for days, perhaps
                own = timing.unbounded(self._wait_turn, own, timeout_s, check_wanted)
                highest = timing.unbounded(self.memory.account_for, name)
            else:
                # Another process may switch it on in between: the first append finds the journal changed.
                highest = self.memory.account_for(name) if deduplicate else None
            last = -1 if highest is None else highest
            registration = ProducerRegistration(
                own.name, own.epoch, last, own.producer_id, fork.GENERATION, highest is not None
            )
            self._threads[own.producer_id] = threads.current_name()
            keep(registration)
            return registration
        except BaseException as error:
            # The caller never gets its registration (Ctrl-C, a time-out): it is given back, or the caller's
            # next attempt would find the name taken.
            if given:
                self._detach(given[-1].producer_id, None)
            elif isinstance(error, (ProducerBusy, ProducerFenced)):
                self._name_holders(error, name)
            raise

    def _name_holders(self, error: ProducerBusy | ProducerFenced, name: str) -> None:
        """Add to the error where the producer of that name is, or those that are attached: outside of the
        lock, because the system is asked."""
        with contextlib.suppress(PulsarException, OSError):  # the error itself is what matters
            everybody = self._section(lambda _: self._table.everybody())
            holders = [
                Holder(producer.name, producer.client_uuid, self._threads.get(producer.producer_id, ""))
                for producer in [producer for producer in everybody if producer.name == name] or everybody
            ]
            if holders:
                error.args = (f"{error.args[0]}; attached: {self._shared.peers.described(holders)}",)

    def _admit(
        self, request: ProducerRequest, deduplicate: bool, max_producers: int, given: list[Applicant]
    ) -> bool:
        """Let the producer in or into the queue; False if deduplication has to be switched before."""

        def admit(commit: Commit) -> bool:
            self._check_not_terminated()
            if self.memory.is_on != deduplicate:
                return False
            commands = self._shared.replica.table.admit(request, max_producers)
            own = commands[-1]
            if isinstance(own, (AttachProducer, EnqueueProducer)):
                given.append(own)
            commit([*commands, *self.memory.beginnings(commands)] if deduplicate else commands)
            return True

        return self._section(admit, refused=DELETED)

    def _check_not_terminated(self) -> None:
        if self._words[TopicWord.STATE] & TERMINATED:
            raise TopicTerminated("the topic was terminated and takes no more messages; publish to another")

    def terminate(self, last_position: Callable[[], Position | None]) -> Position:
        """Have all appends refused, for ever. Repeated, it changes nothing.

        Steps, under the topic lock: 1. the journal says so; 2. the state word, which stops the producers that
        are attached. A process that dies in between leaves the second step to the next producer that looks at
        the journal, because it changed. Then, without the lock, the journal is flushed.

        Returns:
            The last entry; `BEFORE_FIRST` if there is none.
        """

        def terminate(commit: Commit) -> Terminate:
            if self._table.terminated is None:
                commit([Terminate(*(last_position() or BEFORE_FIRST))])
                if failpoints.ACTIVE:
                    failpoints.hit("termination:recorded")
                self._shared.enforce_end()
            assert self._table.terminated is not None
            return self._table.terminated

        end = self._section(terminate, refused=DELETED)
        self._shared.sync()
        return Position(*end)

    @property
    def _table(self) -> ProducerTable:
        return self._shared.table

    def _section(self, work: Callable[[Commit], T], timeout_s: float | None = None, refused: int = 0) -> T:
        """`TopicJournal.section`, after taking out producers that could not be when they left."""

        def after_the_left(commit: Commit) -> T:
            for producer_id, highest in list(self._leaving.items()):
                self._take_out(commit, producer_id, highest)
                self._leaving.pop(producer_id, None)
            return work(commit)

        return self._shared.section(after_the_left if self._leaving else work, timeout_s, refused)

    def detach(self, registration: ProducerRegistration, highest: int | None = None) -> None:
        """Take a producer out and let the next in the queue in. Nothing in a forked child of its owner.

        Args:
            highest: the last sequence id it stored, for deduplication; None if that is unknown.
        """
        if registration.generation == fork.GENERATION:
            number = self._rejoined.pop(registration.producer_id, registration.producer_id)
            self._detach(number, highest)

    def _detach(self, producer_id: int, highest: int | None) -> None:
        """Take a producer out. Later, if another process holds the lock for long: closing must not wait."""
        self._threads.pop(producer_id, None)
        try:
            leaves = partial(self._take_out, producer_id=producer_id, highest=highest)
            self._section(leaves, _DETACH_TIMEOUT_S)
        except LockTimeout:
            self._leaving[producer_id] = highest
            self._detaching.after(FIRST_PAUSE_S)
        except _GONE:
            return

    def _take_out_left(self) -> None:
        """In the timer thread: take out those that could not leave when they wanted to."""
        if self._leaving and not self._is_closed:
            with contextlib.suppress(*_GONE):
                self._section(lambda _: None)

    def _take_out(self, commit: Commit, producer_id: int, highest: int | None) -> None:
        connected = self._shared.replica.table.connected.get(producer_id)
        ending = [] if connected is None or highest is None else self.memory.ending(connected.name, highest)
        commit([*ending, DetachProducer(producer_id, REASON_CLOSED)])
        if self._shared.replica.table.waiting:
            self._promote(commit)

    def _promote(self, commit: Commit) -> None:
        commands = self._table.promote()
        if commands:
            commit([*commands, *self.memory.beginnings(commands)])

    def _wait_turn(
        self, own: EnqueueProducer, timeout_s: float | None, check_wanted: Callable[[], object]
    ) -> AttachProducer:
        """Sleep until granted. Deaths of those ahead ring the doorbell, as do producers that leave."""
        deadline = None if timeout_s is None else SYSTEM_CLOCK.monotonic() + timeout_s
        watched: set[bytes] = set()
        try:
            while True:
                generation = self._mailbox.generation
                check_wanted()
                granted, ahead = self._check_turn(own)
                if granted is not None:
                    return granted
                for uuid in ahead - watched:
                    watched.add(uuid)
                    self._mailbox.watch(uuid, _wake)
                remaining_s = (
                    _LOOK_S if deadline is None else min(deadline - SYSTEM_CLOCK.monotonic(), _LOOK_S)
                )
                if remaining_s <= 0:
                    raise Timeout(f"producer {own.name!r} was not granted exclusive access in {timeout_s} s")
                self._mailbox.wait(generation, remaining_s)
        finally:
            for uuid in watched:
                self._mailbox.unwatch(uuid, _wake)

    def _check_turn(self, own: EnqueueProducer) -> tuple[AttachProducer | None, set[bytes]]:
        def check_turn(commit: Commit) -> tuple[AttachProducer | None, set[bytes]]:
            self._check_not_terminated()
            self._promote(commit)
            table = self._table
            connected = table.connected.get(own.producer_id)
            if connected is None and own.producer_id not in table.waiting:
                raise ProducerFenced(f"producer {own.name!r} was fenced out while it waited")
            return connected, {producer.client_uuid for producer in table.everybody()} - {self._mailbox.uuid}

        return self._section(check_turn)

    # -- being there -------------------------------------------------------------------------------

    def check(self, registration: ProducerRegistration) -> int | None:
        """Make sure that the producer was not fenced out. One read of a word when nothing happened.

        A shared one that was is let in again as soon as no other has the topic for itself.

        Returns:
            The highest sequence id known of its name, where the topic drops duplicates; else None.

        Raises:
            ProducerFenced: another producer has the topic now.
            AlreadyClosed: the registration was given back, or is the parent's.
        """
        if registration.generation != fork.GENERATION:
            raise AlreadyClosed(f"producer {registration.name!r} belongs to the parent of this process")
        if self._words[TopicWord.JOURNAL] == self._checked:
            return self._highest_known(registration)
        lock = self._shared.lock
        try:
            lock.acquire(self._shared.lock_timeout_s)
            self._shared.catch_up()
            table = self._table
            number = self._rejoined.get(registration.producer_id, registration.producer_id)
            if number in table.fenced and not registration.epoch:
                number = self._rejoin(registration, number)
            is_connected = number in table.connected
            is_fenced = number in table.fenced
            # Only if no producer of this process was fenced; another than this one may have been.
            all_well = not any(uuid == self._mailbox.uuid for uuid in table.fenced.values())
            self._checked = self._words[TopicWord.JOURNAL] if is_connected and all_well else -1
        finally:
            lock.release()
        if is_fenced:
            raise ProducerFenced(f"producer {registration.name!r} was fenced out by another")
        if not is_connected:
            raise AlreadyClosed(f"producer {registration.name!r} is not registered any more")
        return self._highest_known(registration)

    def _rejoin(self, registration: ProducerRegistration, number: int) -> int:
        """Let a shared producer in again, and return its number; the one it had, if that is not possible."""
        request = ProducerRequest(
            self._mailbox.uuid, int(ProducerAccessMode.Shared), False, registration.name
        )

        (max_producers,) = self._max_producers()

        def admit(commit: Commit) -> int:
            (own,) = self._table.admit(request, max_producers)
            assert isinstance(own, AttachProducer)
            commit([DetachProducer(number, REASON_CLOSED), own, *self.memory.beginnings([own])])
            self._rejoined[registration.producer_id] = own.producer_id
            return own.producer_id

        try:
            return self._section(admit)
        except ProducerBusy:
            return number

    def _highest_known(self, registration: ProducerRegistration) -> int | None:
        return self.memory.known(registration.name) if self.memory.is_on else None

    def names(self) -> list[str]:
        """Names of the connected producers whose process lives, in order of arrival."""
        return [name for name, _ in self.connected()]

    def connected(self) -> list[tuple[str, bytes]]:
        """(name, lease) of the connected producers whose process lives, in order of arrival."""
        return self._section(
            lambda _: [(producer.name, producer.client_uuid) for producer in self._table.connected.values()]
        )

    def close(self) -> None:
        """Give the journal's descriptor back. Idempotent."""
        self._is_closed = True
        self._detaching.cancel()
        self._shared.close()


def _wake(_: bytes) -> None:
    """Do nothing: the ring that comes with a death is all that the waiting producer needs."""
