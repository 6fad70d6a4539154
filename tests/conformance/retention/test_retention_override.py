"""Retention of a single topic or namespace, over that of ``broker.conf``, changed while topics are open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, InitialPosition, MessageId
from embeddedpulsar._engine.store.policies.keeping import RETENTION
from embeddedpulsar._engine.store.store import REGISTRY
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration, TopicNotFound
from embeddedpulsar.policies import Retention
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, ledgers, publish, store_with

KEEP, NOTHING = Retention(-1, -1), Retention(0, 0)
CHECK_MS = 121_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_with(tmp_path / "store")


@pytest.fixture
def time(path: Path) -> Iterator[ManualTime]:
    made = ManualTime(path)
    yield made
    made.close()


def set_elsewhere(path: Path, name: str, retention: Retention | None) -> None:
    """As another process does it."""
    known = dict(REGISTRY.stores)
    REGISTRY.stores.clear()
    try:
        with Client(path) as client:
            client._core.store.set_policy(name, RETENTION, retention)
    finally:
        REGISTRY.stores.update(known)


def test_a_topic_that_was_made_again(time: ManualTime, path: Path) -> None:
    """What is set for it is its own: nothing of its predecessor's, and it has its effect."""
    with Admin(path) as admin:
        topics = admin.topics()
        topics.create_non_partitioned_topic(TOPIC)
        topics.set_retention(TOPIC, 1, 1)
        time.client._core.store.delete_topic(TOPIC, force=True)
        topics.create_non_partitioned_topic(TOPIC)
        assert topics.get_retention(TOPIC) is None
        topics.set_retention(TOPIC, -1, -1)
        assert topics.get_retention(TOPIC) == KEEP
    publish(time, 35)
    time.pass_ms(10 * CHECK_MS)
    assert len(ledgers(path)) == 4


@pytest.mark.parametrize("name", [TOPIC, "public/default"])
def test_what_is_to_stay_stays(time: ManualTime, path: Path, name: str) -> None:
    """Set before it matters, by another process; removed, it goes with the next check."""
    reader = time.client.create_reader(TOPIC, MessageId.latest)  # keeps the topic open
    set_elsewhere(path, name, KEEP)
    publish(time, 35)
    time.pass_ms(10 * CHECK_MS)
    assert len(ledgers(path)) == 4
    set_elsewhere(path, name, None)
    time.pass_ms(CHECK_MS)
    assert len(ledgers(path)) == 1
    reader.close()


def test_a_store_that_keeps_all_may_let_a_topic_go(tmp_path: Path) -> None:
    """Also if ``broker.conf`` says that nothing ever goes."""
    path = store_with(tmp_path / "all", defaultRetentionTimeInMinutes=-1, defaultRetentionSizeInMB=-1)
    time = ManualTime(path)
    reader = time.client.create_reader(TOPIC, MessageId.latest)
    publish(time, 35)
    time.pass_ms(10 * CHECK_MS)
    assert len(ledgers(path)) == 4
    set_elsewhere(path, TOPIC, NOTHING)
    time.pass_ms(CHECK_MS)
    assert len(ledgers(path)) == 1
    reader.close()
    time.close()


def test_the_nearest_decides(time: ManualTime, path: Path) -> None:
    """A topic over its namespace over broker.conf; a partition over its topic."""
    store = time.client._core.store
    with Admin(path) as admin:
        admin.topics().create_partitioned_topic("parts", 2)
    publish(time, 1)
    partition = store.use_topic("parts-partition-0").topic

    def kept(topic) -> Retention:
        return store._session.policies.value(RETENTION, topic.name, topic.directory)

    assert kept(partition) == NOTHING
    store.set_policy("public/default", RETENTION, Retention(5, 6))
    assert kept(partition) == kept(store.use_topic(TOPIC).topic) == Retention(5, 6)
    store.set_policy("parts", RETENTION, Retention(7, -1))
    assert kept(partition) == kept(store.use_topic("parts-partition-1").topic) == Retention(7, -1)
    store.set_policy("parts-partition-0", RETENTION, KEEP)
    assert kept(partition) == KEEP and kept(store.use_topic("parts-partition-1").topic) == Retention(7, -1)
    for name in ("parts-partition-0", "parts", "public/default"):
        store.set_policy(name, RETENTION, None)
        assert store.own_policy(name, RETENTION) is None
    assert kept(partition) == NOTHING


def test_numbers_are_those_of_broker_conf(time: ManualTime, path: Path) -> None:
    """So many minutes, to the check interval."""
    reader = time.client.create_reader(TOPIC, MessageId.latest)
    time.client._core.store.set_policy(TOPIC, RETENTION, Retention(10, -1))
    publish(time, 35)
    time.pass_ms(10 * 60_000 - 1000)
    assert len(ledgers(path)) == 4
    time.pass_ms(CHECK_MS + 1000)
    assert len(ledgers(path)) == 1
    reader.close()


def test_it_outlives_the_store_and_goes_with_the_topic(time: ManualTime, path: Path) -> None:
    """A topic that is made again has none, as its deduplication."""
    publish(time, 1)
    time.client._core.store.set_policy(TOPIC, RETENTION, KEEP)
    time.reopen()
    assert time.client._core.store.own_policy(TOPIC, RETENTION) == KEEP
    with Admin(path) as admin:
        admin.topics().delete(TOPIC)
        admin.topics().create_non_partitioned_topic(TOPIC)
    assert time.client._core.store.own_policy(TOPIC, RETENTION) is None


def test_what_is_wrong_is_refused(time: ManualTime) -> None:
    """As in broker.conf, and nothing is changed."""
    store = time.client._core.store
    publish(time, 1)
    for wrong in (Retention(0, 1), Retention(1, 0), Retention(-2, 1)):
        with pytest.raises(InvalidConfiguration):
            store.set_policy(TOPIC, RETENTION, wrong)
    assert store.own_policy(TOPIC, RETENTION) is None
    for missing in ("other", "acme/sales"):
        with pytest.raises(TopicNotFound, match=missing):
            store.set_policy(missing, RETENTION, KEEP)
        with pytest.raises(TopicNotFound, match=missing):
            store.own_policy(missing, RETENTION)


def test_what_cannot_be_read_holds_everything_back(time: ManualTime, path: Path, caplog) -> None:
    """It may have said that all is to stay."""
    consumer = time.client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    publish(time, 1)
    store = time.client._core.store
    store.set_policy(TOPIC, RETENTION, NOTHING)
    publish(time, 35)
    (document,) = path.glob("topics/*/policies")
    document.write_bytes(document.read_bytes()[:-1])
    store._session.control.change_policies(int)  # what was read before the damage would hold
    consumer.acknowledge_cumulative([consumer.receive(1000) for _ in range(36)][-1])
    time.pass_ms(2 * CHECK_MS)
    assert len(ledgers(path)) == 4
    assert caplog.text.count("nothing is trimmed or expires") == 1
    with pytest.raises(CorruptionError):
        store.trim_topic(TOPIC)
    consumer.close()
