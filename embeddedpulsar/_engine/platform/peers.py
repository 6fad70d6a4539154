"""The other processes of the store: ringing them, probing them, and removing what the dead left.

Which process holds a lock, as far as the system tells: for people who look, never for a decision.

How a process that only looks at a store waits: no other process knows of it, so none wakes it.
"""

from __future__ import annotations

# `signal` makes enumerations of it, which takes as long as a large module, and its `getsignal` ten times as
# long.
import _signal as signal  # type: ignore[import-not-found]
import contextlib
import os
import stat
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence

from embeddedpulsar._engine.platform import descriptors, fork, lease, nofollow
from embeddedpulsar._engine.platform.doorbell import ring_file
from embeddedpulsar._engine.platform.lease import Liveness, OnlookerLiveness
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.threads import RLock, system
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

_OPEN_BELLS_MAX: Final = 64
_SIGPIPE: Final = getattr(signal, "SIGPIPE", None)


class Peers:
    """Write ends of the doorbells of other processes.

    Role: `ring` after a change, `is_alive` before believing what a process left in a shared structure.
    Invariants: at most 64 descriptors are kept, the least recently rung goes first; a descriptor is written
    to only under the lock that closing it takes, so a byte never lands in an unrelated file that reused its
    number.
    Callers: any thread. After a fork the child's copy starts empty.
    """

    def __init__(self, clients_dir: str | os.PathLike[str], mailbox: Mailbox) -> None:
        self._clients_dir = os.fspath(clients_dir)
        self._mailbox = mailbox
        self._lock = RLock()  # guards _bells and every write to a descriptor in it
        self._bells: OrderedDict[bytes, tuple[int, bool]] = OrderedDict()  # uuid -> descriptor, is a FIFO
        fork.register(self)

    def described(self, holders: Sequence[lease.Holder]) -> str:
        """Where some that are attached are, for the text of an error."""
        return described(holders, self._mailbox.uuid, self._clients_dir)

    def ring(self, uuid: bytes) -> bool:
        """Wake the process that holds lease ``uuid``. Call it after releasing the lock that guards the
        change.

        Returns:
            False when it is gone, or cannot be reached: the caller must wake another.
        """
        if uuid == self._mailbox.uuid:
            self._mailbox.ring_self()
            return True
        # One lock for the table and for the write: a descriptor that another thread closes cannot be
        # written to.
        try:
            self._lock.acquire()
            bell = self._bells.get(uuid)
            if bell is not None:
                fd, is_fifo = bell
                # Python ignores SIGPIPE unless the program restored it, so the usual case is one
                # write.
                if is_fifo and signal.getsignal(_SIGPIPE) != signal.SIG_DFL:
                    try:
                        system.write(fd, b"\1")  # as `_ring_bell`, without its call
                        self._bells.move_to_end(uuid)
                        return True
                    except BlockingIOError:
                        return True
                    # Opened again below, once: a process that made its FIFO again has a new file
                    # under the same name.
                    except BrokenPipeError:
                        self._close_bell(uuid)  # it is dead, or has made its FIFO again
                elif _ring_bell(fd, is_fifo):
                    self._bells.move_to_end(uuid)
                    return True
                else:
                    self._close_bell(uuid)
            bell = self._open(uuid)
            if bell is None:
                return False
            if _ring_bell(bell[0], bell[1]):
                return True
            self._close_bell(uuid)
            return False
        finally:
            self._lock.release()

    def _close_bell(self, uuid: bytes) -> None:
        fd, _ = self._bells.pop(uuid)
        os.close(fd)

    def _open(self, uuid: bytes) -> tuple[int, bool] | None:
        # Closed under the lock, so no write goes to a number that the system gives away.
        while len(self._bells) >= _OPEN_BELLS_MAX:
            _, (oldest, _) = self._bells.popitem(last=False)
            os.close(oldest)
        try:
            fd = lease.open_for_writing(lease.lease_path(self._clients_dir, uuid))
        except OSError:
            return None  # out of descriptors, perhaps; if it lives, it looks for itself before long
        if fd < 0:
            return None
        bell = self._bells[uuid] = (fd, stat.S_ISFIFO(os.fstat(fd).st_mode))
        return bell

    def ring_all(self) -> None:
        """Wake every process of the store, for rare events that may concern any of them."""
        for name in self._names():
            if len(name) == lease.HEX_LENGTH:
                with contextlib.suppress(ValueError):  # not one of ours
                    self.ring(bytes.fromhex(name))

    def _names(self) -> list[str]:
        """The names in the directory; none while it is missing, which a cleaner may have removed."""
        with contextlib.suppress(FileNotFoundError):
            return descriptors.names_in(self._clients_dir)
        return []

    def is_alive(self, uuid: bytes) -> bool:
        """Whether the process that holds lease ``uuid`` lives: the kernel's word, about 4 us."""
        if uuid == self._mailbox.uuid:
            return True
        return self._mailbox.liveness.is_alive(uuid)

    def has_others(self) -> bool:
        """Whether there are other doorbells, of living or dead processes."""
        return self._names() != [self._mailbox.uuid.hex()]

    def sweep(self) -> int:
        """Remove the doorbells of dead processes; returns how many. Any process may do it at any time."""
        removed = 0
        for name in self._names():
            if len(name.removesuffix(lease.BUILDING)) != lease.HEX_LENGTH or name == self._mailbox.uuid.hex():
                continue
            path = f"{self._clients_dir}/{name}"
            with contextlib.suppress(OSError):
                # Asked from the writing side first: a second reader could hide the death of a living owner.
                removed += not lease.is_held(path) and lease.remove_if_orphan(path)
        return removed

    def close(self) -> None:
        try:
            self._lock.acquire()
            while self._bells:
                _, (fd, _) = self._bells.popitem()
                os.close(fd)
        finally:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Start empty: the inherited lock may be held by a thread that does not exist here."""
        self._lock = RLock()
        self.close()


def _ring_bell(fd: int, is_fifo: bool) -> bool:
    """Write one byte into the FIFO at ``fd``; False when it will never be read."""
    if not is_fifo:
        if lease.is_free(fd):
            return False
        ring_file(fd)
        return True
    try:
        if _SIGPIPE is not None and signal.getsignal(_SIGPIPE) == signal.SIG_DFL:
            _write_without_sigpipe(fd)
        else:
            system.write(fd, b"\1")
    except BlockingIOError:
        return True  # full: it has been rung and has yet to look
    except BrokenPipeError:
        return False
    return True


def _write_without_sigpipe(fd: int) -> None:
    """Write for programs that restored the default action of SIGPIPE, as command-line tools do: ringing one
    process that has just died must not kill this one."""
    mask = {signal.SIGPIPE}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, mask)
    try:
        system.write(fd, b"\1")
    except BrokenPipeError:
        signal.sigtimedwait(mask, 0)  # the signal is pending for this thread: take it
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_ID_SIZE: Final = 16


class ProcessFacts(NamedTuple):
    """A process. `pid` is 0 and `program` empty where the system does not tell, as of another container."""

    pid: int = 0
    program: str = ""


_FEW: Final = 3


def described(holders: Sequence[lease.Holder], own: bytes, clients: str) -> str:
    """Where the first of those are that are attached, for the text of an error.

    Args:
        holders: what is attached.
        own: the lease of this process.
        clients: the directory of the leases. It is read only if one is of another process.

    Example:
        >>> from embeddedpulsar._engine.platform import lease
        >>> one, two = lease.Holder("a", b"1" * 16, "MainThread"), lease.Holder("b", b"2" * 16)
        >>> described([one, two], b"1" * 16, "")
        "'a' by the thread 'MainThread' of this very process, 'b' by another process"
    """
    few = holders[:_FEW]
    is_here = all(holder.client_uuid == own for holder in few)
    processes = {} if is_here else lease_holders(clients)
    texts = []
    for name, uuid, thread in few:
        process = processes.get(uuid, ProcessFacts())
        if uuid == own:
            place = f"the thread {thread!r} of this very process" if thread else "this very process"
        elif process.pid:
            place = f"process {process.pid}" + (f" ({process.program})" if process.program else "")
        else:
            place = "another process"
        texts.append(f"{name!r} by {place}")
    more = len(holders) - len(few)
    return ", ".join(texts) + (f" and {more} more" if more else "")


def lease_holders(clients: str, is_alive: Callable[[bytes], bool] | None = None) -> dict[bytes, ProcessFacts]:
    """The processes that live, by the ids of their leases in a directory; reads ``/proc/locks`` or, where
    there is none, what the leases name, and asks ``ps`` for the programs.

    The lease of a process that was killed stays until another one removes it; it is left out.

    Args:
        clients: the directory.
        is_alive: whether the process of a lease lives, as `Peers.is_alive`; by default its lease tells, which
            needs the right to write to it.
    """
    holders = _holders()
    others: dict[bytes, int] = {}
    processes: dict[bytes, ProcessFacts] = {}
    for name in descriptors.names_in(clients) if os.path.isdir(clients) else ():
        try:
            uuid, path = bytes.fromhex(name), os.path.join(clients, name)
            status = nofollow.status(path)
            is_lease = len(uuid) == _ID_SIZE
            if not is_lease or not (lease.is_held(path) if is_alive is None else is_alive(uuid)):
                continue
        except (ValueError, OSError):
            continue  # a leftover, or gone meanwhile
        if holders is None:
            others[uuid] = _named_in(path)
            continue
        pid = _holder_of(status, holders)
        processes[uuid] = ProcessFacts(pid, _program(pid) if pid else "")
    if others:
        programs = _programs({pid for pid in others.values() if pid})
        processes |= {uuid: ProcessFacts(pid, programs.get(pid, "")) for uuid, pid in others.items()}
    return processes


def _named_in(path: str) -> int:
    """The pid that a plain lease names; 0 if it is none, or not to be read."""
    fd = -1
    try:
        fd = lease.open_for_reading(path) if nofollow.kind_of(path) == nofollow.FILE else -1
        return lease.owner_of(fd) if fd >= 0 else 0
    except OSError:
        return 0
    finally:
        if fd >= 0:
            os.close(fd)


def _programs(pids: set[int]) -> dict[int, str]:
    """As `_program`, of several processes, where there is no ``/proc``: what the program ``ps`` prints."""
    lines = listed_processes("args=", pids)
    return {pid: _shortened(text.split()) for pid, text in lines.items()}


def listed_processes(column: str, pids: set[int]) -> dict[int, str]:
    """What ``ps`` prints of processes, by their pids; nothing of those that are gone, or if it is missing."""
    import subprocess  # here and not above: 10 ms, and never needed on Linux

    if not pids:
        return {}
    command = ["ps", "-o", "pid=", "-o", column, "-p", ",".join(map(str, sorted(pids)))]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = [line.split(None, 1) for line in answer.stdout.decode(errors="replace").splitlines()]
    return {int(line[0]): line[1].strip() for line in lines if len(line) == 2 and line[0].isdigit()}


def _holder_of(status: os.stat_result, holders: Mapping[tuple[int, int], int]) -> int:
    """The pid of the process that holds a lock on a file; 0 if it is unknown.

    Inodes of different file systems may be equal. Some (btrfs, overlayfs) show other devices in
    ``/proc/locks`` than in a file's status: there no lock has the device of the file, and the inode alone is
    compared.
    """
    if any(device == status.st_dev for device, _ in holders):
        return holders.get((status.st_dev, status.st_ino), 0)
    pids = {pid for (_, inode), pid in holders.items() if inode == status.st_ino}
    # An inode that several processes lock, by different devices, says nothing: 0 rather than a guess.
    return pids.pop() if len(pids) == 1 else 0


def _holders() -> dict[tuple[int, int], int] | None:
    """The pids of those that hold an exclusive ``flock``, by the device and the inode of the file; None where
    the system does not list them."""
    pids: dict[tuple[int, int], int] = {}
    try:
        with open("/proc/locks", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()  # "7: FLOCK ADVISORY WRITE 4711 08:01:393217 0 EOF"; waiters have "->"
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[3] == "WRITE":
            major, minor, inode = fields[5].split(":")
            pids[os.makedev(int(major, 16), int(minor, 16)), int(inode)] = int(fields[4])
    return pids


def _program(pid: int) -> str:
    """The program of a process and its first words, without the interpreter's options."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            parts = [part.decode(errors="replace") for part in file.read().split(b"\0") if part]
    except OSError:
        return ""
    return _shortened(parts)


