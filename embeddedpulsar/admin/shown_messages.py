"""The messages of a topic as an operator sees them, who reads an entry and consumes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.entry_decoder import SealedView
from embeddedpulsar._engine.format.sealed_entry import raw_view
from embeddedpulsar._engine.log.log_positions import read_whole_entry
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar.exceptions import InvalidMessage
from embeddedpulsar.message import Message, messages_left
from embeddedpulsar.schema.schema import origin_of

if TYPE_CHECKING:
    from embeddedpulsar._engine.format.entry_decoder import EntryView
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic

# Ledger and entry ids have 32 bits; larger ones name nothing.
_MOST_ID: Final = 1 << 32


def checked_number(name: str, value: int, least: int) -> int:
    """Return the argument of a call; raises ValueError if it is no number, or below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is a number from {least}, not {value!r}")
    return value


def messages_at(topic: Topic, position: Position, store: Callable[[], Store]) -> list[Message[bytes]]:
    """The messages of the entry at a position; raises InvalidMessage if it has none to show."""
    view = None
    if max(position) < _MOST_ID:
        view = read_whole_entry(topic.ledger, position, topic.ledger.chunks())
    if view is None:
        raise InvalidMessage(
            f"{topic.name} has no message in entry {position}: it was never stored, was trimmed, is damaged, "
            "or is a part of a chunked message that is not its last"
        )
    return messages_of_entry(view, topic.name, store)


def messages_of_entry(
    view: EntryView | SealedView, topic: str, store: Callable[[], Store]
) -> list[Message[bytes]]:
    """The messages of an entry that are not acknowledged; one with the ciphertext if it is encrypted."""
    if isinstance(view, SealedView):
        # An Admin has no keys: the ciphertext is shown, as one message.
        view = raw_view(view, topic)
    return messages_left(view, view.skip, origin_of(store, topic))
