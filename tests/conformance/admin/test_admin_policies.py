"""Namespaces, and what is set for them and for topics, by an `Admin` beside clients."""

from __future__ import annotations

import pytest

from embeddedpulsar import Admin, AlreadyClosed, InvalidTopicName, NotAllowedError, TopicNotFound
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.policies import Retention
from tests.children import in_child
from tests.conformance.chunks import begin_ledger


def is_duplicate(producer, sequence_id: int) -> bool:
    """Whether a message is answered as one."""
    return producer.send(b"x", sequence_id=sequence_id).entry_id() == -1


def test_namespaces_are_made_and_listed(admin, client):
    """With their tenants; topics can be made there at once."""
    namespaces = admin.namespaces()
    assert namespaces.get_namespaces("public") == ["public/default", "public/functions"]
    assert namespaces.get_namespaces("acme") == []
    with pytest.raises(TopicNotFound):
        client.create_producer("acme/sales/orders")
    for name in ("acme/sales", "acme/support", "acme2/sales"):
        namespaces.create_namespace(name)
    assert namespaces.get_namespaces("acme") == ["acme/sales", "acme/support"]
    client.create_producer("acme/sales/orders").send(b"x")
    assert admin.topics().get_list("acme/sales") == ["persistent://acme/sales/orders"]
    with pytest.raises(NotAllowedError, match="acme/sales"):
        namespaces.create_namespace("acme/sales")
    for wrong in ("acme", "a/b/c", "", "persistent://acme/sales"):
        with pytest.raises(InvalidTopicName):
            namespaces.create_namespace(wrong)


def test_deduplication_of_a_topic(admin, client):
    """An open producer goes by it with its next message."""
    topics = admin.topics()
    producer = client.create_producer("orders", "p")
    producer.send(b"x", sequence_id=5)
    assert not is_duplicate(producer, 5)
    assert topics.get_deduplication_status("orders") is None
    topics.set_deduplication_status("orders", True)
    assert topics.get_deduplication_status("orders") is True
    assert is_duplicate(producer, 5)
    topics.set_deduplication_status("orders", False)
    assert topics.get_deduplication_status("orders") is False
    assert not is_duplicate(producer, 5)
    topics.remove_deduplication_status("orders")
    assert topics.get_deduplication_status("orders") is None
    assert not is_duplicate(producer, 5)


def test_deduplication_of_a_namespace(admin, client):
    """For its topics, old and new, unless they say otherwise themselves."""
    topics, namespaces = admin.topics(), admin.namespaces()
    namespaces.create_namespace("acme/sales")
    old, own = (client.create_producer(f"acme/sales/{name}", "p") for name in ("old", "own"))
    elsewhere = client.create_producer("orders", "p")
    topics.set_deduplication_status("acme/sales/own", False)
    namespaces.set_deduplication_status("acme/sales", True)
    new = client.create_producer("acme/sales/new", "p")
    for producer in (old, own, elsewhere, new):
        producer.send(b"x", sequence_id=5)
    assert [is_duplicate(one, 5) for one in (old, own, elsewhere, new)] == [True, False, False, True]
    assert namespaces.get_deduplication_status("acme/sales") is True
    assert topics.get_deduplication_status("acme/sales/old") is None
    topics.remove_deduplication_status("acme/sales/own")
    assert is_duplicate(own, 5)
    namespaces.remove_deduplication_status("acme/sales")
    assert [is_duplicate(one, 5) for one in (old, own, new)] == [False] * 3


def test_deduplication_of_a_partitioned_topic(admin, client):
    """Of all its partitions, also those that come later."""
    admin.topics().create_partitioned_topic("orders", 2)
    producer = client.create_producer("orders", "p")
    admin.topics().set_deduplication_status("orders", True)
    admin.topics().update_partitioned_topic("orders", 3)
    for index in range(3):
        partition = client.create_producer(f"orders-partition-{index}", "q")
        partition.send(b"x", sequence_id=5)
        assert is_duplicate(partition, 5)
    producer.close()


