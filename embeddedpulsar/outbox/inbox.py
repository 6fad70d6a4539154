"""The inbox of a consumer: what a message does in a database, and that it is handled, are one transaction.

A message that was handled and is delivered again, because the process died before the acknowledgement was
written, is recognized by a row of the table ``inbox``, which was committed with its effect.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from embeddedpulsar.message import Message
from embeddedpulsar.outbox.databases import (
    Session,
    checked_table,
    is_missing_table,
    session_of,
)
from embeddedpulsar.outbox.engine import failpoints
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar.client.consumer.consumer import Consumer

T = TypeVar("T")

TABLE: Final = "inbox"
"""The default name of the table of handled messages."""
_FORGET_EVERY: Final = 500
"""After so many messages of a consumer, the rows of those that are acknowledged are removed."""
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    store TEXT NOT NULL,
    subscription TEXT NOT NULL,
    topic TEXT NOT NULL,
    ledger BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    batch_index BIGINT NOT NULL,
    published BIGINT NOT NULL,
    PRIMARY KEY (store, subscription, topic, ledger, entry, batch_index, published)
)"""

failpoints.declare("inbox:noted", "inbox:committed", "inbox:acknowledged")


class _Origin(NamedTuple):
    """Where a message comes from.

    Attributes:
        store: hexadecimal id of the store.
        subscription: its name.
        core: the consumer of one topic or partition.
    """

    store: str
    subscription: str
    core: Any


