"""The catalog: an append-only log that several processes follow."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.format import journal_record
from embeddedpulsar._engine.format.catalog_record import TopicEntry, encode_topic, encode_topics
from embeddedpulsar._engine.format.control import KIND_TOPIC
from embeddedpulsar._engine.format.journal_record import (
    JournalHeader,
    pack_journal_header,
    pack_record,
    parse_journal_header,
    surviving_records,
)
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.catalog import BUILT_IN_NAMESPACES, Catalog
from embeddedpulsar.damage import Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion


class Opener:
    """Opens the catalog of a directory, any number of times, as several processes would."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "catalog"
        self.open_ones: list[Catalog] = []
        Catalog.create(str(self.path))

    def __call__(self, report: DamageHook = lambda damage: None) -> Catalog:
        self.open_ones.append(Catalog(str(self.path), FileLock(f"{self.path}.lock"), report=report))
        return self.open_ones[-1]

    def fill(self, topics: int) -> None:
        """Add topics, each a millisecond after the one before."""
        writer = self()
        for number in range(topics):
            writer.append_topic(entry(number), number + 1, durable=False)

    def records(self) -> tuple[bytes, list[slice]]:
        """The bytes of the catalog, and where each record is."""
        data = self.path.read_bytes()
        seed = parse_journal_header(data).chain_seed
        chain = surviving_records(data[64:], seed, 0)
        return data, [slice(64 + at, 64 + at + record.length) for at, record, _ in chain]

    def change(self, begin: int, end: int) -> None:
        """Change bytes of the file."""
        data = bytearray(self.path.read_bytes())
        data[begin:end] = bytes(byte ^ 0x55 for byte in data[begin:end])
        self.path.write_bytes(data)

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
    good = catalog.path.read_bytes()[:-8]  # without the zeros that mark the end
    catalog.open_ones[0].append_topic(entry(1), 2, durable=False)
    whole = catalog.path.read_bytes()[:-8]
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
    found: list[Damage] = []
    writer = catalog(found.append)
    writer.append_topic(entry(0), 1, durable=False)
    torn, _ = pack_record(7, encode_topics(map(entry, range(20))), writer._crc, 2)
    with catalog.path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(torn[:-100])
    for number in range(2):
        writer.append_namespace(f"a/b{number}", 2, durable=False)
        reader = catalog(found.append)
        assert reader.topics() == [entry(0)] and reader.namespaces()[-1] == f"a/b{number}"
    assert not found


DAMAGE_AT = {"length": 0, "checksum": 5, "chain": 9, "type": 12, "time": 17, "payload": 40}


@pytest.mark.parametrize("damaged", [slice(place, place + 1) for place in DAMAGE_AT.values()], ids=DAMAGE_AT)
def test_what_lies_behind_a_damaged_record_is_read(catalog: Opener, damaged: slice):
    """The record is lost, and said to be; those behind it are there, and new ones come behind all of them."""
    catalog.fill(6)
    _, places = catalog.records()
    catalog.change(places[2].start + damaged.start, places[2].start + damaged.stop)
    before = catalog.path.read_bytes()
    found: list[Damage] = []
    reader, writer = catalog(found.append), catalog()
    others = [entry(number) for number in (0, 1, 3, 4, 5)]
    assert reader.topics() == others and reader.is_damaged
    assert [(one.kind, one.offset, one.end_offset) for one in found] == [
        ("catalog", places[2].start, places[3].start)
    ]
    writer.append_topic(entry(7), 9, durable=True)
    assert catalog.path.read_bytes().startswith(before[: places[-1].stop])  # nothing was overwritten
    for one in (reader, writer, catalog()):
        assert one.topics() == [*others, entry(7)]
    assert len(found) == 1


