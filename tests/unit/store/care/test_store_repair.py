"""Repairs: for each kind of damage the store is whole afterwards, and every message that is whole is read."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, InitialPosition, NotAllowedError, damage
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar._engine.store.care.store_repair import RepairReport, repair_store
from embeddedpulsar.testing import assert_clean
from tests.storms import store_corruption
from tests.support.store_copies import copy_store

SETTINGS = "managedLedgerMaxSizePerLedgerMbytes=1\nmanagedLedgerMaxEntriesPerLedger=50\n"
SENT = [b"message %d" % number for number in range(120)]
ACKNOWLEDGED = 30


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store: a topic with three ledgers and a subscription, and another."""
    root = tmp_path_factory.mktemp("original") / "store"
    root.mkdir()
    (root / "broker.conf").write_text(SETTINGS)
    with Client(root) as client:
        consumer = client.subscribe("one", "sub")
        producer = client.create_producer("one", producer_name="p")
        for payload in SENT:
            producer.send(payload)
        client.create_producer("two").send(b"elsewhere")
        for _ in range(ACKNOWLEDGED):
            consumer.acknowledge(consumer.receive(1000))
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    """A copy of it, whose control words are believed as if it were the original."""
    copy = tmp_path / "store"
    copy_store(original, copy)
    for path in [*copy.rglob("ctl"), copy / "store.ctl"]:
        store_corruption.believe(str(path))
    assert_clean(copy)
    return copy


def left(root: Path, subscription: str = "sub", topic: str = "one") -> list[bytes]:
    """What a subscription gets."""
    with Client(root) as client:
        consumer = client.subscribe(topic, subscription, initial_position=InitialPosition.Earliest)
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(message.data())
    return found


def flip(path: Path, at: int, count: int = 1) -> None:
    """Change bytes."""
    data = bytearray(path.read_bytes())
    for number in range(at, at + count):
        data[number] ^= 0x5A
    path.write_bytes(data)


def only(root: Path, pattern: str, number: int = 0) -> Path:
    """The file of that pattern and number."""
    return sorted(root.glob(pattern))[number]


