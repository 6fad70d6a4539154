"""Policies on disk: who says what, who is asked first, and what becomes of damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.document import (
    KIND_POLICIES,
    KIND_TOPIC_META,
    decode_document,
    encode_document,
)
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION, IN_GROUP
from embeddedpulsar._engine.store.policies.keeping import OFFLOAD_THRESHOLD, RETENTION
from embeddedpulsar._engine.store.policies.policy import TopicPolicy
from embeddedpulsar._engine.store.policies.policy_documents import PolicyDocuments
from embeddedpulsar.exceptions import (
    CorruptionError,
    InvalidConfiguration,
    StorageError,
    StorageFullError,
)
from embeddedpulsar.policies import Retention
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic_name import directory_name

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/orders"
PARTITION = f"{TOPIC}-partition-3"


class Site:
    """A store's directories, with a topic and a partition of it in them."""

    def __init__(self, root: Path, **settings) -> None:
        self.root = root
        self.documents = PolicyDocuments(str(root), BrokerSettings(**settings))
        for name in (TOPIC, PARTITION):
            os.makedirs(self.directory(name))

    def directory(self, name: str) -> str:
        return str(self.root / "topics" / directory_name(name))

    def is_on(self, name: str) -> bool:
        return self.documents.value(DEDUPLICATION, name, self.directory(name))

    def retention(self, name: str) -> Retention:
        return self.documents.value(RETENTION, name, self.directory(name))

    def change(self, name: str, policy: TopicPolicy, value) -> None:
        change = self.documents.change_topic if "://" in name else self.documents.change_namespace
        change(name, {policy.key: value}, durable=False)

    def path_of(self, name: str) -> Path:
        if "://" in name:
            return Path(self.directory(name)) / "policies"
        (path,) = (self.root / "tenants").iterdir()
        return path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("default", [True, False])
def test_nobody_says_anything(tmp_path: Path, default: bool):
    """Then broker.conf decides, and there are no documents."""
    site = Site(tmp_path, brokerDeduplicationEnabled=default, defaultRetentionTimeInMinutes=3)
    assert site.is_on(TOPIC) is site.is_on(PARTITION) is default
    assert site.retention(TOPIC) == Retention(3, 0)
    assert site.documents.of_topic(TOPIC) == site.documents.of_namespace(NAMESPACE) == {}
    assert not list(tmp_path.glob("**/policies"))


def test_the_nearest_decides(site: Site):
    """A partition, its topic, its namespace; false is an answer."""
    for name, value, expected in (
        (NAMESPACE, True, (True, True)),
        (TOPIC, False, (False, False)),
        (PARTITION, True, (False, True)),
        (TOPIC, None, (True, True)),
        (NAMESPACE, None, (False, True)),
        (PARTITION, None, (False, False)),
    ):
        site.change(name, DEDUPLICATION, value)
        assert (site.is_on(TOPIC), site.is_on(PARTITION)) == expected


def test_retention_is_found_the_same_way(site: Site):
    """0 and 0 is an answer too."""
    week = Retention(10_080, -1)
    site.change(NAMESPACE, RETENTION, RETENTION.pack(week))
    site.change(PARTITION, RETENTION, RETENTION.pack(Retention(0, 0)))
    assert (site.retention(TOPIC), site.retention(PARTITION)) == (week, Retention(0, 0))


def test_policies_do_not_touch_each_other(site: Site):
    """Nor what another release may have written; the version rises with each change."""
    site.change(TOPIC, DEDUPLICATION, True)
    path = site.path_of(TOPIC)
    fields = decode_document(path.read_bytes(), KIND_POLICIES)
    fields["later"], fields["policies"]["quota"] = "kept", [1, 2]
    path.write_bytes(encode_document(KIND_POLICIES, fields))
    site.change(TOPIC, RETENTION, RETENTION.pack(Retention(5, 5)))
    site.change(TOPIC, DEDUPLICATION, None)
    found = decode_document(path.read_bytes(), KIND_POLICIES)
    assert found == {
        "owner": TOPIC,
        "version": 3,
        "later": "kept",
        "policies": {"quota": [1, 2], RETENTION.key: RETENTION.pack(Retention(5, 5))},
    }


