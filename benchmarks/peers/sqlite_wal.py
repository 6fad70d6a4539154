"""sqlite3 by hand, the twenty lines everybody could write: WAL, one table, delete when acknowledged."""

from __future__ import annotations

import itertools
import random
import sqlite3
import time
from pathlib import Path

from benchmarks.actors import Pair, Receiver, Sender
from benchmarks.contest import POWER, READ_ONLY, Contestant

BATCH = 1000
TABLE = "CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY, value BLOB NOT NULL)"
INSERT = "INSERT INTO message (value) VALUES (?)"


def connect(place: Path | str, synchronous: str = "NORMAL") -> sqlite3.Connection:
    """A connection in write-ahead mode; transactions are begun and committed by hand."""
    connection = sqlite3.connect(f"{place}/queue.sqlite", isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(TABLE)
    return connection


class Insert(Contestant):
    """One row, one transaction."""

    key = "sqlite"
    name = "sqlite3 WAL, synchronous=NORMAL"
    synchronous = "NORMAL"

    def __init__(self, size: int) -> None:
        super().__init__()
        self.payload = b"x" * size

    def start(self, place: Path) -> None:
        self.connection = connect(place, self.synchronous)

    def run(self, operations: int) -> float:
        execute, row = self.connection.execute, (self.payload,)
        begun = time.perf_counter()
        for _ in range(operations):
            execute(INSERT, row)
        seconds = time.perf_counter() - begun
        execute("DELETE FROM message")
        return seconds

    def stop(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()


class FlushedInsert(Insert):
    """One row, one transaction, one flush."""

    key = "sqlite-full"
    name = "sqlite3 WAL, synchronous=FULL"
    survives = POWER
    synchronous = "FULL"


class BatchInsert(Insert):
    """A thousand rows to a transaction."""

    key = "sqlite"
    name = f"sqlite3 WAL, {BATCH} rows per transaction"

    def run(self, operations: int) -> float:
        connection, row = self.connection, (self.payload,)
        begun = time.perf_counter()
        for first in range(0, operations, BATCH):
            connection.execute("BEGIN")
            connection.executemany(INSERT, itertools.repeat(row, min(BATCH, operations - first)))
            connection.execute("COMMIT")
        seconds = time.perf_counter() - begun
        connection.execute("DELETE FROM message")
        return seconds


class GroupInsert(Insert):
    """So many rows to a transaction, inserted one by one as they come."""

    def __init__(self, size: int, group: int) -> None:
        super().__init__(size)
        self._group = group
        self.name = f"{self.name}, {group} rows per transaction"

    def run(self, operations: int) -> float:
        execute, row = self.connection.execute, (self.payload,)
        begun = time.perf_counter()
        for first in range(0, operations, self._group):
            execute("BEGIN")
            for _ in range(min(self._group, operations - first)):
                execute(INSERT, row)
            execute("COMMIT")
        seconds = time.perf_counter() - begun
        execute("DELETE FROM message")
        return seconds


class FlushedGroupInsert(GroupInsert):
    """The same, and one flush."""

    key = "sqlite-full"
    name = "sqlite3 WAL, synchronous=FULL"
    survives = POWER
    synchronous = "FULL"


class Moves(Insert):
    """A row is read and deleted and another one inserted, in one transaction."""

    name = "sqlite3 WAL, one row deleted and one inserted per transaction"

    def run(self, operations: int) -> float:
        execute, row = self.connection.execute, (self.payload,)
        execute("BEGIN")
        self.connection.executemany(INSERT, itertools.repeat(row, operations))
        execute("COMMIT")
        begun = time.perf_counter()
        for _ in range(operations):
            execute("BEGIN IMMEDIATE")
            (number,) = execute("SELECT id FROM message ORDER BY id LIMIT 1").fetchone()
            execute("DELETE FROM message WHERE id = ?", (number,))
            execute(INSERT, row)
            execute("COMMIT")
        seconds = time.perf_counter() - begun
        execute("DELETE FROM message")
        return seconds


class OpenLarge(Contestant):
    """Open a file of many rows and read the last one."""

    key = "sqlite"
    name = "sqlite3: connect, read the last row"
    survives = READ_ONLY

    def __init__(self, messages: int) -> None:
        super().__init__()
        self._messages = messages

    def start(self, place: Path) -> None:
        self._place = place
        connection = connect(place)
        connection.execute("BEGIN")
        connection.executemany(INSERT, itertools.repeat((b"x" * 10,), self._messages))
        connection.execute("COMMIT")
        connection.close()

    def run(self, operations: int) -> float:
        begun = time.perf_counter()
        connection = connect(self._place)
        (last,) = connection.execute("SELECT max(id) FROM message").fetchone()
        seconds = time.perf_counter() - begun
        connection.close()
        assert last == self._messages
        return seconds


class RandomDeletes(Insert):
    """Acknowledge one by one in random order: a DELETE by id, a thousand to a transaction."""

    key = "sqlite"
    name = f"sqlite3 DELETE, random order, {BATCH} per transaction, of 100,000"
    operation_limit = 100_000

    def run(self, operations: int) -> float:
        connection = self.connection
        connection.execute("DELETE FROM message")
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO message (id, value) VALUES (?, ?)", ((i, self.payload) for i in range(operations))
        )
        connection.execute("COMMIT")
        ids = list(range(operations))
        random.Random(1).shuffle(ids)
        begun = time.perf_counter()
        for first in range(0, operations, BATCH):
            connection.execute("BEGIN")
            connection.executemany(
                "DELETE FROM message WHERE id = ?", ((i,) for i in ids[first : first + BATCH])
            )
            connection.execute("COMMIT")
        return time.perf_counter() - begun


class TablePair(Pair):
    """One process inserts in batches; another selects and deletes in batches, and polls when it ran dry."""

    key = "sqlite"
    name = "sqlite3 WAL, batches, polling"
    sender = "benchmarks.peers.sqlite_wal:TableSender"
    receiver = "benchmarks.peers.sqlite_wal:TableReceiver"

    def start(self, place: Path) -> None:
        connect(place).close()
        self.open_pair(place=str(place))


class TableSender(Sender):
    def __init__(self, place: str) -> None:
        self._connection = connect(place)

    def send_one(self, payload: bytes) -> None:
        self._connection.execute(INSERT, (payload,))

    def send_many(self, operations: int, payload: bytes) -> None:
        for first in range(0, operations, BATCH):
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(INSERT, itertools.repeat((payload,), min(BATCH, operations - first)))
            self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


class TableReceiver(Receiver):
    def __init__(self, place: str) -> None:
        self._connection = connect(place)

    def receive_many(self, operations: int) -> None:
        left, total = operations, 0
        while left:
            rows = self._connection.execute("SELECT id, value FROM message ORDER BY id LIMIT 1000").fetchall()
            if not rows:
                time.sleep(0.0005)
                continue
            for _message_id, value in rows:
                total += len(value)
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("DELETE FROM message WHERE id = ?", [row[:1] for row in rows])
            self._connection.execute("COMMIT")
            left -= len(rows)

    def close(self) -> None:
        self._connection.close()
