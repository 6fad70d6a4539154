"""What the tests of outboxes share: a database, and a store that is whole at the end."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, outbox
from embeddedpulsar.testing import assert_clean
from tests.support.postgres import server


class Database:
    """A database, and what the tests ask it.

    Attributes:
        url: that a relay gets.
    """

    def __init__(self, url: str, open: Callable[[], Any]) -> None:
        self.url = url
        self.open = open
        self.connection = open()

    def execute(self, statement: str) -> list[Any]:
        """Run a statement; return its rows."""
        cursor = self.connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []

    def ids(self) -> list[int]:
        """The ids of the rows that wait."""
        found = [row[0] for row in self.execute("SELECT id FROM outbox ORDER BY id")]
        self.connection.commit()
        return found


def sqlite_database(folder: Path) -> Database:
    """A file of SQLite."""
    path = folder / "app.db"
    return Database(f"sqlite:///{path}", lambda: sqlite3.connect(path))


def postgres_database() -> Database:
    """A database of PostgreSQL."""
    url = server().database()
    import psycopg

    return Database(url, lambda: psycopg.connect(url))


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with an outbox and a table of its user."""
    found = sqlite_database(tmp_path) if request.param == "sqlite" else postgres_database()
    found.execute("CREATE TABLE orders (what TEXT)")
    outbox.create(found.connection)
    found.connection.commit()
    yield found
    found.connection.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store that is whole at the end."""
    with Client(tmp_path / "store") as made:
        yield made
    assert_clean(tmp_path / "store")
