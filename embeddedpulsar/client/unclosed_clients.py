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
    """Closes clients that became garbage, on a thread of its own.

    Role: a finalizer runs at any instruction of any thread, perhaps in a critical section or in a signal
    handler. So it only starts a thread, which is one call into C; that thread holds no lock of this package
    and may wait. It first stores pending messages and acknowledgements, as a file writes its buffer. Any
    thread may call the methods.
    """

    def __init__(self) -> None:
        self._running: dict[int, threads.Daemon] = {}
        self._left: list[tuple[ClientCore, tuple[Any, ...]]] = []
        self.is_over = False
        fork.register(self)

    def client(self, core: ClientCore, consumers: tuple[Any, ...], name: str) -> None:
        """Close a client that is garbage, with its consumers and readers."""
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
        """Retry what could not be closed because no thread could start. Must not run in a finalizer."""
        while self._left:
            self._start(*self._left.pop())

    def finish(self, timeout_s: float) -> None:
        """At the end of the program: wait for the threads that are closing, and start no more."""
        self.is_over = True
        for thread in list(self._running.values()):
            thread.join(timeout_s)

    def after_fork_in_child(self) -> None:
        """Drop the threads, which belong to the parent."""
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
