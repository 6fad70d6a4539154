"""Opening of a consumer of one topic, or of several.

Opening of a reader or a table view of one topic, or of its partitions.
"""

from __future__ import annotations

import os
from functools import cache

from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar.client.client_context import admit_all, despite_deletion
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.consumer_config import ReaderConfig, made_name
from embeddedpulsar.client.consumer.consumer_core import consumer_core
from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policies import ConsumerDeadLetterPolicy
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.schema.schema import checked_version
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig
    from embeddedpulsar.client.consumer.reader import Reader, ReaderCore
    from embeddedpulsar.client.consumer.table_view import TableView
    from embeddedpulsar.schema import Schema


def open_consumer(client: ClientContext, config: ConsumerConfig, topic: Any) -> Consumer[Any]:
    """Attach a consumer to the subscription of one topic, or of several; partitions are topics.

    Args:
        client: the client.
        config: the options; their topic is ignored.
        topic: a name, a list of names, or a pattern; repeated names are ignored. With ``enable_retry`` the
            retry topic is added.

    Raises:
        TypeError: a name is not a str.
        InvalidTopicName: one of them is not a topic name. As with every other error, nothing is attached.
        InvalidConfiguration: a queue of size 0 on a partitioned topic or with a pattern; a pattern with
            ``enable_retry`` and without ``retry_letter_topic``.
    """
    client.begin_operation()
    if not isinstance(topic, str | list):
        return despite_deletion(lambda: _open_matching(client, config, topic))
    for name in topic if isinstance(topic, list) else [topic]:
        if not isinstance(name, str):
            raise TypeError(f"a topic is a str, not {type(name).__name__}")
    names = [TopicName.parse(name).full for name in (topic if isinstance(topic, list) else [topic])]
    topics = list(dict.fromkeys(names))
    _check_letters(client, config)
    if config.enable_retry and topics:
        config = _with_letter_topics(client, config, topics)
        topics = list(dict.fromkeys([*topics, str(config.retry_letter_topic)]))
    checked_version(config.schema, topics, is_producer=False)
    return despite_deletion(lambda: _open(client, config, topics))


def _open(client: ClientContext, config: ConsumerConfig, topics: list[str]) -> Consumer[Any]:
    partitions = {name: client.store.partitions_of(name) for name in topics}
    admit_all(client.store, partitions, config.schema)
    if len(topics) == 1 and not partitions[topics[0]]:
        session = ConsumerSession(client, config._replace(topic=topics[0]))
        return Consumer(consumer_core(session), config.chain)
    return _open_several(client, config, partitions)


def _open_matching(client: ClientContext, config: ConsumerConfig, pattern: Any) -> Consumer[Any]:
    """Attach a consumer to the topics that match a pattern."""
    from embeddedpulsar.client.consumer.topic_group import ConsumerGroup
    from embeddedpulsar.client.consumer.topic_pattern import TopicPattern

    _check_letters(client, config)
    sends_letters = config.dead_letter is not None or config.enable_retry
    named = {}
    if config.enable_retry:
        if not config.retry_letter_topic:
            raise InvalidConfiguration("enable_retry with a pattern needs retry_letter_topic: name the topic")
        retry = TopicName.parse(config.retry_letter_topic).full
        config = _with_letter_topics(client, config, [retry])
        named = {retry: client.store.partitions_of(retry)}
        admit_all(client.store, named, config.schema)
    dead = config.dead_letter.dead_letter_topic if config.dead_letter is not None else ""
    letters = {*named, *([TopicName.parse(dead).full] if dead else [])}
    topics = TopicPattern(pattern, config.regex_mode, letters, sends_letters)
    if topics.never:
        client.log.warning(
            "The pattern of subscription %s has what no topic can match, whatever its name: %s; put "
            "alternatives into a group, as in acme/sales/(orders|bills), and anchors at the ends of a name",
            config.subscription_name,
            ", ".join(map(repr, topics.never)),
            subscription=config.subscription_name,
        )
    checked_version(config.schema, named, is_producer=False)
    return Consumer(
        ConsumerGroup(client, config._replace(topic=topics.text), named, topics.text, topics), config.chain
    )


