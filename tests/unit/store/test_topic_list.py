"""Which topics there are: partitioned ones, their partitions, their growth, what is made by itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_single
from embeddedpulsar._engine.log.topic_control import DELETED
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store import topic_deletion
from embeddedpulsar._engine.store.catalog import Catalog
from embeddedpulsar._engine.store.root_layout import read_meta
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.exceptions import InvalidTopicName, NotAllowedError, TopicNotFound
from embeddedpulsar.testing.trial_store import assert_clean
from tests.support.process_state import reboot

NAME = "persistent://public/default/orders"
PREFIX = ProducerPrefix("p", 0)


def partition(index: int) -> str:
    """The full name of a partition of the topic."""
    return f"{NAME}-partition-{index}"


@contextlib.contextmanager
def fails_at(step: str):
    """What runs inside fails there."""
    failpoints.set(step, "raise")
    try:
        with pytest.raises(failpoints.InjectedFailure):
            yield
    finally:
        failpoints.clear()


def configured(tmp_path: Path, text: str) -> Store:
    """A store with settings."""
    root = tmp_path / "configured"
    root.mkdir(mode=0o700)
    (root / "broker.conf").write_text(text)
    return Store.open(root)


def test_a_partitioned_topic_is_its_partitions(store: Store):
    """They exist at once, and have files when they are opened."""
    assert store.topics.partitions("orders") == 0 and not store.topics.has("orders")
    version = store.topics.version
    store.topics.create_partitioned("orders", 3)
    assert store.topics.version == version + 1
    assert store.topics.partitions("orders") == store.topics.resolve(NAME) == 3
    assert store.topics.names() == [partition(0), partition(1), partition(2)]
    assert store.topics.partitioned_names() == store.topics.partitioned_names("public/default") == [NAME]
    assert store.topics.partitioned_names("public/functions") == []
    assert (
        store.topics.has("orders") and store.topics.has(partition(2)) and not store.topics.has(partition(3))
    )
    assert store.use_topic(partition(1), create=False).topic.name == partition(1)
    assert store.topics.names() == [partition(0), partition(1), partition(2)]
    assert store.topics.partitions(partition(1)) == store.topics.resolve(partition(1)) == 0


def test_neither_its_name_nor_a_partition_too_many_can_be_opened(store: Store):
    """The text says what can be."""
    store.topics.create_partitioned("orders", 3)
    with pytest.raises(NotAllowedError, match=r"partitioned topic.*orders-partition-0 to .*-partition-2"):
        store.use_topic("orders")
    with pytest.raises(TopicNotFound, match="has 3 partitions, numbered from 0"):
        store.use_topic(partition(3))
    assert store.topics.resolve(partition(3)) == 0
    assert not store.topics.has(partition(3))


def test_it_only_grows(store: Store):
    """As many as there are change nothing."""
    store.topics.create_partitioned("orders", 2)
    first = store.use_topic(partition(0)).topic
    store.grow_partitions("orders", 4)
    version = store.topics.version
    store.grow_partitions("orders", 4)
    assert store.topics.version == version and store.topics.partitions("orders") == 4
    assert store.use_topic(partition(0)).topic is first and store.use_topic(
        partition(3)
    ).topic.name == partition(3)
    with pytest.raises(NotAllowedError, match="has 4 partitions and cannot have 3: a topic only grows"):
        store.grow_partitions("orders", 3)
    with pytest.raises(TopicNotFound, match="no such topic"):
        store.grow_partitions("other", 3)
    store.use_topic("plain")
    with pytest.raises(NotAllowedError, match="plain is not partitioned"):
        store.grow_partitions("plain", 3)


@pytest.mark.parametrize("number", [0, -1, 10_001, 2.5, "3", True, None])
def test_numbers_that_are_none(store: Store, number):
    """From 1 to 10,000."""
    with pytest.raises(ValueError, match="1 to 10000 partitions"):
        store.topics.create_partitioned("orders", number)
    with pytest.raises(ValueError, match="1 to 10000 partitions"):
        store.grow_partitions("orders", number)
    assert store.topics.names() == []


def test_conflicts(store: Store):
    """A name is one topic's, and those of its partitions are its own."""
    store.topics.create_topic("plain")
    with pytest.raises(NotAllowedError, match="plain exists already, and is not partitioned"):
        store.topics.create_partitioned("plain", 2)
    store.topics.create_partitioned("orders", 2)
    with pytest.raises(NotAllowedError, match="exists already, with 2 partitions"):
        store.topics.create_partitioned("orders", 2)
    store.topics.create_topic("loose-partition-7")
    with pytest.raises(NotAllowedError, match=r"loose-partition-7 is a topic of its own"):
        store.topics.create_partitioned("loose", 2)
    with pytest.raises(InvalidTopicName, match="this is the name of a partition"):
        store.topics.create_partitioned("orders-partition-0", 2)
    with pytest.raises(TopicNotFound, match="there is no namespace acme/sales"):
        store.topics.create_partitioned("acme/sales/orders", 2)
    store.topics.create_partitioned("non-persistent://public/default/orders", 3)  # another topic


