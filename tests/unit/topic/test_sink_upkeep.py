"""What is cleared away of sinks whose jobs died."""

from __future__ import annotations

from pathlib import Path

from embeddedpulsar import Client
from embeddedpulsar.testing.manual_clock import ManualClock
from embeddedpulsar.topic.sinks.sink_place import DONE, PENDING, SinkPlace, sinks_of, staged_name
from embeddedpulsar.topic.sinks.sink_upkeep import SINK_KEPT_S, STAGED_KEPT_S, SinkUpkeep


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
    upkeep, done = SinkUpkeep(str(tmp_path), clock), []
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


def test_a_store_without_sinks_is_not_looked_at(tmp_path: Path):
    """The chore is asked for once there is a sink."""
    clock = ManualClock()
    assert SinkUpkeep(str(tmp_path), clock).chores_every_s() == 0
    SinkPlace(str(tmp_path), "a").make()
    assert SinkUpkeep(str(tmp_path), clock).chores_every_s() > 0
