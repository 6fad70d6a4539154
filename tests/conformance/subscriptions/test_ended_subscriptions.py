"""Subscriptions that ended leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import AlreadyClosed, Client, ConsumerType, InitialPosition, MessageId, SubscriptionMode
from embeddedpulsar._engine.store.topic_subscriptions import SubscriptionKey
from tests.children import in_child
from tests.conformance.conftest import Topic, numbers, receive_all
from tests.conformance.pool import take

NON_DURABLE = SubscriptionMode.NonDurable
SHARED = ConsumerType.Shared


def left(path: Path) -> list[str]:
    """Names of the directories of subscriptions."""
    return sorted(one.name for one in path.glob("topics/*/subscriptions/*"))


def topic_of(client: Client) -> Any:
    """The topic as the store has it."""
    return client._core.store.use_topic("persistent://public/default/topic").topic


def test_who_unsubscribes_takes_the_files_along(client, store_path):
    """A durable subscription; the next one of that name begins anew, with files of its own."""
    topic = Topic(client)
    for _ in range(3):
        consumer = topic.consumer()
        topic.publish(2)
        consumer.acknowledge(consumer.receive(1000))
        assert len(left(store_path)) == 1
        consumer.unsubscribe()
        assert left(store_path) == []
    assert len(receive_all(topic.consumer())) == 6


def test_the_last_one_out_removes_what_is_not_durable(client, store_path):
    """Closed by each consumer in its turn; readers as well."""
    topic = Topic(client)
    topic.publish(1)
    options = {"subscription_mode": NON_DURABLE, "consumer_type": SHARED}
    first, second = topic.consumer(**options), topic.consumer(**options)
    reader = client.create_reader("topic", MessageId.earliest)
    first.close()
    assert left(store_path)
    second.close()
    reader.close()
    assert left(store_path) == []


def test_who_was_attached_is_told(client, store_path):
    """Consumers of a subscription that is deleted under them get an error, in whatever life."""
    topic = Topic(client)
    topic.publish(3)
    old = topic.consumer(consumer_type=SHARED)
    message = old.receive(1000)
    topic_of(client).subscription("sub").delete(force=True)
    new = topic.consumer(consumer_type=SHARED)
    old.acknowledge(message)
    for call in (lambda: old.receive(100), lambda: old.seek(MessageId.earliest)):
        with pytest.raises(AlreadyClosed):
            call()
    old.close()
    assert numbers(receive_all(new)) == [0, 1, 2]
    new.unsubscribe()
    assert left(store_path) == []


def test_locks_at_rest(client, store_path):
    """A process that had closed its descriptors opens those of the new life and does not take them for its
    own."""
    topic = Topic(client)
    topic.publish(3)
    old = topic.consumer(consumer_type=SHARED)
    shared = old._core.session.subscription._shared
    assert shared._lock.close_descriptor()
    in_child(lambda: delete_and_make_anew(store_path))
    assert shared._lock.close_descriptor()
    with pytest.raises(AlreadyClosed):
        old.receive(100)
    old.close()
    with topic.consumer(consumer_type=SHARED) as new:
        assert numbers(receive_all(new)) == [1, 2]


def delete_and_make_anew(store_path: Path) -> str:
    """In another process: a new life of the subscription, of which the first message is acknowledged."""
    with Client(store_path) as client:
        topic_of(client).subscription("sub").delete(force=True)
        with Topic(client).consumer(consumer_type=SHARED) as consumer:
            consumer.acknowledge(consumer.receive(1000))
    return "done"


def end_without_a_word(store_path: Path, names: list[str]) -> None:
    """Another process attaches to subscriptions that are not durable and ends without closing anything."""

    def attach() -> None:
        client = Client(store_path)
        for name in names:
            client.subscribe("topic", name, SHARED, subscription_mode=NON_DURABLE).receive_nowait()

    in_child(attach)


def test_housekeeping_clears_away_what_the_dead_left(time, store_path):
    """In slices; subscriptions with living consumers, and durable ones, stay."""
    client = time.client
    Topic(client).publish(2)
    with Topic(client).consumer():
        pass
    end_without_a_word(store_path, [f"n{number}" for number in range(10)])
    assert len(left(store_path)) == 11
    living = client.subscribe("topic", "n3", SHARED, subscription_mode=NON_DURABLE)
    subscriptions = topic_of(client)._subscriptions
    assert subscriptions.may_find_leftovers()
    calls = 1
    while subscriptions.clear_away(4):
        calls += 1
    assert calls == 3
    kept = [SubscriptionKey("sub", True), SubscriptionKey("n3", False)]
    assert left(store_path) == sorted(key.directory_name for key in kept)
    assert topic_of(client).subscriptions() == ["sub"]
    living.close()
    assert not subscriptions.may_find_leftovers()
    assert len(take(Topic(client).consumer())) == 2


def test_housekeeping_does_it_by_itself(time, store_path):
    """When the topic is opened, and from time to time."""
    end_without_a_word(store_path, ["a", "b"])
    Topic(time.client).publish(1)
    time.pass_ms(1000)
    assert left(store_path) == []
    with time.client.subscribe("topic", "c", SHARED, subscription_mode=NON_DURABLE):
        end_without_a_word(store_path, ["a", "b"])
        topic = topic_of(time.client)
        topic._session.housekeeping.look_at(topic._upkeep)
        for _ in range(2):
            time.pass_ms(120_000)
        assert left(store_path) == [SubscriptionKey("c", False).directory_name]


def test_what_cannot_be_read_is_not_cleared_away(store_path):
    """A journal that is damaged may be all there is of a subscription."""
    with Client(store_path) as client, Topic(client).consumer():
        pass
    (journal,) = store_path.glob("topics/*/subscriptions/*/journal.*")
    (control,) = store_path.glob("topics/*/subscriptions/*/ctl")
    journal.write_bytes(b"x" * journal.stat().st_size)
    control.write_bytes(bytes(control.stat().st_size))
    before = left(store_path)
    with Client(store_path) as client:
        Topic(client).publish(1)
        topic_of(client)._subscriptions.clear_away(10)
        assert left(store_path) == before
        consumer = client.subscribe("topic", "sub", initial_position=InitialPosition.Latest)
        assert len(receive_all(consumer)) == 1