def test_topics_are_made_as_the_settings_say(tmp_path: Path, store: Store):
    """By default one that is not partitioned; never one in the name of a partition."""
    assert store.topics.resolve("plain", create=False) == 0 and not store.topics.has("plain")
    assert store.topics.resolve("plain") == 0 and store.topics.has("plain")
    other = configured(tmp_path, "allowAutoTopicCreationType=partitioned\ndefaultNumPartitions=4\n")
    assert other.topics.resolve("orders", create=False) == 0 and not other.topics.has("orders")
    assert other.topics.resolve("orders") == other.topics.partitions("orders") == 4
    assert other.topics.resolve("loose-partition-1") == 0
    assert other.topics.names()[:1] == ["persistent://public/default/loose-partition-1"]
    other.release()


def test_the_number_alone_changes_nothing(tmp_path: Path):
    """It counts where topics are made with partitions."""
    other = configured(tmp_path, "defaultNumPartitions=4\n")
    assert other.topics.resolve("orders") == 0
    other.release()


def test_nothing_is_made_where_that_is_not_allowed(tmp_path: Path):
    """But the partitions of a topic that exists do."""
    other = configured(tmp_path, "allowAutoTopicCreation=false\nallowAutoTopicCreationType=partitioned\n")
    with pytest.raises(TopicNotFound, match="allowAutoTopicCreation=false"):
        other.topics.resolve("orders")
    other.topics.create_partitioned("orders", 2)
    assert other.topics.resolve("orders") == 2
    assert other.use_topic(partition(1)).topic.name == partition(1)
    with pytest.raises(TopicNotFound, match="allowAutoTopicCreation=false"):
        other.use_topic("loose-partition-1")
    other.release()


def test_other_processes_see_all_or_nothing(store: Store):
    """They follow the catalog: here a second session of the same store."""
    store.topics.create_partitioned("orders", 3)
    catalog_size = Path(store.root, "catalog").stat().st_size - 8  # without the zeros that mark the end
    store.grow_partitions("orders", 5)
    whole = Path(store.root, "catalog").read_bytes()
    for size in range(catalog_size, len(whole) - 8):
        copy = Path(store.root, "catalog.copy.tmp")
        copy.write_bytes(whole[:size])
        catalog = Catalog(str(copy), store._current().catalog.lock)
        found = catalog.find(NAME)
        assert found is not None and found.partitions == 3
        catalog.close()


