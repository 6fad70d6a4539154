"""Whole-column reads of topics that are trimmed while they are planned and read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
import pyarrow.dataset as ds

from embeddedpulsar import CorruptionError, TopicNotFound
from embeddedpulsar._engine.log.entry_range import Bounds, plan_segments, split
from embeddedpulsar._engine.platform import descriptors
from embeddedpulsar._engine.store.topic_lookup import listed_segments, plan_logs
from embeddedpulsar.arrow import mapped_segment, read_topic, scan_topic
from embeddedpulsar.arrow.columns import record_batches, table
from embeddedpulsar.arrow.datasets import surviving
from embeddedpulsar.arrow.mapped_segment import open_ahead, raise_damage, raise_gone, warn_of_gone
from embeddedpulsar.arrow.schema import KNOWN, arrow_schema
from embeddedpulsar.topic_name import TopicName
from tests.support.log_files import BASE_MS, LogFiles, write_topic

NAME = TopicName.parse("t")


@pytest.fixture
def log(tmp_path: Path) -> LogFiles:
    """Ledgers 7, 9, 11 and 13 of five messages each."""
    return write_topic(tmp_path, "t", [1] * 20)


def trim(log: LogFiles, before: int) -> None:
    """Remove the ledgers before one, as housekeeping does."""
    log.finish(trim=before)
    for ledger in range(7, before, 2):
        log.log_path(ledger).unlink()
        log.index_path(ledger).unlink()


def rows(planned: object, **options: object) -> int:
    """How many rows ranges have."""
    opened = open_ahead(planned, None, raise_gone, **options)  # type: ignore[arg-type]
    return int(table(opened, ("value",), raise_damage).num_rows)


@pytest.mark.parametrize("bounds", [Bounds(), Bounds(start_ms=BASE_MS), Bounds(end_ms=BASE_MS + 13)])
def test_between_listing_and_planning(tmp_path: Path, log: LogFiles, bounds: Bounds):
    """It is as if the segments had gone before: the plan begins with the first that is there."""
    segments = listed_segments(str(tmp_path), NAME)
    trim(log, 11)
    planned = plan_segments(segments, NAME, bounds)
    assert rows(planned, is_fresh=True) == (3 if bounds.end_ms else 10)
    for piece in planned:
        assert split(piece, 1)[0].first_entry == 0


def test_between_planning_and_reading(tmp_path: Path, log: LogFiles):
    """The same for a plan that was made for this read; news for one that is older."""
    planned = plan_logs(str(tmp_path), [NAME])
    trim(log, 11)
    assert rows(planned, is_fresh=True) == 10
    with pytest.raises(CorruptionError, match="ledger 7 was trimmed after the read was planned"):
        rows(planned)
    opened = open_ahead(planned, None, warn_of_gone)
    assert table(opened, ("value",), raise_damage).num_rows == 10


def test_a_plan_is_not_cut_where_its_segment_is_gone(tmp_path: Path, log: LogFiles):
    """Whoever reads the piece will say so."""
    planned = plan_logs(str(tmp_path), [NAME])
    trim(log, 9)
    assert split(planned[0], 1) == [planned[0]]


def test_a_segment_that_was_not_trimmed_is_lost(tmp_path: Path, log: LogFiles):
    """A file that goes without the trim point is never passed over in silence."""
    planned = plan_logs(str(tmp_path), [NAME])
    log.log_path(7).unlink()
    with pytest.raises(CorruptionError):
        rows(planned, is_fresh=True)
    with pytest.raises(CorruptionError, match="although it was not trimmed"):
        read_topic(tmp_path, "t")


def test_a_scan_reads_what_was_there(tmp_path: Path, log: LogFiles):
    """Segments are mapped ahead: a scan gives everything, whatever is trimmed while it is read."""
    scan = scan_topic(tmp_path, "t", ["value"])
    trim(log, 13)
    assert scan.read_all().num_rows == 20


@pytest.mark.parametrize("strict", [True, False])
def test_beyond_what_is_mapped_ahead(tmp_path: Path, log: LogFiles, monkeypatch, caplog, strict: bool):
    """Rows in the middle are an error, or a gap and a warning; those in front were read already."""
    monkeypatch.setattr(mapped_segment, "AHEAD", 1)
    scan = scan_topic(tmp_path, "t", ["value"], fail_on_data_loss=strict)
    trim(log, 13)
    if strict:
        with pytest.raises(CorruptionError, match="ledger 11 was trimmed after the read was planned"):
            scan.read_all()
    else:
        assert scan.read_all().num_rows == 15
        assert "ledger 11 was trimmed" in caplog.text


def test_several_logs_in_one_read(tmp_path: Path, log: LogFiles):
    """What is trimmed of one topic says nothing about another."""
    other = write_topic(tmp_path, "u", [1] * 10, first_ledger=21)
    planned = plan_logs(str(tmp_path), [NAME]) + plan_logs(str(tmp_path), [TopicName.parse("u")])
    trim(log, 11)
    other.log_path(21).unlink()
    other.finish(trim=23)
    opened = open_ahead(planned, None, raise_gone, is_fresh=True)
    batches = record_batches(opened, ("value",), rows=100, large=100, on_damage=raise_damage)
    assert [batch.num_rows for batch in batches] == [5, 5, 5]


def test_a_topic_that_was_deleted(tmp_path: Path, log: LogFiles):
    """It is not found; or, for a plan that was made before, its segments are gone."""
    planned = plan_logs(str(tmp_path), [NAME])
    for path in log.directory.iterdir():
        path.unlink()
    log.directory.rmdir()
    with pytest.raises(TopicNotFound, match="it was deleted"):
        listed_segments(str(tmp_path), NAME)
    assert rows(planned, is_fresh=True) == 0
    with pytest.raises(CorruptionError, match="was trimmed"):
        rows(planned)


def test_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where there may be few, a scan maps fewer ahead."""
    write_topic(tmp_path, "t", [1] * 20, per_ledger=1)
    monkeypatch.setattr(descriptors, "limit", lambda: 32)
    planned = plan_logs(str(tmp_path), [NAME])
    asked = []
    opened = open_ahead((asked.append(piece) or piece for piece in planned), None, raise_gone)
    next(opened)
    assert len(asked) == 5
    assert len(list(opened)) == 19


def test_between_planning_and_filtering(tmp_path: Path, log: LogFiles):
    """A filter of a dataset keeps the pieces of which nothing is known any more; reading them says it."""
    planned = plan_logs(str(tmp_path), [NAME])
    trim(log, 11)
    kept = surviving(
        planned, ds.field("__publishTime") >= datetime(2100, 1, 1, tzinfo=UTC), arrow_schema(KNOWN)
    )
    assert [piece.ledger_id for piece in kept] == [7, 9]
    assert rows(kept, is_fresh=True) == 0
