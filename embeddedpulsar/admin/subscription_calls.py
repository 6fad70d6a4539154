"""Creating, moving, emptying and deleting durable subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.format.acknowledgement import AckBatch
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.topic_access import TopicAccess, log_names
from embeddedpulsar.exceptions import NotAllowedError
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.subscription import Subscription


class SubscriptionCalls:
    """Creates, moves, empties and deletes durable subscriptions: a part of `Topics`.

    On a partitioned topic they do it in every partition that has the subscription, one after the other. Each
    partition is changed as a whole or not at all. If the process is killed in between, the call can be made
    again. Consumers of any process may be attached. Thread-safe.

    All of them raise `SubscriptionNotFound` if no partition has the subscription, and otherwise what `Topics`
    says.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._access = TopicAccess(store)

    # -- creating and deleting -------------------------------------------------------------------------------

    def create_subscription(
        self, topic: str, subscription: str, message_id: MessageId = MessageId.latest
    ) -> None:
        """Create a durable subscription, independent of ``allowAutoSubscriptionCreation``. The topic is
        created as well, if ``allowAutoTopicCreation`` is on.

        Args:
            topic: its name; for a partitioned topic, all partitions get the subscription.
            subscription: its name.
            message_id: the first message it delivers, or the batch with it; `MessageId.earliest`, or
                `MessageId.latest` for new messages only.

        Raises:
            NotAllowedError: it exists already; or the topic is partitioned, and the id is that of a message.
            ValueError: the name is empty, or the id is not a `MessageId`.

        Example:
            >>> from embeddedpulsar import Admin, Client, MessageId
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     producer = client.create_producer("invoices")
            ...     ids = [producer.send(text) for text in (b"one", b"two", b"three")]
            ...     admin.topics().create_subscription("invoices", "archive", ids[1])
            ...     client.subscribe("invoices", "archive").receive().data()
            b'two'
        """
        if not subscription or not isinstance(subscription, str):
            raise ValueError(f"a subscription has a name, not {subscription!r}")
        _check_id(message_id)
        with timing.translated:
            store = self._store()
            partitions = store.topics.resolve(topic)
            _check_place(topic, partitions, message_id)
            # A kill after some partitions leaves the subscription in those. The call may be made again:
            # partitions that have it are left as they are, and it is an error only if all of them had it.
            is_new = []
            for name in log_names(topic, partitions):
                use = store.use_topic(name)
                try:
                    initial = _mark_delete_before(use.topic.ledger, message_id)
                    is_new.append(use.topic.create_subscription(subscription, initial))
                finally:
                    use.release()
            if not any(is_new):
                raise NotAllowedError(
                    f"{TopicName.parse(topic).full} has a subscription {subscription!r} already; move it "
                    "with reset_cursor, or use another name"
                )

    def delete_subscription(self, topic: str, subscription: str, force: bool = False) -> None:
        """Delete a durable subscription. What it has not acknowledged is not kept for it any more.

        Args:
            topic: its name.
            subscription: its name.
            force: delete it even if consumers are attached. Their next call raises `AlreadyClosed`.

        Raises:
            BrokerMetadataError: consumers are attached, and ``force`` is False. Nothing was deleted, unless
                a consumer attached to a partition while the others were deleted.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_subscription("receipts", "audit")
            ...     admin.topics().delete_subscription("receipts", "audit")
        """

        # Without force all partitions are checked before the first one is deleted, so a consumer of the last
        # one keeps the subscription whole. One that attaches in between is found by `delete` itself.
        with timing.translated:
            self._access.delete_subscription(topic, subscription, force)

    # -- moving ----------------------------------------------------------------------------------------------

    def reset_cursor(self, topic: str, subscription: str, target: int | MessageId) -> None:
        """Move a subscription, as `Consumer.seek` does: everything before the target counts as acknowledged,
        and nothing from there on.

        Attached consumers are moved, too. Messages that they hold or have fetched are void: those behind the
        target are delivered again, and acknowledgements of the others have no effect.

        Args:
            topic: its name.
            subscription: its name.
            target: a time in ms since 1970, for the first message published then or later; or the id of the
                first message to deliver, `MessageId.earliest` or `MessageId.latest`. An id with a partition
                moves the subscription in that partition only.

        Raises:
            NotAllowedError: the topic is partitioned, and the id is that of a message without a partition.
                Or the topic is non-persistent.
            ValueError: the target is neither a time nor an id.

        Example:
            >>> from embeddedpulsar import Admin, Client, MessageId
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     consumer = client.subscribe("payments", "ledger")
            ...     _ = client.create_producer("payments").send(b"100 EUR")
            ...     consumer.acknowledge(consumer.receive())
            ...     admin.topics().reset_cursor("payments", "ledger", MessageId.earliest)
            ...     consumer.receive().data()
            b'100 EUR'
        """
        is_time = isinstance(target, int) and not isinstance(target, bool) and target >= 0
        if not is_time:
            _check_id(target, "a cursor is reset to a time in ms since 1970 or to a MessageId")
        with timing.translated:
            # The id of a message of a partition names its partition, so the name of the whole topic is
            # enough.
            if isinstance(target, MessageId) and target.partition() >= 0:
                parsed = TopicName.parse(topic)
                if parsed.partition < 0 and self._store().topics.partitions(topic):
                    topic = parsed.of_partition(target.partition()).full
            _check_place(topic, self._store().topics.partitions(topic), target)
            self._access.in_each(
                topic, subscription, lambda topic, cursor: _reset(topic.ledger, cursor, target)
            )

    # -- emptying --------------------------------------------------------------------------------------------

    def skip_messages(self, topic: str, subscription: str, count: int) -> int:
        """Acknowledge the first messages that a subscription has not acknowledged, as `peek_messages` shows
        them: also those that a consumer holds, or that are delayed.

        Attached consumers of an Exclusive or Failover subscription go back to the first message that is left,
        and get the messages again that they hold. Consumers of the other types keep what they have fetched,
        and their acknowledgements of skipped messages have no effect.

        Args:
            topic: its name, or that of a partition.
            subscription: its name.
            count: how many messages. A message of a batch counts as one.

        Returns:
            The number of messages skipped: fewer if there were fewer.

        Raises:
            NotAllowedError: it is a partitioned topic; its partitions can be named.
            ValueError: ``count`` is not above 0.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     admin.topics().create_subscription("parcels", "van")
            ...     producer = client.create_producer("parcels")
            ...     _ = [producer.send(text) for text in (b"broken", b"whole")]
            ...     admin.topics().skip_messages("parcels", "van", 1)
            ...     client.subscribe("parcels", "van").receive().data()
            1
            b'whole'
        """
        check_number("count", count, 1)
        with timing.translated:
            if self._store().topics.partitions(topic):
                raise NotAllowedError(
                    f"{TopicName.parse(topic).full} is partitioned, and its partitions have no common order; "
                    f"skip messages of one, such as {TopicName.parse(topic).of_partition(0).full}"
                )
            # One topic has one result.
            return self._access.in_each(
                topic, subscription, lambda _, cursor: cursor.operator_commands().skip(count)
            )[0]

    def skip_all_messages(self, topic: str, subscription: str) -> None:
        """Acknowledge all messages that are stored now; see `skip_messages`.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     admin.topics().create_subscription("noise", "listener")
            ...     _ = client.create_producer("noise").send(b"...")
            ...     admin.topics().skip_all_messages("noise", "listener")
            ...     admin.topics().peek_messages("noise", "listener", 1)
            []
        """
        with timing.translated:
            self._access.in_each(topic, subscription, skip_all)

    def expire_messages(self, topic: str, subscription: str, seconds: int) -> None:
        """Acknowledge the messages that were published more than ``seconds`` ago; see `skip_messages`.

        Raises:
            ValueError: ``seconds`` is not an integer from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_subscription("weather", "display")
            ...     admin.topics().expire_messages("weather", "display", 3600)
            ...     admin.topics().expire_messages_for_all_subscriptions("weather", 3600)
        """
        check_number("seconds", seconds, 0)
        with timing.translated:
            # One moment for all partitions and subscriptions.
            cutoff_ms = self._store().clock.wall_ms() - 1000 * seconds
            self._access.in_each(
                topic, subscription, lambda topic, cursor: _skip_before(topic, cursor, cutoff_ms)
            )

    def expire_messages_for_all_subscriptions(self, topic: str, seconds: int) -> None:
        """Do `expire_messages` for every durable subscription of a topic."""
        check_number("seconds", seconds, 0)
        with timing.translated:
            cutoff_ms = self._store().clock.wall_ms() - 1000 * seconds
            self._access.in_all(topic, lambda topic, cursor: _skip_before(topic, cursor, cutoff_ms))


