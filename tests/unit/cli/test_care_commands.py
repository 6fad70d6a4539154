"""The commands that take care of a store as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client
from embeddedpulsar.testing.trial_store import assert_clean
from tests.support.damaged_files import flip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store with twenty orders."""
    root = tmp_path / "store"
    with Client(root) as client, Admin(root) as admin:
        admin.topics().create_subscription("orders", "work")
        producer = client.create_producer("orders", "shop")
        for number in range(20):
            producer.send(b"order %d" % number)
    return root


def test_check(call, store: Path):
    """Of the store, or of one topic."""
    assert call("check")[0] == 0
    status, out, _ = call("check", "--topic", "orders", "--json")
    assert status == 0
    assert json.loads(out)["topics"][0]["messages"] == 20
    assert call("check", "--topic", "nothing")[0] == 2


def test_repair(call, store: Path):
    """A dry run says what would be done, a question stands before it, and nothing is lost."""
    assert call("repair") == (0, "There is nothing to repair.\n", "")
    (store / "catalog").unlink()
    (index,) = store.glob("topics/*/*.idx")
    flip(index, 4096 + 20)
    status, out, _ = call("repair", "--dry-run")
    assert status == 1
    assert "catalog\n  write the catalog again" in out
    assert not (store / "catalog").exists()
    assert call("repair", typed=b"n\n")[0] == 1
    assert not (store / "catalog").exists()
    status, out, _ = call("repair", "--yes")
    assert status == 0
    assert "steps done." in out
    assert_clean(store)


def test_repair_beside_a_client(call, store: Path):
    """It is refused in one line."""
    flip(next(store.glob("topics/*/*.idx")), 4096 + 20)
    with Client(store):
        status, _, err = call("repair", "--yes")
    assert status == 1
    assert "is in use; close it in all processes" in err


def test_what_cannot_be_repaired(call, store: Path):
    """It is named, with what to do; the exit status says so."""
    flip(next(store.glob("topics/*/*.log")), 4096 + 100)
    status, out, _ = call("repair", "--yes")
    assert status == 1
    assert "to do: restore the files of the ledger from a backup" in out
    status, out, _ = call("repair", "--yes", "--json")
    assert json.loads(out)["left"][0]["kind"] == "hole"


def test_backup_and_restore(call, store: Path, tmp_path: Path):
    """The second time, what is new; the restored store is whole."""
    target, place = str(tmp_path / "backup"), str(tmp_path / "new")
    status, out, _ = call("backup", target)
    assert status == 0
    assert out.startswith("1 topic, ")
    status, out, _ = call("backup", target, "--topic", "orders", "--json")
    assert json.loads(out)["copied"] < 1000
    status, out, _ = call("restore", target, place)
    assert status == 0
    assert "as of 20" in out
    assert_clean(Path(place))
    status, _, err = call("restore", target, place)
    assert (status, "choose another" in err) == (1, True)
    assert call("restore", target, str(tmp_path / "newer"), "--json")[0] == 0
