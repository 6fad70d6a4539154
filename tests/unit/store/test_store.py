"""The store: opening, sharing, topics and namespaces, settings, refusals, closing, forking."""

from __future__ import annotations

import errno
import gc
import logging
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import StoreWord
from embeddedpulsar._engine.format.document import KIND_STORE_META, encode_document
from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_single
from embeddedpulsar._engine.log.log_opening import LedgerOptions
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform import disk, filesystem, timing
from embeddedpulsar._engine.platform.lease import lease_path
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar._engine.store.store import REGISTRY, Store
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CorruptionError,
    ForeignFileError,
    InvalidConfiguration,
    InvalidTopicName,
    NetworkFilesystemError,
    StorageError,
    StorageOSError,
    TopicNotFound,
    UnsupportedFormatVersion,
)
from tests.support.disks.faulty_disk import FaultyDisk

PREFIX = ProducerPrefix("p", 0)
NAME = "persistent://public/default/orders"


def publish(store: Store, name: str, payload: bytes) -> tuple[int, int, int]:
    """Append one message."""
    log, entry = store.use_topic(name).topic.ledger, encode_single(payload, 0, PREFIX)
    return log.append(entry) if isinstance(log, ManagedLedger) else log.append_nowait(entry)[:3]


def payloads(store: Store, name: str) -> list[bytes]:
    """Everything in a topic."""
    ledger = store.use_topic(name).topic.ledger
    views = ledger.cursor(ledger.first_position(), inclusive=True).read(1000, 1000, 1 << 30)
    return [view.value(0) for view in views]


def descriptors() -> list[str]:
    """What this process has open."""
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the listing itself
    return sorted(found)


def test_a_store_is_made_private_and_found_again(root: Path):
    """The root gets mode 0700, its files 0600; the identity stays over reopening."""
    store = Store.open(root)
    identity = store._current().meta.store_id
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for path in root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    publish(store, "orders", b"one")
    store.release()
    again = Store.open(str(root))
    assert again._current().meta.store_id == identity and again.topics.names() == [NAME]
    assert payloads(again, "orders") == [b"one"]
    again.release()


def test_one_directory_is_one_store_however_it_is_spelled(root: Path, tmp_path: Path, monkeypatch):
    """Absolute, relative, with dots, through a link: one instance, counted."""
    store = Store.open(root)
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    for spelling in ("store", "./store/", "store/../store", tmp_path / "link"):
        assert Store.open(spelling) is store
    for _ in range(4):
        store.release()
    assert not store.closed and store.use_topic("orders").topic is store.use_topic(NAME).topic
    store.release()
    assert store.closed and store not in REGISTRY.stores.values()
    with pytest.raises(AlreadyClosed, match=str(root)):
        store.release()
    with pytest.raises(AlreadyClosed):
        store.use_topic("orders")


def test_a_directory_made_anew_is_another_store(root: Path, tmp_path: Path):
    """Its inode cannot be mistaken for the old one's, which stays open as long as its store."""
    old = Store.open(root)
    root.rename(tmp_path / "moved")
    new = Store.open(root)
    assert new is not old and new._current().meta.store_id != old._current().meta.store_id
    old.release()
    new.release()


def test_nothing_is_left_open_after_the_last_release(root: Path):
    """No descriptor, no thread, no FIFO, whatever was used."""
    gc.collect()  # what tests before this one left is closed now
    before, threads_before = descriptors(), threading.active_count()
    store = Store.open(root)
    for number in range(5):
        topic = store.use_topic(f"t{number}").topic
        topic.attach_producer()
        topic.ledger.append(encode_single(b"x", 0, PREFIX), "interval" if number else None)
    store.mailbox.wait(store.mailbox.generation, 0)
    store.release()
    assert descriptors() == before
    assert threading.active_count() == threads_before
    assert os.listdir(root / "clients") == []


def test_a_failed_opening_leaves_nothing_open(root: Path):
    """Settings that are refused, last of all checks: no descriptor stays, and the store opens when
    corrected."""
    Store.open(root).release()
    (root / "broker.conf").write_text("dispatcherMaxRoundRobinBatchSize=21\n")
    gc.collect()  # what tests before this one left is closed now
    before = descriptors()
    with pytest.raises(InvalidConfiguration, match="dispatcherMaxRoundRobinBatchSize"):
        Store.open(root)
    (root / "broker.conf").write_text("maxMessageSize=x\n")
    with pytest.raises(InvalidConfiguration, match="line 1"):
        Store.open(root)
    (root / "broker.conf").write_bytes(b"maxMessageSize=\xff\xfe")
    with pytest.raises(CorruptionError, match=r"broker\.conf"):
        Store.open(root)
    (root / "broker.conf").unlink()
    (root / "catalog").rename(root / "catalog.kept.tmp")
    (root / "catalog").write_bytes(b"PK\3\4" * 40)
    with pytest.raises(CorruptionError, match="catalog"):
        Store.open(root)
    assert descriptors() == before and os.listdir(root / "clients") == []
    (root / "catalog.kept.tmp").rename(root / "catalog")
    Store.open(root).release()


