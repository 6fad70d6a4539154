"""Hooks that run when the process forks or ends, and imports that no fork interrupts.

A forked child shares file descriptions (and so flocks and leases), maps and memory with its parent, and has
none of its threads. Each object that owns such a thing registers here; one ``os.register_at_fork`` serves
them all. `GENERATION` grows by one in the child before any hook runs: comparing it (20 ns) tells an object
that it was made by an ancestor.

Pausing the garbage collector of the interpreter while objects are made that are known to stay.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterable

from embeddedpulsar._engine.platform.threads import RLock
from embeddedpulsar.records import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import Final

GENERATION: int = 0

LATE_IMPORTS = RLock()
"""Held by `descriptors.late_imports` while a module is executed; a fork waits for it, after the hooks."""


class _Reference(weakref.ref[object]):
    """A weak reference that is equal to itself only, whatever its object is."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


_registered: dict[_Reference, None] = {}  # in order of registration


def register(obj: object) -> None:
    """Call the hooks of ``obj`` around every fork, for as long as it lives. Holds no reference to it.

    The hooks are optional methods without arguments: ``before_fork()``, ``after_fork_in_parent()`` and
    ``after_fork_in_child()``. They run in the thread that forks; ``before_fork`` in reverse order of
    registration. A hook that raises does not keep the others from running. ``obj`` must be weakly
    referenceable.
    """
    # No Python code runs when ``obj`` ends: Ctrl-C inside of it would be printed, and lost.
    _registered[_Reference(obj, _registered.pop)] = None


def _call(method: str, references: Iterable[_Reference]) -> None:
    # All hooks run, whatever one of them raises; an object without its hook would use descriptors of
    # the parent.
    failures: list[Exception] = []
    for reference in references:
        hook = getattr(reference(), method, None)
        if hook is None:
            continue
        try:
            hook()
        except Exception as e:  # noqa: BLE001 - any failure of one object must not strand the others
            failures.append(e)
    if failures:
        raise failures[0]  # os.fork reports it as unraisable and continues


def _before() -> None:
    # `LATE_IMPORTS` is taken last and in the thread that forks, so the child has no import under way
    # in a thread that does not exist there. The hooks come first: one of them may import.
    try:
        _call("before_fork", reversed(list(_registered)))
    finally:
        LATE_IMPORTS.acquire()


def _after_in_parent() -> None:
    LATE_IMPORTS.release()
    _call("after_fork_in_parent", list(_registered))


def _after_in_child() -> None:
    # Before the hooks: an object that is asked during them must know already that it is in a child.
    # The lock is new, because the forking thread of the parent holds the old one.
    global GENERATION, LATE_IMPORTS
    GENERATION += 1
    LATE_IMPORTS = RLock()
    _call("after_fork_in_child", list(_registered))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def at_exit(function: Callable[[], object]) -> None:
    """Call ``function()`` when the program ends: by its last line, ``sys.exit``, or an exception.

    It is called when the application's threads have ended; daemon threads, ours too, still run. ``os._exit``
    and kills skip it. A child that ``multiprocessing`` forks ends with ``os._exit``, but calls the hooks of
    ``threading`` before that, so they serve there: then the child's threads may still run.
    """

    def at_end_of_child() -> None:
        if GENERATION:
            function()

    # Children of ``multiprocessing`` skip ``atexit`` and run the hooks of ``threading``, which are
    # private and may go.
    atexit.register(function)
    hooks = getattr(threading, "_register_atexit", None)
    if hooks is not None:
        hooks(at_end_of_child)


R = TypeVar("R")


class _Pauses:
    """How many calls have paused the collector; a forked child has none of them."""

    __slots__ = ("__weakref__", "under_way")

    def __init__(self) -> None:
        self.under_way = 0

    def after_fork_in_child(self) -> None:
        """Start the collector again: the threads that would do so are the parent's."""
        if self.under_way:
            self.under_way = 0
            gc.enable()


_PAUSES: Final = _Pauses()
register(_PAUSES)


def uncollected(function: Callable[[], R]) -> R:
    """Call a function that makes millions of objects which stay, without the collector going through them.

    It would do so each time their number has grown by a quarter, and find nothing: for a consumer of 10,000
    topics that is more than half of the time. Reference counts work meanwhile. A collector that the
    application has stopped stays stopped. Of two calls at once, the first to end starts it again.

    >>> uncollected(gc.isenabled), gc.isenabled()
    (False, True)
    """
    if not gc.isenabled():
        return function()
    # The count goes up first: a fork between the two lines starts the collector of the child for
    # nothing, and a fork after them must find it.
    try:
        _PAUSES.under_way += 1
        gc.disable()
        return function()
    finally:
        _PAUSES.under_way -= 1
        gc.enable()
