"""Messages that fail: sent round once more after a while, and moved out of the way when that does not help.

A kitchen cooks what is ordered. Soup burns at the first attempt. Nobody knows how to cook a shoe, so that
order ends in a topic of its own, where somebody may look at it, and holds nothing up.
"""

from __future__ import annotations

import embeddedpulsar as pulsar

EARLIEST = pulsar.InitialPosition.Earliest


def cook(dish: str, attempt: int) -> bool:
    """Try to cook; whether it went well."""
    return dish == "pasta" or (dish == "soup" and attempt > 1)


def main() -> None:
    text = pulsar.StringSchema()
    # A message goes round twice at most. The subscription "manager" is there before the first dead letter is.
    policy = pulsar.ConsumerDeadLetterPolicy(2, initial_subscription_name="manager")
    with pulsar.Client("memory://") as client:
        kitchen = client.subscribe(
            "orders",
            "kitchen",
            pulsar.ConsumerType.Shared,  # it keeps the delay of a retry, and has room for more cooks
            schema=text,
            initial_position=EARLIEST,
            enable_retry=True,
            dead_letter_policy=policy,
        )
        with client.create_producer("orders", schema=text) as producer:
            for dish in ("soup", "shoe", "pasta"):
                producer.send(dish)

        done = 0
        while done < 3:
            order = kitchen.receive(timeout_millis=10_000)
            attempt = 1 + int(order.properties().get("RECONSUMETIMES", "0"))
            if cook(order.value(), attempt):
                print(order.value(), "served, attempt", attempt)
                kitchen.acknowledge(order)
                done += 1
            else:
                # Stored in the retry topic, and only then acknowledged: a crash loses nothing.
                kitchen.reconsume_later(order, delay_ms=50, properties={"reason": "burnt"})
                done += attempt == 3  # that was the last time

        manager = client.subscribe("orders-kitchen-DLQ", "manager", schema=text)
        letter = manager.receive(timeout_millis=10_000)
        print(letter.value(), "given up:", letter.properties()["reason"])
        print("ordered in", letter.properties()["REAL_TOPIC"])


if __name__ == "__main__":
    main()
