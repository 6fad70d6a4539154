"""Calls on files of a store by path, none of which follows a symbolic link in any part of the path.

A store can be used by several users: root, and a group. A user who can write in one of its directories can
put a link in the place of another directory. A process of another user that followed it would read, remove
or give away what lies elsewhere, with rights that the maker of the link does not have. So the directory of
the file is opened first, and the call is made relative to that descriptor. What is swapped later changes
nothing.

A directory was reached without a link exactly if the kernel's name of the open directory is the path that was
asked for. That is one `readlink` in ``/proc``, or one ``fcntl`` on macOS, whatever the depth. Where it says
otherwise, or cannot be asked (the BSDs, a process that gave up its rights), the path is walked from ``/``
step by step, and the walk names the link that it meets.

That proof takes twice as long as an opening. A series of calls on files of one directory, as an opening of a
store or of a topic makes, proves it once (`within`): the directory stays open meanwhile, and what is below it
is opened relative to the directory above, name by name, with ``O_NOFOLLOW``.

So all paths are canonical: those below a store begin with what `canonical` made of the path of its root, when
it was opened. A link *to* a store is followed there, and nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat as modes
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context

from embeddedpulsar._engine.platform import fork
from embeddedpulsar._engine.platform.access import LINK_CODES
from embeddedpulsar.exceptions import ForeignFileError, StorageOSError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing import Final

# O_SEARCH is that of macOS, where a directory may have to be passed that this process may not read.
_SEARCH: Final = getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY))
_NAMING: Final = _SEARCH if sys.platform in ("linux", "android") else os.O_RDONLY
"""To open what was just made, to give it its rights. Elsewhere those are given by the descriptor, and one of
O_PATH gives none."""
_GET_PATH: Final = getattr(fcntl, "F_GETPATH", 0)
_LONGEST_PATH: Final = 1024
_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP: Final = _SEARCH | _DIRECTORY
_OPEN_NAME: Final = "/proc/self/fd/"
_DELETED: Final = " (deleted)"

# What lies at a path, as `kind_of` says it. Devices and sockets have numbers of their own.
NOTHING: Final = 0
FILE: Final = modes.S_IFREG
DIRECTORY: Final = modes.S_IFDIR
LINK: Final = modes.S_IFLNK
FIFO: Final = modes.S_IFIFO

R = TypeVar("R")


def canonical(path: str) -> str:
    """The absolute path of a root (of a store, a backup or a location) without links in it.

    Raises:
        ForeignFileError: a link of it leads nowhere: a disk that is not mounted, say. A directory made there
            would be hidden later.

    Example:
        >>> canonical("/proc/self/../version")
        '/proc/version'
    """
    # The kernel's name of the open directory is the canonical path, in two calls. ``realpath`` does a
    # call per part, and is for a path that cannot be opened.
    try:
        fd, name = open_root(path, _SEARCH)
    except OSError:
        name = ""
    else:
        os.close(fd)
    if name:
        return name
    # A link to nothing would become a directory of its target's name once something is mounted there.
    target = os.path.realpath(path)
    if os.path.islink(path) and not os.path.lexists(target):
        raise ForeignFileError(
            path=path,
            reason=f"it is a symbolic link to {target}, which is not there",
            remedy="mount or make that directory, or remove the link",
        )
    return target


def open_root(path: str, flags: int = os.O_RDONLY) -> tuple[int, str]:
    """A descriptor of the directory ``path``, links in it followed, and its `canonical` path.

    The path is "" if the system does not say it.

    Raises:
        OSError: it is not there, no directory, or not to be opened.
    """
    fd = os.open(path, flags | os.O_DIRECTORY | os.O_CLOEXEC)
    name = name_of(fd)
    # Another form of the name is of a directory that was removed, or lies beyond the root of this process.
    return fd, name if name.startswith(os.sep) and not name.endswith(_DELETED) else ""


def name_of(fd: int) -> str:
    """The kernel's name of an open file; "" where it does not tell."""
    try:
        return os.readlink(f"{_OPEN_NAME}{fd}")
    except OSError:
        return _name_elsewhere(fd)


