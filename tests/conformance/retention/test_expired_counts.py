"""What statistics say of expired messages: exactly, in every process, and after all of them are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from embeddedpulsar import Admin, ConsumerType, InitialPosition, MessageId
from embeddedpulsar.admin.topic_stats import SubscriptionStats
from embeddedpulsar.policies import BacklogQuota
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import in_child
from tests.conformance.manual_time import ManualTime

SECOND = 1000
TTL_S = 600
CHECK_MS = 5 * 60_000


@pytest.fixture
def admin(store_url: Path | str, time: ManualTime):
    with Admin(store_url) as made:
        made.topics().create_subscription("orders", "kitchen", MessageId.earliest)
        yield made


def stats(admin: Admin, name: str = "kitchen", topic: str = "orders") -> SubscriptionStats:
    return admin.topics().get_stats(topic).subscriptions[name]


def publish(time: ManualTime, count: int, topic: str = "orders", batch: int = 1) -> None:
    with time.client.create_producer(
        topic,
        batching_enabled=batch > 1,
        batching_max_messages=max(batch, 2),
        batching_max_publish_delay_ms=60_000,
    ) as producer:
        for number in range(count):
            producer.send_async(b"%d" % number, None)
        producer.flush()


def test_by_their_time_to_live(admin: Admin, time: ManualTime):
    """How many, when last, and how many a second in the last minute."""
    assert (
        stats(admin).json()
        | {
            "totalMsgExpired": 0,
            "lastExpireTimestamp": 0,
            "msgRateExpired": 0.0,
        }
        == stats(admin).json()
    )
    admin.topics().set_message_ttl("orders", TTL_S)
    publish(time, 30, batch=10)
    time.pass_ms(TTL_S * SECOND + CHECK_MS)
    found = stats(admin)
    assert found.msg_backlog == 0 and found.total_msg_expired == 30
    assert 0 < time.now_ms() - found.last_expire_timestamp <= CHECK_MS
    publish(time, 12)
    admin.topics().set_message_ttl("orders", 1)
    time.pass_ms(2 * SECOND)
    admin.topics().set_message_ttl("orders", 2)  # looked at anew
    time.pass_ms(SECOND)
    assert stats(admin).total_msg_expired == 42 and stats(admin).msg_rate_expired == 12 / 60
    time.pass_ms(60 * SECOND)
    assert stats(admin).total_msg_expired == 42 and stats(admin).msg_rate_expired == 0


@pytest.mark.parametrize("kind", [None, *ConsumerType])
def test_what_is_acknowledged_does_not_expire(admin: Admin, time: ManualTime, kind: ConsumerType | None):
    """Neither single messages, nor parts of batches, nor what a consumer has not written yet."""
    consumer = time.client.subscribe(
        "orders",
        "kitchen",
        kind or ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        ack_group_time_ms=60_000,
        batch_index_ack_enabled=True,
    )
    publish(time, 4)
    publish(time, 10, batch=10)
    publish(time, 6)
    messages = [consumer.receive(1000) for _ in range(20)]
    for number in (2, 5, 6, 16):
        consumer.acknowledge(messages[number])
    if kind is None:
        consumer.close()
    time.pass_ms(10)
    admin.topics().expire_messages("orders", "kitchen", 0)
    assert stats(admin).total_msg_expired == 16
    assert stats(admin).msg_backlog == 0
    admin.topics().expire_messages("orders", "kitchen", 0)
    admin.topics().skip_all_messages("orders", "kitchen")
    assert stats(admin).total_msg_expired == 16


def test_for_all_subscriptions_and_up_to_a_time(admin: Admin, time: ManualTime):
    """Each counts its own; the younger ones stay."""
    admin.topics().create_subscription("orders", "bar", MessageId.earliest)
    publish(time, 3)
    time.pass_ms(10 * SECOND)
    publish(time, 4)
    admin.topics().skip_messages("orders", "bar", 2)
    admin.topics().expire_messages_for_all_subscriptions("orders", 5)
    assert [stats(admin, name).total_msg_expired for name in ("kitchen", "bar")] == [3, 1]
    assert stats(admin).last_expire_timestamp == time.now_ms()
    assert stats(admin, "bar").msg_backlog == 4


def test_evicted_messages_do_not_count(admin: Admin, time: ManualTime):
    """As in Pulsar, neither do skipped ones."""
    publish(time, 8)
    admin.topics().set_backlog_quota(
        "orders", BacklogQuota(limit_size=1, policy="consumer_backlog_eviction"), "destination_storage"
    )
    time.pass_ms(CHECK_MS)
    assert stats(admin).msg_backlog == 0 and stats(admin).total_msg_expired == 0


@pytest.mark.in_memory
def test_of_a_partitioned_topic(admin: Admin, time: ManualTime):
    """The sums, and the latest time."""
    admin.topics().create_partitioned_topic("flights", 2)
    admin.topics().create_subscription("flights", "kitchen", MessageId.earliest)
    publish(time, 1, "flights-partition-0")
    publish(time, 2, "flights-partition-1")
    time.pass_ms(SECOND)
    admin.topics().expire_messages("flights", "kitchen", 0)
    found = admin.topics().get_partitioned_stats("flights").totals.subscriptions["kitchen"]
    assert (found.total_msg_expired, found.last_expire_timestamp) == (3, time.now_ms())
    assert found.msg_rate_expired == 3 / 60


def test_other_processes_and_other_boots(store_path: Path, tmp_path: Path):
    """The counts are in the journal: they outlive all processes, and the words of the machine."""
    time = ManualTime(store_path)
    try:
        with Admin(store_path) as admin:
            admin.topics().create_subscription("orders", "kitchen", MessageId.earliest)
            publish(time, 5)
            time.pass_ms(SECOND)
            admin.topics().expire_messages("orders", "kitchen", 0)
            expected = (5, time.now_ms())

            def look() -> object:
                with Admin(store_path) as other:
                    found = stats(other)
                    return found.total_msg_expired, found.last_expire_timestamp

            assert in_child(look) == str(expected)
    finally:
        time.close()
    copy = tmp_path / "copy"
    shutil.copytree(store_path, copy)
    for path in (store_path, copy):
        with Admin(path) as admin:
            assert (stats(admin).total_msg_expired, stats(admin).last_expire_timestamp) == expected
        assert_clean(path)
