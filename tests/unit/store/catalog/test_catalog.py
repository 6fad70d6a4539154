"""The catalog: an append-only log that several processes follow."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import KIND_TOPIC
from embeddedpulsar._engine.format.journal_record import JournalHeader, pack_journal_header, pack_record
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.catalog.catalog import BUILT_IN_NAMESPACES, Catalog
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion


class Opener:
    """Opens the catalog of a directory, any number of times, as several processes would."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "catalog"
        self.open_ones: list[Catalog] = []
        Catalog.create(str(self.path))

    def __call__(self) -> Catalog:
        self.open_ones.append(Catalog(str(self.path), FileLock(f"{self.path}.lock")))
        return self.open_ones[-1]

    def close(self) -> None:
        for one in self.open_ones:
            one.close()
            one.lock.close()


@pytest.fixture
def catalog(tmp_path: Path):
    """An opener of one catalog."""
    opener = Opener(tmp_path)
    yield opener
    opener.close()


def entry(number: int, namespace: str = "public/default") -> TopicEntry:
    """A topic."""
    return TopicEntry(f"persistent://{namespace}/t{number}", f"t-{number}", number + 1)


def test_what_one_appends_the_others_see(catalog: Opener):
    """Topics and namespaces, sorted by name, without reopening; the version rises."""
    one, other = catalog(), catalog()
    assert other.topics() == [] and other.namespaces() == list(BUILT_IN_NAMESPACES)
    version = other.version
    one.append_topic(entry(0), 5, durable=False)
    one.append_namespace("acme/sales", 6, durable=True)
    one.append_topic(entry(1, "acme/sales"), 7, durable=True)
    assert other.find(entry(0).name) == entry(0)
    assert other.topics() == [entry(1, "acme/sales"), entry(0)]
    assert other.topics("acme/sales") == [entry(1, "acme/sales")]
    one.append_topic(entry(2)._replace(name="persistent://a/b/odd://acme/sales/x"), 8, durable=False)
    assert len(other.topics("acme/sales")) == 1 and len(other.topics()) == 3
    one.append_topic_deleted(other.topics()[0], 8, durable=False)
    assert other.has_namespace("acme/sales") and not other.has_namespace("acme/other")
    assert other.version == version + 5
    other.append_topic_deleted(entry(0), 8, durable=False)
    assert one.find(entry(0).name) is None and one.topics() == other.topics()
    assert catalog().topics() == one.topics()


def test_the_deletion_of_an_earlier_life_does_not_hit_the_present_one(catalog: Opener):
    """A record names the incarnation; the topic made anew stays."""
    one = catalog()
    one.append_topic(entry(0), 1, durable=False)
    one.append_topic(entry(0)._replace(incarnation=99), 2, durable=False)
    one.append_topic_deleted(entry(0), 3, durable=False)
    assert one.find(entry(0).name) == entry(0)._replace(incarnation=99)


def test_a_record_torn_at_any_byte_is_as_if_it_were_not_there(catalog: Opener, tmp_path: Path):
    """Whatever a dead writer left of its record, readers stop before it and the next writer overwrites it."""
    catalog().append_topic(entry(0), 1, durable=False)
    good = catalog.path.read_bytes()
    catalog.open_ones[0].append_topic(entry(1), 2, durable=False)
    whole = catalog.path.read_bytes()
    for size in range(len(good), len(whole)):
        catalog.path.write_bytes(whole[:size])
        reader, writer = catalog(), catalog()
        assert reader.topics() == [entry(0)]
        writer.append_namespace("a/b", 3, durable=False)
        assert reader.topics() == [entry(0)] and reader.has_namespace("a/b")
        assert catalog().has_namespace("a/b")
        catalog.close()
        catalog.open_ones.clear()


def test_the_remains_of_a_torn_record_never_come_back(catalog: Opener):
    """A shorter record over a longer torn one: what is left behind it does not continue the chain."""
    writer = catalog()
    writer.append_topic(entry(0), 1, durable=False)
    end = catalog.path.stat().st_size
    junk = b"".join(pack_record(3, b"", 0, 0)[0] for _ in range(20))
    with catalog.path.open("r+b") as file:
        file.seek(end)
        file.write(junk)
    writer.append_namespace("a/b", 2, durable=False)
    assert catalog().topics() == [entry(0)] and catalog().namespaces()[-1] == "a/b"


def test_records_of_a_newer_release_are_refused_by_name(catalog: Opener):
    """An unknown record may mean anything: the error names the file and the remedy."""
    reader = catalog()
    record, _ = pack_record(77, b"", reader._crc, 0)
    with catalog.path.open("ab") as file:
        file.write(record)
    with pytest.raises(UnsupportedFormatVersion, match=r"catalog.*type 77.*upgrade"):
        reader.topics()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", CorruptionError),
        (b"\0" * 64, CorruptionError),
        (b"PK\3\4 this is a zip file, not a catalog at all, by no means whatsoever....", CorruptionError),
        (pack_journal_header(JournalHeader(1, 2, 0, KIND_TOPIC)), CorruptionError),
    ],
)
def test_what_is_no_catalog_is_refused(tmp_path: Path, content: bytes, error: type[Exception]):
    """Empty, zeroed, foreign, or another kind of journal; no descriptor is left."""
    path = tmp_path / "catalog"
    path.write_bytes(content)
    lock = FileLock(tmp_path / "catalog.lock")
    gc.collect()  # what tests before this one left is closed now
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=str(path)):
        Catalog(str(path), lock)
    assert len(os.listdir("/proc/self/fd")) == before
    lock.close()
