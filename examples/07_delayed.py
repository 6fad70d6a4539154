"""Messages for later: they lie in the topic, and come when their time has come, never early.

Delays hold on Shared and Key_Shared subscriptions, and outlive the processes. On others, where order matters
more than time, such a message comes at once.
"""

from __future__ import annotations

import time
from datetime import timedelta

import embeddedpulsar as pulsar


def main() -> None:
    with pulsar.Client("./data") as client:
        kitchen = client.subscribe("reminders", "kitchen", pulsar.ConsumerType.Shared)
        log = client.subscribe("reminders", "log")  # Exclusive
        with client.create_producer("reminders") as producer:
            begun_ms = time.time_ns() // 1_000_000
            producer.send(b"take the cake out", deliver_after=timedelta(milliseconds=400))
            producer.send(b"lower the heat", deliver_at=begun_ms + 200)  # ms since 1970
            producer.send(b"cake is in the oven")

    # Nothing runs now. Whoever opens the store later, in whatever process, finds what is not due yet.
    with pulsar.Client("./data") as client:
        kitchen = client.subscribe("reminders", "kitchen", pulsar.ConsumerType.Shared)
        for due_ms in (0, 200, 400):
            message = kitchen.receive(timeout_millis=10_000)
            now_ms = time.time_ns() // 1_000_000
            assert now_ms - begun_ms >= due_ms
            print(f"from {due_ms:3} ms on: {message.data().decode()}")
            kitchen.acknowledge(message)

        log = client.subscribe("reminders", "log")
        print("log:", ", ".join(log.receive(timeout_millis=1000).data().decode() for _ in range(3)))


if __name__ == "__main__":
    main()
