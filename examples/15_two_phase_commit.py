"""Rows of a database and messages, in one transaction of both: two-phase commit with sqlite3.

A transaction is prepared with a label that is stored with the rows, so the commit of the database decides.
Whoever comes after a crash looks which labels are there. The clerk dies behind every step.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from multiprocessing import Process

import embeddedpulsar as pulsar


def recover(client: pulsar.Client, db: sqlite3.Connection) -> None:
    """End what is prepared, as the database decided."""
    for prepared in client.prepared_transactions():
        is_decided = db.execute("SELECT 1 FROM decided WHERE label = ?", (prepared.label,)).fetchone()
        transaction = client.resume_transaction(prepared)
        transaction.commit() if is_decided else transaction.abort()


def order(dish: str, dies_behind: str) -> None:
    """Store a row and send a message, both or none."""

    def step(name: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL if name == dies_behind else 0)

    with pulsar.Client("./data") as client:
        db, kitchen = sqlite3.connect("orders.sqlite"), client.create_producer("kitchen")
        recover(client, db)
        txn = client.new_transaction()
        kitchen.send(dish.encode(), txn=txn)
        step("send")
        txn.prepare(label=str(txn.id))
        step("prepare")
        with db:  # its end is the decision
            db.execute("INSERT INTO orders VALUES (?)", (dish,))
            db.execute("INSERT INTO decided VALUES (?)", (str(txn.id),))
        step("decide")
        txn.commit()


def main() -> None:
    db = sqlite3.connect("orders.sqlite")
    db.executescript("CREATE TABLE orders (dish TEXT); CREATE TABLE decided (label TEXT PRIMARY KEY)")
    for dish, step in (("soup", "send"), ("pasta", "prepare"), ("fish", "decide"), ("tea", "")):
        clerk = Process(target=order, args=(dish, step))
        clerk.start()
        clerk.join()
    print("rows:", *(dish for (dish,) in db.execute("SELECT dish FROM orders")))
    with pulsar.Client("./data") as client:
        reader = client.create_reader("kitchen", pulsar.MessageId.earliest)
        print("messages:", *(reader.read_next(timeout_millis=10_000).data().decode() for _ in range(2)))


if __name__ == "__main__":
    main()
