"""The figures of a managed ledger: its segments, and their sums."""

from __future__ import annotations

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.filenames import index_path, log_path
from embeddedpulsar.storage.log_view import LogView
from embeddedpulsar.storage.segment_snapshot import SegmentInfo


def segment_infos(view: LogView) -> list[SegmentInfo]:
    """The retained segments, oldest first, with what they hold now."""
    chain = view.chain()
    directory = view.directory
    found = []
    # Nothing in a ledger was published after the next one began.
    bases = [ledger.base_publish_ms for ledger in chain.closed[1:]] + [chain.tail_base_publish_ms]
    for ledger, latest in zip(chain.closed, bases, strict=False):
        found.append(
            SegmentInfo(
                ledger.ledger_id,
                log_path(directory, ledger.ledger_id),
                index_path(directory, ledger.ledger_id),
                ledger.end_offset,
                ledger.last_entry_id + 1,
                ledger.messages,
                ledger.base_publish_ms,
                latest,
            )
        )
    ledger_id = chain.tail_ledger
    if ledger_id:
        last, end = view.extent(ledger_id)
        last_ms, messages = _ending(view, ledger_id, last, chain.tail_base_publish_ms)
        found.append(
            SegmentInfo(
                ledger_id,
                log_path(directory, ledger_id),
                index_path(directory, ledger_id),
                end,
                last + 1,
                messages,
                chain.tail_base_publish_ms,
                last_ms,
            )
        )
    return found


def _ending(view: LogView, ledger_id: int, last: int, base_ms: int) -> tuple[int, int]:
    """Publish time of the last entry of the tail's ledger, and its messages; none if it is unreadable."""
    if last < 0:
        return base_ms, 0
    try:
        slot = view.slot(ledger_id, last)
    except (FileNotFoundError, CorruptionError):
        return base_ms, 0
    return base_ms + slot.publish_delta_ms, slot.messages


class LedgerStatistics(NamedTuple):
    """A snapshot. Counts without "here" are the topic's, over all processes.

    Attributes:
        ledgers: retained ledgers.
        retained_entries, retained_messages, retained_bytes: what they hold; bytes of frames.
        total_entries, total_messages, total_bytes: ever appended, as far as the control words know: after a
            reboot they start again at what is retained, and a process that died at the instant it started a
            ledger may have counted the one before twice.
        last_publish_ms: publish time of the last entry; 0 without one.
        is_synced: whether everything appended is durable.
        recoveries: holders of the topic lock that died inside, plus recoveries after a reboot.
        rolls_here, syncs_here: done by this process.
        damage_here: stretches of unreadable log this process met.
    """

    ledgers: int
    retained_entries: int
    retained_messages: int
    retained_bytes: int
    total_entries: int
    total_messages: int
    total_bytes: int
    last_publish_ms: int
    is_synced: bool
    recoveries: int
    rolls_here: int
    syncs_here: int
    damage_here: int


def gathered(
    segments: list[SegmentInfo], words: memoryview, rolls_here: int, syncs_here: int, damage_here: int
) -> LedgerStatistics:
    """The statistics of a topic whose retained segments and control words are given."""
    bytes_of = [max(0, segment.end_offset - FIRST_FRAME_OFFSET) for segment in segments]
    tail = segments[-1] if segments else None
    return LedgerStatistics(
        ledgers=len(segments),
        retained_entries=sum(segment.entries for segment in segments),
        retained_messages=sum(segment.messages for segment in segments),
        retained_bytes=sum(bytes_of),
        total_entries=words[TopicWord.TOTAL_ENTRIES] + (tail.entries if tail else 0),
        total_messages=words[TopicWord.TOTAL_MESSAGES] + (tail.messages if tail else 0),
        total_bytes=words[TopicWord.TOTAL_BYTES] + (bytes_of[-1] if bytes_of else 0),
        last_publish_ms=words[TopicWord.LAST_PUBLISH_MS],
        is_synced=words[TopicWord.SYNCED] >= words[TopicWord.TAIL],
        recoveries=words[TopicWord.RECOVERIES],
        rolls_here=rolls_here,
        syncs_here=syncs_here,
        damage_here=damage_here,
    )
