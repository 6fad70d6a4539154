"""Files that are no part of a store, as file managers, copies and shells leave them in directories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, StorageError
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar.testing.trial_store import assert_clean
from tests.support.store_copies import copy_store

KINDS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("of another program"),
    "FIFO": lambda path: os.mkfifo(path),
    "dangling link": lambda path: path.symlink_to("nowhere"),
}
NOTE = "this does not belong into a store"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with a subscription that has a message left."""
    root = tmp_path_factory.mktemp("original") / "store"
    with Client(root) as client:
        consumer = client.subscribe("orders", "billing", ConsumerType.Shared)
        producer = client.create_producer("orders")
        producer.send(b"first")
        producer.send(b"second")
        consumer.acknowledge(consumer.receive(1000))
    return root


def _use(root: Path, copies: Path) -> None:
    """What an application and an operator do; the message that was left comes, here and from a backup."""
    with Admin(root) as admin:
        assert not admin.check().damage
        assert admin.topics().get_subscriptions("orders") == ["billing"]
        admin.activity()
        admin.backup(copies / "backup")
        assert not admin.repair(dry_run=True).left
    Admin.restore(copies / "backup", copies / "restored")
    for place in (root, copies / "restored"):
        with Client(place) as client:
            kept = InitialPosition.Earliest
            consumer = client.subscribe("orders", "billing", ConsumerType.Shared, initial_position=kept)
            assert consumer.receive(5000).data() == b"second"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [".DS_Store", "notes.txt"])
def test_beside_topics(original: Path, tmp_path: Path, name: str, kind: str):
    """A copied store, whose topics are looked for when it is opened, is opened with a stranger among them."""
    root = tmp_path / "store"
    copy_store(original, root)
    KINDS[kind](root / "topics" / name)
    _use(root, tmp_path)
    (root / "topics" / name).unlink()
    assert_clean(root)


@pytest.mark.parametrize("kind", ["file", "FIFO"])
def test_beside_subscriptions(original: Path, tmp_path: Path, kind: str):
    """A backup has the subscriptions, and not what lies beside them."""
    root = tmp_path / "store"
    copy_store(original, root)
    (subscriptions,) = root.glob("topics/*/subscriptions")
    KINDS[kind](subscriptions / ".DS_Store")
    _use(root, tmp_path)
    (subscriptions / ".DS_Store").unlink()
    assert_clean(root)


def test_a_link_beside_subscriptions_is_named(original: Path, tmp_path: Path):
    """It may stand for a subscription, so no backup leaves it out without a word."""
    root = tmp_path / "store"
    copy_store(original, root)
    (subscriptions,) = root.glob("topics/*/subscriptions")
    (subscriptions / "moved").symlink_to(tmp_path)
    with Admin(root) as admin, pytest.raises(StorageError, match="moved"):
        admin.backup(tmp_path / "backup")


@pytest.mark.parametrize("kind", ["directory", "dangling link"])
def test_beside_leases(original: Path, tmp_path: Path, kind: str):
    """The check does not fail for it, and names it when no process has the store open."""
    root = tmp_path / "store"
    copy_store(original, root)
    with Client(root):
        stranger = root / "clients" / "stranger"
        (KINDS | {"directory": Path.mkdir})[kind](stranger)
        with Admin(root) as admin:
            report = admin.check()
    assert not report.damage and report.living
    # What lies beside the leases of living processes is their business until they are gone.
    assert str(stranger) in [problem.path for problem in check_store(root).problems]


def test_the_check_names_strangers(original: Path, tmp_path: Path):
    """As a note: nothing is wrong."""
    root = tmp_path / "store"
    shutil.copytree(original, root)
    (root / "topics" / ".DS_Store").touch()
    with Admin(root) as admin:
        report = admin.check()
    assert not report.damage
    assert [
        problem.path for problem in report.problems if problem.text == "this does not belong into a store"
    ]
