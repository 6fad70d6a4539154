"""Processes that are stopped for longer than the keep-alive interval, alone or together, and go on."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from tests.multiprocess.workers import Worker, keep_alive, send, subscribe

KINDS = ["Exclusive", "Failover"]


def consumers_of(client: pulsar.Client) -> int:
    """How many are attached."""
    subscription = client._core.store.use_topic("jobs").topic.subscription("work", create=False)
    return len(subscription._existing().transact(lambda state: state.consumers.all()))


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_was_replaced_hands_out_nothing_that_it_had_fetched(tmp_path: Path, kind: str):
    """A hundred messages are fetched, one is taken; its successor acknowledges all. After SIGCONT it gets
    the next one that is sent."""
    keep_alive(tmp_path, 1)
    with pulsar.Client(tmp_path) as client, Worker(tmp_path, kind, "stopped") as stopped:
        producer = client.create_producer("jobs", batching_enabled=True)
        for number in range(100):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        assert stopped.take() == ("0", 0)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        time.sleep(1.2)
        successor = subscribe(client, kind, consumer_name="successor")
        for number in range(100):
            message = successor.receive(10_000)
            assert message.data() == b"%d" % number
            successor.acknowledge(message)
        successor.close()
        os.kill(stopped.process.pid, signal.SIGCONT)
        stopped.tell("take")
        producer.send(b"new")
        assert stopped.got()[0] == "new"


@pytest.mark.parametrize("seed", range(3))
def test_processes_stopped_together_keep_what_they_have(tmp_path: Path, seed: int):
    """Stopped and continued in random orders, for longer than the interval: nobody is taken for dead, and no
    message comes twice."""
    chance = random.Random(seed)
    keep_alive(tmp_path, 2)
    names = [f"w{number}" for number in range(3)]
    with pulsar.Client(tmp_path) as client:
        workers = [Worker(tmp_path, "Shared", name, 1) for name in names]
        try:
            send(client, *range(12))
            got = [worker.take() for worker in workers]
            for _ in range(2):
                for worker in chance.sample(workers, len(workers)):
                    os.kill(worker.process.pid, signal.SIGSTOP)
                time.sleep(2.8)
                for worker in chance.sample(workers, len(workers)):
                    os.kill(worker.process.pid, signal.SIGCONT)
                    time.sleep(chance.choice((0.0, 0.05, 0.2)))
                time.sleep(1.0)
                assert consumers_of(client) == len(workers)
            while len(got) < 12:
                got.append(workers[len(got) % len(workers)].take())
            assert sorted(got) == sorted((str(number), 0) for number in range(12))
        finally:
            for worker in workers:
                worker.__exit__(None, None, None)
