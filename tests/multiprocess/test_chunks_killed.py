"""Processes that die in the middle of a chunked message."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.platform import failpoints
from tests.conformance.chunks import LIMIT, payload, use_small_entries
from tests.multiprocess.children import Child, say

EARLIEST = pulsar.InitialPosition.Earliest
VALUE = payload(5 * LIMIT)


def send_half(root: str, name: str) -> None:
    """Send a message, and die between two of its parts."""
    with pulsar.Client(root) as client:
        producer = client.create_producer("jobs", name, chunking_enabled=True)
        say("attached")
        failpoints.set("chunk:part_stored", "kill", nth=2)
        producer.send(VALUE)


def receive_one(root: str, kind: str) -> None:
    """Receive a message, acknowledge nothing, and wait to be killed."""
    with pulsar.Client(root) as client:
        consumer = subscribed(client, kind)
        say(len(consumer.receive().data()))
        consumer.receive()


def acknowledge_one(root: str, kind: str, point: str) -> None:
    """Acknowledge a message, and die at a step of that."""
    with pulsar.Client(root) as client:
        consumer = subscribed(client, kind, ack_group_time_ms=0)
        message = consumer.receive()
        say("received")
        failpoints.set(point, "kill")
        consumer.acknowledge(message)


def subscribed(client: pulsar.Client, kind: str, **options: Any) -> pulsar.Consumer:
    """A consumer of ``jobs``."""
    return client.subscribe(
        "jobs",
        "work",
        pulsar.ConsumerType[kind],
        initial_position=EARLIEST,
        **({"expire_time_of_incomplete_chunked_message_ms": 300} | options),
    )


def mark_delete(consumer: Any) -> tuple[int, int]:
    """Where the subscription stands."""
    position: tuple[int, int] = consumer._core.session.subscription.mark_delete
    return position


@pytest.mark.parametrize(
    ("kind", "drops_duplicates"), [("Exclusive", False), ("Shared", False), ("Shared", True)]
)
def test_a_producer_killed_between_two_parts(tmp_path: Path, kind: str, drops_duplicates: bool):
    """Nothing of it is ever delivered; its name is free; its parts go in time, and what follows is whole.

    Sent again, it is no duplicate of its parts.
    """
    root = tmp_path / "store"
    use_small_entries(root)
    with (root / "broker.conf").open("a") as file:
        file.write(f"brokerDeduplicationEnabled={str(drops_duplicates).lower()}\n")
    with pulsar.Client(root) as client:
        consumer = subscribed(client, kind)
        for _ in range(2):
            with Child(send_half, root, "me") as child:
                assert child.read() == "attached"
                assert child.join() == -signal.SIGKILL
        with client.create_producer("jobs", "me", chunking_enabled=True) as producer:
            assert producer.last_sequence_id() == -1
            last = producer.send(VALUE)
        message = consumer.receive(5000)
        assert (message.data(), message.message_id()) == (VALUE, last)
        consumer.acknowledge(message)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(1000)  # longer than parts live
        assert mark_delete(consumer) == (last.ledger_id(), last.entry_id())


@pytest.mark.parametrize("kind", ["Failover", "Shared"])
def test_a_consumer_killed_with_a_message_in_hand(tmp_path: Path, kind: str):
    """The next one gets it, whole."""
    root = tmp_path / "store"
    use_small_entries(root)
    with pulsar.Client(root) as client:
        client.create_producer("jobs", chunking_enabled=True).send(VALUE)
        with Child(receive_one, root, kind) as child:
            assert child.read() == str(len(VALUE))
            child.process.kill()
            child.join()
        assert subscribed(client, kind).receive(5000).data() == VALUE


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
@pytest.mark.parametrize(
    ("point", "is_gone"),
    [("journal:body_done", False), ("journal:word_stored", True), ("subscription:published", True)],
)
def test_killed_while_acknowledging(tmp_path: Path, kind: str, point: str, is_gone: bool):
    """All entries are acknowledged or none: a message never comes back in part."""
    root = tmp_path / "store"
    use_small_entries(root)
    with pulsar.Client(root) as client:
        last = client.create_producer("jobs", chunking_enabled=True).send(VALUE)
        with Child(acknowledge_one, root, kind, point) as child:
            assert child.read() == "received"
            assert child.join() == -signal.SIGKILL
        consumer = subscribed(client, kind)
        if is_gone:
            with pytest.raises(pulsar.Timeout):
                consumer.receive(100)
            assert mark_delete(consumer) == (last.ledger_id(), last.entry_id())
        else:
            assert consumer.receive(5000).data() == VALUE
