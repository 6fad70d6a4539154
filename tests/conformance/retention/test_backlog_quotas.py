"""Backlog quotas: producers wait or are refused, or the oldest messages are evicted."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from embeddedpulsar import (
    Admin,
    InvalidConfiguration,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    Result,
    Timeout,
    exceptions,
)
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.policies import MESSAGE_AGE, BacklogQuota
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance import retention_site
from tests.conformance.held import Answers
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, store_with, subscribe

HOLD, REFUSE, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
ERRORS = {HOLD: ProducerBlockedQuotaExceededError, REFUSE: ProducerBlockedQuotaExceededException}
CHECK_MS = 60_000
MOMENT_MS = 100
SIZE = 10_000


path, time = retention_site.path, retention_site.time


def producer_of(time: ManualTime, **options):
    return time.client.create_producer(TOPIC, send_timeout_millis=150, **options)


def fill(producer, count: int) -> None:
    for _ in range(count):
        producer.send(bytes(SIZE))


def set_quota(path: Path, quota: BacklogQuota, kind: str = "destination_storage", name: str = TOPIC) -> None:
    with Admin(path) as admin:
        owner = admin.topics() if name == TOPIC else admin.namespaces()
        owner.set_backlog_quota(name, quota, kind)


def backlog(path: Path, subscription: str = "s") -> int:
    with Admin(path) as admin:
        return admin.topics().get_stats(TOPIC).subscriptions[subscription].msg_backlog


def drain(consumer, count: int) -> None:
    for _ in range(count):
        consumer.acknowledge(consumer.receive(1000))


def test_by_default_there_is_no_quota(time: ManualTime, path: Path) -> None:
    """Nothing is refused or evicted."""
    subscribe(time).close()
    producer = producer_of(time)
    fill(producer, 30)
    time.pass_ms(10 * CHECK_MS)
    fill(producer, 1)
    assert backlog(path) == 31
    with Admin(path) as admin:
        assert admin.topics().get_backlog_quota_map(TOPIC) == {}
        applied = admin.topics().get_backlog_quota_map(TOPIC, applied=True)
        assert applied["destination_storage"] == BacklogQuota()


@pytest.mark.parametrize("level", ["topic", "namespace", "broker"])
@pytest.mark.parametrize("policy", [HOLD, REFUSE])
def test_producers_are_held_back_or_refused(tmp_path: Path, level: str, policy: str) -> None:
    """Of each level: those that are there, and those that come; until the backlog is smaller."""
    settings = {"backlogQuotaDefaultLimitBytes": 5 * SIZE, "backlogQuotaDefaultRetentionPolicy": policy}
    path = store_with(tmp_path / "store", **(settings if level == "broker" else {}))
    time = ManualTime(path)
    try:
        consumer = subscribe(time)
        producer = producer_of(time)
        if level != "broker":
            set_quota(
                path,
                BacklogQuota(5 * SIZE, policy=policy),
                name=TOPIC if level == "topic" else "public/default",
            )
        fill(producer, 4)
        time.pass_ms(CHECK_MS + MOMENT_MS)
        fill(producer, 3)
        time.pass_ms(CHECK_MS + MOMENT_MS)
        with pytest.raises(ERRORS[policy], match="beyond its quota of 50000 bytes"):
            time.client.create_producer(TOPIC)
        begun = monotonic()
        with pytest.raises(Timeout if policy == HOLD else ERRORS[REFUSE]) as caught:
            producer.send(bytes(SIZE))
        assert hasattr(exceptions, caught.type.__name__), "the class of the error is internal"
        assert (monotonic() - begun >= 0.15) == (policy == HOLD)
        drain(consumer, 4)
        time.pass_ms(1000)
        fill(producer, 1)
        with time.client.create_producer(TOPIC) as another:
            another.send(b"")
        assert backlog(path) == 5
    finally:
        time.close()
    assert_clean(path)


def test_sends_that_wait_are_stored_when_there_is_room(time: ManualTime, path: Path) -> None:
    """With the policy to hold, in order; after the send timeout they fail."""
    consumer, answers = subscribe(time), Answers()
    producer = time.client.create_producer(TOPIC, send_timeout_millis=30_000)
    set_quota(path, BacklogQuota(2 * SIZE))
    fill(producer, 3)
    time.pass_ms(CHECK_MS + MOMENT_MS)
    for number in range(3):
        producer.send_async(b"%d" % number, answers.of(number))
    time.pass_ms(1000)
    assert answers == []
    drain(consumer, 3)
    time.pass_ms(1000)
    producer.flush()
    assert answers.results == [(number, Result.Ok) for number in range(3)]
    assert [consumer.receive(1000).data() for _ in range(3)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("policy", [HOLD, REFUSE])
def test_sends_without_waiting_fail_by_the_policy(time: ManualTime, path: Path, policy: str) -> None:
    """At once, or with the send timeout; and in batches, too."""
    subscribe(time).close()
    producers = [producer_of(time), producer_of(time, batching_enabled=True)]
    set_quota(path, BacklogQuota(2 * SIZE, policy=policy))
    fill(producers[0], 3)
    time.pass_ms(CHECK_MS + MOMENT_MS)
    expected = Result.Timeout if policy == HOLD else Result.ProducerBlockedQuotaExceededException
    for producer in producers:
        answers = Answers()
        producer.send_async(b"0", answers.of(0))
        time.pass_ms(200)
        producer._publisher.queue.completions.wait()
        assert answers.results == [(0, expected)]
    assert backlog(path) == 3


@pytest.mark.in_memory
def test_eviction_by_size(time: ManualTime, path: Path) -> None:
    """The oldest messages count as acknowledged, until the slowest has nine tenths of the limit."""
    subscribe(time, "slow").close()
    fast = subscribe(time, "fast")
    producer = producer_of(time)
    set_quota(path, BacklogQuota(20 * SIZE, policy=EVICT))
    fill(producer, 40)
    drain(fast, 35)
    time.pass_ms(CHECK_MS + MOMENT_MS)
    assert backlog(path, "slow") == 17  # each entry is a little larger than its value
    assert backlog(path, "fast") == 5
    fill(producer, 1)


def test_age(time: ManualTime, path: Path) -> None:
    """The oldest unacknowledged message may not be older than the limit, by the publish time."""
    consumer = subscribe(time)
    producer = producer_of(time)
    set_quota(path, BacklogQuota(limit_time=600, policy=REFUSE), MESSAGE_AGE)
    fill(producer, 1)
    time.pass_ms(600_000)
    producer_of(time).close()
    time.pass_ms(1)
    with pytest.raises(ProducerBlockedQuotaExceededException, match="quota of 600 s"):
        producer_of(time)
    drain(consumer, 1)
    time.pass_ms(200)
    producer_of(time).close()
    producer.send(b"")
    set_quota(path, BacklogQuota(limit_time=600, policy=EVICT), MESSAGE_AGE)
    for _ in range(9):
        time.pass_ms(100_000)
        producer.send(b"")
    time.pass_ms(CHECK_MS + MOMENT_MS)
    assert 1 <= backlog(path) <= 6


def test_removing_the_quota_or_raising_it_lets_producers_go_on(time: ManualTime, path: Path) -> None:
    """At once."""
    subscribe(time).close()
    producer = producer_of(time)
    set_quota(path, BacklogQuota(0))
    time.pass_ms(MOMENT_MS)
    with pytest.raises(Timeout):
        producer.send(b"")
    with Admin(path) as admin:
        admin.topics().remove_backlog_quota(TOPIC)
    time.pass_ms(MOMENT_MS)
    producer.send(b"")
    time.client.create_producer(TOPIC)


def test_without_a_durable_subscription_there_is_no_backlog(time: ManualTime, path: Path) -> None:
    """A quota of 0 bytes concerns nothing then."""
    set_quota(path, BacklogQuota(0), name="public/default")
    producer = producer_of(time)
    time.pass_ms(CHECK_MS)
    producer.send(b"")


def test_the_check_can_be_switched_off(tmp_path: Path) -> None:
    """backlogQuotaCheckEnabled=false."""
    path = store_with(tmp_path / "store", backlogQuotaCheckEnabled="false", backlogQuotaDefaultLimitBytes=0)
    time = ManualTime(path)
    try:
        subscribe(time).close()
        producer = producer_of(time)
        producer.send(b"")
        time.pass_ms(2 * CHECK_MS)
        producer.send(b"")
    finally:
        time.close()
    assert_clean(path)


@pytest.mark.parametrize("name", [TOPIC, "public/default"], ids=["topic", "namespace"])
@pytest.mark.parametrize("first", ["retention", "quota"])
def test_a_retention_and_a_quota_set_at_once_fit(
    path: Path, time: ManualTime, first: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process sets the one just before the lock is taken for the other: that is refused."""
    subscribe(time).close()
    acquire = FileLock.acquire
    with Admin(path) as admin:
        owner = admin.topics() if name == TOPIC else admin.namespaces()

        def set_quota() -> None:
            owner.set_backlog_quota(name, BacklogQuota(10 << 20))

        def set_retention() -> None:
            owner.set_retention(name, 10, 10)

        before, after = (set_retention, set_quota) if first == "retention" else (set_quota, set_retention)

        def acquire_later(lock: FileLock, *timeout: float) -> None:
            if lock.path.endswith("catalog.lock"):
                monkeypatch.undo()
                before()
            acquire(lock, *timeout)

        monkeypatch.setattr(FileLock, "acquire", acquire_later)
        with pytest.raises(InvalidConfiguration, match="must exceed the backlog quota"):
            after()
        assert (owner.get_retention(name) is None) == (first == "quota")
        assert (owner.get_backlog_quota_map(name) == {}) == (first == "retention")


