"""The file descriptors of this process: which can be given back, and the error when none are left.

Locks, journals and maps of segments need a descriptor only while they are used. They give theirs back when
more than a share of the limit is open, the longest open first, and all of them when the system refuses one.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from embeddedpulsar._engine.platform import fork, nofollow, threads
from embeddedpulsar._engine.platform.access import explained
from embeddedpulsar.exceptions import DescriptorLimitError, StorageOSError
from embeddedpulsar.records import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Any, Final

# ENOMEM is what ``mmap`` gives at the limit of maps (vm.max_map_count), which is cured by the same
# means.
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_FEWEST: Final = 8
_SHARE: Final = 8
_UNLIMITED: Final = 1 << 16
_NULL_FLAGS: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
LOWEST: Final = 3
"""No file of a store has a lower number: those are the standard streams."""

_is_there: Final = os.get_inheritable  # raises OSError for a descriptor that is closed

Result = TypeVar("Result")


class Sleeper(Protocol):
    """Something that keeps descriptors for its next use, and opens them again when it has none."""

    def close_descriptor(self) -> bool:
        """Give them back, and say so; False if they are in use this moment. Never waits."""


class Sleepers:
    """The objects that have descriptors open and could close them.

    Role: keeps the number of topics that a process uses from being the number of descriptors it needs.
    Invariants: holds weak references only. `Sleeper.close_descriptor` runs without the lock, and gives up
    rather than wait, so its caller may hold any lock.
    Callers: any thread. A forked child starts empty.
    """

    def __init__(self) -> None:
        self._lock = threads.RLock()  # guards _open
        self._open: OrderedDict[int, weakref.ref[Sleeper]] = OrderedDict()
        self._helpers: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, sleeper: Sleeper) -> None:
        """Note that a sleeper opened descriptors. The one that had its own open longest closes them."""
        # Chosen under the lock, closed after it: `close_descriptor` takes the lock of its object,
        # under which others may wait for this one.
        tired: list[weakref.ref[Sleeper]] = []
        try:
            self._lock.acquire()
            self._open[id(sleeper)] = weakref.ref(sleeper)
            # The limit is asked for only when there are some: the program may have changed it, so it
            # is not remembered.
            if len(self._open) > _FEWEST:
                allowed = max(_FEWEST, limit() // _SHARE)
                while len(self._open) > allowed:
                    tired.append(self._open.popitem(last=False)[1])
        finally:
            self._lock.release()
        if tired:
            self._close_descriptors(tired)

    def closed(self, sleeper: Sleeper) -> None:
        """Note that a sleeper has none open any more."""
        try:
            self._lock.acquire()
            self._open.pop(id(sleeper), None)
        finally:
            self._lock.release()

    def on_shortage(self, helper: Callable[[], object]) -> None:
        """Call ``helper`` when there are no descriptors left; it must not wait for anything."""
        self._helpers.append(helper)

    def make_room(self) -> None:
        """Let every sleeper rest that is not busy."""
        try:
            self._lock.acquire()
            tired = list(self._open.values())
            self._open.clear()
        finally:
            self._lock.release()
        self._close_descriptors(tired)
        for helper in self._helpers:
            helper()

    def _close_descriptors(self, tired: list[weakref.ref[Sleeper]]) -> None:
        """Let these rest. One that is busy is asked again, after the others."""
        # A sleeper that is inside its lock at this moment needs its descriptor, so it says False and
        # is listed again: as the youngest, so the next call tries others first.
        for reference in tired:
            sleeper = reference()
            if sleeper is None or sleeper.close_descriptor():
                continue
            try:
                self._lock.acquire()
                self._open[id(sleeper)] = reference
            finally:
                self._lock.release()

    def after_fork_in_child(self) -> None:
        """Forget all sleepers: they close their locks, and ours may be held by a thread that is gone."""
        self._lock = threads.RLock()
        self._open.clear()


class Usage:
    """How many users each of a number of opened things has.

    Role: decides what may be closed to keep file descriptors within bounds; opens and closes nothing itself.
    Invariants: a name is idle exactly if it had users and has none.
    Callers: the holder of the lock that guards the things.

    Args:
        most_idle: how many idle things may stay open for their next user.
    """

    __slots__ = ("_idle", "_kept", "_most_idle", "_users")

    def __init__(self, most_idle: int) -> None:
        self._most_idle = most_idle
        self._users: dict[str, int] = {}
        self._idle: dict[str, None] = {}  # in the order in which they became idle
        self._kept: set[str] = set()

    def begin(self, name: str) -> None:
        """Count one more user."""
        self._users[name] = self._users.get(name, 0) + 1
        self._idle.pop(name, None)

    def keep(self, name: str) -> None:
        """Count a user that never ends its use: the thing stays open."""
        if name not in self._kept:
            self._kept.add(name)
            self.begin(name)

    def end(self, name: str) -> bool:
        """Count one user less; returns whether it was the last."""
        users = self._users.get(name, 0) - 1
        if users > 0:
            self._users[name] = users
            return False
        self._users.pop(name, None)
        self._idle[name] = None
        return True

    def count(self, name: str) -> int:
        """How many users it has."""
        return self._users.get(name, 0)

    def discard(self, name: str) -> None:
        """Forget a thing that is closed."""
        self._users.pop(name, None)
        self._idle.pop(name, None)
        self._kept.discard(name)

    def surplus(self) -> list[str]:
        """The idle names above the budget, the longest idle first."""
        return list(self._idle)[: max(0, len(self._idle) - self._most_idle)]

    def idle(self) -> list[str]:
        """All idle names, the longest idle first."""
        return list(self._idle)


SLEEPERS: Final = Sleepers()
fork.register(SLEEPERS)


def opening(what: str, action: Callable[..., Result], *arguments: Any) -> Result:
    """Do something that opens a file; if there are no descriptors left, make room and do it once more.

    Args:
        what: says in a few words what is done: "cannot open x".
        action: what to do with ``arguments``; runs twice only if the system refused a descriptor.

    Raises:
        DescriptorLimitError: none were left the second time either.
        AccessDeniedError: the process may not; it says whose the file is.
    """
    # Before each opening, because a program may close its streams at any time, as daemons do.
    try:
        _is_there(0), _is_there(1), _is_there(2)  # no loop: an opening of a store comes here twenty times
    except OSError:
        _take_low_ones()
    try:
        return action(*arguments)  # as `calling`, without a call
    except PermissionError as e:
        raise explained(e, what) from None
    except OSError as e:
        if not is_shortage(e):
            raise
    SLEEPERS.make_room()
    return named(what, action, *arguments)


def calling(what: str, action: Callable[..., Result], *arguments: Any) -> Result:
    """As `opening`, of what keeps no descriptor: its number does not matter."""
    # No room is made ahead of time: the system says when it has none, and only then is anything
    # closed.
    try:
        return action(*arguments)
    except PermissionError as e:
        raise explained(e, what) from None
    except OSError as e:
        if not is_shortage(e):
            raise
    # The second failure is final: everything that could be given back was.
    SLEEPERS.make_room()
    return named(what, action, *arguments)


def within_limit(action: Callable[[], Result], make_room: Callable[[], object], what: str) -> Result:
    """Do something that opens files; if there are no descriptors left, make room and do it once more.

    As `descriptors` does where a file is opened, but whole topics are closed.

    Args:
        action: what to do; may run twice.
        make_room: closes files that are not in use.
        what: says in a few words what cannot be done if it fails.

    Raises:
        DescriptorLimitError: no descriptors were left the second time either.
    """
    try:
        return action()
    except OSError as e:
        if not is_shortage(e):
            raise
    make_room()
    SLEEPERS.make_room()
    return named(what, action)


def late_imports() -> AbstractContextManager[object]:
    """What stands around imports in a function: of what few processes need, in threads that others may
    fork beside.

    A process that forks while another thread of it executes a module hands its child a module that is half
    there, under a lock that is never released: an import of it there waits for ever. So a fork waits for the
    imports that are under way here, a few milliseconds at most.

    A program may have used up its descriptors: an import needs one at a time, for which the objects of this
    package give theirs back. If none does, what was imported before is found all the same.

    It opens and closes a descriptor, 3 us. On a path that repeats, keep what was imported.

    Raises:
        DescriptorLimitError: a module has to be read, and nothing gave a descriptor back; raised where the
            imports end.

    Example:
        >>> with late_imports():
        ...     from math import pi
        >>> pi > 3
        True
    """
    try:
        _probe()
    except OSError:
        try:
            calling("cannot load a module", _probe)
        except DescriptorLimitError:
            return _of_loaded_modules()
    # The lock itself, because its ``__enter__`` is written in C: no interrupt comes between it and the
    # imports.
    lock: AbstractContextManager[object] = fork.LATE_IMPORTS.lock  # a fork makes a new one
    return lock


def _probe() -> None:
    """Open and close something, which fails if no descriptor is left."""
    os.close(os.open(os.sep, os.O_RDONLY | os.O_CLOEXEC))


@contextmanager
def _of_loaded_modules() -> Iterator[None]:
    """As `late_imports`, when no descriptor is left: an import that has to read a file is refused."""
    lock = fork.LATE_IMPORTS  # a fork makes a new one
    try:
        lock.acquire()
        yield
    except ModuleNotFoundError:
        raise  # true: a directory that cannot be searched is an OSError
    except ImportError as e:  # of an extension module, whose file the loader of the system opens
        raise limit_error(f"cannot load a module from {e.path or e.name}", errno.EMFILE) from e
    except OSError as e:
        if not is_shortage(e):
            raise
        raise limit_error(f"cannot load a module from {e.filename}", e.errno or errno.EMFILE) from e
    finally:
        lock.release()


def _take_low_ones() -> None:
    """Open the null device for every standard stream that is closed, as SQLite does.

    Otherwise a file of the store gets its number, and whatever prints writes into that. Programs started by
    ``exec`` inherit the stream closed, as it was.
    """
    while (fd := os.open(os.devnull, _NULL_FLAGS)) < LOWEST:
        continue  # it stays open
    os.close(fd)


def named(what: str, action: Callable[..., Result], *arguments: Any) -> Result:
    """Do something once that opens several files."""
    try:
        return action(*arguments)
    except OSError as e:
        if not is_shortage(e):
            raise
        raise limit_error(what, e.errno or errno.EMFILE) from e


def is_of(fd: int, device: int, inode: int) -> bool:
    """Whether a descriptor is open, and is of this file."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return status.st_ino == inode and status.st_dev == device