WHOLE: dict[str, Callable[[Path], object]] = {
    "store.meta": lambda root: flip(root / "store.meta", 20),
    "no store.meta": lambda root: (root / "store.meta").unlink(),
    "store.ctl": lambda root: flip(root / "store.ctl", 20),
    "no store.ctl": lambda root: (root / "store.ctl").unlink(),
    "catalog header": lambda root: flip(root / "catalog", 20),
    "catalog record": lambda root: flip(root / "catalog", 80),
    "no catalog": lambda root: (root / "catalog").unlink(),
    "topic.meta": lambda root: flip(only(root, "topics/*one*/topic.meta"), 20),
    "no topic.meta": lambda root: only(root, "topics/*one*/topic.meta").unlink(),
    "index": lambda root: flip(only(root, "topics/*one*/*.idx"), 4096 + 30),
    "no index": lambda root: only(root, "topics/*one*/*.idx").unlink(),
    "index of the tail": lambda root: flip(only(root, "topics/*one*/*.idx", -1), 4096 + 30),
    "header": lambda root: flip(only(root, "topics/*one*/*.log"), 0, 1024),
    "header of the tail": lambda root: flip(only(root, "topics/*one*/*.log", -1), 0, 1024),
    "ctl": lambda root: flip(only(root, "topics/*one*/ctl"), 20),
    "subscription ctl": lambda root: flip(only(root, "topics/*one*/subscriptions/*/ctl"), 20),
    "topic journal": lambda root: flip(only(root, "topics/*one*/journal.*"), 100),
    "lease": lambda root: os.mkfifo(root / "clients" / ("0" * 32)),
    "temporary": lambda root: (root / "store.meta.1-0.tmp").touch(),
    "staging": lambda root: (root / "staging" / "abc").mkdir(),
    "old ids": lambda root: flip(root / "store.ctl", 4096),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_costs_no_message(root: Path, name: str):
    """The check is clean afterwards, and the subscription gets what it had not acknowledged."""
    WHOLE[name](root)
    planned = repair_store(str(root), is_dry_run=True)
    report = repair_store(str(root))
    if name != "old ids":
        assert planned.steps
        assert set(planned.steps) <= set(report.steps)
    assert report.left == ()
    assert_clean(root)
    assert left(root) == SENT[ACKNOWLEDGED:]
    assert left(root, topic="two", subscription="new") == [b"elsewhere"]
    assert_clean(root)
    assert repair_store(str(root)).steps == ()


def test_a_journal_keeps_the_commands_that_can_be_read(root: Path):
    """Also those behind a damaged one; what was acknowledged by it may come again."""
    journal = only(root, "topics/*one*/subscriptions/*/journal.*")
    flip(journal, journal.stat().st_size - 60)
    report = repair_store(str(root))
    assert report.left == ()
    assert (Path(report.quarantine) / journal.relative_to(root)).is_file()
    found = left(root)
    assert found[-90:] == SENT[ACKNOWLEDGED:]
    assert_clean(root)


def test_lost_messages_are_named(root: Path):
    """A damaged entry cannot be repaired: it stays named, and all others are read."""
    log = only(root, "topics/*one*/*.log", 1)
    flip(log, 4096 + 100)
    report = repair_store(str(root))
    assert [problem.kind for problem in report.left] == [damage.HOLE]
    assert report.left[0].path == str(log)
    found = left(root, "new")
    assert len(found) == 119
    assert set(found) < set(SENT)


def test_a_cut_tail(root: Path):
    """Where the last ledger ends too early, the log ends there, and new messages follow."""
    log = only(root, "topics/*one*/*.log", -1)
    data = log.read_bytes()
    log.write_bytes(data[:4300] + bytes(len(data) - 4300))
    report = repair_store(str(root))
    assert report.left == ()
    assert_clean(root)
    with Client(root) as client:
        client.create_producer("one").send(b"more")
    found = left(root)
    assert found[0] == SENT[ACKNOWLEDGED]
    assert found[-1] == b"more"


def test_a_missing_ledger_is_named(root: Path):
    """And the rest is read."""
    for suffix in ("log", "idx"):
        only(root, f"topics/*one*/*.{suffix}", 1).unlink()
    report = repair_store(str(root))
    assert {problem.kind for problem in report.left} == {damage.MISSING_SEGMENT}
    assert left(root, "new") == SENT[:50] + SENT[100:]


def test_a_topic_of_which_nothing_says_its_name(root: Path):
    """It is a topic again, under another name, with its messages."""
    (root / "catalog").unlink()
    only(root, "topics/*one*/topic.meta").unlink()
    report = repair_store(str(root))
    assert report.left == ()
    assert_clean(root)
    with Admin(root) as admin:
        (rescued,) = [name for name in admin.topics().get_list("public/default") if "rescued" in name]
    assert left(root, "new", rescued) == SENT


def test_a_store_in_use(root: Path):
    """Nothing is repaired; a dry run says what would be."""
    flip(only(root, "topics/*one*/*.idx"), 4096 + 30)
    with Client(root) as client:
        client.create_producer("two")
        with pytest.raises(NotAllowedError, match="is in use; close it"):
            repair_store(str(root))
        planned = repair_store(str(root), is_dry_run=True)
        assert [step.what for step in planned.steps] == [
            "write the index and the end marks again, from the entries"
        ]
    assert repair_store(str(root)).steps


def test_a_dry_run_changes_nothing(root: Path):
    """Not even a time."""
    flip(root / "catalog", 20)
    flip(only(root, "topics/*one*/*.idx"), 4096 + 30)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    planned = repair_store(str(root), is_dry_run=True)
    assert planned.is_dry_run
    assert planned.left
    assert planned.json()["steps"][0]["what"]
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*")}


@pytest.mark.parametrize(
    "kind",
    [
        one
        for one in store_corruption.KINDS
        if not one.startswith(("rewound", "start")) and "policies" not in one
    ],
)
def test_random_damage(original: Path, tmp_path: Path, kind: str):
    """As the corruption storm makes it: a repair ends, and everything that was not acknowledged is read."""
    for number in range(3):
        rng = random.Random(f"{kind}/{number}")
        case = store_corruption.make_case(str(original), kind, str(tmp_path / f"case-{number}"), rng)
        report: RepairReport = repair_store(case.root)
        assert {problem.kind for problem in report.left} <= {damage.JOURNAL}, str(case)
        assert not check_store(case.root, is_closed=False).damage or report.left
        found = left(Path(case.root))
        assert set(SENT[ACKNOWLEDGED:]) <= set(found), str(case)
        assert set(found) <= set(SENT)
        # Opened for the first time in this boot, a store may show damage that looked like an unfinished file.
        assert not repair_store(case.root).left
        assert_clean(case.root)
