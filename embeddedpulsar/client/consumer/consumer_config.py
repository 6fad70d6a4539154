"""The options of a consumer and of a reader, checked."""

from __future__ import annotations

import os

from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.subscription.attachment.chunk_keeper import DEFAULT_CHUNKS, ChunkOptions
from embeddedpulsar.client.arguments import (
    INT32_MAX,
    INT32_MIN,
    check_key_reader,
    check_range,
    check_type_or_none,
    check_types,
    checked_properties,
)
from embeddedpulsar.enums import (
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policies import (
    BatchReceivePolicy,
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    KeySharedPolicy,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.schema import Schema
from embeddedpulsar.topic_name import NON_PERSISTENT

if TYPE_CHECKING:
    from typing import Any

    from embeddedpulsar.client.consumer.due_entries import MultiplierRedeliveryBackoff
    from embeddedpulsar.client.interceptors import InterceptorChain
    from embeddedpulsar.crypto import CryptoKeyReader

_SHORTEST_ACK_TIMEOUT_MS = 10_000
_SHORTEST_NACK_DELAY_MS = 100
_DEFAULT_BATCH_RECEIVE = BatchReceivePolicy()


class Words(NamedTuple):
    """The words that differ between consumers and readers, for the objects that serve both.

    Attributes:
        noun: what it is called in error texts.
        receiving: the method that returns the next message.
        hook: the method of an interceptor that sees the next message.
        again: what to do after it was closed.
    """

    noun: str
    receiving: str
    hook: str
    again: str


class ConsumerConfig(NamedTuple):
    """The options of a consumer for one topic. Immutable.

    Attributes:
        topic: the topic.
        subscription_name: the subscription.
        name: explicit consumer name, or None.
        receiver_queue_size: most messages fetched ahead (a batch is fetched whole); 0 fetches one entry at a
            time.
        ack_timeout_ms: time after which an unacknowledged message is redelivered; 0 for never.
        nack_delay_ms: time after which a negatively acknowledged message is redelivered.
        ack_group_time_ms: how long acknowledgements are collected; 0 writes each at once.
        priority_level: on Shared subscriptions, consumers of a lower level are served first; 0 is lowest.
        key_shared: how the consumers of a Key_Shared subscription divide the keys; None for the default.
        ack_timeout_tick_ms: how late an acknowledgement timeout may be noticed.
        nack_backoff: delay by redelivery count; None for ``nack_delay_ms``, always.
        ack_timeout_backoff: added to ``ack_timeout_ms``, by redelivery count.
        ack_receipt: whether an acknowledgement returns only when it is written.
        several_topics: whether the consumer belongs to a consumer of several topics.
        creates_topic: whether a topic that does not exist is created.
        regex_mode: which topics a pattern matches.
        dead_letter: when and where messages move that are redelivered too often.
        enable_retry: whether messages may be sent to ``retry_letter_topic``.
        total_queue_size: most messages fetched ahead of all topics together.
        key_reader: reads the private keys, or None.
        crypto_failure_action: how to treat messages that cannot be decrypted.
        chain: the interceptors, or None.
        chunks: how to treat incomplete chunked messages.
        is_read_compacted: whether it reads what compaction left.
    """

    topic: str
    subscription_name: str
    consumer_type: ConsumerType
    schema: Schema[Any]
    listener: Any
    receiver_queue_size: int
    name: str | None
    ack_timeout_ms: int
    nack_delay_ms: int
    initial_position: InitialPosition
    start_inclusive: bool
    batch_receive: BatchReceivePolicy
    batch_index_ack: bool
    ack_group_time_ms: int
    properties: dict[str, str]
    priority_level: int = 0
    subscription_mode: SubscriptionMode = SubscriptionMode.Durable
    key_shared: KeySharedPolicy | None = None
    ack_timeout_tick_ms: int = 1000
    nack_backoff: MultiplierRedeliveryBackoff | None = None
    ack_timeout_backoff: MultiplierRedeliveryBackoff | None = None
    ack_receipt: bool = False
    dead_letter: ConsumerDeadLetterPolicy | None = None
    enable_retry: bool = False
    retry_letter_topic: str | None = None
    several_topics: bool = False
    creates_topic: bool = True
    regex_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    total_queue_size: int = 50_000
    key_reader: CryptoKeyReader | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    chain: InterceptorChain | None = None
    chunks: ChunkOptions = DEFAULT_CHUNKS
    is_read_compacted: bool = False

    @property
    def words(self) -> Words:
        return Words("consumer", "receive()", "before_consume", "subscribe again")


class ReaderConfig(NamedTuple):
    """The options of a reader for one topic. Immutable."""

    topic: str
    start: MessageId
    schema: Schema[Any]
    listener: Any
    receiver_queue_size: int
    name: str
    start_inclusive: bool
    key_reader: CryptoKeyReader | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    chain: InterceptorChain | None = None
    is_read_compacted: bool = False
    reads_uncommitted: bool = False

    @property
    def words(self) -> Words:
        return Words("reader", "read_next()", "before_read", "make a new one")


def consumer_config(options: dict[str, Any]) -> ConsumerConfig:
    """Check the arguments of `Client.subscribe`.

    Args:
        options: the arguments.

    Raises:
        ValueError: a wrong type or value.
        InvalidConfiguration: an empty subscription name, or ``is_read_compacted`` with a topic or type that
            is not for it.
        ImportError: there is a key reader, and the extra ``crypto`` is not installed.
    """
    _check_consumer_types(options)
    _check_consumer_values(options)
    policy, key_shared = options["batch_receive_policy"], options["key_shared_policy"]
    timeout_ms = options["unacked_messages_timeout_ms"] or 0
    chain = _chain(options, is_reader=False)
    # What means "none" to `pulsar-client`, empty texts and zeros, becomes None or the largest number here, so
    # that nothing behind this asks again. Several topics have no common name: each gets its own later.
    return ConsumerConfig(
        topic=options["topic"] if isinstance(options["topic"], str) else "",
        subscription_name=options["subscription_name"],
        consumer_type=options["consumer_type"],
        schema=options["schema"],
        listener=_listener("message_listener", options, chain, "before_consume"),
        receiver_queue_size=_queue_size(options),
        name=options["consumer_name"] or None,
        ack_timeout_ms=timeout_ms,
        nack_delay_ms=max(options["negative_ack_redelivery_delay_ms"], _SHORTEST_NACK_DELAY_MS),
        initial_position=options["initial_position"],
        start_inclusive=options["start_message_id_inclusive"],
        batch_receive=policy.policy() if policy is not None else _DEFAULT_BATCH_RECEIVE,
        batch_index_ack=options["batch_index_ack_enabled"],
        ack_group_time_ms=options["ack_group_time_ms"],
        properties=checked_properties(options["properties"] or {}),
        priority_level=options["priority_level"],
        subscription_mode=options["subscription_mode"],
        key_shared=key_shared.policy() if key_shared is not None else None,
        ack_timeout_tick_ms=min(options["ack_timeout_tick_ms"], timeout_ms or INT32_MAX),
        nack_backoff=options["negative_ack_redelivery_backoff"],
        ack_timeout_backoff=options["ack_timeout_redelivery_backoff"],
        ack_receipt=options["ack_receipt_enabled"],
        dead_letter=options["dead_letter_policy"],
        enable_retry=options["enable_retry"],
        regex_mode=options["regex_subscription_mode"],
        retry_letter_topic=options["retry_letter_topic"] or None,
        total_queue_size=options["max_total_receiver_queue_size_across_partitions"],
        key_reader=_key_reader(options),
        crypto_failure_action=options["crypto_failure_action"],
        chain=chain,
        chunks=ChunkOptions(
            max(options["max_pending_chunked_message"], 0),
            options["auto_ack_oldest_chunked_message_on_queue_full"],
            options["expire_time_of_incomplete_chunked_message_ms"],
        ),
        is_read_compacted=options["is_read_compacted"],
    )


def _check_consumer_types(options: dict[str, Any]) -> None:
    """Check types in the order of ``pulsar-client``, so that the first error is the same."""
    check_types(_CONSUMER_TYPES, options)
    if options["crypto_key_reader"] is not None:
        check_key_reader(options["crypto_key_reader"])
    check_types(_LATER_CONSUMER_TYPES, options)
    for name in _BACKOFFS:
        if options[name] is not None:
            _check_backoff(options[name], name)
    topic = options["topic"]
    if not isinstance(topic, str | list) and not hasattr(topic, "pattern"):
        raise ValueError("Argument 'topic' is expected to be of a type between (str, list, re.pattern)")


def _check_backoff(value: object, name: str) -> None:
    with late_imports():
        from embeddedpulsar.client.consumer.due_entries import MultiplierRedeliveryBackoff

    check_type_or_none(MultiplierRedeliveryBackoff, value, name)


def _check_consumer_values(options: dict[str, Any]) -> None:
    # First what has a range of its own and Pulsar's text, then what only makes sense with another option.
    timeout_ms = options["unacked_messages_timeout_ms"] or 0
    if timeout_ms and timeout_ms < _SHORTEST_ACK_TIMEOUT_MS:
        raise ValueError(
            "Consumer Config Exception: Unacknowledged message timeout should be greater than 10 seconds."
        )
    for name, low in _RANGES:
        if not low <= options[name] <= INT32_MAX:
            check_range(options[name], name, low, INT32_MAX)
    if options["priority_level"] < 0:
        raise ValueError("Consumer Config Exception: PriorityLevel should be nonnegative number.")
    if options["priority_level"] > INT32_MAX:
        check_range(options["priority_level"], "priority_level", 0, INT32_MAX)
    if options["ack_timeout_redelivery_backoff"] is not None and not timeout_ms:
        raise ValueError("ack_timeout_redelivery_backoff needs unacked_messages_timeout_ms, which is not set")
    if options["retry_letter_topic"] and not options["enable_retry"]:
        raise ValueError("retry_letter_topic needs enable_retry, which is not set")
    if not options["subscription_name"].strip():
        raise InvalidConfiguration("subscription_name is blank; name the subscription")
    if options["is_read_compacted"]:
        _check_compacted(options["topic"], options["consumer_type"])


def _check_compacted(topics: Any, consumer_type: ConsumerType = ConsumerType.Exclusive) -> None:
    """Refuse to read a topic compacted where that has no meaning.

    Raises:
        InvalidConfiguration: for a non-persistent topic, or a type on which consumers share the messages.
    """
    if consumer_type not in (ConsumerType.Exclusive, ConsumerType.Failover):
        raise InvalidConfiguration(
            "is_read_compacted is for Exclusive and Failover subscriptions, and this one is "
            f"{consumer_type.name}"
        )
    for topic in topics if isinstance(topics, list) else [topics]:
        if isinstance(topic, str) and topic.startswith(f"{NON_PERSISTENT}://"):
            raise InvalidConfiguration(f"is_read_compacted is for persistent topics, and {topic} is not one")


def reader_config(options: dict[str, Any]) -> ReaderConfig:
    """Check the arguments of `Client.create_reader`.

    Args:
        options: the arguments.

    Raises:
        ValueError: a wrong type or value.
        InvalidConfiguration: ``is_read_compacted`` on a non-persistent topic.
        ImportError: there is a key reader, and the extra ``crypto`` is not installed.
    """
    # In the order in which ``pulsar-client`` checks, so a call with two mistakes gets the same error.
    check_types(_READER_TYPES, options)
    if options["crypto_key_reader"] is not None:
        check_key_reader(options["crypto_key_reader"])
    check_types(_LATER_READER_TYPES, options)
    check_range(options["receiver_queue_size"], "receiver_queue_size", INT32_MIN, INT32_MAX)
    if options["is_read_compacted"]:
        _check_compacted(options["topic"])
    reads_uncommitted = options["isolation"] == _UNCOMMITTED
    if options["isolation"] not in ("read_committed", _UNCOMMITTED):
        raise InvalidConfiguration(
            f"isolation is read_committed or read_uncommitted, not {options['isolation']!r}"
        )
    if reads_uncommitted and options["is_read_compacted"]:
        raise InvalidConfiguration("what is compacted is committed: leave out isolation or is_read_compacted")
    chain = _chain(options, is_reader=True)
    return ReaderConfig(
        topic=options["topic"],
        start=options["start_message_id"],
        schema=options["schema"],
        listener=_listener("reader_listener", options, chain, "before_read"),
        receiver_queue_size=_queue_size(options),
        name=options["reader_name"] or made_name(options["subscription_role_prefix"]),
        start_inclusive=options["start_message_id_inclusive"],
        key_reader=_key_reader(options),
        crypto_failure_action=options["crypto_failure_action"],
        chain=chain,
        is_read_compacted=options["is_read_compacted"],
        reads_uncommitted=reads_uncommitted,
    )


def made_name(prefix: str | None = None) -> str:
    """A name for a reader without one."""
    return f"{prefix}-reader-{os.urandom(5).hex()}" if prefix else f"reader-{os.urandom(5).hex()}"


def _queue_size(options: dict[str, Any]) -> int:
    """Return the number of messages to fetch ahead; 1 for a negative one, with which none would come."""
    size: int = options["receiver_queue_size"]
    return 1 if size < 0 else size


def _listener(name: str, options: dict[str, Any], chain: InterceptorChain | None, hook: str) -> Any:
    """Return the listener with its interceptors, or None.

    Raises:
        ValueError: it is not callable, which would otherwise fail with each message.
    """
    listener = options[name]
    if listener and not callable(listener):
        raise ValueError(f"Argument {name} is expected to be callable, and {listener!r} is not")
    if not listener or chain is None:
        return listener or None
    return chain.listening(listener, hook)


def _chain(options: dict[str, Any], *, is_reader: bool) -> InterceptorChain | None:
    """Return the chain of the interceptors, which are imported only for those who have some."""
    given = options["interceptors"]
    if given is None:
        return None
    from embeddedpulsar.client.interceptors import ConsumerInterceptor, ReaderInterceptor, chain_of

    return chain_of(given, ReaderInterceptor if is_reader else ConsumerInterceptor)


def _key_reader(options: dict[str, Any]) -> CryptoKeyReader | None:
    """Return the key reader, after checking that the extra ``crypto`` is installed."""
    reader: CryptoKeyReader | None = options["crypto_key_reader"]
    if reader is not None:
        from embeddedpulsar.crypto import require_cryptography

        require_cryptography()
    return reader


_CONSUMER_TYPES: tuple[tuple[str, type[Any], bool], ...] = (
    ("subscription_name", str, False),
    ("consumer_type", ConsumerType, False),
    ("schema", Schema, False),
    ("receiver_queue_size", int, False),
    ("max_total_receiver_queue_size_across_partitions", int, False),
    ("consumer_name", str, True),
    ("unacked_messages_timeout_ms", int, True),
    ("broker_consumer_stats_cache_time_ms", int, False),
    ("negative_ack_redelivery_delay_ms", int, False),
    ("pattern_auto_discovery_period", int, False),
    ("is_read_compacted", bool, False),
    ("properties", dict, True),
    ("initial_position", InitialPosition, False),
)
# Behind the key reader.
_LATER_CONSUMER_TYPES: tuple[tuple[str, type[Any], bool], ...] = (
    ("max_pending_chunked_message", int, False),
    ("auto_ack_oldest_chunked_message_on_queue_full", bool, False),
    ("start_message_id_inclusive", bool, False),
    ("batch_receive_policy", ConsumerBatchReceivePolicy, True),
    ("key_shared_policy", ConsumerKeySharedPolicy, True),
    ("batch_index_ack_enabled", bool, False),
    ("regex_subscription_mode", RegexSubscriptionMode, False),
    ("crypto_failure_action", ConsumerCryptoFailureAction, False),
    ("dead_letter_policy", ConsumerDeadLetterPolicy, True),
    # Options that pulsar-client does not have.
    ("ack_group_time_ms", int, False),
    ("ack_receipt_enabled", bool, False),
    ("priority_level", int, False),
    ("subscription_mode", SubscriptionMode, False),
    ("ack_timeout_tick_ms", int, False),
    ("enable_retry", bool, False),
    ("retry_letter_topic", str, True),
    ("expire_time_of_incomplete_chunked_message_ms", int, False),
)
# Behind those; few consumers have one.
_BACKOFFS = ("negative_ack_redelivery_backoff", "ack_timeout_redelivery_backoff")
_RANGES: tuple[tuple[str, int], ...] = (
    ("receiver_queue_size", INT32_MIN),
    ("ack_group_time_ms", 0),
    ("ack_timeout_tick_ms", 1),
    ("expire_time_of_incomplete_chunked_message_ms", 0),
)
"""The least values, in the order in which ``pulsar-client`` checks them."""
_READER_TYPES: tuple[tuple[str, type[Any], bool], ...] = (
    ("topic", str, False),
    ("start_message_id", MessageId, False),
    ("schema", Schema, False),
    ("receiver_queue_size", int, False),
    ("reader_name", str, True),
    ("subscription_role_prefix", str, True),
    ("is_read_compacted", bool, False),
    ("isolation", str, False),
)
_UNCOMMITTED = "read_uncommitted"
_LATER_READER_TYPES: tuple[tuple[str, type[Any], bool], ...] = (
    ("start_message_id_inclusive", bool, False),
    ("crypto_failure_action", ConsumerCryptoFailureAction, False),
)
