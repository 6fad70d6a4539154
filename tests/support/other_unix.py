"""Linux by the rules of another Unix: what macOS or FreeBSD lacks is taken away, and what they have is there.

A start-up file (`tests.pythons.places.OtherUnix` makes it) loads this module before anything else in every
process that tests start, and calls `apply`. For the tests themselves the machine stays as it is: `/proc` and
`/dev/shm` are hidden from the package alone, since tests count descriptors and find processes there.

* **darwin**: no `posix_fallocate`, no `fdatasync`; F_FULLFSYNC and F_GETPATH of `fcntl`.
* **freebsd14**: an `open` that says EMLINK of a symbolic link; a file system on which `posix_fallocate` fails
  (as on ZFS); MAP_EXCL where Linux has MAP_NORESERVE.
* **plain**: a Unix with neither of these, and no kqueue: wake-ups are polled.

In all of them: no epoll, eventfd, pidfd, inotify, memfd, O_TMPFILE, O_PATH (FreeBSD has it), prctl, locks of
open file descriptions, CLOCK_BOOTTIME; 256 descriptors; paths below 1,024 bytes. FIFOs are not locked: the
package does not try. The names of files mean the same in both cases and in all normal forms on **darwin**.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import posix
import resource
import select
import selectors
import signal
import struct
import subprocess
import sys
import sysconfig
import threading
import time
import types
import unicodedata
import weakref
from collections.abc import Callable
from typing import Any

PROFILES = ("darwin", "freebsd14", "plain")
PLATFORMS = {"darwin": "darwin", "freebsd14": "freebsd14", "plain": "sunos5"}
DESCRIPTORS = 256
PATH_MAX = 1024
_F_FULLFSYNC, _F_GETPATH = 51, 50
_MAP_EXCL = 0x4000

_NOT_OF_OTHERS = (
    "O_TMPFILE O_DIRECT O_NOATIME O_RSYNC O_LARGEFILE eventfd eventfd_read eventfd_write pidfd_open P_PIDFD "
    "memfd_create sched_getaffinity sched_setaffinity sched_getscheduler sched_setscheduler sched_getparam "
    "sched_setparam copy_file_range splice unshare setns getxattr setxattr listxattr removexattr "
    "posix_fadvise timerfd_create".split()
)
_NOT_OF_DARWIN = (
    "posix_fallocate fdatasync pipe2 O_PATH getrandom".split()  # tests change users by setresuid
)
_LIBRARY = ("inotify_init", "inotify_init1", "inotify_add_watch", "prctl", "sync_file_range", "fallocate")

applied = ""
"""The profile of this process."""
full_fsyncs: list[int] = []
"""Inodes that were flushed through the cache of the drive."""

# What is taken away, for the imitations and for tests.
_epoll, _pidfd_open, _fsync, _readlink = select.epoll, os.pidfd_open, os.fsync, os.readlink
pidfd_open = _pidfd_open
_stat, _open_file, _listdir, _fcntl = os.stat, os.open, os.listdir, fcntl.fcntl
_libc = ctypes.CDLL(None, use_errno=True)
prctl = _libc.prctl


class kevent:
    """As ``select.kevent``."""

    def __init__(self, ident: int, filter: int = -1, flags: int = 1, fflags: int = 0) -> None:
        self.ident, self.filter, self.flags, self.fflags = ident, filter, flags, fflags


class kqueue:
    """As ``select.kqueue``, for files (writes, removal) and ends of processes, by inotify and epoll.

    As of BSD, a forked child has none: it is closed there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = _epoll()
        self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            code = ctypes.get_errno()
            self._epoll.close()
            raise OSError(code, os.strerror(code))
        self._epoll.register(self._inotify, 1)
        self._files: dict[int, tuple[int, int, int]] = {}  # descriptor -> watch, inode, what is told
        self._processes: dict[int, int] = {}  # pid -> descriptor of the process
        self.closed = False
        _queues.add(self)

    def fileno(self) -> int:
        """Readable while something is to be told."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Give it back. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._epoll.close()
        for fd in (self._inotify, *self._processes.values()):
            os.close(fd)
        self._processes.clear()

    def __del__(self) -> None:
        self.close()

    def control(
        self, changes: list[kevent] | None, max_events: int, timeout: float | None = None
    ) -> list[kevent]:
        """As ``select.kqueue.control``."""
        if self.closed:
            raise ValueError("I/O operation on closed kqueue object")
        for change in changes or ():
            with self._lock:
                self._change(change)
        if not max_events:
            return []
        end = None if timeout is None else time.monotonic() + max(0.0, timeout)
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = self._epoll.poll(left)
            with self._lock:
                events = [event for fd, _ in ready for event in self._events_of(fd)]
            if events or (end is not None and time.monotonic() >= end):
                return events

    def _change(self, change: kevent) -> None:
        is_removal = bool(change.flags & select.KQ_EV_DELETE)  # type: ignore[attr-defined]
        if change.filter == select.KQ_FILTER_PROC:  # type: ignore[attr-defined]
            known = self._processes.pop(change.ident, None)
            if known is not None:
                self._epoll.unregister(known)
                os.close(known)
            if is_removal:
                if known is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                return
            fd = self._processes[change.ident] = _pidfd_open(change.ident)
            self._epoll.register(fd, 1)
            return
        assert change.filter == select.KQ_FILTER_VNODE and not is_removal  # type: ignore[attr-defined]
        mask = 0x2 | 0x4  # IN_MODIFY, IN_ATTRIB
        watch = _libc.inotify_add_watch(self._inotify, b"/proc/self/fd/%d" % change.ident, mask)
        if watch < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._files[change.ident] = watch, os.fstat(change.ident).st_ino, change.fflags

    def _events_of(self, fd: int) -> list[kevent]:
        for pid, known in list(self._processes.items()):
            if known == fd:
                self._epoll.unregister(fd)
                os.close(self._processes.pop(pid))
                return [kevent(pid, select.KQ_FILTER_PROC)]  # type: ignore[attr-defined]
        if fd != self._inotify:
            return []
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return []
        told, at = {}, 0
        while at < len(data):
            watch, mask, _, length = struct.unpack_from("iIII", data, at)
            at += 16 + length
            for ident, (number, inode, what) in list(self._files.items()):
                if number != watch:
                    continue
                try:
                    status = os.fstat(ident)
                except OSError:
                    del self._files[ident]  # closed: kqueue forgets it
                    continue
                if status.st_ino != inode:
                    del self._files[ident]
                elif (mask & 0x2 and what & 0x2) or (mask & 0x4 and what & 0x1 and not status.st_nlink):
                    told[ident] = kevent(ident, select.KQ_FILTER_VNODE)  # type: ignore[attr-defined]
        return list(told.values())


_queues: weakref.WeakSet[kqueue] = weakref.WeakSet()
_KQUEUE = {
    "KQ_FILTER_VNODE": -4,
    "KQ_FILTER_PROC": -5,
    "KQ_EV_ADD": 1,
    "KQ_EV_DELETE": 2,
    "KQ_EV_ONESHOT": 0x10,
    "KQ_EV_CLEAR": 0x20,
    "KQ_NOTE_DELETE": 1,
    "KQ_NOTE_WRITE": 2,
    "KQ_NOTE_EXTEND": 4,
    "KQ_NOTE_EXIT": 0x80000000,
}


def _close_in_child() -> None:
    for queue in list(_queues):
        queue._lock = threading.Lock()
        queue.close()


def with_kqueue(set_name: Callable[[Any, str, Any], object]) -> None:
    """Put the imitation of kqueue into `select`, by ``setattr`` or that of a test."""
    for name, value in {**_KQUEUE, "kqueue": kqueue, "kevent": kevent}.items():
        set_name(select, name, value)


def apply(profile: str) -> None:
    """Make this process one of another Unix. Once, before the package is imported."""
    global applied
    assert profile in PROFILES and not applied
    applied = profile
    sysconfig.get_config_vars()  # are kept; those of another platform are not there
    sys.platform = PLATFORMS[profile]
    # What the standard library decides at its import goes by the machine: it has its own tests.
    assert selectors.DefaultSelector is not selectors.PollSelector
    subprocess._USE_POSIX_SPAWN = False  # type: ignore[attr-defined]
    sys.modules["_scproxy"] = _proxies()
    _take_names_away(profile)
    if profile != "plain":
        with_kqueue(setattr)
        os.register_at_fork(after_in_child=_close_in_child)
    else:
        select.kqueue = None  # or the package takes a fresh copy of the module, which has epoll again
    _hide_from_package(profile)
    if profile == "darwin":
        fcntl.F_FULLFSYNC, fcntl.F_GETPATH = _F_FULLFSYNC, _F_GETPATH
        fcntl.fcntl = _fcntl_of_darwin
    if profile == "freebsd14":
        os.posix_fallocate = posix.posix_fallocate = _refused_fallocate
        mmap.mmap = _MapOfFreeBsd  # type: ignore[misc]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft > DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))


def _take_names_away(profile: str) -> None:
    gone = [*_NOT_OF_OTHERS, *(() if profile == "freebsd14" else _NOT_OF_DARWIN)]
    for module in (os, posix):
        for name in gone:
            vars(module).pop(name, None)
    for module, begins in (
        (select, ("epoll",)),  # the selectors of the standard library need the numbers
        (
            fcntl,
            ("F_OFD", "F_ADD_SEALS", "F_GET_SEALS", "F_SEAL", "F_SETPIPE", "F_GETPIPE", "F_NOTIFY", "DN_"),
        ),
        (time, ("CLOCK_BOOTTIME", "CLOCK_TAI", "CLOCK_MONOTONIC_RAW", "pthread_getcpuclockid")),
        (signal, ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo")),
        (mmap, ("MAP_NORESERVE", "MAP_POPULATE")),
    ):
        for name in [name for name in vars(module) if name.startswith(begins)]:
            delattr(module, name)


def _proxies() -> types.ModuleType:
    module = types.ModuleType("_scproxy")  # of `urllib.request` on macOS
    module._get_proxies = dict  # type: ignore[attr-defined]
    module._get_proxy_settings = dict  # type: ignore[attr-defined]
    return module


def _is_package() -> bool:
    """Whether the package called, perhaps by a module of the standard library."""
    frame = sys._getframe(2)
    for _ in range(3):
        name = frame.f_globals.get("__name__", "")
        if name.startswith("embeddedpulsar"):
            return True
        if name not in ("genericpath", "posixpath", "os") or frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _refuse(path: Any) -> None:
    """Raise what another Unix says of a path."""
    text = os.fsdecode(path)
    if text.startswith("/proc/") or text in ("/proc", "/dev/shm"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
    if len(os.fsencode(path)) >= PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), text)


def _hide_from_package(profile: str) -> None:
    names = (
        "stat lstat access readlink listdir scandir mkdir rmdir unlink rename replace link chmod chown utime"
    )
    for name in [*names.split(), "statvfs", "mkfifo"]:
        setattr(os, name, _guarded(getattr(os, name), folds=profile == "darwin"))
    os.open = _guarded(_open_of_freebsd if profile == "freebsd14" else _open_file, folds=profile == "darwin")
    for table in (os.supports_dir_fd, os.supports_follow_symlinks, os.supports_fd, os.supports_effective_ids):
        for call in [call for call in table if getattr(os, call.__name__, call) is not call]:
            table.add(getattr(os, call.__name__))
    builtins.open = _guarded(builtins.open)
    getter = ctypes.CDLL.__getattr__

    def found(library: Any, name: str) -> Any:
        if _is_package_directly():
            if name in _LIBRARY:
                raise AttributeError(name)
            if name == "sysctlbyname" and profile != "plain":
                return _sysctlbyname
        return getter(library, name)

    ctypes.CDLL.__getattr__ = found  # type: ignore[method-assign]


def _is_package_directly() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("embeddedpulsar")


def _guarded(call: Callable[..., Any], *, folds: bool = False) -> Callable[..., Any]:
    has_two = call.__name__ in ("rename", "replace", "link")

    def guarded(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        if isinstance(path, int) or not _is_package():
            return call(path, *arguments, **options)
        _refuse(path)
        if folds:
            above = options.get("dir_fd", options.get("src_dir_fd"))
            path = _as_it_lies(path, above)
            if has_two:
                other, *rest = arguments
                arguments = (_as_it_lies(other, options.get("dst_dir_fd")), *rest)
        return call(path, *arguments, **options)

    guarded.__name__ = guarded.__qualname__ = call.__name__
    guarded.__module__ = call.__module__
    return guarded


def fold(name: str) -> str:
    """What names have in common that mean the same file on a Mac."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def _as_it_lies(path: Any, above: int | None) -> Any:
    """The path, with a last part that is spelled as the file that it means."""
    if not isinstance(path, str):
        return path
    head, slash, name = path.rpartition("/")
    try:
        _stat(path, dir_fd=above, follow_symlinks=False)
        return path
    except OSError as e:
        if e.errno != errno.ENOENT:
            return path
    try:
        fd = _open_file(head or slash or ".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=above)
    except OSError:
        return path
    try:
        for other in _listdir(fd):
            if fold(other) == fold(name):
                return f"{head}{slash}{other}"
    finally:
        os.close(fd)
    return path


def _open_of_freebsd(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
    try:
        return _open_file(path, flags, *arguments, **options)
    except OSError as e:
        if e.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), path) from None
        raise


