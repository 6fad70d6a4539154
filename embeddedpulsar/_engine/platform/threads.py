"""Primitives of threads, queues, polling and clocks, so that nothing above imports ``threading``.

They are bound once, when the package is imported.

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

The locks:

All but `RLock` are the standard ones. ``lock.acquire()`` before ``try`` leaks a lock when a signal handler
raises between the two (measured: in a third of timer-driven interrupts). Acquiring inside the ``try`` needs a
release that does nothing when the interrupt came first; `RLock` provides it.
"""

from __future__ import annotations

import _queue
import _thread
import os
import select
import sys
import threading
import time
from _queue import Empty
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from importlib import import_module
from itertools import repeat
from operator import call as _call
from types import BuiltinFunctionType

from embeddedpulsar.exceptions import ThreadLimitError
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
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
_has_queue = hasattr(select, "epoll") or hasattr(select, "kqueue")
_polls: Final[Any] = select if IS_GREEN or _has_queue else _fresh("select")


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
    kqueue: Any = getattr(_polls, "kqueue", None)
    polls: Any = _polls
    select = _polls.select
    # Of pipes that never block. Eventlet's functions in `os` wait where there is nothing to read.
    read: Callable[[int, int], bytes] = _descriptors.read
    write: Callable[[int, bytes], int] = _descriptors.write


def are_threads_replaced() -> bool:
    """Whether something has replaced threads since the package was imported. The class ``threading.Thread``
    then starts something else than `system` does."""
    return _thread.start_new_thread is not system.start_new_thread


SimpleQueue: Any = _queue.SimpleQueue  # `queue.SimpleQueue` where nothing replaced it
if IS_GREEN:
    import queue  # made of classes, of which nothing else here needs one

    SimpleQueue = queue.SimpleQueue
    if SimpleQueue is _queue.SimpleQueue:  # eventlet leaves the C class, which stops all greenlets
        SimpleQueue = queue._PySimpleQueue  # type: ignore[attr-defined]

__all__ = ("IS_GREEN", "Empty", "SimpleQueue", "are_threads_replaced", "system")


_NEVER: Final = object()
_NOTHING: Final[Iterator[int]] = iter(())
_ENDLESS: Final[Iterator[int]] = repeat(0)
_one_of: Final = [_NOTHING, _ENDLESS].__getitem__


class RLock:
    """A re-entrant thread lock used as ``try: lock.acquire(); ... finally: lock.release()``.

    Re-entrant because a signal handler or a finalizer may run in the middle of the section and call us again.
    `acquire` is that of ``threading.RLock``; `release` is one call into C, which no interrupt splits, and
    does nothing when this thread does not hold the lock. Both nest two calls deep in C, and neither makes an
    object: where there was room for `acquire`, `release` ends by no RecursionError or MemoryError.

    >>> lock = RLock()
    >>> try:
    ...     lock.acquire()
    ... finally:
    ...     _ = lock.release()
    True
    >>> lock.release()  # not ours: nothing happens

    Attributes:
        lock: the ``threading.RLock``.
    """

    __slots__ = ("__weakref__", "acquire", "lock", "release")

    acquire: Callable[..., bool]
    release: Callable[[], object]

    def __init__(self) -> None:
        # `release` in one call: whether this thread owns the lock chooses an iterator, and an empty
        # one ends `zip` before it comes to the release. `next` has a default, so that is no error.
        self.lock = lock = system.RLock()
        self.acquire = partial(_call, lock.acquire)  # a call more, to be as deep as `release`
        owned = iter(lock._is_owned, _NEVER)
        # Where it is not owned, the first iterator has nothing, and the second is not asked. An item of a
        # tuple in the place of the list would make an object.
        is_ours = map(next, map(_one_of, owned))
        self.release = partial(next, zip(is_ours, iter(lock.release, _NEVER)), None)  # noqa: B905 - slower

    @property
    def held(self) -> bool:
        """Whether the calling thread is between `acquire` and `release`."""
        return bool(self.lock._is_owned())


def is_free(lock: Any) -> bool:
    """Whether no thread, this one included, holds a ``threading.RLock``. In a forked child alone: elsewhere
    another thread may take it the next moment, or fail to because of the question."""
    if lock._is_owned() or not lock.acquire(False):
        return False
    lock.release()
    return True


def renewed(lock: RLock) -> RLock:
    """The lock that a forked child uses in the place of an inherited one: the same, unless it was held.

    A new one for each would do too, but those of thousands of topics are some hundred thousand objects, which
    the next garbage collection goes through.
    """
    return lock if is_free(lock.lock) else RLock()


Lock = system.allocate_lock

_ORDERED: Final = ("x86_64", "amd64", "i386", "i486", "i586", "i686", "x86")
_STORES_ARRIVE_S: Final = 1e-4
"""A store of another processor is seen after a microsecond at most."""


