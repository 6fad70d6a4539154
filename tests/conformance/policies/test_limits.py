"""How many producers, consumers, subscriptions and topics there may be: the limits of an `Admin` and of
``broker.conf``."""

from __future__ import annotations

import threading

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    ConsumerBusy,
    ConsumerType,
    MessageId,
    NotAllowedError,
    ProducerAccessMode,
    ProducerBusy,
)
from embeddedpulsar._engine.store.policies.admitting import MAX_PRODUCERS
from embeddedpulsar._engine.store.topic_subscriptions import TopicSubscriptions
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration, TopicNotFound
from tests.conformance.pool import write_settings

SPACE = "public/default"


def test_producers_of_a_topic(admin, client):
    """The next one is refused; one that is closed makes room, and so does a higher limit."""
    first = client.create_producer("orders")
    admin.topics().set_max_producers("orders", 1)
    with pytest.raises(ProducerBusy, match="maxProducersPerTopic"):
        client.create_producer("orders")
    first.close()
    second = client.create_producer("orders")
    admin.topics().set_max_producers("orders", 2)
    client.create_producer("orders")
    assert second.is_connected()


def test_a_lowered_limit_takes_nothing_away(admin, client):
    """It counts for the next one."""
    producers = [client.create_producer("orders") for _ in range(3)]
    admin.topics().set_max_producers("orders", 1)
    for producer in producers:
        producer.send(b"x")


def test_no_limit_at_a_topic(admin, client):
    """0 lifts the limit of the namespace."""
    admin.namespaces().set_max_producers_per_topic(SPACE, 1)
    held = [client.create_producer(name) for name in ("orders", "bills")]
    admin.topics().set_max_producers("orders", 0)
    client.create_producer("orders")
    with pytest.raises(ProducerBusy):
        client.create_producer("bills")
    assert all(producer.is_connected() for producer in held)


def test_a_fenced_producer_comes_back_within_the_limit(admin, client):
    """It takes its old place."""
    fenced = client.create_producer("orders")
    only = client.create_producer("orders", access_mode=ProducerAccessMode.ExclusiveWithFencing)
    only.close()
    admin.topics().set_max_producers("orders", 1)
    fenced.send(b"x")


def test_consumers_of_a_subscription(admin, client):
    """Of each one of the topic."""
    admin.topics().create_non_partitioned_topic("orders")
    admin.topics().set_max_consumers_per_subscription("orders", 2)
    taken = [client.subscribe("orders", "work", ConsumerType.Shared) for _ in range(2)]
    with pytest.raises(ConsumerBusy, match="maxConsumersPerSubscription"):
        client.subscribe("orders", "work", ConsumerType.Shared)
    client.subscribe("orders", "other", ConsumerType.Shared)
    taken[0].close()
    client.subscribe("orders", "work", ConsumerType.Shared)


@pytest.mark.in_memory
def test_consumers_of_a_topic(admin, client):
    """Of all its subscriptions together; readers have none."""
    admin.topics().create_non_partitioned_topic("orders")
    admin.namespaces().set_max_consumers_per_topic(SPACE, 2)
    one = client.subscribe("orders", "one")
    client.subscribe("orders", "two")
    with pytest.raises(ConsumerBusy, match="maxConsumersPerTopic"):
        client.subscribe("orders", "three")
    client.create_reader("orders", MessageId.earliest)
    one.close()
    client.subscribe("orders", "three")
    client.subscribe("others", "one")


def test_subscriptions_of_a_topic(admin, client):
    """Durable ones, with or without consumers. One that exists can be used."""
    admin.topics().create_non_partitioned_topic("orders")
    admin.topics().set_max_subscriptions_per_topic("orders", 1)
    client.subscribe("orders", "one").close()
    with pytest.raises(NotAllowedError, match="maxSubscriptionsPerTopic"):
        client.subscribe("orders", "two")
    client.create_reader("orders", MessageId.earliest)
    used = client.subscribe("orders", "one")
    used.unsubscribe()
    client.subscribe("orders", "two")


class Rival:
    """Tries the same in a thread, as soon as the number is counted."""

    def __init__(self, attempt, monkeypatch: pytest.MonkeyPatch, counting: str) -> None:
        self.refused: list[Exception] = []
        self._attempt = attempt
        self._thread = threading.Thread(target=self._try)
        count = getattr(TopicSubscriptions, counting)

        def counted(subscriptions: TopicSubscriptions) -> list[str]:
            found = count(subscriptions)
            if self._thread.ident is None:
                self._thread.start()
                self._thread.join(0.1)
            return found

        monkeypatch.setattr(TopicSubscriptions, counting, counted)

    def _try(self) -> None:
        try:
            self._attempt()
        except (NotAllowedError, ConsumerBusy) as e:
            self.refused.append(e)

    def join(self) -> list[Exception]:
        self._thread.join()
        return self.refused


