"""What is done where macOS and the BSDs lack something, with that taken away on Linux."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.platform import (
    access,
    descriptors,
    disk,
    doorbell,
    filesystem,
    lease,
    mapped_file,
    nofollow,
    peers,
    timing,
)
from embeddedpulsar._engine.platform.change_watch import ChangeWatch
from embeddedpulsar._engine.platform.doorbell import QueueDoorbell
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.platform.threads import system
from embeddedpulsar._engine.store import store_root
from embeddedpulsar.exceptions import StorageError, StorageFullError
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import ForkedChild, in_child
from tests.support import other_unix

PAGE = 4096


def refuse(code: int) -> Any:
    """A call of the system that fails."""

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system with kqueue, and without FIFOs that can be locked."""
    other_unix.with_kqueue(lambda *names: monkeypatch.setattr(*names, raising=False))
    monkeypatch.setattr(system, "kqueue", other_unix.kqueue)
    monkeypatch.setattr(system, "polls", select)
    monkeypatch.setattr(doorbell, "_CAN_LOCK_FIFOS", False)


# -- disk space ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_reserves_nothing_gets_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
):
    """As ZFS of FreeBSD. What is there already is kept, also in the middle of what is reserved."""
    monkeypatch.setattr(os, "posix_fallocate", refuse(code), raising=False)
    monkeypatch.setattr(disk, "HAS_POSIX_FALLOCATE", True)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"kept", 70_000)
    disk.DISK.fallocate(fd, 0, 200_000)
    status = os.fstat(fd)
    assert status.st_size == 200_000 and status.st_blocks * 512 >= 200_000
    assert os.pread(fd, 4, 70_000) == b"kept" and os.pread(fd, 200_000, 0).strip(b"\0") == b"kept"
    os.close(fd)


def test_a_full_disk_is_no_such_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No room is reported as it is, and no zeros are written."""
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.ENOSPC), raising=False)
    monkeypatch.setattr(disk, "HAS_POSIX_FALLOCATE", True)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with pytest.raises(StorageFullError):
        disk.DISK.fallocate(fd, 0, 200_000)
    assert os.fstat(fd).st_size == 0
    os.close(fd)


def test_zeros_are_never_put_over_what_another_process_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of two that make a small file, one may be done, and have stored a word, when the other grows it."""
    monkeypatch.setattr(disk, "HAS_POSIX_FALLOCATE", False)
    path = str(tmp_path / "file")
    real, has_grown = os.fstat, []

    def fstat(fd: int) -> os.stat_result:
        status = real(fd)
        if status.st_size == 0 and not has_grown:  # between the look at the size and the write
            has_grown.append(True)
            with TwoPages(path) as other:
                other.words[0] = 7
        return status

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fstat", fstat)
        mapped = MappedFile.open(path, writable=True, size=2 * PAGE, create=True)
    assert has_grown and mapped.words[0] == 7
    mapped.close()


class TwoPages:
    """A file of two pages, mapped for a block."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> MappedFile:
        self._file = MappedFile.open(self._path, writable=True, size=2 * PAGE, create=True)
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()


def test_a_system_without_pwritev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """macOS before 11: one write for each buffer."""
    monkeypatch.delattr(os, "pwritev")
    monkeypatch.setattr(disk, "_BUFFERS_PER_CALL", 0)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert disk.DISK.pwrite_all(fd, [b"ab", b"", b"cd"], 3) == 4
    assert os.pread(fd, 9, 0) == b"\0\0\0abcd"
    os.close(fd)


# -- flushes ---------------------------------------------------------------------------------------


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flushes of a Mac, in order; maps note theirs."""
    log: list[str] = []
    real = fcntl.fcntl

    class Noted(mmap.mmap):
        def flush(self, *arguments: int) -> None:
            log.append("map")
            super().flush(*arguments)

    def call(fd: int, command: int, argument: Any = 0) -> Any:
        if command == other_unix._F_FULLFSYNC:
            log.append("drive")
            return os.fsync(fd)
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", call)
    monkeypatch.setattr(disk, "FULL_FSYNC", other_unix._F_FULLFSYNC)
    monkeypatch.setattr(disk, "FLUSH_MAPS", None)
    monkeypatch.setattr(mmap, "mmap", Noted)
    monkeypatch.setattr(
        mapped_file, "map_file", lambda fd, size, writable=True: Noted(fd, size, access=mmap.ACCESS_WRITE)
    )
    return log