@pytest.mark.parametrize("name", [NAMESPACE, TOPIC, PARTITION])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: encode_document(KIND_TOPIC_META, {}),
        lambda data: encode_document(KIND_POLICIES, {"policies": 7}),
    ],
)
def test_damage_is_no_answer(site: Site, name: str, damage):
    """Nobody goes by a default where something else may have been said, nor writes over it."""
    site.change(name, DEDUPLICATION, True)
    path = site.path_of(name)
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    for ask in (site.is_on, site.retention):
        with pytest.raises(StorageError):
            ask(PARTITION)
    with pytest.raises(StorageError):
        site.change(name, DEDUPLICATION, False)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", [TOPIC, NAMESPACE])
def test_the_next_change_removes_what_a_killed_process_left(site: Site, name: str):
    """A document that was not finished has no name of its own; others stay."""
    site.change(name, DEDUPLICATION, True)
    path = site.path_of(name)
    left, other = Path(f"{path}.0123456789ab.tmp"), path.with_name("elsewhere.0123456789ab.tmp")
    for one in (left, other):
        one.write_bytes(b"half")
    site.change(name, DEDUPLICATION, False)
    assert other.exists() and not left.exists()


def test_a_full_disk_changes_nothing(site: Site, monkeypatch):
    """What was said before holds on."""
    site.change(TOPIC, DEDUPLICATION, True)

    def full(*_: object) -> None:
        raise StorageFullError("no space left")

    monkeypatch.setattr(disk.DISK, "atomic_write", full)
    with pytest.raises(StorageFullError):
        site.change(TOPIC, DEDUPLICATION, False)
    monkeypatch.undo()
    assert site.is_on(TOPIC)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        7,
        {},
        {"retentionTimeInMinutes": 1},
        {"retentionTimeInMinutes": "x", "retentionSizeInMB": 1},
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1},
        {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1},
    ],
)
def test_a_retention_that_is_none(fields):
    """Nothing is removed on account of it."""
    with pytest.raises(CorruptionError, match="retention"):
        RETENTION.unpack(fields)


def test_a_retention_there_and_back():
    """All that makes sense."""
    for retention in (Retention(0, 0), Retention(-1, -1), Retention(7, -1), Retention(1, 2)):
        assert RETENTION.unpack(RETENTION.pack(retention)) == retention


def test_the_document_of_a_namespace_is_read_once_until_the_version_changes(site: Site, monkeypatch):
    """While it is odd, a change is under way, and it is read each time."""
    version = [2]
    documents = PolicyDocuments(str(site.root), BrokerSettings(), version=lambda: version[0])
    assert not documents.own(DEDUPLICATION, NAMESPACE)
    site.change(NAMESPACE, DEDUPLICATION, True)  # by another process, which has not said so
    assert not documents.own(DEDUPLICATION, NAMESPACE)
    version[0] = 3
    assert documents.own(DEDUPLICATION, NAMESPACE)
    site.change(NAMESPACE, DEDUPLICATION, False)
    assert documents.own(DEDUPLICATION, NAMESPACE) is False
    site.change(NAMESPACE, DEDUPLICATION, True)
    version[0] = 4
    assert documents.own(DEDUPLICATION, NAMESPACE)
    assert documents.value(DEDUPLICATION, TOPIC, site.directory(TOPIC))


def test_a_resource_group_whose_name_is_no_text() -> None:
    """The document is damaged; that is no mistake of the caller."""
    with pytest.raises(CorruptionError, match="no name: 5"):
        IN_GROUP.unpack(5)


def test_an_error_about_a_number_names_the_policy() -> None:
    """Several policies have numbers."""
    with pytest.raises(InvalidConfiguration, match="offload_threshold is a number from -1, for never, on"):
        OFFLOAD_THRESHOLD.pack(-2)