def test_settings_are_honoured(root: Path, caplog):
    """broker.conf decides the sizes of ledgers and whether topics make themselves; unknown names are warned
    of."""
    root.mkdir()
    (root / "broker.conf").write_text(
        "maxMessageSize=1000\nmanagedLedgerMaxSizePerLedgerMbytes=2048\nmanagedLedgerMaxEntriesPerLedger=3\n"
        "allowAutoTopicCreation=false\nzookeeperServers=x\n"
    )
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        store = Store.open(root)
    assert "zookeeperServers" in caplog.text
    assert store.settings.maxMessageSize == 1000
    with pytest.raises(TopicNotFound, match=r"allowAutoTopicCreation=false .*use a topic that exists"):
        store.use_topic("orders")
    store.topics.create_topic("orders")
    topic = store.use_topic("orders").topic
    assert topic is store.use_topic("orders", create=False).topic
    assert topic.ledger.options.segment_size == 1 << 30 and topic.ledger.options.max_message_size == 1000
    ledgers = {publish(store, "orders", b"x")[0] for _ in range(7)}
    assert len(ledgers) == 3
    store.release()


def test_topics_are_made_listed_and_looked_up(store: Store):
    """Looking is not making; names are canonical; another namespace must exist."""
    assert not store.topics.has("orders")
    with pytest.raises(TopicNotFound, match="no such topic"):
        store.use_topic("orders", create=False)
    version = store.topics.version
    topic = store.use_topic("orders").topic
    assert topic.name == NAME and store.topics.has(NAME) and store.topics.version > version
    with pytest.raises(TopicNotFound, match=r"acme/sales.*which has public/default"):
        store.use_topic("persistent://acme/sales/orders")
    with pytest.raises(TopicNotFound):
        store.topics.create_topic("acme/sales/orders")
    store.topics.namespaces.create("acme/sales")
    store.topics.namespaces.create("acme/sales")
    assert (
        store.topics.namespaces.names()[-1] == "acme/sales"
        and store.topics.namespaces.names().count("acme/sales") == 1
    )
    store.use_topic("acme/sales/orders")
    store.use_topic("acme/sales/ünï cødé")
    assert store.topics.names("public/default") == [NAME]
    assert len(store.topics.names("acme/sales")) == 2
    for wrong in ("acme", "a/b/c", "", "a/", "a/b c"):
        with pytest.raises(InvalidTopicName):
            store.topics.namespaces.create(wrong)
    with pytest.raises(InvalidTopicName):
        store.use_topic("a/b")


def test_threads_share_one_topic(store: Store):
    """Sixteen threads ask for one new topic at once and get the same object."""
    found, start = [], threading.Barrier(16)

    def ask() -> None:
        start.wait()
        found.append(store.use_topic("orders").topic)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1 and store.topics.names() == [NAME]


def test_threads_share_one_store(root: Path):
    """Eight threads open one new directory at once."""
    found, start = [], threading.Barrier(8)

    def ask() -> None:
        start.wait()
        found.append(Store.open(root))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    for store in found:
        store.release()
    assert found[0].closed


def test_a_directory_of_something_else_is_refused(tmp_path: Path):
    """Neither other people's files nor a file are made a store; a directory with only broker.conf is."""
    (tmp_path / "holiday.jpg").write_bytes(b"jpeg")
    with pytest.raises(ForeignFileError, match=r"holiday\.jpg.*choose an empty"):
        Store.open(tmp_path)
    with pytest.raises(ForeignFileError):
        Store.open(tmp_path / "holiday.jpg")
    assert sorted(os.listdir(tmp_path)) == ["holiday.jpg"]


def test_a_store_of_a_newer_release_is_refused(root: Path):
    """The layout version is above this release's."""
    Store.open(root).release()
    fields = {"format": 3, "store_id": bytes(16), "created_ms": 1}
    (root / "store.meta").write_bytes(encode_document(KIND_STORE_META, fields))
    with pytest.raises(UnsupportedFormatVersion, match=r"store\.meta.*upgrade"):
        Store.open(root)


@pytest.mark.parametrize(
    "damage", [b"", b"EPDC" + bytes(40), encode_document(KIND_STORE_META, {"format": 1})]
)
def test_a_damaged_store_meta_is_reported_by_name(root: Path, damage: bytes):
    """It is not made anew: the identity of the store would be lost."""
    Store.open(root).release()
    (root / "store.meta").write_bytes(damage)
    with pytest.raises(CorruptionError, match=r"store\.meta"):
        Store.open(root)


