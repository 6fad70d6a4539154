"""Functions that run at the normal end of the interpreter."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from embeddedpulsar.platform import fork


def register(function: Callable[[], object]) -> None:
    """Call ``function()`` when the program ends: by its last line, ``sys.exit``, or an exception.

    It is called when the application's threads have ended; daemon threads, ours too, still run. ``os._exit``
    and kills skip it. A child that ``multiprocessing`` forks ends with ``os._exit``, but calls the hooks of
    ``threading`` before that, so they serve there: then the child's threads may still run.
    """

    def at_end_of_child() -> None:
        if fork.GENERATION:
            function()

    atexit.register(function)
    hooks = getattr(threading, "_register_atexit", None)
    if hooks is not None:
        hooks(at_end_of_child)
