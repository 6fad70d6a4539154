"""Publish three messages, receive and acknowledge them, and see that the subscription remembers.

Run it in any folder: the topic lives in ./data, and there is nothing to start first.
"""

from __future__ import annotations

import embeddedpulsar as pulsar


def main() -> None:
    with pulsar.Client("./data") as client:
        # A subscription sees what is published after it was made; Earliest begins with what is there already.
        consumer = client.subscribe("orders", "kitchen", initial_position=pulsar.InitialPosition.Earliest)

        with client.create_producer("orders") as producer:
            for dish in ("soup", "pasta", "tea"):
                # send() returns when the message is in the topic: from then on it survives a crash.
                producer.send(dish.encode(), partition_key="table-7", properties={"waiter": "Ada"})

        for _ in range(2):
            message = consumer.receive(timeout_millis=1000)
            print(message.partition_key(), message.properties()["waiter"], message.data().decode())
            consumer.acknowledge(message)  # this one is done; without it the message comes again
        consumer.close()

    # Another client, or another process on another day, goes on where the subscription stopped.
    with pulsar.Client("./data") as client, client.subscribe("orders", "kitchen") as consumer:
        message = consumer.receive(timeout_millis=1000)
        print("and then", message.data().decode())
        consumer.acknowledge(message)


if __name__ == "__main__":
    main()
