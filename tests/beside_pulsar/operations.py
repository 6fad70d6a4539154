"""Scenarios of operations on topics and subscriptions."""

from __future__ import annotations

import time
from typing import Any

from tests.beside_pulsar.side import Side, outcome, pause, wait_for

TEN = [b"%d" % number for number in range(10)]


def _ten(side: Side, name: str) -> str:
    topic = side.topic(name)
    side.admin.create_topic(topic)
    side.admin.create_subscription(topic, "sub")
    side.publish(topic, *TEN)
    return topic


def skipping(side: Side) -> Any:
    """What is left after `skip` and `skip_all`."""
    topic = _ten(side, "skip")
    side.admin.skip(topic, "sub", 3)
    consumer = side.client.subscribe(topic, "sub", side.pulsar.ConsumerType.Shared)
    first = side.received(consumer)
    consumer.close()
    more = outcome(side.admin.skip, topic, "sub", 100)
    left = side.backlog(topic, "sub")
    side.admin.skip_all(topic, "sub")
    return {
        "left": first,
        "more than there are": more,
        "left then": left,
        "after all": side.backlog(topic, "sub"),
        "missing": outcome(side.admin.skip, topic, "nobody", 1),
        "missing topic": outcome(side.admin.skip, side.topic("nowhere"), "sub", 1),
    }


def skipping_over_holes(side: Side) -> Any:
    """Whether messages that are acknowledged out of order count."""
    topic = side.topic("holes")
    consumer = side.client.subscribe(topic, "sub", side.pulsar.ConsumerType.Shared)
    side.publish(topic, *TEN)
    messages = [consumer.receive(5000) for _ in range(10)]
    consumer.acknowledge(messages[1])
    wait_for(lambda: side.backlog(topic, "sub") == 9)
    consumer.close()
    side.admin.skip(topic, "sub", 2)
    consumer = side.client.subscribe(topic, "sub", side.pulsar.ConsumerType.Shared)
    return side.received(consumer)


def expiring(side: Side) -> Any:
    """What `expire_messages` leaves."""
    topic = side.topic("expire")
    side.admin.create_topic(topic)
    side.admin.create_subscription(topic, "sub")
    side.publish(topic, b"old", b"old too")
    pause(3)
    side.publish(topic, b"new")
    nothing = outcome(side.admin.expire, topic, "sub", 3600)
    before = side.backlog(topic, "sub")
    called = outcome(side.admin.expire, topic, "sub", 2)
    wait_for(lambda: side.backlog(topic, "sub") == 1, 5)
    return {
        "nothing to expire": nothing,
        "before": before,
        "called": called,
        "after": side.backlog(topic, "sub"),
        "missing": outcome(side.admin.expire, topic, "nobody", 1),
    }


def time_to_live(side: Side) -> Any:
    """A time to live of 1 s for a topic, with a new look at it."""
    topic = _ten(side, "ttl")
    side.admin.set_policy(topic, "messageTTL", 1)
    pause(2)
    called = outcome(side.admin.expire, topic, "sub", 1)
    wait_for(lambda: side.backlog(topic, "sub") == 0, 5)
    return {"called": called, "left": side.backlog(topic, "sub")}


def resetting(side: Side) -> Any:
    """A reset to a time, backwards and forwards, and with a consumer."""
    topic = side.topic("reset")
    side.admin.create_topic(topic)
    side.admin.create_subscription(topic, "sub")
    side.publish(topic, b"a", b"b")
    pause(0.2)
    middle = int(time.time() * 1000)
    pause(0.2)
    side.publish(topic, b"c", b"d")
    consumer = side.client.subscribe(topic, "sub", side.pulsar.ConsumerType.Shared)
    first = side.received(consumer, acknowledge=True)
    wait_for(lambda: side.backlog(topic, "sub") == 0)
    while_attached = outcome(side.admin.reset_to_time, topic, "sub", middle)
    again = sorted(side.received(consumer, wait_ms=2000))
    consumer.close()
    side.admin.reset_to_time(topic, "sub", 1)
    to_the_start = side.backlog(topic, "sub")
    future = outcome(side.admin.reset_to_time, topic, "sub", int(time.time() * 1000) + 3_600_000)
    return {
        "first": first,
        "while attached": while_attached,
        "again": again,
        "to the start": to_the_start,
        "to the future": (future, side.backlog(topic, "sub")),
        "missing": outcome(side.admin.reset_to_time, topic, "nobody", 1),
    }


