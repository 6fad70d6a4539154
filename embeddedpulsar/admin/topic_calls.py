"""What calls of an operator do in one topic: where they put a subscription, and which messages they show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.format.acknowledgement import AckBatch
from embeddedpulsar._engine.format.entry_decoder import SealedView
from embeddedpulsar._engine.format.sealed_entry import raw_view
from embeddedpulsar._engine.log.log_positions import read_whole_entry
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.store.topic_access import TopicAccess
from embeddedpulsar._engine.subscription.log_queries import unacked
from embeddedpulsar.exceptions import InvalidMessage, NotAllowedError
from embeddedpulsar.message import Message, is_skipped, messages_left
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
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


class SelectedMessages(NamedTuple):
    """Messages of one entry that a subscription has not acknowledged, and that an operator named by an id.

    Attributes:
        view: the entry, of a chunked message the whole of it.
        indexes: the messages.
        is_rest: whether these are all that the subscription has of the entry.
    """

    view: EntryView
    indexes: list[int]
    is_rest: bool

    def messages(self, origin: Any) -> list[Message[Any]]:
        """The messages."""
        return [Message(self.view, index, origin) for index in self.indexes]

    def acknowledge(self, subscription: Subscription) -> None:
        """Acknowledge them for all consumers."""
        view, commands = self.view, subscription.operator_commands()
        position = Position(view.ledger_id, view.entry_id)
        if self.is_rest:
            commands.acknowledge_messages([position])
        else:
            mask = sum(1 << index for index in self.indexes)
            commands.acknowledge_messages([], [AckBatch(*position, view.count, mask)])


def select_messages(
    topic: Topic, subscription: Subscription, name: str, message_id: MessageId
) -> SelectedMessages:
    """The message of an id, or those of an entry, that a subscription has not acknowledged.

    Args:
        topic: that has it.
        subscription: which is in use.
        name: of the subscription.
        message_id: of a message; without an index, of all messages of the entry.

    Raises:
        NotAllowedError: there is none.
    """
    # What consumers acknowledged and did not write counts as acknowledged.
    subscription.operator_commands().skip(0)
    position = Position(message_id.ledger_id(), message_id.entry_id())
    view = None
    if BEFORE_FIRST < position <= (topic.ledger.max_read_position() or BEFORE_FIRST):
        view = read_whole_entry(topic.ledger, position, topic.ledger.chunks())
    selected: list[int] = []
    rest: list[int] = []
    # The entry with what is acknowledged of it; nothing if that is all of it.
    views = [] if view is None else [view]
    for entry in topic.view.subscription(name).read_state(partial(unacked, views=views)) or ():
        view = entry
        rest = [index for index in range(entry.count) if not is_skipped(entry.skip, index)]
        selected = [index for index in rest if message_id.batch_index() in (-1, index)]
    if view is None or not selected:
        raise NotAllowedError(
            f"the subscription {name!r} of {topic.name} has no message {message_id} to be delivered: it is "
            "acknowledged, was trimmed, waits for a transaction, or was never stored; peek_messages shows "
            "the first ones that it has"
        )
    return SelectedMessages(view, selected, selected == rest)


def with_messages(
    store: Callable[[], Store],
    topic: str,
    subscription: str,
    message_id: MessageId,
    work: Callable[[Topic, Subscription, SelectedMessages], object],
) -> None:
    """Do ``work`` with the messages of `select_messages`.

    Raises:
        NotAllowedError: there are none; or the topic is partitioned, and the id names no partition.
        SubscriptionNotFound: there is no such subscription.
        ValueError: the id is none.
    """
    check_id(message_id, "a message is named by its MessageId")
    partitions, parsed = store().topics.partitions(topic), TopicName.parse(topic)
    if partitions and not 0 <= message_id.partition() < partitions:
        raise NotAllowedError(
            f"{parsed.full} is partitioned, and {message_id} names none of its {partitions} partitions; name "
            f"the partition, such as {parsed.of_partition(0).full}"
        )
    log_name = parsed.of_partition(message_id.partition()).full if partitions else topic
    TopicAccess(store).in_each(
        log_name,
        subscription,
        lambda used, cursor: work(used, cursor, select_messages(used, cursor, subscription, message_id)),
    )
