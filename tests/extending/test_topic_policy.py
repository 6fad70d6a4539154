"""A policy of topics is one value, which store and documents take as they take their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration, TopicNotFound
from embeddedpulsar.testing.store_checks import assert_clean
from embeddedpulsar.topic.policies.topic_policy import ChangingTopic, TopicPolicy
from embeddedpulsar.topic.store import Store

told: list[tuple[str, int]] = []


def packed(seconds: int) -> str:
    if seconds < 0:
        raise InvalidConfiguration(f"{seconds} seconds")
    return f"{seconds}s"


def unpacked(form: object) -> int:
    try:
        return int(str(form).removesuffix("s"))
    except ValueError as e:
        raise CorruptionError(reason=f"a time to live that is none: {form!r}") from e


def tell(topic: ChangingTopic, seconds: int) -> None:
    told.append((topic.name.rsplit("/", 1)[1], seconds))


TTL = TopicPolicy[int](
    "messageTTL", lambda settings, own: settings.ttlDurationDefaultInSeconds, packed, unpacked, tell
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    told.clear()
    with Client(tmp_path) as client:
        store = client._core.store
        store.topics.create_partitioned("parts", 2)
        for name in ("orders", "parts-partition-0"):
            client.create_producer(name).close()
        yield store
    assert_clean(tmp_path)


def test_the_nearest_level_decides(store: Store):
    """Partition, topic, namespace, broker.conf."""
    assert store.policy("parts-partition-0", TTL) == 0
    for name, seconds in (("public/default", 5), ("parts", 6), ("parts-partition-0", 7)):
        store.set_policy(name, TTL, seconds)
        assert store.own_policy(name, TTL) == store.policy("parts-partition-0", TTL) == seconds
    assert store.own_policy("orders", TTL) is None
    assert store.policy("orders", TTL) == store.policy("public/default", TTL) == 5
    store.set_policy("public/default", TTL, None)
    assert store.policy("orders", TTL) == 0


def test_topics_that_are_there_are_changed_at_once(store: Store):
    """Each with the value that holds for it."""
    store.set_policy("orders", TTL, 3)
    store.set_policy("public/default", TTL, 9)
    assert told == [("orders", 3), ("orders", 3), ("parts-partition-0", 9)]


def test_values_that_make_no_sense_are_refused(store: Store):
    """Before anything is written, as is a topic that does not exist."""
    with pytest.raises(InvalidConfiguration):
        store.set_policy("orders", TTL, -1)
    with pytest.raises(TopicNotFound):
        store.set_policy("no such topic", TTL, 1)
    assert store.own_policy("orders", TTL) is None and told == []
