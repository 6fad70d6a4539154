"""Backups and restores: what a backup holds, what the next one copies, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    ConsumerType,
    CorruptionError,
    InitialPosition,
    NotAllowedError,
    TopicNotFound,
)
from embeddedpulsar._engine.store.care.backup_target import read_manifest
from embeddedpulsar._engine.store.care.store_cut import TopicCut
from embeddedpulsar.exceptions import ForeignFileError, StorageError
from embeddedpulsar.testing import assert_clean

SETTINGS = "managedLedgerMaxSizePerLedgerMbytes=1\nmanagedLedgerMaxEntriesPerLedger=50\n"


@pytest.fixture
def root(tmp_path: Path):
    """An empty store with small ledgers, checked afterwards."""
    path = tmp_path / "store"
    path.mkdir()
    (path / "broker.conf").write_text(SETTINGS)
    yield path
    assert_clean(path)


def send(client: Client, topic: str, *numbers: int) -> None:
    """One message for each number."""
    producer = client.create_producer(topic)
    for number in numbers:
        producer.send(b"%d" % number)
    producer.close()


def received(root: Path, topic: str, subscription: str) -> list[int]:
    """What a subscription gets."""
    with Client(root) as client:
        consumer = client.subscribe(
            topic, subscription, ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(int(message.data()))
    return found


def test_a_backup_holds_what_the_store_had(root: Path, tmp_path: Path):
    """Messages, acknowledgements, policies, namespaces and partitions; taken beside an open client."""
    with Client(root) as client, Admin(root) as admin:
        admin.namespaces().create_namespace("acme/lab")
        admin.namespaces().delete_namespace("public/functions")
        admin.namespaces().set_retention("acme/lab", 5, 6)
        admin.topics().create_partitioned_topic("acme/lab/parts", 3)
        admin.topics().create_non_partitioned_topic("never-used")
        consumer = client.subscribe("one", "sub", ConsumerType.Shared)
        send(client, "one", *range(120))
        send(client, "acme/lab/parts-partition-1", 7)
        for _ in range(60):
            consumer.acknowledge(consumer.receive(1000))
        consumer.close()
        retention = admin.namespaces().get_retention("acme/lab")
        assert retention is not None
        admin.topics().trim_topic("one")  # a topic of which files go meanwhile is copied again, which counts
        report = admin.backup(tmp_path / "backup")
        send(client, "one", 999)
        assert report.topics == 4
        assert report.copied == report.size > 0
    restored = Admin.restore(tmp_path / "backup", tmp_path / "new")
    assert (restored.topics, restored.size) == (report.topics, report.size)
    assert_clean(tmp_path / "new")
    with Admin(tmp_path / "new") as admin:
        assert admin.topics().get_partitioned_topic_metadata("acme/lab/parts").partitions == 3
        assert "public/functions" not in admin.namespaces().get_namespaces("public")
        assert admin.namespaces().get_retention("acme/lab") == retention
        assert "persistent://public/default/never-used" in admin.topics().get_list()
    assert received(tmp_path / "new", "one", "sub") == [*range(60, 120)]
    assert received(tmp_path / "new", "acme/lab/parts-partition-1", "any") == [7]
    with Client(tmp_path / "new") as client:
        send(client, "one", 5)
    assert_clean(tmp_path / "new")
    assert received(root, "one", "sub")[-1] == 999


def test_the_next_backup_copies_what_is_new(root: Path, tmp_path: Path):
    """Nothing twice; what was trimmed goes; the store of each one is the store of its time."""
    target = tmp_path / "backup"
    with Client(root) as client, Admin(root) as admin:
        consumer = client.subscribe("one", "sub")
        send(client, "one", *range(120))
        first = admin.backup(target)
        again = admin.backup(target)
        assert again.copied < 1000
        assert again.size == first.size
        send(client, "one", 120)
        third = admin.backup(target)
        assert third.copied < 8000  # the header page of an index is half of it
        for _ in range(115):
            consumer.acknowledge(consumer.receive(1000))
        consumer.close()
        assert admin.topics().trim_topic("one") == 2
        fourth = admin.backup(target)
        assert fourth.size < third.size / 2
        objects = [path for path in (target / "objects").rglob("*") if path.is_file()]
        manifest = read_manifest(str(target))
        assert manifest is not None
        assert len(objects) == len({one.object for one in manifest.files.values() if one.length})
    Admin.restore(target, tmp_path / "new")
    assert_clean(tmp_path / "new")
    assert received(tmp_path / "new", "one", "sub") == [*range(115, 121)]
    assert_clean(tmp_path / "new")


def test_some_topics(root: Path, tmp_path: Path):
    """With their partitions, and nothing else."""
    with Client(root) as client, Admin(root) as admin:
        admin.topics().create_partitioned_topic("parts", 2)
        for topic in ("one", "two", "parts-partition-0"):
            send(client, topic, 1)
        admin.backup(tmp_path / "backup", ["one", "parts"])
        with pytest.raises(TopicNotFound, match="no such topic"):
            admin.backup(tmp_path / "other", ["three"])
    Admin.restore(tmp_path / "backup", tmp_path / "new")
    with Admin(tmp_path / "new") as admin:
        names = [name.rpartition("/")[2] for name in admin.topics().get_list()]
        assert sorted(names) == ["one", "parts-partition-0", "parts-partition-1"]
    assert_clean(tmp_path / "new")


def test_a_restored_store_goes_on(root: Path, tmp_path: Path):
    """It is the same store: a backup of it may follow in the same directory; ledger ids do not come again."""
    target = tmp_path / "backup"
    with Client(root) as client, Admin(root) as admin:
        client.subscribe("one", "any").close()  # without it, the restored store removes the closed ledger
        send(client, "one", 1)
        admin.backup(target)
        send(client, "one", 2)
        last = admin.topics().get_last_message_id("one")
    Admin.restore(target, tmp_path / "new")
    with Client(tmp_path / "new") as client, Admin(tmp_path / "new") as admin:
        send(client, "one", 3)
        assert admin.topics().get_last_message_id("one").ledger_id() > last.ledger_id() + 60_000
        admin.backup(target)
    Admin.restore(target, tmp_path / "newer")
    assert received(tmp_path / "newer", "one", "any") == [1, 3]


def test_a_copied_store(root: Path, tmp_path: Path):
    """Its control words are not believed: it is recovered, and then copied."""
    import shutil

    with Client(root) as client:
        client.subscribe("one", "sub").close()
        send(client, "one", *range(60))
    shutil.copytree(root, tmp_path / "copy")
    with Admin(tmp_path / "copy") as admin:
        admin.backup(tmp_path / "backup")
    Admin.restore(tmp_path / "backup", tmp_path / "new")
    assert_clean(tmp_path / "new")
    assert received(tmp_path / "new", "one", "sub") == [*range(60)]


def test_what_is_refused(root: Path, tmp_path: Path):
    """A directory with something else, of another store, or inside the store; a target that is not empty."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "holiday.jpg").touch()
    with Client(root) as client, Admin(root) as admin, Admin(tmp_path / "other") as other:
        send(client, "one", 1)
        with pytest.raises(ForeignFileError, match=r"holds holiday\.jpg"):
            admin.backup(tmp_path / "full")
        with pytest.raises(NotAllowedError, match="one lies in the other"):
            admin.backup(root / "backup")
        admin.backup(tmp_path / "backup")
        with pytest.raises(NotAllowedError, match="of another store"):
            other.backup(tmp_path / "backup")
        with pytest.raises(NotAllowedError, match="not an empty directory"):
            Admin.restore(tmp_path / "backup", tmp_path / "full")
        with pytest.raises(ForeignFileError, match="there is no backup"):
            Admin.restore(tmp_path / "full", tmp_path / "new")


