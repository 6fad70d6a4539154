"""Positions in a log, and what lies between them by its indexes."""

from __future__ import annotations

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.storage.log_view import LogView
from embeddedpulsar.storage.segment_chain import LedgerChain


def messages_between(view: LogView, after: Position, through: Position) -> int:
    """Messages in the retained entries behind `after`, up to and including `through`. O(log ledgers)."""
    if through <= after:
        return 0
    chain = view.chain()
    return max(0, _messages_through(view, chain, through) - _messages_through(view, chain, after))


def messages_after(view: LogView, after: Position) -> int:
    """Messages in the retained entries behind `after`, up to the tail."""
    chain = view.chain()
    if not chain.tail_ledger:
        return 0
    last, _ = view.extent(chain.tail_ledger)
    return messages_between(view, after, Position(chain.tail_ledger, last))


def entries_between(view: LogView, after: Position, through: Position) -> int:
    """Retained entries behind `after`, up to and including `through`."""
    chain = view.chain()
    count = 0
    for ledger_id in (*chain.ids, chain.tail_ledger):
        if not ledger_id or not after.ledger_id <= ledger_id <= through.ledger_id:
            continue
        last, _ = view.extent(ledger_id)
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        if ledger_id == through.ledger_id:
            last = min(last, through.entry_id)
        count += max(0, last - max(first, 0) + 1)
    return count


def _messages_through(view: LogView, chain: LedgerChain, position: Position) -> int:
    """Messages from the chain's origin up to and including `position`, or where it would be."""
    ledger_id = chain.at_or_after(position.ledger_id)
    if not ledger_id:  # behind the tail
        ledger_id, entry_id = chain.tail_ledger, -1
        last, _ = view.extent(ledger_id)
        entry_id = last
    elif ledger_id != position.ledger_id:  # trimmed: nothing of the first retained ledger yet
        entry_id = -1
    else:
        last, _ = view.extent(ledger_id)
        entry_id = min(position.entry_id, last)
    closed = chain.find(ledger_id)
    if closed is not None and entry_id == closed.last_entry_id:
        return closed.messages_before + closed.messages
    before = closed.messages_before if closed is not None else chain.messages_before_tail
    try:
        return before + view.messages_through(ledger_id, entry_id)
    except (FileNotFoundError, CorruptionError):
        return before  # lost or trimmed meanwhile: count the whole ledger


def find_by_publish_time(view: LogView, publish_ms: int) -> Position:
    """The first entry published at `publish_ms` or later; the position behind the last if there is none.

    Binary search over ledgers, then over index slots: some 10 us, whatever the topic holds. Position (0, 0)
    for a topic without a ledger.
    """
    chain = view.chain()
    ledger_id = chain.floor_by_time(publish_ms)
    while ledger_id:
        try:
            found, entries = _find_in(view, ledger_id, publish_ms)
        except (FileNotFoundError, CorruptionError):  # trimmed or lost: what can be read begins behind it
            found = entries = 0
        following = chain.after(ledger_id)
        if found < entries or not following:
            return Position(ledger_id, found)
        ledger_id = following
    return Position(0, 0)


def _find_in(view: LogView, ledger_id: int, publish_ms: int) -> tuple[int, int]:
    """The first entry of a ledger at `publish_ms` or later, and how many entries the ledger has."""
    last, end = view.extent(ledger_id)
    entries = last + 1
    segment = view.segment(ledger_id)
    delta = publish_ms - segment.header.base_publish_ms
    if delta <= 0:
        return 0, entries
    found = segment.index.first_published_at(delta, entries)
    # The index is only a hint: both frames around the answer must agree.
    at, before = (_published(view, ledger_id, entry, end) for entry in (found, found - 1))
    if (at is not None and at < publish_ms) or (before is not None and before >= publish_ms):
        found = _scan(view, ledger_id, publish_ms, entries, end)
    return found, entries


def _published(view: LogView, ledger_id: int, entry_id: int, end: int) -> int | None:
    """The publish time in the frame of a visible entry; None if there is none, or it is unreadable."""
    last, _ = view.extent(ledger_id)
    if not 0 <= entry_id <= last:
        return None
    try:
        return view.segment(ledger_id).frame_of(entry_id, end)[1].publish_time
    except (FileNotFoundError, CorruptionError):
        return None


def _scan(view: LogView, ledger_id: int, publish_ms: int, entries: int, end: int) -> int:
    for entry_id in range(entries):
        published = _published(view, ledger_id, entry_id, end)
        if published is not None and published >= publish_ms:
            return entry_id
    return entries
