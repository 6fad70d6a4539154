"""Unit tests of embeddedpulsar._engine.cold.location: what a power loss and a fork leave of a local
location."""

from __future__ import annotations

import hashlib
import io
import os
import socket
from pathlib import Path

import pytest

from embeddedpulsar._engine.cold import location as locations
from embeddedpulsar._engine.cold.cold_ledger import ColdObject
from embeddedpulsar._engine.cold.location import LocationError, absolute_location, location_of
from embeddedpulsar._engine.platform import disk, fork
from embeddedpulsar._engine.platform.disk import Rights
from embeddedpulsar.exceptions import InvalidConfiguration
from tests.children import in_child

RIGHTS = Rights(os.geteuid(), os.getegid(), 0o700)


def test_a_file_and_its_directories_survive_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of new directories are flushed in those above them, and a removal is flushed, too."""
    flushed: list[str] = []
    monkeypatch.setattr(type(disk.DISK), "fsync_dir", lambda self, path: flushed.append(path))
    location = location_of(str(tmp_path))
    location.write("a/b/first", io.BytesIO(b"1"), RIGHTS)
    assert flushed == [str(tmp_path / "a" / "b"), str(tmp_path / "a"), str(tmp_path)]
    flushed.clear()
    location.write("a/b/second", io.BytesIO(b"2"), RIGHTS)
    assert flushed == [str(tmp_path / "a" / "b")]
    location.delete("a/b/first", RIGHTS)
    location.delete("a/b/first", RIGHTS)
    assert flushed == 2 * [str(tmp_path / "a" / "b")]


def test_a_forked_child_has_connections_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One location for a URI, and another one after a fork."""
    before = location_of(str(tmp_path))
    assert location_of(str(tmp_path)) is before
    monkeypatch.setattr(fork, "GENERATION", fork.GENERATION + 1)
    assert location_of(str(tmp_path)) is not before


def test_a_forked_child_closes_what_is_open(tmp_path: Path) -> None:
    """Its number is another file's before long. The parent reads on."""
    location = location_of(str(tmp_path))
    location.write("table", io.BytesIO(b"12345678"), RIGHTS)
    with location._source(location.path("table")) as file:
        assert file.read(2) == b"12"
        assert in_child(lambda: file.closed) == "True"
        assert file.read(2) == b"34"


DATA = b"of an object" * 100
STORED = ColdObject("x/table", len(DATA), hashlib.sha256(DATA).hexdigest())


@pytest.mark.parametrize("in_memory", [1 << 20, 100])
def test_verified_bytes_are_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int) -> None:
    """What becomes of the object meanwhile changes nothing, in memory or in a temporary file."""
    monkeypatch.setattr(locations, "MOST_IN_MEMORY", in_memory)
    location = location_of(str(tmp_path))
    location.write(STORED.name, io.BytesIO(DATA), RIGHTS)
    with location.verified(STORED) as file:
        (tmp_path / "x" / "table").write_bytes(b"?" * len(DATA))
        assert file.read() == DATA
        file.seek(3)
        assert file.read(4) == DATA[3:7]


@pytest.mark.parametrize("data", [b"", DATA[:-1], DATA[:-1] + b"?", DATA + b"more", b"?" * 5_000_000])
def test_other_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    """Fewer, more or changed ones: before anything parses them."""
    location = location_of(str(tmp_path))
    location.write(STORED.name, io.BytesIO(data), RIGHTS)
    with pytest.raises(LocationError, match="is not what was stored"):
        location.verified(STORED)


