"""Pools of worker processes: a ``concurrent.futures.Executor`` whose tasks and results are in the store.

Example:
    >>> import math
    >>> with Executor("./data", max_workers=2) as executor:
    ...     list(executor.map(math.factorial, range(5), timeout=60))
    [1, 1, 2, 6, 24]
"""

from embeddedpulsar.futures.encoding import RemoteTraceback, TaskError, WorkerLost
from embeddedpulsar.futures.executor import Executor, ExecutorClosed, Future
from embeddedpulsar.futures.workers import TaskInfo, current_task, report_progress, run_workers

__all__ = [
    "Executor",
    "ExecutorClosed",
    "Future",
    "RemoteTraceback",
    "TaskError",
    "TaskInfo",
    "WorkerLost",
    "current_task",
    "report_progress",
    "run_workers",
]
