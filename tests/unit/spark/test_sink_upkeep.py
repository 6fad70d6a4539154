"""What is cleared away of sinks whose jobs died."""

from __future__ import annotations

from pathlib import Path

from embeddedpulsar import Client
from embeddedpulsar.spark.sink_place import (
    DONE,
    PENDING,
    SINK_KEPT_S,
    STAGED_KEPT_S,
    SinkPlace,
    SinkUpkeep,
    sinks_of,
    staged_name,
)
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.conformance.chunks import log_of


def staged_at(place: SinkPlace, *names: str) -> None:
    """Files of that sink, just written."""
    place.make()
    for name in names:
        Path(place.file(name)).write_bytes(b"x")


def test_what_dead_jobs_left_goes(tmp_path: Path):
    """Staged rows after a day, unless a commit names them or runs; a sink when it was not used for long."""
    Client(tmp_path).close()
    clock = ManualClock()
    orphaned, begun, held = (SinkPlace(str(tmp_path), key) for key in ("a", "b", "c"))
    for place in (orphaned, begun, held):
        staged_at(place, staged_name(1, 0, 0), DONE)
    staged_at(begun, PENDING)
    newest = max(path.stat().st_mtime for path in (tmp_path / "sinks").rglob("*"))
    upkeep, done = SinkUpkeep(str(tmp_path), clock, lambda: 0), []
    clock.set_wall_ms(int(1000 * (newest + STAGED_KEPT_S - 60)))
    upkeep.do_chores(done)
    assert not done and all(place.staged() for place in (orphaned, begun, held))
    clock.set_wall_ms(int(1000 * (newest + STAGED_KEPT_S + 60)))
    held.locked(lambda: upkeep.do_chores(done))
    assert [bool(place.staged()) for place in (orphaned, begun, held)] == [False, True, True]
    assert len(done) == 1 and "1 files of rows that no commit took" in done[0]
    clock.set_wall_ms(int(1000 * (newest + SINK_KEPT_S + 60)))
    upkeep.do_chores(done)
    upkeep.do_chores(done)
    assert [place.key for place in sinks_of(str(tmp_path))] == ["b"]


def test_a_store_that_gets_a_sink(tmp_path: Path):
    """Is looked at by processes that had opened it before, from the next look at a topic on."""
    with ManualClock() as clock, Client(tmp_path) as client, client.create_producer("t") as producer:
        clock.advance(600)
        place = SinkPlace(str(tmp_path), "a")
        staged_at(place, staged_name(1, 0, 0))
        clock.set_wall_ms(int(1000 * (Path(place.path).stat().st_mtime + STAGED_KEPT_S + 60)))
        clock.advance(600)
        assert place.staged()
        producer.send(b"x")
        log_of(client, "t").roll()
        producer.send(b"y")
        clock.advance(61)
        assert not place.staged()
