"""Whose the objects in a location are: a store removes what it offloaded itself, in the place where it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar._engine.cold.cold_ledger import UPLOADING, cold_ledgers
from embeddedpulsar._engine.cold.location import known_owner, make_owner
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import ColdReadError, InvalidConfiguration
from embeddedpulsar.policy_values import OffloadPolicies
from embeddedpulsar.testing import assert_clean
from tests.conformance.offloading import TOPIC, Site, finished

SENT = 35
Change = Callable[[Admin], object]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A store with three ledgers in its location, and one open."""
    made = Site(tmp_path)
    made.publish(SENT)
    assert made.offload() == ""
    yield made
    made.close()


def read(root: Path) -> list[int]:
    with Client(root) as client, client.create_reader(TOPIC, MessageId.earliest) as reader:
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(5000).data()))
        return found


@contextlib.contextmanager
def armed(name: str, action: Callable[[], object]) -> Iterator[None]:
    """Do something at a failpoint, once."""
    done: list[str] = []
    failpoints.set(name, lambda: done or (done.append(name), action()))
    try:
        yield
    finally:
        failpoints.clear(name)


def delete(admin: Admin) -> None:
    admin.topics().delete(TOPIC, force=True)


def truncate(admin: Admin) -> None:
    admin.topics().truncate(TOPIC)
    finished(admin, TOPIC, lambda: admin.topics().offload(TOPIC, 0))


def trim(admin: Admin) -> None:
    admin.topics().set_retention(TOPIC, 0, 0)
    admin.topics().trim_topic(TOPIC)
    finished(admin, TOPIC, lambda: admin.topics().offload(TOPIC, 0))


CHANGES: dict[str, Change] = {"delete": delete, "truncate": truncate, "trim": trim}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("made_by", ["cp -a", "copytree", "restore", "in its place"])
def test_another_store_with_the_same_notes_removes_nothing(
    site: Site, tmp_path: Path, change: Change, made_by: str
):
    """However it was made. What the original does, it does as before."""
    copy, original, objects = tmp_path / "copy", site.root, site.objects()
    if made_by == "restore":
        site.admin.backup(str(tmp_path / "backup"))
    site.close()
    if made_by == "restore":
        Admin.restore(str(tmp_path / "backup"), str(copy))
    elif made_by == "copytree":
        shutil.copytree(site.root, copy)
    else:
        subprocess.run(["cp", "-a", site.root, copy], check=True)
    if made_by == "in its place":  # the copy gets the very path, the original another one
        original = tmp_path / "moved"
        site.root.rename(original)
        copy = copy.rename(site.root)
    with Admin(copy) as admin:
        change(admin)
    assert site.objects() == objects
    assert read(original) == list(range(SENT))
    with Admin(original) as admin:
        change(admin)
    assert not site.objects()
    assert_clean(copy)


def test_a_snapshot_during_an_upload(site: Site, tmp_path: Path):
    """The objects that the note of an attempt names belong to the store that makes the attempt."""
    copy, without = tmp_path / "copy", shutil.ignore_patterns("clients")  # which has FIFOs
    site.publish(10)
    with armed("offload:verified", lambda: shutil.copytree(site.root, copy, ignore=without)):
        assert site.offload() == ""
    objects = site.objects()
    (directory,) = (copy / "topics").iterdir()
    assert any(note.state == UPLOADING for note in cold_ledgers(str(directory)))
    with Admin(copy) as admin:
        finished(admin, TOPIC, lambda: admin.topics().offload(TOPIC, 0))
    assert set(objects) <= set(site.objects())
    assert read(copy) == read(site.root)


def test_a_log_stays_until_the_store_has_objects_of_its_own(tmp_path: Path):
    """A copy, made while the logs are there still: those of another store may be removed at any time."""
    site = Site(tmp_path, lag_ms=3_600_000)
    site.publish(SENT)
    assert site.offload() == "" and len(site.logs()) == 4
    site.close()
    copy = tmp_path / "copy"
    shutil.copytree(site.root, copy)
    before = site.objects()
    with Admin(copy) as admin:
        admin.namespaces().set_offload_policies(
            "public/default", OffloadPolicies(str(site.cold), offload_deletion_lag_in_millis=0)
        )
        assert finished(admin, TOPIC, lambda: admin.topics().offload(TOPIC, 0)) == ""
    (directory,) = (copy / "topics").iterdir()
    assert len(list(directory.glob("*.log"))) == 1 and len(site.objects()) == 2 * len(before)
    for one in before:
        os.unlink(one)
    assert read(copy) == list(range(SENT))


