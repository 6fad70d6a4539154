"""Partitions: a topic in several logs, with the messages of one key in one of them, in order.

The producer hashes the key of each message to a partition, and on each partition one of the cooks is active.
So every customer has a cook, and his orders come one after the other; and yet the cooks work side by side.
"""

from __future__ import annotations

import collections
import threading

import embeddedpulsar as pulsar

CUSTOMERS = 24
ORDERS = 50

seen: dict[str, list[tuple[str, int, int]]] = collections.defaultdict(list)
everything = threading.Semaphore(0)


def hire(client: pulsar.Client, cook: str) -> pulsar.Consumer[bytes]:
    """A consumer of all partitions, active on some of them."""

    def handle(consumer: pulsar.Consumer[bytes], message: pulsar.Message[bytes]) -> None:
        order = (cook, message.message_id().partition(), int(message.data()))
        seen[message.partition_key()].append(order)
        consumer.acknowledge(message)
        everything.release()

    return client.subscribe(
        "orders", "kitchen", pulsar.ConsumerType.Failover, consumer_name=cook, message_listener=handle
    )


def main() -> None:
    with pulsar.Admin("./kitchen") as admin:
        admin.topics().create_partitioned_topic("orders", 4)
    with pulsar.Client("./kitchen", message_listener_threads=2) as client:
        cooks = [hire(client, name) for name in ("Ada", "Ben")]
        with client.create_producer("orders", batching_enabled=True) as producer:
            for number in range(ORDERS):
                for customer in range(CUSTOMERS):
                    producer.send_async(b"%d" % number, None, partition_key=f"customer-{customer}")
        assert all(everything.acquire(timeout=60) for _ in range(CUSTOMERS * ORDERS))
        for cook in cooks:
            cook.close()

    for orders in seen.values():
        assert len({(cook, partition) for cook, partition, _ in orders}) == 1  # one cook, one partition
        assert [number for _, _, number in orders] == list(range(ORDERS))  # in order, each once
    partitions = {orders[0][1] for orders in seen.values()}
    cooks_at_work = {orders[0][0] for orders in seen.values()}
    print(f"{len(seen)} customers, {ORDERS} orders of each, in order")
    print(f"on {len(partitions)} partitions, by {len(cooks_at_work)} cooks")


if __name__ == "__main__":
    main()
