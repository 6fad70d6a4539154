"""One FIFO per process: doorbell, lease and the place where deaths of other processes are seen.

* The owner opens its FIFO for reading (non-blocking) and keeps a writer of its own, so that it never sees
  the end of file. Others open it for writing and send one byte; a full FIFO is a rung bell.
* The owner holds ``flock`` on the reading descriptor for its life: the lease (see `lease`).
* A process that wants to know of another's death keeps the other's FIFO open for writing and polls it for
  nothing: the kernel reports POLLERR as soon as the last reader is gone, about 1 ms after SIGKILL.

epoll takes registrations while another thread sleeps in it, and is itself a descriptor an asyncio loop can
watch; with poll() the sleeper must be rung to see a new descriptor.

The doorbell where FIFOs do not exist, or cannot be locked: a small file that is written to ring it. Of the
systems with FIFOs, Linux alone locks them; on macOS and the BSDs ``flock`` refuses one.

* With kqueue, the kernel wakes the owner when the file is written, and tells of the end of other processes.
* Without, the owner reads the file from time to time: every 50 us at first, every 20 ms after a tenth of a
  second of silence. This is slower, and not quite free when idle, but needs nothing but files and ``flock``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections import deque

from embeddedpulsar._engine.platform import descriptors, disk, filesystem, lease, nofollow
from embeddedpulsar._engine.platform.lease import Liveness
from embeddedpulsar._engine.platform.threads import RLock, system
from embeddedpulsar.exceptions import DescriptorLimitError
from embeddedpulsar.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Any, Final, Self

_READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_PIPE_CAPACITY: Final = 65536
# The numbers of poll and epoll; eventlet removes the names.
_POLLIN: Final = 1
_POLLNVAL: Final = 32
_CREATE_ATTEMPTS: Final = 100
_CLOSING_S: Final = 2e-4
_CLOSING_LOOKS: Final = 15
"""So often, at this interval, a process is looked at whose FIFO is gone: one that dies gives its descriptors
up one after the other, and the FIFO may go before its lease."""


class Poller(Protocol):
    """What the doorbell needs of ``select.epoll``, which reports errors (a dead reader) unasked."""

    def register(self, fd: int, mask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout_s: float | None, /) -> list[tuple[int, int]]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class PollPoller:
    """poll() over a copy of the registrations; `fileno` is -1, there is nothing to watch from outside."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}

    def register(self, fd: int, mask: int) -> None:
        self._masks[fd] = mask

    def unregister(self, fd: int) -> None:
        self._masks.pop(fd, None)

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        if system.poll is None:
            return self._select(timeout_s)
        sleeper = system.poll()
        for fd, mask in list(self._masks.items()):
            sleeper.register(fd, mask)
        # Rounded up: a wait that ends early would spin through its last millisecond.
        events = sleeper.poll(None if timeout_s is None else -int(-timeout_s * 1000 // 1))
        return [(fd, event) for fd, event in events if not event & _POLLNVAL]

    def _select(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """For eventlet, which has nothing else. It reports no errors: deaths are found by the looks that each
        process takes now and then."""
        wanted = [fd for fd, mask in list(self._masks.items()) if mask & _POLLIN]
        readable, _, _ = system.select(wanted, [], [], timeout_s)
        return [(fd, _POLLIN) for fd in readable]

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._masks.clear()


def make_poller() -> Poller:
    """The best poller of this platform."""
    return system.epoll() if system.epoll is not None else PollPoller()


def _open(path: str, flags: int) -> int:
    return descriptors.opening(f"cannot open the doorbell {path}", nofollow.open_file, path, flags)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the whole store may be gone
        descriptors.calling(f"cannot remove {path}", nofollow.unlink, path)


def _make(path: str, rights: disk.Rights, undo: contextlib.ExitStack) -> tuple[int, int] | None:
    """Make a FIFO, open both ends and lock it; None when a sweeper was faster. ``undo`` removes it again."""
    # Order: the name, its rights, the reader, the lock, the writer. Between the name and the lock a
    # sweeper sees an orphan and may remove it; each of these steps notices, and the caller begins
    # again under another name.
    descriptors.calling(f"cannot create the doorbell {path}", nofollow.mkfifo, path, rights.file_mode)
    undo.callback(_unlink, path)
    try:
        disk.grant_fifo(path, rights)
        reader = _open(path, _READ_FLAGS)
    except FileNotFoundError:
        return None  # a sweeper took it for an orphan between mkfifo and open
    undo.callback(os.close, reader)
    # `try_hold` also compares the file with its name: a lock on a FIFO whose name was removed would
    # keep nothing alive.
    if not stat.S_ISFIFO(os.fstat(reader).st_mode) or not lease.try_hold(reader, path):
        return None  # a sweeper took it for an orphan between mkfifo and flock
    writer = _open(path, _WRITE_FLAGS)
    undo.callback(os.close, writer)
    return reader, writer


class FifoDoorbell:
    """The FIFO of this process.

    Invariants: the reading descriptor carries the lease from creation until `close`; every watched
    descriptor is open for writing only and is in ``_watched`` exactly while it is registered with the
    poller.
    Callers: `wait` one thread at a time (a second one loses no ring, it only sleeps longer);
    everything else any thread.
    """

    def __init__(
        self, path: str, uuid: bytes, reader: int, writer: int, poller: Poller, liveness: Liveness
    ) -> None:
        self.path = path
        self.uuid = uuid
        self._clients_dir = os.path.dirname(path)
        self._reader = reader
        self._writer = writer
        self._poller = poller
        self.liveness = liveness
        self._home = lease.identity(os.path.dirname(self._clients_dir))
        self._lock = RLock()  # guards _watched and _descriptors together with the poller's registrations
        self._watched: dict[int, bytes] = {}
        self._descriptors: dict[bytes, int] = {}
        self._blind: set[bytes] = set()  # watched as well; they live, and have no FIFO at present
        self.dead: deque[bytes] = deque()  # filled by `wait`, emptied by the mailbox
        self._is_whole = True  # both ends are of one FIFO, and the poller watches it
        poller.register(reader, _POLLIN)

    @classmethod
    def create(cls, clients_dir: str, liveness: Liveness | None = None) -> FifoDoorbell:
        """Make the FIFO and take its lease.

        Raises:
            DescriptorLimitError: no descriptors are left; no FIFO is left either.
            OSError: FIFOs are not available here (callers fall back to polling), or the directory is not
                writable.
        """
        rights = disk.rights_in(clients_dir)
        liveness = liveness or Liveness(clients_dir)
        # The byte on ``store.ctl`` is locked first. From the moment the name appears there is proof
        # that its owner lives.
        for _ in range(_CREATE_ATTEMPTS):
            uuid = os.urandom(16)
            path = lease.lease_path(clients_dir, uuid)
            liveness.hold(uuid)
            with contextlib.ExitStack() as undo:
                ends = _make(path, rights, undo)
                if ends is None:
                    continue
                poller = descriptors.opening(f"cannot watch {path}", make_poller)
                undo.callback(poller.close)
                liveness.raise_above(ends[0])
                bell = cls(path, uuid, *ends, poller, liveness)
                undo.pop_all()
                return bell
        raise OSError(f"no lease could be taken in {clients_dir}: something keeps locking new files there")

    @property
    def loop_fd(self) -> int:
        """A descriptor that is readable while a ring or a death is pending; for `loop.add_reader`."""
        # epoll is itself a descriptor, which becomes readable for deaths too. Without it a loop
        # watches the FIFO alone.
        fd = self._poller.fileno()
        return self._reader if fd < 0 else fd

    def ring(self) -> None:
        """Make `wait` return, now or next time."""
        try:
            self._lock.acquire()  # not while `close` may give the descriptor's number away
            if self._writer >= 0:
                system.write(self._writer, b"\1")
        except (BlockingIOError, BrokenPipeError):
            return  # full: already rung; or an interrupt left the end of an old FIFO, until `mend`
        finally:
            self._lock.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until rung, a watched process died (see `dead`), or the timeout; no CPU is used meanwhile.

        Returns:
            Whether there is news.
        """
        news = False
        # The own FIFO is emptied at once: several rings are one piece of news. Every other descriptor
        # is registered for nothing, so only an error (no reader is left) can be reported for it.
        for fd, _ in self._poller.poll(timeout_s):
            if fd == self._reader:
                try:
                    news = bool(system.read(fd, _PIPE_CAPACITY)) or news
                except BlockingIOError:
                    continue  # another thread or loop of this process was faster
            else:
                news = self._confirm(fd) or news
        return (bool(self._blind) and self._look_at_blind()) or news

    def _confirm(self, fd: int) -> bool:
        """Handle the end of the last reader of ``fd``: the process is dead, or has made its FIFO again."""
        try:
            self._lock.acquire()
            # `unwatch` may have closed the descriptor between `poll` and this lock.
            uuid = self._watched.get(fd)
            if uuid is None:
                return False
            if not lease.is_free(fd):
                # Someone sweeps it this very moment, or the number was closed and reused while we slept.
                system.sleep(0.001)
                return False
            # No reader and yet alive: the process made its FIFO again, or is dying and has closed
            # this descriptor before its lease. `_stays_alive` waits up to 3 ms to tell the two apart.
            if self._is_alive(uuid, fd) and self._stays_alive(uuid, fd):
                self._drop(uuid)
                self._begin_to_watch(uuid)
                return False
            self.dead.append(uuid)  # before it is forgotten: an interrupt between must not lose a death
            self._drop(uuid)
            return True
        finally:
            self._lock.release()

    def _stays_alive(self, uuid: bytes, fd: int) -> bool:
        for _ in range(_CLOSING_LOOKS):
            system.sleep(_CLOSING_S)
            if not self._is_alive(uuid, fd):
                return False
        return True

    def _is_alive(self, uuid: bytes, freed: int = -1) -> bool:
        try:
            return self.liveness.is_alive(uuid, freed)
        except OSError:
            return True  # unknown now: asked again

    def _look_at_blind(self) -> bool:
        """Look at processes that had no FIFO: they died, or can be watched now. Returns: whether any died."""
        # These are asked, not watched, so a death is found when a thread next looks.
        is_any_dead = False
        try:
            self._lock.acquire()
            for uuid in list(self._blind):
                if self._is_alive(uuid):
                    self._begin_to_watch(uuid)
                else:
                    self.dead.append(uuid)
                    self._blind.discard(uuid)
                    is_any_dead = True
        finally:
            self._lock.release()
        return is_any_dead

    def watch(self, uuid: bytes) -> bool:
        """Report the death of ``uuid`` in `dead`. False when it is dead already; then nothing is reported.

        Raises:
            OSError: it cannot be watched (EMFILE); that says nothing about its life.
        """
        try:
            self._lock.acquire()
            # Alive is asked before watching. A process that dies between the two is reported by the
            # poll, or counts as one without a FIFO and is asked for again.
            if uuid in self._descriptors or uuid in self._blind:
                return True
            if not self.liveness.is_alive(uuid):
                return False
            self._begin_to_watch(uuid)
        finally:
            self._lock.release()
        if self._poller.fileno() < 0:
            self.ring()  # a plain poll() has a fixed list: have it taken anew
        return True

    def _begin_to_watch(self, uuid: bytes) -> None:
        """Have the kernel report the death of a process; while it has no FIFO, ask now and then."""
        # -1 or a free lease: the name is gone or leads to an orphan. The process lives all the same
        # (its byte says so), and has not made its FIFO again yet.
        fd = lease.open_for_writing(lease.lease_path(self._clients_dir, uuid))
        if fd < 0 or lease.is_free(fd):
            if fd >= 0:
                os.close(fd)
            self._blind.add(uuid)
            return
        self._blind.discard(uuid)
        self._watched[fd] = uuid
        self._descriptors[uuid] = fd
        self._poller.register(fd, 0)

    def mend(self) -> bool:
        """Make the FIFO again if its name was removed, by a cleaner say; under the same name and locked, so
        that it never looks dead. Processes that have the old one open notice, and open the new one.

        Returns:
            Whether there is news: rings may have been lost, or a death was found.
        """
        # The name is compared with the open file by device and inode; the caller decides how often.
        news = bool(self._blind) and self._look_at_blind()
        try:
            self._lock.acquire()
            if self._reader < 0 or (self._is_whole and lease.is_same_file(self._reader, self.path)):
                return news
            return self._make_again() or news
        finally:
            self._lock.release()

    def _make_again(self) -> bool:
        root = os.path.dirname(self._clients_dir)
        building = self.path + lease.BUILDING
        try:
            if lease.identity(root) != self._home:
                return False  # another store is there
            if not os.path.isdir(self._clients_dir):
                filesystem.make_directories(self._clients_dir, None)
            _unlink(building)  # of an interrupted attempt
            with contextlib.ExitStack() as undo:
                ends = _make(building, disk.rights_in(self._clients_dir), undo)
                if ends is None:
                    return False  # tried again
                # 1. The new one gets the name: a process that looks from here on finds it, locked.
                nofollow.replace(building, self.path)
                # 2. Only now the old one loses its reader, which its watchers notice. An interrupt between
                # these steps leaves ends of two FIFOs: all of it is done again.
                self._is_whole = False
                with contextlib.suppress(OSError, KeyError):  # interrupted before it was registered
                    self._poller.unregister(self._reader)
                os.dup2(ends[0], self._reader, inheritable=False)
                os.dup2(ends[1], self._writer, inheritable=False)
                self._poller.register(self._reader, _POLLIN)
                self._is_whole = True
        except OSError:
            return False  # the store was removed, or no descriptor is to be had: tried again
        return True

    def unwatch(self, uuid: bytes) -> None:
        try:
            self._lock.acquire()
            self._blind.discard(uuid)
            self._drop(uuid)
        finally:
            self._lock.release()

    def _drop(self, uuid: bytes) -> None:
        fd = self._descriptors.pop(uuid, -1)
        if fd >= 0:
            del self._watched[fd]
            self._poller.unregister(fd)
            os.close(fd)

    def close(self) -> None:
        """Remove the FIFO, then give up the lease (in this order: no process finds a free lease of a living
        name)."""
        try:
            try:
                _unlink(self.path)
            except DescriptorLimitError:
                self._poller.close()  # the removal needs one descriptor
                _unlink(self.path)
        finally:
            self._close_descriptors()

    def abandon(self) -> None:
        """Close every descriptor and leave the files, in a forked child.

        Nothing is unregistered and nothing unlocked, both would act on the open files of the parent; and the
        inherited lock may be held by a thread that does not exist here.
        """
        self._lock = RLock()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        try:
            self._lock.acquire()
            self._poller.close()
            descriptors = (self._reader, self._writer, *self._watched)
            self._reader = self._writer = -1
            self._watched.clear()
            self._descriptors.clear()
            self._blind.clear()
            # The reader goes with the rest and with it the lease. The kernel reports that to the
            # watchers of this process.
            for fd in descriptors:
                if fd >= 0:
                    os.close(fd)
            self.liveness.close()  # last: a process that finds the lease free asks for this one
        finally:
            self._lock.release()


def open_doorbell(clients_dir: str, roll: str = "") -> FifoDoorbell | PollingDoorbell:
    """The doorbell of this process: a FIFO where one can be locked, or a file, which kqueue watches where it
    is, and which is polled elsewhere."""
    with contextlib.ExitStack() as undo:
        liveness = Liveness(clients_dir, roll)
        undo.callback(liveness.close)
        bell: FifoDoorbell | PollingDoorbell | None = None
        if _CAN_LOCK_FIFOS:
            try:
                bell = FifoDoorbell.create(clients_dir, liveness)
            except (AttributeError, OSError) as e:
                if not means_no_fifos(e):
                    raise
        if bell is None:
            kind = PollingDoorbell if system.kqueue is None else QueueDoorbell
            bell = kind.create(clients_dir, liveness)
        undo.pop_all()
        return bell


_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_SHORTEST_NAP_S: Final = 50e-6
_LONGEST_NAP_S: Final = 0.02
_GROWTH: Final = 1.25
_PROBE_EVERY_S: Final = 0.05
_PROBE_ALL_S: Final = 1.0
"""So often the kernel's word on the processes that live is checked."""
_MOST_EVENTS: Final = 64
_CAN_LOCK_FIFOS: Final = sys.platform in ("linux", "android")
TOKEN_SIZE: Final = lease.TOKEN_SIZE


def means_no_fifos(error: Exception) -> bool:
    """Whether ``error`` of ``mkfifo`` says that this platform or file system has none."""
    if isinstance(error, AttributeError):
        return True
    return isinstance(error, OSError) and error.errno in (
        errno.EPERM,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
    )


def ring_file(fd: int) -> None:
    """Ring the polling doorbell open at ``fd``: any new content will do, so concurrent ringers cannot undo
    one another."""
    os.pwrite(fd, os.urandom(TOKEN_SIZE), 0)


def _make_file(path: str) -> int:
    """Make the file and lock it; -1 when a sweeper was faster."""
    rights = disk.rights_in(os.path.dirname(path))
    # Here the file is the lease: it is made, locked, then given its rights. A sweeper that comes
    # before the lock removes it, and another one is made.
    what = f"cannot create the doorbell {path}"
    fd = descriptors.opening(what, nofollow.open_file, path, _FLAGS, rights.file_mode)
    if lease.try_hold(fd, path):
        disk.grant_file(fd, rights)
        lease.name_owner(fd)
        return fd
    os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        nofollow.unlink(path)
    return -1


class PollingDoorbell:
    """Same contract as `FifoDoorbell`; the file is the lease too.

    Invariants: the file is written to only under the lock that closing it takes, so a ring never lands in an
    unrelated file that reused its number.
    """

    def __init__(self, path: str, uuid: bytes, fd: int, liveness: Liveness) -> None:
        self.path = path
        self.uuid = uuid
        self.dead: deque[bytes] = deque()
        self.liveness = liveness
        self._clients_dir = os.path.dirname(path)
        self._home = lease.identity(os.path.dirname(self._clients_dir))
        self._fd = fd
        self._heard = bytes(TOKEN_SIZE)  # as in a new file
        self._watched: dict[bytes, None] = {}
        self._probed_at = 0.0
        self._owner: Final = os.getpid()
        self._lock = RLock()  # guards the number of the file

    @property
    def loop_fd(self) -> int:
        """Nothing tells a loop of a ring: -1."""
        return -1

    @classmethod
    def create(cls, clients_dir: str, liveness: Liveness | None = None) -> Self:
        liveness = liveness or Liveness(clients_dir)
        while True:
            uuid = os.urandom(16)
            path = lease.lease_path(clients_dir, uuid)
            liveness.hold(uuid)
            fd = _make_file(path)
            if fd >= 0:
                return cls(path, uuid, fd, liveness)

    def ring(self) -> None:
        try:
            self._lock.acquire()
            if self._fd >= 0:
                ring_file(self._fd)
        finally:
            self._lock.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Look, nap, look again, ever more slowly, until there is news or the timeout."""
        deadline = None if timeout_s is None else system.monotonic() + timeout_s
        nap = _SHORTEST_NAP_S
        # From 50 us to 20 ms in steps of a quarter: the longest is reached after 0.1 s of silence. A
        # ring is seen at the latest after the nap under way.
        while self._fd >= 0:
            if self._listen() or self._probe():
                return True
            if deadline is not None:
                remaining_s = deadline - system.monotonic()
                if remaining_s <= 0:
                    return False
                nap = min(nap, remaining_s)
            system.sleep(nap)
            nap = min(nap * _GROWTH, _LONGEST_NAP_S)
        return False

    def _listen(self) -> bool:
        # Random contents and not a counter: two that ring at once need no lock, because any change is
        # a ring.
        token = os.pread(self._fd, TOKEN_SIZE, 0)
        if token == self._heard:
            return False
        self._heard = token
        return True

    def _probe(self) -> bool:
        now = system.monotonic()
        # A probe may have to open files, so it is made every 50 ms at most, however short the naps
        # are.
        if not self._watched or now - self._probed_at < _PROBE_EVERY_S:
            return False
        self._probed_at = now
        gone = [uuid for uuid in list(self._watched) if not self.liveness.is_alive(uuid)]
        self.dead.extend(gone)
        for uuid in gone:
            self._watched.pop(uuid, None)
        return bool(gone)

    def watch(self, uuid: bytes) -> bool:
        if not self.liveness.is_alive(uuid):
            return False
        self._watched[uuid] = None
        return True

    def unwatch(self, uuid: bytes) -> None:
        self._watched.pop(uuid, None)

    def mend(self) -> bool:
        if self._fd < 0 or lease.is_same_file(self._fd, self.path):
            return False
        building = self.path + lease.BUILDING
        try:
            if lease.identity(os.path.dirname(self._clients_dir)) != self._home:
                return False  # another store is there
            filesystem.make_directories(self._clients_dir, None)
            with contextlib.suppress(FileNotFoundError):
                nofollow.unlink(building)
            fd = _make_file(building)
            if fd < 0:
                return False
            nofollow.replace(building, self.path)
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)
        except OSError:
            return False  # the store was removed, or no descriptor is to be had: tried again
        return True

    def close(self) -> None:
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                nofollow.unlink(self.path)
        finally:
            self.abandon()

    def abandon(self) -> None:
        if self._owner != os.getpid():  # a thread that does not exist in this forked child may hold it
            self._lock = RLock()
        try:
            self._lock.acquire()
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
            self.liveness.close()
        finally:
            self._lock.release()


class _Queue:
    """A kqueue. In a forked child there is none, and its number may be that of another file."""

    def __init__(self) -> None:
        self._names: Final = system.polls
        self._kqueue: Final = system.kqueue()
        self._owner: Final = os.getpid()
        self.fd: int = self._kqueue.fileno()

    def watch_file(self, fd: int, what: int) -> None:
        """Tell of the open file, until it is closed. ``what`` are numbers of ``KQ_NOTE_``."""
        names = self._names
        # Cleared when it is reported: else a file that was written once would end every sleep.
        self._change(fd, names.KQ_FILTER_VNODE, names.KQ_EV_ADD | names.KQ_EV_CLEAR, what)

    def watch_process(self, pid: int) -> bool:
        """Tell of the end of a process; False if the system does not know it, or does not tell."""
        names = self._names
        try:
            self._change(pid, names.KQ_FILTER_PROC, names.KQ_EV_ADD | names.KQ_EV_ONESHOT, names.KQ_NOTE_EXIT)
        except OSError as e:
            if descriptors.is_shortage(e):
                raise
            return False
        return True

    def unwatch_process(self, pid: int) -> None:
        """Tell of it no more."""
        with contextlib.suppress(OSError):  # it has ended
            self._change(pid, self._names.KQ_FILTER_PROC, self._names.KQ_EV_DELETE, 0)

    def _change(self, ident: int, kind: int, flags: int, what: int) -> None:
        self._kqueue.control([self._names.kevent(ident, kind, flags, what)], 0, 0)

    def events(self, timeout_s: float | None) -> list[tuple[int, bool]]:
        """Sleep until the kernel reports something: descriptors of files, and pids of processes (True)."""
        kind = self._names.KQ_FILTER_PROC
        return [
            (int(event.ident), event.filter == kind)
            for event in self._kqueue.control(None, _MOST_EVENTS, timeout_s)
        ]

    def close(self) -> None:
        if self._owner == os.getpid():
            self._kqueue.close()
        else:
            _inherited.append(self._kqueue)


_inherited: Final[list[Any]] = []
"""Those of the parent of this process. To end one would close its number, which is another file's here."""


class QueueDoorbell(PollingDoorbell):
    """Same contract as `FifoDoorbell`: kqueue tells when the file is written, when the lease of another
    process is removed (it closed the store), and when a process ends (its lease names the pid).

    What it reports is a hint: `Liveness` has the last word. All leases are looked at once a second in a wait,
    and those of which the kernel does not tell, as of a process in another jail, every 50 ms.

    Invariants: a watched process is in ``_watched``, and in ``_unheard`` if the kernel does not tell of it.
    Callers: as of `FifoDoorbell`.
    """

    def __init__(self, path: str, uuid: bytes, fd: int, liveness: Liveness) -> None:
        super().__init__(path, uuid, fd, liveness)
        self._queue: Final = descriptors.opening(f"cannot watch {path}", _Queue)
        self._leases: dict[bytes, tuple[int, int]] = {}  # of a watched process: its open lease, and its pid
        self._unheard: set[bytes] = set()
        self._asked_at = 0.0
        self._hear_rings()

    def _hear_rings(self) -> None:
        names = system.polls
        self._queue.watch_file(self._fd, names.KQ_NOTE_WRITE | names.KQ_NOTE_EXTEND)

    @property
    def loop_fd(self) -> int:
        """A descriptor that is readable while a ring or a death is pending; for `loop.add_reader`."""
        return self._queue.fd

    def wait(self, timeout_s: float | None) -> bool:
        """As `FifoDoorbell.wait`."""
        deadline = None if timeout_s is None else system.monotonic() + timeout_s
        pause_s: float | None = 0.0
        # The queue first, the file second: a ring between the two is in the queue, and ends the next sleep.
        while self._fd >= 0:
            is_any_dead = self._hear(pause_s)
            if self._listen() or self._probe() or is_any_dead:
                return True
            pause_s = _PROBE_EVERY_S if self._unheard else _PROBE_ALL_S if self._watched else None
            if deadline is not None:
                remaining_s = deadline - system.monotonic()
                if remaining_s <= 0:
                    return False
                pause_s = remaining_s if pause_s is None else min(pause_s, remaining_s)
        return False

    def _hear(self, timeout_s: float | None) -> bool:
        """Sleep until the kernel tells something. Returns whether a process died."""
        is_any_dead = False
        for number, is_pid in self._queue.events(timeout_s):
            if number == self._fd and not is_pid:
                continue  # a ring
            try:
                self._lock.acquire()
                for uuid, numbers in list(self._leases.items()):
                    if number == numbers[is_pid]:
                        is_any_dead = self._confirm(uuid, is_pid) or is_any_dead
            finally:
                self._lock.release()
        return is_any_dead

    def _confirm(self, uuid: bytes, is_pid: bool) -> bool:
        """Whether a process is dead of which the kernel told that it ended, or that its lease was removed."""
        try:
            is_alive = self.liveness.is_alive(uuid)
        except OSError:
            is_alive = True  # unknown now: asked again
        if not is_alive:
            self.dead.append(uuid)  # before it is forgotten: an interrupt between must not lose a death
        self._drop(uuid)
        if is_alive:  # its lease was made again; or the pid is that of another process
            self._watched[uuid] = None
            if is_pid:
                self._unheard.add(uuid)
            else:
                self._begin_to_watch(uuid)
        return not is_alive

    def _probe(self) -> bool:
        now = system.monotonic()
        if self._watched and now - self._probed_at >= _PROBE_ALL_S:
            self._probed_at = self._asked_at = now
            few = list(self._watched)
        elif self._unheard and now - self._asked_at >= _PROBE_EVERY_S:
            self._asked_at = now
            few = list(self._unheard)
        else:
            return False
        is_any_dead = False
        try:
            self._lock.acquire()
            for uuid in few:
                if uuid in self._watched and not self.liveness.is_alive(uuid):
                    self.dead.append(uuid)
                    self._drop(uuid)
                    is_any_dead = True
        finally:
            self._lock.release()
        return is_any_dead

    def watch(self, uuid: bytes) -> bool:
        try:
            self._lock.acquire()
            if uuid in self._watched:
                return True
            if not self.liveness.is_alive(uuid):
                return False
            self._watched[uuid] = None
            self._begin_to_watch(uuid)
            # Asked again: it may have ended, and its pid have gone to another process, before the kernel
            # began to watch.
            if not self.liveness.is_alive(uuid):
                self._drop(uuid)
                return False
        finally:
            self._lock.release()
        if uuid in self._unheard:
            self.ring()  # the thread that sleeps is to look more often
        return True

    def _begin_to_watch(self, uuid: bytes) -> None:
        path = lease.lease_path(self._clients_dir, uuid)
        fd = lease.open_for_reading(path) if nofollow.kind_of(path) == nofollow.FILE else -1
        if fd < 0:
            self._unheard.add(uuid)
            return
        pid = lease.owner_of(fd)
        self._leases[uuid] = fd, pid
        self._queue.watch_file(fd, system.polls.KQ_NOTE_DELETE)
        if not pid or not self._queue.watch_process(pid):
            self._unheard.add(uuid)

    def unwatch(self, uuid: bytes) -> None:
        try:
            self._lock.acquire()
            self._drop(uuid)
        finally:
            self._lock.release()

    def _drop(self, uuid: bytes) -> None:
        self._watched.pop(uuid, None)
        self._unheard.discard(uuid)
        fd, pid = self._leases.pop(uuid, (-1, 0))
        if fd < 0:
            return
        if pid and all(pid != other for _, other in self._leases.values()):
            self._queue.unwatch_process(pid)
        os.close(fd)

    def mend(self) -> bool:
        try:
            self._lock.acquire()
            if not super().mend():
                return False
            self._hear_rings()  # the number leads to another file now
            return True
        finally:
            self._lock.release()

    def abandon(self) -> None:
        super().abandon()
        self._queue.close()
        leases, self._leases = self._leases, {}
        self._watched.clear()
        self._unheard.clear()
        for fd, _ in leases.values():
            os.close(fd)
