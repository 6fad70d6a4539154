"""Key_Shared: several consumers at once, and still the orders of each customer one after the other.

Each key belongs to one consumer at a time. When a consumer leaves or comes, keys change hands, but only when
nothing of theirs is unacknowledged.
"""

from __future__ import annotations

import collections
import contextlib
import threading

import embeddedpulsar as pulsar

CUSTOMERS = 24
ORDERS = 20

seen: dict[str, list[int]] = collections.defaultdict(list)
done: set[tuple[str, int]] = set()
everything = threading.Event()


def handle(consumer: pulsar.Consumer[bytes], message: pulsar.Message[bytes]) -> None:
    """Called on the listener's thread, for one message of this consumer at a time."""
    customer, number = message.partition_key(), int(message.data())
    seen[customer].append(number)
    done.add((customer, number))
    if len(done) == CUSTOMERS * ORDERS:
        everything.set()
    with contextlib.suppress(pulsar.AlreadyClosed):  # Cleo left meanwhile: this order comes to another cook
        consumer.acknowledge(message)


def main() -> None:
    with pulsar.Client("memory://", message_listener_threads=4) as client:

        def hire(name: str) -> pulsar.Consumer[bytes]:
            kind = pulsar.ConsumerType.KeyShared
            return client.subscribe("orders", "kitchen", kind, consumer_name=name, message_listener=handle)

        cooks = [hire(name) for name in ("Ada", "Ben", "Cleo")]
        producer = client.create_producer("orders")
        for number in range(ORDERS):
            for customer in range(CUSTOMERS):
                producer.send(str(number).encode(), partition_key=f"customer-{customer}")
            if number == ORDERS // 3:
                cooks.pop().close()  # what Cleo had not acknowledged comes to the others, in order
            if number == ORDERS * 2 // 3:
                cooks.append(hire("Dora"))
        assert everything.wait(timeout=60)

        # An order that Cleo had in hand may have come again: at least once is the promise.
        firsts = {customer: list(dict.fromkeys(numbers)) for customer, numbers in seen.items()}
        in_order = all(numbers == list(range(ORDERS)) for numbers in firsts.values())
        print(f"{len(firsts)} customers, {ORDERS} orders of each, in order: {in_order}")


if __name__ == "__main__":
    main()
