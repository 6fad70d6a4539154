"""The producers a consumer makes for letters: names, initial subscriptions, and what ends them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import BytesSchema, Client, HashingScheme, MessageId, ProducerAccessMode
from embeddedpulsar._engine.format.entry import partition_hash
from embeddedpulsar.client.arguments import NO_OPTIONS
from embeddedpulsar.client.consumer.dead_letter import DeadLetterProducer
from embeddedpulsar.client.producer.producer_session import LONGEST_NAME
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    MessageTooBig,
    NotAllowedError,
    ProducerBusy,
    ProducerFenced,
    TopicNotFound,
)
from tests.conformance.partitioned import PartitionedTopic


@pytest.fixture
def client() -> Iterator[Client]:
    """A client on a private store."""
    with Client("memory://") as made:
        yield made


def make(client: Client, name: str | None = "postman", initial_subscription: str = "") -> DeadLetterProducer:
    """A letter producer for topic ``dead``."""
    return DeadLetterProducer(client._core, "dead", BytesSchema(), name, initial_subscription)


def names(client: Client) -> list[str]:
    """The producers of the topic."""
    return client._core.store.use_topic("dead").topic.producers()


def letters(*values: bytes) -> list[Any]:
    """Letters that are nothing but payload."""
    return [(value, NO_OPTIONS) for value in values]


def stored(client: Client) -> list[bytes]:
    """The payloads in the topic."""
    return [message.data() for message in client.create_reader("dead", MessageId.earliest)]


def test_it_is_made_with_the_first_letter(client):
    """Before, the topic does not even exist; after, there is one producer of the name, until it is closed."""
    producer = make(client)
    producer.sync({})
    assert client._core.store.topics.names() == []
    producer.publish(letters(b"a", b"b"))
    producer.publish(letters(b"c"))
    assert stored(client) == [b"a", b"b", b"c"]
    assert names(client) == ["postman"]
    producer.close()
    producer.close()
    assert names(client) == []
    with pytest.raises(AlreadyClosed):
        producer.publish(letters(b"d"))


def test_a_name_in_use_gets_an_ending(client):
    """Consumers of one name are allowed; their producers cannot have one name."""
    one, other = make(client), make(client)
    one.publish(letters(b"a"))
    other.publish(letters(b"b"))
    first, second = names(client)
    assert first == "postman"
    assert second.startswith("postman-")


def test_without_a_name_the_topic_makes_one(client):
    """So it is for a name that is too long for a producer."""
    make(client, None).publish(letters(b"a"))
    make(client, "x" * LONGEST_NAME).publish(letters(b"b"))
    assert all(name.startswith("standalone-") for name in names(client))


def test_an_initial_subscription_keeps_the_first_letter(client):
    """It is made before the first letter is stored, and starts there; one that exists is left alone."""
    make(client, initial_subscription="keep").publish(letters(b"a"))
    make(client, initial_subscription="keep").publish(letters(b"b"))
    consumer = client.subscribe("dead", "keep")
    assert [consumer.receive(1000).data() for _ in range(2)] == [b"a", b"b"]


def test_an_initial_subscription_may_not_be_allowed(tmp_path: Path):
    """With allowAutoSubscriptionCreation=false the producer fails, and nothing is stored."""
    (tmp_path / "broker.conf").write_text("allowAutoSubscriptionCreation=false\n")
    with Client(tmp_path) as client:
        producer = make(client, initial_subscription="keep")
        with pytest.raises(NotAllowedError, match="allowAutoSubscriptionCreation"):
            producer.publish(letters(b"a"))
        assert stored(client) == []
        client._core.store.use_topic("dead").topic.create_subscription("keep")
        producer.publish(letters(b"b"))
        assert stored(client) == [b"b"]


def test_a_letter_that_fails_says_so(client):
    """Those before it are stored; the next one may be."""
    producer = make(client)
    with pytest.raises(MessageTooBig):
        producer.publish([*letters(b"a"), (b"", ({"p": "x" * (6 << 20)}, *NO_OPTIONS[1:])), *letters(b"b")])
    producer.publish(letters(b"c"))
    assert stored(client) == [b"a", b"c"]


def test_a_topic_that_was_taken_away_is_asked_for_again(client):
    """A producer that was fenced out fails, and a new one is tried the next time."""
    producer = make(client)
    producer.publish(letters(b"a"))
    thief = client.create_producer("dead", access_mode=ProducerAccessMode.ExclusiveWithFencing)
    with pytest.raises(ProducerFenced):
        producer.publish(letters(b"b"))
    with pytest.raises((ProducerBusy, ProducerFenced)):
        producer.publish(letters(b"c"))
    thief.close()
    producer.publish(letters(b"d"))
    assert stored(client) == [b"a", b"d"]


def test_a_durable_letter_topic_may_be_deleted(tmp_path: Path):
    """Who waits for its letters learns that they went; the letters of the next topic know nothing of that."""
    with Client(tmp_path, durability="flush") as client:
        producer = make(client)
        published = producer.publish(letters(b"a"))
        client._core.store.delete_topic("dead", force=True)
        with pytest.raises(TopicNotFound):
            producer.publish(letters(b"b"))
        with pytest.raises(AlreadyClosed):
            producer.sync(published)
        producer.sync(producer.publish(letters(b"c")))
        assert stored(client) == [b"c"]


class TestPartitions:
    """A letter topic with partitions: letters go where those of any producer go."""

    @pytest.fixture
    def dead(self, client) -> PartitionedTopic:
        """The letter topic, with three partitions."""
        return PartitionedTopic(client, 3, "dead")

    @staticmethod
    def keyed(*keys: str | None) -> list[Any]:
        """Letters whose payload is their number."""
        return [(b"hello-%d" % number, (None, key, *NO_OPTIONS[2:])) for number, key in enumerate(keys)]

    @staticmethod
    def syncs(client: Client) -> list[int]:
        """How often each partition was flushed."""
        return [
            client._core.store.use_topic(f"dead-partition-{i}").topic.ledger._commit.syncs for i in range(3)
        ]

    def test_keys_go_where_send_puts_them(self, client, dead):
        """Also keys of several consumers, and what a producer of the application sends."""
        keys = [f"key-{number}" for number in range(12)]
        with client.create_producer("dead") as producer:
            for number, key in enumerate(keys):
                producer.send(b"hello-%d" % number, partition_key=key)
        sent = dead.all_numbers()
        assert all(sent)
        for name in ("one", "other"):
            make(client, name).publish(self.keyed(*keys))
        assert dead.all_numbers() == [numbers * 3 for numbers in sent]

    def test_no_key_goes_round(self, client, dead):
        """Each partition gets its turn, of all calls together."""
        producer = make(client)
        for _ in range(3):
            producer.publish(self.keyed(None, ""))
        assert [len(numbers) for numbers in dead.all_numbers()] == [2, 2, 2]

    def test_new_partitions_are_used(self, client, dead):
        """Without a new consumer."""
        producer = make(client)
        producer.publish(self.keyed(None))
        dead.grow(5)
        producer.publish(self.keyed(*[None] * 20))
        assert all(dead.all_numbers())

    def test_a_name_in_use_on_a_later_partition(self, client, dead):
        """A partition is attached with its first letter: then another may have the name there, and nothing is
        lost by that."""
        key_of: dict[int, str] = {}
        for number in range(100):
            key_of.setdefault(_partition_of(f"k{number}", 3), f"k{number}")
        one, other = make(client), make(client)
        one.publish(self.keyed(key_of[0]))
        late = dead.names().index(
            []
        )  # partition 0 is attached, and the one where letters without a key begin
        theirs = client.create_producer(f"dead-partition-{late}", producer_name="postman")
        one.publish(self.keyed(key_of[0], key_of[late]))
        other.publish(self.keyed(key_of[late]))
        assert [len(dead.numbers(0)), len(dead.numbers(late))] == [2, 2]
        assert len(dead.names()[late]) == 3
        one.close()
        other.close()
        assert [name for names in dead.names() for name in names] == [theirs.producer_name()]

    def test_an_initial_subscription_keeps_them_all(self, client, dead):
        """It is made on every partition before the first letter."""
        make(client, initial_subscription="keep").publish(self.keyed(*[None] * 3))
        consumer = client.subscribe("dead", "keep")
        assert sorted(consumer.receive(1000).data() for _ in range(3)) == [b"hello-0", b"hello-1", b"hello-2"]

    def test_a_durable_letter_is_waited_for_on_each_partition(self, tmp_path):
        """At level ``flush`` all of them are on the disk when `sync` returns."""
        with Client(tmp_path, durability="flush") as client:
            dead = PartitionedTopic(client, 3, "dead")
            producer = make(client)
            published = producer.publish(self.keyed(*[None] * 3))
            before = self.syncs(client)
            producer.sync(published)
            assert [now - then for now, then in zip(self.syncs(client), before, strict=True)] == [1, 1, 1]
            assert [len(numbers) for numbers in dead.all_numbers()] == [1, 1, 1]


def _partition_of(key: str, partitions: int) -> int:
    return partition_hash(HashingScheme.JavaStringHash)(key) % partitions


def test_closing_the_client_closes_it(tmp_path: Path):
    """Nothing stays registered when the client is closed first."""
    client = Client(tmp_path)
    producer = make(client)
    producer.publish(letters(b"a"))
    client.close()
    producer.close()
    with Client(tmp_path) as other:
        assert names(other) == []
