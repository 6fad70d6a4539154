"""The sorted index of the catalog: it says what the log says, whatever happens to it."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.catalog import Catalog
from embeddedpulsar.exceptions import CorruptionError, StorageFullError
from tests.support.disks.fake_disk import FakeDisk

AFTER = 8


class Site:
    """A catalog that several processes would have open, and what it should say."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "catalog"
        self.index = directory / "catalog.index"
        Catalog.create(str(self.path))
        self.topics: dict[str, TopicEntry] = {}
        self.lives: dict[str, tuple[int, int]] = {}
        self.namespaces: list[str] = []
        self._open: list[Catalog] = []

    def open(self, index_after: int = AFTER) -> Catalog:
        lock = FileLock(f"{self.path}.lock")
        self._open.append(Catalog(str(self.path), lock, index_after=index_after))
        return self._open[-1]

    def change(self, catalog: Catalog, rng: random.Random) -> None:
        """Make, grow or delete a topic, or make a namespace."""
        namespace = rng.choice(["public/default", "a/b", "a/bc"])
        name = f"persistent://{namespace}/{rng.choice('aäz')}{rng.randrange(30)}"
        known = self.topics.get(name)
        what = rng.random()
        if what < 0.1:
            self.namespaces.append(f"n/{len(self.namespaces)}")
            catalog.append_namespace(self.namespaces[-1], 1, durable=False)
        elif known is None or what < 0.4:
            incarnation = rng.randrange(1, 1 << 64) if known is None else known.incarnation
            entry = TopicEntry(name, f"t-{rng.randrange(99)}", incarnation, rng.randrange(3))
            catalog.append_topic(entry, 1, durable=False)
            self.topics[name] = entry
        else:
            catalog.append_topic_deleted(known, 1, durable=False)
            del self.topics[name]
            self.lives[name] = self.lives.get(name, (0, 0))[0] + 1, known.incarnation

    def change_often(self, catalog: Catalog, rng: random.Random, times: int) -> None:
        """Do that so many times."""
        for _ in range(times):
            self.change(catalog, rng)

    def check(self, catalog: Catalog) -> None:
        """Each way to ask gives what was recorded."""
        expected = [self.topics[name] for name in sorted(self.topics)]
        assert catalog.topics() == expected
        for prefix in ("persistent://a/b", "persistent://a/b/", "persistent://a/b/ä1", "x", ""):
            found = catalog.listed(prefix)
            assert found == [(one.name, one.partitions) for one in expected if one.name.startswith(prefix)]
        assert [entry.name for entry in catalog.topics("a/b")] == [
            name for name, _ in catalog.listed_in("a/b")
        ]
        for name in {*self.topics, *self.lives, "persistent://public/default/none"}:
            assert catalog.find(name) == self.topics.get(name)
            assert catalog.ended(name) == self.lives.get(name, (0, 0))
        assert catalog.ended_lives() == {name: incarnation for name, (_, incarnation) in self.lives.items()}
        assert catalog.namespaces()[3:] == self.namespaces and catalog.tenants()[2:] == ["n"] * bool(
            self.namespaces
        )

    def close(self) -> None:
        for one in self._open:
            one.close()
            one.lock.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A new catalog; no descriptor is left."""
    gc.collect()  # what tests before this one left open is closed now, not in between
    before = len(os.listdir("/proc/self/fd"))
    made = Site(tmp_path)
    yield made
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("seed", range(6))
def test_the_index_says_what_the_log_says(site: Site, seed: int):
    """Two writers and a reader that asks seldom, through many indexes; and so does one that opens it anew."""
    rng = random.Random(seed)
    writers, reader = [site.open(), site.open()], site.open()
    for step in range(300):
        site.change(rng.choice(writers), rng)
        if step % 60 == 59:
            for one in (*writers, reader, site.open(), site.open(10**6)):
                site.check(one)
    indexed = site.open()
    assert indexed._table.index is not None and indexed._table.changes < AFTER
    os.unlink(site.index)
    site.check(site.open())


def test_who_only_reads_lets_go_of_what_an_index_covers(site: Site):
    """Memory holds what changed since the index, also where another process makes it."""
    rng, writer, reader = random.Random(1), site.open(), site.open()
    for _ in range(20 * AFTER):
        site.change(writer, rng)
        reader.catch_up()
    assert reader._table.changes <= 2 * AFTER and reader._table.index is not None
    site.check(reader)


def test_an_index_with_any_byte_changed_is_not_used(site: Site):
    """Cut, changed, of another catalog or of a catalog that is shorter: the log is read instead."""
    rng, writer = random.Random(2), site.open()
    site.change_often(writer, rng, 60)
    good = site.index.read_bytes()
    for at in range(0, len(good), 7):
        site.index.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        damaged = site.open()
        assert damaged._table.index is None
        damaged.close()
    site.check(site.open())
    for size in (0, 10, 64, len(good) - 1):
        site.index.write_bytes(good[:size])
        assert site.open()._table.index is None
    (site.path.parent / "other").mkdir()
    other = Site(site.path.parent / "other")
    try:
        other.index.write_bytes(good)
        assert other.open().topics() == []
    finally:
        other.close()


def test_an_index_of_records_that_a_power_loss_took_is_not_used(site: Site):
    """The log is shorter than what the index covers, or goes on in another way."""
    rng, writer = random.Random(3), site.open()
    site.change_often(writer, rng, 60)
    whole = site.path.read_bytes()
    site.path.write_bytes(whole[: len(whole) // 2 & ~7])
    assert site.open()._table.index is None
    site.path.write_bytes(whole[: len(whole) // 2 & ~7] + bytes(len(whole)))
    assert site.open()._table.index is None


def test_a_damaged_entry_is_never_taken_for_another(site: Site):
    """What the index leads to is compared with its checksum."""
    rng, writer = random.Random(4), site.open()
    site.change_often(writer, rng, 60)
    entry = next(iter(site.topics.values()))
    data = site.path.read_bytes()
    at = data.index(entry.name.encode())
    damaged = site.open()
    slot = damaged._table._find(entry.name)[0]
    at = data.rindex(entry.name.encode(), 0, ((slot & 0xFFFFFFFF) << 3) + 16 + len(entry.name.encode()))
    with site.path.open("r+b") as file:
        file.seek(at - 16)
        file.write(bytes([data[at - 16] ^ 1]))
    with pytest.raises(CorruptionError, match=r"catalog.*an entry of the catalog is damaged"):
        damaged.find(entry.name)


@pytest.mark.parametrize("point", ["catalog_index:log_synced", "catalog_index:replaced", "document:synced"])
def test_an_error_while_the_index_is_made_loses_nothing(site: Site, point: str):
    """The record is in the log; the index is made with the next one."""
    rng, writer = random.Random(5), site.open()
    site.change_often(writer, rng, 30)
    failpoints.set(point, "raise:OSError")
    try:
        with pytest.raises(OSError, match=point):
            site.change_often(writer, rng, 3 * AFTER)
    finally:
        failpoints.clear()
    made = writer.topics()
    assert site.open().topics() == site.open(10**6).topics() == made
    writer.append_namespace("last/one", 1, durable=False)
    assert writer._table.changes < AFTER


def test_without_room_for_an_index_the_log_alone_is_used(site: Site, monkeypatch: pytest.MonkeyPatch):
    """It is tried again when as many topics changed."""
    rng, writer = random.Random(6), site.open()

    def refuse(*_: object, **__: object) -> None:
        raise StorageFullError("no room")

    with monkeypatch.context() as full:
        full.setattr(disk.DISK, "atomic_write", refuse, raising=False)
        for _ in range(40):
            site.change(writer, rng)
    site.check(writer)
    assert not site.index.exists()
    site.change_often(writer, rng, 60)
    assert site.index.exists()
    site.check(writer)


@pytest.mark.parametrize("seed", range(4))
def test_after_a_power_loss_the_index_says_what_the_log_says(tmp_path: Path, seed: int):
    """In every image: what was appended durably is there, and the index is that of the log or is not used."""
    root = tmp_path / "store"
    root.mkdir()
    fake = FakeDisk(root)
    rng = random.Random(seed)
    with disk.use(fake):
        site = Site(root)
        writer = site.open()
        for moment in range(6):
            site.change_often(writer, rng, rng.randrange(1, 3 * AFTER))
            writer.append_namespace(f"d/{moment}", 1, durable=True)
            site.change_often(writer, rng, rng.randrange(AFTER))
            state = fake.capture()
            for number in range(8):
                image = tmp_path / f"image{moment}-{number}"
                state.write_image(random.Random(number), str(image))
                with disk.use(disk.Disk()):
                    found, log = (
                        Catalog(str(image / "catalog"), writer.lock, is_read_only=True, with_index=with_index)
                        for with_index in (True, False)
                    )
                    assert found.topics() == log.topics() and found.ended_lives() == log.ended_lives()
                    assert found.namespaces() == log.namespaces() and f"d/{moment}" in log.namespaces()
                    found.close()
                    log.close()
        site.close()


@pytest.mark.parametrize("is_durable", [True, False])
def test_after_a_failed_flush_the_records_are_written_again(tmp_path: Path, is_durable: bool):
    """The kernel takes the pages of a failed flush for clean: the next flush alone would not write them."""
    root = tmp_path / "store"
    root.mkdir()
    fake = FakeDisk(root)
    with disk.use(fake):
        site = Site(root)
        writer = site.open(10**6)
        writer.append_namespace("first/one", 1, durable=True)
        names = [f"persistent://public/default/t{number:04}" for number in range(400)]  # several pages
        entries = [TopicEntry(name, f"t-{number}", number + 1) for number, name in enumerate(names)]
        if not is_durable:
            writer.append_topics(entries, 2, durable=False)
        fake.fail("fdatasync")
        with pytest.raises(OSError, match="Input/output"):
            _ = writer.append_topics(entries, 2, durable=True) if is_durable else writer.sync()
        writer.sync()
        state = fake.capture()
        site.close()
    for seed in range(8):
        image = tmp_path / f"image{seed}"
        state.write_image(random.Random(seed), str(image))
        found = Catalog(str(image / "catalog"), writer.lock, is_read_only=True)
        assert found.topics() == entries
        found.close()
