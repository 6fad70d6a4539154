"""`Admin.check`: what is wrong in a store or a topic, where, what it means and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, NotAllowedError, TopicNotFound, damage
from embeddedpulsar._engine.store.care.store_check import CareProgress, ProgressMeter
from tests.support.damaged_files import flip


def fill(client: Client, *topics: str) -> None:
    """Twenty messages in each topic."""
    for topic in topics:
        producer = client.create_producer(topic)
        for number in range(20):
            producer.send(b"%d" % number)
        producer.close()


def test_a_whole_store_and_one_topic(store_path: Path):
    """The report counts what was read; of a topic, its partitions that were used."""
    with Client(store_path) as client, Admin(store_path) as admin:
        admin.topics().create_partitioned_topic("parts", 2)
        fill(client, "one", "two", "parts-partition-1")
        report = admin.check()
        assert (report.is_clean, report.messages, report.living) == (True, 60, 1)
        assert (admin.check("one").topics, admin.check("one").messages) == (1, 20)
        assert [topic.name[-11:] for topic in admin.check("parts").of_topics] == ["partition-1"]
        assert admin.check("parts-partition-1").messages == 20
        with pytest.raises(TopicNotFound, match="no such topic"):
            admin.check("three")


def test_what_is_damaged(store_path: Path):
    """The place, the entries that are lost, the topic, what it means and what to do; also as JSON."""
    with Client(store_path) as client, Admin(store_path) as admin:
        fill(client, "one", "two")
        (log,) = store_path.glob("topics/*one*/*.log")
        flip(log, 4096 + 100)
        (found,) = admin.check("one").damage
        assert found.kind == damage.HOLE
        assert found.path == str(log)
        assert 4096 <= found.offset <= 4196
        assert found.first_entry == found.last_entry >= 0
        assert found.ledger_id == int(log.stem)
        assert found.topic == "persistent://public/default/one"
        assert "lost" in found.meaning
        assert "backup" in found.remedy
        assert admin.check("two").is_clean
        report = admin.check()
        assert report.damage == [found]
        shown = report.json()
        assert shown["is_whole"] is False
        assert shown["problems"][0]["path"] == str(log.relative_to(store_path))
        assert shown["problems"][0]["ledger_id"] == found.ledger_id


def test_a_store_in_memory_is_checked():
    """As one in a directory."""
    with Admin("memory://checked") as admin, Client("memory://checked") as client:
        client.create_producer("topic").send(b"x")
        report = admin.check()
        assert report.is_clean and report.messages == 1


def test_progress_is_reported_once_a_second(monkeypatch: pytest.MonkeyPatch):
    """From the second second on."""
    now = [0.0]

    class Clock:
        def monotonic(self) -> float:
            return now[0]

    monkeypatch.setattr("embeddedpulsar._engine.store.care.store_check.SYSTEM_CLOCK", Clock())
    seen: list[CareProgress] = []
    meter = ProgressMeter("checking", seen.append)
    for number in range(40):
        now[0] = number / 10
        meter.topic(number + 1, 40)
        meter.read(1 << 20)
    assert [str(one) for one in seen] == [
        f"checking topic {number + 1} of 40, {number} MiB read" for number in (10, 20, 30)
    ]


def test_every_kind_of_problem_is_explained():
    """What it means and what to do."""
    from embeddedpulsar._engine.log import log_check
    from embeddedpulsar._engine.store.care import store_check

    words = vars(store_check).items()
    kinds = {value for name, value in words if name[0] != "_" and name.isupper() and isinstance(value, str)}
    kinds |= {log_check.LINK, log_check.TRAILER, log_check.STRAY, *damage._CONSEQUENCES}
    kinds -= {damage.CATALOG, damage.TOPIC_FILES}  # of reports to the application alone
    kinds -= {store_check.REPAIR, store_check.OWNER}  # remedies
    assert kinds <= set(store_check.MEANINGS)


def test_repair(store_path: Path):
    """What can be repaired is, with the store closed meanwhile; the Admin goes on."""
    with Client(store_path) as client:
        fill(client, "one")
    (index,) = store_path.glob("topics/*one*/*.idx")
    flip(index, 4096 + 20)
    with Admin(store_path) as admin:
        planned = admin.repair(dry_run=True)
        assert planned.is_dry_run
        assert [problem.kind for problem in planned.left] == [damage.INDEX]
        with Client(store_path), pytest.raises(NotAllowedError, match="is in use"):
            admin.repair()
        done = admin.repair()
        assert done.left == ()
        assert set(planned.steps) <= set(done.steps)
        assert admin.check().is_clean
        assert admin.topics().get_list()
        assert admin.repair().steps == ()
