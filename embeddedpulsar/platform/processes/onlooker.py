"""How a process that only looks at a store waits: no other process knows of it, so none wakes it."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Final

from embeddedpulsar.platform.natives import system
from embeddedpulsar.platform.processes.lease import Liveness, OnlookerLiveness
from embeddedpulsar.platform.processes.mailbox import Mailbox

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
