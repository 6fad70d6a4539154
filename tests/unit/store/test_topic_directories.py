"""Making topics: every crash point, every power loss, and healing."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_single
from embeddedpulsar._engine.platform import disk, failpoints, timing
from embeddedpulsar._engine.store.root_layout import read_meta, remove_tree, write_meta
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.exceptions import CorruptionError
from tests.support.disks.fake_disk import FakeDisk

PREFIX = ProducerPrefix("p", 0)
MINE = ("store:", "topic:", "announced:", "catalog:", "ledger_ids:", "document:")


def points() -> list[str]:
    """Every failpoint of the creation of stores and topics."""
    return [name for name in failpoints.names() if name.startswith(MINE)]


def work(root: Path) -> None:
    """Make a store, a namespace and two topics, one of which has no directory at first, and publish."""
    store = Store.open(root)
    if not store.topics.has("invoices"):
        store.topics.create_topic("invoices")
    for name in ("orders", "invoices"):
        store.use_topic(name).topic.ledger.append(encode_single(name.encode(), 0, PREFIX))
    store.topics.namespaces.create("acme/sales")
    store.release()


def check(root: Path) -> None:
    """The work can be done in what is there, and is complete then; nothing is listed twice or left in
    staging."""
    work(root)
    store = Store.open(root)
    names = store.topics.names()
    assert sorted(names) == [f"persistent://public/default/{name}" for name in ("invoices", "orders")]
    assert store.topics.namespaces.names().count("acme/sales") == 1
    assert len(os.listdir(root / "topics")) == 2
    ledgers = []
    for name in names:
        ledger = store.use_topic(name).topic.ledger
        views = ledger.cursor(ledger.first_position(), inclusive=True).read(100, 100, 1 << 20)
        assert {view.value(0) for view in views} == {name.rpartition("/")[2].encode()}
        ledgers += [segment.ledger_id for segment in ledger.segments()]
    assert len(ledgers) == len(set(ledgers))
    store.release()


def die_in_child(body: Callable[[], None]) -> int:
    """Run ``body`` in a forked child; the signal that killed it, 0 if it came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("point", points())
@pytest.mark.parametrize("nth", [1, 2])
def test_a_process_killed_at_any_step_leaves_a_store_to_go_on_with(tmp_path: Path, point: str, nth: int):
    """SIGKILL at the first and second hit of every failpoint: the next process completes the work, in this
    boot."""
    root = tmp_path / "store"

    def body() -> None:
        failpoints.set(point, "kill", nth=nth)
        work(root)

    status = die_in_child(body)
    assert status == -signal.SIGKILL or (status == 0 and nth > 1)
    check(root)


@pytest.mark.parametrize("point", [name for name in points() if name != "store:healed"])
def test_an_error_at_any_step_leaves_the_process_able_to_go_on(tmp_path: Path, point: str):
    """The step raises: no lock, descriptor or half-made topic keeps the same process from trying again."""
    root = tmp_path / "store"
    failpoints.set(point, "raise:OSError")
    gc.collect()  # what tests before this one left is closed now
    before = len(os.listdir("/proc/self/fd"))
    try:
        with pytest.raises(OSError):
            work(root)
    finally:
        failpoints.clear()
        from embeddedpulsar._engine.store.store import REGISTRY

        REGISTRY.close_all()
    assert len(os.listdir("/proc/self/fd")) == before
    check(root)


def power_losses(fake: FakeDisk, tmp_path: Path, count: int):
    """Images of the root after a power loss now."""
    state = fake.capture()
    for seed in range(count):
        image = tmp_path / f"image{seed}"
        state.write_image(random.Random(seed), str(image))
        yield image
        shutil.rmtree(image)


def test_what_was_made_at_level_flush_survives_a_power_loss(tmp_path: Path, monkeypatch):
    """Topics, namespaces and messages that were acknowledged are there in every possible image."""
    root = tmp_path / "store"
    root.mkdir()
    fake = FakeDisk(root)
    with disk.use(fake):
        store = Store.open(root, durability="flush")
        store.topics.namespaces.create("acme/sales")
        for name in ("orders", "acme/sales/invoices"):
            store.use_topic(name).topic.ledger.append(encode_single(b"x", 0, PREFIX))
        images = list(power_losses(fake, tmp_path, 0))
        for image in power_losses(fake, tmp_path, 40):
            monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
            images.append(image)
            with disk.use(disk.Disk()):
                copy = Store.open(image)
                assert (
                    copy.topics.names() == store.topics.names()
                    and copy._current().meta.store_id == store._current().meta.store_id
                )
                assert "acme/sales" in copy.topics.namespaces.names()
                for name in copy.topics.names():
                    ledger = copy.use_topic(name).topic.ledger
                    assert ledger.messages_after(ledger.first_position()._replace(entry_id=-1)) == 1
                copy.release()
        store.release()
    assert len(images) == 40


