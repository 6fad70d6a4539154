"""Rates that four processes keep together, whether they live or are killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar.policy_values import DispatchRate, PublishRate, ResourceGroup
from embeddedpulsar.testing.trial_store import assert_clean
from tests.multiprocess.children import Child, say

RATE = 400
SECONDS = 3.0


def publish(root: str) -> None:
    """Publish as much as the rate allows, for ever."""
    with pulsar.Client(root) as client:
        producer = client.create_producer("orders", batching_enabled=False)
        say("attached")
        while True:
            producer.send(b"x")


def publish_async(root: str) -> None:
    """The same by `send_async`, in batches."""
    with pulsar.Client(root) as client:
        producer = client.create_producer(
            "orders", batching_enabled=True, batching_max_messages=10, block_if_queue_full=True
        )
        say("attached")
        while True:
            producer.send_async(b"x", None)


def consume(root: str, kind: str) -> None:
    """Receive as much as the rate allows, and say so every ten messages."""
    with pulsar.Client(root) as client:
        consumer = client.subscribe(
            "orders",
            "kitchen",
            pulsar.ConsumerType[kind],
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=10,
        )
        say("attached")
        while True:
            for _ in range(10):
                consumer.acknowledge(consumer.receive())


def a_second(count: Callable[[], int], seconds: float) -> float:
    """By how much a number changes in a second."""
    begun, before = time.monotonic(), count()
    time.sleep(seconds)
    return abs(count() - before) / (time.monotonic() - begun)


@pytest.mark.parametrize("work", [publish, publish_async])
def test_four_processes_publish_at_the_rate(tmp_path: Path, work):
    """Together within a tenth; the limit holds on after one of them is killed, and those that are left use
    all of it."""
    with pulsar.Admin(tmp_path) as admin, contextlib.ExitStack() as running:
        admin.topics().create_non_partitioned_topic("orders")
        admin.topics().set_publish_rate("orders", PublishRate(RATE))
        children = [running.enter_context(Child(work, tmp_path)) for _ in range(4)]
        for child in children:
            assert child.read() == "attached"
        time.sleep(0.3)  # the tokens of the first second are used

        def published() -> int:
            return admin.topics().get_stats("orders").msg_in_counter

        assert a_second(published, SECONDS) == pytest.approx(RATE, rel=0.1)
        for child in children[:3]:
            child.kill()
        assert a_second(published, SECONDS) == pytest.approx(RATE, rel=0.1)
        admin.topics().remove_publish_rate("orders")
        time.sleep(0.05)
        assert a_second(published, 0.5) > 2 * RATE
    pulsar.Client(tmp_path).close()  # which clears away what the killed processes left
    assert_clean(tmp_path)


@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
def test_four_processes_consume_at_the_rate(tmp_path: Path, kind: str):
    """Of one subscription; the backlog says how much they took."""
    with (
        pulsar.Client(tmp_path) as client,
        pulsar.Admin(tmp_path) as admin,
        contextlib.ExitStack() as running,
    ):
        with client.create_producer("orders", batching_enabled=False) as producer:
            admin.topics().create_subscription("orders", "kitchen")
            for number in range(10 * RATE):
                producer.send(b"x", partition_key=str(number))
        admin.topics().set_subscription_dispatch_rate("orders", DispatchRate(RATE))
        children = [running.enter_context(Child(consume, tmp_path, kind)) for _ in range(4)]
        for child in children:
            assert child.read() == "attached"

        def backlog() -> int:
            return admin.topics().get_stats("orders").subscriptions["kitchen"].msg_backlog

        time.sleep(0.5)
        assert a_second(backlog, SECONDS) == pytest.approx(RATE, rel=0.1)
        admin.topics().remove_subscription_dispatch_rate("orders")
        end = time.monotonic() + 5
        while backlog() and time.monotonic() < end:
            time.sleep(0.05)
        assert backlog() == 0
    pulsar.Client(tmp_path).close()  # which clears away what the killed processes left
    assert_clean(tmp_path)


def publish_bills(root: str) -> None:
    """To another topic."""
    with pulsar.Client(root) as client:
        producer = client.create_producer("bills", batching_enabled=False)
        say("attached")
        while True:
            producer.send(b"x")


def test_processes_of_a_resource_group(tmp_path: Path):
    """Four processes publish to two topics of a group, at its rate together. The rate holds after a process
    is killed, and another one within 50 ms of the change."""
    with pulsar.Admin(tmp_path) as admin, contextlib.ExitStack() as running:
        groups = admin.resource_groups()
        admin.topics().create_non_partitioned_topics(["orders", "bills"])
        groups.create_resource_group("shop", ResourceGroup(RATE))
        admin.namespaces().set_namespace_resource_group("public/default", "shop")
        works = (publish, publish_bills, publish, publish_bills)
        children = [running.enter_context(Child(work, tmp_path)) for work in works]
        for child in children:
            assert child.read() == "attached"
        time.sleep(0.3)  # the tokens of the first second are used

        def published() -> int:
            return sum(admin.topics().get_stats(topic).msg_in_counter for topic in ("orders", "bills"))

        assert a_second(published, 1.5) == pytest.approx(RATE, rel=0.1)
        children[0].kill()
        assert a_second(published, 1.0) == pytest.approx(RATE, rel=0.1)
        groups.update_resource_group("shop", ResourceGroup(3 * RATE))
        time.sleep(0.05)
        assert a_second(published, 1.0) == pytest.approx(3 * RATE, rel=0.15)
        assert published() - 4 <= groups.get_usage("shop").published_messages <= published() + 100
    pulsar.Client(tmp_path).close()  # which clears away what the killed processes left
    assert_clean(tmp_path)
