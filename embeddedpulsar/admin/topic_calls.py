"""What calls of an operator do in one topic: where they put a subscription, and which messages they show."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.acknowledgement import AckBatch
from embeddedpulsar._engine.format.entry_decoder import SealedView
from embeddedpulsar._engine.format.sealed_entry import raw_view
from embeddedpulsar._engine.log.log_positions import read_whole_entry
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar.exceptions import InvalidMessage, NotAllowedError
from embeddedpulsar.message import Message, messages_left
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.schema.schema import origin_of
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.format.entry_decoder import EntryView
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.subscription import Subscription


def skip_all(topic: Topic, subscription: Subscription) -> None:
    """Acknowledge all messages that are stored now."""
    # Read before the command: messages that are stored later stay, and so do those that wait for their
    # transactions.
    last = topic.ledger.max_read_position()
    if last is not None:
        subscription.operator_commands().skip_through(last)


def skip_before(topic: Topic, subscription: Subscription, cutoff_ms: int) -> None:
    """Acknowledge the messages that were published before a time, as expired."""
    first = topic.ledger.find_by_publish_time(cutoff_ms)
    subscription.operator_commands().skip_through(first.previous(), is_expiry=True)


def reset(log: Log, subscription: Subscription, target: int | MessageId) -> None:
    """Move a subscription to a time in ms since 1970, or to a message of a log."""
    if log.is_volatile:
        raise NotAllowedError(f"{log.name}: a subscription of a non-persistent topic has no earlier place")
    if isinstance(target, int):
        subscription.seek(log.find_by_publish_time(target), inclusive=True)
        return
    place = _place(log, target)
    subscription.seek(place, inclusive=target != MessageId.latest)
    # A cursor moves by entries. The messages of the batch before the target are acknowledged one by one
    # behind it. A kill in between delivers those again, and loses none.
    if target.batch_index() <= 0:
        return
    for view in log.cursor(place, inclusive=True).read(1, 1, 1):
        if view.batched and (view.ledger_id, view.entry_id) == place:
            earlier = (1 << min(target.batch_index(), view.count)) - 1
            batch = AckBatch(view.ledger_id, view.entry_id, view.count, earlier)
            subscription.operator_commands().acknowledge((), [batch])


def _place(log: Log, message_id: MessageId) -> Position:
    """The entry of a message, the first one if it is chunked; before the first entry, or the last one."""
    if message_id == MessageId.latest:
        return log.max_read_position() or BEFORE_FIRST
    if message_id.ledger_id() < 0:
        return BEFORE_FIRST
    # A chunked message begins at its first chunk; the id that its consumer gets is that of the last.
    message_id = getattr(message_id, "_first_chunk", message_id)
    return Position(message_id.ledger_id(), message_id.entry_id())


def mark_delete_before(log: Log, message_id: MessageId) -> Position:
    """The mark-delete position with which a subscription begins at a message."""
    place, last = _place(log, message_id), log.last_position() or BEFORE_FIRST
    # An id behind the end is no position yet. The subscription begins at the end.
    if message_id == MessageId.latest or place > last:
        return log.max_read_position() or BEFORE_FIRST
    # A mark-delete position is the last entry that is acknowledged. Before the first entry that is still
    # stored it would name one that is gone.
    return place.previous() if place >= log.first_position() else BEFORE_FIRST


def check_place(topic: str, partitions: int, target: int | MessageId) -> None:
    """Refuse the id of a message for a partitioned topic."""
    if partitions and isinstance(target, MessageId) and target not in (MessageId.earliest, MessageId.latest):
        raise NotAllowedError(
            f"{TopicName.parse(topic).full} is partitioned, and {target} is a message of one partition; name "
            f"that, such as {TopicName.parse(topic).of_partition(0).full}"
        )


def check_id(message_id: object, wanted: str = "a subscription begins at a MessageId") -> None:
    """Refuse what is not the id of a message."""
    if not isinstance(message_id, MessageId):
        raise ValueError(f"{wanted}, not {message_id!r}")


def check_number(name: str, number: int, least: int) -> None:
    """Refuse what is no integer, or below ``least``."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ValueError(f"{name} is an integer from {least} on, not {number!r}")


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