def test_a_store_that_is_moved_keeps_what_is_its_own(site: Site, tmp_path: Path):
    """By a rename, which is no copy; and its files may be used."""
    site.close()
    moved = site.root.rename(tmp_path / "moved")
    assert read(moved) == list(range(SENT))
    with Admin(moved) as admin:
        delete(admin)
    assert not site.objects()


def test_a_copy_that_took_the_place_adopts_the_objects(site: Site, tmp_path: Path):
    """The operator's word, also for notes of releases that knew no owner, and for a location that moved."""
    site.close()
    copy, cold = tmp_path / "copy", tmp_path / "cold-2"
    shutil.copytree(site.root, copy)
    shutil.rmtree(site.root)
    (directory,) = (copy / "topics").iterdir()
    for note in cold_ledgers(str(directory)):
        note._replace(owner="", location="./cold").write(str(directory))
    with pytest.raises(ColdReadError, match=r"relative path.*adopt_offloaded"):
        read(copy)
    site.cold.rename(cold)
    with Admin(copy) as admin:
        with pytest.raises(InvalidConfiguration, match="is in the store"):
            admin.topics().adopt_offloaded(TOPIC, {"./cold": str(copy / "cold")})
        with pytest.raises(ColdReadError, match="is missing"):
            admin.topics().adopt_offloaded(TOPIC, {"./cold": str(tmp_path / "elsewhere")})
        assert admin.topics().adopt_offloaded(TOPIC, {"./cold": str(cold)}) == 3
        assert admin.topics().adopt_offloaded(TOPIC) == 0
    assert read(copy) == list(range(SENT))
    with Admin(copy) as admin:
        delete(admin)
    assert not [path for path in cold.rglob("*") if path.is_file()]


def test_an_identity_counts_in_its_place_only(tmp_path: Path):
    """It is made once, by the first that needs it, and again by what is not in the place any more."""
    leftovers = str(tmp_path / "offloaded")
    assert known_owner(leftovers) == ""
    owner = make_owner(leftovers)
    assert known_owner(leftovers) == make_owner(leftovers) == owner
    shutil.copytree(leftovers, tmp_path / "copy")
    assert known_owner(str(tmp_path / "copy")) == ""
    assert make_owner(str(tmp_path / "copy")) != owner
    assert known_owner(leftovers) == owner
    for damage in (b"", b"noise", None):
        path = tmp_path / "offloaded" / "owner"
        path.unlink() if damage is None else path.write_bytes(damage)
        assert known_owner(leftovers) == ""
    assert make_owner(leftovers) != owner


@pytest.mark.parametrize("place", ["owner:place_made", "owner:written"])
def test_a_death_while_an_identity_is_made(tmp_path: Path, place: str):
    """The next process makes one; two never count at a time."""
    leftovers = str(tmp_path / "offloaded")
    pid = os.fork()
    if not pid:
        with armed(place, lambda: os._exit(7)):
            make_owner(leftovers)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    owner = known_owner(leftovers)
    assert bool(owner) == (place == "owner:written")
    assert make_owner(leftovers) == known_owner(leftovers) and (not owner or owner == known_owner(leftovers))


@pytest.mark.parametrize("where", ["topic", "namespace", "broker.conf"])
@pytest.mark.parametrize("location", ["./cold", "~/cold", "store/cold"])
def test_where_a_location_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, location: str):
    """By a call: absolute from then on. In ``broker.conf``: refused unless it is absolute. In the store:
    never."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = {"managedLedgerOffloadLocation": location} if where == "broker.conf" else {}
    site = Site(tmp_path, **settings)
    site.admin.namespaces().remove_offload_policies("public/default")
    site.publish(SENT)
    calls, name = (
        (site.admin.topics(), TOPIC) if where == "topic" else (site.admin.namespaces(), "public/default")
    )
    is_inside = location == "store/cold"
    if where == "broker.conf":
        with pytest.raises(InvalidConfiguration, match="managedLedgerOffloadLocation"):
            site.offload()
    elif is_inside:
        with pytest.raises(InvalidConfiguration, match="is in the store"):
            calls.set_offload_policies(name, OffloadPolicies(location))
    else:
        calls.set_offload_policies(name, OffloadPolicies(location, offload_deletion_lag_in_millis=0))
        kept = calls.get_offload_policies(name)
        expected = tmp_path / "cold" if location == "./cold" else tmp_path / "home" / "cold"
        assert kept is not None and kept.offload_location == str(expected)
        monkeypatch.chdir("/")
        assert site.offload() == ""
        assert list(expected.rglob("*.parquet")) and read(site.root) == list(range(SENT))
    assert not (tmp_path / "~").exists() and not (tmp_path / "store" / "cold").exists()
    site.close()
