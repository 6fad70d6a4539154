"""The other processes of the store: ringing them, probing them, and removing what the dead left."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from _signal import getsignal  # type: ignore[import-not-found]  # a tenth of signal.getsignal's cost
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from embeddedpulsar.platform import descriptors, fork
from embeddedpulsar.platform.natives import system
from embeddedpulsar.platform.processes import lease
from embeddedpulsar.platform.processes.mailbox import Mailbox
from embeddedpulsar.platform.threads import RLock

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
        """Where some that are attached are, for the text of an error; see `lock_holders.described`."""
        late = descriptors.late_import("embeddedpulsar.platform.processes.lock_holders")
        text: str = late.described(holders, self._mailbox.uuid, self._clients_dir)
        return text

    def ring(self, uuid: bytes) -> bool:
        """Wake the process that holds lease ``uuid``. Call it after releasing the lock that guards the
        change.

        Returns:
            False when it is gone, or cannot be reached: the caller must wake another.
        """
        if uuid == self._mailbox.uuid:
            self._mailbox.ring_self()
            return True
        try:
            self._lock.acquire()
            bell = self._bells.get(uuid)
            if bell is not None:
                fd, is_fifo = bell
                if is_fifo and getsignal(_SIGPIPE) != signal.SIG_DFL:
                    try:
                        system.write(fd, b"\1")  # as `_ring_bell`, without its call
                        self._bells.move_to_end(uuid)
                        return True
                    except BlockingIOError:
                        return True
                    except BrokenPipeError:
                        self._forget(uuid)  # it is dead, or has made its FIFO again
                elif _ring_bell(fd, is_fifo):
                    self._bells.move_to_end(uuid)
                    return True
                else:
                    self._forget(uuid)
            bell = self._open(uuid)
            if bell is None:
                return False
            if _ring_bell(bell[0], bell[1]):
                return True
            self._forget(uuid)
            return False
        finally:
            self._lock.release()

    def _forget(self, uuid: bytes) -> None:
        fd, _ = self._bells.pop(uuid)
        os.close(fd)

    def _open(self, uuid: bytes) -> tuple[int, bool] | None:
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
        descriptors.late_import("embeddedpulsar.platform.processes.polling_doorbell").ring_file(fd)
        return True
    try:
        if _SIGPIPE is not None and getsignal(_SIGPIPE) == signal.SIG_DFL:
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