def skip_all(topic: Topic, subscription: Subscription) -> None:
    """Acknowledge all messages that are stored now."""
    # Read before the command: messages that are stored later stay.
    last = topic.ledger.last_position()
    if last is not None:
        subscription.operator_commands().skip_through(last)


def _skip_before(topic: Topic, subscription: Subscription, cutoff_ms: int) -> None:
    first = topic.ledger.find_by_publish_time(cutoff_ms)
    subscription.operator_commands().skip_through(first.previous(), is_expiry=True)


def _reset(log: Log, subscription: Subscription, target: int | MessageId) -> None:
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
        return log.last_position() or BEFORE_FIRST
    if message_id.ledger_id() < 0:
        return BEFORE_FIRST
    # A chunked message begins at its first chunk; the id that its consumer gets is that of the last.
    message_id = getattr(message_id, "_first_chunk", message_id)
    return Position(message_id.ledger_id(), message_id.entry_id())


def _mark_delete_before(log: Log, message_id: MessageId) -> Position:
    """The mark-delete position with which a subscription begins at a message."""
    place, last = _place(log, message_id), log.last_position() or BEFORE_FIRST
    # An id behind the end is no position yet. The subscription begins at the end.
    if message_id == MessageId.latest or place > last:
        return last
    # A mark-delete position is the last entry that is acknowledged. Before the first entry that is still
    # stored it would name one that is gone.
    return place.previous() if place >= log.first_position() else BEFORE_FIRST


def _check_place(topic: str, partitions: int, target: int | MessageId) -> None:
    """Refuse the id of a message for a partitioned topic."""
    if partitions and isinstance(target, MessageId) and target not in (MessageId.earliest, MessageId.latest):
        raise NotAllowedError(
            f"{TopicName.parse(topic).full} is partitioned, and {target} is a message of one partition; name "
            f"that, such as {TopicName.parse(topic).of_partition(0).full}"
        )


def _check_id(message_id: object, wanted: str = "a subscription begins at a MessageId") -> None:
    if not isinstance(message_id, MessageId):
        raise ValueError(f"{wanted}, not {message_id!r}")


def check_number(name: str, number: int, least: int) -> None:
    """Refuse what is no integer, or below ``least``."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ValueError(f"{name} is an integer from {least} on, not {number!r}")
