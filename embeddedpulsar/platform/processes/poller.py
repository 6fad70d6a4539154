"""Sleep until a descriptor has news: epoll where it exists, poll() elsewhere.

epoll takes registrations while another thread sleeps in it, and is itself a descriptor an asyncio loop can
watch; with poll() the sleeper must be rung to see a new descriptor.
"""

from __future__ import annotations

import select
from typing import Protocol


class Poller(Protocol):
    """The methods that the doorbell needs of either."""

    def register(self, fd: int, mask: int) -> None: ...
    def unregister(self, fd: int) -> None: ...
    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class EpollPoller:
    """epoll; errors (a dead reader) are reported without being asked for."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def register(self, fd: int, mask: int) -> None:
        self._epoll.register(fd, mask)

    def unregister(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        return self._epoll.poll(timeout_s)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()


class PollPoller:
    """poll() over a copy of the registrations; `fileno` is -1, there is nothing to watch from outside."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}

    def register(self, fd: int, mask: int) -> None:
        self._masks[fd] = mask

    def unregister(self, fd: int) -> None:
        self._masks.pop(fd, None)

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        sleeper = select.poll()
        for fd, mask in list(self._masks.items()):
            sleeper.register(fd, mask)
        # Rounded up: a wait that ends early would spin through its last millisecond.
        events = sleeper.poll(None if timeout_s is None else -int(-timeout_s * 1000 // 1))
        return [(fd, event) for fd, event in events if not event & select.POLLNVAL]

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._masks.clear()


def make_poller() -> Poller:
    """The best poller of this platform."""
    return EpollPoller() if hasattr(select, "epoll") else PollPoller()
