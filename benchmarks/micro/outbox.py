"""An outbox in SQLite: what a message costs in the transaction, and how fast a relay publishes, beside the
loop that applications write for themselves.

python -m benchmarks.micro.outbox [directory]
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from embeddedpulsar import Client, InitialPosition, outbox

ROWS = 50_000
FEW = 2_000
VALUE = b"x" * 100
INSERT = "INSERT INTO orders (what) VALUES ('tea')"


def connect(path: Path) -> sqlite3.Connection:
    """A connection in the mode that the pages recommend."""
    connection = sqlite3.connect(path, timeout=60)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, what TEXT)")
    return connection


def fill(connection: sqlite3.Connection, count: int, each: int, *, keys: bool, sends: bool = True) -> float:
    """Commit rows with messages, so many in a transaction; return the seconds."""
    begun = time.perf_counter()
    for first in range(0, count, each):
        with connection:
            for number in range(first, min(first + each, count)):
                connection.execute(INSERT)
                if sends:
                    outbox.send(connection, "orders", VALUE, key=f"k{number % 100}" if keys else None)
    return time.perf_counter() - begun


class Rate:
    """Rows that were published, by the clock and by the CPU time of this process."""

    def __init__(self) -> None:
        self._begun, self._cpu = time.perf_counter(), time.process_time()

    def show(self, name: str, rows: int) -> None:
        """Print both rates; the second does not depend on what else the machine does."""
        wall, cpu = time.perf_counter() - self._begun, time.process_time() - self._cpu
        print(f"{name:45} {rows / wall:10,.0f} rows/s {rows / cpu:10,.0f} rows per CPU second", flush=True)


def plain_loop(client: Client, path: Path) -> int:
    """Select a row, send it, delete it, commit. A crash behind the send publishes the row twice."""
    count = 0
    with (
        sqlite3.connect(path) as connection,
        client.create_producer("orders", durability="flush") as producer,
    ):
        while row := connection.execute("SELECT id, value FROM outbox ORDER BY id LIMIT 1").fetchone():
            producer.send(row[1])
            with connection:
                connection.execute("DELETE FROM outbox WHERE id = ?", (row[0],))
            count += 1
    return count


def relayed(client: Client, path: Path) -> int:
    """What a relay publishes."""
    return outbox.Relay(client, path).drain()


def measured(name: str, publish: Callable[[Client, Path], int], client: Client, path: Path) -> None:
    """Print the rate of a way to publish what is there."""
    rate = Rate()
    rate.show(name, publish(client, path))


def together(client: Client, path: Path) -> None:
    """A thread commits transactions of ten rows while a relay publishes and a consumer receives."""
    with (
        client.subscribe("orders", "all", initial_position=InitialPosition.Latest) as consumer,
        outbox.Relay(client, path),
    ):
        writer = threading.Thread(target=lambda: fill(connect(path), ROWS, 10, keys=True))
        writer.start()
        for _ in range(ROWS):
            consumer.acknowledge(consumer.receive(60_000))
        writer.join()


def latency(client: Client, path: Path) -> float:
    """The median time from a commit to the message, one at a time, in ms."""
    with client.subscribe("orders", "one") as consumer, outbox.Relay(client, path):
        connection, times = connect(path), []
        for _ in range(200):
            time.sleep(0.02)
            with connection:
                outbox.send(connection, "orders", VALUE)
            begun = time.perf_counter()
            consumer.acknowledge(consumer.receive(60_000))
            times.append(time.perf_counter() - begun)
        return median(times) * 1000


def main(place: str | None) -> None:
    """Measure, and print."""
    folder = Path(tempfile.mkdtemp(prefix="outbox-", dir=place))
    try:
        connection = connect(folder / "app.db")
        outbox.create(connection)
        connection.commit()
        cpu = time.process_time()
        fill(connection, ROWS, 100, keys=False, sends=False)
        bare, cpu = time.process_time() - cpu, time.process_time()
        fill(connection, ROWS, 100, keys=False)
        sent = time.process_time() - cpu
        print(f"{'send, in a transaction of 100':45} {(sent - bare) / ROWS * 1e6:10.1f} us of CPU time")
        path = folder / "app.db"
        with Client(folder / "store") as client:
            measured("relay, rows without keys", relayed, client, path)
            fill(connection, ROWS, 100, keys=True)
            measured("relay, rows with keys", relayed, client, path)
            fill(connection, FEW, 100, keys=False)
            measured("loop of select, send, delete, commit", plain_loop, client, path)
            rate = Rate()
            together(client, path)
            rate.show("writer, relay and consumer in one process", ROWS)
            print(f"{'from the commit to the consumer, median':45} {latency(client, path):10.2f} ms")
        connection.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