def test_a_retention_exceeds_the_quota(path: Path, time: ManualTime) -> None:
    """Otherwise both calls refuse; a retention with one limit has nothing to compare."""
    subscribe(time).close()
    with Admin(path) as admin:
        topics = admin.topics()
        topics.set_retention(TOPIC, 10, 10)
        with pytest.raises(InvalidConfiguration, match="must exceed the backlog quota"):
            topics.set_backlog_quota(TOPIC, BacklogQuota(10 << 20))
        topics.set_backlog_quota(TOPIC, BacklogQuota((10 << 20) - 1))
        with pytest.raises(InvalidConfiguration, match="must exceed the backlog quota"):
            topics.set_retention(TOPIC, 10, 9)
        topics.set_retention(TOPIC, -1, 5)
        with pytest.raises(InvalidConfiguration):
            topics.set_backlog_quota(TOPIC, BacklogQuota(-2))
        with pytest.raises(InvalidConfiguration):
            topics.set_backlog_quota(TOPIC, BacklogQuota(policy="drop"))
        with pytest.raises(ValueError, match="the type"):
            topics.set_backlog_quota(TOPIC, BacklogQuota(1), "size")
        assert topics.get_backlog_quota_map(TOPIC)["destination_storage"].limit_size == (10 << 20) - 1
