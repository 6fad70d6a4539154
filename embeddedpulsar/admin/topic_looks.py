"""The methods of `Topics` that look at a topic and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar.format.sealed_entry import raw_view
from embeddedpulsar.format.sealed_view import SealedView
from embeddedpulsar.message import Message, MessageOrigin, messages_left
from embeddedpulsar.platform import interrupts
from embeddedpulsar.schema import BytesSchema

if TYPE_CHECKING:
    from embeddedpulsar.topic.store import Store
    from embeddedpulsar.topic.topic import Topic


class TopicLooks:
    """What a topic holds, who uses it, and how far its subscriptions have come."""

    _store: Callable[[], Store]

    def peek_messages(self, topic: str, subscription: str, num_messages: int) -> list[Message[bytes]]:
        """Return the first messages that a subscription has not acknowledged. Nothing is consumed: consumers
        receive them as if they had not been looked at.

        The messages include those that a consumer holds at the moment, or that are delayed. Entries that are
        encrypted come as one message with the ciphertext and its `Message.encryption_context`.

        Args:
            topic: its name, or that of a partition.
            subscription: name of a durable subscription.
            num_messages: how many messages at most. A message of a batch counts as one.

        Raises:
            TopicNotFound: no such topic.
            SubscriptionNotFound: no such subscription.
            NotAllowedError: it is a partitioned topic; its partitions can be looked at.
            ValueError: ``num_messages`` is not above 0.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     consumer = client.subscribe("letterbox", "postman")
            ...     producer = client.create_producer("letterbox")
            ...     _ = [producer.send(text) for text in (b"one", b"two", b"three")]
            ...     [message.data() for message in admin.topics().peek_messages("letterbox", "postman", 2)]
            [b'one', b'two']
        """
        if isinstance(num_messages, bool) or not isinstance(num_messages, int) or num_messages < 1:
            raise ValueError(f"num_messages is a number above 0, not {num_messages!r}")
        with interrupts.translated:
            use = self._store().use_topic(topic, create=False)
            try:
                return _first_unacked(use.topic, subscription, num_messages)
            finally:
                use.release()


def _first_unacked(topic: Topic, name: str, most: int) -> list[Message[bytes]]:
    subscription = topic.use_subscription(name, create=False)
    try:
        origin, found = MessageOrigin(topic.name, BytesSchema()), list[Message[bytes]]()
        for view in subscription.unacked_entries():
            if isinstance(view, SealedView):
                view = raw_view(view, topic.name)
            found += messages_left(view, view.skip, origin)
            if len(found) >= most:
                break
        return found[:most]
    finally:
        topic.end_use(subscription, name)
