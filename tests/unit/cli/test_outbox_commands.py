"""``embeddedpulsar outbox``."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, MessageId, outbox
from embeddedpulsar.cli.main import main
from embeddedpulsar.testing import assert_clean


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store."""
    Client(tmp_path / "store").close()
    return tmp_path / "store"


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A database with three messages."""
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        for topic in ("a", "a", "b"):
            outbox.send(connection, topic, b"x")
    return f"sqlite:///{tmp_path}/app.db"


def test_status_and_run(call: Any, store: Path, database: str):
    """What waits; it is published once."""
    status, out, _ = call("outbox", "status", database)
    assert status == 0
    assert "3 messages to publish; no relay" in out
    assert call("outbox", "run", "--once", database)[:2] == (0, "3 messages published\n")
    assert call("outbox", "run", "--once", database)[:2] == (0, "0 messages published\n")
    status, out, _ = call("outbox", "status", "--json", database)
    assert (status, json.loads(out)["waiting"], json.loads(out)["topics"]) == (0, 0, [])
    with Client(store) as client, client.create_reader("a", MessageId.earliest) as reader:
        assert [message.data() for message in reader] == [b"x", b"x"]
    assert_clean(store)


def test_the_store_may_be_named_last(store: Path, database: str, capfd: pytest.CaptureFixture[str]):
    """Before the database, as in `outbox run ./data sqlite:///app.db`."""
    assert main(["outbox", "run", "--once", str(store), database]) == 0
    assert capfd.readouterr().out == "3 messages published\n"


def test_a_relay_is_seen(call: Any, store: Path, database: str):
    """And one that runs is not disturbed by a look."""
    with Client(store) as client, outbox.Relay(client, database) as relay:
        while not relay.is_active:
            pass
        assert "served by a relay" in call("outbox", "status", database)[1]
        assert relay.is_active
        status, _, err = call("outbox", "run", "--once", database)
        assert (status, "another relay serves the outbox" in err) == (1, True)


def test_what_is_refused_is_shown(call: Any, store: Path, tmp_path: Path, database: str):
    """With the reason, and the exit status says so."""
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        outbox.send(connection, "none/such/c", b"x")
    status, out, err = call("outbox", "run", "--once", database)
    assert (status, out) == (1, "3 messages published\n")
    assert "none/such" in err
    assert "none/such" in call("outbox", "status", database)[1]


@pytest.mark.parametrize(
    ("places", "text"),
    [
        (["sqlite:///missing.db"], "there is no database missing.db"),
        (["mysql://host/name"], "names no database"),
        (["a", "b", "sqlite:///app.db"], "one store and one database"),
        ([], "DATABASE"),
    ],
)
def test_mistakes(call: Any, places: list[str], text: str):
    """End with one line, and make nothing."""
    status, _, err = call("outbox", "run", *places)
    assert status != 0
    assert text in err
    assert not Path("missing.db").exists()


def test_run_ends_at_sigterm(store: Path, database: str, tmp_path: Path):
    """With what it did."""
    command = [sys.executable, "-m", "embeddedpulsar", "outbox", "run", str(store), database]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with Client(store) as client, client.subscribe("c", "s") as consumer:
        with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
            outbox.send(connection, "c", b"x")
        assert consumer.receive(60_000).data() == b"x"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "4 messages published\n")
