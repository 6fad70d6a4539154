"""What a topic holds, who uses it, and how far its subscriptions have come: the methods that only look."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.entry_decoder import SealedView
from embeddedpulsar._engine.format.sealed_entry import raw_view
from embeddedpulsar._engine.log.log_positions import last_message_id, read_whole_entry
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform.peers import lease_holders
from embeddedpulsar._engine.store.catalog import root_layout
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar._engine.store.topic_access import TopicAccess
from embeddedpulsar.admin import topic_figures
from embeddedpulsar.admin.topic_stats import (
    AnalyzeSubscriptionBacklogResult,
    KeptLedger,
    KeptLedgers,
    PartitionedTopicMetadata,
    PartitionedTopicStats,
    TopicInternalStats,
    TopicStats,
    kept_ledgers,
    ledgers_of,
)
from embeddedpulsar.exceptions import InvalidMessage, NotAllowedError, SubscriptionNotFound
from embeddedpulsar.message import Message, messages_left
from embeddedpulsar.message_id import MessageId, make
from embeddedpulsar.schema.schema import origin_of
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.format.entry_decoder import EntryView
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic

# Ledger and entry ids have 32 bits; larger ones name nothing.
_MOST_ID: Final = 1 << 32


class TopicLooks:
    """Tells what topics hold, who uses them, and how far their subscriptions have come: a part of `Topics`.

    They see the whole store, whatever process uses it, and change nothing: no file is made or written. An
    exception are topics that were not used since the machine was restarted or the store was copied: any first
    use recovers them. They take no lock that producers or consumers hold, so a stopped process does not hold
    them up. An acknowledgement counts when the consumer has written it: ``ack_group_time_ms`` after it was
    made, at the latest. Thread-safe.

    All of them raise `TopicNotFound` if there is no such topic, `NotAllowedError` for a partitioned topic
    unless they say otherwise, and `LockTimeout` after 5 s if a topic must be recovered and a stopped process
    prevents that.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._access = TopicAccess(store)

    # -- statistics ------------------------------------------------------------------------------------------

    def get_stats(self, topic: str) -> TopicStats:
        """Return rates, sizes, producers, subscriptions and consumers of a topic that is not partitioned, or
        of a partition. Backlogs are exact; no message is read for them.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     consumer = client.subscribe("meters", "billing", consumer_name="c-1")
            ...     producer = client.create_producer("meters")
            ...     _ = [producer.send(text) for text in (b"one", b"two", b"three")]
            ...     stats = admin.topics().get_stats("meters")
            ...     stats.msg_in_counter, stats.subscriptions["billing"].msg_backlog
            ...     stats.json()["subscriptions"]["billing"]["consumers"][0]["consumerName"]
            (3, 3)
            'c-1'
        """

        def body(used: Topic | None) -> TopicStats:
            store = self._store()
            if used is None:
                drops_duplicates = store.policy(TopicName.parse(topic).full, DEDUPLICATION)
            else:
                drops_duplicates = used.policies.value(DEDUPLICATION)
            clients = root_layout.in_root(store.root, root_layout.CLIENTS)
            return topic_figures.topic_stats(
                used,
                store.clock.wall_ms(),
                drops_duplicates,
                lambda: lease_holders(clients, store.peers.is_alive),
            )

        try:
            return self._access.inspect(topic, body)
        # A partitioned topic has no log of its own. The error gets the name of the method that was meant.
        except NotAllowedError as e:
            if not self._store().topics.partitions(topic):
                raise
            raise NotAllowedError(f"{e}. get_partitioned_stats adds up what they have") from None

    def get_partitioned_stats(self, topic: str, per_partition: bool = True) -> PartitionedTopicStats:
        """Return the sums of the stats of all partitions.

        Args:
            topic: its name.
            per_partition: whether the result also has the stats of each partition.

        Raises:
            NotAllowedError: it is not partitioned.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_partitioned_topic("gauges", 2)
            ...     stats = admin.topics().get_partitioned_stats("gauges")
            ...     stats.metadata.partitions, stats.totals.storage_size, len(stats.partitions)
            (2, 0, 2)
        """
        names = self._access.partitions_of(topic)
        # Two mistakes look alike: a topic that does not exist, for which `was_used` raises, and one without
        # partitions.
        if not names:
            self._store().topics.was_used(topic)  # raises if there is no such topic
            raise NotAllowedError(f"{TopicName.parse(topic).full} is not partitioned; use get_stats")
        partitions = {name: self.get_stats(name) for name in names}
        totals = topic_figures.sum_of(list(partitions.values()))
        metadata = PartitionedTopicMetadata(len(partitions))
        return PartitionedTopicStats(metadata, totals, partitions if per_partition else {})

    def get_internal_stats(self, topic: str) -> TopicInternalStats:
        """Return the ledgers of a topic, and the positions of its durable subscriptions.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     client.create_producer("counters").send(b"one").entry_id()
            ...     [ledger.entries for ledger in admin.topics().get_internal_stats("counters").ledgers]
            0
            [1]
        """
        return self._access.inspect(topic, topic_figures.internal_stats)

    def get_subscriptions(self, topic: str) -> list[str]:
        """Return the names of the subscriptions of a topic, sorted; for a partitioned topic, those of any
        partition. Subscriptions that are not durable are listed while they have consumers.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     consumer = client.subscribe("switches", "audit")
            ...     admin.topics().get_subscriptions("switches")
            ['audit']
        """
        names: set[str] = set()
        for name in self._access.partitions_of(topic) or [topic]:
            subscriptions = self._access.inspect(
                name, lambda used: [] if used is None else used.view.subscriptions()
            )
            names.update(facts.name for facts, _ in subscriptions)
        return sorted(names)

    def analyze_subscription_backlog(self, topic: str, subscription: str) -> AnalyzeSubscriptionBacklogResult:
        """Return how many entries and messages a durable subscription has not acknowledged.

        Raises:
            SubscriptionNotFound: no such subscription.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     consumer = client.subscribe("valves", "audit")
            ...     _ = client.create_producer("valves").send(b"one")
            ...     admin.topics().analyze_subscription_backlog("valves", "audit")
            AnalyzeSubscriptionBacklogResult(entries=1, messages=1, aborted=False)
        """

        def body(used: Topic | None) -> AnalyzeSubscriptionBacklogResult:
            used_topic = _subscribed(used, topic, subscription)
            return topic_figures.backlog_of(used_topic.ledger, used_topic.view.facts(subscription))

        return self._access.inspect(topic, body)

    def get_backlog_size_by_message_id(self, topic: str, message_id: MessageId) -> int:
        """Return the bytes of storage of all that is behind a message; with `MessageId.earliest`, of all that
        is retained.

        Raises:
            ValueError: ``message_id`` is not a `MessageId`.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     last = client.create_producer("pipes").send(b"one")
            ...     admin.topics().get_backlog_size_by_message_id("pipes", last)
            0
        """
        if not isinstance(message_id, MessageId):
            raise ValueError(f"message_id is a MessageId, not {message_id!r}")
        # -1 as a ledger stands for the earliest position.
        position = Position(max(message_id.ledger_id(), 0), message_id.entry_id())
        return self._access.inspect(
            topic, lambda used: 0 if used is None else used.ledger.survey().bytes_after(position)
        )

    # -- messages --------------------------------------------------------------------------------------------

    def peek_messages(self, topic: str, subscription: str, num_messages: int) -> list[Message[bytes]]:
        """Return the first messages that a subscription has not acknowledged. Nothing is consumed: consumers
        receive them as if they had not been looked at.

        The messages include those that a consumer holds at the moment, or that are delayed, and have their
        redelivery counts. Entries that are
        encrypted come as one message with the ciphertext and its `Message.encryption_context`.

        Args:
            topic: its name, or that of a partition.
            subscription: name of a durable subscription.
            num_messages: how many messages at most. A message of a batch counts as one.

        Raises:
            SubscriptionNotFound: no such subscription.
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
        limit = _number("num_messages", num_messages, 1)

        def body(used: Topic | None) -> list[Message[bytes]]:
            messages = list[Message[bytes]]()
            subscribed = _subscribed(used, topic, subscription)
            # A copy of the subscription's state, which is read without its lock. Consumers go on meanwhile,
            # so a message that is shown may be acknowledged by now.
            followed = subscribed.view.subscription(subscription)
            for view in followed.unacked_entries(subscribed.ledger):
                view.redelivery_count = followed.redeliveries(view.ledger_id, view.entry_id)
                messages += _messages_of(view, subscribed.name, self._store)
                if len(messages) >= limit:
                    break
            return messages[:limit]

        return self._access.inspect(topic, body)

    def examine_message(
        self, topic: str, initial_position: str = "latest", message_position: int = 1
    ) -> Message[bytes]:
        """Return one message, counted from an end of the topic.

        Args:
            topic: its name, or that of a partition.
            initial_position: ``earliest``, to count from the first retained message; ``latest``, to count
                backwards from the last.
            message_position: 1 for the first one there. A message of a batch counts as one.

        Raises:
            InvalidMessage: there are not as many messages, or it cannot be read.
            ValueError: an argument is wrong.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     producer = client.create_producer("sensors")
            ...     _ = [producer.send(text) for text in (b"one", b"two", b"three")]
            ...     admin.topics().examine_message("sensors", "latest", 2).data()
            b'two'
        """
        if initial_position not in ("earliest", "latest"):
            raise ValueError(f"initial_position is 'earliest' or 'latest', not {initial_position!r}")
        number = _number("message_position", message_position, 1)

        def body(used: Topic | None) -> Message[bytes]:
            survey = None if used is None else used.ledger.survey()
            # Counted by the indexes: no entry is read but the one that is asked for.
            total = 0 if survey is None else sum(ledger.messages for ledger in survey.ledgers())
            at = number - 1 if initial_position == "earliest" else total - number
            place = survey.nth_message(at) if survey is not None and at >= 0 else None
            if used is None or place is None:
                name = TopicName.parse(topic).full
                raise InvalidMessage(f"{name} has {total} messages, so there is no message {number}")
            position, index = place
            messages = _messages_at(used, position, self._store)
            return messages[min(index, len(messages) - 1)]  # an encrypted batch is one message

        return self._access.inspect(topic, body)

    def get_message_by_id(self, topic: str, ledger_id: int, entry_id: int) -> Message[bytes]:
        """Return the message of an entry; of a batch, the first. See `get_messages_by_id`."""
        return self.get_messages_by_id(topic, ledger_id, entry_id)[0]

    def get_messages_by_id(self, topic: str, ledger_id: int, entry_id: int) -> list[Message[bytes]]:
        """Return the messages of an entry: one, or those of a batch, or a chunked message by its last part.

        Raises:
            InvalidMessage: there is no such entry, it cannot be read, or it is another part of a chunked
                message.
            ValueError: an id is not a number from 0.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     sent = client.create_producer("lamps").send(b"one")
            ...     at = "lamps", sent.ledger_id(), sent.entry_id()
            ...     admin.topics().get_message_by_id(*at).data(), len(admin.topics().get_messages_by_id(*at))
            (b'one', 1)
        """
        position = Position(_number("ledger_id", ledger_id, 0), _number("entry_id", entry_id, 0))

        def body(used: Topic | None) -> list[Message[bytes]]:
            if used is None:
                raise InvalidMessage(f"{TopicName.parse(topic).full} has no messages")
            return _messages_at(used, position, self._store)

        return self._access.inspect(topic, body)

    def get_last_message_id(self, topic: str) -> MessageId:
        """Return the id of the last message of a topic; ``(-1,-1,...)`` if it never had any.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     sent = client.create_producer("doors").send(b"one")
            ...     admin.topics().get_last_message_id("doors") == sent
            True
        """
        partition = TopicName.parse(topic).partition
        return self._access.inspect(
            topic,
            lambda used: (
                make(-1, -1, -1, partition, 0) if used is None else last_message_id(used.ledger, partition)
            ),
        )

    def get_message_id_by_timestamp(self, topic: str, timestamp: int) -> MessageId:
        """Return the id of the first entry that was published at a time or later.

        Args:
            topic: its name, or that of a partition.
            timestamp: ms since 1970.

        Returns:
            The id; behind the last message if none was published since then.

        Raises:
            ValueError: ``timestamp`` is not a number from 0.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     sent = client.create_producer("gates").send(b"one")
            ...     admin.topics().get_message_id_by_timestamp("gates", 0) == sent
            True
        """
        partition, time_ms = TopicName.parse(topic).partition, _number("timestamp", timestamp, 0)

        def body(used: Topic | None) -> MessageId:
            position = Position(-1, -1) if used is None else used.ledger.find_by_publish_time(time_ms)
            return make(position.ledger_id, position.entry_id, -1, partition, 0)

        return self._access.inspect(topic, body)


def all_kept_ledgers(topics: TopicLooks, topic: str) -> KeptLedgers:
    """See `Admin.why_kept`."""
    store, access = topics._store(), topics._access
    ledgers: list[KeptLedger] = []
    for name in access.partitions_of(topic) or [topic]:
        ledgers += access.inspect(name, lambda used: [] if used is None else ledgers_of(store, used))
    return kept_ledgers(ledgers)


def _subscribed(used: Topic | None, topic: str, subscription: str) -> Topic:
    if used is None:
        raise SubscriptionNotFound(f"{TopicName.parse(topic).full} has no subscription {subscription!r}")
    return used


def _number(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is a number from {least}, not {value!r}")
    return value


def _messages_at(topic: Topic, position: Position, store: Callable[[], Store]) -> list[Message[bytes]]:
    view = None
    if max(position) < _MOST_ID:
        view = read_whole_entry(topic.ledger, position, topic.ledger.chunks())
    if view is None:
        raise InvalidMessage(
            f"{topic.name} has no message in entry {position}: it was never stored, was trimmed, is damaged, "
            "or is a part of a chunked message that is not its last"
        )
    return _messages_of(view, topic.name, store)


def _messages_of(
    view: EntryView | SealedView, topic: str, store: Callable[[], Store]
) -> list[Message[bytes]]:
    """The messages of an entry that are not acknowledged; one with the ciphertext if it is encrypted."""
    if isinstance(view, SealedView):
        # An Admin has no keys: the ciphertext is shown, as one message.
        view = raw_view(view, topic)
    return messages_left(view, view.skip, origin_of(store, topic))
