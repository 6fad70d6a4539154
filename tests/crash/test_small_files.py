"""One small file of a store is damaged, whatever it is: no message is lost, and the file is derived again, or
kept, shown and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from embeddedpulsar._engine.store.care.store_check import REPAIR
from embeddedpulsar._engine.store.care.store_repair import RepairReport
from embeddedpulsar.testing import assert_clean
from tests.crash import small_files
from tests.crash.small_files import DAMAGES, SUBSCRIPTIONS, Use, unacknowledged

REPORTED = (
    "policies",
    "ns-",
    "schemas",
    "compaction",
    "offload",
    "compacted-start",
    "journal.2",
    "snapshot.2",
)
"""What the beginning of the name of a file is that a program uses by any of the calls, and that cannot be
derived without a word: its damage is told to the application."""

OF_STORE = "broker.conf catalog store.ctl store.meta owner pending done"
OF_TOPIC = "topic.meta ctl lock policies schemas compaction compacted.1 offload"
OF_SUBSCRIPTION = "journal.1 journal.2 snapshot.2 compacted-start"
OF_LEDGERS = f"{1:020d}.cold {1:020d}.idx {2:020d}.cold {3:020d}.idx"
EXPECTED = frozenset(f"{OF_STORE} {OF_TOPIC} {OF_SUBSCRIPTION} {OF_LEDGERS}".split())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with every kind of small file."""
    root = tmp_path_factory.mktemp("small") / "store"
    small_files.build(root)
    assert_clean(root)
    return root


def test_the_store_has_every_kind_of_small_file(original: Path):
    """Else the next test would pass for want of files."""
    names = {Path(name).name for name in small_files.small_files(original)}
    assert names >= EXPECTED
    (topic,) = original.glob("topics/*-orders")
    assert not (topic / f"{1:020d}.log").exists() and (topic / f"{2:020d}.log").exists()


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_small_file(original: Path, tmp_path: Path, damage: str, part: int):
    """Looked at, used, repaired, used again, put back: all is delivered each time, or the file named.

    Each file has every other of the damages here, and the rest in the storms.
    """
    root = tmp_path / "store"
    for number, name in enumerate(small_files.small_files(original), list(DAMAGES).index(damage)):
        if number % 2 != part:
            continue
        if not (original / name).stat().st_size and damage != "directory":
            continue  # it is empty, and not read
        if name.endswith("compacted.1") and damage == "flipped":
            continue  # its blocks are data: a damaged one is reported and stepped over, as a frame is
        small_files.copy(original, root)
        small_files.damage(root / name, damage)
        _go_through(root, name, (original / name).read_bytes(), damage)
        shutil.rmtree(root)


def _go_through(root: Path, name: str, whole: bytes, damage: str) -> None:
    path = root / name
    shown = {problem.path for problem in small_files.check(root).problems}
    used = small_files.use(root, with_admin=True)
    _expect(used, name, is_shown=str(path) in shown)
    if damage != "directory" and path.name.startswith(REPORTED) and str(path) in shown:
        assert str(path) in {one.path for found in used.reports for one in found}, name
    repaired = small_files.repair(root)
    left = _left(root, repaired, name)
    _expect(small_files.use(root, with_admin=False), name, is_shown=left)
    if left:
        if path.is_dir():
            path.rmdir()
        path.write_bytes(whole)
        again = small_files.use(root, with_admin=False)
        assert not again.refusals, name
        for subscription in SUBSCRIPTIONS:
            assert again.received[subscription] >= unacknowledged(subscription), (name, subscription)


def _expect(used: Use, name: str, *, is_shown: bool) -> None:
    """Every subscription gets everything, or a check shows the file and an error or a report names it."""
    file = Path(name).name
    for text in used.refusals:
        if file == "catalog" and "no such topic" in text:
            continue  # it is there again when it is used; see the caveats
        assert is_shown and text.startswith("Pulsar error") and file in text, (name, text)
        assert file == "broker.conf" or "; " in text, (name, text)  # the remedy
    for found in used.reports:
        assert len({(one.path, one.kind, one.offset, one.reason) for one in found}) == len(found), name
    for subscription in SUBSCRIPTIONS:
        missing = unacknowledged(subscription) - used.received.get(subscription, set())
        if not missing:
            continue
        named = any(file in text for text in used.refusals)
        named = named or any(one.path.endswith(name) for found in used.reports for one in found)
        assert is_shown and named, (name, subscription, missing)


def _left(root: Path, repaired: RepairReport | str, name: str) -> bool:
    """Whether the file is as before. No advice is to repair once more, and once more does nothing."""
    if isinstance(repaired, str):
        assert Path(name).name in repaired and "nothing was repaired; " in repaired, repaired
        return True
    for problem in repaired.left:
        assert problem.path.endswith(name) and problem.remedy and REPAIR not in problem.remedy, problem
    again = small_files.repair(root)
    assert isinstance(again, RepairReport) and not again.steps, again
    return bool(repaired.left)
