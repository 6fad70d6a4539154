"""The disk that messages took is free again when nothing needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, ConsumerType, InitialPosition
from embeddedpulsar.policies import BacklogQuota
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, ledgers, store_with

MESSAGES = 205
CHECK_MS = 10 * 60_000


def test_a_topic_with_one_message(tmp_path: Path) -> None:
    """It has six files, of which the log, its index and the control words take two pages each, and a
    directory for subscriptions from the first one on."""
    time = ManualTime(tmp_path / "store")
    try:
        time.client.create_producer(TOPIC).send(b"21.5 C")
        (log,) = tmp_path.glob("store/topics/*/*.log")
        there = {file.suffix or file.name for file in log.parent.iterdir()}
        assert there == {".log", ".idx", ".meta", ".1", "ctl", "lock"}
        assert sum(file.stat().st_blocks for file in log.parent.iterdir()) * 512 <= 32 << 10
        time.client.subscribe(TOPIC, "one").close()
        assert (log.parent / "subscriptions").is_dir()
    finally:
        time.close()
        assert_clean(tmp_path / "store")


@pytest.mark.parametrize("end", ["acknowledge", "ttl", "quota", "expiration", "delete"])
@pytest.mark.parametrize("deduplicated", [False, True])
def test_at_most_two_segments_are_left(tmp_path: Path, end: str, deduplicated: bool) -> None:
    """Once all is acknowledged, by consumers or by a policy, and nothing retains it."""
    path = store_with(tmp_path / "store", brokerDeduplicationEnabled=str(deduplicated).lower())
    time = ManualTime(path)
    try:
        consumers = [
            time.client.subscribe(
                TOPIC, kind.name, kind, initial_position=InitialPosition.Earliest, receiver_queue_size=500
            )
            for kind in (ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared)
        ]
        with time.client.create_producer(TOPIC, "p") as producer, Admin(path) as admin:
            topics = admin.topics()
            for number in range(MESSAGES):
                producer.send(b"%d" % number, partition_key=str(number % 7))
            assert len(ledgers(path)) > 20
            if end == "acknowledge":
                for consumer in consumers:
                    for _ in range(MESSAGES):
                        consumer.acknowledge(consumer.receive(1000))
            elif end == "ttl":
                topics.set_message_ttl(TOPIC, 1)
            elif end == "quota":
                topics.set_backlog_quota(TOPIC, BacklogQuota(0, policy="consumer_backlog_eviction"))
            for consumer in consumers:
                consumer.close()
            if end == "expiration":
                topics.set_subscription_expiration_time(TOPIC, 1)
            elif end == "delete":
                for name in topics.get_subscriptions(TOPIC):
                    topics.delete_subscription(TOPIC, name)
            time.pass_ms(CHECK_MS)
            assert len(ledgers(path)) <= 2
    finally:
        time.close()
    assert_clean(path)
