"""The producers of a topic, as long as this process has nothing to do with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.platform.clock import Clock
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.scheduler import SchedulerLike
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic.late_part import HasParts
from embeddedpulsar.topic.policies.admitting import MAX_PRODUCERS

if TYPE_CHECKING:
    from embeddedpulsar.topic.producers.producers import Producers


class LateProducers:
    """Role: imports and makes `Producers`, the memory of their sequence ids, and the journal of both when it
    is first asked for them. A process that only receives needs none. Callers: any thread.

    Args:
        topic: whose producers they are.
        clock: of the store.
        on_progress: as of `SequenceMemory`.
        settings, mailbox, peers, scheduler: of the store.
    """

    def __init__(
        self,
        topic: HasParts,
        clock: Clock,
        on_progress: Callable[[int], object],
        *,
        settings: BrokerSettings,
        mailbox: Mailbox,
        peers: Peers,
        scheduler: SchedulerLike,
    ) -> None:
        self._topic: Final = topic
        self._settings: Final = settings
        self._mailbox: Final = mailbox
        self._peers: Final = peers
        self._scheduler: Final = scheduler
        self._clock: Final = clock
        self._on_progress: Final = on_progress
        # One at most; of threads that make it at once, one wins.
        self._made: Final[dict[None, Producers]] = {}
        topic.ledger.trimming.snapshot_before = self._save_before_trim
        topic.ledger.lock.on_rest = self._rest

    @property
    def existed(self) -> bool:
        """Whether the topic ever had a producer. Reads one word."""
        return self._topic.ledger.words[TopicWord.JOURNAL] & 0xFFFFFFFF != 0

    def get(self) -> Producers:
        """The producers. Errors are those of `late_import`."""
        return self._made[None] if self._made else self._made.setdefault(None, self._make())

    def _make(self) -> Producers:
        late = late_import("embeddedpulsar.topic.producers.topic_journal")
        topic, options = self._topic, self._topic.ledger.options
        log = topic.ledger
        journal = late.TopicJournal(
            topic.directory,
            log.words,
            log.lock,
            self._peers,
            self._clock,
            topic.view.report,
            lock_timeout_s=options.lock_timeout_s,
        )
        late = late_import("embeddedpulsar.topic.producers.sequence_memory")
        memory = late.SequenceMemory(journal, log, self._settings, options.boot_id, self._on_progress)
        late = late_import("embeddedpulsar.topic.producers.producers")
        most = partial(topic.policies.values, (MAX_PRODUCERS,))
        made: Producers = late.Producers(
            journal, memory, self._mailbox, self._clock, self._scheduler, most=most
        )
        return made

    def _save_before_trim(self, ledger_id: int, lock_timeout_s: float | None) -> int:
        # Also if there seem to be none: only the journal knows whether its word survived a reboot.
        return self.get().memory.save_before_trim(ledger_id, lock_timeout_s)

    def _rest(self) -> None:
        for made in self._made.values():
            made.journal.rest()

    def close(self) -> None:
        """Give the journal's descriptor back. Idempotent."""
        for made in self._made.values():
            made.close()