def _name_elsewhere(fd: int) -> str:
    """The name of an open file where there is no ``/proc``: macOS tells it, the BSDs do not."""
    if not _GET_PATH:
        return ""
    try:
        buffer = fcntl.fcntl(fd, _GET_PATH, bytes(_LONGEST_PATH))
    except OSError:
        return ""  # it was removed
    return os.fsdecode(buffer.partition(b"\0")[0])


def link_error(path: str) -> StorageOSError:
    """The error that names a symbolic link in the place of a directory of a store."""
    try:
        target = f" to {os.readlink(path)}"
    except OSError:
        target = ""
    return StorageOSError(
        path=path,
        reason=f"it is a symbolic link{target}, and no link inside of a store is followed",
        remedy="remove the link, and put the directory itself there; a link to the whole store may be used",
        errno=errno.ELOOP,
    )


class _Series(dict[str, int]):
    """The directories that a series of calls holds open: one that was proved, and others that were reached
    from it without a link. An item is the descriptor of a directory by its path: one that is not held yet is
    opened, and from then on held; -1 if it cannot be reached.

    Invariants: nothing is held after a call that failed, unless it failed where the path leads, too; nor in a
        forked child. The path may lead to another directory by now, and the number to another file.
    Callers: the thread that runs the series.
    """

    __slots__ = ("_below", "_outer", "_own", "statuses")

    def __init__(self, path: str, fd: int, *, is_own: bool) -> None:
        self._own = [fd] if is_own else []
        self[path] = fd
        self._below: Final = path + os.sep
        self.statuses: dict[str, os.stat_result] = {}
        self._outer = _series.get()

    def __missing__(self, path: str) -> int:
        # Only what lies below the proved directory: for another path the series knows nothing, and
        # the caller walks.
        fd = self.opened(path, os.O_RDONLY | _DIRECTORY) if path.startswith(self._below) else -1
        if fd >= 0:
            self._own.append(fd)
            self[path] = fd
        return fd

    def status(self, path: str) -> os.stat_result | None:
        """That of the directory ``path``, when it was first asked for; None if it cannot be reached."""
        fd = self[path]
        if fd < 0:
            return None
        status = self.statuses.get(path)
        if status is None:
            status = self.statuses[path] = os.fstat(fd)
        return status

    def opened(self, path: str, flags: int) -> int:
        """Another descriptor of the directory ``path``, the caller's; -1 if it cannot be opened from here."""
        # The directory itself if it is held, else its parent. Recursion ends at the proved directory,
        # which is held.
        above, name = self.get(path, -1), os.curdir
        if above < 0:
            end = path.rfind(os.sep)
            if end <= 0 or (above := self[path[:end]]) < 0:
                return -1
            name = path[end + 1 :]
        try:
            return _step(above, name, path, flags)
        except OSError as e:
            self.confirms(e, path)  # the walk of the whole path says what is wrong
            return -1

    def confirms(self, error: OSError, path: str) -> bool:
        """Whether the error of a call in the directory of ``path`` is that of the call by the path.

        If not, nothing is held from now on.
        """
        # "There is one" and "there is none" are answers that callers act upon. They count only if the
        # path still leads to the directory of the series; every other error is met again by the walk,
        # which names its cause.
        if isinstance(error, (FileExistsError, FileNotFoundError)):
            directory = path[: path.rfind(os.sep)]
            with contextlib.suppress(OSError):
                status = self.status(directory)
                if status is not None and os.path.samestat(os.stat(directory), status):
                    return True
        self.end()
        return False

    def end(self) -> None:
        """Hold nothing any more."""
        self.clear()
        self.statuses.clear()
        own, self._own = self._own, []
        for fd in own:
            os.close(fd)

    def note_moved(self, path: str) -> None:
        """Another file has that name by now, or none."""
        # What is below goes as well: a held descriptor would still lead into the directory that was
        # moved away.
        if path in self:
            below = path + os.sep
            for held in [held for held in self if held == path or held.startswith(below)]:
                del self[held]
                self.statuses.pop(held, None)

    def abandon(self) -> None:
        """In a forked child: the numbers are the parent's."""
        self.clear()
        self.statuses.clear()
        self._own.clear()
        if self._outer is not None:
            self._outer.abandon()