@pytest.mark.parametrize("sector", [b"\0", b"\xff", b"\xa5"])
def test_a_lost_sector_takes_the_records_in_it_alone(catalog: Opener, sector: bytes):
    """Zeros, as a power loss leaves them, or noise; whether read as a whole or followed."""
    follower = catalog()
    catalog.fill(40)
    _, places = catalog.records()
    with catalog.path.open("r+b") as file:
        file.seek(1024)
        file.write(sector * 512)
    hit = {number for number, place in enumerate(places) if place.stop > 1024 and place.start < 1536}
    kept = sorted((entry(number) for number in range(40) if number not in hit), key=lambda one: one.name)
    assert 0 < len(hit) < 9
    for one in (follower, catalog()):
        assert one.topics() == kept and one.is_damaged
    follower.append_namespace("a/b", 9, durable=False)
    assert catalog().topics() == kept and catalog().has_namespace("a/b")


def test_a_damaged_record_at_the_end_is_kept(catalog: Opener):
    """It is not the beginning of a record whose writer died, so nothing is written over it."""
    catalog.fill(3)
    _, places = catalog.records()
    catalog.change(places[2].start + 30, places[2].start + 40)
    before = catalog.path.read_bytes()
    found: list[Damage] = []
    reader, writer = catalog(), catalog(found.append)
    assert reader.topics() == [entry(0), entry(1)] and not reader.is_damaged  # it might be being written
    writer.append_topic(entry(3), 9, durable=False)
    assert [one.offset for one in found] == [places[2].start]
    assert catalog.path.read_bytes().startswith(before)
    for one in (reader, writer, catalog()):
        assert one.topics() == [entry(0), entry(1), entry(3)]


def test_records_that_another_writer_took_for_lost_stay_lost(catalog: Opener):
    """A release without this rule appends where the chain is broken. What it left behind its record is older,
    and does not come back: its topics may have been made anew."""
    catalog.fill(5)
    data, places = catalog.records()
    crc = int.from_bytes(data[places[1].start + 4 : places[1].start + 8], "little")
    again = entry(3)._replace(incarnation=99)
    record, _ = pack_record(2, encode_topic(again), crc, 50)
    with catalog.path.open("r+b") as file:
        file.seek(places[2].start)
        file.write(record)
    assert catalog().topics() == [entry(0), entry(1), again]
    catalog().append_topic(entry(8), 60, durable=False)
    assert catalog().topics() == [entry(0), entry(1), again, entry(8)]


def test_a_torn_end_is_searched_once(catalog: Opener, monkeypatch: pytest.MonkeyPatch):
    """Whoever looks something up later does not look for records in it again."""
    catalog.fill(3)
    data, places = catalog.records()
    catalog.path.write_bytes(data[: places[2].stop - 8])
    searches: list[int] = []
    monkeypatch.setattr(journal_record, "next_intact", lambda buf, pos, end: searches.append(pos) or end)
    reader = catalog()
    for _ in range(3):
        assert reader.topics() == [entry(0), entry(1)]
    assert len(searches) == 1


def test_a_record_that_is_written_while_it_is_read_is_not_lost(
    catalog: Opener, monkeypatch: pytest.MonkeyPatch
):
    """Over the rest of a longer record: a reader may see what was written later, and not yet this."""
    catalog.fill(4)
    _, places = catalog.records()
    found: list[Damage] = []
    reader = catalog(found.append)
    read = disk.DISK.pread

    def read_too_early(fd: int, size: int, offset: int) -> bytes:
        data, place = bytearray(read(fd, size, offset)), places[1]
        monkeypatch.setattr(disk.DISK, "pread", read)
        data[place.start - offset : place.stop - offset] = b"x" * (place.stop - place.start)
        return bytes(data)

    monkeypatch.setattr(disk.DISK, "pread", read_too_early)
    assert reader.topics() == [entry(0)]
    assert reader.topics() == [entry(number) for number in range(4)]
    assert not found and not reader.is_damaged


def test_a_catalog_written_anew_has_one_chain(catalog: Opener):
    """All that can be read, and no damage any more; what was there is kept beside it."""
    catalog.fill(9)
    _, places = catalog.records()
    catalog.change(places[4].start + 30, places[5].start + 30)
    damaged = catalog.path.read_bytes()
    expected = catalog().topics()
    Catalog.renew(str(catalog.path))
    renewed = catalog()
    assert renewed.topics() == expected and not renewed.is_damaged and len(expected) == 7
    assert catalog.path.with_name("catalog.damaged.tmp").read_bytes() == damaged


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
