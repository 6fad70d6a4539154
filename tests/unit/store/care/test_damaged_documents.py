"""A damaged document is found by the check, kept by a repair, and holds back what it may still need."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, Damage, MessageId
from embeddedpulsar._engine.cold.location import known_owner, make_owner
from embeddedpulsar._engine.log import trimming
from embeddedpulsar._engine.platform import disk, timing
from embeddedpulsar._engine.store.care.store_check import DOCUMENT, check_store
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar._engine.store.topic_compaction import LongRunningProcessStatus
from embeddedpulsar._engine.subscription.attachment.active_attachment import note_start
from embeddedpulsar.admin.topics import Topics
from embeddedpulsar.cli.main import main
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.message_id import Position
from embeddedpulsar.policy_values import OffloadPolicies
from embeddedpulsar.spark import sink_commit
from embeddedpulsar.spark.sink_place import DONE, PENDING, SinkPlace
from embeddedpulsar.testing import assert_clean
from tests.support.disks.faulty_disk import FaultyDisk

NOW = 1_700_000_000_000
DAMAGES = {
    "flipped": lambda data: data[:20] + bytes([data[20] ^ 0x55]) + data[21:],
    "zeroed": lambda data: bytes(len(data)),
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
}
DOCUMENTS = {
    "offload record": "topics/*/offload",
    "note of an offloaded ledger": "topics/*/*1.cold",
    "owner of objects": "offloaded/owner",
    "pending commit of a sink": f"sinks/*/{PENDING}",
    "last commit of a sink": f"sinks/*/{DONE}",
    "start of a compacted subscription": "topics/*/subscriptions/*/compacted-start",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store whose only topic was offloaded."""
    root = tmp_path / "store"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=5\n")
    with Client(root) as client, Admin(root) as admin:
        client.subscribe("orders", "billing").close()
        producer = client.create_producer("orders")
        for number in range(12):
            producer.send(b"order %d" % number)
        admin.topics().set_offload_policies("orders", OffloadPolicies(str(tmp_path / "cold")))
        assert admin.topics().offload("orders")
    assert_clean(root)
    return root


def add_other_documents(root: Path) -> None:
    """Those of a sink and of a subscription that reads compacted. No process opens the store with them."""
    (subscription,) = root.glob("topics/*/subscriptions/*")
    note_start(str(subscription), Position(1, -1))
    place = SinkPlace(str(root), "0" * 32)
    place.make()
    for name in (PENDING, DONE):
        place.write(name, {"batch": 1}, durable=False)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_check_finds_it_and_a_repair_keeps_it(root: Path, damage: str):
    """Each document of its own: the finding names the file and a remedy that does not lose it."""
    add_other_documents(root)
    for document, pattern in DOCUMENTS.items():
        (path,) = root.glob(pattern)
        whole = path.read_bytes()
        path.write_bytes(DAMAGES[damage](whole))
        before = path.read_bytes()
        (found,) = check_store(root).damage
        assert (found.kind, found.path) == (DOCUMENT, str(path)), document
        assert "backup" in found.remedy
        assert [problem.path for problem in repair_store(str(root)).left] == [str(path)]
        assert path.read_bytes() == before
        path.write_bytes(whole)
    assert_clean(root)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("level", ["topic", "namespace"])
def test_damaged_policies_hold_everything_back(tmp_path: Path, damage: str, level: str):
    """No default is in force in their place, and the remedy of the check replaces them without a gap."""
    root = tmp_path / "store"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=5\nttlDurationDefaultInSeconds=1\n")
    with Client(root) as client, Admin(root) as admin:
        admin.namespaces().create_namespace("public/other")
        consumer = client.subscribe("orders", "billing")
        producer = client.create_producer("orders")
        client.create_producer("other").close()
        where = {"topic": (admin.topics(), "orders", "other")}
        where["namespace"] = (admin.namespaces(), "public/default", "public/other")
        level_calls, name, other = where[level]
        for owner in (name, other):
            level_calls.set_retention(owner, -1, -1)
            level_calls.set_message_ttl(owner, 0)
        for number in range(12):
            producer.send(b"order %d" % number)
            consumer.acknowledge(consumer.receive(1000))
    patterns = {"topic": ("topics/*-orders/policies", "topics/*-other/policies")}
    patterns["namespace"] = ("tenants/ns-*-public-default", "tenants/ns-*-public-other")
    (path,), (whole,) = (list(root.glob(pattern)) for pattern in patterns[level])
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    (found,) = check_store(root).damage
    assert found.path == str(path) and "another topic or namespace" in found.remedy
    assert [problem.path for problem in repair_store(str(root)).left] == [str(path)]
    with Admin(root) as admin:
        with pytest.raises(StorageError, match=path.name):
            admin.topics().trim_topic("orders")
        calls = admin.topics() if level == "topic" else admin.namespaces()
        with pytest.raises(StorageError, match=path.name):
            calls.set_message_ttl(name, 1)
    reports: list[Damage] = []
    with Client(root, on_damage=reports.append) as client:
        for opening in (client.create_producer, partial(client.subscribe, subscription_name="billing")):
            with pytest.raises(StorageError, match=path.name):
                opening("orders")
    assert [(one.path, one.kind) for one in reports] == [(str(path), "topic files")]
    path.write_bytes(whole.read_bytes())
    with Client(root) as client, Admin(root) as admin:
        assert admin.topics().trim_topic("orders") == 0
        with client.create_reader("orders", MessageId.earliest) as reader:
            assert len(list(reader)) == 12
    assert_clean(root)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_note_is_not_replaced(tmp_path: Path, damage: str):
    """While the log is here, another offload names the note and leaves it and the log alone."""
    root = tmp_path / "store"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=5\n")
    reports: list[Damage] = []
    with Client(root, on_damage=reports.append) as client, Admin(root) as admin:
        topics = admin.topics()
        producer = client.create_producer("orders")
        sent = [b"order %d" % number for number in range(12)]
        for data in sent:
            producer.send(data)
        topics.set_retention("orders", -1, -1)
        topics.set_offload_policies(
            "orders", OffloadPolicies(str(tmp_path / "cold"), offload_deletion_lag_in_millis=10**9)
        )
        assert topics.offload("orders")
        _wait(topics)
        (note,) = root.glob("topics/*/*1.cold")
        note.write_bytes(DAMAGES[damage](note.read_bytes()))
        before = note.read_bytes()
        objects = sorted((tmp_path / "cold").rglob("*"))
        for data in sent:
            producer.send(data)
        topics.offload("orders")
        status = _wait(topics)
        assert str(note) in status.last_error and "backup" in status.last_error
        assert note.read_bytes() == before and note.with_suffix(".log").exists()
        assert set(objects) < set((tmp_path / "cold").rglob("*"))
        with client.create_reader("orders", MessageId.earliest) as reader:
            assert [message.data() for message in reader] == [*sent, *sent]
        assert [(one.path, one.kind) for one in reports] == [(str(note), "topic files")]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("document", [PENDING, DONE])