_series: Final[ContextVar[_Series | None]] = ContextVar("embeddedpulsar_directories", default=None)


class _ForkHook:
    def after_fork_in_child(self) -> None:
        series = _series.get()  # of the thread that forks: a signal handler of its may
        if series is not None:
            series.abandon()


_hook: Final = _ForkHook()
fork.register(_hook)


def within(directory: str, function: Callable[..., R], *arguments: object) -> R:
    """Call ``function(*arguments)``. The calls of this module that it makes for what is in ``directory``, or
    below, prove once that no link leads there.

    The directories that they use stay open until it returns, so what is renamed meanwhile is found where it
    was: one series is one attempt, and a loop that begins anew begins another, or calls `end_series`. A
    call that fails is made again by its path, unless that leads to the same directory. Inside of a series
    that has the directory, it goes on with that. Where the directory cannot be opened, each call finds out by
    itself.

    Args:
        directory: a canonical path.
        function, arguments: what to call.

    Example:
        >>> within("/usr", status, "/usr/bin") == status("/usr/bin")
        True
    """
    # Nested: the outer series is used where it has the directory, so a series within a series opens
    # nothing.
    series = _series.get()
    if series is not None and series[directory] >= 0:
        return function(*arguments)
    # What is wrong with the directory is said by the first call that needs it.
    try:
        fd = open_directory(directory, os.O_RDONLY)
    except OSError:
        return function(*arguments)
    return _run(_Series(directory, fd, is_own=True), function, arguments)


def within_open(directory: str, fd: int, function: Callable[..., R], *arguments: object) -> R:
    """As `within`, with a descriptor of the directory that is read, and proved; it stays the caller's."""
    return _run(_Series(directory, fd, is_own=False), function, arguments)


def end_series() -> None:
    """Let the rest of the present series go by paths: a directory that it holds is found to be renamed."""
    series = _series.get()
    if series is not None:
        series.end()


def _run(series: _Series, function: Callable[..., R], arguments: tuple[object, ...]) -> R:
    # The context goes with the call, so a signal handler or a callback on another thread has no part
    # in the series.
    try:
        context = copy_context()
        context.run(_series.set, series)
        return context.run(function, *arguments)  # entered and left in C: no interrupt leaves it behind
    finally:
        series.end()


def open_directory(path: str, flags: int = _SEARCH) -> int:
    """A descriptor of the directory ``path``, by default one to be used as ``dir_fd`` only.

    Raises:
        StorageOSError: a part of the path is a symbolic link.
        OSError: it is not there, no directory, or not to be opened.
    """
    # Relative to the series, or opened by its path and proved by its name, or walked. Each way is
    # slower and says more.
    series = _series.get()
    if series is not None:
        fd = series.opened(path, flags | _DIRECTORY)
        if fd >= 0:
            return fd
    try:
        fd = os.open(path, flags | _DIRECTORY)
    # A link in the last part is ENOTDIR or ELOOP by O_DIRECTORY and O_NOFOLLOW; one further up is
    # followed, and noticed by the name.
    except NotADirectoryError:
        return _walk(path, flags)  # which says whether it is a link
    except OSError as e:
        if e.errno not in LINK_CODES:
            raise
        return _walk(path, flags)
    if _is_at(fd, path):
        return fd
    os.close(fd)
    return _walk(path, flags)


def _is_at(fd: int, path: str) -> bool:
    """Whether the open file has that path, links followed. False also where the system does not say."""
    return name_of(fd) == path


def _walk(path: str, flags: int) -> int:
    """`open_directory` step by step."""
    # One descriptor at a time: the next part is opened relative to it, without following.
    fd = os.open(os.sep, _STEP)
    at = ""
    try:
        parts = [part for part in absolute(path).split(os.sep) if part not in ("", os.curdir)]
        for number, part in enumerate(parts, 1):
            at = f"{at}{os.sep}{part}"
            below = _step(fd, part, at, flags | _DIRECTORY if number == len(parts) else _STEP)
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd


def _step(fd: int, part: str, path: str, flags: int) -> int:
    # ``..`` is resolved by the kernel to whatever is above by now, so it could leave the store
    # without any link.
    if part == os.pardir:
        raise StorageOSError(
            path=path,
            reason="a path in a store leads upwards",
            remedy="run a check of the store: one of its files names another directory",
            errno=errno.EINVAL,
        )
    try:
        return os.open(part, flags, dir_fd=fd)
    # Which error a link gives depends on the flags, so the part itself is looked at.
    except OSError as e:
        if (e.errno == errno.ENOTDIR or e.errno in LINK_CODES) and modes.S_ISLNK(
            os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode
        ):
            raise link_error(path) from None
        e.filename = path
        raise


def absolute(path: str) -> str:
    """``path`` below the working directory, if it is relative."""
    return path if path.startswith(os.sep) else os.path.join(os.getcwd(), path)


def split(path: str) -> tuple[str, str]:
    """The directory and the name of ``path``."""
    if path[:1] != os.sep:
        path = absolute(path)
    end = path.rfind(os.sep)
    return path[:end] or os.sep, path[end + 1 :]


def parent(path: str) -> tuple[int, str]:
    """A descriptor of the directory of ``path``, to be closed by the caller, and the name in it."""
    directory, name = split(path)
    return open_directory(directory), name


def named(above: int, name: str) -> int:
    """A descriptor that only names a file of a directory, whatever it is."""
    return os.open(name, _NAMING | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)


def open_file(path: str, flags: int, mode: int = 0o600) -> int:
    """``os.open`` of a file. ``flags`` should have ``O_NOFOLLOW`` and, for what may be a FIFO,
    ``O_NONBLOCK``."""
    series = _series.get()
    if series is not None:  # as in `_beside`, without its call: an opening of a store makes a dozen of these
        end = path.rfind(os.sep)
        above = series[path[:end]]
        if above >= 0:
            try:
                return os.open(path[end + 1 :], flags, mode, dir_fd=above)
            except OSError as e:
                if series.confirms(e, path):
                    e.filename = path
                    raise
    # The name of the opened file is one call in the place of an opening of its directory. A file that
    # is to be made cannot be opened first: its directory has to be proved before.
    if not flags & os.O_CREAT:
        # Nothing is made and nothing is read: so the file itself is opened, and its own name tells the rest.
        fd = os.open(path, flags)
        try:
            name = os.readlink(f"{_OPEN_NAME}{fd}")
        except OSError:
            name = _name_elsewhere(fd)
        # Deleted and replaced meanwhile is right as well: it was the file of that name when it was
        # opened.
        if name in (path, path + _DELETED):  # of which another process has put a newer one in its place
            return fd
        os.close(fd)
    return _beside(os.open, path, flags, mode)


def status(path: str) -> os.stat_result:
    """``os.lstat``."""
    return _beside(os.stat, path, follow_symlinks=False)


def held_status(path: str) -> os.stat_result | None:
    """`directory_status`, if the present series holds the directory; else None."""
    series = _series.get()
    if series is None or path not in series:
        return None
    return series.statuses.get(path) or series.status(path)


