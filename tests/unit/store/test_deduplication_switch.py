"""Switching deduplication: who is told, and who need not be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.platform.timing import boot_id
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.exceptions import InvalidTopicName, TopicNotFound

NAMESPACE = "public/default"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(tmp_path)
    yield made
    made.release()


def is_on(store: Store, name: str) -> bool:
    """What the journal of a topic says."""
    topic = store.use_topic(name).topic
    topic.producers()
    return topic._producers.get()._table.sequences.is_on(boot_id())


def produce(store: Store, *names: str) -> None:
    """Topics that had a producer."""
    for name in names:
        topic = store.use_topic(name).topic
        topic.detach_producer(topic.attach_producer())


def test_topics_with_producers_are_told(store: Store):
    """At once; the others find out when their first producer comes, and get no journal for it."""
    produce(store, "busy")
    store.topics.create_topic("idle")
    store.set_policy(NAMESPACE, DEDUPLICATION, True)
    assert is_on(store, "busy")
    assert not store.use_topic("idle").topic.had_producers
    produce(store, "idle")
    assert is_on(store, "idle")


def test_only_those_it_concerns(store: Store):
    """A topic, or the topics of one namespace."""
    store.topics.namespaces.create("acme/sales")
    produce(store, "one", "two", "acme/sales/one")
    store.set_policy("one", DEDUPLICATION, True)
    assert [is_on(store, name) for name in ("one", "two", "acme/sales/one")] == [True, False, False]
    store.set_policy("acme/sales", DEDUPLICATION, True)
    assert [is_on(store, name) for name in ("one", "two", "acme/sales/one")] == [True, False, True]


def test_a_topic_that_says_otherwise(store: Store):
    """Is told what it says itself."""
    produce(store, "one", "two")
    store.set_policy("one", DEDUPLICATION, False)
    store.set_policy(NAMESPACE, DEDUPLICATION, True)
    assert [is_on(store, name) for name in ("one", "two")] == [False, True]
    store.set_policy("one", DEDUPLICATION, None)
    assert is_on(store, "one")
    store.set_policy(NAMESPACE, DEDUPLICATION, None)
    assert [is_on(store, name) for name in ("one", "two")] == [False, False]


def test_partitions(store: Store):
    """Those that were opened are told; the others find out."""
    store.topics.create_partitioned("parts", 3)
    produce(store, "parts-partition-1", "parts2")
    store.set_policy("parts", DEDUPLICATION, True)
    assert is_on(store, "parts-partition-1")
    assert not is_on(store, "parts2")
    produce(store, "parts-partition-2")
    assert is_on(store, "parts-partition-2")
    store.set_policy("parts-partition-2", DEDUPLICATION, False)
    assert [is_on(store, f"parts-partition-{index}") for index in (1, 2)] == [True, False]


def test_the_same_again_changes_nothing(store: Store):
    """No record is added to the journal."""
    produce(store, "one")
    store.set_policy("one", DEDUPLICATION, True)
    words = store.use_topic("one").topic.ledger.words
    before = words[TopicWord.JOURNAL]
    store.set_policy("one", DEDUPLICATION, True)
    assert words[TopicWord.JOURNAL] == before


def test_a_change_nobody_was_told_of(store: Store):
    """Whoever made it died in the middle: the next producer completes it, as does saying it again."""
    produce(store, "one", "two")
    session, changes = store._session, {"deduplicationEnabled": True}
    session.control.change_policies(
        lambda: session.policies.change_namespace(NAMESPACE, changes, durable=False)
    )
    assert not is_on(store, "one")
    produce(store, "one")
    assert [is_on(store, name) for name in ("one", "two")] == [True, False]
    store.set_policy(NAMESPACE, DEDUPLICATION, True)
    assert is_on(store, "two")


def test_what_is_not_there(store: Store):
    """Says so, and makes nothing."""
    for missing in ("other", "acme/sales", "persistent://public/default/other"):
        with pytest.raises(TopicNotFound, match=missing):
            store.set_policy(missing, DEDUPLICATION, True)
    with pytest.raises(InvalidTopicName):
        store.set_policy("", DEDUPLICATION, True)
    assert store.topics.names() == []


def test_a_partition_that_was_never_opened(store: Store):
    """Exists; it remembers what was said before it was opened. One behind the last does not exist."""
    store.topics.create_partitioned("parts", 2)
    assert store.own_policy("parts-partition-1", DEDUPLICATION) is None
    store.set_policy("parts-partition-1", DEDUPLICATION, True)
    assert store.own_policy("parts-partition-1", DEDUPLICATION) is True
    produce(store, "parts-partition-0", "parts-partition-1")
    assert [is_on(store, f"parts-partition-{index}") for index in (0, 1)] == [False, True]
    with pytest.raises(TopicNotFound, match="parts-partition-2"):
        store.set_policy("parts-partition-2", DEDUPLICATION, True)
