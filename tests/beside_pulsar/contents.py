"""Scenarios of patterns, compaction and non-persistent topics: what is received."""

from __future__ import annotations

import re
from typing import Any

from tests.beside_pulsar.side import Side, outcome, pause, wait_for

PATTERN_SECONDS = 75.0


def _names(side: Side, topics: list[str]) -> list[str]:
    return sorted(side.short(one) for one in topics)


def patterns_and_what_they_match(side: Side) -> Any:
    """Which of some topics a pattern joins: by the messages that are received."""
    names = ("orders-eu", "orders-us", "old-orders-eu", "orders", "Orders-EU", "orders-eu-DLQ")
    for name in names:
        side.admin.create_topic(side.topic(name))
    side.admin.create_topic(side.topic("orders-parts"), 2)
    found = {}
    for number, expression in enumerate(("orders-.*", "orders", ".*-eu", "orders-(eu|us)", "orders-e.$")):
        consumer = side.client.subscribe(
            re.compile(f"persistent://{side.namespace}/{expression}"),
            f"sub-{number}",
            initial_position=side.pulsar.InitialPosition.Earliest,
        )
        found[expression] = consumer
    for name in names:
        side.publish(side.topic(name), name.encode())
    side.publish(side.topic("orders-parts"), b"parts")
    value = {expression: sorted(side.received(one)) for expression, one in found.items()}
    for consumer in found.values():
        consumer.close()
    return value


def pattern_and_new_topics(side: Side) -> Any:
    """A topic that is made later joins, and its first message is received."""
    side.admin.create_topic(side.topic("log-1"))
    consumer = side.client.subscribe(
        re.compile(f"persistent://{side.namespace}/log-.*"),
        "sub",
        initial_position=side.pulsar.InitialPosition.Earliest,
        pattern_auto_discovery_period=1,
    )
    side.publish(side.topic("log-1"), b"1")
    first = side.received(consumer, acknowledge=True)
    side.publish(side.topic("log-2"), b"2")
    joined: list[bytes] = []

    def joins() -> bool:
        joined.extend(side.received(consumer, acknowledge=True))
        return bool(joined)

    wait_for(joins, PATTERN_SECONDS)
    return {"first": first, "joined": joined}


def pattern_modes(side: Side) -> Any:
    """Persistent topics only, non-persistent ones only, or all."""
    side.admin.create_topic(side.topic("stock"))
    modes = side.pulsar.RegexSubscriptionMode
    volatile = side.client.create_producer(side.topic("stock-now", "non-persistent"))
    found = {}
    for mode in (modes.PersistentOnly, modes.NonPersistentOnly, modes.AllTopics):
        consumer = side.client.subscribe(
            re.compile(f"persistent://{side.namespace}/stock.*"),
            f"sub-{mode.name}",
            regex_subscription_mode=mode,
            initial_position=side.pulsar.InitialPosition.Latest,
        )
        side.publish(side.topic("stock"), b"kept")
        volatile.send(b"not kept")
        found[mode.name] = sorted(side.received(consumer))
        consumer.close()
    return found


def pattern_without_matches(side: Side) -> Any:
    """A pattern that matches nothing is no error; one of several namespaces or none."""
    return {
        "nothing matches": outcome(
            side.client.subscribe, re.compile(f"persistent://{side.namespace}/nothing-.*"), "sub"
        ),
        "no such namespace": outcome(side.client.subscribe, re.compile("public/no-such-place/.*"), "sub"),
    }


