"""Topics that are made in bulk, without directories, and directories that are spread over others."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Admin
from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_single
from embeddedpulsar._engine.platform import disk, timing
from embeddedpulsar._engine.store import topic_directories, topic_list
from embeddedpulsar._engine.store.policies.keeping import RETENTION
from embeddedpulsar._engine.store.root_layout import directories_in, find_directory, read_meta
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.damage import INDEX
from embeddedpulsar.exceptions import NotAllowedError, TopicNotFound
from embeddedpulsar.policies import Retention
from embeddedpulsar.testing.trial_store import assert_clean, check_store
from tests.support.disks.fake_disk import FakeDisk

BASE = "persistent://public/default"
PREFIX = ProducerPrefix("p", 0)


def names(count: int) -> list[str]:
    """Full names, sorted."""
    return sorted(f"{BASE}/t{number}" for number in range(count))


@pytest.fixture(params=[1000, 3])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store whose directories lie side by side, and one where all but the first three are spread; its check
    finds nothing."""
    monkeypatch.setattr(topic_directories, "MOST_IN_TOPICS", request.param)
    yield tmp_path / "store"
    assert_clean(tmp_path / "store")


def there(root: Path) -> list[str]:
    """The directories of topics."""
    return list(directories_in(str(root / "topics")))


def publish(store: Store, name: str, value: bytes = b"x") -> None:
    """Add an entry to a topic."""
    use = store.use_topic(name)
    use.topic.ledger.append(encode_single(value, 0, PREFIX))
    use.release()


def count(store: Store, name: str) -> int:
    """How many entries a topic has."""
    use = store.use_topic(name, create=False)
    ledger = use.topic.ledger
    found = (
        ledger.messages_after(ledger.first_position()._replace(entry_id=-1)) if ledger.last_position() else 0
    )
    use.release()
    return found


def test_topics_are_made_by_one_record_and_get_directories_when_opened(root: Path):
    """Others see them at once; what is opened stays opened after the store is opened again."""
    store = Store.open(root)
    store.topics.create_topics([*names(20), f"{BASE}/t3"])
    assert store.topics.names() == names(20) and there(root) == []
    assert not store.topics.was_used("t7")
    for number in (7, 8):
        publish(store, f"t{number}")
    assert len(there(root)) == 2 and store.topics.was_used("t7")
    entry = store._current().catalog.find(f"{BASE}/t7")
    assert (
        entry is not None
        and entry.is_made
        and ("/" in entry.directory) == (topic_directories.MOST_IN_TOPICS < 20)
    )
    store.release()
    store = Store.open(root)
    assert store.topics.names() == names(20) and [count(store, f"t{number}") for number in (7, 9)] == [1, 0]
    store.release()


def test_a_name_that_is_taken_leaves_all_unmade(root: Path, monkeypatch: pytest.MonkeyPatch):
    """All that would be made at once; those before stay."""
    store = Store.open(root)
    monkeypatch.setattr(topic_list, "AT_ONCE", 4)
    store.topics.create_topic("t6")
    with pytest.raises(NotAllowedError, match="t6 exists already"):
        store.topics.create_topics(names(10))
    assert store.topics.names() == [*names(4), f"{BASE}/t6"]
    with pytest.raises(TopicNotFound, match="no namespace acme/sales"):
        store.topics.create_topics(["acme/sales/orders"])
    with pytest.raises(NotAllowedError, match="system topics"):
        store.topics.create_topics(["__change_events"])
    store.topics.create_partitioned("orders", 2)
    with pytest.raises(TopicNotFound, match="has 2 partitions only"):
        store.topics.create_topics(["orders-partition-2"])
    store.topics.create_topics(["orders-partition-1"])
    publish(store, "orders-partition-1")
    store.release()


def test_what_was_never_opened_is_deleted_and_made_again(root: Path):
    """Each life has an incarnation; nothing is opened for it."""
    store = Store.open(root)
    store.topics.create_topics(names(10))
    first = store._current().catalog.find(f"{BASE}/t3")
    for _ in range(2):
        store.delete_topic("t3")
        assert not store.topics.has("t3") and there(root) == []
        store.topics.create_topic("t3")
    second = store._current().catalog.find(f"{BASE}/t3")
    assert first is not None and second is not None and first.incarnation != second.incarnation
    publish(store, "t3")
    publish(store, "t4")
    assert [os.path.basename(path)[-2:] for path in sorted(there(root), key=len)] == ["t4", ".3"]
    store.delete_topic("t4")
    store.topics.create_topic("t4")
    assert count(store, "t4") == 0
    store.release()


