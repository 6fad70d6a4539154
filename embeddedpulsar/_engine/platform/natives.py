"""Primitives of threads, queues, polling and clocks, bound once: when the package is imported.

Other libraries replace them in the standard modules: gevent and eventlet by ones that run other greenlets
while they wait, freezegun by clocks that stand still. A mixture of both kinds fails: a queue that belongs to
one thread and is filled by another, a lock of a thread around a section that its greenlets enter. So there
are two cases, decided at one moment:

* Threads are threads (`IS_GREEN` is false): everything is the original, from fresh copies of the C modules
  where the names were replaced before. No call of this package runs another greenlet. What is patched later
  changes nothing here, but see `are_threads_replaced`.
* Threads are greenlets: everything is what the patches put there. Locks belong to greenlets, and calls that
  wait let others run.

The clocks are the originals in both. They are attributes of a class, because freezegun replaces what it finds
in modules.
"""

from __future__ import annotations

import _queue
import _thread
import os
import queue
import select
import threading
import time
from collections.abc import Callable
from importlib import import_module
from types import BuiltinFunctionType
from typing import Any, Final

_SUB_INTERPRETERS: Final = ("_xxsubinterpreters", "_interpreters")


def _check_interpreter() -> None:
    """Refuse to run in a sub-interpreter: hooks of forks, signals and the end of the program are those of the
    main one."""
    for name in _SUB_INTERPRETERS:
        try:
            interpreters: Any = import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "embeddedpulsar cannot be used in a sub-interpreter; use it in the main interpreter, or in a "
                "process of its own (mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
            )
        return


def _fresh(name: str) -> Any:
    """Another copy of a C module, as it is before anything replaces its functions."""
    import importlib.util  # takes 5 ms, and is needed beside such libraries only

    # A second module object of the same C code, which is not in ``sys.modules``: what patches the
    # first does not reach it.
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no module {name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_original(function: object) -> bool:
    return isinstance(function, BuiltinFunctionType)


_check_interpreter()
IS_GREEN: Final = not _is_original(_thread.start_new_thread)
"""Whether threads were greenlets when the package was imported (gevent, eventlet)."""
_clocks: Final[Any] = time if _is_original(time.monotonic) and _is_original(time.time_ns) else _fresh("time")
_sleeps: Final[Any] = time if IS_GREEN or _is_original(time.sleep) else _fresh("time")
_descriptors: Final[Any] = import_module(os.name)
_polls: Final[Any] = select if IS_GREEN or hasattr(select, "epoll") else _fresh("select")


class system:
    """The primitives. Not to be taken out into names of a module."""

    monotonic: Callable[[], float] = _clocks.monotonic
    time_ns: Callable[[], int] = _clocks.time_ns
    time: Callable[[], float] = _clocks.time
    perf_counter: Callable[[], float] = _clocks.perf_counter
    sleep: Callable[[float], object] = _sleeps.sleep
    start_new_thread = _thread.start_new_thread
    allocate_lock = _thread.allocate_lock
    get_ident = _thread.get_ident
    RLock: Any = threading.RLock if IS_GREEN else _thread.RLock
    poll: Any = getattr(_polls, "poll", None)
    epoll: Any = getattr(_polls, "epoll", None)
    select = _polls.select
    # Of pipes that never block. Eventlet's functions in `os` wait where there is nothing to read.
    read: Callable[[int, int], bytes] = _descriptors.read
    write: Callable[[int, bytes], int] = _descriptors.write


def are_threads_replaced() -> bool:
    """Whether something has replaced threads since the package was imported. The class ``threading.Thread``
    then starts something else than `system` does."""
    return _thread.start_new_thread is not system.start_new_thread


if not IS_GREEN:
    SimpleQueue: Any = _queue.SimpleQueue  # `queue.SimpleQueue` where nothing replaced it
elif queue.SimpleQueue is _queue.SimpleQueue:  # eventlet leaves the C class, which stops all greenlets
    SimpleQueue = queue._PySimpleQueue  # type: ignore[attr-defined]
else:
    SimpleQueue = queue.SimpleQueue

__all__ = ("IS_GREEN", "SimpleQueue", "are_threads_replaced", "system")
