"""Read orders, write their invoices and deliveries: all of it counts, or nothing, whoever is killed when.

Each worker dies once, within a transaction. What it sent is never seen, and others get its orders.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from multiprocessing import Process
from pathlib import Path

import embeddedpulsar as pulsar

ORDERS = [b"order %d" % number for number in range(300)]
EARLIEST = pulsar.InitialPosition.Earliest
FIVE = pulsar.ConsumerBatchReceivePolicy(max_num_message=5, max_num_bytes=-1, timeout_ms=3000)


def work(number: int) -> None:
    """Handle orders, five in each transaction, until none comes; die in the seventh, but only once."""
    died = Path(f"died-{number}")
    options = {"initial_position": EARLIEST, "batch_receive_policy": FIVE}
    with pulsar.Client("./data") as client:
        orders = client.subscribe("orders", "workers", pulsar.ConsumerType.Shared, **options)
        invoices, deliveries = client.create_producer("invoices"), client.create_producer("deliveries")
        transactions = 0
        while messages := orders.batch_receive():
            transactions += 1
            with client.transaction() as txn:  # commits at the end, aborts on an exception
                for message in messages:
                    invoices.send(message.data(), txn=txn)
                    if transactions == 7 and not died.exists():
                        died.touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                    deliveries.send(message.data(), txn=txn)
                    orders.acknowledge(message, txn=txn)


def main() -> None:
    with pulsar.Client("./data") as client:
        client.create_producer("orders").send_many(ORDERS, batching_max_messages=1)
        workers = [Process(target=work, args=(number,)) for number in range(3)]
        while workers:
            for call in (Process.start, Process.join):
                for worker in workers:
                    call(worker)
            workers = [
                Process(target=work, args=(number,)) for number, one in enumerate(workers) if one.exitcode
            ]
        print("workers that died:", len(list(Path().glob("died-*"))))
        for topic in ("invoices", "deliveries"):
            with client.create_reader(topic, pulsar.MessageId.earliest) as reader:
                made = Counter(message.data() for message in reader)
            print(topic, len(made), "each once:", made == Counter(ORDERS))


if __name__ == "__main__":
    main()