def test_a_damaged_document_of_a_sink_is_reported(tmp_path: Path, damage: str, document: str):
    """The commit is not finished, and the file stays as it is."""
    Client(tmp_path).close()
    place = SinkPlace(str(tmp_path), "a" * 32)
    place.make()
    for name in (PENDING, DONE):
        place.write(name, {"batch": 1}, durable=False)
    path = Path(place.file(document))
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    before = path.read_bytes()
    reports: list[Damage] = []
    assert sink_commit.finish_commits(str(tmp_path), report=reports.append) == 0
    assert [(one.path, one.kind) for one in reports] == [(str(path), "topic files")]
    assert "backup" in reports[0].remedy and path.read_bytes() == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_owner_of_objects_is_reported(tmp_path: Path, damage: str):
    """Another identity takes its place, which does not own the objects of the one before."""
    leftovers = str(tmp_path / "offloaded")
    owner = make_owner(leftovers)
    path = tmp_path / "offloaded" / "owner"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    reports: list[Damage] = []
    assert make_owner(leftovers, reports.append) != owner
    assert [(one.path, one.kind) for one in reports] == [(str(path), "topic files")]
    assert make_owner(leftovers, reports.append) == known_owner(leftovers)
    assert len(reports) == 1


def test_an_owner_that_cannot_be_read_is_not_replaced(tmp_path: Path):
    """What cannot be read is no damage: offloading raises an error that names the file."""
    leftovers = str(tmp_path / "offloaded")
    owner = make_owner(leftovers)
    path = tmp_path / "offloaded" / "owner"
    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        faulty.fail("open_file", 1, errno.EIO, times=10**6, path=str(path))
        with pytest.raises(OSError, match="owner"):
            make_owner(leftovers)
    assert make_owner(leftovers) == owner


def _wait(topics: Topics) -> LongRunningProcessStatus:
    until = timing.perf_counter() + 60
    while (status := topics.offload_status("orders")).status == "RUNNING":
        assert timing.perf_counter() < until
    return status


@pytest.mark.parametrize("place", ["t-orders", "a7/t-orders"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_pin_keeps_its_ledgers(tmp_path: Path, damage: str, place: str):
    """As long as its sink has a commit that is not finished, and no longer; wherever the topic is."""
    root, directory = tmp_path / "store", tmp_path / "store" / "topics" / place
    directory.mkdir(parents=True)
    sink = SinkPlace(str(root), "a" * 32)
    sink.make()
    sink.write(PENDING, {"batch": 1}, durable=False)
    trimming.pin_for_commit(str(directory), 5, sink.key, sink.file(PENDING), NOW)
    (pin,) = (directory / "pins").iterdir()
    pin.write_bytes(DAMAGES[damage](pin.read_bytes()))
    os.utime(pin, (NOW / 1000, NOW / 1000))
    later = NOW + 2 * trimming.LEASE_S * 1000
    assert trimming.pinned_from(str(directory), later, removes=True) == Position(5, -1)
    sink.discard([PENDING])
    assert trimming.pinned_from(str(directory), later, removes=True) is None


def test_activity_names_a_topic_that_cannot_be_read(root: Path, capsys: pytest.CaptureFixture[str]):
    """With the file; the other topics are shown."""
    with Client(root) as client:
        client.create_producer("prices").close()
    (path,) = root.glob("topics/*-orders/*1.log")
    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        faulty.fail("open_file", 1, errno.EIO, times=10**6, path=str(path))
        with Admin(root) as admin:
            now = admin.activity().look()
        assert not main(["--store", str(root), "top", "--once", "--interval", "0.1"])
    assert [one.topic for one in now.topics] == ["persistent://public/default/prices"]
    (unread,) = now.unread
    assert unread.topic == "persistent://public/default/orders"
    assert path.name in unread.reason
    assert "orders cannot be read: " in capsys.readouterr().out
    with Admin(root) as admin:
        assert not admin.activity().look().unread
    assert_clean(root)
