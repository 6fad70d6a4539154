"""A topic as a dataset: pruning never loses a row, and DuckDB, Polars and pandas take it lazily."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from embeddedpulsar import Admin, BatchingType, Client, CompressionType
from embeddedpulsar._engine.filenames import log_path
from embeddedpulsar.arrow import dataset, datasets, entry_pruning, read_topic
from embeddedpulsar.arrow.schema import ALL_COLUMNS, PLACE_COLUMNS
from tests.conformance.chunks import LIMIT, use_small_entries
from tests.conformance.offloading import TOPIC, Site
from tests.support.key_files import key_files

TIME = pa.timestamp("us", "UTC")
COLUMNS = (*ALL_COLUMNS, *PLACE_COLUMNS)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Ledgers of which some are offloaded, cut into small pieces."""
    monkeypatch.setattr(datasets, "_PIECE_BYTES", 400)
    made = Site(tmp_path, managedLedgerMaxEntriesPerLedger=40)
    made.publish(90)
    assert made.offload() == ""
    with made.client.create_producer(TOPIC, batching_enabled=True) as producer:
        for number in range(50):
            key, time = f"k{number % 3}", number % 5 and number
            producer.send_async(b"batched %d" % number, None, partition_key=key, event_timestamp=time)
        producer.flush()
    made.publish(60)
    yield made
    made.close()


def read_pieces(made: Any) -> list[tuple[int, int]]:
    """Note the ranges that a dataset reads: number of entries of each."""
    read, found = made._read, list[tuple[int, int]]()

    def noted(ranges: Any, columns: Any) -> Any:
        found.extend((one.ledger_id, one.end_entry - one.first_entry) for one in ranges)
        return read(ranges, columns)

    made._read = noted
    return found


def test_pruning_never_loses_a_row(site: Site) -> None:
    """Random filters give the rows that they give of the whole table; often less is read."""
    whole = read_topic(site.root, TOPIC, COLUMNS)
    made = dataset(site.root, TOPIC, COLUMNS)
    noted, choose, pruned = read_pieces(made), random.Random(3), 0
    times, places = whole["__publishTime"].to_pylist(), whole.select(PLACE_COLUMNS).to_pylist()
    for _ in range(25):
        one, other = sorted(choose.choices(times, k=2))
        place = choose.choice(places)
        terms = [
            ds.field("__publishTime") >= pa.scalar(one),
            ds.field("__publishTime") < pa.scalar(other),
            ds.field("__ledgerId") == place["__ledgerId"],
            ds.field("__entryId") >= place["__entryId"],
            ds.field("__entryId") == place["__entryId"],
            ds.field("__key") == b"k1",
            ds.field("__key").isin([b"k1", b"k7"]),
            ds.field("__key") != b"k2",
            ds.field("__eventTime") == pa.scalar(7000, TIME),
            ds.field("__eventTime") < pa.scalar(40_000, TIME),
            ds.field("__eventTime").is_null(),
            ds.field("__topic") == "persistent://public/default/other",
            ds.field("__partition").isin([-1]),
            ~(ds.field("__ledgerId") == place["__ledgerId"]),
        ]
        condition = choose.choice(terms)
        for term in choose.sample(terms, choose.randrange(3)):
            condition = condition & term if choose.random() < 0.7 else condition | term
        noted.clear()
        assert made.to_table(filter=condition).to_pylist() == whole.filter(condition).to_pylist(), condition
        pruned += sum(entries for _, entries in noted) < 151
    assert pruned > 8


def test_a_small_part_reads_a_small_part(site: Site) -> None:
    """One entry of a ledger: a piece of it; a time to come: nothing."""
    made = dataset(site.root, TOPIC, COLUMNS)
    noted = read_pieces(made)
    condition = (ds.field("__ledgerId") == 2) & (ds.field("__entryId") == 7)
    assert made.to_table(["value"], filter=condition).num_rows == 1
    assert len(noted) == 1 and noted[0][1] < 10
    noted.clear()
    assert made.count_rows(filter=ds.field("__publishTime") > datetime(2100, 1, 1, tzinfo=UTC)) == 0
    assert noted == []
    assert made.head(2, columns=["value"]).to_pylist() == [{"value": b"0"}, {"value": b"1"}]
    assert made.schema.names == list(COLUMNS)


