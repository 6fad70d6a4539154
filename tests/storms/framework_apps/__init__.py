"""Programs of users of frameworks of jobs, which the workers of each framework import.

Each has a task ``double`` that writes its number to the file of effects and returns its double, and two
things that a client does: ``session`` sends tasks one after the other, ``mixed`` uses queues, priorities,
delays, groups and what else the framework has. The store and the file are given in the environment.
"""

from __future__ import annotations

import os
import time

STORE = os.environ.get("FRAMEWORK_STORE", "memory://framework")
_EFFECTS = os.environ.get("FRAMEWORK_EFFECTS", "")
_WORK_S = float(os.environ.get("FRAMEWORK_WORK_S", "0"))


def work(number: int) -> int:
    """What the task of every program does."""
    if _WORK_S:
        time.sleep(_WORK_S)
    if _EFFECTS:
        descriptor = os.open(_EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, b"%d\n" % number)
        finally:
            os.close(descriptor)
    return 2 * number