def test_a_store_whose_meta_is_gone_is_not_made_anew(root: Path):
    """Unless nothing was in it."""
    store = Store.open(root)
    store.use_topic("orders")
    store.release()
    (root / "store.meta").unlink()
    with pytest.raises(CorruptionError, match=r"store\.meta.*missing.*restore"):
        Store.open(root)


def test_a_network_file_system_is_refused_unless_allowed(root: Path, monkeypatch):
    """Locks and maps are not shared there."""
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path, mounts=None: "nfs4")
    with pytest.raises(NetworkFilesystemError, match="allow_network_fs"):
        Store.open(root)
    Store.open(root, allow_network_fs=True).release()


def test_an_unknown_durability_is_refused(root: Path):
    """Before anything is made."""
    with pytest.raises(ValueError, match="durability"):
        Store.open(root, durability="eventually")
    assert not root.exists()


def test_a_new_boot_heals_catalog_and_leftovers(root: Path, monkeypatch, caplog):
    """The first opening after a reboot adds topics the catalog lost, clears staging, keeps ids rising."""
    store = Store.open(root)
    publish(store, "orders", b"one")
    highest = publish(store, "other", b"two")[0]
    store.release()
    os.truncate(root / "catalog", 64)
    (root / "staging" / "half").mkdir()
    (root / "staging" / "half" / "topic.meta").write_bytes(b"")
    os.mkdir(root / "topics" / "t-nameless")
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        store = Store.open(root)
    assert "orders was missing from the catalog" in caplog.text and "t-nameless" in caplog.text
    assert set(store.topics.names()) == {NAME, NAME.replace("orders", "other")}
    assert payloads(store, "orders") == [b"one"] and payloads(store, "other") == [b"two"]
    assert publish(store, "third", b"x")[0] > highest
    assert os.listdir(root / "staging") == []
    assert store._current().client_number == 10_000
    store.release()


def test_control_words_that_are_lost_are_found_again_from_the_files(root: Path):
    """Without store.ctl the highest ledger id in the topics counts, with room for ids only journals
    mention."""
    store = Store.open(root)
    highest = publish(store, "orders", b"one")[0]
    store.release()
    (root / "store.ctl").unlink()
    store = Store.open(root)
    assert publish(store, "other", b"two")[0] > highest + 60_000
    store.release()


def test_a_catalog_that_is_damaged_is_kept_and_made_anew_after_a_reboot(root: Path, monkeypatch, caplog):
    """From the topics' own descriptions; the old bytes stay beside it."""
    store = Store.open(root)
    publish(store, "orders", b"one")
    store.release()
    (root / "catalog").write_bytes(bytes(300))
    with pytest.raises(CorruptionError, match="catalog"):
        Store.open(root)
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        store = Store.open(root)
    assert payloads(store, "orders") == [b"one"]
    assert (root / "catalog.damaged.tmp").read_bytes() == bytes(300)
    store.release()


def test_memory_stores_are_private_and_vanish():
    """Each is its own, in shared memory, and gone when closed."""
    one, other = Store.open("memory://"), Store.open("memory://")
    assert one is not other and one.memory_url and one.root != other.root
    publish(one, "orders", b"x")
    assert not other.topics.has("orders")
    for store in (one, other):
        store.release()
        assert not os.path.exists(store.root)


def test_what_was_forgotten_is_closed_at_the_end_of_the_process(root: Path):
    """As atexit does it: doorbells and memory go, though nobody closed."""
    stores = [Store.open(root), Store.open(root), Store.open("memory://")]
    REGISTRY.close_all()
    assert all(store.closed for store in stores)
    assert os.listdir(root / "clients") == [] and not os.path.exists(stores[2].root)


def test_options_for_tests_reach_the_ledgers(root: Path):
    """Small segments, for instance."""
    store = Store.open(root, options=LedgerOptions(max_entries=2))
    assert len({publish(store, "orders", b"x")[0] for _ in range(6)}) == 3
    store.release()


def test_a_forked_child_revives_the_store(root: Path):
    """The child has a doorbell and number of its own, sees and adds messages; closing there leaves the
    parent be."""
    store = Store.open(root)
    topic = store.use_topic("orders").topic
    publish(store, "orders", b"parent")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = ""
        try:
            try:
                topic.attach_producer()
            except AlreadyClosed as e:
                answer += "closed " if "parent" in str(e) else repr(e)
            child_topic = store.use_topic("orders").topic
            registration = child_topic.attach_producer()
            publish(store, "orders", b"child")
            answer += f"{store._current().client_number} {store.mailbox.uuid.hex()} {registration.name}"
            store.release()
        except BaseException as e:
            answer += repr(e)
        finally:
            os.write(write, answer.encode())
            os._exit(0)
    os.waitpid(pid, 0)
    words = os.read(read, 1000).decode().split()
    os.close(read)
    os.close(write)
    assert words[0] == "closed" and words[1] == "1" and words[3] == "standalone-1-0"
    assert words[2] != store.mailbox.uuid.hex()
    assert payloads(store, "orders") == [b"parent", b"child"]
    assert publish(store, "orders", b"parent again")[1] == 2
    assert os.listdir(root / "clients") == [store.mailbox.uuid.hex()]
    store.release()