@pytest.mark.parametrize("step", ["topic:staged", "topic:described", "topic:renamed", "topic:catalogued"])
def test_who_dies_while_making_one_leaves_all_or_nothing(store: Store, step: str):
    """The next finds what is there, or makes it; also another kind of topic."""
    with fails_at(step):
        store.topics.create_partitioned("orders", 3)
    made = step == "topic:catalogued"
    assert store.topics.partitions("orders") == (3 if made else 0)
    if made:
        return
    assert store.topics.names() == []
    store.topics.create_topic("orders")
    assert store.topics.partitions("orders") == 0 and store.topics.names() == [NAME]


@pytest.mark.parametrize("step", ["topic:staged", "topic:described", "deletion:moved"])
def test_what_is_left_of_half_a_topic_goes_with_the_next_opening(tmp_path: Path, step: str):
    """The process died while it made or deleted the topic; others have the store open all the time."""
    root = tmp_path / "store"
    store = Store.open(root)
    if step == "deletion:moved":
        store.use_topic("orders").release()
    with fails_at(step):
        if step == "deletion:moved":
            store.delete_topic("orders")
        else:
            store.use_topic("orders")
    assert list(Path(root, "staging").iterdir())
    store.release()
    Store.open(root).release()
    assert_clean(root)


def test_a_plain_topic_half_made_becomes_a_partitioned_one(store: Store):
    """The directory is taken over with its new kind."""
    with fails_at("topic:renamed"):
        store.use_topic("orders")
    store.topics.create_partitioned("orders", 3)
    entry = store.topics.partitions("orders")
    directory = next(Path(store.root, "topics").iterdir())
    described = read_meta(str(directory))
    assert entry == 3 and described is not None and described.partitions == 3
    assert not list(directory.glob("*.log"))


def test_messages_stay_in_their_partition(store: Store):
    """Each has a log of its own."""
    store.topics.create_partitioned("orders", 2)
    for index in range(2):
        store.use_topic(partition(index)).topic.ledger.append(encode_single(b"%d" % index, 0, PREFIX))
    for index in range(2):
        ledger = store.use_topic(partition(index)).topic.ledger
        views = ledger.cursor(ledger.first_position(), inclusive=True).read(10, 10, 1 << 20)
        assert [view.value(0) for view in views] == [b"%d" % index]


def test_a_lost_catalog_is_made_from_the_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Partitioned topics keep their number, also the one they grew to."""
    root = tmp_path / "store"
    store = Store.open(root)
    store.topics.create_partitioned("orders", 2)
    store.grow_partitions("orders", 4)
    store.use_topic(partition(3)).topic.ledger.append(encode_single(b"3", 0, PREFIX))
    store.release()
    (root / "catalog").unlink()
    reboot(monkeypatch)
    store = Store.open(root)
    assert store.topics.partitions("orders") == 4 and store.topics.names() == [partition(i) for i in range(4)]
    assert store.use_topic(partition(3)).topic.ledger.last_position() is not None
    store.release()


def test_a_partition_that_was_about_to_come_is_not_taken_for_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Growing died and the machine too: it has to wait until the topic grows."""
    root = tmp_path / "store"
    store = Store.open(root)
    store.topics.create_partitioned("orders", 2)
    store.use_topic(partition(0)).topic.create_subscription("sub")
    with fails_at("partitions:prepared"):
        store.grow_partitions("orders", 3)
    store.release()
    reboot(monkeypatch)
    store = Store.open(root)
    assert store.topics.names() == [partition(0), partition(1)]
    with pytest.raises(TopicNotFound, match="has 2 partitions"):
        store.use_topic(partition(2))
    store.grow_partitions("orders", 3)
    assert store.use_topic(partition(2)).topic.subscriptions() == ["sub"]
    store.release()


