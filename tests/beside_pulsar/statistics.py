"""Scenarios of statistics: which fields there are, and which values."""

from __future__ import annotations

from typing import Any

from tests.beside_pulsar.side import Side, outcome, wait_for

VALUES = ("type", "msgBacklog", "unackedMessages", "isDurable", "isReplicated", "msgDelayed", "keySharedMode")


def _topic_in_use(side: Side) -> tuple[str, list[Any]]:
    topic = side.topic("in-use")
    consumers = [
        side.client.subscribe(topic, "exclusive", consumer_name="one"),
        side.client.subscribe(topic, "shared", side.pulsar.ConsumerType.Shared, consumer_name="two"),
        side.client.subscribe(topic, "keys", side.pulsar.ConsumerType.KeyShared, consumer_name="three"),
        side.client.subscribe(topic, "failover", side.pulsar.ConsumerType.Failover, consumer_name="four"),
    ]
    side.publish(topic, b"a", b"b", b"c", key="key")
    for consumer in consumers[:3]:
        consumer.acknowledge(consumer.receive(5000))
        consumer.receive(5000)
    wait_for(lambda: all(side.backlog(topic, name) == 2 for name in ("exclusive", "shared", "keys")))
    return topic, consumers


def fields_of_topic_stats(side: Side) -> Any:
    """Names of the fields of a topic, its producers, subscriptions and consumers."""
    topic, _ = _topic_in_use(side)
    producer = side.client.create_producer(topic)
    stats = side.admin.stats(topic)
    producer.close()
    return {
        "topic": sorted(stats),
        "publisher": sorted(stats["publishers"][0]),
        "subscription": sorted(stats["subscriptions"]["exclusive"]),
        "shared subscription": sorted(stats["subscriptions"]["shared"]),
        "consumer": sorted(stats["subscriptions"]["shared"]["consumers"][0]),
        "exclusive consumer": sorted(stats["subscriptions"]["exclusive"]["consumers"][0]),
    }


def values_of_topic_stats(side: Side) -> Any:
    """Counters, backlogs, types and names of a topic in use."""
    topic, _ = _topic_in_use(side)
    stats = side.admin.stats(topic)
    found: dict[str, Any] = {
        "msgInCounter": stats["msgInCounter"],
        "waitingPublishers": stats["waitingPublishers"],
        "deduplicationStatus": stats["deduplicationStatus"],
    }
    for name, one in sorted(stats["subscriptions"].items()):
        found[name] = {field: one.get(field) for field in VALUES}
        found[name]["active"] = one.get("activeConsumerName") or None
        found[name]["consumers"] = [
            (each["consumerName"], each["unackedMessages"]) for each in one["consumers"]
        ]
    return found


def stats_without_consumers(side: Side) -> Any:
    """A subscription whose consumers left, and one that never had any."""
    topic = side.topic("left")
    side.client.subscribe(topic, "left", side.pulsar.ConsumerType.Shared).close()
    side.admin.create_subscription(topic, "never")
    side.publish(topic, b"a")
    subscriptions = side.admin.stats(topic)["subscriptions"]
    return {name: (one.get("type"), one["msgBacklog"]) for name, one in sorted(subscriptions.items())}


def readers(side: Side) -> Any:
    """A reader in the statistics: the type and durability of its subscription, and the number of cursors."""
    topic = side.topic("read")
    reader = side.client.create_reader(
        topic, side.pulsar.MessageId.earliest, subscription_role_prefix="sight"
    )
    found = [(one["type"], one["isDurable"]) for one in side.admin.stats(topic)["subscriptions"].values()]
    cursors = len(side.admin.internal_stats(topic)["cursors"])
    reader.close()
    return {
        "subscriptions": found,
        "cursors": cursors,
        "after": len(side.admin.stats(topic)["subscriptions"]),
    }


def fields_of_internal_stats(side: Side) -> Any:
    """Names of the fields of ledgers and cursors."""
    topic, _ = _topic_in_use(side)
    stats = side.admin.internal_stats(topic)
    return {
        "topic": sorted(stats),
        "ledger": sorted(stats["ledgers"][0]),
        "cursor": sorted(stats["cursors"]["shared"]),
        "exclusive cursor": sorted(stats["cursors"]["exclusive"]),
    }


