"""The order of two processes, planned by a test: one stands at a failpoint until it is released."""

from __future__ import annotations

import os
import select


class Schedule:
    """Holds another process (or thread) at a failpoint, so that a test can plan their order.

    Give the other side the action ``schedule.action``; then `wait_reached`, look around, `release`. One hit
    at a time. Two FIFOs beside ``path`` carry it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._fds = [self._fifo("reached"), self._fifo("go")]

    def _fifo(self, suffix: str) -> int:
        os.mkfifo(f"{self.path}.{suffix}", 0o600)
        return os.open(f"{self.path}.{suffix}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def action(self) -> str:
        return f"pause:{self.path}"

    def wait_reached(self, timeout_s: float = 10.0) -> bool:
        """Wait until the other side stands at the failpoint; False when it does not come."""
        ready, _, _ = select.select([self._fds[0]], [], [], timeout_s)
        return bool(ready) and os.read(self._fds[0], 1) == b"!"

    def release(self) -> None:
        os.write(self._fds[1], b"!")

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        for suffix in ("reached", "go"):
            os.unlink(f"{self.path}.{suffix}")