def _shortened(parts: list[str]) -> str:
    if not parts:
        return ""
    # Options of the interpreter come first; those with a value of their own are two words. ``-c`` is
    # a program text, which may hold secrets, so only the option is shown.
    rest = parts[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    if rest and rest[0] == "-c":
        rest = ["-c"]
    elif rest and rest[0] != "-m":
        rest = [os.path.basename(rest[0])]
    return " ".join([os.path.basename(parts[0]), *rest[:2]])


_LONGEST_NAP_S: Final = 1.0


class OnlookerDoorbell:
    """Same contract as `FifoDoorbell`, without a file: only threads of this process ring it.

    Role: the doorbell of a store that is open read-only. Its waiters look for themselves now and then
    (`TailWait.must_poll`).
    """

    loop_fd: Final = -1

    def __init__(self, liveness: Liveness) -> None:
        self.uuid = os.urandom(16)
        self.path = ""
        self.dead: deque[bytes] = deque()
        self.liveness = liveness
        self._bell: Final = system.allocate_lock()  # locked as long as it is not rung
        self._bell.acquire()
        self._is_closed = False

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has been rung, and no thread has looked yet
            self._bell.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until it is rung; False after the timeout."""
        if self._is_closed:
            return False
        return bool(self._bell.acquire(timeout=_LONGEST_NAP_S if timeout_s is None else max(0.0, timeout_s)))

    def watch(self, uuid: bytes) -> bool:
        return self.liveness.is_alive(uuid)

    def unwatch(self, uuid: bytes) -> None:
        """Do nothing."""

    def mend(self) -> bool:
        return False

    def close(self) -> None:
        self._is_closed = True
        self.abandon()

    def abandon(self) -> None:
        self.liveness.close()


def onlooker_mailbox(clients_dir: str, roll: str) -> Mailbox:
    """The mailbox of a process that only looks at a store.

    Args:
        clients_dir: the directory of leases.
        roll: the file in which processes show that they live; see `Liveness`.
    """
    return Mailbox(OnlookerDoorbell(OnlookerLiveness(clients_dir, roll)))
