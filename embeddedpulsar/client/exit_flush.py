"""Storing of pending messages and acknowledgements at the normal end of the interpreter."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Final

from embeddedpulsar.client.unclosed_clients import UNCLOSED_CLIENTS
from embeddedpulsar.platform import exit_hooks
from embeddedpulsar.platform.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from embeddedpulsar.client.client_core import ClientCore

LONGEST_S: Final = 5.0
"""Total time limit in seconds for all clients, even if another process holds a lock."""


class ExitFlush:
    """The open clients of this process.

    Role: at the normal end of the program (see `exit_hooks`) it stores the batches and acknowledgements of
    the clients that are still open. It holds weak references only. A forked child stores only what it sent
    itself: its copies of the parent's batches are empty.
    """

    def __init__(self) -> None:
        self._clients: dict[int, weakref.ref[ClientCore]] = {}
        self._numbers = itertools.count()
        self._is_registered = False

    def add(self, client: ClientCore) -> None:
        """Register an open client."""
        if not self._is_registered:
            self._is_registered = True
            exit_hooks.register(self.run)  # registered after the registry of stores, so it runs before it
        UNCLOSED_CLIENTS.close_left()
        number = next(self._numbers)
        self._clients[number] = weakref.ref(client, lambda _: self._clients.pop(number, None))

    def run(self) -> None:
        """Store pending messages and acknowledgements of all open clients."""
        end = SYSTEM_CLOCK.monotonic() + LONGEST_S
        UNCLOSED_CLIENTS.finish(LONGEST_S)
        for reference in list(self._clients.values()):
            client = reference()
            if client is not None and not client.is_closed:
                client.save(max(0.0, end - SYSTEM_CLOCK.monotonic()))


EXIT_FLUSH: Final = ExitFlush()
