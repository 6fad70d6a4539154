"""Scenarios of backlog quotas and limits: which error comes, and when."""

from __future__ import annotations

from typing import Any

from tests.beside_pulsar.side import Side, outcome, pause, wait_for

QUOTA_SECONDS = 90.0


def _over_its_quota(side: Side, policy: str) -> tuple[str, Any]:
    topic = side.topic(policy.replace("_", "-"))
    side.admin.create_topic(topic)
    side.admin.create_subscription(topic, "sub")
    side.admin.set_policy(topic, "backlogQuota", {"limitSize": 2000, "limitTime": -1, "policy": policy})
    producer = side.client.create_producer(topic, send_timeout_millis=3000)
    for _ in range(4):
        producer.send(bytes(1000))
    return topic, producer


def _beyond_its_quota(side: Side, policy: str) -> Any:
    topic, producer = _over_its_quota(side, policy)
    sent = ["ok"]

    def new_producer() -> str:
        return outcome(lambda: side.client.create_producer(topic).close())

    def sends_fail() -> bool:
        sent.append(outcome(producer.send, b"more"))
        return sent[-1] != "ok"

    wait_for(lambda: new_producer() != "ok", QUOTA_SECONDS)
    refused = new_producer()
    wait_for(sends_fail, QUOTA_SECONDS)
    side.admin.skip_all(topic, "sub")
    wait_for(lambda: new_producer() == "ok", QUOTA_SECONDS)
    return {"create_producer": refused, "send": sent[-1], "afterwards": new_producer()}


def quota_with_producer_exception(side: Side) -> Any:
    """Sends and new producers beyond a quota of `producer_exception`, and after the backlog is gone."""
    return _beyond_its_quota(side, "producer_exception")


def quota_with_producer_request_hold(side: Side) -> Any:
    """Sends and new producers beyond a quota of `producer_request_hold`."""
    return _beyond_its_quota(side, "producer_request_hold")


def quota_with_eviction(side: Side) -> Any:
    """The backlog shrinks, and producers go on."""
    topic, producer = _over_its_quota(side, "consumer_backlog_eviction")
    evicted = wait_for(lambda: side.backlog(topic, "sub") < 4, QUOTA_SECONDS)
    return {"evicted": evicted, "left": side.backlog(topic, "sub") <= 2, "send": outcome(producer.send, b"x")}


def quotas_that_make_no_sense(side: Side) -> Any:
    """A quota above the retention, and one below it."""
    topic = side.topic("nonsense")
    side.admin.create_topic(topic)
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}
    side.admin.set_policy(topic, "retention", retention)
    quota = {"limitSize": 2 << 20, "limitTime": -1, "policy": "producer_exception"}
    above = outcome(side.admin.set_policy, topic, "backlogQuota", quota)
    below = outcome(side.admin.set_policy, topic, "backlogQuota", quota | {"limitSize": 1 << 19})
    smaller = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    return {
        "above": above,
        "below": below,
        "retention without limits": outcome(side.admin.set_policy, topic, "retention", smaller),
    }


def most_producers(side: Side) -> Any:
    """The producer beyond `maxProducers`."""
    topic = side.topic("producers")
    side.admin.create_topic(topic)
    side.admin.set_policy(topic, "maxProducers", 1)
    first = side.client.create_producer(topic)
    second = outcome(side.client.create_producer, topic)
    first.close()
    return second, outcome(side.client.create_producer, topic)


def most_consumers(side: Side) -> Any:
    """The consumer and the reader beyond `maxConsumers`."""
    topic = side.topic("consumers")
    side.admin.create_topic(topic)
    side.admin.set_policy(topic, "maxConsumers", 1)
    first = side.client.subscribe(topic, "sub", side.pulsar.ConsumerType.Shared)
    found = {
        "same subscription": outcome(side.client.subscribe, topic, "sub", side.pulsar.ConsumerType.Shared),
        "other subscription": outcome(side.client.subscribe, topic, "other"),
        "reader": outcome(side.client.create_reader, topic, side.pulsar.MessageId.earliest),
    }
    first.close()
    found["afterwards"] = outcome(side.client.subscribe, topic, "sub", side.pulsar.ConsumerType.Shared)
    return found


