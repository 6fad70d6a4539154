"""`Admin.why_kept`: what holds the stored messages of a topic."""

from __future__ import annotations

import pytest

from embeddedpulsar import Admin, Client, InitialPosition, TopicNotFound
from tests.conformance.chunks import begin_ledger

SPACE = "public/default"


def fill(client: Client, topic: str, ledgers: int) -> None:
    """One message in each ledger."""
    producer = client.create_producer(topic)
    for number in range(ledgers):
        if number:
            begin_ledger(client._core.store.use_topic(topic).topic.ledger)
        producer.send(bytes(1000))
    producer.close()


def reasons(admin: Admin, topic: str) -> list[str]:
    """By ledger."""
    return [ledger.reason for ledger in admin.why_kept(topic).ledgers]


@pytest.mark.in_memory
def test_a_backlog_holds_ledgers(admin, client):
    """Each subscription holds what it has not acknowledged; the figures add up."""
    slow = client.subscribe("orders", "slow")
    fast = client.subscribe("orders", "fast", ack_group_time_ms=0)
    fill(client, "orders", 3)
    for _ in range(2):
        fast.acknowledge(fast.receive())
    kept = admin.why_kept("orders")
    assert [ledger.reason for ledger in kept.ledgers] == ["backlog", "backlog", "open"]
    assert [ledger.subscriptions for ledger in kept.ledgers] == [("slow",), ("slow",), ("fast", "slow")]
    assert kept.size == sum(ledger.size for ledger in kept.ledgers) > 3000
    assert kept.size_by_reason["backlog"] + kept.size_by_reason["open"] == kept.size
    assert kept.size_by_subscription == {"slow": kept.size, "fast": kept.ledgers[-1].size}
    assert kept.json()["ledgers"][0]["ledgerId"] == kept.ledgers[0].ledger_id
    slow.close()


def test_retention_holds_what_is_acknowledged(admin, client):
    """And what nothing holds is about to be trimmed."""
    admin.namespaces().set_retention(SPACE, -1, -1)
    consumer = client.subscribe("orders", "work", ack_group_time_ms=0)
    fill(client, "orders", 3)
    for _ in range(3):
        consumer.acknowledge(consumer.receive())
    assert reasons(admin, "orders") == ["retention", "retention", "open"]
    admin.namespaces().set_retention(SPACE, 0, 0)
    assert reasons(admin, "orders") in (["to be trimmed"] * 2 + ["open"], ["open"])
    admin.topics().trim_topic("orders")
    assert reasons(admin, "orders") == ["open"]


def test_a_topic_that_waits_for_its_first_subscription(admin, client):
    """It keeps everything, if its policy says so."""
    admin.topics().create_non_partitioned_topic("inbox")
    admin.topics().set_keep_until_subscribed("inbox", True)
    fill(client, "inbox", 2)
    assert reasons(admin, "inbox") == ["no subscription yet", "open"]
    client.subscribe("inbox", "reader", initial_position=InitialPosition.Earliest)
    assert reasons(admin, "inbox") == ["backlog", "open"]


def test_partitions_are_added_up(admin, client):
    """Those that were never used hold nothing; a topic that does not exist is an error."""
    admin.topics().create_partitioned_topic("parts", 3)
    assert admin.why_kept("parts").ledgers == ()
    fill(client, "parts-partition-1", 2)
    kept = admin.why_kept("parts")
    assert len(kept.ledgers) >= 1 and kept.size == admin.why_kept("parts-partition-1").size
    with pytest.raises(TopicNotFound):
        admin.why_kept("no such topic")


def test_a_non_persistent_topic_keeps_a_ring(admin, client):
    """Whatever its subscriptions acknowledged."""
    consumer = client.subscribe("non-persistent://public/default/news", "all")
    fill(client, "non-persistent://public/default/news", 3)
    kept = admin.why_kept("non-persistent://public/default/news")
    assert [ledger.reason for ledger in kept.ledgers] == ["ring", "ring", "open"]
    assert kept.size_by_subscription == {}
    consumer.close()
