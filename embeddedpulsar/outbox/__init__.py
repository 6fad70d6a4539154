"""Messages in transactions of the application's own database: an outbox to send, an inbox to handle them.

`send` stores a message with the rows of a transaction in SQLite or PostgreSQL, and a `Relay` publishes it
once when that is committed. `inbox.handle` makes the effect of a message and its acknowledgement one
transaction.

Example:
    >>> import sqlite3
    >>> from embeddedpulsar import Client, outbox
    >>> connection = sqlite3.connect("app.db")
    >>> with connection:
    ...     _ = connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
    >>> with Client("./data") as client, client.subscribe("orders", "kitchen") as consumer:
    ...     with outbox.Relay(client, "sqlite:///app.db"):
    ...         with connection:
    ...             _ = connection.execute("INSERT INTO orders (what) VALUES ('tea')")
    ...             outbox.send(connection, "orders", b"tea")
    ...         consumer.receive(10_000).data()
    b'tea'
"""

from embeddedpulsar.outbox import inbox
from embeddedpulsar.outbox.relay import Relay
from embeddedpulsar.outbox.tables import OutboxStatus, WaitingTopic, create, send, status, transaction

__all__ = [
    "OutboxStatus",
    "Relay",
    "WaitingTopic",
    "create",
    "inbox",
    "send",
    "status",
    "transaction",
]