def _check_letters(client: ClientContext, config: ConsumerConfig) -> None:
    if config.dead_letter is not None and config.dead_letter.dead_letter_topic:
        TopicName.parse(config.dead_letter.dead_letter_topic)  # now, not when the first letter is moved
    _warn_if_idle(client, config)


def _warn_if_idle(client: ClientContext, config: ConsumerConfig) -> None:
    """Warn about a dead letter policy without effect, most likely because of the wrong subscription type."""
    is_counted = config.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)
    if config.dead_letter is not None and not is_counted and not config.enable_retry:
        client.log.warning(
            "The dead_letter_policy of subscription %s has no effect: redeliveries are counted on Shared and "
            "Key_Shared subscriptions, and this one is %s; choose one of those, or enable_retry",
            config.subscription_name,
            config.consumer_type.name,
            subscription=config.subscription_name,
        )


def _with_letter_topics(client: ClientContext, config: ConsumerConfig, topics: list[str]) -> ConsumerConfig:
    policy = config.dead_letter
    with late_imports():
        from embeddedpulsar.client.consumer.dead_letter import letter_topics
    letters = letter_topics(
        topics, config.subscription_name, policy, config.retry_letter_topic, client.store.topics.has
    )
    initial = policy.initial_subscription_name if policy is not None else ""
    return config._replace(
        dead_letter=ConsumerDeadLetterPolicy(letters.limit, letters.dead, initial or None),
        retry_letter_topic=TopicName.parse(letters.retry).full,
    )


def _open_several(client: ClientContext, config: ConsumerConfig, partitions: dict[str, int]) -> Consumer[Any]:
    # Imported on first use: most consumers have one topic.
    from embeddedpulsar.client.consumer.topic_group import ConsumerGroup

    asked_for = [topic for topic in partitions if topic != config.retry_letter_topic]
    name = "EmptyTopics"
    if len(asked_for) == 1:
        name = asked_for[0]
    elif asked_for:
        name = f"{asked_for[-1]}-TopicsConsumerFakeName-{os.urandom(5).hex()}"
    return Consumer(ConsumerGroup(client, config, partitions, name), config.chain)


_TABLE_VIEW_QUEUE: Final = 1000


def open_reader(client: ClientContext, config: ReaderConfig) -> Reader[Any]:
    """Make the reader of a topic, or of its partitions."""
    client.begin_operation()
    full = TopicName.parse(config.topic).full
    checked_version(config.schema, (full,), is_producer=False)
    return despite_deletion(lambda: _open_reader(client, config, full))


def open_table_view(
    client: ClientContext, topic: str, subscription_name: str | None, schema: Schema[Any]
) -> TableView[Any]:
    """Make a table view, which has not read anything yet."""
    if not TopicName.parse(topic).is_persistent:
        raise InvalidConfiguration(
            f"{topic}: a table view needs a topic that keeps its messages: persistent://"
        )
    with late_imports():  # few processes have one
        from embeddedpulsar.client.consumer.table_view import TableView
    view: TableView[Any] = TableView(topic, subscription_name, schema, client.log)
    config = ReaderConfig(
        topic=topic,
        start=MessageId.earliest,
        schema=schema,
        listener=view._on_message,
        receiver_queue_size=_TABLE_VIEW_QUEUE,
        name=subscription_name or made_name(),
        start_inclusive=False,
        is_read_compacted=True,
    )
    view._reader = open_reader(client, config)
    return view


@cache
def _reader_classes() -> tuple[type[Reader[Any]], type[ReaderCore]]:
    with late_imports():  # consumers need none
        from embeddedpulsar.client.consumer.reader import Reader, ReaderCore
    return Reader, ReaderCore


def _open_reader(client: ClientContext, config: ReaderConfig, full: str) -> Reader[Any]:
    reader, core = _reader_classes()
    partitions = client.store.partitions_of(full)
    admit_all(client.store, (full,), config.schema)
    if not partitions:
        return reader(core(client, config), config.chain)
    from embeddedpulsar.client.consumer.topic_group import ReaderGroup  # as for consumers

    return reader(ReaderGroup(client, config, full, partitions), config.chain)
