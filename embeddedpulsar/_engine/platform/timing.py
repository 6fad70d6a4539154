"""Time: clocks and the identity of the boot, deadlines of calls and Ctrl-C in them, timers.

`Clock` is given to all code that needs time, so that tests can stop it or let it jump. Wall time stamps
messages and falls due; ages are measured on the monotonic clock. A call that sleeps measures its timeout on
`SYSTEM_CLOCK`, because sleeping takes real time under any clock.

A deadline belongs to a call and goes with its thread, not with its arguments: the public call sets it with
`within`, and every wait for a lock below it, however deep, ends with it (`FileLock.acquire` and `enter` ask
`left`). Timers and event loops run their functions with `try_now`: then no lock is waited for at all, and one
that is held elsewhere raises `LockTimeout` at once. A deadline inside another one can only be shorter:
`anew` is for work that waits nevertheless.

The fast path of a lock does not come here: the deadline is looked up when a lock is held by another.

Ctrl-C in a blocking call: the error Pulsar has for it.

A worker thread blocks in short sleeps and file polls, and the main thread gets KeyboardInterrupt out of them.
The public calls that block translate it, so that ``except pulsar.Interrupted`` works as with
``pulsar-client`` and ``except KeyboardInterrupt`` as everywhere. An error of the operating system that
nothing below has named becomes a `StorageError` in the same way.

Timers: one daemon thread that sleeps until the next one is due. It starts with the first timer and sleeps
without a timeout when there is none, so an idle client costs nothing. Timers that fall due together run
together. Work that must not wait for a lock is tried now, and soon again while the lock is held elsewhere.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from types import FrameType, TracebackType

from embeddedpulsar._engine.platform import descriptors, fork, threads
from embeddedpulsar._engine.platform.access import named
from embeddedpulsar._engine.platform.threads import Empty, RLock, SimpleQueue, system
from embeddedpulsar.error_text import with_nearest_argument
from embeddedpulsar.exceptions import DescriptorLimitError, Interrupted, LockTimeout, PulsarException
from embeddedpulsar.records import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Any, Final

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
_SYSCTL_BYTES = 256
_boot_id: bytes | None = None


def sleep(seconds: float) -> None:
    """Wait so long, under any clock."""
    system.sleep(seconds)


def perf_counter() -> float:
    """Seconds on the most precise clock."""
    return float(system.perf_counter())


class ThreadLike(Protocol):
    """The part of a thread that its owner needs."""

    @property
    def is_current(self) -> bool: ...
    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...


class Clock(Protocol):
    """The clock as the layers above use it."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 (UTC). May step in either direction."""

    def wall_ns(self) -> int:
        """The same in nanoseconds."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back. Processes in other time namespaces have another one, so a
        time of one process means nothing to the others."""

    def sleep(self, seconds: float) -> None:
        """Wait until so much of `monotonic` has passed."""

    def scheduler(self, patience_s: float = 0.0) -> SchedulerLike:
        """A scheduler whose timers are due on this clock."""

    def thread(self, target: Callable[[], object], name: str) -> ThreadLike:
        """A thread for work of a timer that may have to wait."""


class SystemClock:
    """The clocks of the machine. Thread-safe, without state.

    >>> clock = SystemClock()
    >>> clock.monotonic() <= clock.monotonic()
    True
    """

    __slots__ = ()

    def wall_ms(self) -> int:
        return system.time_ns() // 1_000_000

    wall_ns = staticmethod(system.time_ns)

    monotonic = staticmethod(system.monotonic)

    def sleep(self, seconds: float) -> None:
        system.sleep(seconds)

    def scheduler(self, patience_s: float = 0.0) -> SchedulerLike:
        return Scheduler(self, patience_s)

    def thread(self, target: Callable[[], object], name: str) -> ThreadLike:
        return threads.Thread(target, name)


SYSTEM_CLOCK = SystemClock()

CLOCK: Clock = SYSTEM_CLOCK
"""The clock of the stores that are opened from now on; `embeddedpulsar.testing.ManualClock` replaces it."""


