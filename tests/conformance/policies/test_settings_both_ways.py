"""Every setting of broker.conf does something: what happens with its default, and with another value."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from embeddedpulsar import Admin, ConsumerType, InitialPosition, MessageId
from embeddedpulsar.settings import _ABSENT, BrokerSettings
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.manual_time import ManualTime
from tests.conformance.pool import write_settings

ROOT = Path(__file__).parents[2]
FOLDERS = ("conformance", "unit", "multiprocess")
MINUTE = 60_000


class Site:
    """A store with settings, on a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.time = ManualTime(path)
        self.client = self.time.client
        self.admin = Admin(path)
        self.topics = self.admin.topics()

    def close(self) -> None:
        self.admin.close()
        self.time.close()

    def subscribed(self) -> None:
        """Make a topic with a subscription."""
        self.topics.create_subscription("orders", "kitchen", MessageId.earliest)

    def publish(self, count: int, size: int = 100, key: str = "k") -> Any:
        """Publish messages; the producer stays, so the topic is in use."""
        producer = self.client.create_producer("orders", batching_enabled=False)
        for _ in range(count):
            producer.send(bytes(size), partition_key=key)
        return producer

    @property
    def backlog(self) -> int:
        return self.topics.get_stats("orders").subscriptions["kitchen"].msg_backlog

    @property
    def ledgers(self) -> int:
        return len(self.topics.get_internal_stats("orders").ledgers)

    def received(self, most: int = 10) -> int:
        """How many of ten messages a new consumer gets at once."""
        consumer = self.client.subscribe(
            "orders", "new", initial_position=InitialPosition.Earliest, receiver_queue_size=1
        )
        return len([one for one in (consumer.receive_nowait() for _ in range(most)) if one is not None])


def rolled(site: Site) -> object:
    site.subscribed()
    producer = site.publish(1)
    site.time.pass_ms(2 * MINUTE)
    producer.send(b"x")
    return site.ledgers


def subscriptions_after(minutes: int) -> Callable[[Site], object]:
    def probe(site: Site) -> object:
        site.subscribed()
        site.publish(1)
        site.time.pass_ms(minutes * MINUTE)
        return site.topics.get_subscriptions("orders")

    return probe


def backlog_after(seconds: int, count: int = 3) -> Callable[[Site], object]:
    def probe(site: Site) -> object:
        site.subscribed()
        producer = site.publish(0)
        site.time.pass_ms(1000)  # the first check was made
        for _ in range(count):
            producer.send(bytes(100))
        site.time.pass_ms(seconds * 1000)
        return site.backlog

    return probe


def ledgers_after(seconds: int) -> Callable[[Site], object]:
    def probe(site: Site) -> object:
        site.subscribed()
        site.publish(5)
        site.topics.skip_all_messages("orders", "kitchen")
        site.time.pass_ms(seconds * 1000)
        return site.ledgers

    return probe


def compacted_after(seconds: int) -> Callable[[Site], object]:
    def probe(site: Site) -> object:
        producer = site.publish(1)
        site.time.pass_ms(1000)
        for _ in range(20):
            producer.send(bytes(100), partition_key="k")
        site.time.pass_ms(seconds * 1000)
        return site.topics.get_stats("orders").compaction.last_compaction_removed_event_count > 0

    return probe


def published_at_once(site: Site) -> object:
    producer = site.client.create_producer("orders", batching_enabled=False)
    for _ in range(20):
        producer.send_async(bytes(2000), None)
    site.time.pass_ms(0)
    found = site.topics.get_stats("orders").msg_in_counter
    site.time.pass_ms(100_000)
    return found


def received_at_once(site: Site) -> object:
    site.publish(10)
    return site.received()


def received_at_the_published_rate(site: Site) -> object:
    """Ten messages were published in the second before."""
    site.publish(10)
    consumer = site.client.subscribe("orders", "new", initial_position=InitialPosition.Earliest)
    site.publish(10)
    site.time.pass_ms(1000)
    return len([one for one in (consumer.receive_nowait() for _ in range(20)) if one is not None]) > 5


def remembered_after(messages: int, seconds: int) -> Callable[[Site], object]:
    """The highest sequence id that is noted of a producer that is still there."""

    def probe(site: Site) -> object:
        producer = site.client.create_producer("orders", "p", batching_enabled=False)
        for _ in range(messages):
            producer.send(b"x")
        for _ in range(seconds):
            site.time.pass_ms(1000)
        use = site.client._core.store.use_topic("orders")
        try:
            return use.topic.highest_remembered("p") >= 0
        finally:
            use.release()

    return probe


def stored_again_after(minutes: int) -> Callable[[Site], object]:
    def probe(site: Site) -> object:
        for _ in range(2):
            with site.client.create_producer("orders", "p", batching_enabled=False) as producer:
                producer.send(b"x", sequence_id=7)
            site.time.pass_ms(minutes * MINUTE)
        return site.topics.get_stats("orders").msg_in_counter

    return probe


def share_of_one_consumer(site: Site) -> object:
    """How many of a hundred keys the first of two consumers gets: its points on the ring decide."""
    consumers = [
        site.client.subscribe("orders", "kitchen", ConsumerType.KeyShared, consumer_name=name)
        for name in ("a", "b")
    ]
    producer = site.client.create_producer("orders", batching_enabled=False)
    for number in range(100):
        producer.send(b"x", partition_key=str(number))
    found = 0
    while consumers[0].receive_nowait() is not None:
        found += 1
    return found