def looking(side: Side) -> Any:
    """`peek` and `examine`, inside and outside the log."""
    topic = _ten(side, "look")
    side.admin.skip(topic, "sub", 4)
    examined = {
        f"{end} {number}": side.admin.examine(topic, end, number)
        for end in ("earliest", "latest")
        for number in (1, 3, 10)
    }
    return {
        "peek": [side.admin.peek(topic, "sub", number) for number in (1, 2, 6)],
        "peek beyond": outcome(side.admin.peek, topic, "sub", 7),
        "peek of nobody": outcome(side.admin.peek, topic, "nobody", 1),
        "subscriptions": sorted(side.admin.stats(topic)["subscriptions"]),
        "examine": examined,
        "examine beyond, earliest": outcome(side.admin.examine, topic, "earliest", 11),
        "examine beyond, latest": outcome(side.admin.examine, topic, "latest", 11),
        "examine of an empty topic": _examine_empty(side),
    }


def _examine_empty(side: Side) -> str:
    side.admin.create_topic(side.topic("empty"))
    return outcome(side.admin.examine, side.topic("empty"), "latest", 1)


def ids_by_time(side: Side) -> Any:
    """The id of the first message at or after a time, as its number."""
    topic = side.topic("times")
    before, entries = [], []
    for payload in (b"a", b"b", b"c"):
        pause(0.2)
        before.append(int(time.time() * 1000))
        pause(0.2)
        entries += [(one.ledger_id(), one.entry_id()) for one in side.publish(topic, payload)]

    def number(timestamp: int) -> Any:
        found = side.admin.id_by_time(topic, timestamp)
        return entries.index(found) if found in entries else ("after the last", found > entries[-1])

    return {
        "before all": number(1),
        "between": [number(one) for one in before],
        "after all": number(int(time.time() * 1000) + 3_600_000),
    }


def terminating(side: Side) -> Any:
    """What a terminated topic does and refuses."""
    topic = _ten(side, "end")
    producer = side.client.create_producer(topic, send_timeout_millis=3000)
    first = outcome(side.admin.terminate, topic)
    value = {
        "first": first,
        "second": outcome(side.admin.terminate, topic),
        "send": outcome(producer.send, b"late"),
        "create_producer": outcome(side.client.create_producer, topic),
        "backlog": side.backlog(topic, "sub"),
        "state": side.admin.internal_stats(topic)["state"],
    }
    consumer = side.client.subscribe(topic, "sub")
    value["received"] = len(side.received(consumer, acknowledge=True))
    value["then"] = outcome(consumer.receive, 500)
    return value


def deleting(side: Side) -> Any:
    """What keeps topics and subscriptions from being deleted."""
    topic = _ten(side, "delete")
    consumer = side.client.subscribe(topic, "sub")
    producer = side.client.create_producer(topic)
    found = {
        "subscription in use": outcome(side.admin.delete_subscription, topic, "sub"),
        "topic in use": outcome(side.admin.delete_topic, topic),
    }
    consumer.close()
    found["topic with a producer"] = outcome(side.admin.delete_topic, topic)
    producer.close()
    found["topic with a subscription"] = outcome(side.admin.delete_topic, topic)
    found["gone"] = outcome(side.admin.stats, topic)
    found["again"] = outcome(side.admin.delete_topic, topic)
    found["subscription of none"] = outcome(side.admin.delete_subscription, topic, "sub")
    side.admin.create_topic(topic)
    found["no such subscription"] = outcome(side.admin.delete_subscription, topic, "sub")
    found["created twice"] = outcome(side.admin.create_topic, topic)
    side.admin.create_subscription(topic, "sub")
    found["subscription created twice"] = outcome(side.admin.create_subscription, topic, "sub")
    return found


def unsubscribing_while_others_are_there(side: Side) -> Any:
    """`unsubscribe` of one of two consumers, then of the last."""
    topic = side.topic("unsubscribe")
    shared = side.pulsar.ConsumerType.Shared
    one, two = (side.client.subscribe(topic, "sub", shared) for _ in range(2))
    first = outcome(one.unsubscribe)
    two.close()
    return first, outcome(one.unsubscribe), sorted(side.admin.stats(topic)["subscriptions"])


SCENARIOS = (
    skipping,
    skipping_over_holes,
    expiring,
    time_to_live,
    resetting,
    looking,
    ids_by_time,
    terminating,
    deleting,
    unsubscribing_while_others_are_there,
)
