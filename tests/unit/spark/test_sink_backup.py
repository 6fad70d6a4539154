"""Backups beside sinks: after a restore, a batch that comes again is not stored twice, nor in part."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar import Admin, Client
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store.care import store_cut
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.spark import finish_commits, sink_commit
from embeddedpulsar.spark.sink_place import PENDING, SinkPlace, sinks_of
from embeddedpulsar.testing import assert_clean
from tests.children import die_at
from tests.conformance.chunks import log_of
from tests.support.sinks import write

assert sink_commit, store_cut  # imported: they declare the steps
POINTS = sorted(name for name in failpoints.names() if name.startswith("sink:") and "stag" not in name)
TOPICS = ("t", "u")


@pytest.fixture(autouse=True)
def _clear() -> Iterator[None]:
    yield
    failpoints.clear()


def batch(number: int, text: bytes = b"") -> dict[str, list[Any]]:
    """Rows of two topics."""
    return {"value": [b"%d-%d%s" % (number, i, text) for i in range(6)], "__topic": [*TOPICS] * 3}


def commit(root: Path, number: int, text: bytes = b"") -> None:
    """As a streaming query does, by two tasks; a restored topic begins a ledger, and keeps the one before."""
    root.mkdir(exist_ok=True)
    (root / "broker.conf").write_text("defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n")
    write(root, batch(number, text), batch(number, text), producerName="sink", batchId=str(number))


def rows_of(root: Path, *, sink: str = "sink") -> dict[str, list[bytes]]:
    """The values of both topics."""
    found = {}
    for topic in TOPICS:
        rows = read_topic(root, topic, ["value", "__producerName"]).to_pylist()
        found[topic] = [row["value"] for row in rows if row["__producerName"] == sink]
    return found


def wanted(*numbers: int) -> dict[str, list[bytes]]:
    """The values of batches."""
    return {
        topic: [b"%d-%d" % (n, i) for n in numbers for _ in range(2) for i in range(start, 6, 2)]
        for start, topic in enumerate(TOPICS)
    }


def backup(root: Path, target: Path, topics: list[str] | None = None) -> None:
    """With an Admin of its own."""
    with Admin(root) as admin:
        admin.backup(target, topics)


def replayed(target: Path, place: Path, number: int) -> dict[str, list[bytes]]:
    """What a restored store has when the query repeats a batch, with other rows, and ends."""
    Admin.restore(target, place)
    commit(place, number, b" again")
    assert finish_commits(place) == 0
    assert not [path for path in (place / "sinks").rglob("*.rows") if path.is_file()]
    assert not list(place.rglob("pins/*.*"))
    assert_clean(place)
    return rows_of(place)


def test_a_batch_that_comes_again_after_a_restore(tmp_path: Path):
    """What was committed before the backup is there once; what is new is stored."""
    root, target = tmp_path / "store", tmp_path / "backup"
    for number in (1, 2):
        commit(root, number)
        backup(root, target)
        assert replayed(target, tmp_path / f"new-{number}", number) == wanted(*range(1, number + 1))
    commit(tmp_path / "new-2", 3)
    assert rows_of(tmp_path / "new-2") == wanted(1, 2, 3)


@pytest.mark.parametrize("point", POINTS)
def test_a_commit_whose_job_died(tmp_path: Path, point: str):
    """The restored store finishes what was begun, and nothing else; the store that was copied as well."""
    root, target = tmp_path / "store", tmp_path / "backup"
    commit(root, 1)
    nth = 3 if point == "sink:publishing" else 1
    assert die_at(point, lambda: commit(root, 2), nth)
    is_begun = bool([1 for one in sinks_of(str(root)) if one.read(PENDING)])
    backup(root, target)
    new = replayed(target, tmp_path / "new", 2)
    commit(root, 2, b" again")
    assert new == rows_of(root)
    assert not is_begun or new == wanted(1, 2)


@pytest.mark.parametrize("point", [*POINTS, "backup:sinks_taken", "backup:journals_taken", "backup:cut"])
def test_a_backup_while_a_commit_stands_still(tmp_path: Path, point: str):
    """At each step of a commit a backup is made; and at each step of a backup two commits."""
    root, target = tmp_path / "store", tmp_path / "backup"
    commit(root, 1)
    if point.startswith("backup:"):
        failpoints.set(point, lambda: [commit(root, 2), commit(root, 3)])
        backup(root, target)
        assert replayed(target, tmp_path / "new", 3) == wanted(1, 2, 3)
        return
    made: list[bool] = []
    failpoints.set(point, lambda: made.append(bool(list(root.rglob("pending")))) or backup(root, target))
    commit(root, 2)
    new = replayed(target, tmp_path / "new", 2)
    assert new == wanted(1, 2) or (not made[0] and new["t"][:6] == wanted(1)["t"])


def test_a_batch_while_logs_are_copied(tmp_path: Path):
    """A batch that goes to a topic that is copied, and makes another one, is in the backup in no topic."""
    root, target = tmp_path / "store", tmp_path / "backup"
    large = 1 << 20
    write(root, {"value": [b"0" * large], "__topic": ["t"]}, producerName="sink", batchId="0")
    point = "backup:object_written"  # the journal and the ledger of t come first

    def between() -> None:
        if list(target.rglob("*")) and sum(one.stat().st_size for one in target.rglob("*")) > large:
            failpoints.clear()
            commit(root, 1)

    failpoints.set(point, between, nth=0)
    with Admin(root) as admin:
        assert admin.backup(target).copied < 1.2 * large
    found = replayed(target, tmp_path / "new", 1)
    again = {topic: [one + b" again" for one in values] for topic, values in wanted(1).items()}
    assert (found["t"][1:], found["u"]) == (again["t"], again["u"])


def test_a_backup_of_one_topic(tmp_path: Path):
    """A commit that was begun goes with its topic; one of other topics alone is left out."""
    root = tmp_path / "store"
    with Client(root) as client:
        client.create_producer("other").send(b"x")
    assert die_at("sink:publishing", lambda: commit(root, 1))
    (place,) = sinks_of(str(root))
    for topic, is_there in (("t", True), ("other", False)):
        # With its lock, which keeps the upkeep of the open store from finishing the commit.
        place.locked(partial(backup, root, tmp_path / topic, [topic]))
        Admin.restore(tmp_path / topic, tmp_path / f"new-{topic}")
        assert bool(list((tmp_path / f"new-{topic}").rglob("*.rows"))) == is_there
        assert finish_commits(tmp_path / f"new-{topic}") == 12 * is_there
        assert_clean(tmp_path / f"new-{topic}")


def test_trimming_waits_for_a_restored_commit(tmp_path: Path):
    """What tells how far it came stays until it is finished, also if all of it was read."""
    root, target = tmp_path / "store", tmp_path / "backup"
    commit(root, 1)
    with Client(root) as client:
        consumer = client.subscribe("t", "s", ack_group_time_ms=0)
        assert die_at("sink:publishing", lambda: commit(root, 2), 3)
        consumer.acknowledge(consumer.receive(1000))
        consumer.close()
    backup(root, target)
    Admin.restore(target, tmp_path / "new")
    with Client(tmp_path / "new") as client, Admin(tmp_path / "new") as admin:
        consumer = client.subscribe("t", "s", ack_group_time_ms=0)
        while (message := consumer.receive_nowait()) is not None:
            consumer.acknowledge(message)
        log_of(client, "t").roll()
        client.create_producer("t").send(b"x")
        admin.topics().trim_topic("t")
        assert [kept.reason for kept in admin.why_kept("t").ledgers] == ["pinned", "open"]
    commit(tmp_path / "new", 2, b" again")
    assert rows_of(tmp_path / "new") == wanted(1, 2)
    assert_clean(tmp_path / "new")


def test_a_sink_that_commits_all_the_time_waits(tmp_path: Path):
    """Its lock is taken after some attempts; a backup that never comes to rest is an error."""
    root, target = tmp_path / "store", tmp_path / "backup"
    commit(root, 1)
    (place,) = sinks_of(str(root))
    numbers = iter(range(2, 1000))

    def another() -> None:
        if place.try_locked(lambda: None):  # else the backup keeps it
            commit(root, next(numbers))

    failpoints.set("backup:sinks_taken", another, nth=0)
    backup(root, target)
    failpoints.clear()
    last = next(numbers) - 1
    assert 3 <= last <= 6
    assert replayed(target, tmp_path / "new", last) == wanted(*range(1, last + 1))

    other = iter(range(1000))
    failpoints.set("backup:sinks_taken", lambda: SinkPlace(str(root), f"{next(other)}").make(), nth=0)
    with pytest.raises(StorageError, match="Spark committed batches whenever"):
        backup(root, target)


def test_damaged_records_are_copied_as_they_are(tmp_path: Path):
    """The other sinks are whole."""
    root, target = tmp_path / "store", tmp_path / "backup"
    commit(root, 1)
    assert die_at("sink:pending", lambda: write(root, batch(5), producerName="other", batchId="5"))
    (damaged,) = [one for one in sinks_of(str(root)) if one.read(PENDING)]
    Path(damaged.file(PENDING)).write_bytes(b"damaged")
    backup(root, target)
    restored = tmp_path / "new"
    Admin.restore(target, restored)
    commit(restored, 1, b" again")
    assert rows_of(restored) == wanted(1)
    copied = Path(SinkPlace(str(restored), damaged.key).file(PENDING))
    assert copied.read_bytes() == b"damaged"
    assert [problem.path for problem in check_store(restored).problems] == [str(copied)]
