"""Where a store may live."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import filesystem
from embeddedpulsar.exceptions import ForeignFileError, NetworkFilesystemError, StorageError

MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:26 / /mnt/share rw,relatime - nfs4 server:/export rw
31 21 0:27 / /mnt/share/local rw - tmpfs tmpfs rw
32 21 0:28 / /mnt/with\\040space rw - fuse.sshfs host: rw
33 21 0:29 / /mnt/twice rw - nfs a rw
34 33 0:30 / /mnt/twice rw - xfs b rw
malformed line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/data", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/data", "nfs4"),
        ("/mnt/shared-not", "ext4"),
        ("/mnt/share/local/data", "tmpfs"),
        ("/mnt/with space/data", "fuse.sshfs"),
        ("/mnt/twice/data", "xfs"),
    ],
)
def test_the_mount_that_holds_a_path(path: str, kind: str):
    """The deepest one; of several on one point, the last."""
    assert filesystem.filesystem_type(path, MOUNTS) == kind


def test_the_device_of_a_path_says_the_same_as_its_mount_point(tmp_path):
    """It is what is asked first: only the third field counts, and a path that is not there has none."""
    for path in ("/", "/proc", "/dev/shm", str(tmp_path)):
        mounts = Path(filesystem.MOUNTS_PATH).read_text()
        assert filesystem.filesystem_type(path) == filesystem.filesystem_type(path, mounts)
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = [f"1 0 9:9 {number} /x rw - other {number} rw", f"2 0 {number} / /y rw shared:1 - mine dev rw"]
    assert filesystem._type_of_device(str(tmp_path), "\n".join(lines[1:])) == "mine"
    assert filesystem._type_of_device(str(tmp_path), lines[0]) is None
    assert filesystem._type_of_device(str(tmp_path / "none"), lines[1]) is None


def test_the_type_is_unknown_without_proc(monkeypatch: pytest.MonkeyPatch):
    """And without a program that prints the mounts: then nothing is refused for it."""
    monkeypatch.setattr(filesystem, "MOUNTS_PATH", "/nowhere")
    monkeypatch.setattr(filesystem, "_IN_ENGLISH", {"PATH": "/nowhere"})
    assert filesystem.filesystem_type("/") is None
    filesystem.check_writable_filesystem("/tmp")


def test_a_network_file_system_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Unless the caller insists; the error names the type and the way out."""
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path: "nfs4")
    with pytest.raises(NetworkFilesystemError, match=r"type nfs4.*allow_network_fs"):
        filesystem.check_writable_filesystem(str(tmp_path))
    filesystem.check_writable_filesystem(str(tmp_path), allow_network=True)


def test_a_read_only_file_system_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Before anything is tried, also for a path that does not exist yet."""

    class Status:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda path: Status)
    with pytest.raises(StorageError, match="mounted read-only"):
        filesystem.check_writable_filesystem(str(tmp_path / "not" / "yet"))


def test_a_new_root_is_private(tmp_path):
    """With each parent that was missing; a second time changes nothing."""
    root = filesystem.prepare_root(str(tmp_path / "a" / "b"))
    assert root == str(tmp_path / "a" / "b")
    assert os.stat(root).st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "a").st_mode & 0o777 == 0o700
    os.chmod(root, 0o755)
    filesystem.prepare_root(root)
    assert os.stat(root).st_mode & 0o777 == 0o755


def test_a_relative_root_is_made_absolute(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """The process may change its directory later."""
    monkeypatch.chdir(tmp_path)
    assert filesystem.prepare_root("data") == str(tmp_path / "data")


def test_a_root_that_must_exist(tmp_path):
    """Is not created."""
    with pytest.raises(FileNotFoundError):
        filesystem.prepare_root(str(tmp_path / "absent"), create=False)
    assert not (tmp_path / "absent").exists()


def test_a_file_is_no_root(tmp_path):
    """Neither as the root nor above it."""
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises((ForeignFileError, NotADirectoryError)):
            filesystem.prepare_root(str(path))
    with pytest.raises(ForeignFileError, match="not a directory"):
        filesystem.prepare_root(str(tmp_path / "file"), create=False)


def test_a_directory_anybody_may_write_to_is_refused(tmp_path):
    """Unless it is sticky, as /tmp is."""
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ForeignFileError, match="chmod o-w"):
        filesystem.prepare_root(str(root))
    root.chmod(0o1777)
    filesystem.prepare_root(str(root))


def test_another_users_directory_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Its owner could do anything to the store; root's own directories are trusted."""
    status = os.stat(tmp_path)
    stranger = os.stat_result((status.st_mode, 1, 1, 1, 4711, 1, 1, 1, 1, 1))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ForeignFileError, match="belongs to user id 4711"):
        filesystem.check_owner("store", stranger)
    roots = os.stat_result((status.st_mode, 1, 1, 1, 0, 1, 1, 1, 1, 1))
    filesystem.check_owner("store", roots)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    filesystem.check_owner("store", stranger)
    monkeypatch.delattr(os, "getuid")
    filesystem.check_owner("store", stranger)
