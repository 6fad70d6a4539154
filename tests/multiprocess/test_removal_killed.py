"""Subscriptions end and begin anew under one name, in many processes, some of which are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.platform import failpoints
from tests.multiprocess.children import Child, say

EARLIEST = pulsar.InitialPosition.Earliest
NON_DURABLE = pulsar.SubscriptionMode.NonDurable
POINTS = ["removal:marked", "removal:renamed", "removal:half_removed"]
JOURNAL_POINTS = ["journal:end_stored", "journal:word_cleared", "journal:older_unlinked", "journal:unlinked"]


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


def begin(root: str, point: str, durable: str) -> None:
    """Make a subscription, and die at a step of that."""
    client = pulsar.Client(root)
    failpoints.set(point, "kill")
    mode = pulsar.SubscriptionMode.Durable if durable == "True" else NON_DURABLE
    client.subscribe("t", "s", initial_position=EARLIEST, subscription_mode=mode)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(
    ("step", "point"),
    [
        (begin, "journal:file_created"),
        (begin, "journal:created"),
        *((end, point) for point in JOURNAL_POINTS),
    ],
)
def test_files_of_one_that_was_killed(
    tmp_path: Path, step: Callable[[str, str, str], None], point: str, durable: bool
):
    """While it began or ended: it does not exist, and housekeeping removes its files without another one of
    that name."""
    with pulsar.Client(tmp_path) as client:
        client.create_producer("t").send(b"1")
    with Child(step, tmp_path, point, str(durable)) as child:
        assert child.join() == -signal.SIGKILL
    assert left(tmp_path)
    with pulsar.Client(tmp_path) as client:
        topic = client._core.store.use_topic("persistent://public/default/t").topic
        assert topic.subscriptions() == []
        while topic._subscriptions.clear_away(8):
            pass
        assert left(tmp_path) == []


@pytest.mark.parametrize("point", ["journal:word_stored", "subscription:published"])
def test_killed_when_it_had_begun(tmp_path: Path, point: str):
    """The process that made it by its first consumer is dead: the subscription stays, the consumer goes."""
    with pulsar.Client(tmp_path) as client:
        client.create_producer("t").send(b"1")
    with Child(begin, tmp_path, point, "True") as child:
        assert child.join() == -signal.SIGKILL
    with pulsar.Client(tmp_path) as client, client.subscribe("t", "s") as consumer:
        assert consumer.receive(5000).data() == b"1"
        topic = client._core.store.use_topic("persistent://public/default/t").topic
        assert topic.subscriptions() == ["s"] and topic.consumers() == [consumer.consumer_name()]


def test_one_that_is_closed_meanwhile_is_passed_over(tmp_path: Path):
    """Its last consumer closes it while housekeeping looks at it."""
    with pulsar.Client(tmp_path) as client:
        client.create_producer("t").send(b"1")
        subscribe = client.subscribe("t", "s", initial_position=EARLIEST, subscription_mode=NON_DURABLE)
        subscriptions = client._core.store.use_topic("persistent://public/default/t").topic._subscriptions
        known = next(iter(subscriptions._opened.values()))
        subscribe.close()
        subscriptions._opened["n-closed"] = known
        (next(tmp_path.glob("topics/*/subscriptions")) / "n-closed").mkdir()
        known.close()
        assert subscriptions.clear_away(8) is False
        del subscriptions._opened["n-closed"]


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
