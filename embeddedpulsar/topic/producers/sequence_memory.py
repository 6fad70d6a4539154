"""Deduplication: which sequence ids are stored by which name, found in the log and kept in the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from embeddedpulsar._engine.format.topic_record import (
    AttachProducer,
    ForgetProducer,
    RememberProducer,
    SetDeduplication,
    TopicCommand,
)
from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic.producers.producer_table import Remembered
from embeddedpulsar.topic.producers.topic_journal import Commit, TopicJournal

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
        self._most: Final = settings.brokerDeduplicationMaxNumberOfProducers
        self._forget_after_ms: Final = settings.brokerDeduplicationProducerInactivityTimeoutMinutes * 60_000

    @property
    def is_on(self) -> bool:
        """Whether the topic drops duplicates."""
        return self._journal.table.sequences.is_on(self._boot)

    def known(self, name: str) -> int:
        """The highest sequence id known of a name; -1 for none."""
        known = self._journal.table.sequences.names.get(name)
        return -1 if known is None else known.highest

    # -- a name changes hands ----------------------------------------------------------------------

    def beginnings(self, commands: Iterable[TopicCommand]) -> list[TopicCommand]:
        """The commands to be committed with those that connect producers."""
        if not self.is_on:
            return []
        found: list[TopicCommand] = []
        names = self._journal.table.sequences.names
        before_ms = self._journal.now_ms - self._forget_after_ms
        for command in commands:
            if not isinstance(command, AttachProducer):
                continue
            known = names.get(command.name)
            if known is not None and known.since_ms < before_ms and not self._is_in_use(command.name):
                found.append(ForgetProducer(command.name))
                known = None
            if known is None or known.final:
                highest = -1 if known is None else known.highest
                found.append(RememberProducer(highest, self._journal.tail, False, command.name))
        return found

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

        def look(_: Commit) -> tuple[Remembered | None, int]:
            return (journal.table.sequences.names.get(name) if self.is_on else None), journal.tail

        known, tail = journal.section(look)
        if known is None:
            return None
        if known.word == tail:
            return known.highest
        found = self._scan(tail, known.word, [name]).get(name, -1)
        if failpoints.ACTIVE:
            failpoints.hit("dedup:scanned")

        def note(commit: Commit) -> int:
            commit([RememberProducer(max(found, known.highest), tail, False, name)])
            # Not only what was found: the process that trimmed the log meanwhile noted what was there.
            return self.known(name)

        highest = journal.section(note)
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

        def note(commit: Commit) -> None:
            if not self.is_on or not self._is_in_use(name):
                return
            tail, table = journal.tail, journal.table
            before_ms = journal.now_ms - self._forget_after_ms
            forgotten = table.sequences.surplus(table.connected_names(), self._most, before_ms)
            commit(
                [
                    *forgotten,
                    RememberProducer(highest, tail, False, name),
                    SetDeduplication(tail, self._boot, True),
                ]
            )

        journal.section(note)
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
        found = self._scan(plan.tail, plan.base, None)
        for names, end, floor in (
            (plan.pending, plan.base, plan.lowest),
            (plan.lost, plan.base, 0),
        ):
            if names:
                _merge(found, self._scan(end, floor, names))
        # What others append meanwhile, until little is left to read under the lock.
        behind = plan.tail
        for _ in range(_MOST_PASSES):
            tail = self._log.tail
            if tail - behind < _SMALL_REST >> 3:
                break
            _merge(found, self._scan(tail, behind, None))
            behind = tail
        return found

    def _scan(self, end: int, floor: int, names: Iterable[str] | None) -> dict[str, int]:
        return self._log.sequence_ids(names, end, floor, self._on_progress)

    def _switching_on(self, plan: _Plan, found: dict[str, int]) -> Callable[[Commit], bool]:
        return lambda commit: self._switch_on(commit, plan, found)

    def _switch_on(self, commit: Commit, plan: _Plan, found: dict[str, int]) -> bool:
        if self.is_on:
            return True
        journal = self._journal
        table, tail = journal.table, journal.tail
        if table.sequences.base != plan.noted_base:
            return False  # switched on and off by others meanwhile
        latest = self._scan(tail, plan.tail, None)
        _merge(latest, found)
        in_use = table.connected_names()
        names = dict.fromkeys([*sorted(in_use), *sorted(plan.pending), *latest])
        commit(
            [
                *(ForgetProducer(name) for name in sorted(plan.lost)),
                *(
                    RememberProducer(latest.get(name, -1), tail, name not in in_use, name)
                    for name in list(names)[: max(self._most, len(in_use))]
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

        def look(_: Commit) -> tuple[dict[str, Remembered], int]:
            names = journal.table.sequences.names if self.is_on else {}
            needed = {
                name: known
                for name, known in names.items()
                if known.word >> 32 < ledger_id and (not known.final or self._is_in_use(name))
            }
            return needed, journal.tail

        needed, tail = journal.section(look, lock_timeout_s)
        if not needed:
            return ledger_id
        found = self._scan(tail, min(known.word for known in needed.values()), needed)

        def save(commit: Commit) -> None:
            if not self.is_on:
                return
            names, in_use = journal.table.sequences.names, journal.table.connected_names()
            # Producers that were there meanwhile may have left more behind than was read here.
            commit(
                [
                    RememberProducer(
                        found.get(name, -1), tail, names[name] == known and name not in in_use, name
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