def test_keys_are_found_by_their_hashes(site: Site, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Every third entry of a ledger that is here; the count of those that are left out is in the log."""
    monkeypatch.setattr(entry_pruning, "_GAP_BYTES", 0)
    made = dataset(site.root, TOPIC, COLUMNS)
    noted = read_pieces(made)
    condition = (ds.field("__key") == b"k1") & (ds.field("__ledgerId") == 4)
    with caplog.at_level("INFO", logger="embeddedpulsar.arrow"):
        found = made.to_table(["value"], filter=condition)
    assert found.num_rows == sum(entries for _, entries in noted) > 5
    assert f"filters leave {found.num_rows} of 151 entries to be read" in caplog.text


def test_tables_of_offloaded_ledgers_have_statistics(site: Site) -> None:
    """Of ledgers that are not here, nothing is read but the limits of keys and event times."""
    made = dataset(site.root, TOPIC, COLUMNS)
    noted = read_pieces(made)
    assert not Path(log_path(str(site.directory()), 1)).exists()
    for condition, rows in (
        ((ds.field("__ledgerId") < 3) & (ds.field("__key") == b"k9"), 0),
        ((ds.field("__ledgerId") < 3) & (ds.field("__eventTime") > pa.scalar(0, TIME)), 0),
        ((ds.field("__ledgerId") < 3) & (ds.field("__key") == b"k1"), 27),
    ):
        noted.clear()
        assert made.count_rows(filter=condition) == rows
        assert sum(entries for _, entries in noted) == (80 if rows else 0)


def test_no_key_is_lost_by_any_producer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encrypted, chunked, compressed, keyed batches, whole columns, compacted: as a filter of all rows."""
    monkeypatch.setattr(entry_pruning, "_GAP_BYTES", 0)
    use_small_entries(tmp_path / "store")
    keys = key_files(tmp_path, "ec")
    kinds: list[dict[str, Any]] = [
        {"encryption_key": "ec", "crypto_key_reader": keys},
        {"compression_type": CompressionType.ZLib, "batching_enabled": True},
        {"batching_enabled": True, "batching_type": BatchingType.KeyBased},
        {"encryption_key": "ec", "crypto_key_reader": keys, "batching_enabled": True},
        {"chunking_enabled": True},
    ]
    with Client(tmp_path / "store") as client:
        for kind in kinds:
            size = 2 * LIMIT if "chunking_enabled" in kind else 10
            with client.create_producer("t", **kind) as producer:
                for number in range(6):
                    key = f"k{number % 3}" if number else None
                    ordering = "k1" if number == 5 else None
                    producer.send_async(b"v" * size, None, partition_key=key, ordering_key=ordering)
                producer.flush()
        with client.create_producer("t", batching_enabled=True) as producer:
            producer.send_many([b"a", b"b", b"c"], partition_keys=["k0", "k1", None])
    with Admin(tmp_path / "store") as admin:
        admin.topics().compact("t")
    made = dataset(tmp_path / "store", "t", ["__key", "__messageId"], crypto_key_reader=keys)
    noted = read_pieces(made)
    whole = made.to_table()
    assert whole.num_rows >= 33
    for key in (b"k0", b"k1", b"k2", b"k3"):
        noted.clear()
        condition = ds.field("__key") == key
        assert made.to_table(filter=condition) == whole.filter(condition)
        assert sum(entries for _, entries in noted) < 40


def test_it_sees_what_is_published_later(site: Site) -> None:
    """Each query plans anew."""
    made = dataset(site.root, TOPIC, ["value"])
    before = made.count_rows()
    site.publish(5)
    assert made.count_rows() == before + 5
    assert made.to_table().to_pandas().shape == (before + 5, 1) if _has("pandas") else True


def test_duckdb_takes_it(site: Site) -> None:
    """SQL with projection and filters pushed down."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    topic = dataset(site.root, TOPIC, COLUMNS)
    noted = read_pieces(topic)
    with duckdb.connect() as connection:
        connection.register("topic", topic)
        counts = connection.sql("SELECT __key, count(*) FROM topic GROUP BY ALL ORDER BY ALL").fetchall()
        assert counts == [(b"k0", 67), (b"k1", 67), (b"k2", 66)]
        noted.clear()
        rows = connection.sql("SELECT value FROM topic WHERE __ledgerId = 1 AND __entryId < 3").fetchall()
        assert rows == [(b"0",), (b"1",), (b"2",)] and sum(entries for _, entries in noted) < 10


def test_polars_takes_it(site: Site) -> None:
    """A lazy frame, with the same; and one of our own, which prunes by keys, too."""
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    made = dataset(site.root, TOPIC, COLUMNS)
    noted = read_pieces(made)
    condition = (polars.col("__ledgerId") == 1) & (polars.col("__entryId") < 3)
    for frame in (polars.scan_pyarrow_dataset(made), made.lazy_frame()):
        noted.clear()
        assert frame.filter(condition).select("value").collect()["value"].to_list() == [b"0", b"1", b"2"]
        assert sum(entries for _, entries in noted) < 10
    whole = made.lazy_frame().collect()
    assert whole.schema == made.lazy_frame().collect_schema()
    assert whole.height == 200
    assert made.lazy_frame().head(7).collect().equals(whole.head(7))
    assert made.lazy_frame().filter(polars.col("__ledgerId") == 99).select("__key").collect().rows() == []


def test_filters_of_polars_never_lose_a_row(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random predicates give the rows that they give of the whole frame; often less is read."""
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    monkeypatch.setattr(entry_pruning, "_GAP_BYTES", 0)
    made = dataset(site.root, TOPIC, COLUMNS)
    noted, choose, pruned = read_pieces(made), random.Random(5), 0
    whole = made.lazy_frame().collect()
    column, time = polars.col, datetime.fromtimestamp(0.007, UTC)
    terms = [
        column("__key") == b"k1",
        column("__key").is_in([b"k1", b"k7", None]),
        polars.lit(3) > column("__entryId"),
        column("__entryId") <= 5.5,
        column("__ledgerId").is_between(2, 4, closed="left"),
        column("__eventTime") == time,
        column("__eventTime") < polars.lit(time).dt.cast_time_unit("ns"),
        column("__eventTime").is_null(),
        column("__topic") != "a",
        ~(column("__key") == b"k1"),
        column("__key").is_null().not_(),
        column("__entryId") < column("__batchIndex"),
    ]
    for _ in range(25):
        condition = choose.choice(terms)
        for term in choose.sample(terms, choose.randrange(3)):
            condition = condition & term if choose.random() < 0.7 else condition | term
        noted.clear()
        assert made.lazy_frame().filter(condition).collect().equals(whole.filter(condition)), condition
        pruned += sum(entries for _, entries in noted) < 151
    assert pruned > 8


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None
