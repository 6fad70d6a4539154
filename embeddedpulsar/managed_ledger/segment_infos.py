"""The segments of an open ledger, for planning reads."""

from __future__ import annotations

from embeddedpulsar.exceptions import CorruptionError
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
