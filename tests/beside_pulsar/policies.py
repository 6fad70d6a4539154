"""Scenarios of policies: what is returned for values that were set, for none, and for nonsense."""

from __future__ import annotations

from typing import Any

from tests.beside_pulsar.side import Side, outcome

RATE = {
    "dispatchThrottlingRateInMsg": 100,
    "dispatchThrottlingRateInByte": 1000,
    "ratePeriodInSecond": 2,
    "relativeToPublishRate": False,
}
QUOTA = {"limitSize": 1 << 20, "limitTime": 60, "policy": "producer_exception"}
OF_TOPICS: dict[str, Any] = {
    "backlogQuota": QUOTA,
    "compactionThreshold": 1 << 20,
    "deduplicationEnabled": True,
    "delayedDelivery": {"active": False, "tickTime": 2000},
    "dispatchRate": RATE,
    "maxConsumers": 3,
    "maxConsumersPerSubscription": 4,
    "maxProducers": 5,
    "maxSubscriptionsPerTopic": 6,
    "maxUnackedMessagesOnConsumer": 7,
    "maxUnackedMessagesOnSubscription": 8,
    "messageTTL": 9,
    "publishRate": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 20},
    "retention": {"retentionTimeInMinutes": 11, "retentionSizeInMB": 12},
    "subscriptionDispatchRate": RATE,
    "subscriptionTypesEnabled": ["Shared"],
}
OF_NAMESPACES: dict[str, Any] = {
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "autoTopicCreation": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    },
    "backlogQuota": QUOTA,
    "compactionThreshold": 1 << 20,
    "deduplication": True,
    "delayedDelivery": {"active": False, "tickTime": 2000},
    "maxConsumersPerSubscription": 4,
    "maxConsumersPerTopic": 3,
    "maxProducersPerTopic": 5,
    "maxSubscriptionsPerTopic": 6,
    "maxTopicsPerNamespace": 7,
    "maxUnackedMessagesPerConsumer": 8,
    "maxUnackedMessagesPerSubscription": 9,
    "messageTTL": 10,
    "retention": {"retentionTimeInMinutes": 11, "retentionSizeInMB": 12},
    "subscriptionExpirationTime": 13,
}
NONSENSE: dict[str, tuple[Any, ...]] = {
    "maxProducers": (-1,),
    "maxConsumers": (-2,),
    "messageTTL": (-1,),
    "retention": (
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5},
        {"retentionTimeInMinutes": 5, "retentionSizeInMB": 0},
        {"retentionTimeInMinutes": -2, "retentionSizeInMB": 5},
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    ),
    "compactionThreshold": (-1,),
}


def _round_trips(side: Side, owner: str, values: dict[str, Any]) -> Any:
    found = {}
    for name, value in values.items():
        before = side.admin.get_policy(owner, name)
        done = outcome(side.admin.set_policy, owner, name, value)
        after = side.admin.get_policy(owner, name)
        removed = outcome(side.admin.remove_policy, owner, name)
        found[name] = {
            "unset": before,
            "set": done,
            "get": after,
            "remove": removed,
            "then": side.admin.get_policy(owner, name),
        }
    return found


def policies_of_topics(side: Side) -> Any:
    """Every policy of a topic: unset, set, read and removed."""
    topic = side.topic("policies")
    side.admin.create_topic(topic)
    return _round_trips(side, topic, OF_TOPICS)


def policies_of_namespaces(side: Side) -> Any:
    """The same for a namespace."""
    return _round_trips(side, side.namespace, OF_NAMESPACES)


def policies_that_make_no_sense(side: Side) -> Any:
    """Values that are refused, or not."""
    topic = side.topic("nonsense")
    side.admin.create_topic(topic)
    return {
        f"{name} {value}": outcome(side.admin.set_policy, topic, name, value)
        for name, values in NONSENSE.items()
        for value in values
    }


def policies_of_what_is_missing(side: Side) -> Any:
    """A policy of a topic that does not exist."""
    return {
        "set": outcome(side.admin.set_policy, side.topic("nowhere"), "maxProducers", 1),
        "get": outcome(side.admin.get_policy, side.topic("nowhere"), "maxProducers"),
    }


SCENARIOS = (
    policies_of_topics,
    policies_of_namespaces,
    policies_that_make_no_sense,
    policies_of_what_is_missing,
)