def test_a_damaged_backup(root: Path, tmp_path: Path):
    """A restore notices it, and makes nothing."""
    with Client(root) as client, Admin(root) as admin:
        send(client, "one", *range(60))
        admin.backup(tmp_path / "backup")
    for path in (
        max((tmp_path / "backup" / "objects").rglob("*"), key=_size),
        tmp_path / "backup" / "manifest",
    ):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match="damaged"):
            Admin.restore(tmp_path / "backup", tmp_path / "new")
        assert not (tmp_path / "new").exists()
        assert not (tmp_path / "new.restoring").exists()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@pytest.mark.parametrize("times", [1, 1000])
def test_a_file_that_goes_while_it_is_copied(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
):
    """The topic is copied again; it is never left out without a word while its directory is there."""
    with Client(root) as client:
        send(client, "one", *range(3))
    take, gone = TopicCut.take_positions, []

    def lose_one(cut: TopicCut) -> None:
        take(cut)
        if len(gone) < times:
            gone.append(cut)
            raise FileNotFoundError(2, "No such file or directory", "subscriptions/s-x/ctl")

    monkeypatch.setattr(TopicCut, "take_positions", lose_one)
    with Admin(root) as admin:
        if times == 1:
            admin.backup(tmp_path / "backup")
        else:
            with pytest.raises(StorageError, match="s-x/ctl"):
                admin.backup(tmp_path / "backup")
            return
    Admin.restore(tmp_path / "backup", tmp_path / "new")
    assert received(tmp_path / "new", "one", "any") == [0, 1, 2]
