"""Message TTL: messages that are too old count as acknowledged, for every durable subscription."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from embeddedpulsar import (
    Admin,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InvalidConfiguration,
    MessageId,
    Timeout,
)
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance import retention_site
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, ledgers, publish, store_with, subscribe

TTL_S = 600
CHECK_MS = 5 * 60_000
MOMENT_MS = 100  # housekeeping gathers what is due


path, time = retention_site.path, retention_site.time


def backlog(path: Path, subscription: str = "s", topic: str = TOPIC) -> int:
    with Admin(path) as admin:
        return admin.topics().get_stats(topic).subscriptions[subscription].msg_backlog


def test_without_a_ttl_nothing_expires(time: ManualTime, path: Path) -> None:
    """The default is 0."""
    subscribe(time).close()
    publish(time, 3)
    time.pass_ms(365 * 86_400_000)
    assert backlog(path) == 3


@pytest.mark.in_memory
@pytest.mark.parametrize("level", ["topic", "namespace", "broker"])
def test_messages_older_than_the_ttl_are_gone_at_the_check(tmp_path: Path, level: str) -> None:
    """To the millisecond: one published exactly so long ago stays. The check is made every 5 minutes."""
    settings = {"ttlDurationDefaultInSeconds": TTL_S} if level == "broker" else {}
    path = store_with(tmp_path / "store", **settings)
    time = ManualTime(path)
    try:
        subscribe(time).close()
        with Admin(path) as admin:
            if level == "topic":
                admin.topics().set_message_ttl(TOPIC, TTL_S)
            elif level == "namespace":
                admin.namespaces().set_message_ttl("public/default", TTL_S)
            assert admin.topics().get_message_ttl(TOPIC, applied=True) == TTL_S
            assert admin.topics().get_message_ttl(TOPIC) == (TTL_S if level == "topic" else None)
        time.pass_ms(MOMENT_MS)  # the first check was made
        start = time.now_ms()
        publish(time, 1)
        time.pass_ms(1)
        publish(time, 1)
        time.pass_ms(TTL_S * 1000 - CHECK_MS)
        assert backlog(path) == 2
        time.pass_ms(CHECK_MS + MOMENT_MS - (time.now_ms() - start) % CHECK_MS)
        time.pass_ms(CHECK_MS)
        assert backlog(path) == 0
    finally:
        time.close()
    assert_clean(path)


def test_exactly_the_ttl_stays_and_a_millisecond_more_expires(time: ManualTime, path: Path) -> None:
    """By the publish time."""
    with Admin(path) as admin:
        subscribe(time).close()
        publish(time, 1)
        time.pass_ms(1)
        publish(time, 1)
        time.pass_ms(TTL_S * 1000)
        admin.topics().set_message_ttl(TOPIC, TTL_S)
        time.client._core.store.use_topic(TOPIC).topic._upkeep.do_chores([])  # type: ignore[union-attr]
        assert backlog(path) == 1


def test_a_topic_is_checked_when_it_is_opened(time: ManualTime, path: Path) -> None:
    """What became too old while no process had it open expires then."""
    subscribe(time).close()
    with Admin(path) as admin:
        admin.topics().set_message_ttl(TOPIC, TTL_S)
    publish(time, 25)
    time.clock.advance(2 * TTL_S)
    time.reopen()
    with time.client.create_producer(TOPIC):
        time.pass_ms(MOMENT_MS)
        assert backlog(path) == 0
        time.pass_ms(MOMENT_MS)
    assert len(ledgers(path)) == 1


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_a_consumer_keeps_what_it_holds_and_gets_no_expired_message_after_that(
    time: ManualTime, path: Path, kind: ConsumerType
) -> None:
    """It does not go back: nothing is delivered twice."""
    with Admin(path) as admin:
        admin.topics().create_non_partitioned_topic(TOPIC)
        admin.topics().set_message_ttl(TOPIC, TTL_S)
    consumer = subscribe(time, consumer_type=kind, receiver_queue_size=5)
    publish(time, 20)
    held = [consumer.receive(1000) for _ in range(3)]
    time.pass_ms(2 * TTL_S * 1000)
    publish(time, 2, size=20)
    assert backlog(path) == 2
    for message in held:
        consumer.acknowledge(message)
    sizes = []
    with contextlib.suppress(Timeout):
        while True:
            sizes.append(len(consumer.receive(10).data()))
    assert sizes[-2:] == [21, 21]
    assert len(sizes) <= 2 + 5  # what it had fetched
    assert backlog(path) == 2


def test_delayed_messages_expire_too(time: ManualTime, path: Path) -> None:
    """The TTL ignores the delay."""
    consumer = subscribe(time, consumer_type=ConsumerType.Shared)
    with Admin(path) as admin:
        admin.topics().set_message_ttl(TOPIC, TTL_S)
    with time.client.create_producer(TOPIC) as producer:
        producer.send(b"later", deliver_at=time.now_ms() + 10 * TTL_S * 1000)
    with pytest.raises(Timeout):
        consumer.receive(10)
    time.pass_ms(2 * TTL_S * 1000)
    assert backlog(path) == 0


def test_a_reader_holds_nothing_and_loses_nothing(time: ManualTime, path: Path) -> None:
    """Readers, and other subscriptions that are not durable, are not concerned."""
    subscribe(time).close()
    reader = time.client.create_reader(TOPIC, MessageId.earliest)
    with Admin(path) as admin:
        admin.topics().set_message_ttl(TOPIC, TTL_S)
    publish(time, 3)
    time.pass_ms(TTL_S * 1000 + 2 * CHECK_MS)
    assert [reader.read_next(1000).data()[:1] for _ in range(3)] == [b"0", b"1", b"2"]


def test_the_nearest_level_counts(time: ManualTime, path: Path) -> None:
    """A topic with 0 keeps what its namespace would expire; removed, it follows the namespace at once."""
    with Admin(path) as admin:
        subscribe(time).close()
        admin.namespaces().set_message_ttl("public/default", TTL_S)
        admin.topics().set_message_ttl(TOPIC, 0)
        publish(time, 3)
        time.pass_ms(TTL_S * 1000 + 2 * CHECK_MS)
        assert backlog(path) == 3
        admin.topics().remove_message_ttl(TOPIC)
        time.pass_ms(MOMENT_MS)
        assert backlog(path) == 0
        assert admin.namespaces().get_message_ttl("public/default") == TTL_S
        with pytest.raises(InvalidConfiguration):
            admin.topics().set_message_ttl(TOPIC, -1)


@pytest.mark.parametrize("expire", [False, True])
def test_letters_stay_unless_their_topic_has_a_ttl_of_its_own(tmp_path: Path, expire: bool) -> None:
    """Other than in Pulsar, unless broker.conf says letterTopicsExpire=true."""
    settings = {"ttlDurationDefaultInSeconds": TTL_S, "letterTopicsExpire": str(expire).lower()}
    path = store_with(tmp_path / "store", **settings)
    time = ManualTime(path)
    policy = ConsumerDeadLetterPolicy(1, "letters", "inbox")
    try:
        consumer = subscribe(
            time,
            consumer_type=ConsumerType.Shared,
            dead_letter_policy=policy,
            negative_ack_redelivery_delay_ms=1,
        )
        publish(time, 1)
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(1000))
            time.pass_ms(200)
        with pytest.raises(Timeout):
            consumer.receive(10)
        with time.client.create_producer("letters"):
            assert backlog(path, "inbox", "letters") == 1
            time.pass_ms(TTL_S * 1000 + 2 * CHECK_MS)
            assert backlog(path, "inbox", "letters") == (0 if expire else 1)
            with Admin(path) as admin:
                admin.topics().set_message_ttl("letters", TTL_S)
            time.pass_ms(MOMENT_MS)
            assert backlog(path, "inbox", "letters") == 0
    finally:
        time.close()
    assert_clean(path)
