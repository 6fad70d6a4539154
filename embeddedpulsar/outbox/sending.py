"""Adding messages to an outbox, in a transaction of the application."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from embeddedpulsar.client.arguments import check_options, with_key
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration, InvalidTopicName
from embeddedpulsar.outbox.databases import (
    SqliteSession,
    check_transaction,
    checked_table,
    is_missing_table,
    session_of,
    transaction_of,
)
from embeddedpulsar.outbox.engine import SYSTEM_CLOCK
from embeddedpulsar.outbox.relay import ring
from embeddedpulsar.outbox.tables import OutboxStatus, create_tables, insert_statement, status_of
from embeddedpulsar.schema import Schema
from embeddedpulsar.topic_name import TopicName, is_system_topic

TABLE: Final = "outbox"
"""The default name of the table of messages."""


def create(connection: Any, *, table: str = TABLE) -> None:
    """Make the tables of an outbox, unless they are there: ``outbox`` and ``outbox_relay``.

    It is done in the transaction of the connection, which the caller commits: neither SQLite nor PostgreSQL
    commits when a table is made. PostgreSQL also gets a function and a trigger, ``outbox_number``. An outbox
    in SQLite needs no call: `send` makes the tables.

    Args:
        connection: of ``sqlite3`` or ``psycopg``, or a Connection or Session of SQLAlchemy on one of them.
        table: another name, for several outboxes in a database: letters, digits and underscores.

    Raises:
        InvalidConfiguration: the connection or the name cannot be used.

    Example:
        >>> import sqlite3
        >>> from embeddedpulsar import outbox
        >>> connection = sqlite3.connect("app.db")
        >>> outbox.create(connection)
        >>> connection.commit()
        >>> outbox.status(connection).waiting
        0
    """
    create_tables(session_of(connection), checked_table(table))


def send(
    connection: Any,
    topic: str,
    value: Any,
    *,
    key: str | None = None,
    ordering_key: str | None = None,
    properties: dict[str, str] | None = None,
    event_timestamp: int | None = None,
    deliver_at: int | None = None,
    deliver_after: timedelta | None = None,
    schema: Schema[Any] | None = None,
    table: str = TABLE,
) -> None:
    """Store a message with the rows of the present transaction. Once committed, it is published by a `Relay`.

    The message is one row of the table: it is committed and rolled back with the other rows of the
    transaction, also by savepoints, and published once. Messages to a topic are published in the order in
    which their transactions are committed, and within a transaction in the order of the calls.

    The connection is used as any statement of the application would use it: nothing is committed. Thread-safe
    as far as the connection is. Costs one ``INSERT``; no store is opened.

    Args:
        connection: of ``sqlite3`` or ``psycopg``, or a Connection or Session of SQLAlchemy on one of them. In
            SQLite the tables are made by the first call.
        topic: a persistent topic, with or without partitions. The relay creates it if necessary.
        value: ``bytes``, or what ``schema`` encodes; None for a null value, which is not ``b""``.
        key: key of the message; it chooses the partition, and the consumer on Key_Shared subscriptions.
        ordering_key: replaces the key there.
        properties: str to str.
        event_timestamp: when the event happened, in ms since 1970.
        deliver_at: earliest delivery on Shared subscriptions, in ms since 1970.
        deliver_after: the same, counted from this call.
        schema: encodes the value now. The producer of the relay has it, so the topic knows it, too.
        table: of `create`.

    Raises:
        NotAllowedError: the connection commits each statement by itself, and no transaction is open.
        InvalidTopicName: the name of no topic, of one partition, or of a non-persistent topic.
        TypeError, ValueError: a wrong type or value.
        InvalidConfiguration: the connection, the table or the schema cannot be used.
        Exception: what the database raises: ``sqlite3.OperationalError``, ``psycopg.Error``.

    Example:
        >>> import sqlite3
        >>> from embeddedpulsar import outbox
        >>> connection = sqlite3.connect("app.db")
        >>> with connection:
        ...     _ = connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
        >>> with connection:  # both, or none
        ...     _ = connection.execute("INSERT INTO orders (what) VALUES ('tea')")
        ...     outbox.send(connection, "orders", b"tea", key="table-7")
        >>> outbox.status(connection).waiting
        1
    """
    row = _encoded(
        topic, value, schema, (properties, key, ordering_key), event_timestamp, deliver_at, deliver_after
    )
    session = session_of(connection)
    check_transaction(session)
    table = checked_table(table)
    try:
        session.execute(insert_statement(table), row)
    except Exception as error:
        if not is_missing_table(error):
            raise
        # PostgreSQL has aborted the transaction by now, and who may insert rows may not create tables.
        if session.dialect == "postgresql":
            raise InvalidConfiguration(
                f"there is no table {table}; call outbox.create(connection) once, with the other migrations, "
                "and commit"
            ) from error
        create_tables(session, table)
        session.execute(insert_statement(table), row)


def _encoded(
    topic: str,
    value: Any,
    schema: Schema[Any] | None,
    texts: tuple[dict[str, str] | None, str | None, str | None],
    event_timestamp: int | None,
    deliver_at: int | None,
    deliver_after: timedelta | None,
) -> tuple[Any, ...]:
    """The columns of a message, checked as `Producer.send` does."""
    full_name = _checked_topic(topic)
    properties, key, ordering_key = texts
    options = check_options(
        value is None,
        properties,
        key,
        ordering_key,
        None,
        None,
        False,
        event_timestamp,
        deliver_at,
        deliver_after,
        SYSTEM_CLOCK.wall_ms,
    )
    info: str | None = None
    if schema is not None and not isinstance(schema, Schema):
        raise ValueError(f"schema is a schema such as StringSchema(), not {schema!r}")
    if schema is not None and schema.schema_info().schema_type() != SchemaType.BYTES:
        info = _description(schema)
        if schema.separates_key:
            value, options = with_key(schema, value, options)
        elif value is not None:
            value = schema.encode(value)
    elif value is not None and not isinstance(value, bytes):
        raise TypeError(f"a value is {type(value).__name__}, not bytes; encode it, or pass a schema")
    properties, key, ordering_key, _, event_timestamp, deliver_at, is_null = options
    return (
        full_name,
        None if is_null else value,
        key,
        ordering_key,
        json.dumps(properties) if properties else None,
        event_timestamp or None,
        deliver_at or None,
        info,
    )


def _checked_topic(topic: str) -> str:
    name = TopicName.parse(topic)
    if not name.is_persistent:
        raise InvalidTopicName(
            f"{topic!r}: an outbox publishes once, and non-persistent topics lose messages"
        )
    if name.partition >= 0:
        raise InvalidTopicName(f"{topic!r} is a partition; name its topic, {name.base!r}, and give a key")
    if is_system_topic(name.full):
        raise InvalidTopicName(f"{topic!r} is a system topic")
    return str(name.full)


def _description(schema: Schema[Any]) -> str:
    """The description of a schema, as text: what the producer of the relay is made with."""
    info = schema.schema_info()
    if info.schema_type() < 0:
        raise InvalidConfiguration(
            f"{schema!r} takes its definition from a topic, which is not asked here; pass the schema itself"
        )
    return json.dumps([int(info.schema_type()), info.name(), info.schema(), info.properties()])


@contextlib.contextmanager
def transaction(connection: Any) -> Iterator[Any]:
    """A transaction of a connection of ``sqlite3``, in any of its modes: with ``isolation_level`` and
    ``autocommit`` of any value.

    It begins with the right to write (``BEGIN IMMEDIATE``), is committed at the end and rolled back after an
    exception. Then relays of this process that serve the file look at once, also where the kernel tells of no
    change: a network file system, a database in memory. Elsewhere ``with connection:`` does as well.

    Raises:
        InvalidConfiguration: the connection is of another database.
        NotAllowedError: a transaction is open.

    Example:
        >>> import sqlite3
        >>> from embeddedpulsar import outbox
        >>> connection = sqlite3.connect("till.db", isolation_level=None)
        >>> with outbox.transaction(connection):
        ...     outbox.send(connection, "orders", b"tea")
        >>> outbox.status(connection).waiting
        1
    """
    session = session_of(connection)
    if not isinstance(session, SqliteSession):
        raise InvalidConfiguration(
            "outbox.transaction is for sqlite3; use `with connection.transaction():` of psycopg, or "
            "`with engine.begin() as connection:` of SQLAlchemy"
        )
    with transaction_of(session):
        yield connection
    ring()


def status(connection: Any, *, table: str = TABLE) -> OutboxStatus:
    """Return what waits in an outbox, by topic. Changes nothing.

    Args:
        connection, table: as for `create`.

    Raises:
        InvalidConfiguration: the connection or the name cannot be used.
        Exception: what the database raises if there is no such table.

    Example:
        >>> import sqlite3
        >>> from embeddedpulsar import outbox
        >>> connection = sqlite3.connect("shop.db")
        >>> with connection:
        ...     outbox.send(connection, "orders", b"tea")
        >>> [(one.topic, one.waiting, one.note) for one in outbox.status(connection).topics]
        [('persistent://public/default/orders', 1, '')]
    """
    return status_of(session_of(connection), checked_table(table))
