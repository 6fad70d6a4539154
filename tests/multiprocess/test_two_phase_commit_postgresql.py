"""The example of two-phase commit with PostgreSQL, where a server is installed."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, MessageId
from embeddedpulsar.exceptions import InvalidTxnStatusError
from embeddedpulsar.testing import assert_clean
from tests.docs.test_docs import run
from tests.source_tree import ROOT
from tests.support.postgres import server

EXAMPLE = ROOT / "examples" / "17_two_phase_commit_postgresql.py"
LONG_S = 60


def test_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Clerks die behind each step, also with a transaction of the server in the middle."""
    monkeypatch.setenv("DATABASE_URL", server().database())
    done = run(EXAMPLE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["rows: fish tea", "messages: fish tea"]
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 60
    Client(tmp_path / "data").close()  # removes the leases of the clerks that were killed
    assert_clean(tmp_path / "data")


@pytest.fixture
def url() -> str:
    """A database with the table of the labels."""
    url = server().database()
    import psycopg

    with psycopg.connect(url) as db:
        db.execute("CREATE TABLE decided (label text PRIMARY KEY, is_commit boolean)")
    return url


@pytest.fixture
def recover(url: str) -> Any:
    """The function of the example."""
    specification = importlib.util.spec_from_file_location("two_phase_commit_postgresql", EXAMPLE)
    assert specification is not None and specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    return example.recover


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store that is whole at the end."""
    with Client(tmp_path / "store") as client:
        yield client
    assert_clean(tmp_path / "store")


def prepared(client: Client) -> Any:
    """A transaction that is prepared, with a message in it."""
    txn = client.new_transaction()
    client.create_producer("kitchen").send(b"soup", txn=txn)
    txn.prepare(label=str(txn.id))
    return txn


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_session_that_is_not_finished_is_waited_for(
    client: Client, url: str, recover: Any, is_committed: bool
):
    """A server may go on with the commit of a client that is dead: what it decides is what counts."""
    import psycopg

    txn = prepared(client)
    with psycopg.connect(url) as clerk, psycopg.connect(url, autocommit=True) as db:
        clerk.execute("INSERT INTO decided VALUES (%s, true)", (str(txn.id),))
        recovery = threading.Thread(target=recover, args=(client, db))
        recovery.start()
        with psycopg.connect(url, autocommit=True) as looking:
            while not looking.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                assert recovery.is_alive()
        assert client.prepared_transactions()
        clerk.commit() if is_committed else clerk.rollback()
        recovery.join(LONG_S)
    assert not client.prepared_transactions()
    reader = client.create_reader("kitchen", MessageId.earliest)
    assert reader.has_message_available() == is_committed


def test_a_label_that_was_claimed_is_refused(client: Client, url: str, recover: Any):
    """The clerk that was only slow stores nothing."""
    import psycopg

    txn = prepared(client)
    with psycopg.connect(url, autocommit=True) as db:
        recover(client, db)
        with pytest.raises(psycopg.errors.UniqueViolation):
            db.execute("INSERT INTO decided VALUES (%s, true)", (str(txn.id),))
    with pytest.raises(InvalidTxnStatusError):
        txn.commit()
    assert not client.create_reader("kitchen", MessageId.earliest).has_message_available()
