"""Entries that version 1 does not know: the store says so first, and stores without them stay as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client
from embeddedpulsar._engine.filenames import ledgers_of, log_path
from embeddedpulsar._engine.format import frame
from embeddedpulsar._engine.format.columns import EntryFields
from embeddedpulsar._engine.format.entry import (
    EncodedEntry,
    EntryContent,
    ProducerPrefix,
    encode,
    encode_pulsar,
    encode_single,
)
from embeddedpulsar._engine.log.segment import read_segment_header
from embeddedpulsar._engine.store import store_root
from embeddedpulsar._engine.store.care import store_repair
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.txn.transaction import Transaction
from embeddedpulsar.exceptions import UnsupportedFormatVersion
from embeddedpulsar.testing import assert_clean
from tests.children import die_at
from tests.ledger_site import values
from tests.support.pulsar_entries import PulsarEntry, PulsarMessage

TOPIC = "persistent://public/default/t"
PREFIX = ProducerPrefix("p")
PLAIN = encode_single(b"plain", 0, PREFIX)
REVISED: dict[str, EncodedEntry] = {
    "transaction": encode(EntryContent([b"x"], transaction=(0, 7)), PREFIX),
    "bytes key": encode(EntryContent([b"x"], keys=[b"\xff"]), PREFIX),
    "null key": encode(EntryContent([b"x"], null_keys=[True]), PREFIX),
    "bytes ordering key": encode(EntryContent([b"x"], ordering_keys=[b"\xff"]), PREFIX),
    "fields": encode(EntryContent([b"x"], fields=EntryFields(replicated_from="east")), PREFIX),
    "raw snappy": encode(EntryContent([b"x" * 500]), PREFIX, 5),
    "entry of pulsar": encode_pulsar(PulsarEntry([PulsarMessage(b"x")]).encoded()),
    "encrypted entry of pulsar": encode_pulsar(
        PulsarEntry(
            [PulsarMessage(b"x")], encryption_keys=[("k", b"v", {})], encryption_param=bytes(12)
        ).encoded(bytes(40))
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a store is made, of which housekeeping removes no ledger."""
    path = tmp_path / "store"
    path.mkdir()
    kept = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
    (path / "broker.conf").write_text(kept)
    return path


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """A store, which is clean at the end."""
    opened = Store.open(str(root))
    yield opened
    opened.release()
    assert_clean(root)


def ledger_of(store: Store) -> Any:
    """The log of the topic."""
    return store.use_topic(TOPIC).topic.ledger


def versions(root: Path) -> list[int]:
    """Of the segments of the topic, oldest first."""
    (directory,) = (str(path) for path in root.glob("topics/*"))
    return [read_segment_header(directory, ledger).version for ledger in ledgers_of(os.listdir(directory))]


def format_of(root: Path) -> int:
    """What the store says of itself."""
    meta = store_root.read_meta(str(root))
    assert meta is not None
    return meta.format


def abort_it(store: Store) -> None:
    """Have the store know of the transaction that the entries are of: a log without it is damaged."""
    for _ in range(7):
        transaction = Transaction(store.transactions.log(), 60_000)
        assert transaction.id
        transaction.abort()
    assert transaction.id == 7


def test_a_store_without_them_is_what_it_was(store: Store, root: Path):
    """Version 1 everywhere: releases that know no other read and write it."""
    ledger = ledger_of(store)
    for content in (
        EntryContent([b"a", b"b"], keys=["k", None], ordering_keys=["o", ""], properties=[{"a": "b"}, None]),
        EntryContent([b"x" * 500], event_times=[5], deliver_at=[9], null_values=[False]),
    ):
        for codec in range(5):
            ledger.append(encode(content, PREFIX, codec))
    ledger.append(encode(EntryContent([b"a"], ordering_keys=[b"text"], fields=EntryFields()), PREFIX))
    ledger.roll()
    ledger.append(PLAIN)
    assert (format_of(root), versions(root)) == (1, [1, 1])


@pytest.mark.parametrize("kind", sorted(REVISED))
def test_the_first_of_them_begins_a_ledger(store: Store, root: Path, kind: str):
    """The store is raised before, later entries of any kind stand beside it, and later ledgers are alike."""
    ledger = ledger_of(store)
    first = ledger.append(PLAIN)
    assert (format_of(root), versions(root)) == (1, [1])
    second = ledger.append(REVISED[kind], check_open=int)
    assert second[0] > first[0]
    assert ledger.append(PLAIN)[0] == ledger.append(REVISED[kind], check_open=int)[0] == second[0]
    assert (format_of(root), versions(root)) == (2, [1, 2])
    ledger.roll()
    ledger.append(PLAIN)
    assert versions(root) == [1, 2, 2]
    with Admin(root) as admin:
        assert admin.format_version() == 2
    if kind == "transaction":
        abort_it(store)


def test_an_empty_topic_begins_with_it(store: Store, root: Path):
    """No ledger is made only to be left."""
    ledger = ledger_of(store)
    ledger.append(REVISED["transaction"], check_open=int)
    assert (format_of(root), versions(root)) == (2, [2])
    abort_it(store)