_handled: Final[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()
"""How many messages of a consumer were handled since rows were last removed."""


def create(connection: Any, *, table: str = TABLE) -> None:
    """Make the table of an inbox unless it is there, in the transaction of the connection.

    An inbox in SQLite needs no call; in PostgreSQL it is one of the migrations, and the caller commits.

    Args:
        connection: as for `embeddedpulsar.outbox.create`.
        table: another name: letters, digits and underscores.

    Raises:
        InvalidConfiguration: the connection or the name cannot be used.

    Example:
        >>> import sqlite3
        >>> from embeddedpulsar.outbox import inbox
        >>> with sqlite3.connect("app.db") as connection:
        ...     inbox.create(connection)
    """
    _create(session_of(connection), checked_table(table))


def _create(session: Session, table: str) -> None:
    session.execute(_CREATE.format(table=table))


@contextlib.contextmanager
def handle(
    connection: Any, message: Message[Any], consumer: Consumer[Any] | None = None, *, table: str = TABLE
) -> Iterator[bool]:
    """A transaction that handles a message once: its effect, and that it was handled, are committed together.

    At the beginning, the transaction notes the message; the value says whether it is new. The block does what
    is to be done if it is. At the end the transaction is committed, and then the message is acknowledged. An
    exception rolls everything back and leaves the message unacknowledged: it is delivered again when the
    consumer closes, after `negative_acknowledge` or an acknowledgement timeout.

    If the process dies before the commit, nothing happened. If it dies behind it, the message is delivered
    again, is not new, and is acknowledged. Two consumers that have the same message, one of which was taken
    for dead, wait for each other in the database.

    The transaction of the connection is the one of the message: if one is open, it is joined, and committed
    at the end. So it is not to be used within a block of the driver that commits itself
    (``with engine.begin()``, ``with connection.transaction()``).

    Rows of messages at or before the mark-delete position of the subscription are removed, every 500 messages
    of a consumer. After a seek to an earlier position, a message counts as new whose row is gone.

    Args:
        connection: of ``sqlite3`` or ``psycopg``, or a Connection or Session of SQLAlchemy on one of them. In
            SQLite the table is made by the first call.
        message: received by a consumer of this process.
        consumer: that received it. Needed for messages that were pickled, and for interceptors of
            acknowledgements.
        table: of `create`.

    Raises:
        ValueError: the message does not say which consumer received it, and none was given.
        InvalidConfiguration: the connection or the table cannot be used.
        Exception: what the database raises, and what the block raises.

    Example:
        >>> import sqlite3
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.outbox import inbox
        >>> connection = sqlite3.connect("app.db")
        >>> _ = connection.execute("CREATE TABLE sales (what TEXT)")
        >>> with Client("./data") as client, client.subscribe("orders", "billing") as consumer:
        ...     message_id = client.create_producer("orders").send(b"tea")
        ...     message = consumer.receive()
        ...     with inbox.handle(connection, message) as is_new:
        ...         if is_new:
        ...             _ = connection.execute("INSERT INTO sales VALUES (?)", (message.value().decode(),))
        >>> connection.execute("SELECT what FROM sales").fetchall()
        [('tea',)]
    """
    # Of one message, the list of new ones is empty or has it.
    with _handling(connection, (message,), consumer, table) as new:
        yield bool(new)


@contextlib.contextmanager
def handle_many(
    connection: Any,
    messages: Sequence[Message[T]],
    consumer: Consumer[T] | None = None,
    *,
    table: str = TABLE,
) -> Iterator[list[Message[T]]]:
    """`handle` of many messages in one transaction, as of a `Consumer.batch_receive`. The value is the list
    of those that are new.

    Args:
        connection, consumer, table: see `handle`.
        messages: of one consumer, in any order.

    Raises:
        Exception: any exception that `handle` raises; none of the messages is handled then.

    Example:
        >>> import sqlite3
        >>> from embeddedpulsar import Client
        >>> from embeddedpulsar.outbox import inbox
        >>> connection = sqlite3.connect("app.db")
        >>> with Client("./data") as client, client.subscribe("orders", "billing") as consumer:
        ...     sent = client.create_producer("orders").send_many([b"tea", b"cake"])
        ...     messages = [consumer.receive(), consumer.receive()]
        ...     with inbox.handle_many(connection, messages) as new:
        ...         print([message.data() for message in new])
        [b'tea', b'cake']
    """
    with _handling(connection, messages, consumer, table) as new:
        yield new


@contextlib.contextmanager
def _handling(
    connection: Any, messages: Sequence[Message[T]], consumer: Consumer[T] | None, table: str
) -> Iterator[list[Message[T]]]:
    table = checked_table(table)
    session = session_of(connection)
    origins = [_origin_of(message, consumer) for message in messages]
    session.begin()
    # Order: note, effect, commit, acknowledge. Before the commit nothing happened; behind it the message is
    # known, and only the acknowledgement may be missing, which the next delivery makes up for.
    try:
        new = [
            message
            for message, origin in zip(messages, origins, strict=True)
            if _insert_row(session, table, message, origin)
        ]
        if failpoints.ACTIVE:
            failpoints.hit("inbox:noted")
        yield new
        _remove_old_rows(session, table, origins, messages)
        session.commit()
    except BaseException:
        with contextlib.suppress(Exception):  # the connection may be gone; its transaction is, too
            session.rollback()
        raise
    if failpoints.ACTIVE:
        failpoints.hit("inbox:committed")
    for message, origin in zip(messages, origins, strict=True):
        if consumer is not None:
            consumer.acknowledge(message)
        else:
            origin.core.acknowledge(message)
    if failpoints.ACTIVE:
        failpoints.hit("inbox:acknowledged")


def _origin_of(message: Message[Any], consumer: Consumer[Any] | None) -> _Origin:
    acks: Any = getattr(message._origin, "acks", int)()
    core = acks.consumer() if acks else None
    if core is None and consumer is not None:
        core = consumer._core
    if core is None:
        raise ValueError(
            "the message does not say which consumer received it: it is a copy from another process, of a "
            "reader, or its consumer is gone; pass the consumer: inbox.handle(connection, message, consumer)"
        )
    config = core.config
    return _Origin(core.client.store.store_id.hex(), config.subscription_name, core)


def _insert_row(session: Session, table: str, message: Message[Any], origin: _Origin) -> bool:
    """Add the row of a message. Returns whether it was not there."""
    message_id = message.message_id()
    # With the time of its publication: a store that was restored may give an id a second time.
    row = (
        origin.store,
        origin.subscription,
        message.topic_name(),
        message_id.ledger_id(),
        message_id.entry_id(),
        message_id.batch_index(),
        message.publish_timestamp(),
    )
    statement = (
        f"INSERT INTO {table} (store, subscription, topic, ledger, entry, batch_index, published) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    )
    try:
        return session.change(statement, row) > 0
    except Exception as error:
        if session.dialect == "postgresql" or not is_missing_table(error):
            raise
        _create(session, table)
        return session.change(statement, row) > 0


def _remove_old_rows(
    session: Session, table: str, origins: Sequence[_Origin], messages: Sequence[Message[Any]]
) -> None:
    """Now and then, remove the rows of messages that are not delivered again."""
    for origin, message in zip(origins, messages, strict=True):
        core = origin.core
        count = _handled.get(core, 0) + 1
        if count < _FORGET_EVERY or not hasattr(core, "session"):
            _handled[core] = count
            continue
        _handled[core] = 0
        mark = core.session.attachment.mark_delete
        session.execute(
            f"DELETE FROM {table} WHERE store = ? AND subscription = ? AND topic = ? "
            "AND (ledger < ? OR (ledger = ? AND entry <= ?))",
            (
                origin.store,
                origin.subscription,
                message.topic_name(),
                mark.ledger_id,
                mark.ledger_id,
                mark.entry_id,
            ),
        )
