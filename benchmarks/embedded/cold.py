"""Offloading of a topic, and SQL over hot and cold topics."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.embedded import prepare

_STORES: dict[tuple[Path, str], Path] = {}


def shared_store(place: Path, messages: int, size: int, kind: str) -> Path:
    """A store with the topic `prepare.TOPIC`, made once for all contestants of a contest.

    Args:
        place: directory of a contestant.
        messages, size: of the topic.
        kind: ``hot``; ``cold``, with all ledgers offloaded; or ``mixed``, with half of them.
    """
    key = place.parent, kind
    if key not in _STORES:
        root = _STORES[key] = place / "store"
        if kind == "hot":
            prepare.fill(root, messages, size)
        else:
            shutil.copytree(shared_store(place, messages, size, "hot"), root)
            offload(root, kind == "mixed")
    return _STORES[key]


def offload(root: Path, is_half: bool = False) -> float:
    """Move the closed ledgers of the topic to a directory beside the store, and remove the logs at once.

    Returns:
        How many seconds it took.
    """
    from embeddedpulsar import Admin, Client
    from embeddedpulsar.policy_values import OffloadPolicies

    with Client(root) as client, Admin(root) as admin:
        log: Any = client._core.store.use_topic(prepare.TOPIC)
        try:
            log.topic.ledger.roll()  # else the last messages stay
        finally:
            log.release()
        topics = admin.topics()
        kept = topics.get_stats(prepare.TOPIC).storage_size // 2 if is_half else 0
        policies = OffloadPolicies(os.fspath(root.parent / "cold"), offload_deletion_lag_in_millis=0)
        topics.set_offload_policies(prepare.TOPIC, policies)
        begun = time.perf_counter()
        topics.offload(prepare.TOPIC, kept)
        while (status := topics.offload_status(prepare.TOPIC)).status == "RUNNING":
            time.sleep(0.005)
        seconds = time.perf_counter() - begun
        assert status.status == "SUCCESS", status
        return seconds


class Offloading(Contestant):
    """Timed: `Admin.topics().offload` of all ledgers into a directory, with all that is verified."""

    key = "offload"
    name = "embeddedpulsar, to Parquet, verified"

    def __init__(self, messages: int, size: int) -> None:
        super().__init__()
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        self._place = place
        self._source = shared_store(place, self._messages, self._size, "hot")

    def run(self, operations: int) -> float:
        work = self._place / "work"
        shutil.copytree(self._source, work / "store")
        before = time.process_time()
        seconds = offload(work / "store")
        self.notes["s of CPU"] = time.process_time() - before
        shutil.rmtree(work)
        return seconds


class Fetching(Contestant):
    """Timed: a reader of all messages whose ledgers have to be fetched back."""

    key = "fetch"
    name = "embeddedpulsar, a reader of what was offloaded"
    survives = READ_ONLY

    def __init__(self, messages: int, size: int) -> None:
        super().__init__()
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        self._place = place
        self._source = shared_store(place, self._messages, self._size, "cold")

    def run(self, operations: int) -> float:
        from embeddedpulsar import Client, MessageId

        root = self._place / "work"
        shutil.copytree(self._source, root)
        begun = time.perf_counter()
        with Client(root) as client:
            reader = client.create_reader(prepare.TOPIC, MessageId.earliest)
            count = 0
            while reader.has_message_available():
                reader.read_next(60_000)
                count += 1
        seconds = time.perf_counter() - begun
        assert count == operations, (count, operations)
        shutil.rmtree(root)
        return seconds


class WriteParquet(Contestant):
    """Timed: the same messages read and written as one Parquet file with the same compression, flushed."""

    key = "parquet"
    name = "read_topic and pyarrow.parquet.write_table"

    def __init__(self, messages: int, size: int) -> None:
        super().__init__()
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        self._place = place
        self._source = shared_store(place, self._messages, self._size, "hot")

    def run(self, operations: int) -> float:
        import pyarrow.parquet as pq

        from embeddedpulsar.arrow import read_topic

        path = self._place / "topic.parquet"
        begun = time.perf_counter()
        pq.write_table(
            read_topic(self._source, prepare.TOPIC), path, compression="zstd", use_dictionary=False
        )
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        seconds = time.perf_counter() - begun
        path.unlink()
        return seconds


class DuckScan(Contestant):
    """Timed: a sum over the values of a topic in DuckDB.

    Args:
        kind: see `shared_store`.
    """

    survives = READ_ONLY

    def __init__(self, messages: int, size: int, kind: str) -> None:
        super().__init__()
        self.key = kind
        self.name = f"embeddedpulsar.arrow.dataset, {kind}"
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        import duckdb

        self._duckdb: Any = duckdb
        self._root = shared_store(place, self._messages, self._size, self.key)

    def run(self, operations: int) -> float:
        from embeddedpulsar.arrow import dataset

        begun = time.perf_counter()
        prepared = dataset(self._root, prepare.TOPIC)  # DuckDB finds it by this name
        sums = self._duckdb.sql("SELECT sum(octet_length(value)) FROM prepared").fetchall()
        seconds = time.perf_counter() - begun
        assert sums == [(operations * self._size,)], sums
        del prepared
        return seconds


class DuckParquet(Contestant):
    """Timed: the same sum over a Parquet file of the same values."""

    key = "parquet"
    name = "Parquet, read_parquet"
    survives = READ_ONLY

    def __init__(self, messages: int, size: int) -> None:
        super().__init__()
        self._messages, self._size = messages, size

    def start(self, place: Path) -> None:
        import duckdb

        from benchmarks.peers import parquet

        self._duckdb: Any = duckdb
        self._path = place / "values.parquet"
        parquet.write(self._path, self._messages, self._size)

    def run(self, operations: int) -> float:
        begun = time.perf_counter()
        sums = self._duckdb.sql(f"SELECT sum(octet_length(value)) FROM '{self._path}'").fetchall()
        seconds = time.perf_counter() - begun
        assert sums == [(operations * self._size,)], sums
        return seconds
