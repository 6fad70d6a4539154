"""Dead letters and retry letters stay until somebody subscribes to their topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Admin,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
    TopicNotFound,
)
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import PER_LEDGER, store_with

DLQ = "jobs-work-DLQ"
COUNT = 3 * PER_LEDGER + 5
CHECK_MS = 121_000


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Of the store that ``time`` opens."""
    return store_with(tmp_path / "store")


def bury(time: ManualTime, first: int = 0, count: int = COUNT, topic: str = "", **options: Any) -> None:
    """Let messages become dead letters, the topic of which is then looked at by housekeeping."""
    with time.client.create_producer("jobs") as producer:
        for number in range(first, first + count):
            producer.send(b"%d" % number)
    consumer = time.client.subscribe(
        "jobs",
        "work",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, topic or None),
        **options,
    )
    for _ in range(3):
        while (message := consumer.receive_nowait()) is not None:
            consumer.negative_acknowledge(message)
        time.pass_ms(500)
    consumer.close()
    time.pass_ms(3 * CHECK_MS)


def letters(time: ManualTime, topic: str = DLQ, name: str = "undertaker") -> list[int]:
    """What a new durable subscription gets, which acknowledges it."""
    with time.client.subscribe(topic, name, initial_position=InitialPosition.Earliest) as consumer:
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(message)
        for message in found:
            consumer.acknowledge(message)
        return sorted(int(message.data()) for message in found)


def test_a_later_subscription_gets_all_letters(time: ManualTime):
    """Over many ledgers, checks of housekeeping and restarts; from then on retention is the usual."""
    bury(time)
    time.reopen()
    bury(time, first=COUNT)
    assert letters(time) == list(range(2 * COUNT))
    with time.client.create_reader(DLQ, MessageId.earliest) as reader:
        time.pass_ms(3 * CHECK_MS)
        assert len(list(reader)) <= PER_LEDGER


@pytest.mark.parametrize("topic", ["", "graveyard", "yards", "yards-partition-1"])
def test_whatever_the_topic_is(time: ManualTime, topic: str):
    """The default name, one that was chosen, all partitions of one, or a partition."""
    time.client._core.store.topics.create_partitioned("yards", 2)
    bury(time, topic=topic)
    time.reopen()
    time.pass_ms(CHECK_MS)
    assert letters(time, topic or DLQ) == list(range(COUNT))


def test_a_partitioned_default_topic(time: ManualTime):
    """It was made with partitions before the first letter came."""
    time.client._core.store.topics.create_partitioned(DLQ, 3)
    bury(time)
    assert letters(time) == list(range(COUNT))


def test_a_subscription_that_goes_leaves_what_comes_later(time: ManualTime):
    """While there is none again, everything stays again."""
    bury(time)
    consumer = time.client.subscribe(DLQ, "short", initial_position=InitialPosition.Latest)
    consumer.unsubscribe()
    bury(time, first=COUNT)
    assert letters(time)[-COUNT:] == list(range(COUNT, 2 * COUNT))


@pytest.mark.in_memory
def test_retry_letters_stay(time: ManualTime):
    """The consumer of a retry topic is subscribed to it; after it unsubscribed, the letters stay too."""
    retries = "jobs-work-RETRY"
    with time.client.create_producer("jobs") as producer:
        for number in range(COUNT):
            producer.send(b"%d" % number)
    consumer = time.client.subscribe(
        "jobs", "work", initial_position=InitialPosition.Earliest, enable_retry=True
    )
    messages = [consumer.receive(1000) for _ in range(COUNT)]
    for message in messages:
        consumer.reconsume_later(message, 0)
    consumer.unsubscribe()
    time.pass_ms(3 * CHECK_MS)
    assert letters(time, retries) == list(range(COUNT))


@pytest.mark.parametrize(
    ("said", "stay"),
    [
        ("broker.conf", False),
        ("retention of the topic", False),
        ("retention of the namespace", True),
        ("off for the topic", False),
        ("off for the namespace", False),
        ("on over retention", True),
    ],
)
def test_what_is_said_otherwise(tmp_path: Path, said: str, stay: bool):
    """``broker.conf`` switches it off for all; an administrator for a topic or a namespace."""
    off = {"letterTopicsKeepUntilSubscribed": "false"} if said == "broker.conf" else {}
    path = store_with(tmp_path / "other", **off)
    time = ManualTime(path)
    try:
        bury(time, count=1)
        with Admin(path) as admin:
            topics, namespaces = admin.topics(), admin.namespaces()
            if said in ("retention of the topic", "on over retention"):
                topics.set_retention(DLQ, 0, 0)
            if said == "retention of the namespace":
                namespaces.set_retention("public/default", 1, 1)
            if said == "off for the topic":
                topics.set_keep_until_subscribed(DLQ, False)
            if said == "off for the namespace":
                namespaces.set_keep_until_subscribed("public/default", False)
            if said == "on over retention":
                topics.set_keep_until_subscribed(DLQ, True)
            assert topics.get_keep_until_subscribed(DLQ) is stay
        bury(time, first=1, count=COUNT - 1)
        assert (letters(time) == list(range(COUNT))) is stay
    finally:
        time.close()


def test_any_topic_may_keep_everything(time: ManualTime, store_path: Path):
    """An administrator says so for a topic or namespace, sees it, and takes it back."""
    with Admin(store_path) as admin:
        topics, namespaces = admin.topics(), admin.namespaces()
        topics.create_non_partitioned_topic("plain")
        assert not topics.get_keep_until_subscribed("plain")
        assert not namespaces.get_keep_until_subscribed("public/default")
        namespaces.set_keep_until_subscribed("public/default", True)
        assert namespaces.get_keep_until_subscribed("public/default")
        assert topics.get_keep_until_subscribed("plain")
        with time.client.create_producer("plain") as producer:
            for number in range(COUNT):
                producer.send(b"%d" % number)
            time.pass_ms(CHECK_MS)
            assert admin.topics().trim_topic("plain") == 0
            namespaces.remove_keep_until_subscribed("public/default")
            assert admin.topics().trim_topic("plain") == 3
        with pytest.raises(ValueError, match="True or False"):
            topics.set_keep_until_subscribed("plain", 1)  # type: ignore[arg-type]
        with pytest.raises(TopicNotFound):
            topics.get_keep_until_subscribed("missing")
