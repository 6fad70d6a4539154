"""A thread lock whose section survives an interrupt at any instruction.

``lock.acquire()`` before ``try`` leaks the lock when a signal handler raises between the two (measured: in
a third of timer-driven interrupts). Acquiring inside the ``try`` needs a release that does nothing when the
interrupt came first; this class provides that release.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from embeddedpulsar.platform import indivisible


class SectionLock:
    """A re-entrant thread lock used as ``try: lock.acquire(); ... finally: lock.release()``.

    Re-entrant because a signal handler or a finalizer may run in the middle of the section and call us again.
    `acquire` is that of ``threading.RLock``; `release` is one call into C, which no interrupt splits, and
    does nothing when this thread does not hold the lock.

    >>> lock = SectionLock()
    >>> try:
    ...     lock.acquire()
    ... finally:
    ...     lock.release()
    True
    >>> lock.release()  # not ours: nothing happens
    False
    """

    __slots__ = ("__weakref__", "acquire", "release")

    acquire: Callable[..., bool]
    release: Callable[[], object]

    def __init__(self) -> None:
        lock = threading.RLock()
        self.acquire = lock.acquire
        self.release = indivisible.choose((bool, lock.release), lock._is_owned)  # type: ignore[attr-defined]


def is_free(lock: Any) -> bool:
    """Whether no thread, this one included, holds a ``threading.RLock``. In a forked child alone: elsewhere
    another thread may take it the next moment, or fail to because of the question."""
    if lock._is_owned() or not lock.acquire(False):
        return False
    lock.release()
    return True


def renewed(lock: SectionLock) -> SectionLock:
    """The lock that a forked child uses in the place of an inherited one: the same, unless it was held.

    A new one for each would do too, but those of thousands of topics are some hundred thousand objects, which
    the next garbage collection goes through.
    """
    return lock if is_free(lock.acquire.__self__) else SectionLock()  # type: ignore[attr-defined]