def _machine() -> str:
    """The kind of processor, as of ``platform.machine()``, whose import takes 5 ms."""
    return os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "")


def reorders(machine: str) -> bool:
    """Whether processors of that kind show stores, or make loads, in another order than that of the program.

    >>> reorders("x86_64"), reorders("AMD64"), reorders("aarch64"), reorders("riscv64")
    (False, False, True, True)
    """
    return machine.lower() not in _ORDERED


REORDERS = reorders(_machine())
"""Whether another processor may see stores of this one in another order, as on aarch64. On x86 it may not; a
load that runs ahead of an earlier store is all that happens there, and `new_fence` is against that."""
_locks: Final[Any] = _thread if _is_original(_thread.allocate_lock) else _fresh("_thread")


class _TwoWayFence:
    """The lock of a fence where a single acquire orders what follows it, and a release what precedes it: a
    release with an acquire behind it orders both."""

    __slots__ = ("_lock", "acquire")

    def __init__(self) -> None:
        self._lock = _locks.allocate_lock()
        self.acquire: Final[Callable[[bool], bool]] = self._lock.acquire

    def release(self) -> None:
        """Release, acquire and release the lock."""
        self._lock.release()
        self._lock.acquire(False)
        self._lock.release()


def new_fence() -> Any:
    """A lock that no other thread has. What is stored before its ``acquire(False)`` is seen by all processors
    before anything is loaded or stored that follows its ``release()`` (docs/concurrency.md, "Machines that
    reorder"). On x86 the two are an atomic instruction each, and each of these is a full barrier.

    >>> own = new_fence()
    >>> own.acquire(False), own.release()
    (True, None)
    """
    return _TwoWayFence() if REORDERS else _locks.allocate_lock()


def fence() -> None:
    """Pass through a fence of its own: for paths that are not hot, in any number of threads at a time."""
    own = new_fence()
    own.acquire(False)
    own.release()


def keep_order() -> None:
    """What is loaded and stored before is so before what comes next, but for loads that run ahead of stores:
    a `fence` where processors reorder, and nothing on x86, where that is so anyway."""
    if REORDERS:
        fence()


def await_stores() -> bool:
    """Where processors reorder, wait until what others have stored before is seen; False elsewhere: there
    what was read is what they stored. For what reads without a lock and finds something that does not fit."""
    if REORDERS:
        fence()
        system.sleep(_STORES_ARRIVE_S)
        fence()
    return REORDERS


current_id = system.get_ident


def current_name() -> str:
    """The name of this thread; empty for a thread of the package, which says nothing to an application."""
    name = threading.current_thread().name
    return "" if name.startswith(_OWN_THREADS) else name


def sleep(seconds: float) -> None:
    """Wait so long, under any clock."""
    system.sleep(seconds)


_OWN_THREADS: Final = "embeddedpulsar-"
_LOOK_S: Final = 0.005
_LEAVING_S: Final = 1.0


class Event:
    """A ``threading.Event`` of the primitives of `system`, whatever replaced those of ``threading`` since. A
    signal handler may set it, also in the middle of a wait of its own thread.

    >>> event = Event()
    >>> event.wait(0.01), event.set(), event.wait(), event.is_set()
    (False, None, True, True)
    """

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: dict[Any, None] = {}

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Wake those that wait now, and let no one wait from now on."""
        self._is_set = True  # before the waiters are looked at: one that is added later sees it
        # Each waiter is removed by the thread that releases it, so none is released twice; a second
        # release of a lock that is free would raise.
        while self._waiters:
            try:
                waiter, _ = self._waiters.popitem()
            except KeyError:
                return
            waiter.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set. False if the time is over before."""
        if self._is_set:
            return True
        waiter = system.allocate_lock()
        waiter.acquire()
        self._waiters[waiter] = None
        try:
            if not self._is_set:
                waiter.acquire(
                    True, -1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
                )
        finally:
            self._waiters.pop(waiter, None)
        return self._is_set


class Daemon(threading.Thread):
    """A daemon thread. Where something replaced threads after the package was imported, it is a real one all
    the same, which ``threading`` does not know.

    Attributes:
        runner: the id of the thread that runs the target; None until then.
        is_over: the target has returned, or raised.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=_OWN_THREADS + name, daemon=True)
        self.runner: int | None = None
        self.is_over = False
        self._over = system.allocate_lock()
        self._over.acquire()

    def run(self) -> None:
        self.runner = current_id()
        try:
            super().run()
        finally:
            self.is_over = True
            self._over.release()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return self.runner == current_id()

    def start(self) -> None:
        """Start it; it may not be alive yet when this returns. See `start_daemon`."""
        _start(self)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the target has returned; also before the thread is alive, unlike the original."""
        deadline = system.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        over = self._over
        # The lock is released once, by the thread at its end. Who gets it gives it back for the next
        # that joins.
        while not self.is_over:
            remaining_s = deadline - system.monotonic()
            if remaining_s <= 0:
                return
            # Not longer at once: an interrupt between these two calls leaves the lock to no thread.
            if over.acquire(True, min(_LOOK_S, remaining_s)):
                over.release()
        if self.ident is not None:
            super().join(_LEAVING_S)


