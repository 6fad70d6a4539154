"""Offloading of topics with transactions: ledgers of which all is decided, and tables of what committed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from embeddedpulsar._engine.cold.cold_ledger import cold_ledgers, parse_cold_ledger
from embeddedpulsar._engine.log.entry_range import messages_in, part_of
from embeddedpulsar._engine.store.topic_lookup import plan_logs
from embeddedpulsar.arrow import dataset, read_topic
from embeddedpulsar.testing import assert_clean
from embeddedpulsar.topic_name import TopicName
from tests.conformance.offloading import TOPIC, Site

WITH_LOG = ["value", "__schemaVersion"]
"""Columns that are not in the tables: the log is fetched."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()
    assert_clean(made.root)


def send(site: Site, kinds: str) -> list[int]:
    """A message for each kind: plain, of a transaction that commits, of one that aborts. Those that count."""
    transactions = {kind: site.client.new_transaction() for kind in "ca"}
    with site.client.create_producer(TOPIC) as producer:
        for number, kind in enumerate(kinds):
            producer.send(b"%d" % number, partition_key=f"k{number % 3}", txn=transactions.get(kind))
    transactions["c"].commit()
    transactions["a"].abort()
    return [number for number, kind in enumerate(kinds) if kind != "a"]


def values(root: Path, columns: Any = ("value",), **options: Any) -> list[int]:
    """The numbers that are read."""
    return [int(row["value"]) for row in read_topic(root, TOPIC, list(columns), **options).to_pylist()]


def test_tables_have_what_committed(site: Site) -> None:
    """The logs come back byte for byte, with what was aborted, and reads need no outcomes of transactions."""
    expected = send(site, "npcca" * 9)
    assert values(site.root) == expected
    logs = {path.name: path.read_bytes() for path in site.root.glob("topics/*/*.log")}
    assert site.offload() == ""
    assert len(site.logs()) == 1 and len(site.notes()) >= 4
    notes = cold_ledgers(str(site.directory()))
    assert all(parse_cold_ledger(note.packed()) == note for note in notes)
    aborted = sum(end - first for note in notes for first, end in note.aborted)
    assert aborted and [note.rows for note in notes] == [
        note.messages - sum(end - first for first, end in note.aborted) for note in notes
    ]
    tables = [pq.read_table(path) for path in site.objects() if path.name.endswith("messages.parquet")]
    assert (
        sorted(int(value) for table in tables for value in table["value"].to_pylist())
        == expected[: sum(map(len, tables))]
    )
    assert values(site.root) == expected
    assert (
        values(site.root, isolation="read_uncommitted")[: sum(map(len, tables))]
        == expected[: sum(map(len, tables))]
    )
    # Counts agree with rows, also of parts.
    name = TopicName.parse(TOPIC)
    ranges = plan_logs(str(site.root), [name])
    assert sum(map(messages_in, ranges)) == len(expected)
    parts = [part_of(planned, 2, planned.end_entry - 1) for planned in ranges]
    assert all(part is None or messages_in(part) == rows(part) for part in parts)
    # Without the outcomes, what is offloaded is the same.
    copy = site.root.parent / "copy"
    shutil.copytree(site.root / "topics", copy / "topics")
    away = sum(map(len, tables))
    assert values(copy)[:away] == expected[:away]
    # Fetched back, the frames are those of before.
    assert values(site.root, WITH_LOG) == expected
    found = {path.name: path.read_bytes() for path in site.root.glob("topics/*/*.log")}
    assert len(found) > 1
    assert all(logs[name].startswith(data.rstrip(b"\0")) for name, data in found.items())


def rows(planned: Any) -> int:
    """Of one range, by reading it."""
    from embeddedpulsar.arrow.columns import record_batches
    from embeddedpulsar.arrow.mapped_segment import open_ahead, raise_damage, raise_gone

    opened = open_ahead([planned], None, raise_gone)
    batches = record_batches(opened, ("value",), rows=100, large=100, on_damage=raise_damage)
    return sum(batch.num_rows for batch in batches)


def test_pruned_queries_of_tables(site: Site) -> None:
    """By the statistics of row groups, as of topics without transactions."""
    import pyarrow.dataset as ds

    expected = send(site, "cna" * 12)
    assert site.offload() == ""
    found = dataset(site.root, TOPIC).to_table(["value"], filter=ds.field("__key") == b"k1").to_pylist()
    assert [int(row["value"]) for row in found] == [number for number in expected if number % 3 == 1]


@pytest.mark.parametrize("end", ["commit", "abort", "prepare"])
def test_an_open_transaction_keeps_its_ledger(site: Site, end: str) -> None:
    """And those behind it; what is before it goes. When it has ended they go, too."""
    send(site, "n" * 25)
    txn = site.client.new_transaction()
    with site.client.create_producer(TOPIC) as producer:
        producer.send(b"25", txn=txn)
        for number in range(26, 60):
            producer.send(b"%d" % number)
    if end == "prepare":
        txn.prepare("x")
    error = site.offload()
    assert "has messages of a transaction that is open or prepared" in error
    before = site.notes()
    assert len(before) == 3
    assert values(site.root) == [*range(25)]
    (txn.abort if end == "abort" else txn.commit)()
    assert site.offload() == ""
    assert len(site.notes()) > 5
    expected = [number for number in range(60) if number != 25 or end != "abort"]
    assert values(site.root) == values(site.root, WITH_LOG) == expected


def test_a_ledger_in_which_all_was_aborted(site: Site) -> None:
    """Its table has no rows."""
    send(site, "a" * 25 + "n")
    assert site.offload() == ""
    assert values(site.root) == values(site.root, WITH_LOG) == [25]


def test_batches_and_compression(site: Site) -> None:
    """Entries that are not taken apart, and batches of several messages."""
    from embeddedpulsar import CompressionType

    expected, number = [], 0
    for compression in (CompressionType.NONE, CompressionType.LZ4, CompressionType.ZLib):
        for end in ("commit", "abort"):
            txn = site.client.new_transaction()
            with site.client.create_producer(
                TOPIC,
                batching_enabled=True,
                compression_type=compression,
                batching_max_publish_delay_ms=60_000,
            ) as producer:
                for _ in range(3):
                    for _ in range(4):
                        producer.send_async(b"%d" % number, None, txn=txn)
                        expected += [number] if end == "commit" else []
                        number += 1
                    producer.flush()
            getattr(txn, end)()
    site.roll()
    assert values(site.root) == expected
    assert site.offload() == ""
    assert values(site.root) == values(site.root, WITH_LOG) == expected
