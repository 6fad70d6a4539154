"""Exact counts of messages between positions, from the indexes alone."""

from __future__ import annotations

from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.managed_ledger.ledgers_view import LedgersView
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.storage.segment_set import LedgerChain


def messages_between(view: LedgersView, after: Position, through: Position) -> int:
    """Messages in the retained entries behind `after`, up to and including `through`. O(log ledgers)."""
    if through <= after:
        return 0
    chain = view.chain()
    return max(0, _messages_through(view, chain, through) - _messages_through(view, chain, after))


def messages_after(view: LedgersView, after: Position) -> int:
    """Messages in the retained entries behind `after`, up to the tail."""
    chain = view.chain()
    if not chain.tail_ledger:
        return 0
    last, _ = view.extent(chain.tail_ledger)
    return messages_between(view, after, Position(chain.tail_ledger, last))


def entries_between(view: LedgersView, after: Position, through: Position) -> int:
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


def _messages_through(view: LedgersView, chain: LedgerChain, position: Position) -> int:
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
    except (FileNotFoundError, StorageError):
        return before  # lost or trimmed meanwhile: count the whole ledger
