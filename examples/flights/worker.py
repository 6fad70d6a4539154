"""The three processes of the demo: one publishes, two hold a subscription each.

Started by run.py as: python worker.py publish|audit|delays DIRECTORY FLIGHTS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dataset
from ledger import Counter, Tally

import embeddedpulsar as pulsar

TOPIC = "flights"


def publish(directory: Path, flights: int) -> None:
    """Publish every flight as JSON, keyed by the number on the tail."""
    client = pulsar.Client(directory / "store")
    producer = client.create_producer(
        TOPIC, batching_enabled=True, block_if_queue_full=True, max_pending_messages=10_000
    )
    counter = Counter(directory / "published")
    row = -1
    for row, flight in enumerate(dataset.flights(flights)):
        content = json.dumps({"row": row} | flight).encode()
        producer.send_async(content, None, partition_key=flight["tailnum"])
        if row % 1000 == 0:
            counter.value = row
    producer.flush()
    counter.value = row + 1
    client.close()


def subscribe(directory: Path, name: str, flights: int) -> None:
    """Receive and acknowledge until every flight was seen; tell the mean delays that were met on the way."""
    client = pulsar.Client(directory / "store")
    consumer = client.subscribe(TOPIC, name, initial_position=pulsar.InitialPosition.Earliest)
    tally, delays = Tally(directory / name, flights), dataset.Delays()
    left = flights - tally.seen()
    (directory / f"{name}.ready").touch()
    while left:
        message = consumer.receive()
        flight = json.loads(message.data())
        # Marked first, acknowledged second: a death between the two brings the flight back, never loses it.
        if tally.mark(flight["row"]):
            left -= 1
            delays.add(flight)
        consumer.acknowledge(message)
    client.close()
    sys.stdout.write(json.dumps(delays.means()))


if __name__ == "__main__":
    role, place, number = sys.argv[1:]
    if role == "publish":
        publish(Path(place), int(number))
    else:
        subscribe(Path(place), role, int(number))
