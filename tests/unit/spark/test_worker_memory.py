"""What a Spark worker has loaded is no part of its collections; other processes collect as before."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark import TaskContext

from embeddedpulsar.spark import batch_reader
from embeddedpulsar.spark.data_source import DefaultSource
from tests.support.log_files import write_topic


@pytest.fixture
def collector(monkeypatch):
    """How often objects were excluded, by a collector that does not exclude those of this process."""

    class Collector:
        frozen = 0

        def freeze(self) -> None:
            self.frozen += 1

        def get_freeze_count(self) -> int:
            return self.frozen

    found = Collector()
    monkeypatch.setattr(batch_reader, "gc", found)
    return found


def read(root) -> None:
    """All tasks of a query."""
    source = DefaultSource({"path": str(root), "topic": "t", "minPartitions": "2"})
    reader = source.reader(source.schema())
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 3


def test_a_worker_excludes_its_modules_once(tmp_path, collector, monkeypatch):
    """The first task does, the others find it done."""
    write_topic(tmp_path, "t", [1, 1, 1])
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    read(tmp_path)
    read(tmp_path)
    assert collector.frozen == 1


def test_a_process_that_is_no_worker_is_left_alone(tmp_path, collector):
    """A program that calls the reader itself keeps its collections."""
    before = gc.get_freeze_count()  # what the tests exclude themselves
    write_topic(tmp_path, "t", [1, 1, 1])
    read(tmp_path)
    assert collector.frozen == 0
    assert gc.get_freeze_count() <= before
