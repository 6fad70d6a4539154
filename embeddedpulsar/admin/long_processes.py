"""How far the compaction and the offloading of a topic have come, its long-running processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.store.background.topic_compaction import (
    NOT_RUN,
    LongRunningProcessStatus,
)
from embeddedpulsar._engine.store.topic_access import TopicAccess

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.topic import Topic


def compaction_progress(access: TopicAccess, topic: str) -> tuple[int, int]:
    """How many entries a compaction in this process has read, of about how many."""
    progress = [access.inspect(name, _compaction_progress) for name in access.partitions_of(topic) or [topic]]
    return sum(done for done, _ in progress), sum(total for _, total in progress)


def status_of_compaction(topic: Topic | None) -> LongRunningProcessStatus:
    """How the compaction of a topic or partition stands; None for one that was never used."""
    return LongRunningProcessStatus(NOT_RUN) if topic is None else topic.compaction.get().status()


def _compaction_progress(topic: Topic | None) -> tuple[int, int]:
    progress = None if topic is None else topic.compaction.get().work.progress
    return progress or (0, 0)


def offload_progress(access: TopicAccess, topic: str) -> tuple[int, int]:
    """How many ledgers an offloading in this process has done, of how many."""
    progress = [access.inspect(name, _offload_progress) for name in access.partitions_of(topic) or [topic]]
    return sum(done for done, _ in progress), sum(total for _, total in progress)


def first_within(topic: Topic, room: int) -> int:
    """The first ledger that stays if at most so many bytes are to stay."""
    # From the newest ledger back: those within the limit stay, and the first that exceeds it is moved, with
    # all older ones.
    for ledger in reversed(topic.ledger.survey().ledgers()):
        room -= ledger.size
        if room < 0:
            return ledger.ledger_id + 1
    return 0


def status_of_offload(topic: Topic | None) -> LongRunningProcessStatus:
    """How the offloading of a topic or partition stands; None for one that was never used."""
    if topic is None or not topic.offload.exists:
        return LongRunningProcessStatus(NOT_RUN)
    return topic.offload.get().status()


def _offload_progress(topic: Topic | None) -> tuple[int, int]:
    progress = None if topic is None else topic.offload.get().work.progress
    return progress or (0, 0)
