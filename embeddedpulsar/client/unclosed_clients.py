"""Clients that are dropped without being closed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.platform import fork, threads

if TYPE_CHECKING:
    from embeddedpulsar.client.client_core import ClientCore

LONGEST_S: Final = 5.0


class UnclosedClients:
    """Closes what is garbage, on a thread of its own.

    Role: a finalizer runs at any instruction of any thread, perhaps in a section or in a signal handler, so
    it only starts a thread, which is one call into C; that thread holds no lock of ours and may wait. What
    was sent and acknowledged is stored first, as a file writes its buffer. Who may call: any thread.
    """

    def __init__(self) -> None:
        self._running: dict[int, threads.Daemon] = {}
        self._left: list[tuple[ClientCore, tuple[Any, ...]]] = []
        self.is_over = False
        fork.register(self)

    def client(self, core: ClientCore, consumers: tuple[Any, ...], name: str) -> None:
        """A client is garbage, with the consumers and readers that were made with it."""
        if self.is_over or not core.is_left_open or core.fork_generation != fork.GENERATION:
            return
        self._start(core, consumers)
        warnings.warn(f"unclosed client {name}", ResourceWarning, stacklevel=3)

    def _start(self, core: ClientCore, consumers: tuple[Any, ...]) -> None:
        def close() -> None:
            try:
                _close(core, consumers)
            finally:
                self._running.pop(id(core), None)

        try:
            self._running[id(core)] = threads.start_daemon(close, "unclosed")
        except RuntimeError:  # too many threads
            self._left.append((core, consumers))

    def close_left(self) -> None:
        """Try again what could not be closed for want of a thread. Not to be called by a finalizer."""
        while self._left:
            self._start(*self._left.pop())

    def finish(self, timeout_s: float) -> None:
        """The program ends: let those finish that are under way, and begin none any more."""
        self.is_over = True
        for thread in list(self._running.values()):
            thread.join(timeout_s)

    def after_fork_in_child(self) -> None:
        """What the parent closes is the parent's."""
        self._running, self._left = {}, []


def _close(core: ClientCore, consumers: tuple[Any, ...]) -> None:
    for one in consumers:
        core.know(one)
    try:
        core.save(LONGEST_S)
        core.close()
    except AlreadyClosed:
        return
    except Exception:
        core.log.exception("Closing a client that was dropped failed")


UNCLOSED_CLIENTS: Final = UnclosedClients()
