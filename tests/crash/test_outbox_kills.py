"""A relay, or a consumer with an inbox, that is killed at any step: nothing is lost or happens twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, MessageId, outbox
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.outbox import inbox
from embeddedpulsar.testing import assert_clean
from tests.children import die_at
from tests.support.postgres import server

STEPS = [name for name in failpoints.names() if name.startswith("outbox:")]
INBOX_STEPS = [name for name in failpoints.names() if name.startswith("inbox:")]
STORE_STEPS = ["append:body_done", "dedup:remembered", "dedup:switched"]
ROWS = 40
FEW = 7


def opener(kind: str, folder: Path) -> tuple[str, Callable[[], Any]]:
    """The URL of an empty database, and what connects to it."""
    if kind == "sqlite":
        path = folder / "app.db"
        return f"sqlite:///{path}", lambda: sqlite3.connect(path)
    url = server().database()
    import psycopg

    return url, lambda: psycopg.connect(url)


def drain(root: Path, url: str) -> None:
    """Publish everything, as a process of its own does."""
    with Client(root) as client:
        outbox.Relay(client, url, max_rows=FEW).drain()


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("step", [*STEPS, *STORE_STEPS])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_relay_that_is_killed(kind: str, step: str, nth: int, tmp_path: Path):
    """At each step of its batches, and of the store below: the next relay publishes the rest."""
    root = tmp_path / "store"
    url, connect = opener(kind, tmp_path)
    with Admin(root) as admin:
        admin.topics().create_partitioned_topic("b", 2)
    with closing(connect()) as connection:
        outbox.create(connection)
        for number in range(ROWS):
            outbox.send(connection, "a", b"%d" % number, key="k" if number % 3 else None)
            outbox.send(connection, "b", b"%d" % number)
        connection.commit()
    was_killed = die_at(step, lambda: drain(root, url), nth)
    assert was_killed or step in STORE_STEPS  # they may come less often
    drain(root, url)
    with Client(root) as client:
        with client.create_reader("a", MessageId.earliest) as reader:
            assert [int(message.data()) for message in reader] == list(range(ROWS))
        found = []
        for name in client.get_topic_partitions("b"):
            with client.create_reader(name, MessageId.earliest) as reader:
                part = [int(message.data()) for message in reader]
            assert part == sorted(part)
            found += part
        assert sorted(found) == list(range(ROWS))
    with closing(connect()) as connection:
        assert outbox.status(connection).waiting == 0
    assert_clean(root)


def consume(root: Path, connect: Callable[[], Any], first: int) -> None:
    """Handle what is left, as a process of its own does."""
    with Client(root) as client, closing(connect()) as connection:
        consumer = client.subscribe(
            "orders", "billing", ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        while True:
            try:
                message = consumer.receive(300 if first else 1000)
            except TimeoutError:
                break
            with inbox.handle(connection, message) as is_new:
                if is_new:
                    cursor = connection.cursor()
                    cursor.execute(f"INSERT INTO sales VALUES ({int(message.data())})")


@pytest.mark.parametrize("nth", [1, 5])
@pytest.mark.parametrize("step", INBOX_STEPS)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_consumer_that_is_killed(kind: str, step: str, nth: int, tmp_path: Path):
    """At each step of an inbox: each message has its effect once."""
    root = tmp_path / "store"
    _, connect = opener(kind, tmp_path)
    with closing(connect()) as connection:
        inbox.create(connection)
        connection.cursor().execute("CREATE TABLE sales (number INTEGER)")
        connection.commit()
    with Client(root) as client:
        client.create_producer("orders").send_many([b"%d" % number for number in range(10)])
    assert die_at(step, lambda: consume(root, connect, 1), nth)
    consume(root, connect, 0)
    with closing(connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT number FROM sales ORDER BY number")
        assert [number for (number,) in cursor.fetchall()] == list(range(10))
    assert_clean(root)
