"""A topic: its subscriptions, and what closing it closes."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_single
from embeddedpulsar._engine.store.store import REGISTRY, Store
from embeddedpulsar._engine.store.topic import Topic
from embeddedpulsar.exceptions import AlreadyClosed, SubscriptionNotFound
from embeddedpulsar.message_id import BEFORE_FIRST

PREFIX = ProducerPrefix("p", 0)


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with three messages."""
    found = store.use_topic("orders").topic
    for number in range(3):
        found.ledger.append(encode_single(b"%d" % number, number, PREFIX))
    return found


@pytest.fixture
def other(root: Path, topic: Topic):
    """The same topic as another process sees it: a second session of the store in this process."""
    REGISTRY.stores.clear()
    second = Store.open(root)
    yield second.use_topic("orders").topic
    second.release()


def test_subscriptions_are_made_where_they_should_start(topic: Topic):
    """After the last entry unless said otherwise; one that exists stays as it is."""
    assert topic.subscriptions() == []
    assert topic.subscription("late").backlog() == 0
    assert topic.subscription("early", initial=BEFORE_FIRST).backlog() == 3
    assert topic.subscription("late", initial=BEFORE_FIRST).backlog() == 0
    assert topic.subscription("early") is topic.subscription("early")
    assert topic.subscriptions() == ["early", "late"]


def test_a_subscription_made_elsewhere_is_found(topic: Topic, other: Topic):
    """Also after it was looked for and not found; and a deleted one is made anew."""
    with pytest.raises(SubscriptionNotFound, match="'audit'"):
        topic.subscription("audit", create=False)
    made = other.subscription("audit", initial=BEFORE_FIRST)
    assert topic.subscription("audit", create=False).backlog() == 3
    assert topic.subscriptions() == ["audit"]
    made.delete()
    assert topic.subscriptions() == []
    with pytest.raises(SubscriptionNotFound):
        topic.subscription("audit", create=False)
    assert topic.subscription("audit").backlog() == 0


def test_any_text_names_a_subscription(topic: Topic):
    """Slashes, dots, the empty name's neighbours: names never become paths."""
    names = ["../x", "a/b", ".", "ünï", "A", "a", "x" * 300]
    for name in names:
        topic.subscription(name)
    assert topic.subscriptions() == sorted(names)


def test_subscriptions_may_not_make_themselves(root: Path):
    """allowAutoSubscriptionCreation=false; an explicit creation is another matter."""
    root.mkdir()
    (root / "broker.conf").write_text("allowAutoSubscriptionCreation=false")
    store = Store.open(root)
    topic = store.use_topic("orders").topic
    with pytest.raises(SubscriptionNotFound, match=r"allowAutoSubscriptionCreation=false .*allow it there"):
        topic.subscription("audit")
    topic.create_subscription("audit")
    assert topic.subscription("audit").exists()
    store.release()


def test_closing_the_store_closes_the_topic(store: Store, topic: Topic):
    """Every later call says so."""
    subscription = topic.subscription("audit")
    store.release()
    for call in (
        topic.subscriptions,
        topic.producers,
        topic.attach_producer,
        lambda: topic.subscription("audit"),
    ):
        with pytest.raises(AlreadyClosed, match="closed with its store"):
            call()
    with pytest.raises(AlreadyClosed):
        subscription.statistics()
    topic.close()
    assert "closed" in repr(topic)


def test_a_deleted_topics_directory_made_anew_is_another_life(topic: Topic, store: Store):
    """The incarnation tells the two apart."""
    assert topic.incarnation > 0
    assert store.use_topic("else").topic.incarnation != topic.incarnation


def test_a_closed_topic_settles_nothing(topic: Topic, caplog: pytest.LogCaptureFixture):
    """A timer that comes while a topic is closed is no failure, and none is logged."""
    topic.subscription("audit")
    topic.ledger.view.max_read = Ended()
    topic.ledger.words[TopicWord.FIRST_OPEN_TXN] = 1
    topic.settle_transactions()
    assert not caplog.records


class Ended:
    """Stands for the open transactions of a log that is closed at this moment."""

    def is_any_open(self) -> bool:
        raise AlreadyClosed("the topic is closed")
