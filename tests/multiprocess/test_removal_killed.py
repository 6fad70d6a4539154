"""Subscriptions end and begin anew under one name, in many processes, some of which are killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar.platform import failpoints
from tests.multiprocess.children import Child, say

EARLIEST = pulsar.InitialPosition.Earliest
NON_DURABLE = pulsar.SubscriptionMode.NonDurable
POINTS = ["removal:marked", "removal:renamed", "removal:half_removed"]


def left(root: Path) -> list[str]:
    """Names of the directories of subscriptions."""
    return [one.name for one in root.glob("topics/*/subscriptions/*")]


def end(root: str, point: str, durable: str) -> None:
    """End a subscription, and die at a step of that."""
    client = pulsar.Client(root)
    mode = pulsar.SubscriptionMode.Durable if durable == "True" else NON_DURABLE
    consumer = client.subscribe("t", "s", initial_position=EARLIEST, subscription_mode=mode)
    consumer.acknowledge(consumer.receive(5000))
    failpoints.set(point, "kill")
    if durable == "True":
        consumer.unsubscribe()
    else:
        consumer.close()


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_ending(tmp_path: Path, point: str, durable: bool):
    """It has ended; the next one of that name begins anew, and nothing is left of either."""
    with pulsar.Client(tmp_path) as client:
        client.create_producer("t").send(b"1")
    for _ in range(2):
        with Child(end, tmp_path, point, durable) as child:
            assert child.join() == -signal.SIGKILL
    with pulsar.Client(tmp_path) as client:
        topic = client._core.store.use_topic("persistent://public/default/t").topic
        assert topic.subscriptions() == []
        mode = pulsar.SubscriptionMode.Durable if durable else NON_DURABLE
        with client.subscribe("t", "s", initial_position=EARLIEST, subscription_mode=mode) as consumer:
            assert consumer.receive(5000).data() == b"1"
            if durable:
                consumer.unsubscribe()
        while topic._subscriptions.clear_away(8):
            pass
        assert left(tmp_path) == []


def take_turns(root: str, rounds: str, mode: str) -> None:
    """Be the only consumer of a subscription, again and again, and end it."""
    token = os.path.join(root, "token")
    done = 0
    with pulsar.Client(root) as client:
        while done < int(rounds):
            try:
                consumer = client.subscribe(
                    "t", "s", initial_position=EARLIEST, subscription_mode=pulsar.SubscriptionMode[mode]
                )
            except (pulsar.ConsumerBusy, pulsar.SubscriptionNotFound):
                continue
            os.close(os.open(token, os.O_CREAT | os.O_EXCL))  # nobody else is attached
            assert consumer.receive(5000).data() == b"1"
            os.unlink(token)
            if mode == "Durable":
                consumer.unsubscribe()
            else:
                consumer.close()
            done += 1
    say("done", done)


@pytest.mark.parametrize("mode", ["Durable", "NonDurable"])
def test_turns(tmp_path: Path, mode: str):
    """Two lives of a subscription never exist at once: an Exclusive consumer is alone, and begins anew."""
    with pulsar.Client(tmp_path) as client:
        client.create_producer("t").send(b"1")
    children = [Child(take_turns, tmp_path, 20, mode) for _ in range(3)]
    for child in children:
        with child:
            assert child.read() == "done 20"
            assert child.join() == 0
    assert left(tmp_path) == []


def share(root: str) -> None:
    """Come and go for ever."""
    client = pulsar.Client(root)
    while True:
        consumer = client.subscribe(
            "t",
            "s",
            pulsar.ConsumerType.Shared,
            initial_position=EARLIEST,
            subscription_mode=NON_DURABLE,
        )
        consumer.receive_nowait()
        consumer.close()
        say("turn")


def test_killed_at_any_time(tmp_path: Path):
    """Whoever is left goes on, and at last nothing is left."""
    with pulsar.Client(tmp_path) as client:
        client.create_producer("t").send(b"1")
    children = [Child(share, tmp_path) for _ in range(3)]
    try:
        for number in range(5):
            victim = children[number % 3]
            for _ in range(3):
                assert victim.read() == "turn"
            time.sleep(0.003 * number)
            victim.kill()
            victim.__exit__(None, None, None)
            children[number % 3] = Child(share, tmp_path)
        for child in children:
            assert child.read() == "turn"
    finally:
        for child in children:
            child.__exit__(None, None, None)
    with pulsar.Client(tmp_path) as client:
        topic = client._core.store.use_topic("persistent://public/default/t").topic
        until = time.monotonic() + 10
        while left(tmp_path) and time.monotonic() < until:
            topic._subscriptions.clear_away(8)  # it passes over what the client's own housekeeping removes
            time.sleep(0.01)
        assert left(tmp_path) == []