def test_subscriptions_made_at_once_are_counted_one_after_the_other(admin, client, monkeypatch):
    """By threads as by processes: the count and the new subscription are under one lock of the store."""
    admin.topics().create_non_partitioned_topic("orders")
    admin.topics().set_max_subscriptions_per_topic("orders", 1)
    topic = client._core.store.use_topic("orders").topic
    rival = Rival(lambda: topic.create_subscription("second"), monkeypatch, "names")
    topic.create_subscription("first")
    assert len(rival.join()) == 1 and topic.subscriptions() == ["first"]


def test_consumers_that_attach_at_once_are_counted_one_after_the_other(admin, client, monkeypatch):
    """Also those of different subscriptions."""
    admin.topics().create_non_partitioned_topic("orders")
    admin.topics().set_max_consumers("orders", 1)
    rival = Rival(lambda: client.subscribe("orders", "two"), monkeypatch, "consumers")
    client.subscribe("orders", "one", consumer_name="first")
    assert len(rival.join()) == 1
    assert client._core.store.use_topic("orders").topic.consumers() == ["first"]


def test_topics_of_a_namespace(admin, client):
    """Partitions count with their topic, whether they are used or not."""
    admin.namespaces().create_namespace("acme/sales")
    admin.namespaces().set_max_topics_per_namespace("acme/sales", 4)
    topics = admin.topics()
    topics.create_partitioned_topic("acme/sales/parts", 2)
    client.create_producer("acme/sales/parts").send(b"x")
    client.create_producer("acme/sales/third").send(b"x")
    with pytest.raises(NotAllowedError, match="has 3 topics, and its limit is 4"):
        topics.create_partitioned_topic("acme/sales/more", 2)
    with pytest.raises(NotAllowedError, match="max_topics_per_namespace"):
        topics.update_partitioned_topic("acme/sales/parts", 4)
    topics.update_partitioned_topic("acme/sales/parts", 3)
    for make in (topics.create_non_partitioned_topic, client.create_producer):
        with pytest.raises(NotAllowedError):
            make("acme/sales/fifth")
    topics.delete("acme/sales/third", force=True)
    client.create_producer("acme/sales/fifth")
    client.create_producer("elsewhere")


@pytest.mark.parametrize(
    "name",
    ["max_producers", "max_consumers", "max_consumers_per_subscription", "max_subscriptions_per_topic"],
)
def test_the_nearest_level_counts(admin, client, name):
    """A limit of 0 at a topic lifts that of its namespace; without one, the namespace's holds again."""
    space_name = name if "_per_" in name else f"{name}_per_topic"
    topics, spaces = admin.topics(), admin.namespaces()
    topics.create_non_partitioned_topic("orders")
    get, put = getattr(topics, f"get_{name}"), getattr(topics, f"set_{name}")
    assert get("orders") is None and getattr(spaces, f"get_{space_name}")(SPACE) is None
    getattr(spaces, f"set_{space_name}")(SPACE, 7)
    assert get("orders") is None and getattr(spaces, f"get_{space_name}")(SPACE) == 7
    put("orders", 0)
    assert get("orders") == 0
    getattr(topics, f"remove_{name}")("orders")
    getattr(spaces, f"remove_{space_name}")(SPACE)
    assert get("orders") is None and getattr(spaces, f"get_{space_name}")(SPACE) is None
    for wrong in (-1, True, "3", 1.5, 1 << 40):
        with pytest.raises(InvalidConfiguration, match="a number from 0"):
            put("orders", wrong)
    with pytest.raises(TopicNotFound):
        put("no such topic", 1)


def test_settings_are_the_defaults(store_path):
    """Each of them is a limit of its own."""
    write_settings(store_path, maxConsumersPerTopic=1, maxSubscriptionsPerTopic=2, maxTopicsPerNamespace=2)
    with Client(store_path) as client:
        client.subscribe("orders", "one").close()
        held = client.subscribe("orders", "two")
        with pytest.raises(ConsumerBusy, match="maxConsumersPerTopic"):
            client.subscribe("orders", "one")
        held.close()
        with pytest.raises(NotAllowedError, match="maxSubscriptionsPerTopic"):
            client.subscribe("orders", "three")
        client.create_producer("second")
        with pytest.raises(NotAllowedError, match="max_topics_per_namespace"):
            client.create_producer("third")


def test_a_damaged_limit_is_an_error(store_path, monkeypatch):
    """Nothing is attached under a limit that cannot be read."""
    with Admin(store_path) as admin, Client(store_path) as client:
        admin.topics().create_non_partitioned_topic("orders")
        unchecked = MAX_PRODUCERS._replace(pack=lambda limit: "many")
        admin.topics()._store().set_policy("orders", unchecked, 1)
        with pytest.raises(CorruptionError, match="a limit that is none: 'many'"):
            client.create_producer("orders")
        admin.topics().remove_max_producers("orders")
        client.create_producer("orders")