def test_a_store_at_level_process_opens_after_any_power_loss(tmp_path: Path, monkeypatch):
    """Messages and topics of the last seconds may be gone; the store, its identity and what is left work."""
    root = tmp_path / "store"
    root.mkdir()
    fake = FakeDisk(root)
    with disk.use(fake):
        store = Store.open(root)
        last = 0
        for number in range(6):
            last = store.use_topic(f"t{number}").topic.ledger.append(encode_single(b"x", 0, PREFIX))[0]
        found = set()
        for image in power_losses(fake, tmp_path, 60):
            monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
            with disk.use(disk.Disk()):
                copy = Store.open(image)
                assert copy._current().meta.store_id == store._current().meta.store_id
                found.add(len(copy.topics.names()))
                for number in range(6):
                    topic = copy.use_topic(f"t{number}").topic
                    ledger_id = topic.ledger.append(encode_single(b"y", 0, PREFIX))[0]
                    assert ledger_id > last, "ids that may have been seen are not used again"
                assert len(copy.topics.names()) == 6
                copy.release()
        store.release()
    assert len(found) > 1, "the images differ"


def test_a_topic_of_which_only_the_control_words_are_left(tmp_path: Path):
    """A power loss may take its description, its segments and its place in the catalog, at level process."""
    root = tmp_path / "store"
    store = Store.open(root)
    directory = Path(store.use_topic("orders").topic.ledger.directory)
    store.release()
    (directory / "topic.meta").unlink()
    (root / "catalog").unlink()
    store = Store.open(root)
    store.use_topic("orders").topic.ledger.append(encode_single(b"x", 0, PREFIX))
    store.release()
    assert (directory / "topic.meta").exists()


def test_a_flush_producer_makes_its_topic_durable(tmp_path: Path, monkeypatch):
    """In a store at level process, a producer that asks for more first makes the topic itself findable."""
    root = tmp_path / "store"
    root.mkdir()
    fake = FakeDisk(root)
    with disk.use(fake):
        store = Store.open(root)
        topic = store.use_topic("orders").topic
        topic.attach_producer(durability="flush")
        topic.ledger.append(encode_single(b"x", 0, PREFIX), "flush")
        for image in power_losses(fake, tmp_path, 30):
            monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
            with disk.use(disk.Disk()):
                copy = Store.open(image)
                assert copy.topics.has("orders")
                assert copy.use_topic("orders").topic.ledger.last_position() is not None
                copy.release()
        store.release()


def test_a_directory_of_another_name_is_refused(tmp_path: Path):
    """Two names whose hashes meet, or a directory that was moved: never silently one topic."""
    store = Store.open(tmp_path / "store")
    topic = store.use_topic("orders").topic
    entry = read_meta(topic.directory)
    assert entry is not None and entry.name == topic.name
    store.release()
    write_meta(topic.directory, entry._replace(name="persistent://public/default/else"), durable=False)
    store = Store.open(tmp_path / "store")
    with pytest.raises(CorruptionError, match=r"else, not persistent://public/default/orders"):
        store.use_topic("orders")
    store.release()


def test_a_topic_directory_that_is_gone_is_made_again(tmp_path: Path):
    """The catalog knows the topic; its messages are gone with the directory, the topic is not."""
    store = Store.open(tmp_path / "store")
    topic = store.use_topic("orders").topic
    incarnation = topic.incarnation
    store.release()
    shutil.rmtree(topic.directory)
    store = Store.open(tmp_path / "store")
    again = store.use_topic("orders").topic
    assert again.incarnation == incarnation and again.ledger.last_position() is None
    store.release()


def test_a_topic_without_record_and_description_keeps_its_segments(tmp_path: Path):
    """The incarnation is read from the segments, so that what was stored stays readable."""
    store = Store.open(tmp_path / "store")
    topic = store.use_topic("orders").topic
    topic.ledger.append(encode_single(b"x", 0, PREFIX))
    store.release()
    os.truncate(tmp_path / "store" / "catalog", 64)
    os.unlink(os.path.join(topic.directory, "topic.meta"))
    store = Store.open(tmp_path / "store")
    again = store.use_topic("orders").topic
    assert again.incarnation == topic.incarnation
    ledger = again.ledger
    assert ledger.cursor(ledger.first_position(), inclusive=True).read(1, 1, 1 << 20)[0].value(0) == b"x"
    store.release()


def test_removing_a_tree_does_not_follow_links(tmp_path: Path):
    """What a link points to is somebody else's."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "tree" / "sub" / "file").write_text("x")
    remove_tree(str(tmp_path / "tree"))
    assert not (tmp_path / "tree").exists() and (tmp_path / "kept" / "file").exists()
