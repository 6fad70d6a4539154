"""The processes of the demo: publishers, two that hold a subscription each, and workers that share one.

Started by run.py as: python worker.py publish|audit|delays|depart|work DIRECTORY FLIGHTS [NUMBER]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import dataset
from handled import HandledLog
from ledger import Counter, Tally

import embeddedpulsar as pulsar

TOPIC = "flights"
DEPARTURES = "departures"
CREW = "crew"
HANDLED = "handled"  # the file the workers append to
LATECOMER = "worker-5.ready"
LANDED = "landed"  # the file that says there are no more flights to come


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


def depart(directory: Path, flights: int) -> None:
    """Publish every flight by itself: a message of a batch would go where the first of the batch goes.

    The last third waits until the worker that comes late is there, lest it find nothing left to do.
    """
    client = pulsar.Client(directory / "store")
    producer = client.create_producer(DEPARTURES, block_if_queue_full=True, max_pending_messages=10_000)
    counter = Counter(directory / "departed")
    for row, flight in enumerate(dataset.flights(flights)):
        content = json.dumps({"row": row} | flight).encode()
        producer.send_async(content, None, partition_key=flight["tailnum"])
        if row % 1000 == 0:
            counter.value = row
        if row == flights * 2 // 3:
            producer.flush()
            while not (directory / LATECOMER).exists():
                time.sleep(0.02)
    producer.flush()
    counter.value = flights
    client.close()


def work(directory: Path, number: int) -> None:
    """Handle what comes to this worker: note it, then acknowledge it, until there is nothing more to come."""
    client = pulsar.Client(directory / "store")
    consumer = client.subscribe(
        DEPARTURES,
        CREW,
        pulsar.ConsumerType.KeyShared,
        consumer_name=f"worker-{number}",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    log = HandledLog(directory / HANDLED)
    (directory / f"worker-{number}.ready").touch()
    while True:
        try:
            message = consumer.receive(timeout_millis=200)
        except pulsar.Timeout:
            if (directory / LANDED).exists():
                break
            continue
        log.note(json.loads(message.data())["row"], number)
        consumer.acknowledge(message)
    client.close()


if __name__ == "__main__":
    role, place, flights = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if role == "publish":
        publish(place, flights)
    elif role == "depart":
        depart(place, flights)
    elif role == "work":
        work(place, int(sys.argv[4]))
    else:
        subscribe(place, role, flights)