@pytest.mark.parametrize(
    "kind", ["FIFO", "socket", "directory", "link", "link to nothing", "device", "missing"]
)
def test_what_lies_in_the_place_of_an_object(tmp_path: Path, kind: str) -> None:
    """Nothing waits for it or follows it; every call says what it is, or that there is no object."""
    place, elsewhere = tmp_path / "x" / "table", tmp_path / "elsewhere"
    place.parent.mkdir()
    elsewhere.write_bytes(DATA)
    if kind == "FIFO":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            here = os.open(place.parent, os.O_RDONLY)
            one.bind(f"/proc/self/fd/{here}/table")
            os.close(here)
    elif kind == "directory":
        place.mkdir()
    elif kind.startswith("link"):
        place.symlink_to(elsewhere if kind == "link" else "none")
    elif kind == "device":
        try:
            os.mknod(place, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pytest.skip("only root makes devices")
    location = location_of(str(tmp_path))
    text = "No such file" if kind == "missing" else f"{kind.partition(' to')[0]}.*no file"
    for call in (lambda: location.verified(STORED), lambda: location.digest(STORED.name)):
        with pytest.raises(LocationError, match=text):
            call()
    assert location.size(STORED.name) is None
    assert elsewhere.read_bytes() == DATA


@pytest.mark.parametrize("mode", [0o700, 0o2770, 0o750])
def test_objects_have_the_rights_of_the_store(tmp_path: Path, mode: int) -> None:
    """And so do the directories that are made; a directory that is there keeps its own. The umask is not
    asked."""
    (tmp_path / "cold").mkdir(mode=0o755)
    before = os.umask(0o027)
    try:
        location_of(str(tmp_path / "cold")).write(
            "a/b/table", io.BytesIO(DATA), Rights(os.geteuid(), os.getegid(), mode)
        )
    finally:
        os.umask(before)
    found = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "cold").rglob("*")}
    assert found == {"a": mode, "b": mode, "table": mode & 0o660}
    assert (tmp_path / "cold").stat().st_mode & 0o7777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts for others")
def test_root_does_for_a_store_what_its_owner_may_do(tmp_path: Path) -> None:
    """The owner of the store chooses the location; in those of others root writes and removes nothing."""
    rights = Rights(4711, 4712, 0o700)
    (tmp_path / "cold").mkdir(mode=0o755)
    location = location_of(str(tmp_path / "cold"))
    with pytest.raises(LocationError, match="belongs to user id 0, and the store to user id 4711"):
        location.write("a/table", io.BytesIO(DATA), rights)
    assert not list((tmp_path / "cold").iterdir())
    os.chown(tmp_path / "cold", 4711, 4712)
    location.write("a/table", io.BytesIO(DATA), rights)
    made = [tmp_path / "cold" / "a", tmp_path / "cold" / "a" / "table"]
    assert [(one.stat().st_uid, one.stat().st_gid) for one in made] == [(4711, 4712)] * 2
    os.chown(made[0], 0, 0)
    with pytest.raises(LocationError, match="root writes and removes nothing"):
        location.delete("a/table", rights)
    os.chown(made[0], 4711, 4712)
    location.delete("a/table", rights)
    assert not made[1].exists()


def test_a_location_at_a_link(tmp_path: Path) -> None:
    """To an empty directory: it is used as if it had been named itself."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "cold").symlink_to("disk")
    location = location_of(str(tmp_path / "cold"))
    location.write(STORED.name, io.BytesIO(DATA), RIGHTS)
    assert (tmp_path / "disk" / "x" / "table").read_bytes() == DATA
    assert location.verified(STORED).read() == DATA
    location.delete(STORED.name, RIGHTS)
    assert location.size(STORED.name) is None


def test_a_location_is_kept_as_an_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the directory of the process that sets it, and its user's home; URIs stay."""
    root = str(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/alice")
    for given, kept in {
        "./cold": f"{tmp_path}/cold",
        "cold/": f"{tmp_path}/cold",
        "~/cold": "/home/alice/cold",
        "/mnt/cold": "/mnt/cold",
        "file:///mnt/cold": "file:///mnt/cold",
        "s3://bucket/cold?region=x": "s3://bucket/cold?region=x",
    }.items():
        assert absolute_location(given, root) == kept
    for inside in ("store", "./store/cold", f"file://{root}/cold", "store/../store/a/b"):
        with pytest.raises(InvalidConfiguration, match="is in the store"):
            absolute_location(inside, root)
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    with pytest.raises(InvalidConfiguration, match="is in the store"):
        absolute_location("link/cold", root)
    with pytest.raises(InvalidConfiguration, match="is an empty text"):
        absolute_location("", root)
    with pytest.raises(InvalidConfiguration, match="no home directory"):
        absolute_location("~nobody-of-that-name/cold", root)
    with pytest.raises(InvalidConfiguration, match="file:///path"):
        absolute_location("file:cold", root)
    for relative in ("cold", "./cold", "~/cold", "file://cold"):
        with pytest.raises(InvalidConfiguration, match=r"relative.*set_offload_policies.*adopt_offloaded"):
            locations.check_location(relative, root)
    with pytest.raises(InvalidConfiguration, match="relative"):
        location_of("cold")
