"""Waiting for something outside of the store: a file that another program writes, a socket, or a call of this
process.

The kernel tells of writes to files (inotify), whichever process and library does them; through ``ctypes``,
because Python has no call for it. Where there is no inotify, or the file is on a network file system, a
waiter hears of nothing and looks from time to time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from typing import Any, Final

from embeddedpulsar._engine.platform import descriptors
from embeddedpulsar._engine.platform.doorbell import make_poller
from embeddedpulsar._engine.platform.threads import RLock, system

_EVENT: Final = struct.Struct("<iIII")
"""Watch, mask, cookie, length of the name that follows."""
_READABLE: Final = 1
_CHANGED: Final = 0x2 | 0x8 | 0x80 | 0x100 | 0x200
"""A file was written, closed after writing, moved here, created or removed."""
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_MOST: Final = 1 << 16


def _c_library() -> Any | None:
    """The C library, if it has inotify."""
    with contextlib.suppress(ImportError, OSError), descriptors.late_imports():
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        if hasattr(library, "inotify_init1"):
            return library
    return None


class ChangeWatch:
    """What one thread waits with. `wake` may be called by any thread and from a signal handler; everything
    else by the thread that waits.

    Invariants: what happens while the thread does not wait ends its next wait. After a fork the child has no
    use for its copy, whose descriptors are those of the parent.
    """

    def __init__(self) -> None:
        self._reader, self._writer = descriptors.opening("cannot make a pipe", _pipe)
        self._poller = make_poller()
        self._poller.register(self._reader, _READABLE)
        self._lock = RLock()  # a descriptor that was closed is not written to: its number may be another's
        self._inotify = -1
        self._begin = b""
        self._socket = -1

    def wake(self) -> None:
        """End the wait of the thread, or its next one."""
        lock = self._lock
        try:
            lock.acquire()
            if self._writer >= 0:
                with contextlib.suppress(BlockingIOError):  # it is full: the thread is awake
                    system.write(self._writer, b"1")
        finally:
            lock.release()

    def watch_files(self, path: str) -> bool:
        """Let changes of a file, and of those beside it whose names begin with its name, end a wait.

        Returns:
            Whether the kernel tells of them; else the caller looks from time to time.
        """
        directory, name = os.path.split(os.path.realpath(path))
        library = _c_library()
        if library is None:
            return False
        try:
            inotify = descriptors.opening("cannot watch a file", _inotify_init, library)
        except OSError:  # as many as the system allows
            return False
        if library.inotify_add_watch(inotify, os.fsencode(directory), _CHANGED) < 0:
            os.close(inotify)
            return False
        self._poller.register(inotify, _READABLE)
        self._inotify, self._begin = inotify, os.fsencode(name)
        return True

    def watch_socket(self, fd: int) -> None:
        """Let data that arrive at a socket end a wait, until `unwatch`. The caller reads them."""
        self._poller.register(fd, _READABLE)
        self._socket = fd

    def unwatch(self) -> None:
        """Watch no file and no socket any more."""
        if self._socket >= 0:
            with contextlib.suppress(OSError, KeyError, ValueError):  # it may be closed
                self._poller.unregister(self._socket)
            self._socket = -1
        if self._inotify >= 0:
            self._poller.unregister(self._inotify)
            os.close(self._inotify)
            self._inotify = -1

    def wait(self, timeout_s: float) -> bool:
        """Wait until something happened, for so long at most. Returns whether it did."""
        end_s = system.monotonic() + timeout_s
        # Files of other names in the directory end the wait of the kernel, but not this one.
        while True:
            left_s = max(0.0, end_s - system.monotonic())
            try:
                events = self._poller.poll(left_s)
            except InterruptedError:
                continue
            if any(fd == self._socket for fd, _ in events):
                return True
            if self._drain_pipe() or self._drain_changes():
                return True
            if not left_s:
                return False

    def _drain_pipe(self) -> bool:
        try:
            return bool(system.read(self._reader, _MOST))
        except BlockingIOError:
            return False

    def _drain_changes(self) -> bool:
        """Take in what the kernel tells. Returns whether something of it is about the file."""
        is_changed = False
        while self._inotify >= 0:
            try:
                data = system.read(self._inotify, _MOST)
            except BlockingIOError:
                break
            at = 0
            while at < len(data):
                watch, _, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                name = data[at - length : at].rstrip(b"\0")
                # A watch of -1: the kernel dropped events, which may have been of this file.
                is_changed = is_changed or watch < 0 or name.startswith(self._begin)
        return is_changed

    def close(self) -> None:
        """Give all descriptors back. Idempotent."""
        lock = self._lock
        try:
            lock.acquire()
            if self._reader < 0:
                return
            self.unwatch()
            self._poller.close()
            reader, writer = self._reader, self._writer
            self._reader = self._writer = -1
            os.close(reader)
            os.close(writer)
        finally:
            lock.release()


def _pipe() -> tuple[int, int]:
    """As ``os.pipe2``, which macOS has not: both ends do not block, and are closed on exec."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def _inotify_init(library: Any) -> int:
    descriptor = int(library.inotify_init1(_FLAGS))
    if descriptor < 0:
        with descriptors.late_imports():
            import ctypes
        code = ctypes.get_errno() or errno.EMFILE
        raise OSError(code, os.strerror(code))
    return descriptor
