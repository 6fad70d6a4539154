"""A backup that is killed leaves the one before; a restore that is killed leaves nothing in the way."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import embeddedpulsar._engine.store.care.store_backup  # noqa: F401 - declares failpoints
from embeddedpulsar import Admin, Client, InitialPosition
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.testing import assert_clean
from tests.children import die_at

OF_BACKUP = [name for name in failpoints.names() if name.startswith("backup:")]
OF_RESTORE = [name for name in failpoints.names() if name.startswith("restore:")]
TAKEN = "backup:journals_taken"
AFTER = ("backup:manifest_written", "backup:swept")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store with three ledgers and a subscription; checked afterwards."""
    path = tmp_path / "store"
    path.mkdir()
    limits = "managedLedgerMaxSizePerLedgerMbytes=1\nmanagedLedgerMaxEntriesPerLedger=20\n"
    (path / "broker.conf").write_text(limits)
    with Client(path) as client:
        client.subscribe("one", "sub").close()
    send(path, range(50))
    return path


def send(root: Path, numbers: range) -> None:
    """One message for each number."""
    with Client(root) as client:
        producer = client.create_producer("one")
        for number in numbers:
            producer.send(b"%d" % number)


def backup(root: Path, target: Path, point: str = "") -> None:
    """With an Admin of its own, while a transaction commits that acknowledges something."""
    with Admin(root) as admin, Client(root) as client:

        def acknowledge() -> None:
            with client.create_producer("two") as producer, client.transaction() as txn:
                producer.send(b"")
                with client.subscribe("two", "other") as consumer:
                    consumer.acknowledge(consumer.receive(1000), txn=txn)

        if point != TAKEN:
            failpoints.set(TAKEN, acknowledge)
        try:
            client.subscribe("two", "other").close()
            admin.backup(target)
        finally:
            failpoints.clear()


def restored(target: Path, place: Path) -> list[int]:
    """The messages of a backup."""
    Admin.restore(target, place)
    assert_clean(place)
    with Client(place) as client:
        consumer = client.subscribe("one", "sub", initial_position=InitialPosition.Earliest)
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(int(message.data()))
    return found


@pytest.mark.parametrize("point", OF_BACKUP)
def test_a_killed_backup(root: Path, tmp_path: Path, point: str):
    """A first one is none, or whole. A second one is the one before until its manifest is there."""
    target = tmp_path / "backup"
    assert die_at(point, partial(backup, root, target, point))
    assert (target / "manifest").exists() == (point in AFTER)
    backup(root, target)
    send(root, range(50, 70))
    for nth in (1, 2, 3):
        is_killed = die_at(point, partial(backup, root, target, point), nth)
        assert is_killed or nth > 1
        is_new = nth > 1 or point in AFTER
        if is_killed and point not in AFTER:
            assert restored(target, tmp_path / f"killed-{nth}") == [*range(50)]
        elif is_new:
            assert restored(target, tmp_path / f"killed-{nth}") == [*range(70)]
            break
    backup(root, target)
    assert restored(target, tmp_path / "last") == [*range(70)]


@pytest.mark.parametrize("point", OF_RESTORE)
def test_a_killed_restore(root: Path, tmp_path: Path, point: str):
    """The directory is not there, or whole; the next restore takes away what is left."""
    backup(root, tmp_path / "backup")
    assert die_at(point, partial(Admin.restore, tmp_path / "backup", tmp_path / "new"))
    is_done = point == "restore:renamed"
    assert (tmp_path / "new").exists() == is_done
    if is_done:
        assert_clean(tmp_path / "new")
        return
    assert restored(tmp_path / "backup", tmp_path / "new") == [*range(50)]
    assert not (tmp_path / "new.restoring").exists()


def test_every_step_is_covered():
    """Those that the modules declare."""
    assert (len(OF_BACKUP), len(OF_RESTORE)) == (10, 3)