@pytest.mark.parametrize("step", ["deletion:noted", "deletion:marked", "deletion:recorded", "deletion:moved"])
def test_a_deletion_is_finished_or_forgotten_after_a_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    """Whatever the words of its topics said."""
    root = tmp_path / "store"
    store = Store.open(root)
    store.topics.create_partitioned("orders", 2)
    store.use_topic(partition(1)).topic.ledger.append(encode_single(b"1", 0, PREFIX))
    monkeypatch.setattr(topic_deletion, "mark", lambda *_: None)  # as if it was killed: nothing is undone
    with fails_at(step):
        store.delete_partitioned_topic("orders")
    store.release()
    reboot(monkeypatch)
    store = Store.open(root)
    if step in ("deletion:noted", "deletion:marked"):
        assert store.topics.partitions("orders") == 2
        assert store.use_topic(partition(1)).topic.ledger.last_position() is not None
    else:
        assert (
            store.topics.names() == [] and os.listdir(root / "topics") == os.listdir(root / "staging") == []
        )
    store.release()


def test_an_interrupted_deletion_leaves_nothing_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C while its note is removed, which the next opening removes then."""

    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    root = tmp_path / "store"
    store = Store.open(root)
    store.use_topic("orders").release()
    with monkeypatch.context() as patch:
        patch.setattr(topic_deletion, "remove_tree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.delete_topic("orders")
    assert not store._session.catalog.lock.held
    store.release()
    Store.open(root).release()
    assert_clean(root)
    assert os.listdir(root / "staging") == os.listdir(root / "topics") == []


def test_whoever_finds_a_topic_marked_takes_the_mark_back(store: Store):
    """Its deletion died. A deleted one is not found."""
    topic = store.use_topic("orders").topic
    topic_deletion.mark(topic, DELETED)
    again = store.use_topic("orders").topic
    assert again is not topic and not again.is_deleted and topic.closed is False
    again.ledger.append(encode_single(b"x", 0, PREFIX))
    store.delete_topic("orders", force=True)
    with pytest.raises(TopicNotFound):
        store.use_topic("orders", create=False)


def test_users_of_a_deleted_topic_keep_it_open(store: Store):
    """Their instance is closed when the last of them is done, beside the one of the topic's next life."""
    uses = [store.use_topic("orders") for _ in range(2)]
    old = uses[0].topic
    store.delete_topic("orders")
    new = store.use_topic("orders")
    assert new.topic is not old and new.topic.directory == f"{old.directory}.2"
    uses[0].release()
    uses[0].release()
    assert not old.closed
    uses[1].release()
    assert old.closed and not new.topic.closed
    idle = new.topic
    store.delete_topic("orders")
    assert not idle.closed
    new.release()
    assert idle.closed


def test_changes_are_collected_for_those_who_follow(store: Store):
    """Each topic that was made, grew or was deleted, once, by any process; partitions are not topics."""
    store.topics.create_topic("orders-0")
    changes = store.topics.changes_of(lambda name: "orders" in name)
    other = Store.open(store.root)
    try:
        assert list(changes.all("public/default/")) == [f"{NAME}-0"] == list(changes.all())
        assert changes.all("public/functions/") == {} == changes.take_changes()
        other.topics.create_topic("orders-1")
        other.topics.create_topic("bills")
        other.topics.create_partitioned("orders", 2)
        other.use_topic("orders-partition-1").release()
        other.use_topic("orders-partition-7x").release()
        store.delete_topic("orders-0")
        found = changes.take_changes()
        assert {name: entry and entry.partitions for name, entry in found.items()} == {
            f"{NAME}-1": 0,
            NAME: 2,
            f"{NAME}-partition-7x": 0,
            f"{NAME}-0": None,
        }
        store.grow_partitions("orders", 3)
        store.delete_topic("orders-1")
        store.topics.create_topic("orders-1")
        again = changes.take_changes()
        assert again[NAME].partitions == 3
        assert again[f"{NAME}-1"].incarnation != found[f"{NAME}-1"].incarnation
        store.delete_partitioned_topic("orders")
        assert changes.take_changes()[NAME] is None
        changes.close()
        changes.close()
        store.topics.create_topic("orders-2")
        assert changes.take_changes() == {}
    finally:
        other.release()
