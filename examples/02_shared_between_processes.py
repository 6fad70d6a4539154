"""Three processes share a topic: two that publish, one that consumes. None of them is in charge.

Each opens the directory for itself. Messages of one producer stay in order; those of two interleave.
"""

from __future__ import annotations

import multiprocessing
import os

import embeddedpulsar as pulsar

MESSAGES = 1000
PRODUCERS = 2


def publish(client: pulsar.Client, city: str) -> None:
    """In a process of its own: publish the readings of one city, batch by batch."""
    with client, client.create_producer("readings", batching_enabled=True) as producer:
        for number in range(MESSAGES):
            producer.send_async(str(number).encode(), None, partition_key=city)


def main() -> None:
    with pulsar.Client("./data") as client:
        consumer = client.subscribe("readings", "archive")

        # A client may be passed to another process: it is pickled as its path and options.
        context = multiprocessing.get_context("spawn")
        cities = ("Oslo", "Rome")
        workers = [context.Process(target=publish, args=(client, city)) for city in cities]
        for worker in workers:
            worker.start()

        seen: dict[str, list[int]] = {city: [] for city in cities}
        processes = {os.getpid()}
        for _ in range(MESSAGES * PRODUCERS):
            message = consumer.receive(timeout_millis=60_000)  # sleeps until a producer rings
            seen[message.partition_key()].append(int(message.data()))
            consumer.acknowledge(message)
        for worker in workers:
            worker.join()
            processes.add(worker.pid or 0)

        in_order = all(numbers == list(range(MESSAGES)) for numbers in seen.values())
        print(f"{len(processes)} processes, {sum(map(len, seen.values()))} messages, in order: {in_order}")


if __name__ == "__main__":
    main()
