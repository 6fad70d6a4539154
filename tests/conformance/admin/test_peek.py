"""An administrator looks at the messages of a subscription, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    ConsumerType,
    InitialPosition,
    NotAllowedError,
    SubscriptionNotFound,
    TopicNotFound,
)
from embeddedpulsar.testing.trial_store import assert_clean
from tests.support.key_files import key_files


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Client(tmp_path) as made:
        yield made
    assert_clean(tmp_path)


@pytest.fixture
def admin(tmp_path: Path, client: Client) -> Iterator[Admin]:
    with Admin(tmp_path) as made:
        yield made


def peeked(admin: Admin, count: int = 100, topic: str = "jobs") -> list[bytes]:
    return [message.data() for message in admin.topics().peek_messages(topic, "work", count)]


def send(client: Client, *texts: bytes, **options) -> None:
    options = {"batching_enabled": False} | options
    with client.create_producer("jobs", **options) as producer:
        for text in texts:
            producer.send_async(text, None)
        producer.flush()


def subscribe(client: Client, kind: ConsumerType = ConsumerType.Shared, **options):
    return client.subscribe("jobs", "work", kind, initial_position=InitialPosition.Earliest, **options)


@pytest.mark.parametrize("kind", ConsumerType)
def test_it_shows_what_is_not_acknowledged(client: Client, admin: Admin, kind: ConsumerType):
    """Whether a consumer holds it or not; in order; as many as are asked for."""
    consumer = subscribe(client, kind)
    send(client, b"0", b"1", b"2", b"3", b"4")
    assert peeked(admin) == [b"0", b"1", b"2", b"3", b"4"]
    held = [consumer.receive() for _ in range(4)]
    for message in (held[0], held[2]):
        consumer.acknowledge(message)
    client._core.save(5.0)
    assert peeked(admin) == [b"1", b"3", b"4"] and peeked(admin, 2) == [b"1", b"3"]
    assert consumer.receive(2000).data() == b"4"
    consumer.redeliver_unacknowledged_messages()
    assert sorted(consumer.receive(2000).data() for _ in range(3)) == [b"1", b"3", b"4"]


def test_the_message_is_complete(client: Client, admin: Admin):
    """Id, key, properties, times and topic as a consumer gets them."""
    consumer = subscribe(client)
    with client.create_producer("jobs", "p") as producer:
        producer.send(b"x", properties={"a": "b"}, partition_key="k", event_timestamp=7)
    (seen,) = admin.topics().peek_messages("jobs", "work", 1)
    got = consumer.receive()
    for field in ("message_id", "data", "value", "partition_key", "properties", "event_timestamp"):
        assert getattr(seen, field)() == getattr(got, field)()
    assert (seen.topic_name(), seen.producer_name()) == (got.topic_name(), "p")
    assert seen.publish_timestamp() == got.publish_timestamp() and seen.redelivery_count() == 0


def test_messages_of_a_batch_count_singly(client: Client, admin: Admin):
    """And those that are acknowledged are left out."""
    consumer = subscribe(client, batch_index_ack_enabled=True)
    send(client, b"0", b"1", b"2", b"3", batching_enabled=True, batching_max_publish_delay_ms=10_000)
    consumer.acknowledge([consumer.receive() for _ in range(2)][1])
    client._core.save(5.0)
    assert peeked(admin) == [b"0", b"2", b"3"] and peeked(admin, 2) == [b"0", b"2"]


def test_chunked_messages_are_whole(client: Client, admin: Admin):
    """Their parts are not messages."""
    subscribe(client)
    send(client, b"small", b"large" * 1000, b"last", chunking_enabled=True, chunk_max_message_size=700)
    assert peeked(admin) == [b"small", b"large" * 1000, b"last"]


def test_encrypted_messages_are_ciphertext(
    client: Client, admin: Admin, tmp_path_factory: pytest.TempPathFactory
):
    """With what is needed to decrypt them."""
    subscribe(client)
    reader = key_files(tmp_path_factory.mktemp("keys"))
    send(client, b"secret", encryption_key="key", crypto_key_reader=reader)
    (message,) = admin.topics().peek_messages("jobs", "work", 1)
    context = message.encryption_context()
    assert b"secret" not in message.data() and context is not None
    assert context.is_decryption_failed()


def test_a_long_backlog_is_read_as_far_as_asked(client: Client, admin: Admin):
    """Over several reads of the log."""
    subscribe(client)
    texts = [b"%d" % number for number in range(350)]
    send(client, *texts)
    assert peeked(admin, 320) == texts[:320] and peeked(admin, 1000) == texts


def test_delayed_messages_are_shown(client: Client, admin: Admin):
    """They are stored and not acknowledged."""
    subscribe(client)
    with client.create_producer("jobs") as producer:
        producer.send(b"later", deliver_at=2**40)
    assert peeked(admin) == [b"later"]


def test_partitions_are_looked_at_singly(client: Client, admin: Admin):
    """As in Pulsar, a partitioned topic is refused."""
    admin.topics().create_partitioned_topic("jobs", 2)
    subscribe(client)
    send(client, b"x")
    with pytest.raises(NotAllowedError, match="open its partitions"):
        peeked(admin)
    found = [peeked(admin, topic=f"jobs-partition-{index}") for index in range(2)]
    assert sorted(found) == [[], [b"x"]]


def test_what_is_not_there(client: Client, admin: Admin):
    """Nothing is made by looking for it."""
    with pytest.raises(TopicNotFound):
        peeked(admin)
    client.create_producer("jobs").close()
    with pytest.raises(SubscriptionNotFound):
        peeked(admin)
    use = client._core.use_topic("jobs")
    assert use.topic.subscriptions() == []
    use.release()
    for wrong in (0, -1, True, "2", None):
        with pytest.raises(ValueError, match="num_messages"):
            admin.topics().peek_messages("jobs", "work", wrong)  # type: ignore[arg-type]