def lost(path: str) -> StorageOSError:
    """The error for a descriptor of this package that other code of the process closed."""
    return StorageOSError(
        errno=errno.EBADF,
        path=path,
        reason="other code of this process closed its descriptor (os.closerange, daemon.DaemonContext)",
        remedy="open clients after descriptors are closed; close this one, and open another",
    )


def names_in(directory: str) -> list[str]:
    """As ``os.listdir``, of a directory of a store (see `nofollow`); it needs a descriptor."""
    return calling(f"cannot list {directory}", nofollow.names_in, directory)


def is_shortage(error: BaseException) -> bool:
    """Whether an error means that no descriptor, or no map, was available."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def limit_error(what: str, code: int) -> DescriptorLimitError:
    """The error that names the failed action, the reason, and what to do about it."""
    if code == errno.ENFILE:
        reason = "the system has no file descriptors left (ENFILE)"
        remedy = "raise fs.file-max, or close other programs"
    elif code == errno.ENOMEM:
        reason = "this process may not have another map, or the system has no memory left (ENOMEM)"
        remedy = (
            "raise vm.max_map_count or the limit of the address space (ulimit -v), use fewer topics, or "
            "smaller ledgers (managedLedgerMaxSizePerLedgerMbytes)"
        )
    else:
        numbers = f"{_in_use()} file descriptors open, and may have {_limit_text()} at most"
        reason = f"this process has {numbers} (EMFILE)"
        remedy = (
            "raise the limit (ulimit -n, RLIMIT_NOFILE), or close files, producers, consumers and readers "
            "that are not needed"
        )
    return DescriptorLimitError(f"{what}: {reason}", remedy=remedy, errno=code)


def limit() -> int:
    """How many descriptors this process may have open now."""
    # RLIMIT_NOFILE, as the C library reads it. "Unlimited" counts as 65,536: the share of it is what
    # stays open.
    try:
        descriptors = os.sysconf("SC_OPEN_MAX")
    except (AttributeError, ValueError, OSError):
        descriptors = -1
    return descriptors if 0 < descriptors < _UNLIMITED else _UNLIMITED


def _limit_text() -> str:
    descriptors = limit()
    return str(descriptors) if descriptors < _UNLIMITED else "that many"


def _in_use() -> str:
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            number = len(os.listdir(directory)) - 1
        except OSError:  # none is left to look with, or there is no such directory
            continue
        if number > LOWEST:  # on FreeBSD, /dev/fd has the standard streams alone
            return str(number)
    return _limit_text()
