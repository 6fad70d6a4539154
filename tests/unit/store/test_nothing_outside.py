"""What lies outside of a store stays as it is: links in place of its directories, names in its records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    ConsumerType,
    CorruptionError,
    InitialPosition,
    MessageId,
    PulsarException,
)
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.document import KIND_SINK_COMMIT, encode_document
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.care.backup_target import read_manifest
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar._engine.store.catalog import Catalog
from embeddedpulsar.exceptions import ForeignFileError, StorageOSError
from embeddedpulsar.spark.sink_place import SinkPlace
from embeddedpulsar.testing import assert_clean

DECOYS = ("lock", "ctl", "keys", "00000000000000000001.log", "policies", "topic.meta", "store.lock", "x.tmp")
LONG_AGO = 1_500_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store with one topic, a subscription with a backlog, a policy and a sink."""
    path = tmp_path / "place" / "store"
    path.parent.mkdir()
    fill(path)
    SinkPlace(str(path), "0" * 32).make()
    return path


def fill(path: Path) -> None:
    with Client(path) as client, Admin(path) as admin:
        consumer = client.subscribe("t", "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        producer = client.create_producer("t")
        for number in range(5):
            producer.send(b"%d" % number)
        consumer.acknowledge(consumer.receive(1000))
        admin.namespaces().set_retention("public/default", 10, 10)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with files that have names of a store, and are long unused."""
    place = tmp_path / "outside"
    (place / "s-directory").mkdir(parents=True)
    for name in DECOYS:
        (place / name).write_bytes(b"of somebody else")
        (place / "s-directory" / name).write_bytes(b"of somebody else")
    for path in (*place.rglob("*"), place):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return place


def state(place: Path) -> object:
    """What is in a directory, and whose it is."""
    found = []
    for path in sorted((place, *place.rglob("*"))):
        status = path.lstat()
        read = path.read_bytes() if path.is_file() else b""
        found.append((path.name, read, status.st_mode, status.st_uid, status.st_mtime_ns))
    return found


def use(root: Path) -> Iterator[Exception]:
    """Do what touches each of the directories; gives the errors."""

    def attempt(call: Callable[[], object]) -> Iterator[Exception]:
        try:
            call()
        except (PulsarException, OSError) as error:
            yield error

    try:
        with Client(root) as client, Admin(root) as admin:
            yield from attempt(lambda: client.create_producer("t").send(b"more"))
            yield from attempt(lambda: client.subscribe("t", "s", ConsumerType.Shared).receive(10))
            yield from attempt(lambda: client.subscribe("t", "new").close())
            yield from attempt(lambda: client.create_reader("t", MessageId.earliest).close())
            yield from attempt(lambda: client.create_producer("new").send(b"1"))
            yield from attempt(lambda: admin.namespaces().set_retention("public/default", 20, 20))
            yield from attempt(lambda: admin.topics().trim_topic("t"))
            yield from attempt(lambda: admin.topics().delete_subscription("t", "s"))
            yield from attempt(lambda: admin.check())
            yield from (StorageOSError(found.text, path=found.path) for found in admin.check().problems)
            yield from attempt(lambda: admin.backup(f"{root}-backup"))
            yield from attempt(lambda: admin.topics().delete("t", force=True))
    except (PulsarException, OSError) as error:
        yield error
    yield from attempt(lambda: check_store(root))
    yield from attempt(lambda: repair_store(str(root)))


@pytest.mark.parametrize(
    "pattern",
    [
        *("staging", "topics", "clients", "tenants", "sinks", "sinks/*", "quarantine", "offloaded"),
        *("topics/t-*", "topics/t-*/subscriptions", "topics/t-*/subscriptions/s-*", "topics/t-*/pins"),
    ],
)
def test_a_link_in_place_of_a_directory_is_followed_by_nobody(root: Path, outside: Path, pattern: str):
    """Whatever is done with the store. Where an error is raised, one names the link and the remedy."""
    place = next(iter(root.glob(pattern)), None) or root / pattern.replace(
        "t-*", os.listdir(root / "topics")[0]
    )
    if place.exists():
        place.rename(root.parent / "aside")
    place.symlink_to(outside)
    before = state(outside)
    errors = list(use(root))
    assert state(outside) == before
    assert any(
        f"{place}: {text} symbolic link" in str(error) for error in errors for text in ("it is a", "a")
    ), errors


def test_a_link_put_there_while_the_store_is_open(root: Path, outside: Path):
    """What is opened by its name from then on, is not."""
    before = state(outside)
    with Client(root) as client:
        producer = client.create_producer("t")
        topic = next((root / "topics").glob("t-*"))
        topic.rename(root.parent / "aside")
        topic.symlink_to(outside)
        for call in (lambda: producer.send(b"more"), lambda: client.subscribe("t", "other")):
            with pytest.raises(StorageOSError, match=r"t-.*: it is a symbolic link to .*outside"):
                call()
        (root / "topics").rename(root.parent / "topics")
        (root / "topics").symlink_to(outside)
        with pytest.raises(StorageOSError, match=r"topics: it is a symbolic link to .*outside"):
            client.create_producer("new")
    assert state(outside) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
@pytest.mark.parametrize("pattern", ["topics", "clients", "staging", "topics/t-*"])
def test_a_directory_of_another_user_is_not_used(root: Path, pattern: str):
    """Unless its group is that of the store: a member of a group may not give it to the owner."""
    (place,) = root.glob(pattern)
    os.chown(root, 4711, 4712)
    for uid, gid, is_used in ((4713, 4714, False), (4713, 4712, True), (4711, 1, True), (0, 0, True)):
        os.chown(place, uid, gid)
        errors = list(use_a_little(root))
        assert not errors == is_used, errors
        if not is_used:
            assert f"{place}: it belongs to user id 4713" in str(errors[0])
            assert f"chown -R 4711:4712 {place}" in str(errors[0])
            assert isinstance(errors[0], ForeignFileError)


def use_a_little(root: Path) -> Iterator[Exception]:
    try:
        with Client(root) as client:
            client.create_producer("t").send(b"more")
    except (PulsarException, OSError) as error:
        yield error


# -- names in records -------------------------------------------------------------------------------


def write_record(root: Path, directory: str, name: str = "evil", *, is_made: bool = True) -> None:
    """Append what a member of the store's group could write."""
    lock = FileLock(str(root / "catalog.lock"))
    try:
        lock.acquire()
        catalog = Catalog(str(root / "catalog"), lock)
        catalog.append_topics(
            [TopicEntry(f"persistent://public/default/{name}", directory, 7, is_made=is_made)],
            1,
            durable=False,
        )
        catalog.close()
    finally:
        lock.release()
        lock.close()


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize(
    "directory", ["../../outside", "..", ".", "/etc", "../topics", "t-other", "ab/../../../outside", "a/b"]
)
def test_a_name_in_the_catalog(root: Path, outside: Path, directory: str, is_made: bool):
    """The record is damaged: it is listed and shown by a check; nothing is done where it leads, neither with
    the topic nor with the store; other topics work. A repair writes it right."""
    outside = outside.rename(root.parent / "outside")
    before = state(outside)
    write_record(root, directory, is_made=is_made)
    with Client(root) as client, Admin(root) as admin:
        topics = admin.topics()
        assert "persistent://public/default/evil" in topics.get_list("public/default")
        calls: list[Callable[[], object]] = [
            lambda: client.create_producer("evil"),
            lambda: client.subscribe("evil", "s"),
            lambda: topics.delete("evil", force=True),
            lambda: topics.set_retention("evil", 1, 1),
        ]
        if is_made:  # else there is nothing to be copied
            calls.append(lambda: admin.backup(str(root.parent / "backup")))
        for call in calls:
            with pytest.raises(CorruptionError, match=r"names the directory .*not one of that name.*repair"):
                call()
        client.create_producer("t").send(b"more")
        assert any("names the directory" in problem.text for problem in admin.check().problems)
    repair_store(str(root))
    with Client(root) as client:
        client.create_producer("evil").send(b"1")
    assert state(outside) == before
    assert_clean(root)


def test_a_repair_finds_the_directory_of_the_name(root: Path):
    """The messages of a topic whose record is changed are where they were."""
    with Client(root) as client:
        client.create_producer("evil").send(b"kept")
    write_record(root, "../../outside")
    repair_store(str(root))
    with Client(root) as client:
        reader = client.create_reader("evil", MessageId.earliest)
        assert reader.read_next(1000).data() == b"kept"
    assert_clean(root)


@pytest.mark.parametrize(
    "directory", ["../../outside", "..", "t-x/../../../outside", "/etc", "\udcff\0", "t-other", "ab/../x"]
)
def test_a_name_in_a_note_of_a_deletion(root: Path, outside: Path, directory: str):
    """Nothing is removed but the note; it is reported."""
    outside = outside.rename(root.parent / "outside")
    topic = next((root / "topics").glob("t-*"))
    shutil.copy(topic / "topic.meta", outside / "topic.meta")
    with Admin(root) as admin:
        admin.topics().delete("t", force=True)  # so that the note could be believed
    before = state(outside)
    (root / "staging" / "0123456789abcdef.end").write_bytes(directory.encode(errors="surrogateescape"))
    reports: list[str] = []
    with Client(root, on_damage=lambda found: reports.append(str(found))) as client:
        client.create_producer("t").send(b"1")
    assert state(outside) == before and not os.listdir(root / "staging")
    assert directory == "t-other" or any("names" in text for text in reports), reports
    assert_clean(root)


def test_a_name_in_the_record_of_a_sink(root: Path, outside: Path):
    """Rows are read from the directory of the sink only."""
    place = SinkPlace(str(root), "0" * 32)
    for name in ("../../../outside/keys", "/etc/passwd", "..", "."):
        with pytest.raises(CorruptionError, match="names the file"):
            place.file(name)
    fields = {"batch": 1, "base": 0, "producer": "p", "run": "r", "durability": "process", "codec": 0}
    fields |= {"keeps": False, "logs": [], "files": [["../../../outside/keys", 16, [[]]]]}
    Path(place.file("pending")).write_bytes(encode_document(KIND_SINK_COMMIT, fields))
    before = state(outside)
    with Admin(root) as admin, pytest.raises(CorruptionError, match="names the file"):
        admin.backup(str(root.parent / "backup"))
    assert state(outside) == before


@pytest.mark.parametrize("part", ["path", "object"])
@pytest.mark.parametrize(
    "name", ["../../../outside/keys", "/etc/passwd", "aa/../../../../outside/keys", ".."]
)
def test_a_name_in_a_backup(root: Path, outside: Path, part: str, name: str):
    """A manifest that names another file is damaged: nothing is restored, and no backup is added to it."""
    target = root.parent / "backup"
    with Admin(root) as admin:
        admin.backup(str(target))
    manifest = read_manifest(str(target))
    assert manifest is not None
    first, record = next(iter(manifest.files.items()))
    files = manifest.files | {first: record._replace(**{part: name})}
    manifest._replace(files=files).write(str(target))
    before = state(outside)
    with pytest.raises(CorruptionError, match="manifest is damaged: it names the file"):
        Admin.restore(str(target), str(root.parent / "restored"))
    with Admin(root) as admin, pytest.raises(CorruptionError, match="manifest is damaged"):
        admin.backup(str(target))
    assert state(outside) == before and not (root.parent / "restored").exists()


def test_a_name_in_the_catalog_of_a_backup(root: Path, outside: Path):
    """Nothing is made outside of the restored store, which is not made either."""
    outside = outside.rename(root.parent / "outside")
    target = root.parent / "backup"
    with Admin(root) as admin:
        admin.backup(str(target))
    manifest = read_manifest(str(target))
    assert manifest is not None
    copy = root.parent / "copy"
    copy.mkdir()
    shutil.copy(target / "objects" / manifest.files["catalog"].object, copy / "catalog")
    write_record(copy, "../../outside")
    data = (copy / "catalog").read_bytes()
    record = manifest.files["catalog"]
    (target / "objects" / record.object).write_bytes(data)
    files = manifest.files | {"catalog": record._replace(length=len(data), size=len(data), crc=crc32(data))}
    manifest._replace(files=files).write(str(target))
    before = state(outside)
    with pytest.raises(CorruptionError, match="names the directory"):
        Admin.restore(str(target), str(root.parent / "restored"))
    assert state(outside) == before and not (root.parent / "restored").exists()


# -- links to a store -------------------------------------------------------------------------------


def test_a_store_a_backup_and_a_restore_through_links(tmp_path: Path):
    """Empty or full, the directory that a link leads to is used as if it had been named itself."""
    for name in ("data", "backups", "restored"):
        (tmp_path / "disk" / name).mkdir(parents=True)
        (tmp_path / name).symlink_to(f"disk/{name}")
    (tmp_path / "also").symlink_to("data")
    fill(tmp_path / "data")
    with Client(tmp_path / "also" / ".") as client, Client(tmp_path / "disk" / "data") as other:
        producer, reader = client.create_producer("t"), other.create_reader("t", MessageId.latest)
        producer.send(b"one store")
        assert reader.read_next(1000).data() == b"one store"
    with Admin(tmp_path / "data") as admin:
        for _ in range(2):
            admin.backup(str(tmp_path / "backups"))
        assert not admin.check().damage
    Admin.restore(str(tmp_path / "backups"), str(tmp_path / "restored"))
    for name in ("data", "restored"):
        assert (tmp_path / name).is_symlink()
        repair_store(str(tmp_path / name))
        assert not check_store(tmp_path / name).damage
        assert_clean(tmp_path / "disk" / name)
    assert sorted(os.listdir(tmp_path)) == ["also", "backups", "data", "disk", "restored"]


def test_a_link_to_a_disk_that_is_not_mounted(tmp_path: Path):
    """The store is not made in its place."""
    (tmp_path / "data").symlink_to("disk/data")
    with pytest.raises(ForeignFileError, match="which is not there; mount or make"):
        Client(tmp_path / "data")
    assert os.listdir(tmp_path) == ["data"]