def test_other_topics_stay_as_they_are(store: Store, root: Path):
    """The version is one of a segment: topics without such entries keep theirs."""
    other = store.use_topic("persistent://public/default/other").topic.ledger
    other.append(PLAIN)
    ledger_of(store).append(REVISED["fields"])
    other.roll()
    other.append(PLAIN)
    by_topic = {
        tuple(read_segment_header(str(path), ledger).version for ledger in ledgers_of(os.listdir(path)))
        for path in root.glob("topics/*")
    }
    assert by_topic == {(1, 1), (2,)}


def test_a_run_is_cut_where_the_first_stands(store: Store, root: Path):
    """Entries that are appended together: those before it, and it with those behind."""
    ledger = ledger_of(store)
    ledger.append(PLAIN)
    hold, stored = ledger.hold(), []
    try:
        ledger.lock.acquire(1)
        ledger.append_run([PLAIN, PLAIN, REVISED["bytes key"], PLAIN], hold, stored)
    finally:
        ledger.lock.release()
        hold.ring_all()
    assert [entry for _, entry, _ in stored] == [1, 2, 0, 1]
    assert versions(root) == [1, 2]


def test_a_writer_that_is_open_already_follows(store: Store, root: Path):
    """Another log of the topic, as another process has it, writes on in the ledger that was begun."""
    ledger = ledger_of(store)
    ledger.append(PLAIN)

    def append_in_child() -> None:
        child = Store.open(str(root))
        ledger_of(child).append(REVISED["transaction"], check_open=int)
        child.release()

    assert not die_at("store:meta_written", append_in_child)
    assert ledger.append(PLAIN)[1] == ledger.append(REVISED["fields"])[1] - 1
    assert versions(root) == [1, 2]
    assert values(ledger) == [b"plain", b"plain", b"x"]  # the store never gave that id out: it is aborted


@pytest.mark.parametrize("point", ["format:raised", "roll:header_written", "roll:tail_switched"])
def test_killed_at(root: Path, point: str):
    """The store needs the version or not; the entry was not appended, and the next one is."""
    store = Store.open(str(root))
    ledger_of(store).append(PLAIN)
    store.release()

    def append_in_child() -> None:
        child = Store.open(str(root))
        ledger_of(child).append(REVISED["fields"])

    assert die_at(point, append_in_child)
    assert format_of(root) == 2
    store = Store.open(str(root))
    ledger = ledger_of(store)
    assert values(ledger) == [b"plain"]
    ledger.append(PLAIN)
    ledger.append(REVISED["fields"])
    assert values(ledger) == [b"plain", b"plain", b"x"]
    store.release()
    assert_clean(root)


def test_a_release_of_version_1_refuses_the_store(root: Path, monkeypatch: pytest.MonkeyPatch):
    """And the segments, which Arrow and Spark read without opening the store."""
    store = Store.open(str(root))
    ledger_of(store).append(REVISED["transaction"], check_open=int)
    store.release()
    monkeypatch.setattr(store_root, "STORE_FORMAT", 1)
    with pytest.raises(UnsupportedFormatVersion, match="layout version 2; this release knows up to 1"):
        Client(root)
    monkeypatch.setattr(frame, "REVISED_VERSION", 1)
    frame._parse_copy.cache_clear()
    with pytest.raises(
        UnsupportedFormatVersion, match=r"segment has format version 2.*reads up to 1.*upgrade"
    ):
        versions(root)


def test_a_later_version_is_refused(root: Path):
    """By this release, as version 2 is by one before it; nothing is changed."""
    store = Store.open(str(root))
    ledger_of(store).append(PLAIN)
    store.release()
    with pytest.raises(FileNotFoundError):
        store_root.raise_format(str(root / "gone"), 2)
    store_root.raise_format(str(root), 3)
    before = (root / "store.meta").read_bytes()
    for open_store in (Client, Admin, repair_store):
        with pytest.raises(UnsupportedFormatVersion, match="layout version 3; this release knows up to 2"):
            open_store(str(root))
    assert (root / "store.meta").read_bytes() == before


def test_fields_of_a_later_release_stay(root: Path):
    """A document keeps what the one who changes it does not know; it is written once."""
    from embeddedpulsar._engine.format.document import KIND_STORE_META, decode_document, encode_document

    Store.open(str(root)).release()
    path = root / "store.meta"
    fields = decode_document(path.read_bytes(), KIND_STORE_META)
    path.write_bytes(encode_document(KIND_STORE_META, fields | {"later": 1}))
    assert store_root.raise_format(str(root), 2).format == 2
    before = path.stat()
    assert store_root.raise_format(str(root), 2).format == 2
    assert path.stat().st_ino == before.st_ino
    assert decode_document(path.read_bytes(), KIND_STORE_META) == fields | {"later": 1, "format": 2}


def test_a_repair_writes_the_version_that_the_segments_need(root: Path):
    """A store whose description is damaged, and is made again from the headers."""
    store = Store.open(str(root))
    ledger_of(store).append(REVISED["transaction"], check_open=int)
    identity = store._current().meta.store_id
    store.release()
    (root / "store.meta").write_bytes(b"EPDC" + bytes(60))
    assert store_repair.format_of(str(root)) == 2
    repair_store(str(root))
    meta = store_root.read_meta(str(root))
    assert meta is not None
    assert (meta.format, meta.store_id) == (2, identity)
    (directory,) = (str(path) for path in root.glob("topics/*"))
    assert Path(log_path(directory, ledgers_of(os.listdir(directory))[0])).read_bytes()[4:6] == b"\x02\x00"
