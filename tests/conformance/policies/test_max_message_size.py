"""The policy max_message_size of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, CompressionType, InitialPosition, MessageTooBig
from embeddedpulsar.exceptions import InvalidConfiguration
from tests.children import in_child
from tests.conformance.pool import write_settings


@pytest.fixture
def admin(store_url: Path | str, client: Client) -> Iterator[Admin]:
    with Admin(store_url) as made:
        made.topics().create_non_partitioned_topic("orders")
        yield made


@pytest.mark.in_memory
@pytest.mark.parametrize("batching", [False, True])
def test_a_running_producer_follows(admin: Admin, client: Client, batching: bool):
    """In both directions, and after the policy is removed."""
    limited = admin.topics()
    with client.create_producer("orders", batching_enabled=batching) as producer:
        producer.send(bytes(2000))
        limited.set_max_message_size("orders", 1000)
        producer.send(bytes(900))
        with pytest.raises(MessageTooBig, match="maxMessageSize is 1000"):
            producer.send(bytes(2000))
        found: list[str] = []
        producer.send_async(bytes(2000), lambda result, _: found.append(result.name))
        producer.send_async(bytes(10), lambda result, _: found.append(result.name))
        producer.flush()
        assert sorted(set(found)) == (["MessageTooBig"] if batching else ["MessageTooBig", "Ok"])
        limited.set_max_message_size("orders", 3000)
        producer.send(bytes(2900))
        limited.set_max_message_size("orders", 0)
        producer.send(bytes(4000))
        limited.set_max_message_size("orders", 100)
        limited.remove_max_message_size("orders")
        for _ in range(3):
            producer.send(bytes(4000))


def test_producers_that_come_later(admin: Admin, client: Client):
    """Of the topic alone; keys and properties count; compressed messages count as they are stored."""
    admin.topics().set_max_message_size("orders", 1000)
    assert admin.topics().get_max_message_size("orders") == 1000
    producer = client.create_producer("orders", batching_enabled=False)
    producer.send(bytes(960))
    with pytest.raises(MessageTooBig):
        producer.send(bytes(900), properties={"p": "x" * 100})
    with pytest.raises(MessageTooBig):
        producer.send_many([bytes(10), bytes(1500)])
    client.create_producer("bills").send(bytes(5000))

    compressing = client.create_producer("orders", compression_type=CompressionType.ZLib)
    compressing.send(bytes(50_000))


def test_whole_columns_become_smaller_entries(admin: Admin, client: Client):
    """As with the limit of the store."""
    admin.topics().set_max_message_size("orders", 1000)
    producer = client.create_producer("orders")
    producer.send_many([bytes(300)] * 20)
    stats = admin.topics().get_internal_stats("orders")
    assert admin.topics().get_stats("orders").msg_in_counter == 20 and stats.number_of_entries >= 7


def test_chunks_have_that_size(admin: Admin, client: Client):
    """A producer with chunking cuts at the limit of the topic, also when it changes."""
    consumer = client.subscribe("orders", "kitchen", initial_position=InitialPosition.Earliest)
    producer = client.create_producer("orders", chunking_enabled=True, batching_enabled=False)
    texts = [bytes([number]) * 10_000 for number in range(3)]
    producer.send(texts[0])
    assert admin.topics().get_internal_stats("orders").number_of_entries == 1
    admin.topics().set_max_message_size("orders", 2000)
    producer.send(texts[1])
    assert admin.topics().get_internal_stats("orders").number_of_entries >= 6
    admin.topics().remove_max_message_size("orders")
    producer.send(texts[2])
    assert [consumer.receive(1000).data() for _ in range(3)] == texts


def test_of_a_partitioned_topic(admin: Admin, client: Client):
    """Each partition has it."""
    admin.topics().create_partitioned_topic("flights", 2)
    admin.topics().set_max_message_size("flights", 500)
    producer = client.create_producer("flights")
    for _ in range(2):
        with pytest.raises(MessageTooBig):
            producer.send(bytes(600))


def test_what_makes_no_sense(admin: Admin):
    """Less than nothing, and more than the store takes."""
    for size in (-1, 5_242_881, "big"):
        with pytest.raises(InvalidConfiguration):
            admin.topics().set_max_message_size("orders", size)  # type: ignore[arg-type]
    admin.topics().set_max_message_size("orders", 5_242_880)
    assert admin.topics().get_max_message_size("orders", applied=True) == 5_242_880


def test_set_by_another_process(tmp_path: Path):
    """A producer follows, at the latest with the message after the next."""
    write_settings(tmp_path, maxMessageSize=3000)
    with Client(tmp_path) as client:
        producer = client.create_producer("orders")
        producer.send(bytes(2000))

        def work() -> object:
            with Admin(tmp_path) as other:
                other.topics().set_max_message_size("orders", 1000)

        in_child(work)
        producer.send(b"x")  # which looks at the policies
        with pytest.raises(MessageTooBig):
            producer.send(bytes(2000))