def test_retention(admin, client):
    """Of topics and namespaces, as it was set, removed one by one."""
    admin.topics().create_non_partitioned_topic("orders")
    for calls, name in ((admin.topics(), "orders"), (admin.namespaces(), "public/default")):
        assert calls.get_retention(name) is None
        calls.set_retention(name, 10, -1)
        assert calls.get_retention(name) == Retention(10, -1)
        calls.set_deduplication_status(name, True)
        calls.remove_retention(name)
        assert calls.get_retention(name) is None
        assert calls.get_deduplication_status(name) is True, "the other policy stays"


@pytest.mark.in_memory
def test_trimming(admin, client):
    """What is kept and what goes, without waiting for housekeeping; of all partitions."""
    topics = admin.topics()
    topics.create_partitioned_topic("orders", 2)
    topics.set_retention("orders", -1, -1)
    store = client._core.store
    for index in range(2):
        name = f"orders-partition-{index}"
        with client.create_producer(name) as producer:
            producer.send(b"old")
            begin_ledger(store.use_topic(name).topic.ledger)
            producer.send(b"new")
    assert topics.trim_topic("orders") == 0
    topics.set_retention("orders-partition-1", 0, 0)
    assert topics.trim_topic("orders-partition-0") == 0
    assert topics.trim_topic("orders") <= 1, "or housekeeping was faster"
    assert [
        len(store.use_topic(f"orders-partition-{index}").topic.ledger.segments()) for index in (0, 1)
    ] == [2, 1]
    with pytest.raises(TopicNotFound):
        topics.trim_topic("other")


def test_other_processes_see_it(admin, client, store_url):
    """Set here, there is it; set there, here is it."""
    admin.topics().create_non_partitioned_topic("orders")
    admin.topics().set_retention("orders", 5, 6)

    def there() -> object:
        with Admin(store_url) as other:
            found = other.topics().get_retention("orders")
            other.topics().set_retention("orders", 7, 8)
            other.namespaces().create_namespace("acme/sales")
            return found

    assert in_child(there) == str(Retention(5, 6))
    assert admin.topics().get_retention("orders") == Retention(7, 8)
    assert admin.namespaces().get_namespaces("acme") == ["acme/sales"]


def test_what_is_refused(admin):
    """Names of nothing, names of the other kind, and values that make no sense."""
    topics, namespaces = admin.topics(), admin.namespaces()
    topics.create_non_partitioned_topic("orders")
    for calls, missing in ((topics, "other"), (namespaces, "acme/sales")):
        for call in (
            lambda c=calls, m=missing: c.set_retention(m, 1, 1),
            lambda c=calls, m=missing: c.get_retention(m),
            lambda c=calls, m=missing: c.remove_retention(m),
            lambda c=calls, m=missing: c.set_deduplication_status(m, True),
            lambda c=calls, m=missing: c.get_deduplication_status(m),
            lambda c=calls, m=missing: c.remove_deduplication_status(m),
        ):
            with pytest.raises(TopicNotFound, match=missing):
                call()
    for calls, other_kind in ((topics, "public/default"), (namespaces, "orders")):
        with pytest.raises(InvalidTopicName):
            calls.set_retention(other_kind, 1, 1)
    with pytest.raises(InvalidConfiguration, match="if one of the two is 0"):
        topics.set_retention("orders", 0, 5)
    for wrong in (1.5, "1", None, True):
        with pytest.raises(ValueError, match="two integers"):
            topics.set_retention("orders", wrong, 5)
    for wrong in (1, "true", None):
        with pytest.raises(ValueError, match="True or False"):
            topics.set_deduplication_status("orders", wrong)
    assert topics.get_retention("orders") is topics.get_deduplication_status("orders") is None


def test_a_closed_admin(store_url, client):
    """Says so."""
    admin = Admin(store_url)
    namespaces = admin.namespaces()
    admin.close()
    for call in (
        lambda: namespaces.get_namespaces("public"),
        lambda: namespaces.get_retention("public/default"),
    ):
        with pytest.raises(AlreadyClosed, match="Admin is closed"):
            call()
