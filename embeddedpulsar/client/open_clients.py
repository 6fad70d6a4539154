"""Clients that the program leaves open: dropped without `close`, or open at the end of the interpreter."""

from __future__ import annotations

import itertools
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.platform import fork, threads
from embeddedpulsar.platform.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from embeddedpulsar.client.client_core import ClientCore

LONGEST_S: Final = 5.0
"""Total time limit in seconds for all clients, even if another process holds a lock."""


class OpenClients:
    """The open clients of this process.

    Role: a client that became garbage is closed on a thread of its own. A finalizer runs at any instruction
    of any thread, perhaps in a critical section or in a signal handler, so it only starts this thread, which
    is one call into C; the thread holds no lock of this package and may wait. It first stores pending
    messages and acknowledgements, as a file writes its buffer. At the normal end of the program (see
    `fork.at_exit`) the batches and acknowledgements of the clients that are still open are stored.

    Any thread may call the methods. The references to clients are weak. A forked child stores only what it
    sent itself: its copies of the parent's batches are empty.
    """

    def __init__(self) -> None:
        self._clients: dict[int, weakref.ref[ClientCore]] = {}
        self._numbers = itertools.count()
        self._is_registered = False
        self._running: dict[int, threads.Daemon] = {}
        self._left: list[tuple[ClientCore, tuple[Any, ...]]] = []
        self._is_over = False
        fork.register(self)

    def add(self, client: ClientCore) -> None:
        if not self._is_registered:
            self._is_registered = True
            fork.at_exit(self.save_all)  # after the registry of stores, so it runs before it
        while self._left:  # closing these could not begin, because no thread could start
            self._close_apart(*self._left.pop())
        number = next(self._numbers)
        self._clients[number] = weakref.ref(client, lambda _: self._clients.pop(number, None))

    def drop(self, core: ClientCore, consumers: tuple[Any, ...], name: str) -> None:
        """Close a client that is garbage, with its consumers and readers. Runs in a finalizer."""
        if self._is_over or not core.is_left_open or core.fork_generation != fork.GENERATION:
            return
        self._close_apart(core, consumers)
        warnings.warn(f"unclosed client {name}", ResourceWarning, stacklevel=3)

    def _close_apart(self, core: ClientCore, consumers: tuple[Any, ...]) -> None:
        def close() -> None:
            try:
                _close(core, consumers)
            finally:
                self._running.pop(id(core), None)

        try:
            self._running[id(core)] = threads.start_daemon(close, "unclosed")
        except RuntimeError:  # too many threads
            self._left.append((core, consumers))

    def save_all(self) -> None:
        """Store pending messages and acknowledgements of all open clients, at the end of the program."""
        end = SYSTEM_CLOCK.monotonic() + LONGEST_S
        self._is_over = True
        for thread in list(self._running.values()):
            thread.join(LONGEST_S)
        for reference in list(self._clients.values()):
            client = reference()
            if client is not None and not client.is_closed:
                client.save(max(0.0, end - SYSTEM_CLOCK.monotonic()))

    def after_fork_in_child(self) -> None:
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


OPEN_CLIENTS: Final = OpenClients()
