"""Finding a position by publish time."""

from __future__ import annotations

from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.storage.log_view import LogView


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
        except (FileNotFoundError, StorageError):  # trimmed or lost: what can be read begins behind it
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
    except (FileNotFoundError, StorageError):
        return None


def _scan(view: LogView, ledger_id: int, publish_ms: int, entries: int, end: int) -> int:
    for entry_id in range(entries):
        published = _published(view, ledger_id, entry_id, end)
        if published is not None and published >= publish_ms:
            return entry_id
    return entries
