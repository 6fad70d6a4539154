"""The properties of a consumer that is to be attached."""

from __future__ import annotations

from typing import NamedTuple

from embeddedpulsar.enums import ConsumerType, KeySharedMode
from embeddedpulsar.format.consumer_record import (
    FLAG_CLASSIC,
    FLAG_OUT_OF_ORDER,
    FLAG_RING,
    FLAG_SEVERAL_TOPICS,
    ConsumerRules,
)
from embeddedpulsar.format.key_hash import sticky_key_hash
from embeddedpulsar.format.subscription_record import Attach
from embeddedpulsar.policies import KeySharedPolicy
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.subscription.state.sticky_key_selector import CONSISTENT_HASHING, HASH_RANGE, STICKY


class AttachRequest(NamedTuple):
    """A consumer that has not attached yet.

    Attributes:
        name: for statistics, and to order consumers by.
        consumer_type: must be that of the consumers attached already.
        client_uuid: the lease of its process.
        priority: priority level, 0 being the best.
        receiver_queue_size: messages it is ready to take at once.
        rules: its requirements for dispatch.
    """

    name: str
    consumer_type: ConsumerType
    client_uuid: bytes
    priority: int
    receiver_queue_size: int
    rules: ConsumerRules

    def command(self, consumer_id: int, now_ms: int) -> Attach:
        """The command by which it attaches."""
        return Attach(
            consumer_id, self.name, self.consumer_type, self.priority, self.client_uuid, now_ms, self.rules
        )


def rules_for(
    settings: BrokerSettings,
    consumer_type: ConsumerType,
    key_shared: KeySharedPolicy | None,
    *,
    topic: str,
    partition: int,
    several_topics: bool,
) -> ConsumerRules:
    """The dispatch requirements of a consumer, together with the settings that hold for it.

    Args:
        settings: of the store.
        consumer_type: of the consumer.
        key_shared: its policy; None for AUTO_SPLIT in order.
        topic: full name of the topic.
        partition: of the topic, -1 for none.
        several_topics: whether the consumer is one of a consumer of several topics.
    """
    flags = FLAG_SEVERAL_TOPICS if several_topics else 0
    limits = (settings.maxUnackedMessagesPerConsumer, settings.maxUnackedMessagesPerSubscription)
    if consumer_type == ConsumerType.Shared:
        return ConsumerRules(flags=flags, max_unacked=limits[0], max_unacked_in_all=limits[1])
    if consumer_type != ConsumerType.KeyShared:
        flags |= FLAG_RING if settings.activeConsumerFailoverConsistentHashing else 0
        topic_hash = sticky_key_hash(topic) if consumer_type == ConsumerType.Failover else 0
        return ConsumerRules(flags=flags, partition=partition, topic_hash=topic_hash)
    policy = key_shared or KeySharedPolicy()
    selector = HASH_RANGE
    ranges: tuple[tuple[int, int], ...] = ()
    if policy.get_key_shared_mode() == KeySharedMode.Sticky:
        selector, ranges = STICKY, tuple((a, b) for a, b in policy.get_sticky_ranges())
    elif settings.subscriptionKeySharedUseConsistentHashing:
        selector = CONSISTENT_HASHING
    flags |= FLAG_OUT_OF_ORDER if policy.is_allow_out_of_order_delivery() else 0
    flags |= FLAG_CLASSIC if settings.subscriptionKeySharedUseClassicPersistentImplementation else 0
    points = settings.subscriptionKeySharedConsistentHashingReplicaPoints
    return ConsumerRules(
        selector=selector,
        points=points,
        flags=flags,
        max_unacked=limits[0],
        max_unacked_in_all=limits[1],
        ranges=ranges,
    )
