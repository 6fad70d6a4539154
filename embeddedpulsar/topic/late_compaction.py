"""The compaction of a topic, as long as the topic has nothing to do with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.log.filenames import compaction_lock_path, compaction_path
from embeddedpulsar._engine.log.log import Cursor
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform.clock import Clock
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic.late_part import HasParts, LatePart
from embeddedpulsar.topic.policies.keeping import COMPACTION_THRESHOLD

if TYPE_CHECKING:
    from embeddedpulsar.topic.topic_compaction import TopicCompaction


class LateCompaction(LatePart["TopicCompaction"]):
    """Role: answers for a topic that was never compacted and has no threshold; hands on to `TopicCompaction`
    otherwise.

    Args:
        topic: what is compacted.
        settings, clock: as of `TopicCompaction`.
    """

    undone = "the topic is not compacted"

    def __init__(self, topic: HasParts, settings: BrokerSettings, clock: Clock) -> None:
        super().__init__(topic, clock, float(settings.brokerServiceCompactionMonitorIntervalInSeconds))
        self._settings: Final = settings

    @property
    def exists(self) -> bool:
        """Whether the topic was compacted, or a compaction was begun, ever."""
        directory = self._topic.directory
        return os.path.exists(compaction_path(directory)) or os.path.exists(compaction_lock_path(directory))

    def is_wanted(self) -> bool:
        return self._threshold() > 0

    def _threshold(self) -> int:
        return self._topic.policies.value(COMPACTION_THRESHOLD)

    def _make(self) -> TopicCompaction:
        module = late_import("embeddedpulsar.topic.topic_compaction")
        records = late_import("embeddedpulsar._engine.log.compaction.compacted_ledger")
        topic = self._topic
        ledgers = records.CompactedLedgers(topic.directory, topic.incarnation, topic.view.report)
        made: TopicCompaction = module.TopicCompaction(
            ledgers, topic.ledger, self._threshold, self._settings, self._clock
        )
        return made

    def cursor(self, position: Position, *, inclusive: bool) -> Cursor:
        """As `Log.cursor`, in what compaction left of the log."""
        module = late_import("embeddedpulsar._engine.log.compaction.compacted_ledger")
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