def boot_id() -> bytes:
    """Return 16 bytes that are the same for every process until the machine reboots, then different.

    A file that carries another boot id may have lost what was not flushed. Where the system gives no such id
    (neither Linux, macOS, FreeBSD nor Windows), the hour of the boot, estimated from the clocks, stands in: a
    false alarm costs a recovery scan.

    >>> len(boot_id()), boot_id() == boot_id()
    (16, True)
    """
    # Read once: it cannot change while this process lives. Two threads that read at once store the
    # same.
    global _boot_id
    if _boot_id is None:
        _boot_id = _sixteen_bytes(_boot_text())
    return _boot_id


def _sixteen_bytes(text: str) -> bytes:
    try:
        digits = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        digits = b""
    if len(digits) == 16:  # a UUID, as on Linux and macOS
        return digits
    import hashlib  # 2 ms, and not needed there

    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _boot_text() -> str:
    if sys.platform == "win32":
        return _windows_boot_text()
    try:
        return descriptors.opening(f"cannot open {_BOOT_ID_PATH}", _read_text, _BOOT_ID_PATH)
    # Every other failure means that the system has no such file, for which the next way is tried.
    except DescriptorLimitError:
        raise  # a guess would let every file of the store seem to be of another boot
    except OSError:
        return _sysctl_boot_text()


def _read_text(path: str) -> str:
    with open(path, "rb", buffering=0) as file:  # as text it would take a codec, which is a module
        return file.read().decode().strip()


def _sysctl_boot_text() -> str:
    # macOS has the first, FreeBSD the second.
    for name in ("kern.bootsessionuuid", "kern.boot_id"):
        text = _sysctl(name)
        if text:
            return text
    return _estimated_boot_text()


