"""Subscription types in which one consumer at a time gets everything, in order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from embeddedpulsar._engine.format.key_hash import sticky_key_hash
from embeddedpulsar._engine.format.subscription_record import FLAG_RING, FLAG_SEVERAL_TOPICS, ConsumerRules
from embeddedpulsar.subscription.dispatch.dispatch_rules import ActiveDispatcher, Asked
from embeddedpulsar.subscription.state.consumer_registry import Consumer, ConsumerRegistry
from embeddedpulsar.subscription.state.dispatch_state import DispatchState

RING_POINTS: Final = 100


class ExclusiveDispatcher(ActiveDispatcher):
    """Exclusive: the first to attach is the only one, and reads lock-free behind the tail.

    A detached consumer leaves nothing behind: the next one reads what it did not acknowledge again, in order.
    """

    def refusal(self, consumers: ConsumerRegistry, new_consumer: Consumer, dispatch: DispatchState) -> str:
        for holder in consumers.all():
            since = datetime.fromtimestamp(holder.attached_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            place = " of this very process" if holder.client_uuid == new_consumer.client_uuid else ""
            return (
                f"Exclusive consumer is already connected: {holder.name!r}{place} holds the subscription "
                f"that {new_consumer.name!r} wants, since {since}; close it, or subscribe as Shared or "
                "Failover"
            )
        return ""

    def active(self, consumers: ConsumerRegistry) -> int:
        """The only one there is."""
        return next((one.consumer_id for one in consumers.all()), 0)


class FailoverDispatcher(ActiveDispatcher):
    """Failover: one consumer is active, the others stand by; of those with the best priority level.

    On a partition they are ordered by name and the number of the partition chooses, so that the consumers of
    a partitioned topic share its partitions. On any other topic the longest attached is active; but where one
    of them consumes several topics, a ring of the hashes of their names chooses, so that they share those.
    """

    def rules(self, asked: Asked) -> ConsumerRules:
        return super().rules(asked)._replace(topic_hash=sticky_key_hash(asked.topic))

    def active(self, consumers: ConsumerRegistry) -> int:
        """The consumer that gets everything until others come or go."""
        everybody = consumers.all()
        if len(everybody) <= 1:
            return everybody[0].consumer_id if everybody else 0
        best = min(one.priority_level for one in everybody)
        candidates = [one for one in everybody if one.priority_level == best]
        rules = candidates[0].rules
        is_ring = any(one.rules.flags & FLAG_SEVERAL_TOPICS for one in everybody) and rules.partition < 0
        if is_ring or rules.flags & FLAG_RING:
            names = tuple(one.name for one in candidates)
            return candidates[chosen_on_ring(names, rules.topic_hash)].consumer_id
        if rules.partition >= 0:
            by_name = sorted(candidates, key=_name_and_id)
            return by_name[rules.partition % len(by_name)].consumer_id
        return candidates[0].consumer_id


def _name_and_id(consumer: Consumer) -> tuple[str, int]:
    return consumer.name, consumer.consumer_id


@lru_cache(maxsize=64)
def chosen_on_ring(names: Sequence[str], topic_hash: int) -> int:
    """Index of the name whose point on the ring of hashes follows that of the topic.

    Each name has 100 points, the hashes of the name and a number from 0 to 99; of two names on one point the
    later one has it.

    >>> from embeddedpulsar._engine.format.key_hash import sticky_key_hash
    >>> topics = [f"persistent://public/default/topic-{i}" for i in range(1, 5)]
    >>> [chosen_on_ring(("con-1", "con-2"), sticky_key_hash(topic)) for topic in topics]
    [1, 1, 1, 0]
    """
    order = sorted(range(len(names)), key=lambda index: names[index])
    owners = {
        sticky_key_hash(f"{names[index]}{point}"): index for index in order for point in range(RING_POINTS)
    }
    ring = sorted(owners)
    return owners[ring[bisect_left(ring, topic_hash) % len(ring)]]