def _compacted(side: Side, topic: str) -> list[tuple[str, bytes]]:
    reader = side.client.create_reader(topic, side.pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while True:
        try:
            message = reader.read_next(1000)
        except side.pulsar.Timeout:
            reader.close()
            return found
        found.append((message.partition_key(), message.data()))


def compaction(side: Side) -> Any:
    """Newest values, messages without keys, and what is behind the compacted messages."""
    topic = side.topic("prices")
    for key, value in (("tea", b"1"), ("soup", b"2"), ("tea", b"3"), ("cake", b"4"), (None, b"keyless")):
        side.publish(topic, value, key=key)
    before = _compacted(side, topic)
    side.admin.compact(topic)
    compacted = _compacted(side, topic)
    side.publish(topic, b"5", key="tea")
    side.publish(topic, b"also keyless")
    behind = _compacted(side, topic)
    side.admin.compact(topic)
    return {"before": before, "compacted": compacted, "behind": behind, "again": _compacted(side, topic)}


def compaction_of_empty_values(side: Side) -> Any:
    """Keys whose newest value is empty or null, at the end of the topic and before it."""
    found = {}
    for name, empty in (("empty", b""), ("null", None)):
        topic = side.topic(name)
        for key, value in (("tea", b"1"), ("cake", b"2"), ("tea", empty), ("soup", b"3"), ("cake", empty)):
            side.publish(topic, value, key=key)
        side.admin.compact(topic)
        found[name] = _compacted(side, topic)
        side.publish(topic, b"4", key="soup")
        side.admin.compact(topic)
        found[f"{name}, again"] = _compacted(side, topic)
    return found


def compaction_of_batches(side: Side) -> Any:
    """Batches are taken apart."""
    topic = side.topic("batches")
    side.publish_batch(topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), (None, b"keyless"), ("c", b"1"))
    side.publish_batch(topic, ("b", b"2"), ("c", b""), ("d", b"1"))
    side.admin.compact(topic)
    return _compacted(side, topic)


def compaction_and_subscriptions(side: Side) -> Any:
    """Reading compacted by types of subscriptions, and from volatile topics."""
    topic = side.topic("types")
    side.publish(topic, b"1", key="a")
    side.publish(topic, b"2", key="a")
    side.admin.compact(topic)
    kinds = side.pulsar.ConsumerType
    found: dict[str, Any] = {
        kind.name: outcome(side.client.subscribe, topic, kind.name, kind, is_read_compacted=True)
        for kind in (kinds.Exclusive, kinds.Failover, kinds.Shared, kinds.KeyShared)
    }
    consumer = side.client.subscribe(
        topic, "early", is_read_compacted=True, initial_position=side.pulsar.InitialPosition.Earliest
    )
    found["received"] = side.received(consumer)
    found["without compaction"] = outcome(_compacted, side, side.topic("never"))
    volatile = side.topic("volatile", "non-persistent")
    found["volatile"] = outcome(side.client.subscribe, volatile, "sub", is_read_compacted=True)
    return found


def volatile_topics(side: Side) -> Any:
    """Ids, backlogs and losses of a non-persistent topic."""
    topic = side.topic("now", "non-persistent")
    producer = side.client.create_producer(topic)
    lost = producer.send(b"lost")
    consumer = side.client.subscribe(topic, "sub", side.pulsar.ConsumerType.Shared)
    sent = [producer.send(b"%d" % number) for number in range(3)]
    messages = [consumer.receive(3000) for _ in range(3)]
    consumer.negative_acknowledge(messages[0])
    pause(0.5)
    stats = side.admin.stats(topic)
    subscription = stats["subscriptions"]["sub"]
    value = {
        "ids": [(lost.ledger_id(), lost.entry_id())] + [(one.ledger_id(), one.entry_id()) for one in sent],
        "received": [one.data() for one in messages],
        "redelivered": outcome(consumer.receive, 1500),
        "backlog": subscription["msgBacklog"],
        "type": subscription["type"],
        "rates": sorted(name for name in subscription if "Drop" in name),
        "seek": outcome(consumer.seek, side.pulsar.MessageId.earliest),
    }
    consumer.close()
    producer.send(b"lost too")
    again = side.client.subscribe(
        topic, "sub", side.pulsar.ConsumerType.Shared, initial_position=side.pulsar.InitialPosition.Earliest
    )
    value["after all left"] = side.received(again)
    return value


def volatile_fields(side: Side) -> Any:
    """Names of the fields of a non-persistent topic."""
    topic = side.topic("fields", "non-persistent")
    consumer = side.client.subscribe(topic, "sub")
    producer = side.client.create_producer(topic)
    producer.send(b"a")
    stats = side.admin.stats(topic)
    consumer.close()
    return {
        "topic": sorted(stats),
        "subscription": sorted(stats["subscriptions"]["sub"]),
        "publisher": sorted(stats["publishers"][0]),
    }


SCENARIOS = (
    patterns_and_what_they_match,
    pattern_and_new_topics,
    pattern_modes,
    pattern_without_matches,
    compaction,
    compaction_of_empty_values,
    compaction_of_batches,
    compaction_and_subscriptions,
    volatile_topics,
    volatile_fields,
)