def test_what_was_stored_through_a_map_is_flushed_first(tmp_path: Path, flushes: list[str]):
    """``fsync`` of macOS leaves it in memory; so does F_FULLFSYNC."""
    mapped = MappedFile.open(str(tmp_path / "file"), writable=True, size=PAGE, create=True)
    mapped.words[0] = 1
    disk.DISK.fdatasync(mapped.fd, mapped.path)
    assert flushes == ["map", "drive"]
    mapped.flush()
    assert flushes == ["map", "drive"] * 2
    fd = os.dup(mapped.fd)
    mapped.close()
    del flushes[:]
    disk.DISK.fdatasync(fd, mapped.path)  # another process may have it mapped
    assert flushes == ["map", "drive"]
    os.close(fd)
    del flushes[:]
    fd = os.open(tmp_path / "object", os.O_WRONLY | os.O_CREAT)  # as a copy that is offloaded
    os.write(fd, b"1")
    disk.DISK.fsync(fd, "object")
    assert flushes == ["drive"]
    os.close(fd)


def test_a_directory_is_flushed_through_the_drive(tmp_path: Path, flushes: list[str]):
    """A name survives only if the drive has it."""
    disk.DISK.fsync_dir(str(tmp_path))
    assert flushes == ["drive"]


@pytest.mark.parametrize(("code", "is_flushed"), [(errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_file_system_without_such_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_flushed: bool
):
    """FAT has ``fsync`` alone. An error of the disk is none of these."""
    flushed: list[int] = []
    monkeypatch.setattr(fcntl, "fcntl", refuse(code))
    monkeypatch.setattr(disk, "FULL_FSYNC", other_unix._F_FULLFSYNC)
    monkeypatch.setattr(disk, "FLUSH_MAPS", None)
    monkeypatch.setattr(os, "fsync", flushed.append)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    if is_flushed:
        disk.DISK.fsync(fd, "file")
        assert flushed == [fd]
    else:
        with pytest.raises(OSError, match="output error"):
            disk.DISK.fsync(fd, "file")
        assert not flushed
    os.close(fd)


# -- paths -----------------------------------------------------------------------------------------


@pytest.fixture(params=["darwin", "bsd"])
def no_proc(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """No ``/proc`` that names open files: ``fcntl`` does it, or nothing."""
    monkeypatch.setattr(nofollow, "_OPEN_NAME", "/nowhere/")
    if request.param == "darwin":
        monkeypatch.setattr(nofollow, "_GET_PATH", other_unix._F_GETPATH)
        monkeypatch.setattr(fcntl, "fcntl", other_unix._fcntl_of_darwin)
    return str(request.param)


def test_links_are_found_without_proc(tmp_path: Path, no_proc: str):
    """By the name that the kernel has for the open file, or step by step."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("there")
    assert nofollow.canonical(str(tmp_path / "link")) == str(tmp_path / "there")
    fd = nofollow.open_file(str(tmp_path / "there" / "file"), os.O_RDONLY)
    assert (disk.path_of(fd) == str(tmp_path / "there" / "file")) is (no_proc == "darwin")
    os.close(fd)
    with pytest.raises(StorageError, match="symbolic link"):
        nofollow.open_file(str(tmp_path / "link" / "file"), os.O_RDONLY)


def test_freebsd_says_emlink_of_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And the error names the link all the same."""
    codes = frozenset((errno.ELOOP, errno.EMLINK))
    for module in (access, nofollow):
        monkeypatch.setattr(module, "LINK_CODES", codes)
    monkeypatch.setattr(mapped_file, "_NO_FILE", codes)
    monkeypatch.setattr(os, "open", other_unix._open_of_freebsd)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").symlink_to("nothing")
    with pytest.raises(StorageError, match="symbolic link"):
        nofollow.open_directory(str(tmp_path / "link"))
    with pytest.raises(StorageError, match="symbolic link"):
        MappedFile.open(str(tmp_path / "file"), writable=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_rights_are_given_by_the_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without ``/proc``, too, root gives a directory and a FIFO to the owner of the store."""
    monkeypatch.setattr(disk, "_NAMES_ONLY", False)
    monkeypatch.setattr(nofollow, "_NAMING", os.O_RDONLY)
    os.chown(tmp_path, 1234, 4321)
    os.chmod(tmp_path, 0o2770)
    disk.DISK.mkdir(str(tmp_path / "below"))
    os.mkfifo(tmp_path / "fifo")
    disk.grant_fifo(str(tmp_path / "fifo"), disk.rights_in(str(tmp_path)))
    below, fifo = os.stat(tmp_path / "below"), os.stat(tmp_path / "fifo")
    assert (below.st_uid, below.st_gid, below.st_mode & 0o7777) == (1234, 4321, 0o2770)
    assert (fifo.st_uid, fifo.st_gid, fifo.st_mode & 0o7777) == (1234, 4321, 0o660)


def test_a_path_that_is_too_long_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where 1,024 bytes are the most: what to do is part of the error."""
    error = access.named(OSError(errno.ENAMETOOLONG, "File name too long", str(tmp_path)))
    assert isinstance(error, StorageError) and "shorter path" in str(error)


NAMES = ("Orders", "orders", "ORDERS", "\u00c9t\u00e9", "\u00e9t\u00e9", "stra\u00dfe", "strasse", "STRASSE")


def test_names_that_a_mac_takes_for_one_stay_apart(tmp_path: Path):
    """Topics and subscriptions whose names differ in case, or by what a file system folds; and no file of a
    store has a name that would be another's."""
    with pulsar.Client(str(tmp_path)) as client:
        for name in NAMES:
            with client.create_producer(name, schema=pulsar.schema.StringSchema()) as producer:
                for subscription in NAMES:
                    client.subscribe(name, subscription).close()
                producer.send(name)
    with pulsar.Client(str(tmp_path)) as client, pulsar.Admin(str(tmp_path)) as admin:
        assert len(admin.topics().get_list("public/default")) == len(NAMES)
        for name in NAMES:
            assert sorted(admin.topics().get_subscriptions(name)) == sorted(NAMES)
            with client.subscribe(name, "Orders") as consumer:
                assert consumer.receive(5000).data().decode() == name
    for directory, directories, files in os.walk(tmp_path):
        names = [*directories, *files]
        assert len(set(map(other_unix.fold, names))) == len(names), directory
        assert all(name.isascii() and name == name.lower() for name in names), names
    assert_clean(str(tmp_path))


# -- systems ---------------------------------------------------------------------------------------


class Library:
    """A C library that answers ``sysctlbyname``."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers = answers

    def sysctlbyname(self, name: bytes, buffer: Any, size: Any, new: Any, new_size: Any) -> int:
        """As of C."""
        if name not in self._answers:
            return -1
        buffer.value = self._answers[name]
        return 0


@pytest.mark.parametrize("name", [b"kern.bootsessionuuid", b"kern.boot_id"])
def test_the_boot_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: bytes):
    """Without ``/proc``, and without starting a program."""
    monkeypatch.setattr(timing, "_BOOT_ID_PATH", str(tmp_path / "absent"))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library({name: b"7C2A"}))
    monkeypatch.setattr(subprocess, "run", refuse(errno.ENOENT))
    assert timing._boot_text() == "7C2A"


def test_a_network_file_system_is_refused_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its type is that of the mount that the program ``mount`` prints."""
    mounts = f"/dev/disk1 on / (apfs, local)\nhost:/x on {tmp_path.parent} (nfs, asynchronous)\n"
    monkeypatch.setattr(filesystem, "MOUNTS_PATH", "/nowhere")
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0, mounts.encode(), b"")
    )
    with pytest.raises(StorageError, match="type nfs"):
        filesystem.check_writable_filesystem(str(tmp_path))
    monkeypatch.setattr(subprocess, "run", refuse(errno.ENOENT))
    filesystem.check_writable_filesystem(str(tmp_path))


def test_openbsd_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its maps of a file do not show what is written to the file."""
    monkeypatch.setattr(sys, "platform", "openbsd7")
    with pytest.raises(StorageError, match="OpenBSD"):
        filesystem.prepare_root(str(tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def test_descriptors_are_counted_without_proc(monkeypatch: pytest.MonkeyPatch):
    """By ``/dev/fd``, or not at all: then the limit is named."""
    real = os.listdir
    lists = {"/dev/fd": list("0123456789")}

    def listdir(path: str) -> list[str]:
        if path == "/proc/self/fd":
            raise FileNotFoundError(path)
        return lists[path] if path in lists else real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert "has 9 file" in str(descriptors.limit_error("cannot", errno.EMFILE))
    lists["/dev/fd"] = list("0123")  # FreeBSD without fdescfs
    assert f"has {descriptors.limit()} file" in str(descriptors.limit_error("cannot", errno.EMFILE))


def test_a_wait_for_changes_needs_no_pipe2(monkeypatch: pytest.MonkeyPatch):
    """macOS has none."""
    monkeypatch.delattr(os, "pipe2", raising=False)
    watch = ChangeWatch()
    watch.wake()
    assert watch.wait(5) and not watch.wait(0)
    assert not os.get_inheritable(watch._reader) and not os.get_blocking(watch._writer)
    watch.close()


# -- processes and wake-ups ------------------------------------------------------------------------


def test_processes_are_named_without_proc(tmp_path: Path, queues: None, monkeypatch: pytest.MonkeyPatch):
    """By what their leases say, and ``ps``."""
    monkeypatch.setattr(peers, "_holders", lambda: None)
    bell = doorbell.open_doorbell(str(tmp_path))
    assert isinstance(bell, QueueDoorbell)
    facts = peers.lease_holders(str(tmp_path), lambda uuid: True)
    assert facts[bell.uuid].pid == os.getpid() and "python" in facts[bell.uuid].program
    (tmp_path / os.urandom(16).hex()).write_bytes(b"")  # one that is just made names no process
    assert sorted(one.pid for one in peers.lease_holders(str(tmp_path), lambda _: True).values()) == [
        0,
        os.getpid(),
    ]
    bell.close()


def test_a_store_in_memory_is_found_without_proc(queues: None, monkeypatch: pytest.MonkeyPatch):
    """By the pids of the leases: the store of a process that started this one."""
    url = f"memory://{os.urandom(6).hex()}"
    monkeypatch.setattr(peers, "_holders", lambda: None)
    with pulsar.Client(url) as client:
        client.create_producer("t").send(b"1")

        def look() -> str:
            return store_root._find_by_leases(url, store_root._label(url), os.getppid())

        path = in_child(look)
        assert os.path.isdir(path) and os.path.basename(path).startswith(store_root._label(url))
    with pytest.raises(pulsar.exceptions.NotAllowedError, match="keep a client"):
        look()


def test_a_ring_after_the_end_writes_to_no_other_file(tmp_path: Path, queues: None):
    """The number of the file may be another's by then."""
    (tmp_path / "clients").mkdir()
    bell = QueueDoorbell.create(str(tmp_path / "clients"))
    number = bell._fd
    bell.close()
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.dup2(fd, number)
    bell.ring()
    assert os.path.getsize(tmp_path / "file") == 0
    os.close(number)
    if fd != number:
        os.close(fd)


def test_a_child_leaves_the_queue_of_its_parent_alone(tmp_path: Path, queues: None):
    """It has no copy of a kqueue; the number is that of another file there."""
    bell = QueueDoorbell.create(str(tmp_path))

    def close() -> str:
        number = bell._queue.fd
        with open(os.devnull) as file:
            os.dup2(file.fileno(), number)
        bell.abandon()
        os.fstat(number)
        return "kept"

    assert in_child(close) == "kept"
    bell.ring()
    assert bell.wait(5)
    bell.close()


def test_the_death_of_a_process_ends_a_sleep(tmp_path: Path, queues: None):
    """A process that was killed, and one that closed the store and goes on."""
    bell = QueueDoorbell.create(str(tmp_path))
    child = ForkedChild(lambda: QueueDoorbell.create(str(tmp_path)).uuid.hex())
    uuid = bytes.fromhex(child.ready())
    assert bell.watch(uuid) and bell.watch(uuid) and not bell._unheard
    child.end()
    assert bell.wait(0.9) and list(bell.dead) == [uuid]  # less than the time of the next look
    other = QueueDoorbell.create(str(tmp_path))
    assert bell.watch(other.uuid)
    other.close()
    assert bell.wait(0.9) and bell.dead[-1] == other.uuid
    assert not bell.watch(other.uuid) and not bell.watch(uuid)
    bell.close()
    os.unlink(lease.lease_path(str(tmp_path), uuid))
    assert os.listdir(tmp_path) == []


def test_a_process_of_which_the_kernel_does_not_tell(
    tmp_path: Path, queues: None, monkeypatch: pytest.MonkeyPatch
):
    """As one in another jail: it is looked at every 50 ms."""
    monkeypatch.setattr(other_unix, "_pidfd_open", refuse(errno.ESRCH))
    bell = QueueDoorbell.create(str(tmp_path))
    child = ForkedChild(lambda: QueueDoorbell.create(str(tmp_path)).uuid.hex())
    uuid = bytes.fromhex(child.ready())
    assert bell.watch(uuid) and bell._unheard == {uuid}
    bell.wait(0)  # `watch` rang
    child.end()
    assert bell.wait(5) and list(bell.dead) == [uuid] and not bell._unheard
    bell.unwatch(uuid)
    bell.close()
    os.unlink(lease.lease_path(str(tmp_path), uuid))


def test_a_lease_that_was_made_again_is_watched_again(tmp_path: Path, queues: None):
    """A cleaner removed it; its owner made another file of the same name."""
    (tmp_path / "clients").mkdir()
    bell, other = (QueueDoorbell.create(str(tmp_path / "clients")) for _ in range(2))
    assert bell.watch(other.uuid)
    building = f"{other.path}.copy"
    os.rename(other.path, building)
    assert other.mend() and not other.mend()
    os.unlink(building)
    assert not bell.wait(0.2) and not bell.dead
    other.ring()
    assert other.wait(5)
    other.close()
    assert bell.wait(0.9) and list(bell.dead) == [other.uuid]
    bell.close()
    assert os.listdir(tmp_path / "clients") == []
