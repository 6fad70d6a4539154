"""Topics are made, grown, listed and deleted by an `Admin`, beside clients that use them."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Admin,
    AlreadyClosed,
    BrokerMetadataError,
    ConsumerType,
    InitialPosition,
    InvalidTopicName,
    MessageId,
    NotAllowedError,
    SubscriptionMode,
    TopicNotFound,
)
from tests.children import in_child

BASE = "persistent://public/default/orders"


def files_of(store_path: Path) -> list[str]:
    """What lies in the store of topics, and of those that go."""
    return sorted(path.name for folder in ("topics", "staging") for path in (store_path / folder).iterdir())


def test_topics_are_made_and_listed(topics):
    """Partitions are topics; partitioned topics have a list of their own."""
    topics.create_non_partitioned_topic("plain")
    topics.create_partitioned_topic("orders", 2)
    partitions = [f"{BASE}-partition-{i}" for i in range(2)]
    assert topics.get_list() == [*partitions, "persistent://public/default/plain"]
    assert topics.get_partitioned_topic_list() == [BASE]
    assert topics.get_partitioned_topic_metadata("orders").partitions == 2
    assert topics.get_partitioned_topic_metadata("plain").partitions == 0
    assert topics.get_partitioned_topic_metadata("orders-partition-1").partitions == 0
    assert topics.get_list("public/functions") == topics.get_partitioned_topic_list("public/functions") == []
    for missing in ("other", "orders-partition-2"):
        with pytest.raises(TopicNotFound):
            topics.get_partitioned_topic_metadata(missing)
    with pytest.raises(TopicNotFound, match="no namespace acme/sales"):
        topics.get_list("acme/sales")


def test_names_are_taken_once(topics):
    """Whatever the kind of topic."""
    topics.create_non_partitioned_topic("plain")
    topics.create_partitioned_topic("orders", 2)
    for name in ("plain", "orders"):
        with pytest.raises(NotAllowedError, match="exists already"):
            topics.create_non_partitioned_topic(name)
        with pytest.raises(NotAllowedError, match="exists already"):
            topics.create_partitioned_topic(name, 2)
    topics.create_non_partitioned_topic("orders-partition-1")
    with pytest.raises(NotAllowedError, match="exists already"):
        topics.create_non_partitioned_topic("orders-partition-1")
    with pytest.raises(TopicNotFound, match="has 2 partitions only"):
        topics.create_non_partitioned_topic("orders-partition-2")
    with pytest.raises(InvalidTopicName):
        topics.create_partitioned_topic("orders-partition-1", 2)
    with pytest.raises(ValueError, match="1 to 10000"):
        topics.create_partitioned_topic("empty", 0)


@pytest.mark.in_memory
def test_topics_grow(topics, client):
    """And clients see it."""
    topics.create_partitioned_topic("orders", 2)
    topics.update_partitioned_topic("orders", 4)
    assert len(client.get_topic_partitions("orders")) == 4
    with pytest.raises(NotAllowedError, match="only grows"):
        topics.update_partitioned_topic("orders", 3)
    with pytest.raises(TopicNotFound):
        topics.update_partitioned_topic("other", 3)


def test_a_deleted_topic_is_gone(topics, client, store_path):
    """With its messages, subscriptions and files; a new one of that name knows nothing of it."""
    with client.create_producer("orders") as producer:
        old = producer.send(b"old")
    client.subscribe("orders", "sub", initial_position=InitialPosition.Earliest).close()
    topics.delete("orders")
    assert topics.get_list() == [] and files_of(store_path) == []
    with pytest.raises(TopicNotFound):
        topics.delete("orders")
    with client.create_producer("orders") as producer:
        new = producer.send(b"new")
    assert new.ledger_id() > old.ledger_id()
    consumer = client.subscribe("orders", "sub", initial_position=InitialPosition.Earliest)
    assert consumer.receive(1000).data() == b"new"
    assert [message.data() for message in client.create_reader("orders", MessageId.earliest)] == [b"new"]
    consumer.close()
    topics.delete("orders")
    topics.create_partitioned_topic("orders", 2)
    assert len(client.get_topic_partitions("orders")) == 2


def test_a_partitioned_topic_goes_as_a_whole(topics, client, store_path):
    """Never a part of it."""
    topics.create_partitioned_topic("orders", 3)
    for index in (0, 2):
        with client.create_producer(f"orders-partition-{index}") as producer:
            producer.send(b"old")
    with pytest.raises(NotAllowedError, match="use delete_partitioned_topic"):
        topics.delete("orders")
    with pytest.raises(NotAllowedError, match="as a whole"):
        topics.delete("orders-partition-0")
    topics.delete_partitioned_topic("orders")
    assert topics.get_list() == topics.get_partitioned_topic_list() == files_of(store_path) == []
    topics.create_non_partitioned_topic("orders")
    with pytest.raises(NotAllowedError, match="not partitioned"):
        topics.delete_partitioned_topic("orders")
    topics.delete("orders")
    topics.create_partitioned_topic("orders", 3)
    assert list(client.create_reader("orders", MessageId.earliest)) == []


@pytest.mark.parametrize("user", ["producer", "consumer", "non-durable", "standby"])
def test_a_topic_in_use_stays(topics, client, user):
    """Unless forced; readers are never in the way."""
    client.create_reader("orders", MessageId.earliest)
    options: dict[str, Any] = {"consumer_name": "till"}
    if user == "non-durable":
        options["subscription_mode"] = SubscriptionMode.NonDurable
    if user == "standby":
        options["consumer_type"] = ConsumerType.Failover
    open_one = client.create_producer("orders", "till") if user == "producer" else None
    open_one = open_one or client.subscribe("orders", "sub", **options)
    with pytest.raises(BrokerMetadataError, match=r"in use by .* 'till'; close them, or delete"):
        topics.delete("orders")
    assert topics.get_list() == [BASE]
    with client.create_producer("orders") as producer:
        producer.send(b"it works as before")
    open_one.close()
    topics.delete("orders")
    assert topics.get_list() == []


@pytest.mark.parametrize("partitions", [0, 2])
def test_open_handles_of_a_deleted_topic_say_so(topics, client, partitions):
    """Whatever they are asked, and whether or not somebody has made a new topic of that name."""
    name = "orders-partition-1" if partitions else "orders"
    if partitions:
        topics.create_partitioned_topic("orders", partitions)
    producer = client.create_producer(name)
    producer.send(b"old")
    consumer, shared = client.subscribe(name, "sub"), client.subscribe(name, "shared", ConsumerType.Shared)
    reader = client.create_reader(name, MessageId.latest)
    whole = client.subscribe("orders", "whole")
    delete = topics.delete_partitioned_topic if partitions else topics.delete
    delete("orders", force=True)
    client.create_producer("orders").send(b"new")
    with pytest.raises(TopicNotFound, match="deleted"):
        producer.send(b"lost?")
    for call in (
        lambda: consumer.receive(1000),
        lambda: shared.receive(1000),
        lambda: reader.read_next(1000),
        lambda: whole.receive(1000),
    ):
        with pytest.raises(AlreadyClosed, match="was deleted"):
            call()
    with contextlib.suppress(AlreadyClosed, TopicNotFound):
        producer.close()
    for one in (consumer, shared, reader, whole):
        one.close()  # the owner tidies up, as ever
    assert [one.data() for one in client.create_reader("orders", MessageId.earliest)] == [b"new"]


def test_locks_that_rest_say_so_too(topics, client):
    """A process with many topics closes their locks; it cannot open them again then."""
    producer = client.create_producer("orders")
    ids = [producer.send(b"%d" % i) for i in range(3)]
    consumer = client.subscribe(
        "orders", "sub", ConsumerType.Shared, initial_position=InitialPosition.Earliest
    )
    message = consumer.receive(1000)
    session: Any = consumer._core.session
    topics.delete("orders", force=True)
    for lock in (session.ledger.lock, session.subscription._shared._lock):
        assert lock.close_descriptor()
    consumer.acknowledge(message)  # it is collected first, and means nothing any more
    for call in (lambda: consumer.seek(ids[0]), lambda: producer.send(b"lost?"), producer.close):
        with pytest.raises(AlreadyClosed, match="was deleted"):
            call()


def test_a_waiting_consumer_is_told(topics, client):
    """At once."""
    consumer = client.subscribe("orders", "sub")
    errors: list[Exception] = []

    def wait() -> None:
        try:
            consumer.receive(10_000)
        except AlreadyClosed as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    topics.delete("orders", force=True)
    waiting.join()
    assert "was deleted" in str(errors[0])


def test_other_processes_are_told(topics, client, store_url):
    """A child's handles are the parent's business no more than a stranger's."""
    producer = client.create_producer("orders")
    reader = client.create_reader("orders", MessageId.earliest)

    def child() -> str:
        with Admin(store_url) as admin:
            with pytest.raises(BrokerMetadataError):
                admin.topics().delete("orders")
            admin.topics().delete("orders", force=True)
            return ",".join(admin.topics().get_list())

    assert in_child(child) == ""
    with pytest.raises(TopicNotFound, match="deleted"):
        producer.send(b"lost?")
    with pytest.raises(AlreadyClosed, match="was deleted"):
        reader.read_next(1000)
    assert client.create_producer("orders").send(b"new").entry_id() == 0


def test_a_closed_admin_is_closed(store_path):
    """And lets the store go."""
    admin = Admin(store_path)
    assert repr(admin) == f"<Admin {store_path} open>"
    admin.close()
    admin.close()
    assert "closed" in repr(admin)
    with pytest.raises(AlreadyClosed, match="Admin is closed"):
        admin.topics().get_list()
    with pytest.raises(ValueError, match="memory://name"):
        Admin("memory://")
