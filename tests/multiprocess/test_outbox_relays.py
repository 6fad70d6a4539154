"""Relays that run: what wakes them, and who takes over."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, outbox
from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from embeddedpulsar.policy_values import AutoTopicCreationOverride
from embeddedpulsar.testing import assert_clean
from tests.children import ForkedChild, run_python
from tests.support.postgres import server

NEVER_S = 3600.0
"""How often these relays look by themselves."""
LONG_MS = 30_000

COMMIT = """
import sqlite3, sys
from embeddedpulsar import outbox
connection = sqlite3.connect(sys.argv[1])
with connection:
    outbox.send(connection, "orders", b"from another process")
"""


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end_s = perf_counter() + LONG_MS / 1000
    while not condition():
        assert perf_counter() < end_s
        sleep(0.005)


@pytest.mark.linux("inotify")
@pytest.mark.parametrize("journal", ["wal", "delete", "truncate", "persist"])
def test_a_commit_wakes_the_relay(tmp_path: Path, journal: str):
    """Of this process and of another one, in each mode of SQLite's journal."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection, Client(tmp_path / "store") as client:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        consumer = client.subscribe("orders", "kitchen")
        with outbox.Relay(client, path, poll_interval_s=NEVER_S) as relay:
            until(lambda: relay.is_active)
            for number in range(20):
                with connection:
                    outbox.send(connection, "orders", b"%d" % number)
                assert consumer.receive(LONG_MS).data() == b"%d" % number
            run_python(COMMIT, str(path))
            assert consumer.receive(LONG_MS).data() == b"from another process"
        assert not relay.is_active
    assert_clean(tmp_path / "store")


def test_a_database_in_memory(tmp_path: Path):
    """The kernel tells of no change; `outbox.transaction` does."""
    uri = "file:shop?mode=memory&cache=shared"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True)

    with closing(connect()) as connection, Client(tmp_path / "store") as client:
        consumer = client.subscribe("orders", "kitchen")
        with outbox.Relay(client, connect, poll_interval_s=NEVER_S) as relay:
            until(lambda: relay.is_active)
            for number in range(5):
                with outbox.transaction(connection):
                    outbox.send(connection, "orders", b"%d" % number)
                assert consumer.receive(LONG_MS).data() == b"%d" % number


def test_a_commit_in_postgres_wakes_the_relay(tmp_path: Path):
    """By a notification; also one that came with the answer to a statement of the relay."""
    url = server().database()
    import psycopg

    with closing(psycopg.connect(url)) as connection, Client(tmp_path / "store") as client:
        outbox.create(connection)
        connection.commit()
        consumer = client.subscribe("orders", "kitchen")
        with outbox.Relay(client, url, poll_interval_s=NEVER_S, max_rows=1) as relay:
            until(lambda: relay.is_active)
            for number in range(50):
                outbox.send(connection, "orders", b"%d" % number)
                connection.commit()
                if number % 10 == 9:
                    for before in range(number - 9, number + 1):
                        assert consumer.receive(LONG_MS).data() == b"%d" % before


def test_a_relay_reaches_its_database_again(tmp_path: Path):
    """After the server crashed."""
    url = server().database()
    import psycopg

    with Client(tmp_path / "store") as client:
        with closing(psycopg.connect(url)) as connection:
            outbox.create(connection)
            connection.commit()
        consumer = client.subscribe("orders", "kitchen")
        with outbox.Relay(client, url, poll_interval_s=0.1) as relay:
            until(lambda: relay.is_active)
            server().stop()
            until(lambda: relay.last_error)
            server().start()
            with closing(psycopg.connect(url)) as connection:
                outbox.send(connection, "orders", b"tea")
                connection.commit()
            assert consumer.receive(LONG_MS).data() == b"tea"
            until(lambda: not relay.last_error)


def serve(root: Path, path: Path) -> str:
    """Run a relay in this process; it is never stopped."""
    relay = outbox.Relay(Client(root), path).start()
    until(lambda: relay.is_active)
    return "active"


def stop_outside_of_transactions(pid: int, connection: sqlite3.Connection) -> None:
    """Stop the process where it holds no lock of SQLite, which nobody else could have until it goes on."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        try:
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            os.kill(pid, signal.SIGCONT)
            sleep(0.001)  # it goes on to where it holds none
        else:
            connection.rollback()
            return


def test_another_relay_takes_over(tmp_path: Path):
    """When the process of the first is killed; while it lives, or is stopped, no other publishes."""
    path, root = tmp_path / "app.db", tmp_path / "store"
    child = ForkedChild(lambda: serve(root, path))
    try:
        assert child.ready() == "active"
        with closing(sqlite3.connect(path)) as connection, Client(root) as client:
            consumer = client.subscribe("orders", "kitchen")
            with outbox.Relay(client, path) as relay:
                with connection:
                    outbox.send(connection, "orders", b"0")
                assert consumer.receive(LONG_MS).data() == b"0"
                assert not relay.is_active
                stop_outside_of_transactions(child.pid, connection)
                with connection:
                    outbox.send(connection, "orders", b"1")
                with pytest.raises(TimeoutError):
                    consumer.receive(300)
                child.end()
                assert consumer.receive(LONG_MS).data() == b"1"
                assert relay.is_active
    finally:
        child.end()
    Client(root).close()  # which sweeps out what the dead process left
    assert_clean(root)


def test_a_relay_ends_with_its_client(tmp_path: Path):
    """Without an error in the log."""
    client = Client(tmp_path / "store")
    relay = outbox.Relay(client, tmp_path / "app.db", poll_interval_s=NEVER_S).start()
    until(lambda: relay.is_active)
    client.close()
    thread: Any = relay._thread
    thread.join(LONG_MS / 1000)
    assert thread.is_over
    assert (relay.is_active, relay.last_error) == (False, "")
    relay.stop()


def test_a_relay_tries_a_refused_topic_again(tmp_path: Path):
    """By itself, and goes on when the topic takes the message."""
    root, path = tmp_path / "store", tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection, Client(root) as client, Admin(root) as admin:
        admin.namespaces().create_namespace("public/closed")
        admin.namespaces().set_auto_topic_creation(
            "public/closed", AutoTopicCreationOverride(allow_auto_topic_creation=False)
        )
        with outbox.Relay(client, path, poll_interval_s=NEVER_S) as relay:
            with connection:
                outbox.send(connection, "public/closed/orders", b"tea")
            until(lambda: "orders" in relay.last_error)
            admin.topics().create_non_partitioned_topic("public/closed/orders")
            until(lambda: relay.published == 1)
            until(lambda: not relay.last_error)