def most_consumers_of_a_subscription(side: Side) -> Any:
    """The consumer beyond `maxConsumersPerSubscription`."""
    topic = side.topic("consumers-of-one")
    side.admin.create_topic(topic)
    side.admin.set_policy(topic, "maxConsumersPerSubscription", 1)
    shared = side.pulsar.ConsumerType.Shared
    consumers = [side.client.subscribe(topic, "sub", shared)]
    return {
        "same": outcome(side.client.subscribe, topic, "sub", shared),
        "other": outcome(side.client.subscribe, topic, "other", shared),
        "there": len(consumers),
    }


def most_subscriptions(side: Side) -> Any:
    """The subscription beyond `maxSubscriptionsPerTopic`, by consumer, by reader and by hand."""
    topic = side.topic("subscriptions")
    side.admin.create_topic(topic)
    side.admin.set_policy(topic, "maxSubscriptionsPerTopic", 1)
    first = side.client.subscribe(topic, "one")
    value = {
        "subscribe": outcome(side.client.subscribe, topic, "two"),
        "reader": outcome(side.client.create_reader, topic, side.pulsar.MessageId.earliest),
        "create_subscription": outcome(side.admin.create_subscription, topic, "three"),
    }
    first.close()
    return value


def most_topics(side: Side) -> Any:
    """The topic beyond `maxTopicsPerNamespace`, by its use and by hand."""
    side.admin.set_policy(side.namespace, "maxTopicsPerNamespace", 2)
    side.admin.create_topic(side.topic("one"))
    side.admin.create_topic(side.topic("two"))
    return {
        "create_producer": outcome(side.client.create_producer, side.topic("three")),
        "create_topic": outcome(side.admin.create_topic, side.topic("four")),
        "partitioned": outcome(side.admin.create_topic, side.topic("five"), 2),
    }


def exclusive_in_use(side: Side) -> Any:
    """The second consumer of an Exclusive subscription, and one of another type."""
    topic = side.topic("exclusive")
    consumers = [
        side.client.subscribe(topic, "sub"),
        side.client.subscribe(topic, "shared", side.pulsar.ConsumerType.Shared),
    ]
    kinds = side.pulsar.ConsumerType
    found = {
        kind.name: outcome(side.client.subscribe, topic, "sub", kind)
        for kind in (kinds.Exclusive, kinds.Shared, kinds.Failover, kinds.KeyShared)
    }
    found["exclusive on shared"] = outcome(side.client.subscribe, topic, "shared")
    found["there"] = str(len(consumers))
    return found


def creation_switched_off(side: Side) -> Any:
    """Topics and subscriptions that are not created by their first use."""
    side.admin.set_policy(side.namespace, "autoTopicCreation", {"allowAutoTopicCreation": False})
    found = {
        "create_producer": outcome(side.client.create_producer, side.topic("none")),
        "subscribe": outcome(side.client.subscribe, side.topic("none"), "sub"),
        "reader": outcome(side.client.create_reader, side.topic("none"), side.pulsar.MessageId.earliest),
    }
    side.admin.create_topic(side.topic("one"))
    no = {"allowAutoSubscriptionCreation": False}
    side.admin.set_policy(side.namespace, "autoSubscriptionCreation", no)
    found["subscription"] = outcome(side.client.subscribe, side.topic("one"), "sub")
    found["reader of one"] = outcome(
        side.client.create_reader, side.topic("one"), side.pulsar.MessageId.earliest
    )
    return found


def types_switched_off(side: Side) -> Any:
    """Subscriptions of a type that is not enabled."""
    topic = side.topic("types")
    side.admin.create_topic(topic)
    side.admin.set_policy(topic, "subscriptionTypesEnabled", ["Shared"])
    pause(0.5)
    kinds = side.pulsar.ConsumerType
    return {
        kind.name: outcome(side.client.subscribe, topic, kind.name, kind)
        for kind in (kinds.Exclusive, kinds.Shared, kinds.Failover)
    }


SCENARIOS = (
    quota_with_producer_exception,
    quota_with_producer_request_hold,
    quota_with_eviction,
    quotas_that_make_no_sense,
    most_producers,
    most_consumers,
    most_consumers_of_a_subscription,
    most_subscriptions,
    most_topics,
    exclusive_in_use,
    creation_switched_off,
    types_switched_off,
)
