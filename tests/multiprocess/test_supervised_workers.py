"""A pool of workers that a supervisor starts again, and a job that kills each of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from tests.multiprocess.children import Child

JOBS = 60
POISON = 25
LOG = "log.txt"


def work(root: str, kind: str) -> None:
    """Do jobs until there are none, and write down which were begun and done. The poison ends the process."""
    log = os.open(os.path.join(root, "..", LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    client = pulsar.Client(root)
    consumer = client.subscribe(
        "jobs",
        "work",
        pulsar.ConsumerType[kind],
        initial_position=pulsar.InitialPosition.Earliest,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, initial_subscription_name="undertaker"),
        receiver_queue_size=10,
    )
    while True:
        try:
            message = consumer.receive(1500)
        except pulsar.Timeout:
            break
        number = int(message.data())
        os.write(log, b"begun %d\n" % number)
        if number == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        consumer.acknowledge(message)
        os.write(log, b"done %d\n" % number)
    client.close()


@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
@pytest.mark.parametrize("pool", [1, 2])
def test_only_the_poison_is_buried(tmp_path: Path, kind: str, pool: int):
    """It is delivered three times and becomes a dead letter. Every other job is done once: what was
    acknowledged never comes again, whoever died in between, and is not counted."""
    root = tmp_path / "store"
    with pulsar.Client(root) as client:
        producer = client.create_producer("jobs")
        for number in range(JOBS):
            producer.send(b"%d" % number, partition_key=str(number % 5))
    workers = [Child(work, root, kind) for _ in range(pool)]
    deaths, deadline = 0, time.monotonic() + 60
    while workers and time.monotonic() < deadline:
        for worker in [one for one in workers if one.process.poll() is not None]:
            workers.remove(worker)
            if worker.join() == -signal.SIGKILL:  # the supervisor starts another
                deaths += 1
                workers.append(Child(work, root, kind))
            worker.__exit__(None, None, None)
        time.sleep(0.01)
    for worker in workers:
        worker.__exit__(None, None, None)
    log = (tmp_path / LOG).read_text().splitlines()
    done = sorted(int(line.split()[1]) for line in log if line.startswith("done"))
    begun = sorted(int(line.split()[1]) for line in log if line.startswith("begun"))
    innocent = sorted({*range(JOBS)} - {POISON})
    assert (deaths, done) == (3, innocent)
    assert begun == sorted([*innocent, POISON, POISON, POISON])
    with pulsar.Client(root) as client:
        letters = client.subscribe("jobs-work-DLQ", "undertaker")
        assert letters.receive(5000).data() == b"%d" % POISON
        with pytest.raises(pulsar.Timeout):
            letters.receive(200)
