"""The client: opens a store, and makes producers, consumers and readers on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.store.topic_list import partition_names
from embeddedpulsar.client.arguments import check_type, check_type_or_none
from embeddedpulsar.client.client_config import client_config
from embeddedpulsar.client.client_core import OPEN_CLIENTS, ClientCore, close_opened
from embeddedpulsar.client.client_threads import OPENED, ClientLog
from embeddedpulsar.damage import Damage
from embeddedpulsar.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from embeddedpulsar.message import T
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.schema import Schema
from embeddedpulsar.schema.schema import BYTES
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    import os
    import re
    from typing import Any, Self

    from embeddedpulsar.client.cluster_options import Authentication, ServiceInfo
    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig, ReaderConfig
    from embeddedpulsar.client.consumer.due_entries import MultiplierRedeliveryBackoff
    from embeddedpulsar.client.consumer.reader import Reader
    from embeddedpulsar.client.consumer.table_view import TableView
    from embeddedpulsar.client.interceptors import (
        ConsumerInterceptor,
        ProducerInterceptor,
        ReaderInterceptor,
    )
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.client.producer.producer_session import ProducerConfig
    from embeddedpulsar.client.transaction import (
        JoinedTransaction,
        PreparedTransaction,
        Transaction,
        TxnID,
    )
    from embeddedpulsar.crypto import CryptoKeyReader
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId
    from embeddedpulsar.policies import (
        ConsumerBatchReceivePolicy,
        ConsumerDeadLetterPolicy,
        ConsumerKeySharedPolicy,
    )


# What a client makes is imported on first use. What a process does not load it need not free: the kernel
# reports a death when the memory of the process is freed, 70 us a MB.


@cache
def _of_producers() -> tuple[Callable[..., ProducerConfig], Callable[..., Producer[Any]]]:
    with late_imports():
        from embeddedpulsar.client.producer.producer import open_producer
        from embeddedpulsar.client.producer.producer_session import producer_config
    return producer_config, open_producer


@cache
def _of_consumers() -> tuple[Callable[..., ConsumerConfig], Callable[..., Consumer[Any]]]:
    with late_imports():
        from embeddedpulsar.client.consumer.consumer_config import consumer_config
        from embeddedpulsar.client.consumer.consumer_opening import open_consumer
    return consumer_config, open_consumer


@cache
def _of_transactions() -> Any:
    with late_imports():
        from embeddedpulsar.client import transaction
    return transaction


@cache
def _of_readers() -> tuple[Callable[..., ReaderConfig], Callable[..., Reader[Any]]]:
    with late_imports():
        from embeddedpulsar.client.consumer.consumer_config import reader_config
        from embeddedpulsar.client.consumer.consumer_opening import open_reader
    return reader_config, open_reader


class Client:
    """A store in a directory, with the interface of ``pulsar.Client``.

    Any number of processes, and any number of clients in each process, may open a directory; they share its
    topics. Thread-safe. After a fork the child may continue to use the client: its producers get new names,
    and the parent's consumers and readers raise `AlreadyClosed`. A client may be pickled, for example for a
    spawned process: its URL and options are pickled, and the other process opens the store. Neither holds for
    a store in memory, which ends with the processes that use it.

    Args:
        service_url: a path object; a string that begins with ``/``, ``./``, ``../`` or ``~``;
            ``file:///path``; ``memory://`` for a private store in memory, which ends with the client; or
            ``memory://name`` for one that the clients of this process and its forked children share. A new
            one may be given settings, ``memory://name?maxMessageSize=1000`` (docs/memory.md).
            For a cluster use `connect`.
        authentication: accepted and ignored. The permissions of the directory (0700) control access.
        operation_timeout_seconds: total time for which one call that opens, moves or closes an object waits
            for locks of other processes. The call then raises `LockTimeout`.
        io_threads: accepted and ignored, like concurrent_lookup_requests and log_conf_file_path. They
            configure a network client and the log of a C++ library.
        message_listener_threads: threads that call message listeners. A consumer belongs to one of them.
        stats_interval_in_seconds: interval at which the statistics of each producer and consumer are logged
            at level INFO, if any message was sent or received; 0 for never.
        use_tls: accepted and ignored, like all options that begin with ``tls_``: there is no connection.
        logger: a ``logging.Logger``, `ConsoleLogger` or `FileLogger`; default is ``embeddedpulsar``'s own.
        connection_timeout_ms: accepted and ignored, like listener_name: there is no connection.
        durability: what a message survives once its send has returned, unless the producer sets its own
            level: ``process``, the death of every process; ``interval``, also a power failure, except for
            the last ``durability_interval_ms``; ``flush``, also a power failure.
        durability_interval_ms: see ``durability``; the first client of a process on a store decides.
        allow_network_fs: open a store on a network file system, where two machines do not see each other's
            locks. Safe only if no other machine ever opens the store.
        memory_limit_bytes: most payload bytes of all producers that are sent and not stored; 0 for no limit.
            At the limit, senders with ``block_if_queue_full`` wait, others fail with `MemoryBufferIsFull`.
        on_damage: called with a `Damage` for each place in the files of the store that this process finds
            damaged or repairs, on the callback thread of the client, under no lock. Default: a warning in
            the log.
        read_only: whether the store is only looked at. True: nothing of it is written, and only readers can
            be made; producers, consumers and their like raise `ReadOnlyStoreError`. None: if this process may
            not write there. False: then an error says so. See `Admin`.

    Raises:
        ValueError: a wrong type or value, or a URL that is not one of a local store.
        NotImplementedError: addresses of clusters.
        StorageError: the directory cannot be used as a store; the subclass says why.

    Example:
        >>> from embeddedpulsar import MessageId
        >>> client = Client("memory://")
        >>> with client.create_producer("greetings") as producer:
        ...     message_id = producer.send(b"hello")
        >>> client.create_reader("greetings", MessageId.earliest).read_next().data()
        b'hello'
        >>> client.close()
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str],
        authentication: Authentication | None = None,
        operation_timeout_seconds: int = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = False,
        logger: Any = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        *,
        durability: str = "process",
        durability_interval_ms: int = 1000,
        allow_network_fs: bool = False,
        memory_limit_bytes: int = 0,
        on_damage: Callable[[Damage], object] | None = None,
        read_only: bool | None = None,
    ) -> None:
        # Called before any other local is made: `locals()` is then the arguments, by their names.
        config = client_config(_given(locals()))
        self._logger = logger
        self._made: dict[int, Consumer[Any] | Reader[Any]] = {}
        self._was_shut_down = False
        # What was attached when an interrupt or an error came, last first. `__init__` returns no object whose
        # `close` could do it.
        opened: list[Callable[[], object]] = []
        try:
            self._core = ClientCore(config, ClientLog(logger), opened)
        except BaseException:
            while opened:
                opened.pop()()
            raise

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema[T] = BYTES,  # type: ignore[assignment] # so that T is bytes without one
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: CryptoKeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Callable[[Message[Any], int], int] | None = None,
        *,
        durability: str | None = None,
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
        encryption_keys: list[str] | None = None,
        interceptors: list[ProducerInterceptor] | None = None,
        chunk_max_message_size: int = -1,
    ) -> Producer[T]:
        """Attach a producer to a topic. The topic is created if necessary.

        Args:
            topic: ``name``, ``tenant/namespace/name`` or the full form with ``persistent://``.
            producer_name: unique among the producers of the topic; default is a name made by the store.
            schema: encodes the values that are sent; by default they are ``bytes``.
            initial_sequence_id: one less than the first automatic id. None and 0: continue after the last
                stored id of this producer name.
            send_timeout_millis: longest wait for a topic that other processes have locked. Then all waiting
                messages fail with `Timeout` and are not stored later. 0 for no limit.
            compression_type: of whole entries. ``ZSTD`` and ``SNAPPY`` need the extra ``compression``.
            max_pending_messages: most messages that may be sent and not stored; 0 for no limit.
            block_if_queue_full: wait at that limit instead of failing with `ProducerQueueIsFull`.
            batching_enabled: collect messages and store them as one entry, which is up to 20 times as fast.
            batching_max_messages: number of messages at which a batch is full; more than 1.
            batching_max_allowed_size_in_bytes: payload bytes at which a batch is full.
            batching_max_publish_delay_ms: age of its first message at which a batch is stored.
            max_pending_messages_across_partitions: the same limit for all partitions together, in equal
                shares.
            message_routing_mode: where messages without a key go: to each partition in turn, by message or
                by batch, or all to one partition that is chosen at random.
            lazy_start_partitioned_producers: attach to a partition with the first message for it.
            properties: checked, and not shown anywhere yet.
            batching_type: ``KeyBased`` makes one entry per key, which keeps Key_Shared consumers in order.
            message_router: chooses the partition of every message, as ``router(message, partitions)``.
            encryption_key: name of a public key of ``crypto_key_reader``. Its private key decrypts.
            chunking_enabled: store a message over ``maxMessageSize`` as several entries. Not with batching.
            access_mode: ``Exclusive`` takes exclusive access or fails, ``WaitForExclusive`` waits for it
                without a time limit, ``ExclusiveWithFencing`` disconnects the other producers.
            durability: level of this producer instead of the client's. Not in ``pulsar-client``, nor are:
            hashing_scheme: hash of the partition key, which chooses the partition of a message that has one.
            encryption_keys: names of further public keys. Any one of the private keys decrypts.
            interceptors: see messages before they are sent, and the outcome of each send.
            chunk_max_message_size: most payload bytes in one chunk; a longer message is split into chunks.

        Raises:
            ValueError: a wrong type or value.
            ImportError: an option needs an extra; the text has the command that installs it.
            InvalidTopicName, TopicNotFound: see these classes.
            ProducerBusy: a producer of that name, or one with exclusive access, is connected.
            ProducerFenced: exclusive access is not available.
            CryptoError: a public key cannot be read.
            AlreadyClosed: the client is closed.

        Example:
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("orders", "till-1", batching_enabled=True)
            ...     producer.topic(), producer.producer_name()
            ('persistent://public/default/orders', 'till-1')
        """
        given = _given(locals())
        producer_config, open_producer = _of_producers()
        config = producer_config(given)
        opened: list[Callable[[], object]] = []
        producer: Producer[T] | None = None
        # Three cases end in the handler: an error, an interrupt in the middle of the opening, and one behind
        # it, when the producer is complete and the caller does not get it. `opened` has the parts of the
        # second, `producer` is set in the third.
        try:
            OPENED.set(opened)
            with timing.translated:
                producer = self._core.in_time(open_producer, self._core, config)
            self._keep(producer)
            config.schema.attach_client(self)
            OPENED.set(None)
            return producer
        except BaseException:
            close_opened(self._core, producer, opened)
            raise

    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema[T] = BYTES,  # type: ignore[assignment] # so that T is bytes without one
        message_listener: Callable[[Consumer[T], Message[T]], object] | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        pattern_auto_discovery_period: int = 60,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        ack_group_time_ms: int = 100,
        ack_receipt_enabled: bool = False,
        priority_level: int = 0,
        subscription_mode: SubscriptionMode = SubscriptionMode.Durable,
        negative_ack_redelivery_backoff: MultiplierRedeliveryBackoff | None = None,
        ack_timeout_redelivery_backoff: MultiplierRedeliveryBackoff | None = None,
        ack_timeout_tick_ms: int = 1000,
        enable_retry: bool = False,
        retry_letter_topic: str | None = None,
        interceptors: list[ConsumerInterceptor] | None = None,
        expire_time_of_incomplete_chunked_message_ms: int = 60_000,
    ) -> Consumer[T]:
        """Attach a consumer to a subscription. Topic and subscription are created if necessary.

        Args:
            topic: as for `create_producer`, a list of such names, or a compiled regular expression: topics
                whose names match join when they are made, and leave when they are deleted. Messages of
                several topics or partitions form one stream that keeps the order of each.
            subscription_name: not empty.
            consumer_type: ``Exclusive``: one consumer. ``Failover``: one active consumer, the others on
                standby. ``Shared``: any free consumer. ``KeyShared``: one consumer per key, in order.
            schema: decodes `Message.value`; by default the value is ``bytes``.
            message_listener: called as ``listener(consumer, message)`` on a listener thread, one message at a
                time; it acknowledges. An exception it raises is logged.
            receiver_queue_size: messages to fetch ahead; a batch is fetched whole. 0: one entry per receive.
                A negative number counts as 1.
            max_total_receiver_queue_size_across_partitions: most messages to fetch ahead of all topics.
            consumer_name: default is ten random hexadecimal digits.
            unacked_messages_timeout_ms: redeliver messages not acknowledged in time; at least 10,000.
            broker_consumer_stats_cache_time_ms: accepted and ignored; no call returns these statistics.
            negative_ack_redelivery_delay_ms: delay of `Consumer.negative_acknowledge`; at least 100 is used.
            properties: checked, and not shown anywhere yet.
            initial_position: where a new subscription starts: after the last message, or at the first.
            key_shared_policy: how consumers divide the keys; default is AUTO_SPLIT, in order.
            is_read_compacted: receive only the newest message of each key up to where the topic was compacted
                last, and all messages behind that. For Exclusive and Failover.
            pattern_auto_discovery_period: accepted and ignored: topics join within a second.
            regex_subscription_mode: which topics a pattern matches: persistent, non-persistent, or both.
            replicate_subscription_state_enabled: accepted and ignored: a store is not replicated.
            crypto_key_reader: reads the private keys of encrypted messages. Needs the extra ``crypto``.
            crypto_failure_action: for messages that cannot be decrypted: ``FAIL`` leaves them for another
                consumer; ``DISCARD`` acknowledges them; ``CONSUME`` delivers the ciphertext.
            max_pending_chunked_message: most chunked messages that may be incomplete; 0 for any number.
            auto_ack_oldest_chunked_message_on_queue_full: at that limit, acknowledge the oldest one instead
                of having it redelivered.
            dead_letter_policy: topic for messages redelivered too often. Deliveries are counted on Shared and
                Key_Shared subscriptions, and by ``reconsume_later``.
            start_message_id_inclusive: `Consumer.seek` to an id delivers that message too.
            batch_receive_policy: limits of `Consumer.batch_receive`; default 10 MiB and 100 ms.
            batch_index_ack_enabled: acknowledge messages of a batch one by one; only the others are
                redelivered. Off if ``broker.conf`` sets ``acknowledgmentAtBatchIndexLevelEnabled=false``.
            ack_group_time_ms: how long acknowledgements are collected; 0 writes each at once. Not in
                ``pulsar-client``, nor are the following.
            ack_receipt_enabled: `Consumer.acknowledge` returns when the acknowledgement is written, and
                raises `NotConnected` if it has no effect.
            priority_level: consumers of the smallest number (best, at least 0) are served first.
            subscription_mode: ``NonDurable``: the subscription ends with its last consumer. It is separate
                from a durable subscription of the same name.
            negative_ack_redelivery_backoff: delay by redelivery count, instead of the fixed one.
            ack_timeout_redelivery_backoff: added to ``unacked_messages_timeout_ms``, by redelivery count.
            ack_timeout_tick_ms: interval at which overdue messages are looked for.
            enable_retry: allow `Consumer.reconsume_later`, and subscribe to the retry topic as well.
            retry_letter_topic: its name; default ``<topic>-<subscription>-RETRY``. A pattern needs it.
            interceptors: see messages before the application does, and their acknowledgement.
            expire_time_of_incomplete_chunked_message_ms: age at which an incomplete chunked message is
                acknowledged.

        Raises:
            ValueError: a wrong type or value.
            NotImplementedError: an option whose feature is not built is set.
            ConsumerBusy: the consumers already attached do not allow another one.
            ConsumerAssignError: the hash ranges of this consumer conflict with those of another.
            InvalidConfiguration: the subscription name is blank, or options do not go with a pattern.
            InvalidTopicName, TopicNotFound, SubscriptionNotFound: see these classes.
            AlreadyClosed: the client is closed.

        Example:
            >>> with Client("memory://") as client, client.subscribe("orders", "kitchen") as consumer:
            ...     consumer.subscription_name(), consumer.receive_nowait()
            ('kitchen', None)

            >>> import re
            >>> with Client("memory://") as client:
            ...     consumer = client.subscribe(re.compile("orders-.*"), "audit")
            ...     message_id = client.create_producer("orders-eu").send(b"order 1")
            ...     consumer.receive().topic_name()
            'persistent://public/default/orders-eu'
        """
        given = _given(locals())
        consumer_config, open_consumer = _of_consumers()
        config = consumer_config(given)
        opened: list[Callable[[], object]] = []
        consumer: Consumer[T] | None = None
        try:
            OPENED.set(opened)
            with timing.translated:
                # See `create_producer` for the cases of the handler.
                consumer = self._core.in_time(open_consumer, self._core, config, topic)
            config.schema.attach_client(self)
            # Last, because it starts the listener: from here on messages may be delivered.
            self._keep_consumer(consumer)
            OPENED.set(None)
            return consumer
        except BaseException:
            close_opened(self._core, consumer, opened)
            raise

    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema[T] = BYTES,  # type: ignore[assignment] # so that T is bytes without one
        reader_listener: Callable[[Reader[T], Message[T]], object] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        interceptors: list[ReaderInterceptor] | None = None,
        isolation: str = "read_committed",
    ) -> Reader[T]:
        """Make a reader. The topic is created if necessary.

        Args:
            topic: as for `create_producer`. The messages of all partitions form one stream.
            start_message_id: reading starts after this message; `MessageId.earliest` for everything,
                `MessageId.latest` for new messages only.
            schema: decodes `Message.value`; by default the value is ``bytes``.
            reader_listener: called as ``listener(reader, message)`` on a listener thread.
            receiver_queue_size: messages to fetch ahead; a batch is fetched whole.
            reader_name: default is random.
            subscription_role_prefix: prefix of that random name.
            is_read_compacted: read only the newest message of each key up to where the topic was compacted
                last, and all messages behind that.
            crypto_key_reader, crypto_failure_action: as for `subscribe`; ``FAIL`` skips the messages.
            start_message_id_inclusive: start with that message; for ``latest``, with the last message stored.
            interceptors: see messages before the application does. Not in ``pulsar-client``.
            isolation: ``read_committed`` reads what no open transaction holds back; ``read_uncommitted``, for
                looking on, also messages of open transactions, which may be aborted later. Not in
                ``pulsar-client``.

        Raises:
            ValueError: a wrong type or value.
            NotImplementedError: an option whose feature is not built is set.
            InvalidTopicName, TopicNotFound: see these classes.
            AlreadyClosed: the client is closed.

        Example:
            >>> from embeddedpulsar import MessageId
            >>> with Client("memory://") as client:
            ...     client.create_reader("orders", MessageId.earliest).has_message_available()
            False
        """
        given = _given(locals())
        reader_config, open_reader = _of_readers()
        config = reader_config(given)
        opened: list[Callable[[], object]] = []
        reader: Reader[T] | None = None
        try:
            OPENED.set(opened)
            with timing.translated:
                reader = self._core.in_time(open_reader, self._core, config)
            config.schema.attach_client(self)
            self._keep_consumer(reader)
            OPENED.set(None)
            return reader
        except BaseException:
            close_opened(self._core, reader, opened)
            raise

    def create_table_view(
        self,
        topic: str,
        subscription_name: str | None = None,
        schema: Schema[T] = BYTES,  # type: ignore[assignment] # so that T is bytes without one
    ) -> TableView[T]:
        """Make a dictionary of the last value of each partition key of a topic, which follows the topic.

        The call returns when it has read all messages of the topic: 1 million keys in about a second. The
        topic is created if necessary.

        Args:
            topic: as for `create_producer`.
            subscription_name: a name for the log; default is random. A table view has no subscription.
            schema: decodes the values; by default they are ``bytes``.

        Raises:
            ValueError: a wrong type.
            InvalidTopicName, TopicNotFound: see these classes.
            AlreadyClosed: the client is closed.

        Example:
            >>> with Client("memory://") as client:
            ...     message_id = client.create_producer("prices").send(b"2.80", partition_key="tea")
            ...     client.create_table_view("prices").get("tea")
            b'2.80'
        """
        check_type(str, topic, "topic")
        check_type_or_none(str, subscription_name, "subscription_name")
        check_type(Schema, schema, "schema")
        with late_imports():
            from embeddedpulsar.client.consumer.consumer_opening import open_table_view
        opened: list[Callable[[], object]] = []
        view: TableView[T] | None = None
        try:
            OPENED.set(opened)
            with timing.translated:
                # Loading is a part of the call, so it has its deadline and may be interrupted.
                view = self._core.in_time(open_table_view, self._core, topic, subscription_name, schema)
                view._load()
            schema.attach_client(self)
            self._keep_consumer(view._reader)
            OPENED.set(None)
            return view
        except BaseException:
            close_opened(self._core, view, opened)
            raise

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of the partitions of a topic; of a topic without partitions, its own name.

        The call creates nothing.

        Raises:
            InvalidTopicName: the text is not a topic name.
            TopicNotFound: there is no such namespace, or the topic does not have that partition.
            AlreadyClosed: the client is closed.

        Example:
            >>> with Client("memory://") as client:
            ...     client.get_topic_partitions("orders")
            ['persistent://public/default/orders']
        """
        check_type(str, topic, "topic")
        self._core.begin_operation()
        full = TopicName.parse(topic).full
        # A topic that does not exist yet has no partitions, and stands for itself, as in Pulsar.
        topics = self._core.store.topics
        partitions = topics.partitions_of_possible(full) or topics.partitions_of_transactions(full)
        return partition_names(full, partitions or 0) or [full]

    def get_service_info(self) -> ServiceInfo:
        """Return the URL of the store.

        Example:
            >>> with Client("memory://cafe") as client:
            ...     client.get_service_info().service_url
            'memory://cafe'
        """
        with late_imports():
            from embeddedpulsar.client.cluster_options import ServiceInfo
        return ServiceInfo(self._core.config.url.text)

    # -- the end -----------------------------------------------------------------------------------------

    # -- transactions ------------------------------------------------------------------------------------

    def transaction(self, timeout_ms: int = 60_000, *, label: str = "") -> Transaction:
        """Begin a transaction for a ``with`` block: it commits at the end, and aborts after an exception.

        Args:
            timeout_ms: it is aborted when it has been open for so long. Readers wait for an open transaction,
                so at most ``transactionMaxTimeoutInSeconds``, 900 by default.
            label: says to people what it is for, where open transactions are listed; 56 bytes are shown.

        Returns:
            What sends and acknowledgements are given as ``txn``. Nothing is stored of one in which nothing is
            done.

        Raises:
            ValueError: an argument of a wrong type, or a timeout that is too long.
            InvalidConfiguration: ``transactionCoordinatorEnabled`` is false in ``broker.conf``.
            ReadOnlyStoreError: the store is open read-only.
            AlreadyClosed: the client is closed.

        Example:
            >>> client = Client("memory://")
            >>> orders, bills = client.create_producer("orders"), client.create_producer("bills")
            >>> with client.transaction() as txn:
            ...     ids = orders.send(b"one tea", txn=txn), bills.send(b"2.50", txn=txn)
            >>> txn.state.name
            'COMMITTED'
            >>> client.close()
        """
        begun: Transaction = _of_transactions().begin(self._core, timeout_ms, label)
        return begun

    def new_transaction(self, timeout_ms: int = 60_000, *, label: str = "") -> Transaction:
        """Begin a transaction, which the caller ends by `Transaction.commit` or `Transaction.abort`.

        Arguments, result and errors are those of `transaction`.

        Example:
            >>> client = Client("memory://")
            >>> txn = client.new_transaction(5000, label="invoices")
            >>> message_id = client.create_producer("orders").send(b"one tea", txn=txn)
            >>> txn.commit()
            >>> client.close()
        """
        begun: Transaction = _of_transactions().begin(self._core, timeout_ms, label)
        return begun

    def join_transaction(self, token: bytes) -> JoinedTransaction:
        """Take part in a transaction that another process began.

        Args:
            token: its `Transaction.token`.

        Raises:
            ValueError: this is no token.
            TransactionNotFound: it is of another store.
            InvalidTxnStatusError: the transaction has ended, or is about to.
            Exception: any exception that `transaction` raises.

        Example:
            >>> client = Client("memory://")
            >>> with client.transaction() as txn, client.join_transaction(txn.token) as joined:
            ...     message_id = client.create_producer("orders").send(b"one tea", txn=joined)
            >>> str(joined) == str(txn.id)
            True
            >>> client.close()
        """
        joined: JoinedTransaction = self._core.in_time(_of_transactions().join, self._core, token)
        return joined

    def prepared_transactions(self) -> list[PreparedTransaction]:
        """Return the transactions of the store that wait for their end, by id; see `Transaction.prepare`.

        Example:
            >>> client = Client("memory://")
            >>> txn = client.new_transaction()
            >>> prepared = txn.prepare("invoice-42")
            >>> client.prepared_transactions() == [prepared]
            True
            >>> txn.abort()
            >>> client.close()
        """
        listed: list[PreparedTransaction] = self._core.in_time(
            _of_transactions().prepared_transactions, self._core
        )
        return listed

    def resume_transaction(self, prepared: PreparedTransaction | TxnID) -> Transaction:
        """Return a prepared transaction, to commit or abort it.

        Args:
            prepared: as `prepared_transactions` lists it, or its id.

        Raises:
            TransactionNotFound: it has ended, or there never was one.
            TypeError: neither of the two.
            Exception: any exception that `transaction` raises.

        Example:
            >>> client = Client("memory://")
            >>> txn = client.new_transaction()
            >>> message_id = client.create_producer("orders").send(b"one tea", txn=txn)
            >>> prepared = txn.prepare("invoice-42")
            >>> client.resume_transaction(prepared).commit()
            >>> client.prepared_transactions()
            []
            >>> client.close()
        """
        resumed: Transaction = self._core.in_time(_of_transactions().resume, self._core, prepared)
        return resumed

    def _keep(self, opened: Any) -> None:
        """Keep the client alive as long as one of its producers, consumers or readers.

        As in Pulsar, a consumer or reader that the application drops stays open until its client is closed.
        Nothing but a listener refers to them or to the client, so all of them can become garbage together.
        """
        opened._client = self

    def _keep_consumer(self, consumer: Any) -> None:
        self._keep(consumer)
        try:
            # A strong reference: a consumer that the application drops stays attached while its client lives.
            self._made[id(consumer)] = consumer
            self._core.add_consumer(consumer)
        except BaseException:
            self._made.pop(id(consumer), None)  # the caller never gets the consumer: it is closed as garbage
            raise

    def __del__(self) -> None:
        # `__init__` may have failed before there was one.
        core = getattr(self, "_core", None)
        if core is not None and core.is_left_open:
            OPEN_CLIENTS.drop(core, tuple(self._made.values()), core.config.url.text)

    def shutdown(self) -> None:
        """Close the client if it is open. May be called repeatedly, and `close` may follow once.

        Example:
            >>> client = Client("memory://")
            >>> consumer = client.subscribe("orders", "billing")
            >>> client.shutdown()
            >>> client.shutdown()
            >>> consumer.is_connected()
            False
        """
        if self._core.is_left_open:
            self.close()
            self._was_shut_down = True

    def close(self) -> None:
        """Close all producers, without flushing them, consumers and readers, and the store.

        Raises:
            AlreadyClosed: this method was called before.
        """
        # `shutdown` and then `close` is no error, once: `pulsar-client` allows it.
        if self._was_shut_down:
            self._was_shut_down = False
            return
        with timing.translated:
            try:
                self._core.close()
            finally:
                self._made.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The block may have closed the client.
        if not self._core.is_left_open:
            return
        try:
            # After an exception nothing is flushed: what the block sent may be half of something.
            if kind is None:
                with timing.translated:
                    self._core.flush()
        finally:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._core.config.url.root is None:
            raise TypeError(
                f"a client of {self._core.config.url.text} cannot be pickled: its store "
                "belongs to this process and its forked children; use a directory, which processes share"
            )
        return _rebuild, (type(self), self._core.config.url.text, self._logger, self._core.config[1:])

    def __repr__(self) -> str:
        return f"<Client {self._core.config.url.text}{' closed' if self._core.is_closed else ''}>"


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    del arguments["self"]  # of the copy that `locals` makes
    return arguments


def _rebuild(kind: Any, url: str, logger: Any, rest: tuple[Any, ...]) -> Any:
    (
        durability,
        interval_ms,
        allow_network_fs,
        listener_threads,
        stats_interval_s,
        memory_limit,
        timeout_s,
        on_damage,
        read_only,
    ) = rest
    return kind(
        url,
        operation_timeout_seconds=timeout_s,
        message_listener_threads=listener_threads,
        stats_interval_in_seconds=stats_interval_s,
        logger=logger,
        durability=durability,
        durability_interval_ms=interval_ms,
        allow_network_fs=allow_network_fs,
        memory_limit_bytes=memory_limit,
        on_damage=on_damage,
        read_only=read_only,
    )
