"""The auditor of stores: clean after use, exact about what is not as it should be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import damage
from embeddedpulsar._engine.log.log_check import CONTROL, JOURNAL
from embeddedpulsar._engine.store.care import store_check
from embeddedpulsar.client.client import Client
from embeddedpulsar.testing.trial_store import assert_clean, check_store
from tests.support.damaged_files import flip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two topics and a subscription, closed."""
    client = Client(str(tmp_path / "store"))
    consumer = client.subscribe("one", "sub")
    for topic in ("one", "two"):
        producer = client.create_producer(topic)
        for number in range(20):
            producer.send(b"%d" % number)
    consumer.acknowledge(consumer.receive(1000))
    client.close()
    return tmp_path / "store"


def only(root: Path, pattern: str) -> Path:
    """The first file of that pattern."""
    return sorted(root.glob(pattern))[0]


def test_a_closed_store_is_clean(root: Path):
    """Nothing held, nothing left over, everything counted; and nothing is changed by looking."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = assert_clean(root)
    assert (report.topics, report.ledgers, report.frames, report.messages) == (2, 2, 40, 40)
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_an_open_store_is_in_use(root: Path):
    """Living processes are problems only where there should be none."""
    client = Client(str(root))
    try:
        client.create_producer("one")
        assert check_store(root, is_closed=False).is_clean
        assert store_check.IN_USE in [problem.kind for problem in check_store(root).problems]
    finally:
        client.close()
    assert_clean(root)


SPOILS: dict[str, tuple[Callable[[Path], object], str]] = {
    "store.meta": (lambda root: flip(root / "store.meta", 20), store_check.META),
    "no store.meta": (lambda root: (root / "store.meta").unlink(), store_check.META),
    "store.ctl": (lambda root: flip(root / "store.ctl", 20), CONTROL),
    "cut store.ctl": (lambda root: os.truncate(root / "store.ctl", 7870), CONTROL),
    "no store.ctl": (lambda root: (root / "store.ctl").unlink(), CONTROL),
    "catalog tail": (lambda root: flip(root / "catalog", -12), damage.CATALOG),
    "catalog header": (lambda root: flip(root / "catalog", 20), damage.CATALOG),
    "catalog record": (lambda root: flip(root / "catalog", 80), damage.CATALOG),
    "no catalog": (lambda root: (root / "catalog").unlink(), damage.CATALOG),
    "topic.meta": (lambda root: flip(only(root, "topics/*/topic.meta"), 20), store_check.META),
    "no topic.meta": (lambda root: only(root, "topics/*/topic.meta").unlink(), store_check.META),
    "message": (lambda root: flip(only(root, "topics/*/*.log"), 4096 + 300), damage.HOLE),
    "index": (lambda root: flip(only(root, "topics/*/*.idx"), 4096 + 30), damage.INDEX),
    "ctl": (lambda root: flip(only(root, "topics/*/ctl"), 20), CONTROL),
    "subscription": (lambda root: flip(only(root, "topics/*/subscriptions/*/journal.*"), 80), JOURNAL),
    "foreign file": (lambda root: (root / "holiday.jpg").touch(), store_check.LEFTOVER),
    "lease": (lambda root: os.mkfifo(root / "clients" / ("0" * 32)), store_check.LEFTOVER),
    "temporary": (lambda root: (root / "store.meta.1-0.tmp").touch(), store_check.LEFTOVER),
    "staging": (lambda root: (root / "staging" / "abc").mkdir(), store_check.LEFTOVER),
    "unknown topic": (lambda root: (root / "topics" / "t-x").mkdir(), store_check.META),
    "old ids": (
        lambda root: only(root, "topics/*/*01.log").rename(only(root, "topics/*") / f"{10**9:020d}.log"),
        store_check.ID_REUSE,
    ),
}


@pytest.mark.parametrize("name", SPOILS)
def test_each_kind_of_trouble_has_its_name(root: Path, name: str):
    """Found, under the right name, and as a failure of `assert_clean`."""
    spoil, kind = SPOILS[name]
    spoil(root)
    assert kind in [problem.kind for problem in check_store(root).problems]
    with pytest.raises(AssertionError, match=kind):
        assert_clean(root)


def test_no_such_directory(tmp_path: Path):
    """Not a problem of a store: there is none."""
    with pytest.raises(FileNotFoundError):
        check_store(tmp_path / "missing")
