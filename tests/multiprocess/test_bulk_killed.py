"""Processes that make and delete many topics, side by side, and are killed in the middle of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store import catalog  # it declares steps when it is imported
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import die_at

MODULES = (catalog,)
BASE = "persistent://public/default"
# That of a renewal that keeps damage needs some: tests/unit/store/test_damaged_catalog.py.
STEPS = [
    name
    for name in failpoints.names()
    if name.startswith(("catalog", "document:")) and name != "catalog_renewal:damaged_kept"
]
COUNT = catalog.INDEX_AFTER + 100


@pytest.mark.parametrize("step", [*STEPS, "topic:catalogued"])
def test_bulk(tmp_path: Path, step: str):
    """All of a step are there or none, for the processes that have the store open and for later ones."""

    def make() -> None:
        with Admin(tmp_path) as other:
            other.topics().create_non_partitioned_topics(f"t{number}" for number in range(COUNT))

    with Admin(tmp_path) as admin:
        admin.topics().create_non_partitioned_topic("first")
        assert die_at(step, make)
        found = admin.topics().get_list()
        assert len(found) in (1, COUNT + 1)
        if len(found) == 1:
            make()
        assert len(admin.topics().get_list()) == COUNT + 1
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        assert len(admin.topics().get_list()) == COUNT + 1
        client.create_producer("t7").close()
        admin.topics().delete("t8")
        assert f"{BASE}/t8" not in admin.topics().get_list()
        admin.topics().create_non_partitioned_topics(f"more{number}" for number in range(COUNT))
    assert (tmp_path / "catalog.index").exists()
    clear_away(tmp_path)
    assert_clean(tmp_path)


@pytest.mark.parametrize("step", ["topic:staged", "topic:described", "topic:renamed", "announced:made"])
def test_the_first_opening(tmp_path: Path, step: str):
    """The next process that opens the topic makes its directory, or finds it."""

    def open_it() -> None:
        with Client(tmp_path) as client:
            client.create_producer("topic").send(b"x")

    with Admin(tmp_path) as admin:
        admin.topics().create_non_partitioned_topics(["topic", "other"])
        assert die_at(step, open_it)
        assert admin.topics().get_list() == [f"{BASE}/other", f"{BASE}/topic"]
        open_it()
        admin.topics().delete("other")
    clear_away(tmp_path)
    assert_clean(tmp_path)


def test_processes_side_by_side(tmp_path: Path):
    """Each makes topics, opens some and deletes some, while the others do; every one finds the same in the
    end."""
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work(tmp_path, child)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert statuses == [0, 0, 0]
    expected = {f"{BASE}/c{child}-{number}" for child in range(3) for number in range(3000) if number % 1000}
    with Admin(tmp_path) as admin:
        assert set(admin.topics().get_list()) == expected
    assert_clean(tmp_path)


def work(root: Path, child: int) -> None:
    """Make 3,000 topics in steps of 1,000; open and delete the first of each."""
    with Client(root) as client, Admin(root) as admin:
        for first in range(0, 3000, 1000):
            names = [f"c{child}-{number}" for number in range(first, first + 1000)]
            admin.topics().create_non_partitioned_topics(names)
            with client.create_producer(names[0]) as producer:
                producer.send(b"x")
            admin.topics().delete(names[0])
            assert {f"{BASE}/{name}" for name in names[1:]} <= set(admin.topics().get_list())


def clear_away(root: Path) -> None:
    """What a killed process leaves: the next that opens the store removes its doorbell; files in the root and
    in staging go with the next boot, or a repair."""
    Admin(root).close()
    for path in root.glob("*.tmp"):
        path.unlink()
    for path in (root / "staging").glob("*/*"):
        path.rmdir() if path.is_dir() else path.unlink()
    for path in (root / "staging").iterdir():
        path.rmdir()
