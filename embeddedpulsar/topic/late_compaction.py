"""The compaction of a topic, imported when a topic has to do with it: most have not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from embeddedpulsar.managed_ledger.log import Cursor, Log
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.platform.fork import late_import
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.storage.filenames import compaction_lock_path, compaction_path
from embeddedpulsar.topic.policies.topic_policy import COMPACTION_THRESHOLD

if TYPE_CHECKING:
    from embeddedpulsar.topic.policies.held_policies import HeldPolicies
    from embeddedpulsar.topic.topic_compaction import TopicCompaction
    from embeddedpulsar.topic.topic_view import TopicView


class Compacting(Protocol):
    """The part of `Topic` that compaction needs."""

    @property
    def directory(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def ledger(self) -> Log: ...
    @property
    def policies(self) -> HeldPolicies: ...
    @property
    def view(self) -> TopicView: ...


class LateCompaction:
    """Role: answers for a topic that was never compacted and has no threshold, by the names in its directory;
    hands on to `TopicCompaction` otherwise. A `Check` of the upkeep. Callers: any thread.

    Args:
        topic: what is compacted.
        settings, clock: as of `TopicCompaction`.
    """

    follows_traffic = False
    undone = "the topic is not compacted"

    def __init__(self, topic: Compacting, settings: BrokerSettings, clock: Clock) -> None:
        self.every_s = float(settings.brokerServiceCompactionMonitorIntervalInSeconds)
        self._topic: Final = topic
        self._settings: Final = settings
        self._clock: Final = clock
        self._made: dict[str, TopicCompaction] = {}  # one at most; of threads that make it at once, one wins

    @property
    def exists(self) -> bool:
        """Whether the topic was compacted, or a compaction was begun, ever."""
        directory = self._topic.directory
        return os.path.exists(compaction_path(directory)) or os.path.exists(compaction_lock_path(directory))

    def is_wanted(self) -> bool:
        """Whether compaction may become due by itself."""
        return self._threshold() > 0

    def _threshold(self) -> int:
        return self._topic.policies.value(COMPACTION_THRESHOLD)

    def get(self) -> TopicCompaction:
        """The compaction of the topic."""
        if not self._made:
            module = late_import("embeddedpulsar.topic.topic_compaction")
            records = late_import("embeddedpulsar.managed_ledger.compaction.compaction_record")
            topic = self._topic
            ledgers = records.CompactedLedgers(topic.directory, topic.incarnation, topic.view.report)
            made = module.TopicCompaction(ledgers, topic.ledger, self._threshold, self._settings, self._clock)
            return self._made.setdefault(topic.directory, made)
        return self._made[self._topic.directory]

    def cursor(self, position: Position, *, inclusive: bool) -> Cursor:
        """As `Log.cursor`, in what compaction left of the log."""
        module = late_import("embeddedpulsar.managed_ledger.compaction.compacted_cursor")
        made: Cursor = module.CompactedCursor(
            self.get().ledgers, self._topic.ledger, position, inclusive=inclusive
        )
        return made

    def find_by_publish_time(self, publish_ms: int) -> Position:
        """As `Log.find_by_publish_time`, in what compaction left of the log."""
        found = self.get().ledgers.find_by_publish_time(publish_ms)
        return self._topic.ledger.find_by_publish_time(publish_ms) if found is None else found

    def marks(self, is_forced: bool) -> Sequence[Position]:
        """See `TopicCompaction.marks`."""
        if not self.exists and not self.is_wanted():
            return []
        return self.get().marks(is_forced=is_forced)

    def look(self, done: list[str]) -> bool:
        """Begin a compaction that is due. Always False: it goes on in the background."""
        self.get().start_if_due()
        return False

    def close(self) -> None:
        """See `TopicCompaction.close`."""
        for made in self._made.values():
            made.close()

    def abandon(self) -> None:
        """See `TopicCompaction.abandon`."""
        for made in self._made.values():
            made.abandon()
