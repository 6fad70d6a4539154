"""Rows of PostgreSQL and messages, both or none: two-phase commit with the server of `DATABASE_URL`.

The label that is stored with the rows decides, as with sqlite3. A server may still commit for a dead client,
so who recovers claims the label: that waits for a session which has it, or bars one that comes later.
"""

from __future__ import annotations

import os
import signal
from multiprocessing import Process

import psycopg

import embeddedpulsar as pulsar

URL = os.environ.get("DATABASE_URL", "")
CLAIM = "INSERT INTO decided VALUES (%s, false) ON CONFLICT DO NOTHING"
DISHES = {"soup": "send", "pasta": "prepare", "stew": "insert", "fish": "decide", "tea": ""}


def recover(client: pulsar.Client, db: psycopg.Connection) -> None:
    """End what is prepared, as the database decided, or decides by the claim."""
    for prepared in client.prepared_transactions():
        db.execute(CLAIM, (prepared.label,))
        row = db.execute("SELECT is_commit FROM decided WHERE label = %s", (prepared.label,)).fetchone()
        transaction = client.resume_transaction(prepared)
        transaction.commit() if row == (True,) else transaction.abort()


def order(dish: str, dies_behind: str) -> None:
    def step(name: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL if name == dies_behind else 0)

    with pulsar.Client("./data") as client, psycopg.connect(URL, autocommit=True) as db:
        recover(client, db)
        txn = client.new_transaction()
        client.create_producer("kitchen").send(dish.encode(), txn=txn)
        step("send")
        txn.prepare(label=str(txn.id))
        step("prepare")
        with db.transaction():  # its end is the decision; UniqueViolation if the label was claimed
            db.execute("INSERT INTO decided VALUES (%s, true)", (str(txn.id),))
            db.execute("INSERT INTO orders VALUES (%s)", (dish,))
            step("insert")
        step("decide")
        txn.commit()


if __name__ == "__main__":
    with psycopg.connect(URL, autocommit=True) as db:
        db.execute("CREATE TABLE orders (dish text)")
        db.execute("CREATE TABLE decided (label text PRIMARY KEY, is_commit boolean)")
        for clerk in [Process(target=order, args=each) for each in DISHES.items()]:
            clerk.start()
            clerk.join()
        print("rows:", *(dish for (dish,) in db.execute("SELECT dish FROM orders")))
    with pulsar.Client("./data") as client:
        reader = client.create_reader("kitchen", pulsar.MessageId.earliest)
        print("messages:", *(reader.read_next(timeout_millis=10_000).data().decode() for _ in range(2)))