def test_a_policy_is_kept_by_a_topic_that_was_never_opened(root: Path):
    """It gets its directory for it."""
    store = Store.open(root)
    store.topics.create_topics(names(10))
    wanted = Retention(3, 4)
    store.set_policy("t9", RETENTION, wanted)
    store.set_policy("public/default", RETENTION, Retention(1, 1))
    assert store.own_policy("t9", RETENTION) == wanted and len(there(root)) == 1
    assert store.policy("t8", RETENTION) == Retention(1, 1)
    store.release()


def test_the_catalog_is_made_again_from_directories_wherever_they_are(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    """Topics that were never opened hold nothing and are gone with it; ledger ids go on."""
    store = Store.open(root)
    store.topics.create_topics(names(10))
    for number in range(0, 10, 2):
        publish(store, f"t{number}")
    highest = store._current().directories.highest_ledger_id()
    store.release()
    for name in ("catalog", "catalog.index"):
        Path(root, name).unlink(missing_ok=True)
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
    store = Store.open(root)
    assert store.topics.names() == names(10)[::2] and highest == 5
    assert [count(store, name) for name in store.topics.names()] == [1] * 5
    store.release()


def test_a_directory_is_found_without_the_catalog(root: Path):
    """That of the last life."""
    store = Store.open(root)
    topics = str(root / "topics")
    store.topics.create_topics(names(5))
    assert find_directory(topics, f"{BASE}/t4") is None
    publish(store, "t4")
    for life in range(3):
        found = find_directory(topics, f"{BASE}/t4")
        assert found is not None and found.endswith(f".{life + 1}") == bool(life)
        meta = read_meta(found)
        assert meta is not None and meta.name == f"{BASE}/t4"
        store.delete_topic("t4")
        publish(store, "t4")
    store.release()


def test_a_lost_directory_of_an_opened_topic_is_damage_and_of_another_is_not(root: Path):
    """What was announced only has none to lose."""
    store = Store.open(root)
    found: list[str] = []
    store.damage.add(lambda damage: found.append(damage.reason))
    store.topics.create_topics(names(5))
    publish(store, "t4")
    assert found == []
    store.release()
    (directory,) = there(root)
    Path(root, "topics", directory).rename(root.parent / "gone")
    store = Store.open(root)
    store.damage.add(lambda damage: found.append(damage.reason))
    publish(store, "t4")
    publish(store, "t3")
    assert found == ["it was missing"]
    store.release()


def test_topics_made_in_bulk_survive_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also those that were opened at level process, whose directories may be lost: their names are not."""
    root = tmp_path / "store"
    root.mkdir()
    monkeypatch.setattr(topic_directories, "MOST_IN_TOPICS", 3)
    fake = FakeDisk(root)
    with disk.use(fake):
        store = Store.open(root)
        store.topics.create_topics(names(8), durable=True)
        publish(store, "t1")
        publish(store, "t5")
        state = fake.capture()
        for seed in range(40):
            image = tmp_path / f"image{seed}"
            state.write_image(random.Random(seed), str(image))
            monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
            with disk.use(disk.Disk()):
                copy = Store.open(image)
                assert copy.topics.names() == names(8)
                for number in range(8):
                    publish(copy, f"t{number}")
                assert len(there(image)) == 8
                copy.release()
        store.release()


def test_a_topic_made_at_level_flush_survives_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Announced, opened and written to: the names of both directories above it are flushed."""
    root = tmp_path / "store"
    root.mkdir()
    monkeypatch.setattr(topic_directories, "MOST_IN_TOPICS", 0)
    fake = FakeDisk(root)
    with disk.use(fake):
        store = Store.open(root, durability="flush")
        store.topics.create_topic("t0")
        publish(store, "t0")
        state = fake.capture()
        for seed in range(30):
            image = tmp_path / f"image{seed}"
            state.write_image(random.Random(seed), str(image))
            monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
            with disk.use(disk.Disk()):
                copy = Store.open(image)
                assert count(copy, "t0") == 1
                copy.release()
        store.release()


def test_a_damaged_index_of_the_catalog_is_found_and_taken_away(tmp_path: Path):
    """By the check and the repair; the store does without it meanwhile."""
    store = Store.open(tmp_path)
    store.topics.create_topics(names(5000))
    store.release()
    assert_clean(tmp_path)
    index = tmp_path / "catalog.index"
    data = bytearray(index.read_bytes())
    data[1000] ^= 1
    index.write_bytes(data)
    store = Store.open(tmp_path)
    assert store.topics.names() == names(5000)
    store.release()
    index.write_bytes(data)
    (problem,) = check_store(tmp_path).problems
    assert problem.kind == INDEX and problem.path == str(index)
    with Admin(tmp_path) as admin:
        admin.repair()
        assert len(admin.topics().get_list()) == 5000
    assert_clean(tmp_path)
