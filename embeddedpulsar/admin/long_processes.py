"""How far the compaction and the offloading of a topic have come, its long-running processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from embeddedpulsar._engine.store.background.topic_compaction import (
    NOT_RUN,
    LongRunningProcessStatus,
)

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.topic import Topic


def joint_progress(progress: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """How much is done, and of how much, in all partitions of a topic together."""
    done, total = 0, 0
    for part_done, part_total in progress:
        done, total = done + part_done, total + part_total
    return done, total


def status_of_compaction(topic: Topic | None) -> LongRunningProcessStatus:
    """How the compaction of a topic or partition stands; None for one that was never used."""
    return LongRunningProcessStatus(NOT_RUN) if topic is None else topic.compaction.get().status()


def progress_of_compaction(topic: Topic | None) -> tuple[int, int]:
    """How many entries its compaction in this process has read, of about how many."""
    progress = None if topic is None else topic.compaction.get().work.progress
    return progress or (0, 0)


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


def progress_of_offload(topic: Topic | None) -> tuple[int, int]:
    """How many ledgers its offloading in this process has moved, of how many."""
    if topic is None or not topic.offload.exists:
        return 0, 0
    return topic.offload.get().work.progress or (0, 0)