def test_repr_says_the_state(store: Store):
    """Path, state and number of topics."""
    store.use_topic("orders")
    assert "open topics=1" in repr(store)
    store.release()
    assert "closed" in repr(store)


def test_making_a_topic_at_level_process_flushes_nothing(root: Path):
    """Only its first ledger does, for the block of ids."""
    store = Store.open(root)
    store.use_topic("before").topic.ledger.append(encode_single(b"x", 0, PREFIX))
    counting, flushes = disk.Disk(), []
    counting.fsync = counting.fdatasync = lambda fd, path: flushes.append(path)  # type: ignore[method-assign]
    counting.fsync_dir = flushes.append  # type: ignore[method-assign]
    with disk.use(counting):
        topic = store.use_topic("orders").topic
        topic.attach_producer()
        topic.ledger.append(encode_single(b"x", 0, PREFIX))
        assert flushes == []
        topic.ensure_durable()
        assert len(flushes) == 4
        topic.ensure_durable()
        assert len(flushes) == 4
    store.release()


def test_closing_goes_on_when_a_topic_cannot_be_closed_in_order(root: Path):
    """A flush that fails at the end comes out as an error; everything else is closed all the same."""
    gc.collect()  # what tests before this one left is closed now
    before = descriptors()
    store = Store.open(root, durability="interval")
    publish(store, "orders", b"x")
    publish(store, "other", b"x")
    faulty = FaultyDisk()
    faulty.fail(call="fdatasync", nth=1, errno=errno.EIO)
    with disk.use(faulty), pytest.raises(StorageError):
        store.release()
    assert store.closed and store not in REGISTRY.stores.values()
    assert descriptors() == before and os.listdir(root / "clients") == []


@pytest.mark.parametrize("state", ["damaged", "gone"])
def test_a_damaged_description_is_reported(root: Path, caplog, state: str):
    """A topic whose record the catalog lost, with a damaged topic.meta: adopted, and the log says so."""
    store = Store.open(root)
    first = publish(store, "orders", b"kept")
    meta = Path(store.use_topic("orders").topic.ledger.directory) / "topic.meta"
    store.release()
    (root / "catalog").unlink()
    if state == "gone":
        meta.unlink()
    else:
        meta.write_bytes(b"\xee" * 40)
    store = Store.open(root)
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        topic = store.use_topic("orders").topic
    assert str(meta) in caplog.text
    assert "written again for the topic persistent://public/default/orders" in caplog.text
    assert topic.ledger.last_position() == first[:2]
    caplog.clear()
    assert store.use_topic("orders").topic is topic and not caplog.text
    store.release()


def test_a_cleaner_may_remove_the_directory_of_fifos_while_a_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is made again as often as it goes; of a store that is gone nothing is made again."""
    root = tmp_path / "store"
    clients = root / "clients"
    Store.open(root).release()
    find_rights, removals = disk.rights_in, iter(range(3))

    def remove_first(directory: str) -> object:
        if directory == str(clients) and next(removals, None) is not None:
            os.rmdir(directory)
        return find_rights(directory)

    monkeypatch.setattr(disk, "rights_in", remove_first)
    store = Store.open(root)
    assert os.path.exists(lease_path(str(clients), store.mailbox.uuid))
    store.release()

    def remove_all(directory: str) -> object:
        if directory == str(clients):
            shutil.rmtree(root)
        return find_rights(directory)

    monkeypatch.setattr(disk, "rights_in", remove_all)
    with pytest.raises(StorageOSError, match="removed"):
        Store.open(root)
    assert not root.exists()


def test_the_end_of_a_namespace_is_a_change_of_its_policies(store: Store):
    """Other processes keep what they read: a namespace made again has no policies there either."""
    store.topics.namespaces.create("acme/sales")
    store.set_policy("acme/sales", DEDUPLICATION, True)
    words = store._present().control.words
    before = words[StoreWord.POLICIES]
    store.topics.namespaces.delete("acme/sales")
    assert words[StoreWord.POLICIES] == before + 2
    store.topics.namespaces.create("acme/sales")
    assert store.own_policy("acme/sales", DEDUPLICATION) is None
    assert words[StoreWord.POLICIES] == before + 2