def kind_of(path: str) -> int:
    """What lies at a path, a link being itself meant; `NOTHING` also for what is removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return modes.S_IFMT(status(path).st_mode)
    return NOTHING


def directory_status(path: str) -> os.stat_result:
    """``os.fstat`` of the directory ``path``. Errors are those of `open_directory`."""
    series = _series.get()
    if series is not None and (status := series.status(path)) is not None:
        return status
    fd = open_directory(path)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def names_in(path: str) -> list[str]:
    """``os.listdir``."""
    series = _series.get()
    if series is not None and (fd := series[path]) >= 0:
        # A held directory may have been removed; by the path it may be another one.
        try:
            return os.listdir(fd)
        except OSError:
            series.end()
    fd = open_directory(absolute(path), os.O_RDONLY)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def _beside(call: Callable[..., R], path: str, *args: object, **options: object) -> R:
    """Make a call of ``os`` for a name, relative to its directory. An error names the path."""
    # In the series, then by the path. What the series refuses is not believed where `confirms` says
    # so.
    series = _series.get()
    if series is not None:
        end = path.rfind(os.sep)
        above = series[path[:end]]
        if above >= 0:
            try:
                return call(path[end + 1 :], *args, dir_fd=above, **options)
            except OSError as e:
                if series.confirms(e, path):
                    e.filename = path
                    raise
    directory, name = split(path)
    above = open_directory(directory)
    try:
        return call(name, *args, dir_fd=above, **options)
    except OSError as e:
        e.filename = path
        raise
    finally:
        os.close(above)


def _note_moved(path: str) -> None:
    series = _series.get()
    if series is not None:
        # After the call: a directory of that name is another one from now on.
        series.note_moved(path)


def unlink(path: str) -> None:
    """``os.unlink``: of a link, the link itself."""
    _beside(os.unlink, path)


def rmdir(path: str) -> None:
    """``os.rmdir``."""
    _beside(os.rmdir, path)
    _note_moved(path)


def mkdir(path: str, mode: int) -> None:
    """``os.mkdir``."""
    _beside(os.mkdir, path, mode)
    _note_moved(path)


def mkfifo(path: str, mode: int) -> None:
    """``os.mkfifo``."""
    _beside(os.mkfifo, path, mode)


def utime(path: str, ns: tuple[int, int]) -> None:
    """``os.utime``: of a link, that of the link itself."""
    _beside(os.utime, path, ns=ns, follow_symlinks=False)


def link(src: str, dst: str) -> None:
    """``os.link``, of a file of the same directory."""
    above, name = parent(src)
    try:
        os.link(name, split(dst)[1], src_dir_fd=above, dst_dir_fd=above, follow_symlinks=False)
    except OSError as e:
        e.filename, e.filename2 = src, dst
        raise
    finally:
        os.close(above)


def replace(src: str, dst: str) -> None:
    """``os.replace``."""
    (directory, name), (other, new) = split(src), split(dst)
    series = _series.get()
    if series is not None:
        # Both directories have to be held. A failure ends the series and is tried again by the paths,
        # which name the reason.
        above, beside = series[directory], series[other]
        if above >= 0 and beside >= 0:
            try:
                os.replace(name, new, src_dir_fd=above, dst_dir_fd=beside)
            except OSError:
                series.end()
            else:
                for moved in (src, dst):
                    if moved in series:  # a directory
                        series.note_moved(moved)
                return
    above = open_directory(directory)
    try:
        beside = above if other == directory else open_directory(other)
        try:
            os.replace(name, new, src_dir_fd=above, dst_dir_fd=beside)
        finally:
            if beside != above:
                os.close(beside)
    except OSError as e:
        if not isinstance(e, StorageOSError):
            e.filename, e.filename2 = src, dst
        raise
    finally:
        os.close(above)


class Listing(NamedTuple):
    """What is in a directory, by names.

    Attributes:
        path: of the directory.
        directories, links: names of those in it.
        files: names of all else.
    """

    path: str
    directories: list[str]
    links: list[str]
    files: list[str]


def tree(path: str, but: str = "") -> Iterator[Listing]:
    """As ``os.walk``, from the bottom up. What goes meanwhile is left out; so is the directory ``but``."""
    # Names first, then the directory is closed, then what is below: the depth of a tree is not a
    # number of descriptors.
    listing = Listing(path, [], [], [])
    with contextlib.suppress(FileNotFoundError):
        fd = open_directory(absolute(path), os.O_RDONLY)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        listing.directories.append(entry.name)
                    else:
                        (listing.links if entry.is_symlink() else listing.files).append(entry.name)
        finally:
            os.close(fd)
    for name in listing.directories:
        if f"{path}{os.sep}{name}" != but:
            yield from tree(f"{path}{os.sep}{name}", but)
    yield listing