def _sysctl(name: str) -> str:
    """A text that the kernel has by that name; empty if it has none."""
    try:
        with descriptors.late_imports():
            import ctypes
        ask = ctypes.CDLL(None, use_errno=True).sysctlbyname
    except (ImportError, OSError, AttributeError):  # a Python without ctypes, or a C library without the call
        return _sysctl_program(name)
    buffer = ctypes.create_string_buffer(_SYSCTL_BYTES)
    size = ctypes.c_size_t(_SYSCTL_BYTES)
    if ask(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return ""
    return str(buffer.value.decode(errors="replace")).strip()


def _sysctl_program(name: str) -> str:
    import subprocess  # here and not above: 10 ms, and never needed on Linux

    try:
        answer = subprocess.run(
            ["sysctl", "-n", name], capture_output=True, check=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def _windows_boot_text() -> str:  # pragma: no cover - Windows only
    if sys.platform == "win32":
        import winreg

        key = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as handle:
                return f"boot {winreg.QueryValueEx(handle, 'BootId')[0]}"
        except OSError:
            return _estimated_boot_text()
    return _estimated_boot_text()


def _estimated_boot_text() -> str:
    # Both clocks are read one after the other and the wall clock may be set, so only the hour of
    # their difference is used. A change of the hour looks like a reboot: recovery runs, and finds the
    # same log.
    return f"about {round((system.time() - system.monotonic()) / 3600)}"


_OFFSETS_PATH: Final = "/proc/self/timens_offsets"


def monotonic_offset_ms() -> int:
    """What the monotonic clock of the machine is ahead of that of this process, in ms.

    A process in a time namespace, as a container may have, has a clock with an offset; the kernel tells it.
    A time that processes compare is that of the machine. 0 where there are no such namespaces.
    """
    try:
        text = _read_text(_OFFSETS_PATH)
    except OSError:
        return 0
    for line in text.splitlines():
        fields = line.split()  # "monotonic  86400  0": seconds and nanoseconds
        if len(fields) == 3 and fields[0] == "monotonic":
            return -(int(fields[1]) * 1000 + int(fields[2]) // 1_000_000)
    return 0


TURN_S: Final = 1e-3
"""How long a call that must not wait still waits for a holder that runs: a section takes microseconds."""
LONGEST_S: Final = 30.0
"""How long a thread lock of this process is waited for without a deadline: as long as a file lock."""

_NEVER: Final = float("inf")
_ends: Final[ContextVar[float]] = ContextVar("embeddedpulsar_deadline", default=_NEVER)

R = TypeVar("R")


def within(seconds: float, function: Callable[..., R], *arguments: object) -> R:
    """Call ``function(*arguments)``; its waits for locks end ``seconds`` from now, all together.

    About 0.15 us. The context is entered and left in C, so no interrupt leaves the deadline behind.

    >>> within(5.0, left, 30.0) <= 5.0
    True
    >>> left(30.0)
    30.0
    """
    # The outer deadline stays where it is sooner, without a new context. A call inside can only
    # shorten the time.
    end = system.monotonic() + seconds
    if _ends.get() <= end:
        return function(*arguments)
    context = copy_context()  # as in `_run`, without its call
    context.run(_ends.set, end)
    return context.run(function, *arguments)


def within_half(function: Callable[..., R], *arguments: object) -> R:
    """Call ``function(*arguments)`` within half of the time that the present call has left.

    For a call that does the same for many objects: one that is stuck leaves time to the next.

    >>> within(8.0, within_half, left, 30.0) <= 4.0
    True
    """
    return within(left(LONGEST_S) / 2, function, *arguments)


def try_now(function: Callable[..., R], *arguments: object) -> R:
    """Call ``function(*arguments)``, which waits for no lock.

    >>> try_now(left, 30.0)
    0.0
    """
    if _ends.get() <= 0.0:
        return function(*arguments)
    return _run(0.0, function, arguments)


def anew(seconds: float, function: Callable[..., R], *arguments: object) -> R:
    """As `within`, also if the deadline of the present call is sooner: work of a timer that waits a little.

    >>> 0.0 < try_now(anew, 0.5, left, 30.0) <= 0.5
    True
    """
    return _run(system.monotonic() + seconds, function, arguments)


def unbounded(function: Callable[..., R], *arguments: object) -> R:
    """Call code of the application without the deadline of the present call.

    >>> within(5.0, unbounded, left, 30.0)
    30.0
    """
    return function(*arguments) if _ends.get() == _NEVER else _run(_NEVER, function, arguments)


def _run(end: float, function: Callable[..., R], arguments: tuple[object, ...]) -> R:
    # Not `set` and `reset` in this context: an interrupt between a `set` and the `try` that resets it
    # would leave the deadline to all later calls of the thread. The copy ends with the call.
    context = copy_context()
    context.run(_ends.set, end)
    return context.run(function, *arguments)


def left(timeout_s: float) -> float:
    """How long to wait for a lock that would be waited for ``timeout_s`` seconds; 0 to try only."""
    end = _ends.get()
    if end == _NEVER:
        return timeout_s
    return max(0.0, min(timeout_s, end - system.monotonic()))


def enter(lock: RLock, what: str) -> None:
    """Acquire a lock between threads under which others may wait for another process.

    In the place of ``lock.acquire()``, inside the ``try`` whose ``finally`` releases it.

    Raises:
        LockTimeout: another thread stayed inside.
    """
    # The first try reads no deadline and no clock. That is the usual case.
    if lock.acquire(False):
        return
    timeout_s = left(LONGEST_S)
    if not lock.acquire(True, timeout_s):
        raise LockTimeout(
            f"another thread of this process stayed inside {what} for {timeout_s:g} s, perhaps behind "
            "another process that is stopped inside a lock"
        )


P = ParamSpec("P")


class _Translation:
    """Context manager without state: one object serves every call and thread."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            translate(error)


def translate(error: BaseException) -> None:
    """Raise the error that Pulsar has for ``error``; return if it needs none. For hot code, in the place of
    `translated`."""
    # No local may hold what is raised: that refers to this frame, and the frames below, with all that they
    # hold, would stay until the garbage collector runs.
    if isinstance(error, KeyboardInterrupt) and not isinstance(error, Interrupted):
        if is_within_another_call():
            return
        # The place where it struck says nothing to the caller; it stays the context of the error.
        raise Interrupted(str(error)) from None
    # `named` returns the same object where the error has its text already.
    if isinstance(error, OSError) and (told := named(error)) is not error:
        raise told from error
    if isinstance(error, PulsarException) and isinstance(error.__context__, (IndexError, ValueError)):
        error.__suppress_context__ = True  # that a queue was empty, or a map closed, explains nothing


def is_within_another_call() -> bool:
    """Whether the caller's call was made in the middle of another call of its thread, by a signal handler.

    Ctrl-C leaves such a call as ``KeyboardInterrupt``. `Interrupted` is an ``Exception``, as in Pulsar, and
    the call that the handler interrupted would take it for a failure of its own, for example of the message
    that it is storing. That call raises `Interrupted` in the end.
    """
    package = __name__.partition(".")[0] + "."
    is_ours = True
    frame: FrameType | None = sys._getframe(1)
    # From here outwards: the frames of this call, those of its caller, and then those of another call.
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        # A stack of contexts that this package unwinds lies between frames of one call.
        if module != contextlib.__name__:
            was_ours, is_ours = is_ours, module.startswith(package)
            if is_ours and not was_ours:
                return True
        frame = frame.f_back
    return False


def is_raised_by_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it in the middle of what its thread was doing.

    Such an error is an interrupt, whatever its class: it says nothing of the message, file or call in whose
    middle it struck. A handler is known by its argument, which is the frame that it interrupted.
    """
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        below = frame.f_back
        if below is not None and any(value is below for value in frame.f_locals.values()):
            return True
        traceback = traceback.tb_next
    return False


def is_interrupt(error: BaseException) -> bool:
    """Whether a call ended by Ctrl-C, by the end of the program, or by an error of a signal handler."""
    return (
        not isinstance(error, Exception)
        or isinstance(error, KeyboardInterrupt)
        or is_raised_by_handler(error)
    )


def translating(method: Callable[P, R]) -> Callable[P, R]:
    """The method with `translated` around each call. Signature and documentation stay."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            translate(error)
            told = with_nearest_argument(error, method) if isinstance(error, TypeError) else None
            if told is not None:
                raise told from None
            raise

    call._is_translating = True  # type: ignore[attr-defined]
    return call


def is_translating(method: object) -> bool:
    """Whether `translating` made the method."""
    return hasattr(method, "_is_translating")


translated: Final = _Translation()
"""``with interrupts.translated:`` around a blocking call raises `Interrupted` where Ctrl-C hit.

Nothing is cleaned up by it: what the block holds is given back in its own ``finally``.
"""


_COMPACT_FROM = 64  # cancelled timers are swept from a heap of this size on, when they are the larger half
_AFTER_FAILURE_S = 0.1
_MOST_LATER = 1000  # timers that wait for the thread to wake: some of them were cancelled long ago


class Beat:
    """Calls functions every ``interval_s`` seconds, one after the other.

    Role: the subscriptions of thousands of topics have to show that this process runs. With a timer for each
    the timer thread would run most of the time. Invariants: at most one timer is current, and there is one
    while there are functions. The first call of a function may come sooner than after an interval; one that
    raises does not keep the others from being called.
    Callers: any thread, and signal handlers: no lock is taken.
    """

    __slots__ = ("_call", "_call_later", "_current", "_functions", "_interval_s", "_timer")

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], object]], Timer],
        interval_s: float,
        call: Callable[[Callable[[], object]], object],
    ) -> None:
        self._call_later: Final = call_later
        self._interval_s: Final = interval_s
        self._call: Final = call
        self._functions: dict[Callable[[], object], None] = {}
        self._current: object = None  # stands for the current timer
        self._timer: Timer | None = None

    def add(self, function: Callable[[], object]) -> None:
        """Call ``function()`` at every beat from now on; once, however often it joined."""
        self._functions[function] = None
        if self._current is None:
            self._start_timer()

    def remove(self, function: Callable[[], object]) -> None:
        # No lock, so every order of two threads has to be right: the timer is given up first, and the
        # functions are looked at again after it. One that was added between finds no timer, or starts
        # the next.
        self._functions.pop(function, None)
        if self._functions or self._current is None:
            return
        self._current, timer = None, self._timer
        if timer is not None:
            timer.cancel()
        if self._functions and self._current is None:  # another thread joined, and saw the timer
            self._start_timer()

    def _start_timer(self) -> None:
        token = self._current = object()
        # Stored before the timer exists: a timer that is due at once finds its token.
        try:
            self._timer = self._call_later(self._interval_s, partial(self._on_timer, token))
        except BaseException:
            self._current = None
            raise

    def _on_timer(self, token: object) -> None:
        if token is not self._current:
            return  # of two threads that armed it at once, one had its timer replaced
        self._current = None  # first: a function that joins from here on arms it, or is in the list
        functions = list(self._functions)
        if functions and self._current is None:
            self._start_timer()
        for function in functions:
            self._call(function)


class Timer:
    """One call to come. Thread-safe."""

    __slots__ = ("_owner", "due", "function")

    def __init__(self, owner: Timers, due: float, function: Callable[[], object]) -> None:
        self._owner = owner
        self.due = due
        self.function: Callable[[], object] | None = function

    def cancel(self) -> None:
        """Do not run it, unless it runs already. Idempotent; drops the reference to the function."""
        if self.function is not None:
            self.function = None
            self._owner.note_cancelled()

    @property
    def is_pending(self) -> bool:
        return self.function is not None


def is_idle(timer: Timer | None) -> bool:
    """Whether nothing will run any more: there is no timer, or it ran, runs or was cancelled.

    A function that is due at once may run before the thread that armed the timer has stored it, for as long
    as that thread is stopped. What is stored then has run already, and must not count as one to come.

    >>> is_idle(None), is_idle(Timer(Timers(), 0.0, print))
    (True, False)
    """
    return timer is None or timer.function is None


class SchedulerClosed(RuntimeError):
    """The scheduler is closed, and calls nothing later."""


class SchedulerLike(Protocol):
    """The methods that the layers above need of either scheduler."""

    def call_later(self, delay_s: float, function: Callable[[], object]) -> Timer: ...
    def beat(self, interval_s: float) -> Beat: ...
    def trigger(self, function: Callable[[], object]) -> Callable[[], object]: ...
    def close(self) -> None: ...


class Timers:
    """A heap of timers for one thread. Other threads only cancel, which touches a counter."""

    __slots__ = ("_cancelled", "_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._cancelled = 0

    def __len__(self) -> int:
        return sum(timer.is_pending for _, _, timer in self._heap)

    def push(self, timer: Timer) -> None:
        # Most timers are timeouts that are cancelled. Without this the heap would keep them until
        # they are due.
        if self._cancelled > _COMPACT_FROM and 2 * self._cancelled > len(self._heap):
            self._heap = [item for item in self._heap if item[2].is_pending]
            heapq.heapify(self._heap)
            self._cancelled = 0
        heapq.heappush(self._heap, (timer.due, next(self._order), timer))

    def note_cancelled(self) -> None:
        self._cancelled += 1  # an estimate, only read to decide when to sweep

    def next_due(self) -> float | None:
        # Cancelled timers at the top are dropped here, so that the thread does not wake for them.
        heap = self._heap
        while heap and not heap[0][2].is_pending:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now: float) -> list[Callable[[], object]]:
        due = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            timer = heapq.heappop(heap)[2]
            function, timer.function = timer.function, None
            if function is not None:
                due.append(function)
        return due


class Scheduler:
    """Runs functions later, on one thread of its own.

    Thread-safe, and safe in signal handlers and finalizers: a caller takes no lock. A timer that is due
    before the thread wakes by itself goes into a queue, which is one call into C that also wakes the thread;
    an interrupt comes before it or after it. One that is due later waits in a list, and wakes no thread. The
    heap belongs to the thread alone.

    Functions run one after the other, holding no lock; they should be short, and wait for no lock: with
    ``patience_s`` 0 they run with a `deadline` that is over, and a lock that is held elsewhere raises
    `LockTimeout` in them (`BackgroundWork` tries again). One that raises, whatever it
    raises, is logged (logger ``embeddedpulsar``), and the thread continues. After a fork the child has no
    timers and starts its own thread with its first one.
    """

    def __init__(self, clock: Clock, patience_s: float = 0.0) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._incoming: SimpleQueue[Timer | None] = SimpleQueue()
        self._later: deque[Timer] = deque()
        self._wakes_at = math.inf  # when the thread wakes by itself; it looks into `_later` after storing it
        self._timers = Timers()
        self._beats: dict[float, Beat] = {}
        self._thread = threads.LoneThread(self._run, "timers")
        self._closed = False

    def call_later(self, delay_s: float, function: Callable[[], object]) -> Timer:
        """Call ``function()`` once, ``delay_s`` seconds from now (never early; a negative delay means at
        once).

        Raises:
            SchedulerClosed: it is closed.
            RuntimeError: the system refuses the thread. Nothing is scheduled, and the next call tries to
                start it again.
        """
        if self._closed:
            raise SchedulerClosed("the scheduler is closed")
        # The thread is started first: a timer in a queue that no thread reads would never run.
        timer = Timer(self._timers, self._clock.monotonic() + max(0.0, delay_s), function)
        if not self._thread.is_started:
            self._thread.start()
        if timer.due < self._wakes_at or len(self._later) >= _MOST_LATER:
            self._incoming.put(timer)
        else:
            self._later.append(timer)
            if timer.due < self._wakes_at:  # meanwhile it went to sleep for longer
                self._incoming.put(None)
        return timer

    def trigger(self, function: Callable[[], object]) -> Callable[[], object]:
        """Return a call that has ``function()`` called soon, once, for a finalizer: it is one call into C, in
        which no interrupt is lost. It starts no thread: where none runs, the function waits for one."""
        return partial(self._incoming.put, Timer(self._timers, 0.0, function))

    def beat(self, interval_s: float) -> Beat:
        """An object that calls functions every ``interval_s`` seconds with one timer."""
        return self._beats.setdefault(interval_s, Beat(self.call_later, interval_s, call_logged))

    def close(self) -> None:
        """Drop what is pending and end the thread; waits for a function that runs. Idempotent."""
        self._closed = True
        self._incoming.put(None)
        self._thread.wait_over()
        self._timers, self._incoming, self._later = Timers(), SimpleQueue(), deque()

    @property
    def pending(self) -> int:
        """About how many timers are neither run nor cancelled."""
        return 0 if self._closed else len(self._timers) + self._incoming.qsize() + len(self._later)

    def after_fork_in_child(self) -> None:
        closed = self._closed
        self._reset()
        self._closed = closed

    def _run(self) -> None:
        while not self._closed:
            try:
                self._run_due()
            except BaseException:  # noqa: BLE001 - no memory, say; whatever it is, timers must continue
                system.sleep(_AFTER_FAILURE_S)

    def _run_due(self) -> None:
        """Sleep until a timer is due or comes in; take in what came, and run what is due."""
        # `_wakes_at` is stored before `_later` is looked at. A caller appends to `_later` before it
        # compares again, so one of the two sees the other.
        timers, incoming, later = self._timers, self._incoming, self._later
        first = timers.next_due()
        self._wakes_at = math.inf if first is None else first
        sleep_s = None if first is None else min(first - self._clock.monotonic(), threading.TIMEOUT_MAX)
        # Sleeps in the queue: a timer that is due sooner is one `put`, which wakes this thread.
        if (sleep_s is None or sleep_s > 0) and not later:
            with contextlib.suppress(Empty):
                self._take_in(incoming.get(timeout=sleep_s))
        while incoming.qsize():  # only this thread takes from it
            self._take_in(incoming.get())
        while later:
            timers.push(later.popleft())
        for function in timers.take_due(self._clock.monotonic()):
            # Each function has the deadline of its own, so one that waited leaves the next its
            # patience.
            if not self._closed:
                within(self._patience_s, call_logged, function)

    def _take_in(self, timer: Timer | None) -> None:
        if timer is not None:
            self._timers.push(timer)


def call_logged(function: Callable[[], object]) -> None:
    """Call ``function()``; an exception goes to the log of the package instead of ending the thread."""
    try:
        function()
    except SchedulerClosed:
        return  # it armed itself again while its owner was closed
    except BaseException as error:  # noqa: BLE001 - logged
        try:
            logging = descriptors.opening("cannot import logging", _logging)
        except DescriptorLimitError:  # likely what failed; the thread must continue
            if sys.stderr is not None:
                sys.stderr.write(f"a timer failed: {function!r}: {error!r}\n")
            return
        logging.getLogger("embeddedpulsar").exception("a timer failed: %r", function)


def _logging() -> Any:
    import logging

    return logging


FIRST_PAUSE_S: Final = 1e-3
LONGEST_PAUSE_S: Final = 0.05
PATIENT_PAUSE_S: Final = 1.0
LONG_S: Final = 1.0
AFTER_FAILURE_S: Final = 1.0

CallLater = Callable[[float, Callable[[], object]], "Timer"]


class Backoff:
    """Pauses between tries: 1 ms, doubling up to 50 ms, and from 0.2 s on a quarter of all pauses so far, up
    to 1 s: hundreds of processes that try more often leave the holder of the lock no CPU.

    >>> backoff = Backoff()
    >>> [backoff.next() for _ in range(8)]
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
    >>> [round(backoff.next(), 2) for _ in range(16)][-3:]
    [0.77, 0.97, 1.0]
    >>> backoff.reset()
    >>> backoff.next()
    0.001
    """

    __slots__ = ("_is_reported", "_passed_s", "_progress", "_reached_s", "pause_s")

    def __init__(self) -> None:
        self.pause_s = 0.0
        self._passed_s = self._reached_s = 0.0
        self._progress: object = None
        self._is_reported = False

    def reset(self) -> None:
        """Note that the lock was free."""
        self.pause_s = 0.0
        self._passed_s = self._reached_s = 0.0
        self._progress = None
        self._is_reported = False

    def next(self) -> float:
        """How long to pause now that the lock was held."""
        longest = max(LONGEST_PAUSE_S, min(self._passed_s / 4, PATIENT_PAUSE_S))
        self.pause_s = min(2 * self.pause_s, longest) or FIRST_PAUSE_S
        self._passed_s += self.pause_s
        return self.pause_s

    def is_busy(self, progress: object) -> bool:
        """Whether the lock was held, and passed to another holder since the last `is_long` with its
        ``progress``: then it is not stuck, and worth waiting for a little."""
        return self.pause_s > 0 and progress != self._progress

    def is_long(self, progress: object = None) -> bool:
        """Whether to tell the user: once, when the pauses since the last `reset` come to a second.

        Args:
            progress: what the holders of the lock change, if that is known. A lock that passes from one to
                the next is busy, not stuck: the second begins anew with each change.
        """
        if progress != self._progress:
            self._progress, self._reached_s = progress, self._passed_s
        if self._is_reported or self._passed_s - self._reached_s < LONG_S:
            return False
        self._is_reported = True
        return True


class BackgroundWork:
    """One piece of work of a timer, a wake-up or a death.

    Role: calls ``work()``, which waits for no lock meanwhile (`deadline.try_now`). If a lock is held
    elsewhere (`LockTimeout`), ``work`` is called again by a timer (`Backoff`), until it gets through: so a
    lock that a stopped process holds delays this work and no other. Any other exception goes to the caller
    of `run`. One that strikes a timer goes to the log, and the work is done again after a second.

    Invariants: at most one timer is pending. ``work`` may be called twice at once, by the timer and by
    `run`, and can be repeated after it raised. Callers: any thread, holding no lock that ``work`` takes.
    """

    __slots__ = ("_backoff", "_call_later", "_is_over", "_timer", "_work")

    def __init__(self, call_later: CallLater, work: Callable[[], object]) -> None:
        self._call_later: Final = call_later
        self._work: Final = work
        self._backoff: Backoff | None = None  # made when a lock was held for the first time
        self._timer: Timer | None = None
        self._is_over = False

    def run(self) -> bool:
        """Do the work now.

        Returns:
            False if a lock is held elsewhere: then it is done later.
        """
        if self._is_over:
            return True
        try:
            try_now(self._work)
        except LockTimeout:
            self._backoff = backoff = self._backoff or Backoff()
            self.after(backoff.next())
            return False
        self._backoff = None
        return True

    def after(self, delay_s: float) -> None:
        """Do the work on a timer, unless one is pending."""
        if is_idle(self._timer) and not self._is_over:
            self._timer = self._call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None  # first: what becomes due from here on starts another
        try:
            self.run()
        except Exception:
            self.after(AFTER_FAILURE_S)
            raise  # to the log

    def cancel(self) -> None:
        """Do the work no more. Idempotent."""
        self._is_over = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
