"""Orders in SQLite with messages in the same transactions, and a bill for each, while workers are killed."""

import os
import signal
import sqlite3
import time

import embeddedpulsar as pulsar
from embeddedpulsar import inbox, outbox

ORDERS, KILLS = 300, 10


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect("shop.db", timeout=60)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def work() -> None:
    """Relay the messages of the shop, and write bills, until killed."""
    with pulsar.Client("./data") as client, outbox.Relay(client, "sqlite:///shop.db"):
        shop, shared = connect(), pulsar.ConsumerType.Shared
        consumer = client.subscribe(
            "orders", "billing", shared, initial_position=pulsar.InitialPosition.Earliest
        )
        for message in consumer:
            with inbox.handle(shop, message) as is_new:
                if is_new:  # the bill, its message and the acknowledgement: all, or none
                    shop.execute("INSERT INTO bills VALUES (?)", (message.data().decode(),))
                    outbox.send(shop, "billed", message.data())


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    shop, worker = connect(), 0
    for table in ("orders", "bills"):
        shop.execute(f"CREATE TABLE {table} (what TEXT)")
    for number in range(ORDERS):
        if number % (ORDERS // KILLS) == 0:
            if worker:
                kill(worker)
            worker = os.fork()
            if worker == 0:
                work()
        with shop:  # the order and its message: both, or none
            shop.execute("INSERT INTO orders VALUES (?)", (f"tea {number}",))
            outbox.send(shop, "orders", f"tea {number}".encode())
    bills = "SELECT count(*), count(DISTINCT what) FROM bills"
    while shop.execute(bills).fetchone()[0] < ORDERS or outbox.status(shop).waiting:
        time.sleep(0.05)
    kill(worker)
    with pulsar.Client("./data") as client:
        billed = [message.data() for message in client.create_reader("billed", pulsar.MessageId.earliest)]
    print("bills:", *shop.execute(bills).fetchone(), "messages:", len(billed), len(set(billed)))
