"""A store whose catalog is damaged: what it still says is used, what it lost comes back from the topics."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, Damage, MessageId
from embeddedpulsar._engine.platform import timing
from embeddedpulsar.damage import CATALOG
from embeddedpulsar.testing import assert_clean, check_store
from tests.children import die_at
from tests.support.damaged_files import flip

LATE = "persistent://public/late/used"
ANNOUNCED = [f"persistent://public/default/announced-{number}" for number in range(6)]
USED = "persistent://public/default/used"
GONE = "persistent://public/default/gone"
REMAINING = sorted([*ANNOUNCED, USED])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store: topics that were never opened, used ones in two namespaces, and a deleted one."""
    root = tmp_path / "store"
    with Admin(root) as admin, Client(root) as client:
        client.create_producer(GONE).close()
        client.create_producer(USED).send(b"kept")
        admin.topics().create_non_partitioned_topics(ANNOUNCED[:2])
        admin.namespaces().create_namespace("public/late")
        client.create_producer(LATE).send(b"late")
        for name in ANNOUNCED[2:]:
            admin.topics().create_non_partitioned_topic(name)
        admin.topics().delete(GONE)
    return root


def hit(root: Path, text: bytes) -> None:
    """Damage the record of the catalog that has ``text`` first."""
    path = root / "catalog"
    flip(path, path.read_bytes().index(text) + len(text) - 1)


def use(root: Path) -> tuple[list[str], list[str], list[Damage]]:
    """Open the store, and send to a used topic of each namespace; what it lists, and what was reported."""
    found: list[Damage] = []
    with Admin(root, on_damage=found.append) as admin, Client(root) as client:
        topics = admin.topics().get_list("public/default"), admin.topics().get_list("public/late")
        for name, sent in ((USED, b"kept"), (LATE, b"late")):
            reader = client.create_reader(name, MessageId.earliest)
            assert reader.read_next(1000).data() == sent
    return *topics, found


def test_what_is_behind_a_damaged_record_stays_as_it_was(root: Path):
    """In the same boot: topics of later records are listed, a deleted one stays deleted; nothing is written
    over it when a topic is made."""
    hit(root, b"announced-3")
    before = (root / "catalog").read_bytes()
    listed, late, found = use(root)
    assert listed == sorted({*REMAINING} - {ANNOUNCED[3]}) and late == [LATE]
    (damage,) = found
    assert damage.kind == "catalog" and "stepped over" in damage.done and "repair" in damage.remedy
    with Admin(root) as admin:
        admin.topics().create_non_partitioned_topic("new")
    assert (root / "catalog").read_bytes().startswith(before[:-8])
    assert "persistent://public/default/new" in use(root)[0]


RECORDS = {"used topic": b"default/used", "namespace": b"public/late", "topic in it": b"late/used"}


@pytest.mark.parametrize("record", RECORDS)
def test_what_has_a_directory_is_added_again(root: Path, record: str):
    """A used topic, and the namespace of one, in the same boot: whoever opens the store puts them back."""
    hit(
        root,
        {"used topic": b"default/used", "namespace": b"public/late", "topic in it": b"late/used"}[record],
    )
    listed, late, found = use(root)
    assert listed == REMAINING and late == [LATE]
    assert [damage.kind for damage in found] == ["catalog"] * 2
    assert found[1].done == "it was added again" and "was missing from the catalog" in found[1].reason
    with Admin(root) as admin:
        assert "public/late" in admin.namespaces().get_namespaces("public")
    assert len(use(root)[2]) == 1  # the record that is damaged, until it is repaired


def test_check_and_repair_name_the_place(root: Path):
    """It is damage, not the rest of a record; and repaired it is whole."""
    hit(root, b"announced-3")
    problems = [one for one in check_store(root).problems if one.kind == CATALOG]
    (problem,) = problems
    assert "records are lost" in problem.text and "may be missing" in problem.meaning
    with Admin(root) as admin:
        assert admin.repair().left == ()
    assert_clean(root)
    assert not use(root)[2]


def test_a_backup_has_the_topics_behind_it(root: Path, tmp_path: Path):
    """It is made of what the catalog still says."""
    hit(root, b"announced-3")
    with Admin(root) as admin:
        admin.backup(tmp_path / "backup")
    Admin.restore(tmp_path / "backup", tmp_path / "restored")
    listed, late, found = use(tmp_path / "restored")
    assert listed == sorted({*REMAINING} - {ANNOUNCED[3]}) and late == [LATE] and not found


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Starts another boot."""
    return lambda: monkeypatch.setattr(timing, "_boot_id", os.urandom(16))


def test_after_a_boot_the_catalog_is_written_anew(root: Path, boot: Callable[[], None]):
    """Whoever opens the store first is alone: the damage ends, and what was there is kept."""
    hit(root, b"announced-3")
    damaged = (root / "catalog").read_bytes()
    boot()
    listed, late, found = use(root)
    assert listed == sorted({*REMAINING} - {ANNOUNCED[3]}) and late == [LATE]
    assert [damage.kind for damage in found] == ["catalog"]
    assert (root / "catalog.damaged.tmp").read_bytes() == damaged
    assert not use(root)[2]
    (root / "catalog.damaged.tmp").unlink()
    assert_clean(root)


STEPS = ["catalog_renewal:damaged_kept", "document:written", "document:synced", "document:replaced"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("nth", [1, 2])
def test_killed_while_it_is_written_anew(root: Path, boot: Callable[[], None], step: str, nth: int):
    """SIGKILL at each step: the next opening begins again, or finds it done."""
    hit(root, b"announced-3")
    boot()
    was_killed = die_at(step, partial(Admin, root), nth=nth)
    assert was_killed or nth > 1
    listed, late, _ = use(root)
    assert listed == sorted({*REMAINING} - {ANNOUNCED[3]}) and late == [LATE]
    assert not use(root)[2]


def test_a_damaged_index_is_reported_and_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The catalog says the same; nothing is missing."""
    root = tmp_path / "store"
    names = [f"persistent://public/default/t{number:05}" for number in range(5000)]
    with Admin(root) as admin:
        admin.topics().create_non_partitioned_topics(names)
    flip(root / "catalog.index", 70)
    found: list[Damage] = []
    with Admin(root, on_damage=found.append) as admin:
        assert admin.topics().get_list("public/default") == names
    assert [damage.kind for damage in found] == ["index"]
    found.clear()
    with Admin(root, on_damage=found.append):
        assert not found  # it was made again
    assert_clean(root)