def _refused_fallocate(fd: int, offset: int, length: int) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _fcntl_of_darwin(fd: Any, command: int, argument: Any = 0) -> Any:
    if command == _F_FULLFSYNC:
        full_fsyncs.append(os.fstat(fd).st_ino)
        del full_fsyncs[:-1000]
        _fsync(fd)
        return 0
    if command == _F_GETPATH:
        number = fd if isinstance(fd, int) else fd.fileno()
        name = os.fsencode(_readlink(f"/proc/self/fd/{number}"))
        if not name.startswith(b"/") or name.endswith(b" (deleted)") or len(name) >= len(argument):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return name.ljust(len(argument), b"\0")
    return _fcntl(fd, command, argument)


class _MapOfFreeBsd(mmap.mmap):
    """MAP_EXCL goes with MAP_FIXED alone."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        if options.get("flags", 0) & _MAP_EXCL:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().__new__(cls, *arguments, **options)


def _sysctlbyname(name: bytes, buffer: Any, size: Any, new: Any, new_size: Any) -> int:
    wanted = {"darwin": b"kern.bootsessionuuid", "freebsd14": b"kern.boot_id"}[applied]
    if name != wanted:
        return -1
    with contextlib.closing(
        os.fdopen(_open_file("/proc/sys/kernel/random/boot_id", os.O_RDONLY), "rb")
    ) as file:
        buffer.value = file.read().strip()
    return 0
