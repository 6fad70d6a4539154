"""Single entries of a log, by position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.format.frame import FLAG_CHUNK
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.message_id import MessageId, make

if TYPE_CHECKING:
    from embeddedpulsar._engine.format.entry_decoder import EntryView
    from embeddedpulsar.managed_ledger.chunk_assembler import ChunkAssembler
    from embeddedpulsar.managed_ledger.log import Log


def read_entry(log: Log, position: Position) -> EntryView | None:
    """Read one entry; None if it was removed."""
    views = log.cursor(position, inclusive=True).read(1, 1 << 30, 1)
    if views and (views[0].ledger_id, views[0].entry_id) == position:
        return views[0]
    return None


def read_whole_entry(log: Log, position: Position, assembler: ChunkAssembler) -> EntryView | None:
    """Read one entry with messages, a chunked one as a whole; None if it was removed, or is damaged."""
    view = read_entry(log, position)
    if view is None or not view.flags & FLAG_CHUNK:
        return view
    return assembler.try_whole(view) if view.count else None


def last_message_id(log: Log, partition: int) -> MessageId:
    """Return the id of the last message; for an empty topic, an id before every message."""
    position = log.last_position()
    if position is None or position.entry_id < 0:
        return make(-1 if position is None else position.ledger_id, -1, -1, partition, 0)
    view = read_entry(log, position)
    if view is None or not view.batched:
        return make(position.ledger_id, position.entry_id, -1, partition, 0)
    return make(position.ledger_id, position.entry_id, view.count - 1, partition, view.count)
