"""Administration of topics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from embeddedpulsar._engine.log.log_positions import last_message_id
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.peers import lease_holders
from embeddedpulsar._engine.store import root_layout
from embeddedpulsar._engine.store.policies import admitting
from embeddedpulsar._engine.store.topic_access import TopicAccess, log_names
from embeddedpulsar._engine.store.topic_compaction import LongRunningProcessStatus, joint_status
from embeddedpulsar.admin import topic_figures
from embeddedpulsar.admin.dead_letters import (
    check_id,
    check_number,
    check_place,
    checked_number,
    mark_delete_before,
    messages_at,
    messages_of_entry,
    reset,
    skip_all,
    skip_before,
    with_messages,
)
from embeddedpulsar.admin.policies import Policies
from embeddedpulsar.admin.topic_figures import (
    first_within,
    joint_progress,
    progress_of_compaction,
    progress_of_offload,
    status_of_compaction,
    status_of_offload,
)
from embeddedpulsar.admin.topic_stats import (
    AnalyzeSubscriptionBacklogResult,
    PartitionedTopicMetadata,
    PartitionedTopicStats,
    TopicInternalStats,
    TopicStats,
)
from embeddedpulsar.exceptions import (
    InvalidConfiguration,
    InvalidMessage,
    NotAllowedError,
    SubscriptionNotFound,
    TopicNotFound,
    TopicTerminated,
)
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId, Position, make
from embeddedpulsar.policy_values import DelayedDeliveryPolicies
from embeddedpulsar.topic_name import TopicName, without_system_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic

_DEFAULT_NAMESPACE = "public/default"


class Topics(Policies):
    """Creates, grows, lists and deletes topics, ends, trims, compacts and offloads them, shows what they
    hold, manages their subscriptions, and sets their policies. `Admin.topics` returns it.

    Names may be short (``orders``) or full. Every change is atomic: a process that is killed in the middle
    leaves the topic either unchanged or completely changed. Thread-safe.

    Methods that only look see the whole store, whatever process uses it, and change nothing: no file is made
    or written. An exception are topics that were not used since the machine was restarted or the store was
    copied: any first use recovers them. They take no lock that producers or consumers hold, so a stopped
    process does not hold them up. An acknowledgement counts when the consumer has written it:
    ``ack_group_time_ms`` after it was made, at the latest.

    Methods that create, move, empty and delete durable subscriptions do it in every partition that has the
    subscription, one after the other. Each partition is changed as a whole or not at all. If the process is
    killed in between, the call can be made again. Consumers of any process may be attached.

    All methods raise `InvalidTopicName` for a text that is not a topic name, `AlreadyClosed` if the Admin
    is closed, and a `StorageError` if files cannot be used. Those that only look raise `TopicNotFound` if
    there is no such topic, `NotAllowedError` for a partitioned topic unless they say otherwise, and
    `LockTimeout` after 5 s if a topic must be recovered and a stopped process prevents that. Those of a
    subscription raise `SubscriptionNotFound` if no partition has it.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._access = TopicAccess(store)

    # -- making ------------------------------------------------------------------------------------------

    def create_non_partitioned_topic(self, topic: str) -> None:
        """Create a topic, independent of ``allowAutoTopicCreation``.

        Raises:
            NotAllowedError: there is a topic of that name.
            TopicNotFound: there is no such namespace, or the partitioned topic has fewer partitions.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("audit")
            ...     "persistent://public/default/audit" in admin.topics().get_list()
            True
        """
        with timing.translated:
            self._store().topics.create_topic(topic)

    def create_non_partitioned_topics(self, topics: Iterable[str]) -> None:
        """Create many topics at once, which pulsar-admin cannot; see `create_non_partitioned_topic`.

        On return they survive a power failure. Each 5,000 of them are one record in the list of topics, so a
        process that is killed meanwhile leaves all of these or none. A name that is given twice counts once.

        Args:
            topics: their names.

        Raises:
            NotAllowedError: there is a topic of one of the names. None of its 5,000 was created.
            TopicNotFound: there is no such namespace, or a partitioned topic has fewer partitions.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topics(f"sensor-{number}" for number in range(1000))
            ...     len([name for name in admin.topics().get_list() if "/sensor-" in name])
            1000
        """
        with timing.translated:
            self._store().topics.create_topics(topics, durable=True)

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with partitions: topics named ``<topic>-partition-<i>``, which exist at once.

        Args:
            topic: its name, which must not be that of a partition.
            partitions: 1 to 10,000. The number can grow, and never shrinks.

        Raises:
            NotAllowedError: there is a topic of that name, or one named like a partition of it.
            TopicNotFound: there is no such namespace.
            ValueError: the number is out of range.
        """
        with timing.translated:
            self._store().topics.create_partitioned(topic, partitions)

    def update_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Add partitions to a partitioned topic.

        Open producers, consumers and readers of all processes use them within a second. Subscriptions receive
        the new partitions from their first message on. Keys may be routed to other partitions from then on.

        Args:
            topic: its name.
            partitions: the new number, not lower than the current one.

        Raises:
            NotAllowedError: it has more partitions, or is not partitioned.
            TopicNotFound: no such topic.
            ValueError: the number is out of range.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_partitioned_topic("trips", 2)
            ...     admin.topics().update_partitioned_topic("trips", 3)
            ...     admin.topics().get_partitioned_topic_metadata("trips")
            ...     len(admin.topics().terminate_partitioned_topic("trips"))
            ...     admin.topics().delete_partitioned_topic("trips")
            PartitionedTopicMetadata(partitions=3)
            3
        """
        with timing.translated:
            self._store().grow_partitions(topic, partitions)

    # -- deleting ----------------------------------------------------------------------------------------

    def delete(self, topic: str, force: bool = False) -> None:
        """Delete a topic that is not partitioned, with its subscriptions and messages. On return the deletion
        survives a power failure.

        Args:
            topic: its name.
            force: delete even if producers or consumers are attached. Their next call raises an error that
                says that the topic was deleted. Readers never prevent a deletion, and get that error too.

        Raises:
            BrokerMetadataError: producers or consumers are attached, and ``force`` is False.
            NotAllowedError: it is partitioned, or a partition.
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("scratch")
            ...     admin.topics().delete("scratch")
        """
        with timing.translated:
            self._store().delete_topic(topic, force=force)

    def delete_partitioned_topic(self, topic: str, force: bool = False) -> None:
        """Delete a partitioned topic with all its partitions; see `delete`."""
        with timing.translated:
            self._store().delete_partitioned_topic(topic, force=force)

    # -- listing -----------------------------------------------------------------------------------------

    def get_list(
        self, namespace: str = _DEFAULT_NAMESPACE, *, include_system_topic: bool = False
    ) -> list[str]:
        """Return the full names of the topics of a namespace, sorted.

        For a partitioned topic, these are the names of its partitions.

        Args:
            namespace: ``tenant/namespace``.
            include_system_topic: list system topics, too: ``__change_events`` and the like, which an earlier
                release may have created.

        Raises:
            TopicNotFound: there is no such namespace.
        """
        names = self._of(namespace).topics.names(namespace)
        return names if include_system_topic else without_system_topics(names)

    def get_partitioned_topic_list(
        self, namespace: str = _DEFAULT_NAMESPACE, *, include_system_topic: bool = False
    ) -> list[str]:
        """Return the full names of the partitioned topics of a namespace, sorted; see `get_list`.

        Raises:
            TopicNotFound: there is no such namespace.
        """
        names = self._of(namespace).topics.partitioned_names(namespace)
        return names if include_system_topic else without_system_topics(names)

    def get_partitioned_topic_metadata(self, topic: str) -> PartitionedTopicMetadata:
        """Return the metadata of a topic: its number of partitions. Those in which Pulsar keeps transactions
        have some, too, though no store has such topics: ``pulsar/system/transaction_coordinator_assign`` 1.

        Raises:
            TopicNotFound: no such topic.
        """
        store = self._store()
        partitions = store.topics.partitions(topic)
        # 0 is the answer for a topic without partitions, which exists.
        if not partitions and not store.topics.has(topic):
            of_transactions = store.topics.partitions_of_transactions(topic)
            if of_transactions is not None:
                return PartitionedTopicMetadata(of_transactions)
            raise TopicNotFound(f"{TopicName.parse(topic).full}: no such topic in {store.root}")
        return PartitionedTopicMetadata(partitions)

    def _of(self, namespace: str) -> Store:
        store = self._store()
        store.topics.namespaces.check(namespace)
        return store

    # -- looking at topics -------------------------------------------------------------------------------

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
                drops_duplicates = store.policy(TopicName.parse(topic).full, admitting.DEDUPLICATION)
            else:
                drops_duplicates = used.policies.value(admitting.DEDUPLICATION)
            clients = root_layout.in_root(store.root, root_layout.CLIENTS)
            stats = topic_figures.topic_stats(
                used,
                store.clock.wall_ms(),
                drops_duplicates,
                lambda: lease_holders(clients, store.peers.is_alive),
            )
            transactions = None if used is None else used.view.transactions()
            if transactions is None:
                return stats
            return stats._replace(
                ongoing_txn_count=len(transactions.opened),
                aborted_txn_count=transactions.aborted,
                committed_txn_count=transactions.committed,
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

    # -- looking at messages -----------------------------------------------------------------------------

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
        limit = checked_number("num_messages", num_messages, 1)

        def body(used: Topic | None) -> list[Message[bytes]]:
            messages = list[Message[bytes]]()
            subscribed = _subscribed(used, topic, subscription)
            # A copy of the subscription's state, which is read without its lock. Consumers go on meanwhile,
            # so a message that is shown may be acknowledged by now.
            followed = subscribed.view.subscription(subscription)
            for view in followed.unacked_entries(subscribed.ledger):
                view.redelivery_count = followed.redeliveries(view.ledger_id, view.entry_id)
                messages += messages_of_entry(view, subscribed.name, self._store)
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
        number = checked_number("message_position", message_position, 1)

        def body(used: Topic | None) -> Message[bytes]:
            survey = None if used is None else used.ledger.survey()
            # Counted by the indexes: no entry is read but the one that is asked for.
            total = 0 if survey is None else survey.messages()
            at = number - 1 if initial_position == "earliest" else total - number
            place = survey.nth_message(at) if survey is not None and at >= 0 else None
            if used is None or place is None:
                name = TopicName.parse(topic).full
                raise InvalidMessage(f"{name} has {total} messages, so there is no message {number}")
            position, index = place
            messages = messages_at(used, position, self._store)
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
        position = Position(
            checked_number("ledger_id", ledger_id, 0), checked_number("entry_id", entry_id, 0)
        )

        def body(used: Topic | None) -> list[Message[bytes]]:
            if used is None:
                raise InvalidMessage(f"{TopicName.parse(topic).full} has no messages")
            return messages_at(used, position, self._store)

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
        partition, time_ms = TopicName.parse(topic).partition, checked_number("timestamp", timestamp, 0)

        def body(used: Topic | None) -> MessageId:
            position = Position(-1, -1) if used is None else used.ledger.find_by_publish_time(time_ms)
            return make(position.ledger_id, position.entry_id, -1, partition, 0)

        return self._access.inspect(topic, body)

    # -- subscriptions: creating and deleting ------------------------------------------------------------

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
        check_id(message_id)
        with timing.translated:
            store = self._store()
            partitions = store.topics.resolve(topic)
            check_place(topic, partitions, message_id)
            # A kill after some partitions leaves the subscription in those. The call may be made again:
            # partitions that have it are left as they are, and it is an error only if all of them had it.
            is_new = []
            for name in log_names(topic, partitions):
                use = store.use_topic(name)
                try:
                    initial = mark_delete_before(use.topic.ledger, message_id)
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

    # -- subscriptions: moving ---------------------------------------------------------------------------

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
            check_id(target, "a cursor is reset to a time in ms since 1970 or to a MessageId")
        with timing.translated:
            # The id of a message of a partition names its partition, so the name of the whole topic is
            # enough.
            if isinstance(target, MessageId) and target.partition() >= 0:
                parsed = TopicName.parse(topic)
                if parsed.partition < 0 and self._store().topics.partitions(topic):
                    topic = parsed.of_partition(target.partition()).full
            check_place(topic, self._store().topics.partitions(topic), target)
            self._access.in_each(
                topic, subscription, lambda topic, cursor: reset(topic.ledger, cursor, target)
            )

    # -- subscriptions: emptying -------------------------------------------------------------------------

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

    def skip_message(self, topic: str, subscription: str, message_id: MessageId) -> None:
        """Acknowledge one message that a subscription has not acknowledged; see `skip_messages`. Not in
        Pulsar.

        Args:
            topic: its name; for a partitioned topic, the id names the partition.
            subscription: its name.
            message_id: of the message, as `peek_messages` shows it. Without a batch index, all messages of
                the entry.

        Raises:
            NotAllowedError: the subscription has acknowledged it, or the topic does not have it.
            SubscriptionNotFound: no such subscription.
            ValueError: it is no `MessageId`.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     admin.topics().create_subscription("crates", "crane")
            ...     producer = client.create_producer("crates")
            ...     ids = [producer.send(text) for text in (b"first", b"broken", b"last")]
            ...     admin.topics().skip_message("crates", "crane", ids[1])
            ...     [message.data() for message in admin.topics().peek_messages("crates", "crane", 3)]
            [b'first', b'last']
        """
        with timing.translated:
            with_messages(
                self._store,
                topic,
                subscription,
                message_id,
                lambda _, cursor, chosen: chosen.acknowledge(cursor),
            )

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
                topic, subscription, lambda topic, cursor: skip_before(topic, cursor, cutoff_ms)
            )

    def expire_messages_for_all_subscriptions(self, topic: str, seconds: int) -> None:
        """Do `expire_messages` for every durable subscription of a topic."""
        check_number("seconds", seconds, 0)
        with timing.translated:
            cutoff_ms = self._store().clock.wall_ms() - 1000 * seconds
            self._access.in_all(topic, lambda topic, cursor: skip_before(topic, cursor, cutoff_ms))

    # -- ending and unloading ----------------------------------------------------------------------------

    def terminate_topic(self, topic: str) -> MessageId:
        """End a topic, for ever: it takes no more messages. Those it has stay, and are received as before.

        Producers of all processes get `TopicTerminated` from their next call, and so does `create_producer`.
        On return the end survives a power failure. May be repeated.

        Args:
            topic: its name, or that of a partition.

        Returns:
            The id of the last entry; `MessageId.earliest` if there is none.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: it is partitioned; use `terminate_partitioned_topic`.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     producer = client.create_producer("election")
            ...     last = producer.send(b"the last vote")
            ...     admin.topics().terminate_topic("election") == last
            True
        """
        with timing.translated:
            store = self._store()
            # The methods of Pulsar are two as well: one id, or one for each partition.
            if store.topics.partitions(topic):
                raise NotAllowedError(
                    f"{TopicName.parse(topic).full} is partitioned; use terminate_partitioned_topic"
                )
            return _terminate(store, topic)

    def terminate_partitioned_topic(self, topic: str) -> dict[int, MessageId]:
        """End all partitions of a topic, one after the other; see `terminate_topic`. If the process is killed
        in between, the call can be made again.

        Returns:
            The id of the last entry of each partition, by the index of the partition.

        Raises:
            NotAllowedError: it is not partitioned.
        """
        with timing.translated:
            store = self._store()
            names = self._access.partitions_of(topic)
            if not names:
                store.topics.was_used(topic)  # raises if there is no such topic
                raise NotAllowedError(
                    f"{TopicName.parse(topic).full} is not partitioned; use terminate_topic"
                )
            # One after the other. A kill leaves some partitions that still take messages, and the call may be
            # made again.
            return {index: _terminate(store, name) for index, name in enumerate(names)}

    def unload(self, topic: str) -> None:
        """Have consumers of all processes begin anew, as when a broker gives up a topic: what they hold or
        have fetched is void, and what is not acknowledged is delivered again. The redelivery counts of Shared
        and Key_Shared subscriptions begin at 0. Nothing else is lost. The open ledger is closed, as by
        `roll_ledger`, unless the topic is terminated.

        For a partitioned topic, in all partitions. Concerns durable subscriptions.

        Raises:
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     consumer = client.subscribe("alarms", "guard")
            ...     _ = client.create_producer("alarms").send(b"smoke")
            ...     first = consumer.receive()
            ...     admin.topics().unload("alarms")
            ...     consumer.receive().message_id() == first.message_id()
            True
        """
        with timing.translated:
            self._access.in_all(topic, lambda _, subscription: subscription.operator_commands().give_back())
            # A terminated topic has no open ledger, which is not what the caller asked about.
            with contextlib.suppress(TopicTerminated):
                self._access.in_logs(topic, lambda used_topic: used_topic.ledger.roll())

    def roll_ledger(self, topic: str) -> int:
        """Close the open ledger of a topic, and start the next one. What is closed can be trimmed and
        offloaded; producers and consumers go on without noticing. A ledger without messages stays open. For a
        partitioned topic, in all partitions.

        In Pulsar a ledger is closed when its broker unloads the topic. `unload` does it here, too; this
        method leaves the consumers alone.

        Returns:
            The number of ledgers that were closed.

        Raises:
            TopicNotFound: no such topic.
            TopicTerminated: the topic was ended; its last ledger stays.
            StorageFullError: there is no room for the next ledger, some 16 KiB. Nothing was changed.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     _ = client.create_producer("journal").send(b"an entry")
            ...     admin.topics().roll_ledger("journal"), admin.topics().roll_ledger("journal")
            (1, 0)
        """
        closed: list[Topic] = []

        def roll(used_topic: Topic) -> None:
            # The tail word has the ledger id in its upper 32 bits. An empty ledger is not closed, and the id
            # stays.
            before = used_topic.ledger.tail >> 32
            if used_topic.ledger.roll() != before:
                closed.append(used_topic)

        with timing.translated:
            self._access.in_logs(topic, roll)
        return len(closed)

    # -- trimming, compacting and offloading -------------------------------------------------------------

    def trim_topic(self, topic: str) -> int:
        """Remove ledgers now instead of in the background: those that every durable subscription has
        acknowledged, and retention does not keep. The open ledger is closed and removed, too, if it is one of
        them and holds more than 64 KiB. For a partitioned topic, in all partitions.

        Returns:
            The number of removed ledgers.

        Raises:
            TopicNotFound: no such topic.
            StorageFullError: there is no room for the successor of the open ledger, some 16 KiB. The closed
                ones were removed.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("visits")
            ...     admin.topics().trim_topic("visits")
            0
        """
        with timing.translated:
            return sum(
                self._store().trim_topic(name) for name in self._access.partitions_of(topic) or [topic]
            )

    def truncate(self, topic: str) -> None:
        """Acknowledge all messages for every durable subscription, and remove all ledgers, whatever retention
        says. The open ledger stays if it holds at most 64 KiB, if no durable subscription is there, or if
        messages are published meanwhile. For a partitioned topic, in all partitions.

        Readers and non-durable subscriptions go on with what is left.

        Raises:
            TopicNotFound: no such topic.
            StorageFullError: as of `trim_topic`.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     admin.topics().create_subscription("debug", "nightly")
            ...     _ = client.create_producer("debug").send(b"...")
            ...     admin.topics().truncate("debug")
            ...     admin.topics().peek_messages("debug", "nightly", 1)
            []
        """
        with timing.translated:
            # Acknowledged first, since trimming removes only what no subscription needs. A kill in between
            # leaves the ledgers to the trimming in the background, which keeps to the retention.
            self._access.in_all(topic, skip_all)
            self._access.in_logs(topic, lambda used_topic: used_topic.trim_now(ignore_retention=True))

    def compact(self, topic: str) -> None:
        """Begin to compact a topic, or all partitions of a partitioned one, and return.

        The newest message of each key stays for those that read with ``is_read_compacted``. It runs in this
        process, in the background; closing the Admin, or the last client, waits for it.

        Raises:
            NotAllowedError: it is being compacted already, in whatever process, or is not persistent.
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin, Client, MessageId
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     producer = client.create_producer("stock")
            ...     for count in (b"12", b"11", b"10"):
            ...         message_id = producer.send(count, partition_key="apples")
            ...     admin.topics().compact("stock")
            ...     while admin.topics().compaction_status("stock").status == "RUNNING":
            ...         pass
            ...     reader = client.create_reader("stock", MessageId.earliest, is_read_compacted=True)
            ...     reader.read_next().data(), reader.has_message_available()
            (b'10', False)
        """
        store = self._store()
        with timing.translated:
            for name in self._access.partitions_of(topic) or [topic]:
                use = store.use_topic(name, create=False)
                try:
                    if use.topic.ledger.is_volatile:
                        raise NotAllowedError(f"{use.topic.name} is not persistent, and cannot be compacted")
                    # The thread of the compaction takes the use over, and releases it at its end. Only if it
                    # does not start, it is released here.
                    use.topic.compaction.get().start(use.release)
                except BaseException:
                    use.release()
                    raise

    def compaction_status(self, topic: str) -> LongRunningProcessStatus:
        """Return how the compaction of a topic stands, in whatever process it runs; of a partitioned topic,
        ``RUNNING`` or ``ERROR`` if that holds for a partition."""
        return joint_status(
            self._access.inspect(name, status_of_compaction)
            for name in self._access.partitions_of(topic) or [topic]
        )

    def compaction_progress(self, topic: str) -> tuple[int, int]:
        """Return how many entries a compaction of a topic in this process has read, and about how many there
        are; 0 of 0 where none runs here. Of a partitioned topic, those of all partitions. Not in Pulsar.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     _ = client.create_producer("shelf").send(b"9", partition_key="tea")
            ...     admin.topics().compaction_progress("shelf")
            (0, 0)
        """
        return joint_progress(
            self._access.inspect(name, progress_of_compaction)
            for name in self._access.partitions_of(topic) or [topic]
        )

    def offload(self, topic: str, size_threshold: int = 0) -> int:
        """Begin to move the oldest closed ledgers of a topic, or of each partition of a partitioned one, to
        its offload location, and return.

        It runs in this process, in the background; closing the Admin, or the last client, waits for it. The
        ledger that is being written stays. The messages are read back as before.

        Args:
            topic: the name.
            size_threshold: bytes of the topic, or of each partition, that stay in the store.

        Returns:
            How many ledgers are to be moved: 0 if no closed ledger lies beyond the threshold.

        Raises:
            NotAllowedError: the topic is being offloaded already, in whatever process, or is kept in memory.
            InvalidConfiguration: no location is set, or there is no such file system.
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin, Client, MessageId
            >>> from embeddedpulsar.policy_values import OffloadPolicies
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     client.subscribe("archive", "readers").close()  # which keeps what it has not acknowledged
            ...     _ = client.create_producer("archive").send(b"old news")
            ...     admin.topics().set_offload_policies("archive", OffloadPolicies("./cold"))
            ...     nothing, closed = admin.topics().offload("archive"), admin.topics().roll_ledger("archive")
            ...     while admin.topics().offload_status("archive").status == "RUNNING":
            ...         pass
            ...     _ = admin.topics().offload("archive")  # 0, if the policy's threshold had it moved by now
            ...     while admin.topics().offload_status("archive").status == "RUNNING":
            ...         pass
            ...     client.create_reader("archive", MessageId.earliest).read_next().data()
            b'old news'
            >>> nothing, closed
            (0, 1)
        """
        if isinstance(size_threshold, bool) or not isinstance(size_threshold, int) or size_threshold < 0:
            raise InvalidConfiguration(f"size_threshold is a number of bytes from 0, not {size_threshold!r}")
        # The threshold is of a log: each partition keeps so many bytes.
        names = self._access.partitions_of(topic) or [topic]
        return sum(self._offload(name, lambda topic: first_within(topic, size_threshold)) for name in names)

    def trigger_offload(self, topic: str, message_id: MessageId) -> int:
        """Begin to move all closed ledgers before that of a message, and return how many. As `offload`
        otherwise; of a partitioned topic, name a partition.

        Example:
            >>> from embeddedpulsar import Admin, Client, MessageId
            >>> from embeddedpulsar.policy_values import OffloadPolicies
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     message_id = client.create_producer("letters").send(b"news")
            ...     admin.topics().set_offload_policies("letters", OffloadPolicies("./cold"))
            ...     _ = admin.topics().trigger_offload("letters", message_id)
            ...     while admin.topics().offload_status("letters").status == "RUNNING":
            ...         pass
            ...     client.create_reader("letters", MessageId.earliest).read_next().data()
            b'news'
        """
        if not isinstance(message_id, MessageId):
            raise ValueError(f"message_id is a MessageId, not {message_id!r}")
        return self._offload(topic, lambda _: message_id.ledger_id())

    def offload_status(self, topic: str) -> LongRunningProcessStatus:
        """Return how the offloading of a topic stands, in whatever process it runs; of a partitioned topic,
        ``RUNNING`` or ``ERROR`` if that holds for a partition."""
        return joint_status(
            self._access.inspect(name, status_of_offload)
            for name in self._access.partitions_of(topic) or [topic]
        )

    def offload_progress(self, topic: str) -> tuple[int, int]:
        """Return how many ledgers an offloading of a topic in this process has moved, and how many it is to
        move; 0 of 0 where none runs here. Of a partitioned topic, those of all partitions. Not in Pulsar.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     _ = client.create_producer("cellar").send(b"a cask")
            ...     admin.topics().offload_progress("cellar")
            (0, 0)
        """
        return joint_progress(
            self._access.inspect(name, progress_of_offload)
            for name in self._access.partitions_of(topic) or [topic]
        )

    def adopt_offloaded(self, topic: str, moved: Mapping[str, str] | None = None) -> int:
        """Let a store own the objects of the offloaded ledgers of a topic, so that it removes them when the
        ledgers are trimmed or the topic is deleted.

        A store removes only what it offloaded itself, in the place where it is. One that was moved, copied or
        restored reads the objects, and leaves them alone: another store may count on them. Call this when
        none does, or to say where the objects are after the location was moved. It is durable and may be
        repeated.

        Args:
            topic: the name; of a partitioned topic, all partitions are meant.
            moved: new locations by the old ones, as they are in the notes of the ledgers.

        Returns:
            How many ledgers belong to this store now and did not before, or have another location.

        Raises:
            NotAllowedError: the topic is being offloaded, in whatever process, or is kept in memory.
            ColdReadError: the objects are not there.
            InvalidConfiguration: a new location is in the store, or makes no sense.
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("adopted")
            ...     admin.topics().adopt_offloaded("adopted", {"./cold": "/mnt/cold"})
            0
        """
        with late_imports():
            from embeddedpulsar._engine.cold.location import absolute_location
        root = self._store().root
        # A relative place is one in the store, as in the policy of offloading.
        new = {old: absolute_location(place, root) for old, place in (moved or {}).items()}
        count = 0
        for name in self._access.partitions_of(topic) or [topic]:
            use = self._store().use_topic(name, create=False)
            try:
                with timing.translated:
                    count += use.topic.offload.get().adopt(new)
            finally:
                use.release()
        return count

    def _offload(self, name: str, before: Callable[[Topic], int]) -> int:
        use = self._store().use_topic(name, create=False)
        try:
            with timing.translated:
                offloading, ledger_id = use.topic.offload.get(), before(use.topic)
                # Counted before the start: afterwards the number falls while ledgers are moved.
                due = offloading.due_before(ledger_id)
                # The thread of the offloading takes the use over, and releases it at its end.
                offloading.start(ledger_id, use.release)
                return due
        except BaseException:
            use.release()
            raise

    # -- policies ----------------------------------------------------------------------------------------

    def _owner(self, name: str) -> str:
        return TopicName.parse(name).full

    # generated: methods of policies, by `make policies` from the rows in topic/policies

    def set_resource_group(self, name: str, value: str) -> None:
        """Set the resource group of the topic; see `ResourceGroups`. Open topics of all processes follow
        within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import ResourceGroup
            >>> with Admin("./data") as admin:
            ...     admin.resource_groups().create_resource_group("batch-jobs", ResourceGroup())
            ...     admin.topics().create_non_partitioned_topic("resource-group")
            ...     admin.topics().set_resource_group("resource-group", "batch-jobs")
            ...     admin.topics().get_resource_group("resource-group") == "batch-jobs"
            ...     admin.topics().remove_resource_group("resource-group")
            True
        """
        self._set(name, admitting.IN_GROUP, value)

    def get_resource_group(self, name: str, applied: bool = False) -> str | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.IN_GROUP, applied)

    def remove_resource_group(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.IN_GROUP, None)

    def set_max_message_size(self, name: str, value: int) -> None:
        """Set how many bytes a message of the topic may have, with its key and properties, 0 for as many as
        ``maxMessageSize`` of ``broker.conf`` allows. Larger ones are refused with `MessageTooBig`, or
        stored in parts if the producer has chunking; a batch counts as one message. Open topics of all
        processes follow within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("max-message-size")
            ...     admin.topics().set_max_message_size("max-message-size", 1000)
            ...     admin.topics().get_max_message_size("max-message-size") == 1000
            ...     admin.topics().remove_max_message_size("max-message-size")
            True
        """
        self._set(name, admitting.MAX_MESSAGE_SIZE, value)

    def get_max_message_size(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.MAX_MESSAGE_SIZE, applied)

    def remove_max_message_size(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_MESSAGE_SIZE, None)

    def set_max_producers(self, name: str, most: int) -> None:
        """Set the largest number of producers of a topic or partition. What is there stays when the limit is
        lowered.

        Args:
            name: of the topic.
            most: the largest number, beyond which `ProducerBusy` is raised; 0 for no limit, whatever other
                levels say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("max-producers")
            ...     admin.topics().set_max_producers("max-producers", 1000)
            ...     admin.topics().get_max_producers("max-producers") == 1000
            ...     admin.topics().remove_max_producers("max-producers")
            True
        """
        self._set(name, admitting.MAX_PRODUCERS, most)

    def get_max_producers(self, name: str) -> int | None:
        """Return the largest number of producers of a topic or partition that is set for this name; None if
        none is set."""
        return self._get(name, admitting.MAX_PRODUCERS)

    def remove_max_producers(self, name: str) -> None:
        """Unset the limit, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_PRODUCERS, None)

    def set_max_consumers(self, name: str, most: int) -> None:
        """Set the largest number of consumers of a topic or partition. What is there stays when the limit is
        lowered.

        Args:
            name: of the topic.
            most: the largest number, beyond which `ConsumerBusy` is raised; 0 for no limit, whatever other
                levels say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("max-consumers")
            ...     admin.topics().set_max_consumers("max-consumers", 1000)
            ...     admin.topics().get_max_consumers("max-consumers") == 1000
            ...     admin.topics().remove_max_consumers("max-consumers")
            True
        """
        self._set(name, admitting.MAX_CONSUMERS, most)

    def get_max_consumers(self, name: str) -> int | None:
        """Return the largest number of consumers of a topic or partition that is set for this name; None if
        none is set."""
        return self._get(name, admitting.MAX_CONSUMERS)

    def remove_max_consumers(self, name: str) -> None:
        """Unset the limit, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_CONSUMERS, None)

    def set_delayed_delivery_policy(self, name: str, value: DelayedDeliveryPolicies) -> None:
        """Set whether delayed messages wait, also those that wait now, and how early they may be. Open topics
        of all processes follow within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import DelayedDeliveryPolicies
            >>> with Admin("./data") as admin:
            ...     name, value = "delayed-delivery-policy", DelayedDeliveryPolicies(False)
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_delayed_delivery_policy(name, value)
            ...     admin.topics().get_delayed_delivery_policy(name) == value
            ...     admin.topics().remove_delayed_delivery_policy(name)
            True
        """
        self._set(name, admitting.DELAYED_DELIVERY, value)

    def get_delayed_delivery_policy(self, name: str, applied: bool = False) -> DelayedDeliveryPolicies | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.DELAYED_DELIVERY, applied)

    def remove_delayed_delivery_policy(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.DELAYED_DELIVERY, None)

    def set_max_unacked_messages_on_consumer(self, name: str, value: int) -> None:
        """Set how many messages a consumer of a Shared or Key_Shared subscription may hold unacknowledged, 0
        for any number. Open topics of all processes follow within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     name, value = "max-unacked-messages-on-consumer", 1000
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_max_unacked_messages_on_consumer(name, value)
            ...     admin.topics().get_max_unacked_messages_on_consumer(name) == value
            ...     admin.topics().remove_max_unacked_messages_on_consumer(name)
            True
        """
        self._set(name, admitting.MAX_UNACKED_PER_CONSUMER, value)

    def get_max_unacked_messages_on_consumer(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.MAX_UNACKED_PER_CONSUMER, applied)

    def remove_max_unacked_messages_on_consumer(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_UNACKED_PER_CONSUMER, None)

    def set_max_unacked_messages_on_subscription(self, name: str, value: int) -> None:
        """Set how many messages the consumers of a Shared or Key_Shared subscription may hold unacknowledged
        together, 0 for any number. Open topics of all processes follow within 50 ms.

        Args:
            name: of the topic.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     name, value = "max-unacked-messages-on-subscription", 1000
            ...     admin.topics().create_non_partitioned_topic(name)
            ...     admin.topics().set_max_unacked_messages_on_subscription(name, value)
            ...     admin.topics().get_max_unacked_messages_on_subscription(name) == value
            ...     admin.topics().remove_max_unacked_messages_on_subscription(name)
            True
        """
        self._set(name, admitting.MAX_UNACKED_PER_SUBSCRIPTION, value)

    def get_max_unacked_messages_on_subscription(self, name: str, applied: bool = False) -> int | None:
        """Return the value that is set for this topic; None if none is set. With ``applied``, the value that
        holds."""
        return self._get(name, admitting.MAX_UNACKED_PER_SUBSCRIPTION, applied)

    def remove_max_unacked_messages_on_subscription(self, name: str) -> None:
        """Unset the value, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, admitting.MAX_UNACKED_PER_SUBSCRIPTION, None)

    # end of methods of policies


def _subscribed(used: Topic | None, topic: str, subscription: str) -> Topic:
    if used is None:
        raise SubscriptionNotFound(f"{TopicName.parse(topic).full} has no subscription {subscription!r}")
    return used


def _terminate(store: Store, name: str) -> MessageId:
    use = store.use_topic(name, create=False)
    try:
        last = use.topic.terminate()
    finally:
        use.release()
    if last.entry_id < 0:
        return MessageId.earliest
    return MessageId(TopicName.parse(name).partition, last.ledger_id, last.entry_id)
