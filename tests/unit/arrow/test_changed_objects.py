"""Whole-topic reads of offloaded ledgers whose objects were changed: what was stored, or an error."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import arrow
from embeddedpulsar.exceptions import ColdReadError
from tests.conformance.offloading import TOPIC, Site

SENT = 25
READS: dict[str, Callable[[Path], list[bytes]]] = {
    "read_topic": lambda root: arrow.read_topic(root, TOPIC)["value"].to_pylist(),
    "scan_topic": lambda root: [
        value for batch in arrow.scan_topic(root, TOPIC) for value in batch["value"].to_pylist()
    ],
    "dataset": lambda root: arrow.dataset(root, TOPIC).to_table()["value"].to_pylist(),
}


def _exported(root: Path) -> list[bytes]:
    target = root.parent / f"exported-{os.urandom(4).hex()}"
    files = arrow.export(root, TOPIC, target).files
    import pyarrow.parquet as pq

    return [value for file in files for value in pq.read_table(file)["value"].to_pylist()]


READS["export"] = _exported


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A topic with two ledgers in a location, and one open."""
    made = Site(tmp_path_factory.mktemp("site"))
    made.publish(SENT)
    assert made.offload() == ""
    yield made
    made.close()


@pytest.fixture
def table(site: Site) -> Iterator[Path]:
    """The table of messages of the second ledger; put back afterwards."""
    path = sorted(path for path in site.objects() if path.name.endswith(".messages.parquet"))[-1]
    stored = path.read_bytes()
    yield path
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(stored)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_an_object_as_it_was_stored(site: Site, table: Path, read: Callable[[Path], list[bytes]]):
    """All rows."""
    assert sorted(map(int, read(site.root))) == list(range(SENT))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize(
    "kind", ["other ledger", "cut", "longer", "empty", "FIFO", "directory", "link", "missing"]
)
def test_something_else_in_its_place(
    site: Site, table: Path, tmp_path: Path, read: Callable[[Path], list[bytes]], kind: str
):
    """An error that names topic, entries and remedy; never other rows, and nothing waits."""
    stored = table.read_bytes()
    table.unlink()
    if kind == "other ledger":
        first = min(path for path in site.objects() if path.name.endswith(".messages.parquet"))
        shutil.copy(first, table)
    elif kind == "FIFO":
        os.mkfifo(table)
    elif kind == "directory":
        table.mkdir()
    elif kind == "link":
        (tmp_path / "object").write_bytes(stored)
        table.symlink_to(tmp_path / "object")
    elif kind != "missing":
        table.write_bytes({"cut": stored[:-9], "longer": stored + b"x", "empty": b""}[kind])
    with pytest.raises(ColdReadError, match=r"topic: entries .* were offloaded to .*cannot be read back"):
        read(site.root)


def test_any_changed_byte(site: Site, table: Path):
    """At random places, and each of the last ones, which tell where everything lies."""
    stored, rng = table.read_bytes(), random.Random(4711)
    for at in [*rng.sample(range(len(stored)), 40), *range(len(stored) - 40, len(stored))]:
        table.write_bytes(stored[:at] + bytes([stored[at] ^ 1 << rng.randrange(8)]) + stored[at + 1 :])
        with pytest.raises(ColdReadError, match="is not what was stored"):
            arrow.read_topic(site.root, TOPIC)


def test_frames_are_verified_before_they_are_parsed(site: Site):
    """A reader that fetches a ledger back gets the same error."""
    path = sorted(path for path in site.objects() if path.name.endswith(".frames.parquet"))[-1]
    stored = path.read_bytes()
    try:
        for at in (5, len(stored) // 2, len(stored) - 20):
            path.write_bytes(stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :])
            with pytest.raises(ColdReadError, match="is not what was stored"):
                site.read_all()
    finally:
        path.write_bytes(stored)
