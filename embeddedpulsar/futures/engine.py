"""What executors know of the engine; no other module of the package imports from it.

Tasks, events and results are messages of a client. Besides, workers are processes that end with the one that
started them, and an executor has threads.
"""

from __future__ import annotations

from embeddedpulsar._engine.platform import failpoints, threads
from embeddedpulsar._engine.platform.child_process import ChildProcess, on_termination, termination
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
