"""What a relay publishes: each row once, and those of a topic in the order of their transactions."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, InvalidConfiguration, MessageId, NotAllowedError, outbox
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.failpoints import InjectedFailure
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.testing import ManualClock

FEW = 5
"""Rows at a time, so that there are several batches."""


@pytest.fixture(autouse=True)
def unset() -> Iterator[None]:
    """No failpoint stays set."""
    yield
    failpoints.clear()


def send(database: Any, topic: str, *values: int, key: str | None = None) -> None:
    """Commit messages, in one transaction."""
    for value in values:
        outbox.send(database.connection, topic, b"%d" % value, key=key)
    database.connection.commit()


def texts(client: Client, topic: str) -> list[int]:
    """The numbers in a topic, in their order; of all partitions, one after the other."""
    found = []
    for name in client.get_topic_partitions(topic):
        with client.create_reader(name, MessageId.earliest) as reader:
            found += [int(message.data()) for message in reader]
    return found


def drain(client: Client, database: Any, **options: Any) -> outbox.Relay:
    """Publish what is committed."""
    relay = outbox.Relay(client, database.url, max_rows=FEW, **options)
    relay.drain()
    return relay


def test_several_topics_in_one_table(client: Client, database: Any):
    """Each gets its own, in order, however they are mixed."""
    for number in range(0, 30, 3):
        send(database, "a", number)
        send(database, "b", number + 1, number + 2)
    relay = drain(client, database)
    assert texts(client, "a") == list(range(0, 30, 3))
    assert texts(client, "b") == [number for number in range(30) if number % 3]
    assert (relay.published, relay.last_error, database.ids()) == (30, "", [])


def test_partitions_and_keys(client: Client, tmp_path: Path, database: Any):
    """A key has its partition, that of other producers, and its order; messages without one are spread."""
    with Admin(tmp_path / "store") as admin:
        admin.topics().create_partitioned_topic("orders", 3)
    with client.create_producer("orders") as producer:
        places = {key: producer.send(b"-1", partition_key=key).partition() for key in "abcdef"}
    for number in range(60):
        send(database, "orders", number, key="abcdef"[number % 6])
    send(database, "orders", *range(100, 130))
    drain(client, database)
    numbers: dict[int, list[int]] = {}
    for index, name in enumerate(client.get_topic_partitions("orders")):
        with client.create_reader(name, MessageId.earliest) as reader:
            for message in reader:
                if message.partition_key() and message.data() != b"-1":
                    assert places[message.partition_key()] == index
                numbers.setdefault(index, []).append(int(message.data()))
    for found in numbers.values():
        sent = [number for number in found if number >= 0]
        assert sent == sorted(sent)
        assert any(number >= 100 for number in sent)
    assert sorted(chain.from_iterable(numbers.values())) == [-1] * 6 + list(range(60)) + list(range(100, 130))


@pytest.mark.parametrize("is_rest", [True, False])
def test_more_partitions_between_claim_and_publication(
    client: Client, tmp_path: Path, database: Any, is_rest: bool
):
    """Rows that may be published go where they were to go before the topic grew."""
    with Admin(tmp_path / "store") as admin:
        admin.topics().create_partitioned_topic("orders", 2)
        send(database, "orders", *range(10), key="k")
        send(database, "orders", *range(10, 20))
        failpoints.set("outbox:published" if is_rest else "outbox:all_published", "raise", nth=4)
        with contextlib.suppress(InjectedFailure):
            outbox.Relay(client, database.url, max_rows=4).drain()
        assert database.ids()
        failpoints.clear()
        admin.topics().update_partitioned_topic("orders", 5)
    drain(client, database)
    assert sorted(texts(client, "orders")) == list(range(20))


@pytest.mark.parametrize(
    "step", ["outbox:read", "outbox:claimed", "outbox:published", "outbox:all_published"]
)
def test_a_relay_that_fails_at_any_step(client: Client, database: Any, step: str):
    """Whatever it has done, the next one goes on behind it."""
    for number in range(12):
        send(database, "ab"[number % 2], number)
    failpoints.set(step, "raise", nth=2)
    # What fails within the publication of a topic is the error of that topic.
    with contextlib.suppress(InjectedFailure):
        drain(client, database)
    failpoints.clear()
    drain(client, database)
    assert texts(client, "a") == list(range(0, 12, 2))
    assert texts(client, "b") == list(range(1, 12, 2))


def test_a_relay_that_comes_back_after_days(tmp_path: Path, database: Any):
    """What it published is known although names are forgotten after six hours, and although it was consumed
    and trimmed."""
    root = tmp_path / "store"
    with ManualClock() as clock, Client(root) as client, Admin(root) as admin:
        consumer = client.subscribe("orders", "kitchen")
        send(database, "orders", *range(4))
        failpoints.set("outbox:all_published", "raise")
        with pytest.raises(InjectedFailure):
            drain(client, database)
        failpoints.clear()
        for number in range(4):
            message = consumer.receive()
            assert int(message.data()) == number
            consumer.acknowledge(message)
        consumer.close()
        clock.advance(3 * 24 * 3600.0)
        with client.create_producer("orders") as producer:
            producer.send(b"100")
        admin.topics().trim_topic("orders")
        clock.advance(3 * 24 * 3600.0)
        assert len(database.ids()) == 4
        drain(client, database)
        send(database, "orders", 4)
        drain(client, database)
        with client.subscribe("orders", "kitchen") as consumer:
            assert [int(consumer.receive().data()) for _ in range(2)] == [100, 4]
            assert consumer.receive_nowait() is None


def test_deduplication_holds_whatever_the_policies_say(client: Client, tmp_path: Path, database: Any):
    """The namespace, and the topic before its first message, have it off."""
    with Admin(tmp_path / "store") as admin:
        admin.namespaces().set_deduplication_status("public/default", False)
        admin.topics().create_non_partitioned_topic("orders")
        admin.topics().set_deduplication_status("orders", False)
        send(database, "orders", *range(4))
        failpoints.set("outbox:all_published", "raise")
        with pytest.raises(InjectedFailure):
            drain(client, database)
        failpoints.clear()
        drain(client, database)
        assert admin.topics().get_stats("orders").deduplication_status == "Enabled"
    assert texts(client, "orders") == list(range(4))


def test_a_row_that_is_refused_holds_its_topic_alone(tmp_path: Path, database: Any):
    """What is before it is published, what is behind it waits, and other topics go on. The reason is
    shown."""
    root = tmp_path / "store"
    root.mkdir()
    (root / "broker.conf").write_text("maxMessageSize=1000\n")
    with Client(root) as client:
        send(database, "a", 0, 1)
        outbox.send(database.connection, "a", b"x" * 2000)
        send(database, "a", 2)
        send(database, "b", *range(20))
        relay = drain(client, database)
        assert "MessageTooBig" in relay.last_error
        assert texts(client, "a") == [0, 1]
        assert texts(client, "b") == list(range(20))
        status = outbox.status(database.connection)
        (topic,) = status.topics
        assert (topic.topic, topic.waiting, "MessageTooBig" in topic.note) == (
            "persistent://public/default/a",
            2,
            True,
        )
        database.connection.commit()
        database.execute("DELETE FROM outbox WHERE id = (SELECT min(id) FROM outbox)")
        database.connection.commit()
        assert drain(client, database).last_error == ""
        assert texts(client, "a") == [0, 1, 2]
        assert outbox.status(database.connection).topics == []


def test_a_topic_that_is_terminated(client: Client, tmp_path: Path, database: Any):
    """Its rows stay."""
    client.create_producer("a").close()
    with Admin(tmp_path / "store") as admin:
        admin.topics().terminate_topic("a")
    send(database, "a", 1)
    assert "terminated" in drain(client, database).last_error
    assert len(database.ids()) == 1


def test_a_topic_that_is_deleted_and_made_again(client: Client, tmp_path: Path, database: Any):
    """Its new life gets what is left, and what comes."""
    send(database, "a", *range(4))
    drain(client, database)
    send(database, "a", *range(4, 8))
    failpoints.set("outbox:claimed", "raise")
    with pytest.raises(InjectedFailure):
        drain(client, database)
    failpoints.clear()
    with Admin(tmp_path / "store") as admin:
        admin.topics().delete("a", force=True)
    send(database, "a", 8)
    drain(client, database)
    assert texts(client, "a") == [4, 5, 6, 7, 8]


def test_a_database_that_has_forgotten_commits(client: Client, tmp_path: Path):
    """A power loss, or a backup that is put back: ids are given a second time, and no new row is lost."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        for number in range(3):
            with connection:
                outbox.send(connection, "orders", b"%d" % number)
    shutil.copy(path, tmp_path / "backup.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        outbox.send(connection, "orders", b"3")
        outbox.send(connection, "others", b"3")
    outbox.Relay(client, path).drain()
    shutil.copy(tmp_path / "backup.db", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for number in range(10, 14):
            outbox.send(connection, "orders", b"%d" % number)
        outbox.send(connection, "others", b"10")
    outbox.Relay(client, path).drain()
    # The rows of the backup that were published behind it are published again: the database does not know.
    assert texts(client, "orders") == [0, 1, 2, 3, 0, 1, 2, 10, 11, 12, 13]
    assert texts(client, "others") == [3, 10]
    with closing(sqlite3.connect(path)) as connection, connection:
        outbox.send(connection, "orders", b"14")
    outbox.Relay(client, path).drain()
    assert texts(client, "orders")[-1] == 14


def test_rows_move_behind_in_postgres(client: Client, database: Any):
    """As in a database that has forgotten commits: what is claimed is put back by hand."""
    send(database, "orders", *range(4))
    drain(client, database)
    database.execute("UPDATE outbox_relay SET claimed = 0 WHERE topic <> ''")
    if database.url.startswith("sqlite"):
        database.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'outbox'")
    else:
        database.execute("SELECT setval(pg_get_serial_sequence('outbox', 'id')::regclass, 1, false)")
    database.connection.commit()
    send(database, "orders", 4, 5)
    drain(client, database)
    send(database, "orders", 6)
    drain(client, database)
    assert texts(client, "orders") == list(range(7))


def test_transactions_that_commit_in_another_order_than_they_began(client: Client):
    """In PostgreSQL, a message of a transaction that commits later comes later, and none is passed over."""
    from tests.unit.outbox.conftest import postgres_database

    database = postgres_database()
    outbox.create(database.connection)
    database.connection.commit()
    first, second, third = database.open(), database.open(), database.open()
    outbox.send(first, "orders", b"2")
    outbox.send(second, "orders", b"1")
    outbox.send(third, "orders", b"0")
    third.commit()
    drain(client, database)
    assert texts(client, "orders") == [0]
    second.commit()
    first.commit()
    drain(client, database)
    assert texts(client, "orders") == [0, 1, 2]
    for connection in (first, second, third, database.connection):
        connection.close()


def test_one_relay_at_a_time(client: Client, tmp_path: Path, database: Any):
    """Another one of the same outbox is refused, or waits; that of another outbox is not."""
    running = outbox.Relay(client, database.url)
    refused: list[str] = []

    def try_another() -> None:
        with pytest.raises(NotAllowedError) as error:
            outbox.Relay(client, database.url).drain()
        refused.append(str(error.value))

    send(database, "orders", 1)
    failpoints.set("outbox:claimed", try_another)
    running.drain()
    assert "another relay serves the outbox" in refused[0]


def test_a_name_that_was_changed_is_refused(client: Client, database: Any):
    """It would be part of a path."""
    database.execute("UPDATE outbox_relay SET note = '../../etc' WHERE topic = ''")
    database.connection.commit()
    with pytest.raises(CorruptionError, match="as the producer of the outbox"):
        outbox.Relay(client, database.url).drain()


@pytest.mark.parametrize("connect", ["app.db", "mysql://host/name", "sqlite:///", 5])
def test_other_databases_are_refused(client: Client, connect: Any):
    """With what may be given instead."""
    with pytest.raises(InvalidConfiguration, match=r"sqlite:///app\.db|Engine"):
        outbox.Relay(client, connect)


@pytest.mark.parametrize("options", [{"max_rows": 0}, {"poll_interval_s": 0}, {"table": "a b"}])
def test_options_out_of_range(client: Client, options: Any):
    """Are refused at once."""
    with pytest.raises(ValueError):
        outbox.Relay(client, "sqlite:///app.db", **options)


def test_a_forked_child_starts_a_relay_of_its_own(tmp_path: Path):
    """The thread of the parent is not there."""
    with Client(tmp_path / "store") as client:
        relay = outbox.Relay(client, tmp_path / "app.db")
        with relay:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    relay.stop()  # of a thread that is not there: nothing to wait for
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
