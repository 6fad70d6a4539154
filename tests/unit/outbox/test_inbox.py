"""A message, its effect in a database and its acknowledgement."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, MessageId
from embeddedpulsar.outbox import inbox


@pytest.fixture(autouse=True)
def table(database: Any) -> None:
    """The table of the inbox."""
    inbox.create(database.connection)
    database.connection.commit()


def rows(database: Any) -> int:
    """How many messages are noted."""
    ((count,),) = database.execute("SELECT count(*) FROM inbox")
    database.connection.commit()
    return int(count)


def sold(database: Any) -> list[str]:
    """The effects."""
    found = [what for (what,) in database.execute("SELECT what FROM orders ORDER BY what")]
    database.connection.commit()
    return found


def handle(database: Any, message: Any, consumer: Any = None) -> bool:
    """Handle a message as an application does."""
    with inbox.handle(database.connection, message, consumer) as is_new:
        if is_new:
            database.execute(f"INSERT INTO orders VALUES ('{message.data().decode()}')")
    return is_new


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_a_message_that_comes_again_has_no_second_effect(
    client: Client, tmp_path: Path, database: Any, kind: ConsumerType
):
    """Because its process died behind the commit. Then it is acknowledged."""
    client.create_producer("orders").send_many([b"a", b"b"], batching_max_messages=2)
    consumer = client.subscribe("orders", "kitchen", kind, initial_position=InitialPosition.Earliest)
    first, second = consumer.receive(), consumer.receive()
    with pytest.raises(RuntimeError, match="before the end"), inbox.handle(database.connection, second):
        raise RuntimeError("before the end")
    assert rows(database) == 0
    # The commit without the acknowledgement: what a death between them leaves.
    core = first._origin.acks().consumer()
    acknowledge, core.acknowledge = core.acknowledge, lambda message: None
    assert handle(database, first)
    core.acknowledge = acknowledge
    consumer.close()
    consumer = client.subscribe("orders", "kitchen", kind)
    assert [handle(database, consumer.receive()) for _ in range(2)] == [False, True]
    assert sold(database) == ["a", "b"]
    consumer.close()
    with Admin(tmp_path / "store") as admin:
        assert admin.topics().get_stats("orders").subscriptions["kitchen"].msg_backlog == 0


def test_subscriptions_are_apart(client: Client, database: Any):
    """A message is new for each of them."""
    consumers = [client.subscribe("orders", name) for name in ("kitchen", "billing")]
    client.create_producer("orders").send(b"a")
    assert all(handle(database, consumer.receive()) for consumer in consumers)


def test_another_message_with_the_id_of_one(client: Client, tmp_path: Path, database: Any):
    """Of another store, or of one that was put back: it is new."""
    with Client(tmp_path / "other") as other:
        found = []
        for one in (client, other):
            consumer = one.subscribe("orders", "kitchen")
            one.create_producer("orders").send(b"a")
            message = consumer.receive()
            found.append(message.message_id())
            assert handle(database, message)
        assert found[0] == found[1]
        # As if the message with this id had been another one, published before the store was put back.
        database.execute("UPDATE inbox SET published = published - 1")
        database.connection.commit()
        assert handle(database, message)


def test_many_in_one_transaction(client: Client, database: Any):
    """New ones are told from those that were handled; all are acknowledged; after an error none is."""
    consumer = client.subscribe("orders", "kitchen", ConsumerType.Shared)
    client.create_producer("orders").send_many([b"%d" % number for number in range(10)])
    messages = [consumer.receive() for _ in range(10)]
    with pytest.raises(RuntimeError), inbox.handle_many(database.connection, messages):
        raise RuntimeError
    assert rows(database) == 0
    with inbox.handle_many(database.connection, messages[:4]) as new:
        assert new == messages[:4]
    with inbox.handle_many(database.connection, messages) as new:
        assert new == messages[4:]
    assert rows(database) == 10
    consumer.close()
    with client.subscribe("orders", "kitchen", ConsumerType.Shared) as consumer:
        assert consumer.receive_nowait() is None


def test_rows_of_acknowledged_messages_are_removed(client: Client, database: Any):
    """The table does not grow."""
    with client.subscribe("orders", "kitchen", ack_receipt_enabled=True) as consumer:
        producer = client.create_producer("orders")
        for number in range(1100):
            producer.send(b"%d" % number)
            message = consumer.receive()
            with inbox.handle(database.connection, message):
                pass
    assert rows(database) < 600


def test_topics_of_a_consumer_of_several(client: Client, database: Any):
    """Each has its own messages, and those with partitions."""
    consumer = client.subscribe(["a", "b"], "kitchen")
    for topic in ("a", "b"):
        client.create_producer(topic).send(topic.encode())
    assert [handle(database, consumer.receive()) for _ in range(2)] == [True, True]
    assert sold(database) == ["a", "b"]
    consumer.close()
    with client.subscribe(["a", "b"], "kitchen") as consumer:
        assert consumer.receive_nowait() is None


def test_a_copy_of_a_message_needs_its_consumer(client: Client, database: Any):
    """One that was pickled, or of a reader."""
    consumer = client.subscribe("orders", "kitchen")
    client.create_producer("orders").send(b"a")
    message = pickle.loads(pickle.dumps(consumer.receive()))
    with pytest.raises(ValueError, match="pass the consumer"):
        handle(database, message)
    assert handle(database, message, consumer)
    with client.create_reader("orders", MessageId.earliest) as reader, pytest.raises(ValueError):
        handle(database, reader.read_next())
    consumer.close()
    with client.subscribe("orders", "kitchen") as consumer:
        assert consumer.receive_nowait() is None


def test_the_first_message_makes_the_table_in_sqlite(client: Client, tmp_path: Path):
    """In its transaction, in each mode of the connection."""
    consumer = client.subscribe("orders", "kitchen")
    producer = client.create_producer("orders")
    for number, level in enumerate(("", None, "IMMEDIATE")):
        with closing(sqlite3.connect(tmp_path / f"{number}.db", isolation_level=level)) as connection:
            producer.send(b"a")
            with inbox.handle(connection, consumer.receive()) as is_new:
                assert is_new
            assert not connection.in_transaction
            assert connection.execute("SELECT count(*) FROM inbox").fetchone() == (1,)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the attribute came with Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
def test_autocommit_of_sqlite(client: Client, tmp_path: Path, autocommit: bool):
    """As in the older modes."""
    consumer = client.subscribe("orders", "kitchen")
    client.create_producer("orders").send_many([b"a", b"b"])
    given: Any = {"autocommit": autocommit}
    with closing(sqlite3.connect(tmp_path / "other.db", **given)) as connection:
        with inbox.handle(connection, consumer.receive()) as is_new:
            assert is_new
        with contextlib.suppress(ZeroDivisionError), inbox.handle(connection, consumer.receive()):
            raise ZeroDivisionError
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        assert connection.execute("SELECT count(*) FROM inbox").fetchone() == (1,)
