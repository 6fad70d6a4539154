"""Messages in the transactions of the application."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Client,
    InvalidConfiguration,
    InvalidTopicName,
    MessageId,
    NotAllowedError,
    outbox,
)
from embeddedpulsar._engine.platform.timing import SystemClock
from embeddedpulsar.outbox import databases
from embeddedpulsar.schema import (
    AutoConsumeSchema,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    Record,
    String,
    StringSchema,
)


class Order(Record):
    """What is sold."""

    what = String()


def published(client: Client, database: Any, topic: str = "orders", schema: Any = None) -> list[Any]:
    """The messages of a topic, after a relay has published what is committed."""
    relay = outbox.Relay(client, database.url)
    relay.drain()
    assert relay.last_error == ""
    options = {} if schema is None else {"schema": schema}
    with client.create_reader(topic, MessageId.earliest, **options) as reader:
        return list(reader)


def test_a_message_is_committed_with_the_rows(client: Client, database: Any):
    """Both are there, with every option of the message."""
    connection = database.connection
    database.execute("INSERT INTO orders VALUES ('tea')")
    outbox.send(
        connection,
        "orders",
        b"tea",
        key="table-7",
        ordering_key="bar",
        properties={"size": "größe"},
        event_timestamp=1000,
    )
    connection.commit()
    (message,) = published(client, database)
    assert (message.data(), message.partition_key(), message.ordering_key()) == (b"tea", "table-7", "bar")
    assert (message.properties(), message.event_timestamp()) == ({"size": "größe"}, 1000)
    assert database.execute("SELECT what FROM orders") == [("tea",)]
    assert database.ids() == []


def test_a_message_is_rolled_back_with_the_rows(client: Client, database: Any):
    """Neither is there, also after a part of a transaction that was rolled back."""
    connection = database.connection
    database.execute("INSERT INTO orders VALUES ('tea')")
    outbox.send(connection, "orders", b"tea")
    connection.rollback()
    database.execute("INSERT INTO orders VALUES ('cake')")
    database.execute("SAVEPOINT part")
    outbox.send(connection, "orders", b"pie")
    database.execute("ROLLBACK TO SAVEPOINT part")
    outbox.send(connection, "orders", b"cake")
    connection.commit()
    assert [message.data() for message in published(client, database)] == [b"cake"]
    assert database.execute("SELECT what FROM orders") == [("cake",)]


def test_a_database_in_memory_that_another_connection_writes(monkeypatch: pytest.MonkeyPatch):
    """`outbox.transaction` waits for it, as SQLite does for a file."""
    uri = "file:busy?mode=memory&cache=shared"
    with closing(sqlite3.connect(uri, uri=True)) as other, closing(sqlite3.connect(uri, uri=True)) as own:
        outbox.create(own)
        own.commit()
        other.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patch:
            patch.setattr(databases, "_SHARED_CACHE_S", 0.0)
            with pytest.raises(sqlite3.OperationalError, match="locked"), outbox.transaction(own):
                raise AssertionError("it began")
        monkeypatch.setattr(SystemClock, "sleep", lambda clock, seconds: other.commit())
        with outbox.transaction(own):
            outbox.send(own, "orders", b"tea")
        assert own.execute("SELECT value FROM outbox").fetchall() == [(b"tea",)]


def test_null_and_empty_values_differ(client: Client, database: Any):
    """As they do when they are sent."""
    outbox.send(database.connection, "orders", None, key="gone")
    outbox.send(database.connection, "orders", b"", key="empty")
    database.connection.commit()
    first, second = published(client, database)
    assert first.has_null_value()
    assert not second.has_null_value()
    assert second.data() == b""


def test_delayed_messages(client: Client, database: Any):
    """The delay counts from the call; a message without one is not held up."""
    outbox.send(database.connection, "orders", b"later", deliver_after=timedelta(hours=1))
    outbox.send(database.connection, "orders", b"at", deliver_at=1)
    outbox.send(database.connection, "orders", b"now")
    database.connection.commit()
    from embeddedpulsar import ConsumerType, InitialPosition

    with client.subscribe(
        "orders", "kitchen", ConsumerType.Shared, initial_position=InitialPosition.Earliest
    ) as consumer:
        assert len(published(client, database)) == 3
        assert [consumer.receive(10_000).data() for _ in range(2)] == [b"at", b"now"]
        assert consumer.receive_nowait() is None


def test_schemas(client: Client, database: Any):
    """Values are encoded in the transaction, and the topic gets the schema."""
    outbox.send(database.connection, "orders", Order(what="tea"), schema=JsonSchema(Order))
    outbox.send(database.connection, "names", "tea", schema=StringSchema())
    schemas = {
        "pairs": KeyValueSchema(StringSchema(), StringSchema()),
        "apart": KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED),
    }
    for topic, schema in schemas.items():
        outbox.send(database.connection, topic, KeyValue("k", "v"), schema=schema)
    database.connection.commit()
    (order,) = published(client, database, "orders", JsonSchema(Order))
    assert order.value().what == "tea"
    (name,) = published(client, database, "names", StringSchema())
    assert name.value() == "tea"
    for topic, schema in schemas.items():
        (message,) = published(client, database, topic, schema)
        assert message.value() == KeyValue("k", "v")


def test_a_schema_without_a_definition_is_refused(database: Any):
    """One that takes it from a topic."""
    with pytest.raises(InvalidConfiguration, match="takes its definition from a topic"):
        outbox.send(database.connection, "orders", b"x", schema=AutoConsumeSchema())


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"value": "tea"}, TypeError, "encode it, or pass a schema"),
        ({"key": b"k"}, ValueError, "partition_key"),
        ({"properties": {"a": 1}}, TypeError, "properties"),
        ({"event_timestamp": -1}, TypeError, "event_timestamp"),
        ({"schema": StringSchema}, ValueError, "StringSchema"),
        ({"topic": "non-persistent://public/default/orders"}, InvalidTopicName, "lose messages"),
        ({"topic": "orders-partition-3"}, InvalidTopicName, "is a partition"),
        ({"topic": "public/default/__change_events"}, InvalidTopicName, "system topic"),
        ({"table": "out; DROP TABLE orders"}, InvalidConfiguration, "letters, digits"),
    ],
)
def test_wrong_arguments(database: Any, given: dict[str, Any], error: type[Exception], text: str):
    """Are refused before anything is written."""
    arguments = {"topic": "orders", "value": b"tea", **given}
    with pytest.raises(error, match=text):
        outbox.send(database.connection, **arguments)
    assert database.ids() == []


def test_other_connections_are_refused():
    """With what may be passed instead."""
    with pytest.raises(InvalidConfiguration, match="is not a connection of sqlite3 or psycopg"):
        outbox.send(object(), "orders", b"tea")


def test_a_connection_that_commits_each_statement_is_refused(database: Any):
    """Unless a transaction is open."""
    connection = database.open()
    if database.url.startswith("sqlite"):
        connection.isolation_level = None
    else:
        connection.autocommit = True
    with pytest.raises(NotAllowedError, match="commits each statement by itself"):
        outbox.send(connection, "orders", b"tea")
    connection.execute("BEGIN")
    outbox.send(connection, "orders", b"tea")
    connection.execute("COMMIT")
    connection.close()
    assert len(database.ids()) == 1


@pytest.mark.parametrize("level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE", None])
def test_isolation_levels_of_sqlite(tmp_path: Path, client: Client, level: Any):
    """In all of them a transaction of `outbox.transaction` is whole; and in those that begin transactions,
    one of the connection."""
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=level)) as connection:
        with outbox.transaction(connection):
            connection.execute("CREATE TABLE orders (what TEXT)")
            connection.execute("INSERT INTO orders VALUES ('tea')")
            outbox.send(connection, "orders", b"tea")
        with contextlib.suppress(ZeroDivisionError), outbox.transaction(connection):
            connection.execute("INSERT INTO orders VALUES ('cake')")
            outbox.send(connection, "orders", b"cake")
            raise ZeroDivisionError
        if level is not None:
            with connection:
                outbox.send(connection, "orders", b"pie")
        assert not connection.in_transaction
        assert connection.execute("SELECT what FROM orders").fetchall() == [("tea",)]
    relay = outbox.Relay(client, tmp_path / "app.db")
    assert relay.drain() == (1 if level is None else 2)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the attribute came with Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
def test_autocommit_of_sqlite(tmp_path: Path, client: Client, autocommit: bool):
    """As in the older modes."""
    given: Any = {"autocommit": autocommit}
    with closing(sqlite3.connect(tmp_path / "app.db", **given)) as connection:
        if autocommit:
            with pytest.raises(NotAllowedError):
                outbox.send(connection, "orders", b"tea")
            with outbox.transaction(connection):
                outbox.send(connection, "orders", b"tea")
        else:
            outbox.send(connection, "orders", b"tea")
            connection.commit()
            outbox.send(connection, "orders", b"cake")
            connection.rollback()
    assert outbox.Relay(client, tmp_path / "app.db").drain() == 1


def test_the_first_message_makes_the_tables_in_its_transaction(tmp_path: Path):
    """In SQLite; they go with the transaction."""
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.row_factory = sqlite3.Row
        with outbox.transaction(connection):
            outbox.send(connection, "orders", b"tea")
        assert outbox.status(connection).waiting == 1


def test_a_table_of_another_name(client: Client, database: Any):
    """Several outboxes share a database."""
    outbox.create(database.connection, table="letters")
    outbox.send(database.connection, "letters", b"a", table="letters")
    outbox.send(database.connection, "orders", b"b")
    database.connection.commit()
    relay = outbox.Relay(client, database.url, table="letters")
    assert relay.drain() == 1
    names = {outbox.status(database.connection, table=table).producer_name for table in ("outbox", "letters")}
    assert len(names) == 2
    assert len(database.ids()) == 1


def test_a_missing_table_of_postgres(client: Client):
    """The error says what to call, of `send` and of the relay."""
    from tests.unit.outbox.conftest import postgres_database

    database = postgres_database()
    with closing(database.connection):
        with pytest.raises(InvalidConfiguration, match=r"outbox\.create"):
            outbox.send(database.connection, "orders", b"tea")
        with pytest.raises(InvalidConfiguration, match=r"outbox\.create"):
            outbox.Relay(client, database.url).drain()


def test_rows_of_other_programs(client: Client, database: Any):
    """A plain INSERT is enough."""
    database.execute(
        "INSERT INTO outbox (topic, value) VALUES ('persistent://public/default/orders', 'x')"
        if database.url.startswith("sqlite")
        else r"INSERT INTO outbox (topic, value) VALUES ('persistent://public/default/orders', '\x78')"
    )
    database.connection.commit()
    assert [bytes(message.data()) for message in published(client, database)] == [b"x"]


@pytest.mark.parametrize("kind", ["connection", "session", "recipe", "autocommit"])
def test_sqlalchemy(client: Client, database: Any, kind: str):
    """Its connections and sessions, with the recipe for transactions of SQLite, and without transactions."""
    alchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    is_sqlite = database.url.startswith("sqlite")
    options = {"isolation_level": "AUTOCOMMIT"} if kind == "autocommit" else {}
    url = database.url if is_sqlite else database.url.replace("postgresql:", "postgresql+psycopg:")
    engine = alchemy.create_engine(url, **options)
    if kind == "recipe":
        if not is_sqlite:
            pytest.skip("for SQLite")

        @event.listens_for(engine, "connect")
        def leave_alone(connection: Any, _: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN")

    if kind == "autocommit":
        with engine.connect() as connection, pytest.raises(NotAllowedError):
            outbox.send(connection, "orders", b"tea")
        engine.dispose()
        return
    opened: Any = Session(engine) if kind == "session" else engine.connect()
    with opened as connection:
        connection.execute(alchemy.text("INSERT INTO orders VALUES ('tea')"))
        outbox.send(connection, "orders", b"tea", properties={"100%": "?"})
        connection.commit()
        outbox.send(connection, "orders", b"cake")
        connection.rollback()
    relay = outbox.Relay(client, engine)
    assert relay.drain() == 1
    engine.dispose()