def start_daemon(target: Callable[[], object], name: str) -> Daemon:
    """Start ``target`` on a daemon thread named ``embeddedpulsar-<name>`` and return the thread.

    For the caller this is one call into C. ``Thread.start`` takes a lock of the module ``threading``, for
    which a signal handler that starts a thread of its own would wait for ever; here it runs in the new
    thread, where no signal is handled. The thread may not be alive yet when this returns.
    """
    thread = Daemon(target, name)
    _start(thread)
    return thread


def _start(thread: Daemon) -> None:
    # The thread itself calls ``Thread.start``: what ``threading`` waits for there, it waits for in
    # the new thread.
    try:
        system.start_new_thread(_start_from_inside, (thread,))
    except RuntimeError as error:
        if sys.is_finalizing():
            raise
        raise ThreadLimitError(
            f"the thread {thread.name} does not start: {error}; end threads or processes, or raise the limit "
            "of the user (ulimit -u) or of the container (pids.max), and try again"
        ) from error


def _start_from_inside(thread: Daemon) -> None:
    # ``threading.Thread.start`` would start a greenlet of the library that replaced it.
    if are_threads_replaced():
        thread.run()
        return
    try:
        threading.Thread.start(thread)
    except RuntimeError:
        thread.run()  # there may be no more threads by now; this one can do it as well


_MOST_AT_ONCE: Final = 8


def side_by_side(functions: Sequence[Callable[[], object]]) -> list[BaseException | None]:
    """Call functions at the same time, up to 8 at once, and wait for all: for calls into the kernel that wait
    for a device, while which the interpreter is free.

    One runs in the calling thread, so a single one starts no other thread. Each has the deadline of the
    present call. Where the system refuses threads, or one does not begin, this thread calls what is left.
    After an interrupt of the wait, those that were begun go on.

    Returns:
        What each raised, in their order; None for one that returned.

    Example:
        >>> side_by_side([int, dict]), side_by_side([])
        ([None, None], [])
    """
    errors: list[BaseException | None] = [None] * len(functions)
    due = list(enumerate(functions))
    over: Any = SimpleQueue()

    def work() -> None:
        while due:
            try:
                number, function = due.pop(0)
            except IndexError:
                return  # another one was faster
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - returned
                errors[number] = error
            finally:
                over.put(number)

    for _ in range(min(len(functions), _MOST_AT_ONCE) - 1):
        try:
            start_daemon(partial(copy_context().run, work), "side-by-side")
        except ThreadLimitError:
            break
    work()
    # Not the ends of the threads: one that never begins took nothing.
    for _ in functions:
        over.get()
    return errors


_BEGIN_S: Final = 10.0


class LoneThread:
    """A daemon thread that is started when it is first needed, by any thread or signal handler.

    Invariants: the target is called once. Two that start it at the same time, say a thread and a signal
    handler in the middle of its `start`, may make two threads; the second ends without calling the target.

    Attributes:
        is_started: `start` need not be called.
    """

    __slots__ = ("_name", "_only", "_target", "_thread", "is_started")

    def __init__(self, target: Callable[[], object], name: str) -> None:
        self._target = target
        self._name = name
        self._only = system.allocate_lock()  # held by the thread that serves; tried, never waited for
        self._thread: Daemon | None = None
        self.is_started = False

    @property
    def is_current(self) -> bool:
        return self._thread is not None and self._thread.is_current

    def start(self) -> None:
        """Start it, if need be.

        Raises:
            ThreadLimitError: the system refuses another thread. The next call tries again.
        """
        if self.is_started:
            return

        # The lock is tried and never released by the thread that gets it: a second one returns at
        # once.
        def run() -> None:
            if self._only.acquire(False):
                self._thread, self.is_started = thread, True
                self._target()

        thread = Daemon(run, self._name)
        _start(thread)
        self._thread, self.is_started = self._thread or thread, True

    def wait_over(self, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """Wait until it has ended. True if it has, was never started, or is the caller."""
        thread = self._thread
        if thread is None or self.is_current:
            return True
        if not self._only.locked():
            # It is about to begin; or never will, if there was no memory for its first steps. Then it is
            # given up: with the lock taken from it, it ends at once should it begin after all.
            thread.join(min(timeout_s, _BEGIN_S))
            if self._only.acquire(False):
                return True
        thread.join(timeout_s)
        return thread.is_over


def Thread(target: Callable[[], object], name: str) -> Daemon:
    """A daemon thread that is not started yet, named ``embeddedpulsar-<name>``."""
    return Daemon(target, name)
