"""Forked processes of a storm, and what they say when they fail."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.platform.timing import perf_counter, sleep

_DRAIN_TIMEOUT_S: Final = 300.0


class StormChildren:
    """Forks and waits. Must be used in a process without other threads.

    Attributes:
        problems: what went wrong with processes that were waited for.
    """

    def __init__(self, folder: str, problems: list[str]) -> None:
        self._folder: Final = folder
        self.problems: Final = problems

    def fork(self, work: Callable[[], object], name: str) -> int:
        """Run ``work()`` in a child; its exit status is 0 unless ``work`` raises."""
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            for number in (signal.SIGINT, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)  # one that strikes now would cut the text short
            with open(self._errors(name), "a", encoding="utf-8") as file:
                traceback.print_exc(file=file)
        finally:
            os._exit(status)

    def stop(self, pid: int) -> int | None:
        """SIGSTOP, and wait until it has stopped.

        Returns:
            None, or the exit status of a process that had ended already.
        """
        os.kill(pid, signal.SIGSTOP)
        _, status = os.waitpid(pid, os.WUNTRACED)
        return None if os.WIFSTOPPED(status) else status

    def kill(self, pid: int) -> None:
        """SIGKILL and reap."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def wait_for(self, pid: int, name: str) -> None:
        """Wait until a process ends; that it fails, or does not end, is a problem."""
        deadline = perf_counter() + _DRAIN_TIMEOUT_S
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if perf_counter() > deadline:
                self.problems.append(f"{name} did not end within {_DRAIN_TIMEOUT_S:.0f} s")
                self.kill(pid)
                return
            sleep(0.005)
        if status:
            self.problems.append(f"{name} failed with status {status}: {self.error(name)}")

    def error(self, name: str) -> str:
        """What the processes of that name raised."""
        try:
            with open(self._errors(name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return "no message"

    def _errors(self, name: str) -> str:
        return f"{self._folder}/errors-{name}"
