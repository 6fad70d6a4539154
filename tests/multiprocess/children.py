"""Real processes that run a function of a test module and talk in lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import TracebackType

from tests.multiprocess import fork_server

_RUN = "import importlib, sys; m, f, *a = sys.argv[1:]; getattr(importlib.import_module(m), f)(*a)"


class Child:
    """A process that runs ``function(*arguments)`` (strings), killed at the end of the block if it still
    runs.

    Args:
        function: A function at the top of a module.
        *arguments: Given to it as strings.
        within: A command that it is run by, in an interpreter of its own.
        is_fresh: Whether it needs an interpreter of its own, since its memory or its descriptors are
            counted. The others are forks of a warm one.
    """

    process: subprocess.Popen[str] | fork_server.ForkedProcess

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: object,
        within: Sequence[str] = (),
        is_fresh: bool = False,
    ) -> None:
        words = [function.__module__, function.__name__, *map(str, arguments)]
        forked = None if within or is_fresh else fork_server.fork(words[0], words[1], words[2:])
        self.process = forked or subprocess.Popen(
            [*within, sys.executable, "-X", "faulthandler", "-c", _RUN, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
            bufsize=1,
        )

    def read(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended with status {self.process.wait()}"
        return line.strip()

    def tell(self, line: str) -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def kill(self) -> None:
        """SIGKILL, without waiting for it."""
        self.process.send_signal(signal.SIGKILL)

    def join(self, timeout_s: float = 60) -> int:
        """Wait for its end; the exit status."""
        return self.process.wait(timeout_s)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def say(*words: object) -> None:
    """Print a line for `Child.read`; in one write, so that forked processes can share the pipe."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
