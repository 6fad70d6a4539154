"""Writers, relays and consumers of an outbox killed at any moment: the short form of ``storms outbox``, and
its judge."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client
from tests.children import run_python
from tests.storms.outbox_storm import OutboxStorm
from tests.support.postgres import server

STORM = """
import sys
from tests.storms import commands as storms
sys.exit(storms.main(["--workspace", sys.argv[1], "--quiet", "outbox", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(
    "kills", [12, pytest.param(250, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])]
)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_rows_messages_and_effects_agree(database: str, kills: int, tmp_path: Path):
    """Nothing is lost, nothing is there twice, the order is kept."""
    if database == "postgresql":
        server()  # skips the test where there is none
    output = run_python(STORM, str(tmp_path), "--kills", str(kills), "--database", database, timeout_s=1400)
    assert "  clean" in output
    assert not list(tmp_path.iterdir())


def test_the_judge(tmp_path: Path):
    """It finds what is missing, there twice, out of order, or had its effect twice."""
    storm = OutboxStorm(str(tmp_path), 1, "sqlite")
    storm.prepare()
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        for number in range(4):
            connection.execute("INSERT INTO sent (writer, number, topic) VALUES (1, ?, 'plain')", (number,))
        connection.executemany("INSERT INTO effects VALUES (1, ?)", [(0,), (1,), (2,), (2,)])
    with Client(tmp_path / "store") as client, Admin(tmp_path / "store"):
        client.create_producer("plain").send_many([b"1 0", b"1 2", b"1 1", b"1 1"])
    storm._judge()
    text = "\n".join(storm.report.problems)
    for expected in (
        "plain: 1 1 is out of order",
        "plain: 1 missing [(1, 3)], 1 too many [(1, 1)]",
        "effects: 1 missing [(1, 3)], 1 too many [(1, 2)]",
    ):
        assert expected in text