class Probe(NamedTuple):
    """A setting, what is looked at, what that is with the default, and with the other value.

    `others` are settings without which it has no effect."""

    value: object
    look: Callable[[Site], object]
    by_default: object
    changed: object
    others: dict[str, object] = {}


EVICTS = {"backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction"}
DROPS = {"brokerDeduplicationEnabled": True}
PROBES = {
    "managedLedgerMaxLedgerRolloverTimeMinutes": Probe(1, rolled, 1, 2),
    "subscriptionExpirationTimeMinutes": Probe(7, subscriptions_after(20), ["kitchen"], []),
    "subscriptionExpiryCheckIntervalInMinutes": Probe(
        60, subscriptions_after(20), [], ["kitchen"], {"subscriptionExpirationTimeMinutes": 7}
    ),
    "ttlDurationDefaultInSeconds": Probe(60, backlog_after(601), 3, 0),
    "messageExpiryCheckIntervalInMinutes": Probe(
        60, backlog_after(601), 0, 3, {"ttlDurationDefaultInSeconds": 60}
    ),
    "backlogQuotaDefaultLimitBytes": Probe(1, backlog_after(100), 3, 0, EVICTS),
    "backlogQuotaDefaultLimitSecond": Probe(30, backlog_after(130), 3, 0, EVICTS),
    "backlogQuotaCheckIntervalInSeconds": Probe(
        600, backlog_after(100), 0, 3, EVICTS | {"backlogQuotaDefaultLimitBytes": 1}
    ),
    "retentionCheckIntervalInSeconds": Probe(
        1200,
        ledgers_after(250),
        1,
        5,
        {
            "managedLedgerMaxEntriesPerLedger": 1,
            "defaultRetentionTimeInMinutes": 1,
            "defaultRetentionSizeInMB": -1,
        },
    ),
    "brokerServiceCompactionThresholdInBytes": Probe(500, compacted_after(130), False, True),
    "brokerServiceCompactionMonitorIntervalInSeconds": Probe(
        600, compacted_after(130), True, False, {"brokerServiceCompactionThresholdInBytes": 500}
    ),
    "maxPublishRatePerTopicInMessages": Probe(4, published_at_once, 20, 4),
    "maxPublishRatePerTopicInBytes": Probe(10_000, published_at_once, 20, 5),
    "dispatchThrottlingRatePerTopicInMsg": Probe(3, received_at_once, 10, 3),
    "dispatchThrottlingRatePerTopicInByte": Probe(250, received_at_once, 10, 3),
    "dispatchThrottlingRatePerSubscriptionInMsg": Probe(3, received_at_once, 10, 3),
    "dispatchThrottlingRatePerSubscriptionInByte": Probe(250, received_at_once, 10, 3),
    "dispatchThrottlingRateRelativeToPublishRate": Probe(
        True, received_at_the_published_rate, False, True, {"dispatchThrottlingRatePerTopicInMsg": 2}
    ),
    "subscriptionKeySharedConsistentHashingReplicaPoints": Probe(
        1, share_of_one_consumer, 47, 70, {"subscriptionKeySharedUseConsistentHashing": True}
    ),
    "brokerDeduplicationEntriesInterval": Probe(5, remembered_after(20, 20), False, True, DROPS),
    "brokerDeduplicationSnapshotIntervalSeconds": Probe(5, remembered_after(20, 20), False, True, DROPS),
    "brokerDeduplicationProducerInactivityTimeoutMinutes": Probe(30, stored_again_after(60), 1, 2, DROPS),
}
"""By default the second value is seen, with the setting the third."""

OF_SYSTEM_TOPICS = {"systemTopicSchemaCompatibilityStrategy"}
"""Which no user can make."""


@pytest.mark.parametrize("is_default", [True, False])
@pytest.mark.parametrize("name", PROBES)
def test_both_ways(tmp_path: Path, name: str, is_default: bool):
    """With the default, and with the other value."""
    probe = PROBES[name]
    write_settings(tmp_path, **probe.others, **({} if is_default else {name: probe.value}))
    with contextlib.closing(Site(tmp_path)) as site:
        assert probe.look(site) == (probe.by_default if is_default else probe.changed)
    assert_clean(tmp_path)


def test_every_setting_has_a_test():
    """Here, or in another test that gives it a value. Those that are not built are refused
    (tests/unit/test_settings.py)."""
    names = set(BrokerSettings._field_defaults) - {"unknown"} - set(_ABSENT) - OF_SYSTEM_TOPICS
    assert names >= set(PROBES)
    files = {path for folder in FOLDERS for path in (ROOT / folder).rglob("test_*.py")}
    text = "".join(
        path.read_text("utf-8")
        for path in sorted(files - {ROOT / "unit" / "test_settings.py", Path(__file__)})
    )
    given = set(re.findall(r"""\b(\w+)["']?\]?\s?[:=]|"(\w+)"\s""", text.replace(r"\n", " ")))
    assert sorted(names - set(PROBES) - {name for pair in given for name in pair}) == []
