"""What a check of a store says of its transactions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client
from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.frame import FIRST_FRAME_OFFSET
from embeddedpulsar._engine.store.care.store_check import TORN, StoreReport, check_store
from embeddedpulsar.cli import check
from embeddedpulsar.testing import assert_clean


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Of a store; checked afterwards."""
    with Client(tmp_path / "store") as made:
        yield made
    assert_clean(tmp_path / "store")


def send(client: Client, end: str, *topics: str, count: int = 2) -> Any:
    """Messages in one transaction, which ends so; returns it."""
    txn = client.new_transaction()
    for topic in topics:
        with client.create_producer(topic) as producer:
            for number in range(count):
                producer.send(b"%d" % number, txn=txn)
    if end == "prepare":
        txn.prepare("x")
    elif end:
        getattr(txn, end)()
    return txn


def looked_at(root: Path) -> StoreReport:
    """Beside processes that use it."""
    return check_store(root, is_closed=False)


def test_what_is_open_and_what_was_aborted(client: Client, tmp_path: Path, capsys: Any) -> None:
    """They are counted, and are no damage."""
    root = tmp_path / "store"
    with client.create_producer("a") as producer:
        producer.send(b"plain")
    assert not any(looked_at(root).transactions[:5])
    send(client, "commit", "a", "b")
    send(client, "abort", "a", count=3)
    prepared, opened = send(client, "prepare", "b"), send(client, "", "a", "b", count=1)
    found = looked_at(root)
    assert found.is_clean
    assert found.transactions[:5] == (1, 1, 4, 3, 11)
    assert found.json()["transactions"] == {
        "open": 1,
        "prepared": 1,
        "undecided_entries": 4,
        "aborted_entries": 3,
        "entries": 11,
    }
    assert check.main([str(root)]) == check.CLEAN
    assert (
        "  11 entries of transactions: 3 aborted, 4 undecided; 1 open, 1 prepared" in capsys.readouterr().out
    )
    assert check.main([str(root), "--json"]) == check.CLEAN
    assert json.loads(capsys.readouterr().out)["transactions"]["open"] == 1
    prepared.abort()
    opened.commit()


def log_of(root: Path, topic: str) -> Path:
    """The last segment of a topic."""
    (directory,) = root.glob(f"topics/*-{topic}")
    return max(directory.glob(f"*{filenames.LOG_SUFFIX}"))


def lose_last_entry(root: Path, topic: str) -> None:
    """What a power loss may do at a level below flush: the last frame of a topic was not written yet."""
    log = log_of(root, topic)
    data = bytearray(log.read_bytes())
    at = FIRST_FRAME_OFFSET
    while length := int.from_bytes(data[at : at + 4], "little"):
        last, at = at, at + length
    data[last:at] = bytes(at - last)
    log.write_bytes(data)
    (log.parent / filenames.CONTROL).unlink()


@pytest.mark.parametrize("is_recovered", [False, True])
def test_a_commit_of_which_a_part_is_lost(tmp_path: Path, is_recovered: bool, capsys: Any) -> None:
    """It is found by what the COMMIT says, before the topic is opened and after; others are whole."""
    root = tmp_path / "store"
    with Client(root) as client:
        send(client, "commit", "a", "b")
        send(client, "commit", "a", "b", count=3)
        send(client, "commit", "b", count=1)
    assert_clean(root)
    lose_last_entry(root, "a")
    if is_recovered:
        with Client(root) as client, client.create_producer("a") as producer:
            producer.send(b"later")
    found = check_store(root)
    (problem,) = (problem for problem in found.problems if problem.kind == TORN)
    assert problem.text == "1 of 3 entries are missing of the transaction (0,2)"
    assert problem.topic == "persistent://public/default/a" and problem.path == str(log_of_first(root, "a"))
    assert "use the level flush" in problem.remedy
    assert problem in found.damage
    assert check.main([str(root)]) == check.DAMAGED
    assert "torn transaction: 1 of 3 entries are missing" in capsys.readouterr().out


def log_of_first(root: Path, topic: str) -> Path:
    """The segment in which the transactions of a topic begin."""
    (directory,) = root.glob(f"topics/*-{topic}")
    return min(directory.glob(f"*{filenames.LOG_SUFFIX}"))


def test_what_is_trimmed_or_deleted_is_not_torn(client: Client, tmp_path: Path) -> None:
    """Its entries are gone on purpose; and so are those of a topic that was made again."""
    from embeddedpulsar import Admin

    send(client, "commit", "a", "b", "c")
    with Admin(tmp_path / "store") as admin:
        admin.topics().truncate("a")
        admin.topics().delete("b")
        assert looked_at(tmp_path / "store").is_clean
        admin.topics().create_non_partitioned_topic("b")
    assert looked_at(tmp_path / "store").is_clean


def test_a_store_that_lost_its_transactions(tmp_path: Path) -> None:
    """Without the directory all of them count as aborted: that is damage."""
    root = tmp_path / "store"
    with Client(root) as client:
        send(client, "commit", "a")
    shutil.rmtree(root / "txn")
    (problem,) = check_store(root).damage
    assert problem.text == "it is missing: 2 entries of transactions count as aborted"
    assert problem.path == str(root / "txn") and "put back the directory txn" in problem.remedy
