"""The worker processes of one function."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.platform.child_process import ChildProcess
from embeddedpulsar.functions.definitions import definition_form

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.clock import Clock
    from embeddedpulsar.functions.instance_context import Definition

_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 30.0
_STEADY_S: Final = 10.0
"""A worker that lived so long was started well: after its end there is no long delay."""
GRACE_S: Final = 8.0
"""How long workers have to end: less than the 10 s after which a container engine kills their supervisor."""
_KILLED_S: Final = 10.0
_LOG: Final = logging.getLogger("embeddedpulsar.function")

Start = Callable[[list[str]], ChildProcess]


def restart_delay_s(failures: int) -> float:
    """How long to wait until an instance is started again that failed so often in a row.

    >>> [restart_delay_s(failures) for failures in (1, 2, 3, 20, 100_000)]
    [0.0, 0.1, 0.2, 30.0, 30.0]
    """
    doublings = min(failures - 2, 16)  # more would not fit into a float
    return 0.0 if doublings < 0 else min(_FIRST_DELAY_S * 2**doublings, _LONGEST_DELAY_S)


def order_of(
    url: str, definition: Definition, instance: int, restarts: int, grace_s: float = GRACE_S
) -> list[str]:
    """The arguments of the program `functions.worker`.

    Args:
        url: of the store.
        definition: of the function.
        instance: number of the instance.
        restarts: how often its worker was started again.
        grace_s: how long it may take to end when it is asked to, or its parent is gone.
    """
    order = {
        "url": url,
        "definition": definition_form(definition),
        "instance": instance,
        "restarts": restarts,
        "parent": os.getpid(),
        "grace": grace_s,
    }
    return [json.dumps(order)]


def start_worker(arguments: list[str]) -> ChildProcess:
    """Start a worker, with the module path of this process.

    The arguments are its input: all users of the machine see a command line, and secrets may be in them.
    """
    path = os.pathsep.join(one for one in sys.path if one)
    command = [sys.executable, "-m", "embeddedpulsar.functions.worker"]
    return ChildProcess(command, {"PYTHONPATH": path}, "\n".join(arguments).encode())


class _Worker:
    def __init__(self) -> None:
        self.process: ChildProcess | None = None
        self.restarts = -1
        self.failures = 0
        self.started_s = 0.0
        self.due_s = 0.0


class WorkerGroup:
    """One worker process for each instance of a function.

    Role: `look` starts those that are missing: one that ended at once again, then after delays that double up
    to half a minute, until one lives for 10 s.
    Callers: one thread.

    Args:
        url: of the store.
        definition: of the function.
        clock: for the delays.
        start: starts a worker with its arguments.
        grace_s: how long a worker may take to end.
    """

    def __init__(
        self,
        url: str,
        definition: Definition,
        clock: Clock,
        start: Start = start_worker,
        grace_s: float = GRACE_S,
    ) -> None:
        self.definition: Final = definition
        self._url: Final = url
        self._clock: Final = clock
        self._start: Final = start
        self._grace_s: Final = grace_s
        self._workers: Final = [_Worker() for _ in range(definition.config.parallelism)]

    def look(self) -> None:
        """Start the workers that are missing and due."""
        now_s = self._clock.monotonic()
        for number, worker in enumerate(self._workers):
            if worker.process is not None:
                status = worker.process.status()
                if status is None:
                    continue
                self._note_end(worker, number, status, now_s)
            if worker.process is None and now_s >= worker.due_s:
                worker.restarts += 1
                worker.started_s = now_s
                order = order_of(self._url, self.definition, number, worker.restarts, self._grace_s)
                worker.process = self._start(order)

    def _note_end(self, worker: _Worker, number: int, status: int, now_s: float) -> None:
        _LOG.warning("instance %d of %s ended: %d", number, self.definition.config.full_name, status)
        worker.process = None
        if now_s - worker.started_s >= _STEADY_S:
            worker.failures = 0
        worker.failures += 1
        worker.due_s = now_s + restart_delay_s(worker.failures)

    def pids(self) -> dict[int, int]:
        """The ids of the processes that run, by instance."""
        found = {}
        for number, worker in enumerate(self._workers):
            if worker.process is not None and worker.process.status() is None:
                found[number] = worker.process.pid
        return found

    def end(self) -> None:
        """Ask all workers to end; kill those that do not within the grace. Idempotent."""
        end_groups([self], self._clock, self._grace_s)

    def ask_to_end(self) -> list[ChildProcess]:
        """Ask all workers to end, and return those that run."""
        processes = [worker.process for worker in self._workers if worker.process is not None]
        for process in processes:
            process.terminate()
        return processes

    def forget(self) -> None:
        """Note that no worker is left."""
        for worker in self._workers:
            worker.process = None


def end_groups(groups: Sequence[WorkerGroup], clock: Clock, grace_s: float) -> None:
    """Ask the workers of all groups to end; kill those that do not within ``grace_s``, of all together. An
    interrupt ends the grace."""
    processes: list[ChildProcess] = []
    try:
        for group in groups:
            processes += group.ask_to_end()
        end_s = clock.monotonic() + grace_s
        for process in processes:
            process.wait(max(0.0, end_s - clock.monotonic()))
    finally:
        for process in processes:
            if process.status() is None:
                _LOG.warning("process %d did not end when it was asked to, and is killed", process.pid)
                process.kill()
                process.wait(_KILLED_S)
        for group in groups:
            group.forget()
