"""Imports of modules that are seldom needed, during which no other thread forks."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from embeddedpulsar.platform import fork


def late_import(name: str) -> Any:
    """Import a module in a thread that others may fork beside.

    A process that forks while another thread of it executes a module hands its child a module that is half
    there, under a lock that is never released: an import of it there waits for ever. So a fork waits for
    the imports that go on here, a few milliseconds at most.

    Raises:
        ImportError: there is none.

    >>> late_import("math").pi > 3
    True
    """
    lock = fork.LATE_IMPORTS
    try:
        lock.acquire()
        return import_module(name)
    finally:
        lock.release()
