"""The machines: how each is made of this one, and what runs there."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = "tests.machines.program"
_BASE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
_IMAGE_MIB = 400


class CannotBeMadeError(Exception):
    """This machine cannot be made into that one; the text says why."""


class Place(NamedTuple):
    """Where the program runs.

    Attributes:
        store: its directory, which is made.
        prefix: what the command begins with.
        environment: of the process, instead of this one's.
    """

    store: str
    prefix: Sequence[str] = ()
    environment: dict[str, str] = _BASE


class Machine(NamedTuple):
    """A machine by its name.

    Attributes:
        what: as the table of the pages says it.
        options: of the program.
        make: gives the place for as long as it is entered; a directory for files is the argument.
    """

    what: str
    options: Sequence[str]
    make: Callable[[Path], contextlib.AbstractContextManager[Place]]

    def run(self, directory: Path, python: str = sys.executable, timeout_s: float = 300) -> str:
        """Run the program there, and return what it printed.

        Raises:
            CannotBeMadeError: see there.
            AssertionError: it failed.
        """
        with self.make(directory) as place:
            command = [
                *place.prefix,
                python,
                "-W",
                "error",
                "-X",
                "faulthandler",
                "-m",
                _PROGRAM,
                place.store,
            ]
            done = subprocess.run(
                [*command, *self.options],
                cwd="/",
                env=place.environment,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        printed = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
        assert done.returncode == 0, f"ended with {done.returncode}\n{printed}"
        return printed


@contextlib.contextmanager
def here(directory: Path) -> Iterator[Place]:
    """This machine as it is, but for what the options of the program change."""
    yield Place(str(directory / "store"))


@contextlib.contextmanager
def memory_group(directory: Path) -> Iterator[Place]:
    """A control group of 64 MiB, its page cache included, without swap."""
    unified, memory = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
    name = f"machines-{os.getpid()}"
    if (unified / "cgroup.controllers").exists():
        group, limit, members = unified / name, "memory.max", "cgroup.procs"
    elif memory.is_dir():
        group, limit, members = memory / name, "memory.limit_in_bytes", "cgroup.procs"
    else:
        raise CannotBeMadeError("there are no control groups of memory")
    try:
        group.mkdir()
    except OSError as e:
        raise CannotBeMadeError(f"no control group can be made: {e}") from e
    try:
        try:
            (group / limit).write_text(str(64 << 20))
        except OSError as e:
            raise CannotBeMadeError(f"memory of a group cannot be limited: {e}") from e
        script = f'echo $$ > {group / members} && exec "$@"'
        yield Place(str(directory / "store"), ("sh", "-c", script, "sh"))
    finally:
        group.rmdir()


def _mounting(script: str) -> tuple[str, ...]:
    """The beginning of a command with mounts of its own, which ``script`` makes."""
    prefix = ("unshare", "--mount", "sh", "-ec", script + '\nexec "$@"', "sh")
    try:
        done = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError as e:
        raise CannotBeMadeError("there is no unshare command") from e
    if done.returncode:
        raise CannotBeMadeError(f"this user may not mount: {done.stderr.strip()}")
    return prefix


@contextlib.contextmanager
def small_shared_memory(directory: Path) -> Iterator[Place]:
    """A ``/dev/shm`` of 1 MiB, and temporary files beside the store."""
    temporary = directory / "temporary"
    temporary.mkdir()
    if str(directory).startswith("/dev/shm/"):
        raise CannotBeMadeError("the files of this machine lie on /dev/shm, which would be hidden")
    prefix = _mounting("mount -t tmpfs -o size=1m tmpfs /dev/shm")
    yield Place(str(directory / "store"), prefix, _BASE | {"TMPDIR": str(temporary)})


@contextlib.contextmanager
def read_only_root(directory: Path) -> Iterator[Place]:
    """All is mounted read-only, ``/tmp`` and ``/dev/shm`` too, but for the directory of the store."""
    only = directory / "writable"
    only.mkdir()
    # The places are hidden by empty ones; the store may lie below one of them.
    script = f"""
        mount --make-rprivate /
        for place in /var/tmp /dev/shm /tmp; do mount -t tmpfs tmpfs $place; done
        mkdir -p {only}
        mount -t tmpfs -o size=100m tmpfs {only}
        for place in /var/tmp /dev/shm /tmp; do mount -o remount,ro $place; done
        mount -o remount,bind,ro /
    """
    yield Place(str(only / "store"), _mounting(script))


@contextlib.contextmanager
def bare_environment(directory: Path) -> Iterator[Place]:
    """No HOME, no TMPDIR, no locale; the names of files and what is printed are ASCII."""
    bare = {name: _BASE[name] for name in ("PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    yield Place(
        str(directory / "store"),
        environment=bare | {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )


def on_loop(kind: str, make: Sequence[str], mib: int = _IMAGE_MIB) -> Callable[[Path], object]:
    """A file system of that kind in a file."""

    @contextlib.contextmanager
    def mounted(directory: Path) -> Iterator[Place]:
        if shutil.which(make[0], path=_BASE["PATH"]) is None:
            raise CannotBeMadeError(f"{make[0]} is missing")
        image, point = directory / "image", directory / "mounted"
        point.mkdir()
        with image.open("wb") as file:
            file.truncate(mib << 20)
        subprocess.run([*make, str(image)], check=True, capture_output=True, timeout=60)
        with _mounted(["-t", kind, "-o", "loop", str(image)], point):
            yield Place(str(point / "store"))

    return mounted


@contextlib.contextmanager
def on_tmpfs(directory: Path) -> Iterator[Place]:
    """A tmpfs."""
    point = directory / "mounted"
    point.mkdir()
    with _mounted(["-t", "tmpfs", "-o", "size=200m", "tmpfs"], point):
        yield Place(str(point / "store"))


@contextlib.contextmanager
def on_overlay(directory: Path) -> Iterator[Place]:
    """A layer above another one, of a tmpfs, as a container has it."""
    layers, point = directory / "layers", directory / "mounted"
    layers.mkdir()
    point.mkdir()
    with _mounted(["-t", "tmpfs", "-o", "size=200m", "tmpfs"], layers):
        for name in ("lower", "upper", "work"):
            (layers / name).mkdir()
        options = ",".join(f"{name}dir={layers / name}" for name in ("lower", "upper", "work"))
        with _mounted(["-t", "overlay", "-o", options, "overlay"], point):
            yield Place(str(point / "store"))


@contextlib.contextmanager
def _mounted(arguments: Sequence[str], point: Path) -> Iterator[None]:
    try:
        done = subprocess.run(["mount", *arguments, str(point)], capture_output=True, text=True, check=False)
    except FileNotFoundError as e:
        raise CannotBeMadeError("there is no mount command") from e
    if done.returncode:
        raise CannotBeMadeError(done.stderr.strip().partition("\n")[0].rpartition(": ")[2])
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True, timeout=30)


MACHINES: dict[str, Machine] = {
    "one-core": Machine("one core", ("--cores", "1"), here),
    "memory": Machine("64 MiB of memory, page cache included (control group)", (), memory_group),
    "data": Machine(
        "64 MiB of data (`RLIMIT_DATA`), stacks of 1 MiB", ("--data", "64", "--stack", "1024"), here
    ),
    "address-space": Machine("1 GiB of address space (`RLIMIT_AS`)", ("--address-space", "1024"), here),
    "stack": Machine("threads with 256 KiB of stack", ("--stack", "256"), here),
    "shared-memory": Machine("`/dev/shm` of 1 MiB", (), small_shared_memory),
    "read-only": Machine("all mounted read-only, but for the directory of the store", (), read_only_root),
    "bare": Machine("no HOME, no TMPDIR, no locale, names of files in ASCII", (), bare_environment),
    "pages-16": Machine("pages of 16 KiB, simulated", ("--page-size", "16"), here),
    "pages-64": Machine("pages of 64 KiB, simulated", ("--page-size", "64"), here),
    "ext4": Machine("ext4", ("--fill", "--beside"), on_loop("ext4", ("mkfs.ext4", "-q", "-F"))),
    "ext4-1k": Machine(
        "ext4, blocks of 1 KiB",
        ("--fill", "--beside"),
        on_loop("ext4", ("mkfs.ext4", "-q", "-F", "-b", "1024")),
    ),
    "xfs": Machine("XFS", ("--fill", "--beside"), on_loop("xfs", ("mkfs.xfs", "-q", "-f"))),
    "btrfs": Machine("Btrfs", ("--fill",), on_loop("btrfs", ("mkfs.btrfs", "-q", "-f"), 1024)),
    "f2fs": Machine("F2FS", ("--fill", "--beside"), on_loop("f2fs", ("mkfs.f2fs", "-q", "-f"))),
    "tmpfs": Machine("tmpfs", ("--fill", "--beside"), on_tmpfs),
    "overlayfs": Machine("overlayfs, a layer on tmpfs", ("--fill", "--beside"), on_overlay),
}
