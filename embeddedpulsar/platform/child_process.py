"""Programs that this process starts, watches and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

from embeddedpulsar.platform import threads


class ChildProcess:
    """A program that was started by this process. Its output is that of this process.

    Args:
        arguments: the command.
        environment: variables that it has besides those of this process.
        input: what it reads from its standard input.

    Example:
        >>> import sys
        >>> child = ChildProcess([sys.executable, "-c", "raise SystemExit(3)"])
        >>> child.wait(60.0), child.status()
        (True, 3)
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, input: bytes = b""
    ) -> None:
        with tempfile.TemporaryFile() as file:  # unlike a pipe, it takes all of it whether it is read or not
            file.write(input)
            file.seek(0)
            self._process: Final[subprocess.Popen[bytes]] = subprocess.Popen(
                list(arguments), stdin=file, env={**os.environ, **(environment or {})}
            )

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def status(self) -> int | None:
        """Its exit status, or the number of the signal that ended it as a negative number; None while it
        runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end. False if it still runs."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it."""
        self._process.kill()


def termination() -> threads.Event:
    """An event that is set when this process is asked to end. Ctrl-C is left to the process that started it.

    For a program of its own, in its main thread.
    """
    event = threads.Event()
    signal.signal(signal.SIGTERM, lambda *_: event.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return event
