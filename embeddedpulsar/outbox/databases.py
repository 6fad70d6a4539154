"""The databases that outboxes and inboxes are kept in: what differs between SQLite and PostgreSQL, and
between the connections of sqlite3, psycopg and SQLAlchemy.

No driver is imported here before a connection of it is there.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from embeddedpulsar.exceptions import InvalidConfiguration, NotAllowedError
from embeddedpulsar.outbox.engine import SYSTEM_CLOCK, late_imports
from embeddedpulsar.records import Protocol

Dialect = Literal["sqlite", "postgresql"]
Row = tuple[Any, ...]

_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*")
_MOST_IN_NAME: Final = 40
_KINDS: Final = "a connection of sqlite3 or psycopg (3), or a Connection or Session of SQLAlchemy on such one"
_MARKS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}


def checked_table(table: str) -> str:
    """Return the name of a table, which becomes part of statements.

    Raises:
        InvalidConfiguration: it is not letters, digits and underscores, with a schema before a dot at most.

    Example:
        >>> checked_table("shop.outbox")
        'shop.outbox'
    """
    if not isinstance(table, str) or not _NAME.fullmatch(table) or len(table) > _MOST_IN_NAME:
        raise InvalidConfiguration(
            f"table {table!r}: a name is letters, digits and underscores, {_MOST_IN_NAME} at most, and may "
            "have a schema and a dot before it"
        )
    return table


class Session(Protocol):
    """A connection, as the statements of this package see it. Marks of parameters are ``?``."""

    dialect: Dialect

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement in the transaction of the connection, and return its rows."""

    def change(self, statement: str, parameters: Sequence[Any]) -> int:
        """Run a statement that returns none, and return how many rows it changed."""

    def commits_each(self) -> bool:
        """Whether a statement would be committed by itself: there is no transaction that it joins."""

    def begin(self) -> bool:
        """Begin a transaction, unless one is open. Returns whether this call began it."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...


_SHARED_CACHE_S: Final = 5.0
"""As long as `sqlite3.connect` waits for a file unless told otherwise."""
_LOOK_S: Final = 2e-3


class SqliteSession:
    """A connection of ``sqlite3``, or of a module with the same interface, in any of its modes."""

    dialect: Dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        self._connection: Final = connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # whatever rows the application wants
        try:
            return list(cursor.execute(statement, parameters).fetchall())
        finally:
            cursor.close()

    def change(self, statement: str, parameters: Sequence[Any]) -> int:
        return int(self._connection.execute(statement, parameters).rowcount)

    def commits_each(self) -> bool:
        connection = self._connection
        # `autocommit` is that of Python 3.12: True and False; or -1, with which `isolation_level` decides.
        mode = getattr(connection, "autocommit", -1)
        is_manual = mode is True or (mode == -1 and connection.isolation_level is None)
        return is_manual and not connection.in_transaction

    def begin(self) -> bool:
        if self._connection.in_transaction:
            return False
        # A transaction that reads first and writes then fails if another one wrote between: so this one has
        # the right to write from the beginning.
        until = SYSTEM_CLOCK.monotonic() + _SHARED_CACHE_S
        while True:
            try:
                self.execute("BEGIN IMMEDIATE")
            except Exception as error:
                # One that shares the cache writes. SQLite waits for other files, and not there.
                is_shared = getattr(error, "sqlite_errorname", "") == "SQLITE_LOCKED_SHAREDCACHE"
                if not is_shared or SYSTEM_CLOCK.monotonic() >= until:
                    raise
                SYSTEM_CLOCK.sleep(_LOOK_S)
            else:
                return True

    # As statements: `commit` and `rollback` of the connection do nothing where `autocommit` is True. With
    # False, it begins the next transaction itself.
    def commit(self) -> None:
        if getattr(self._connection, "autocommit", -1) is False:
            self._connection.commit()
        elif self._connection.in_transaction:
            self.execute("COMMIT")

    def rollback(self) -> None:
        if getattr(self._connection, "autocommit", -1) is False:
            self._connection.rollback()
        elif self._connection.in_transaction:
            self.execute("ROLLBACK")


class PsycopgSession:
    """A connection of ``psycopg``, version 3."""

    dialect: Dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        with late_imports():
            from psycopg.rows import tuple_row

        self._connection: Final = connection
        self._rows: Final = tuple_row

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        with self._connection.cursor(row_factory=self._rows) as cursor:
            # Without parameters nothing is replaced in a statement, per cents neither.
            if parameters:
                cursor.execute(statement.replace("?", "%s"), parameters)
            else:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description is not None else []

    def change(self, statement: str, parameters: Sequence[Any]) -> int:
        with self._connection.cursor(row_factory=self._rows) as cursor:
            cursor.execute(statement.replace("?", "%s"), parameters)
            return int(cursor.rowcount)

    def _is_idle(self) -> bool:
        return int(self._connection.info.transaction_status) == 0

    def commits_each(self) -> bool:
        return bool(self._connection.autocommit) and self._is_idle()

    def begin(self) -> bool:
        if not self._is_idle():
            return False
        if self._connection.autocommit:
            self.execute("BEGIN")
        return True

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()


class AlchemySession:
    """A ``Connection`` or a ``Session`` of SQLAlchemy 2, whatever driver it uses."""

    def __init__(self, connection: Any) -> None:
        self._owner: Final = connection
        self._connection: Final = connection.connection() if _is_alchemy_session(connection) else connection
        dialect = self._connection.dialect
        if dialect.name not in ("sqlite", "postgresql") or dialect.paramstyle not in _MARKS:
            raise InvalidConfiguration(
                f"an outbox is in SQLite or PostgreSQL, not in {dialect.name} by {dialect.driver}; "
                f"pass {_KINDS}"
            )
        self.dialect: Dialect = dialect.name
        self._mark: Final = _MARKS[dialect.paramstyle]

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        text = statement.replace("?", self._mark) if parameters else statement
        # A driver replaces per cents only in a statement with parameters, SQLAlchemy's `exec_driver_sql`
        # hands it both as they are.
        result = self._connection.exec_driver_sql(text, tuple(parameters) or None)
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    def change(self, statement: str, parameters: Sequence[Any]) -> int:
        text = statement.replace("?", self._mark)
        return int(self._connection.exec_driver_sql(text, tuple(parameters)).rowcount)

    def commits_each(self) -> bool:
        connection = self._connection
        driver = connection.connection.driver_connection
        if self.dialect == "postgresql":
            return bool(getattr(driver, "autocommit", False))
        if getattr(driver, "isolation_level", "") is not None:
            return False
        # Either the connection commits each statement, or an event of the application begins the transaction.
        if not connection.in_transaction():
            connection.begin()
        return not driver.in_transaction

    def begin(self) -> bool:
        if self._owner.in_transaction():
            return False
        self._owner.begin()
        return True

    def commit(self) -> None:
        self._owner.commit()

    def rollback(self) -> None:
        self._owner.rollback()


def _is_alchemy_session(connection: object) -> bool:
    orm = sys.modules.get("sqlalchemy.orm")
    return orm is not None and isinstance(connection, (orm.Session, orm.scoped_session))


def _is_alchemy(connection: object) -> bool:
    alchemy = sys.modules.get("sqlalchemy")
    return _is_alchemy_session(connection) or (
        alchemy is not None and isinstance(connection, alchemy.Connection)
    )


def _is_psycopg(connection: object) -> bool:
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(connection, psycopg.Connection)


def session_of(connection: Any) -> Session:
    """Return a connection as a `Session`.

    Raises:
        InvalidConfiguration: it is of another library, or another database.

    Example:
        >>> import sqlite3
        >>> session_of(sqlite3.connect(":memory:")).dialect
        'sqlite'
    """
    # By what it is, and for SQLite by what it can do: its driver has relatives.
    if _is_alchemy(connection):
        return AlchemySession(connection)
    if _is_psycopg(connection):
        return PsycopgSession(connection)
    if all(hasattr(connection, name) for name in ("in_transaction", "isolation_level", "total_changes")):
        return SqliteSession(connection)
    kind = type(connection)
    raise InvalidConfiguration(f"a {kind.__module__}.{kind.__qualname__} is not {_KINDS}")


def check_transaction(session: Session) -> None:
    """Refuse a connection that would commit a statement by itself.

    Raises:
        NotAllowedError: it says how to begin a transaction.
    """
    if session.commits_each():
        how = (
            "BEGIN first, or use `with outbox.transaction(connection):`"
            if session.dialect == "sqlite"
            else "use `with connection.transaction():` or a connection without autocommit"
        )
        raise NotAllowedError(
            f"the connection commits each statement by itself, so the message would not be part of a "
            f"transaction with other rows; {how}"
        )


def is_missing_table(error: BaseException) -> bool:
    """Whether a statement failed because its table is not there."""
    state = getattr(error, "sqlstate", None) or getattr(getattr(error, "orig", None), "sqlstate", None)
    return state == "42P01" or "no such table" in str(error)


def has_table(session: Session, table: str) -> bool:
    """Whether a table exists."""
    if session.dialect == "postgresql":
        return session.execute("SELECT to_regclass(?)", (table,))[0][0] is not None
    schema, _, name = table.rpartition(".")
    master = f"{schema}.sqlite_master" if schema else "sqlite_master"
    return bool(session.execute(f"SELECT 1 FROM {master} WHERE type = 'table' AND name = ?", (name,)))


# -- connections of this package ---------------------------------------------------------------------------

Connect = str | os.PathLike[str] | Callable[[], Any] | Any
_LOCK_TIMEOUT_S: Final = 30.0
"""How long a relay waits for other writers of a file of SQLite, before it says so and tries again."""
_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = re.compile(r"postgres(ql)?(\+psycopg)?://")


def opener_of(connect: Connect) -> Callable[[], Any]:
    """Return a function that makes connections of a driver.

    Args:
        connect: ``sqlite:///app.db``, ``sqlite:////srv/app.db``, ``postgresql://user@host/name``; the path of
            a file of SQLite as a path object; an Engine of SQLAlchemy; or a function that returns a new
            connection.

    Raises:
        InvalidConfiguration: it is nothing of that.
    """
    if isinstance(connect, os.PathLike):
        return _sqlite_opener(os.fspath(connect))
    if isinstance(connect, str):
        if connect.startswith(_SQLITE) and len(connect) > len(_SQLITE):
            return _sqlite_opener(connect.removeprefix(_SQLITE))
        if match := _POSTGRES.match(connect):
            return _postgres_opener("postgresql://" + connect[match.end() :])
        raise InvalidConfiguration(
            f"{connect!r} names no database of an outbox: sqlite:///app.db, sqlite:////srv/app.db, or "
            "postgresql://user@host/name"
        )
    if hasattr(connect, "raw_connection"):
        return lambda: _detached(connect)
    if callable(connect):
        return connect
    raise InvalidConfiguration(
        f"connect is a URL, a function that returns a connection, or an Engine of SQLAlchemy, not {connect!r}"
    )


def _sqlite_opener(path: str) -> Callable[[], Any]:
    def connect() -> Any:
        with late_imports():
            import sqlite3

        return sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)

    return connect


def _postgres_opener(url: str) -> Callable[[], Any]:
    def connect() -> Any:
        with late_imports():
            try:
                import psycopg
            except ImportError as error:
                raise ImportError(
                    'an outbox in PostgreSQL needs psycopg: pip install "embeddedpulsar[outbox]"'
                ) from error

        return psycopg.connect(url)

    return connect


def _detached(engine: Any) -> Any:
    """A connection of an Engine's driver, which its pool has forgotten."""
    pooled = engine.raw_connection()
    connection = pooled.driver_connection
    pooled.detach()
    return connection


def own_session(connection: Any) -> Session:
    """Have a connection that was made for this package commit by statements, and return it as a `Session`.

    Raises:
        InvalidConfiguration: it is of another library.
    """
    if _is_alchemy(connection):
        raise InvalidConfiguration("connect returns a connection of a driver; pass the Engine itself instead")
    session = session_of(connection)
    if session.dialect == "postgresql":
        connection.autocommit = True
    elif getattr(connection, "autocommit", -1) != -1:
        connection.autocommit = True
    else:
        connection.isolation_level = None
    return session


@contextlib.contextmanager
def transaction_of(session: Session) -> Any:
    """Begin a transaction; commit it at the end, or roll it back after an exception."""
    session.begin()
    try:
        yield session
        session.commit()
    except BaseException:
        # The error of the statement is what matters, also where the connection is gone.
        with contextlib.suppress(Exception):
            session.rollback()
        raise
