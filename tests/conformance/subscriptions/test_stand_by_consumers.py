"""Several consumers while messages come fast: one leads, and nobody waits for it when it stands still."""

from __future__ import annotations

import threading

import pytest

from embeddedpulsar import Client, ConsumerType, Timeout
from tests.support.clients import wait_until

PATIENCE_S = 30.0


class Worker(threading.Thread):
    """A consumer with a client of its own, which stays in a message ``hold`` until it is let go."""

    def __init__(self, store_url, kind):
        super().__init__(daemon=True)
        self.client = Client(store_url)
        self.consumer = self.client.subscribe("topic", "sub", kind)
        self.got = []
        self.is_held = threading.Event()
        self.go_on = threading.Event()
        self.is_over = False

    def run(self):
        while not self.is_over:
            try:
                message = self.consumer.receive(100)
            except Timeout:
                continue
            self.got.append(message.data())
            if message.data() == b"hold":
                self.is_held.set()
                self.go_on.wait(PATIENCE_S)
            self.consumer.acknowledge(message)

    def end(self):
        self.is_over = True
        self.go_on.set()
        self.join(PATIENCE_S)
        self.client.close()


def count(workers):
    return sum(len(worker.got) for worker in workers)


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_messages_behind_one_that_takes_long_go_to_others(store_url, client, kind):
    """Of those that were claimed later; all of them come once."""
    workers = [Worker(store_url, kind) for _ in range(3)]
    try:
        for worker in workers:
            worker.start()
        producer = client.create_producer("topic")
        for number in range(3000):
            producer.send(b"%d" % number, partition_key=str(number % 100))
        producer.send(b"hold", partition_key="hold")
        wait_until(lambda: any(worker.is_held.is_set() for worker in workers))
        (held,) = [worker for worker in workers if worker.is_held.is_set()]
        others = [worker for worker in workers if worker is not held]
        wait_until(lambda: count(workers) == 3001)
        for number in range(100):
            producer.send(b"late %d" % number, partition_key=str(number))
        if kind == ConsumerType.Shared:
            wait_until(lambda: count(others) + len(held.got) == 3101)
        else:  # some keys are those of the one that stands still
            wait_until(lambda: any(one.startswith(b"late") for worker in others for one in worker.got))
        assert held.got[-1] == b"hold"
        held.go_on.set()
        wait_until(lambda: count(workers) == 3101)
        got = [one for worker in workers for one in worker.got]
        assert len(set(got)) == len(got) == 3101
    finally:
        for worker in workers:
            worker.end()