def values_of_internal_stats(side: Side) -> Any:
    """Entries, states and positions relative to the first ledger."""
    topic, _ = _topic_in_use(side)
    stats = side.admin.internal_stats(topic)
    ledger = str(stats["ledgers"][0]["ledgerId"])
    shared = stats["cursors"]["shared"]
    return {
        "entriesAddedCounter": stats["entriesAddedCounter"],
        "numberOfEntries": stats["numberOfEntries"],
        "currentLedgerEntries": stats["currentLedgerEntries"],
        "lastConfirmedEntry": stats["lastConfirmedEntry"].replace(ledger + ":", "L:"),
        "state": stats["state"],
        "ledgers": len(stats["ledgers"]),
        "markDeletePosition": shared["markDeletePosition"].replace(ledger + ":", "L:"),
        "individuallyDeletedMessages": shared["individuallyDeletedMessages"].replace(ledger + ":", "L:"),
        "behind": shared["numberOfEntriesSinceFirstNotAckedMessage"],
    }


def individually_deleted(side: Side) -> Any:
    """How acknowledgements out of order are written."""
    topic = side.topic("holes")
    consumer = side.client.subscribe(topic, "sub", side.pulsar.ConsumerType.Shared)
    side.publish(topic, *[b"%d" % i for i in range(6)])
    messages = [consumer.receive(5000) for _ in range(6)]
    for i in (1, 2, 4):
        consumer.acknowledge(messages[i])
    wait_for(lambda: side.backlog(topic, "sub") == 3)
    stats = side.admin.internal_stats(topic)
    ledger, cursor = str(stats["ledgers"][0]["ledgerId"]), stats["cursors"]["sub"]
    return {
        "ranges": cursor["individuallyDeletedMessages"].replace(ledger + ":", "L:"),
        "count": cursor["totalNonContiguousDeletedMessagesRange"],
        "mark": cursor["markDeletePosition"].replace(ledger + ":", "L:"),
        "in stats": side.admin.stats(topic)["subscriptions"]["sub"]["nonContiguousDeletedMessagesRanges"],
    }


def partitioned_stats(side: Side) -> Any:
    """The sums over partitions."""
    topic = side.topic("parts")
    side.admin.create_topic(topic, 2)
    consumer = side.client.subscribe(topic, "sub", side.pulsar.ConsumerType.Shared)
    side.publish(topic + "-partition-0", b"a", b"b")
    side.publish(topic + "-partition-1", b"c")
    stats = side.admin.partitioned_stats(topic)
    of_one = stats["partitions"][topic + "-partition-0"]
    value = {
        "metadata": stats["metadata"]["partitions"],
        "msgInCounter": stats["msgInCounter"],
        "backlog": stats["subscriptions"]["sub"]["msgBacklog"],
        "type": stats["subscriptions"]["sub"]["type"],
        "partitions": sorted(side.short(name) for name in stats["partitions"]),
        "of one": (of_one["msgInCounter"], of_one["subscriptions"]["sub"]["msgBacklog"]),
        "not partitioned": outcome(side.admin.partitioned_stats, topic + "-partition-0"),
        "stats of a partitioned topic": outcome(side.admin.stats, topic),
        "missing": outcome(side.admin.stats, side.topic("nowhere")),
    }
    consumer.close()
    return value


def backlog_of_batches(side: Side) -> Any:
    """What a batch of three counts in the backlog, the counters and the entries."""
    topic = side.topic("batches")
    consumer = side.client.subscribe(topic, "sub")
    side.publish_batch(topic, (None, b"a"), (None, b"b"), (None, b"c"))
    stats = side.admin.stats(topic)
    value = {
        "msgInCounter": stats["msgInCounter"],
        "msgBacklog": stats["subscriptions"]["sub"]["msgBacklog"],
        "entries": side.admin.internal_stats(topic)["entriesAddedCounter"],
    }
    consumer.close()
    return value


SCENARIOS = (
    fields_of_topic_stats,
    values_of_topic_stats,
    stats_without_consumers,
    readers,
    fields_of_internal_stats,
    values_of_internal_stats,
    individually_deleted,
    partitioned_stats,
    backlog_of_batches,
)
