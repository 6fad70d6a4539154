"""The producers a consumer makes for letters: names, initial subscriptions, and what ends them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import BytesSchema, Client, MessageId, ProducerAccessMode
from embeddedpulsar.client.letter_producer import LetterProducer
from embeddedpulsar.client.message_options import NO_OPTIONS
from embeddedpulsar.client.producer_config import LONGEST_NAME
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    MessageTooBig,
    NotAllowedError,
    ProducerBusy,
    ProducerFenced,
)


@pytest.fixture
def client() -> Iterator[Client]:
    """A client on a private store."""
    with Client("memory://") as made:
        yield made


def make(client: Client, name: str | None = "postman", initial_subscription: str = "") -> LetterProducer:
    """A letter producer for topic ``dead``."""
    return LetterProducer(client._core, "dead", BytesSchema(), name, initial_subscription)


def names(client: Client) -> list[str]:
    """The producers of the topic."""
    return client._core.store.topic("dead").producers()


def letters(*values: bytes) -> list[Any]:
    """Letters that are nothing but payload."""
    return [(value, NO_OPTIONS) for value in values]


def stored(client: Client) -> list[bytes]:
    """The payloads in the topic."""
    return [message.data() for message in client.create_reader("dead", MessageId.earliest)]


def test_it_is_made_with_the_first_letter(client):
    """Before, the topic does not even exist; after, there is one producer of the name, until it is closed."""
    producer = make(client)
    producer.sync()
    assert client._core.store.topic_names() == []
    producer.publish(letters(b"a", b"b"))
    producer.publish(letters(b"c"))
    producer.sync()
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
        client._core.store.topic("dead").create_subscription("keep")
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


def test_closing_the_client_closes_it(tmp_path: Path):
    """Nothing stays registered when the client is closed first."""
    client = Client(tmp_path)
    producer = make(client)
    producer.publish(letters(b"a"))
    client.close()
    producer.close()
    with Client(tmp_path) as other:
        assert names(other) == []
