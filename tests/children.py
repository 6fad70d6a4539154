"""Child processes for tests: forked ones that answer, and fresh interpreters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from embeddedpulsar._engine.platform import failpoints

ROOT = Path(__file__).resolve().parent.parent


def in_child(action: Callable[[], object]) -> str:
    """Fork, run ``action`` in the child and return the text of what it returns; fails when the child
    fails."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writer, str(action()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


class ForkedChild:
    """A forked child that runs ``action`` and then sleeps until `end` kills it. ``ready`` waits for the
    action."""

    def __init__(self, action: Callable[[], object]) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(reader)
                answer = str(action()).encode()
                os.write(writer, answer + b"\n")
                signal.pause()
            finally:
                os._exit(status)
        os.close(writer)
        self._reader = os.fdopen(reader)

    def ready(self) -> str:
        """Wait until the action has run and return the text of its answer."""
        return self._reader.readline().rstrip("\n")

    def end(self) -> None:
        """SIGKILL it and reap it. Idempotent."""
        pid, self.pid = self.pid, 0
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._reader.close()


def start_python(code: str, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a fresh interpreter on ``code`` with the project importable; stdin and stdout are pipes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def run_python(code: str, *args: str, env: dict[str, str] | None = None, timeout_s: float = 60.0) -> str:
    """Run ``code`` in a fresh interpreter to its end and return its output; fails when it fails."""
    process = start_python(code, *args, env=env)
    output, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, f"exit status {process.returncode}: {output}"
    return output


def die_at(step: str, action: Callable[[], object], nth: int = 1) -> bool:
    """Run ``action`` in a child that is killed at a failpoint.

    Returns:
        Whether it came to the failpoint.
    """
    pid = os.fork()
    if pid == 0:
        try:
            failpoints.set(step, "kill", nth=nth)
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
