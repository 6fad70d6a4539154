"""A cleaner removes FIFOs of living processes: they stay alive for all, and make them again."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar.asyncio import Client as AsyncClient
from tests.multiprocess.children import Child, say
from tests.multiprocess.workers import Worker, send, subscribe
from tests.support.timing import median_within

TYPES = ["Exclusive", "Failover", "Shared", "KeyShared"]
PATIENCE_S = 10


def doorbells(root: Path) -> set[str]:
    """Names of the FIFOs."""
    return set(os.listdir(root / "clients"))


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens soon."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def remove_doorbells(root: Path, names: set[str]) -> None:
    """What a cleaner does."""
    for name in names:
        (root / "clients" / name).unlink()


def attached_ids(client: pulsar.Client) -> list[int]:
    """Of the consumers, without a look whether they live."""
    subscription = client._core.store.use_topic("jobs").topic.subscription("work", create=False)
    subscription.detach_dead()
    consumers = subscription._existing().transact(lambda state: state.consumers.all())
    return [one.consumer_id for one in consumers]


@pytest.mark.linux("locks of open file descriptions")
@pytest.mark.parametrize("kind", TYPES)
def test_a_consumer_without_its_fifo_stays(tmp_path: Path, kind: str):
    """It is there for all who ask, gets its FIFO back under the same name within a second or two, and is
    rung by it."""
    with pulsar.Client(tmp_path) as client:
        own = doorbells(tmp_path)
        with Worker(tmp_path, kind) as worker:
            (name,) = doorbells(tmp_path) - own
            ids = attached_ids(client)
            worker.tell("ack")
            remove_doorbells(tmp_path, {name})
            assert attached_ids(client) == ids
            if kind == "Exclusive":
                with pytest.raises(pulsar.ConsumerBusy):
                    subscribe(client, kind)
            until(lambda: name in doorbells(tmp_path))
            send(client, 0)
            assert worker.got()[:2] == ("0", 0)
            numbers = count(1)

            def send_and_wake() -> float:
                number = next(numbers)
                worker.tell("ack")
                time.sleep(0.15)  # it sleeps by now, for longer than the time that is measured
                begun = time.perf_counter()
                send(client, number)
                data, redelivered, when = worker.got()
                assert (data, redelivered) == (str(number), 0)
                return when - begun

            median_within(0.09, send_and_wake, of=5)  # not by polling
            assert attached_ids(client) == ids
        assert doorbells(tmp_path) - own <= {name}


def test_the_whole_directory_is_removed(tmp_path: Path):
    """It is made again, all who live are in it, and those who come find them."""
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, "Exclusive") as worker:
        names = doorbells(tmp_path)
        ids = attached_ids(client)
        own = subscribe_elsewhere(client)
        worker.tell("ack")
        shutil.rmtree(tmp_path / "clients")
        with Child(try_to_subscribe, tmp_path) as newcomer:
            assert newcomer.read() == "busy"
        own.receive_nowait()
        with pytest.raises(pulsar.Timeout):
            own.receive(1100)
        until(lambda: (tmp_path / "clients").is_dir() and doorbells(tmp_path) >= names)
        assert attached_ids(client) == ids
        send(client, 0)
        assert worker.got()[:2] == ("0", 0)


def subscribe_elsewhere(client: pulsar.Client) -> pulsar.Consumer:
    """A consumer of this process, on a subscription of its own."""
    return client.subscribe("others", "here")


def try_to_subscribe(root: str) -> None:
    """Say whether the subscription is free."""
    with pulsar.Client(root) as client:
        try:
            subscribe(client, "Exclusive")
            say("free")
        except pulsar.ConsumerBusy:
            say("busy")


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_death_is_noticed_all_the_same(tmp_path: Path, is_made_again: bool):
    """Its FIFO was removed, and made again or not, when it is killed: the standby takes over."""
    with pulsar.Client(tmp_path) as client:
        own = doorbells(tmp_path)
        with Worker(tmp_path, "Failover", "active") as active:
            (name,) = doorbells(tmp_path) - own
            send(client, 0)
            assert active.take() == ("0", 0)
            with Worker(tmp_path, "Failover", "standby") as standby:
                standby.tell("take")
                if is_made_again:
                    active.tell("take")
                remove_doorbells(tmp_path, {name})
                if is_made_again:
                    until(lambda: name in doorbells(tmp_path))
                    time.sleep(0.05)
                active.kill()
                assert standby.got()[0] == "0"


def test_those_who_come_while_it_has_no_fifo_notice_its_death(tmp_path: Path):
    """They cannot watch it, and ask now and then."""
    with pulsar.Client(tmp_path) as client:
        own = doorbells(tmp_path)
        with Worker(tmp_path, "Failover", "active") as active:
            remove_doorbells(tmp_path, doorbells(tmp_path) - own)
            send(client, 0)
            with Worker(tmp_path, "Failover", "standby") as standby:
                standby.tell("take")
                time.sleep(0.2)
                active.kill()
                assert standby.got()[0] == "0"


def receive_in_a_loop(root: str) -> None:
    """A consumer of the asyncio client."""

    async def main() -> None:
        client = AsyncClient(root)
        consumer = await client.subscribe("jobs", "work")
        say("attached")
        while True:
            message = await consumer.receive()
            say(message.data().decode())
            await consumer.acknowledge(message)

    asyncio.run(main())


def test_coroutines_that_wait(tmp_path: Path):
    """No thread sleeps on the doorbell: the loop looks after it."""
    with pulsar.Client(tmp_path) as client:
        own = doorbells(tmp_path)
        with Child(receive_in_a_loop, tmp_path) as child:
            assert child.read() == "attached"
            (name,) = doorbells(tmp_path) - own
            remove_doorbells(tmp_path, {name})
            until(lambda: name in doorbells(tmp_path))
            for number in range(3):
                time.sleep(0.15)
                begun = time.perf_counter()
                send(client, number)
                assert child.read() == str(number)
            assert time.perf_counter() - begun < 0.5


@pytest.mark.linux("locks of open file descriptions")
@pytest.mark.parametrize("seed", range(2))
def test_a_storm_of_removals_sweeps_and_kills(tmp_path: Path, seed: int):
    """Cleaners and sweepers at random, and a death now and then: nobody who lives is thrown out, every
    message arrives, and those of the dead come to others."""
    chance = random.Random(seed)
    with pulsar.Client(tmp_path) as client:
        own = doorbells(tmp_path)
        keeper = Worker(tmp_path, "Shared", "keeper", 1)
        (kept,) = doorbells(tmp_path) - own
        with keeper:
            (keeper_id,) = attached_ids(client)
            end, number, got = time.monotonic() + 4, 0, set()
            while time.monotonic() < end:
                with Worker(tmp_path, "Shared", f"w{number}", 1) as other:
                    for _ in range(chance.randrange(1, 6)):
                        for name in doorbells(tmp_path):
                            if chance.random() < 0.5:
                                (tmp_path / "clients" / name).unlink(missing_ok=True)
                        client._core.store.peers.sweep()
                        time.sleep(chance.choice((0.0, 0.01, 0.3)))
                    send(client, number)
                    got.add(chance.choice((keeper, other)).ack()[0])
                    other.kill()
                    other.join()
                assert keeper_id in attached_ids(client)
                number += 1
            assert got == {str(one) for one in range(number)}
            keeper.tell("ack")
            until(lambda: kept in doorbells(tmp_path))
            send(client, "last")
            assert keeper.got()[0] == "last"
