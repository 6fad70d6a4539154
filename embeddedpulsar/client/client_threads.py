"""A call that a coroutine runs on another thread and may abandon.

The thread on which a client runs the callbacks of its producers.

The log of a client: failures without a caller to raise them to, and objects opened and closed.

Threads of a client that wait: for a condition, or for exclusive access to a topic.

What a call of the client has attached so far: closed at once if the call does not return it.

The thread of a client that stores messages which its producers could not store at once.

The limit of a client for the bytes of messages that are not stored yet.

Threads for work that may have to wait for locks, away from timers.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from sys import modules

from embeddedpulsar._engine.platform import fork, package_log, threads, timing
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar.client.client_config import ConsoleLogger, FileLogger
from embeddedpulsar.enums import LoggerLevel
from embeddedpulsar.exceptions import AlreadyClosed, MemoryBufferIsFull
from embeddedpulsar.message import Message
from embeddedpulsar.records import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.platform.timing import ThreadLike


class AwaitedCall:
    """A call on this thread whose result a coroutine awaits; the coroutine may abandon it.

    Role: `current` holds the call in the thread that runs it. Abandoning interrupts nothing: code that waits,
    or stores many messages, checks `is_given_up` between its steps.
    Who may call: any thread.

    Attributes:
        is_given_up: whether the coroutine was cancelled, so that the result is not needed.
    """

    __slots__ = ("is_given_up",)

    def __init__(self) -> None:
        self.is_given_up = False

    def give_up(self) -> None:
        self.is_given_up = True


current: Final[ContextVar[AwaitedCall | None]] = ContextVar("awaited_call", default=None)


def checks(check_open: Callable[[], object]) -> Callable[[], object]:
    """Return a check that calls ``check_open`` and raises if the current call was abandoned.

    >>> call = AwaitedCall()
    >>> before = current.set(call)
    >>> check = checks(lambda: "open")
    >>> current.reset(before)
    >>> check()
    >>> call.give_up()
    >>> check()
    Traceback (most recent call last):
    embeddedpulsar.exceptions.AlreadyClosed: Pulsar error: AlreadyClosed: the caller was cancelled
    """
    # Bound when the check is made, in the thread of the call: a check that is made for later, as by a timer,
    # belongs to no call.
    call = current.get()
    if call is None:
        return check_open

    def check() -> None:
        check_open()
        if call.is_given_up:
            raise AlreadyClosed("the caller was cancelled")

    return check


Job = Callable[[], object]
monotonic = SYSTEM_CLOCK.monotonic


class CallbackThread:
    """Runs jobs one after the other on one daemon thread, in the order in which they were added.

    Role: user callbacks never run under a lock of this package, nor in the thread that sends. The thread
    starts with the first job and sleeps when there is none.

    A wake-up costs more than most jobs, and the two threads then compete for the interpreter. So after many
    wake-ups in a short time, the thread polls every millisecond as long as it finds several jobs each time.
    A caller that waits for each callback is served by wake-ups.

    Thread-safe. `put` is an append and, when the thread sleeps, one wake-up. It takes no lock, so it may be
    called under any lock. After a fork the child starts without jobs, because they belong to the parent, and
    starts its own thread.
    """

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._jobs: deque[Job] = deque()
        self._wake = threads.Lock()
        self._wake.acquire()  # stays held until `_ring` releases it
        self._sleeps = False
        self._thread = threads.LoneThread(self._run, "callbacks")
        self._closed = False
        self._looks_by_itself = False
        self._poor_looks = 0
        self._woken = 0
        self._counted_from = 0.0
        self._not_again_before = 0.0

    def put(self, job: Job) -> None:
        """Add a job. An exception that the job raises is logged, and is never raised here."""
        # The append comes before the flag is read; `_sleep` does both in the other order. So one of the two
        # threads sees the other.
        self._jobs.append(job)
        if self._sleeps:
            self._ring()
        elif not self._thread.is_started:
            self._begin()

    def run_after_all(self, job: Job) -> None:
        """Run a job after all jobs added before: in this thread, at once, if they have already run."""
        if self.is_idle:
            job()
        else:
            self.put(job)

    def wait_done(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs added before have run. Returns True at once in the callback thread itself.

        Interruptible. Returns False after the timeout.

        Raises:
            RuntimeError: there are jobs, and the system refuses the thread.
        """
        # In the callback thread a wait for itself would never end.
        if self.is_idle or self.is_current:
            return True
        self._thread.start()
        done = threads.Event()
        self.put(done.set)
        return done.wait(timeout_s)

    @property
    def is_idle(self) -> bool:
        """Whether all jobs added before have run."""
        return not self._jobs and (self._sleeps or not self._thread.is_started)

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def is_current(self) -> bool:
        return self._thread.is_current

    def close(self) -> None:
        """Run the remaining jobs, then end the thread. Does not wait for a callback that never returns."""
        self._closed = True
        if self._thread.is_started or self._jobs:
            # Wakes the thread, which sees `_closed` when it has run the rest.
            self.put(_nothing)
            self._thread.wait_over(max(_SHORTEST_GOODBYE_S, timing.left(_LONGEST_GOODBYE_S)))

    def after_fork_in_child(self) -> None:
        self._reset()

    def _begin(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # too many threads; the next `put` tries again
            self._log.warning("%d callbacks wait for a thread: %s", len(self._jobs), error)

    def _ring(self) -> None:
        self._sleeps = False
        try:
            self._wake.release()
        except RuntimeError:
            return  # two threads rang at once, and the callback thread is awake

    def _run(self) -> None:
        jobs = self._jobs
        while True:
            try:
                job = jobs.popleft()
            except IndexError:
                if self._closed:
                    return
                self._sleep()
                continue
            try:
                job()
            except BaseException:  # noqa: BLE001 - whatever it was, the next job has its turn
                self._log.exception("A job of the callback thread failed: %r", job)
            del job  # the job may hold the last reference to a producer, which can be closed meanwhile

    def _sleep(self) -> None:
        if self._looks_by_itself:
            # Polling: a sleep of a millisecond instead of a wake-up for each job. It pays only with several
            # jobs each time; after a few looks that found less, wake-ups are tried again for a while.
            self._wake.acquire(timeout=_LOOK_S)
            self._poor_looks = 0 if len(self._jobs) >= _SEVERAL else self._poor_looks + 1
            if self._poor_looks < _TOO_POOR:
                return
            self._looks_by_itself = False
            self._not_again_before = monotonic() + _PATIENCE_S
        # Set the flag before looking at the queue: a job added before the flag is seen here, and a thread
        # that adds one after it rings.
        self._sleeps = True
        if self._jobs or self._closed:
            self._sleeps = False
            return
        # An interrupt between the two lines of _ring loses the wake-up; the time limit bounds the delay.
        self._wake.acquire(timeout=_LONGEST_NAP_S)
        self._sleeps = False
        self._count_wake_up()

    def _count_wake_up(self) -> None:
        self._woken += 1
        # Sixteen wake-ups within 5 ms: more than 3,000 a second, each dearer than the job that it brings.
        if self._woken == _MANY:
            now = monotonic()
            is_often = now - self._counted_from < _SHORT_S
            self._looks_by_itself = is_often and now >= self._not_again_before
            self._poor_looks = 0
            self._woken = 0
            self._counted_from = now


# Seconds and counts of the polling, and how long `close` waits for jobs that take their time: at least 0.2 s,
# also if the deadline of the call is over.
_LOOK_S = 0.001
_SEVERAL = 4
_TOO_POOR = 3
_MANY = 16  # so many wake-ups within the period start polling
_SHORT_S = 0.005
_PATIENCE_S = 0.2
_LONGEST_NAP_S = 1.0
_SHORTEST_GOODBYE_S = 0.2
_LONGEST_GOODBYE_S = 5.0


def _nothing() -> None:
    return None


_NAME = package_log.NAME


LOG_FIELDS: Final = (
    ("topic", "ep_topic"),
    ("subscription", "ep_subscription"),
    ("consumer", "ep_consumer"),
    ("producer", "ep_producer"),
    ("message_id", "ep_message_id"),
    ("function", "ep_function"),
    ("instance", "ep_instance"),
)
"""What a log record may be about, and the attribute of the record that has it as a text."""
_NAMING: Final = (("topic", "topic"), ("subscription", "subscription_name"), ("consumer", "consumer_name"))


def log_fields(values: Iterable[object], fields: Mapping[str, object]) -> dict[str, str]:
    """Return the attributes of a log record, as the argument ``extra`` of `logging`.

    Args:
        values: of its text; messages, producers, consumers and readers name topic, subscription and so on.
        fields: what is known of the record besides, by the names of `LOG_FIELDS`.

    >>> log_fields(["soup"], {"topic": "persistent://public/default/orders", "instance": 0})
    {'ep_topic': 'persistent://public/default/orders', 'ep_instance': '0'}
    """
    about: dict[str, object] = {}
    for value in values:
        if isinstance(value, Message):
            about |= {"topic": value.topic_name(), "message_id": value.message_id()}
        elif hasattr(value, "is_connected"):
            about |= fields_of(value)
    about |= fields
    return {
        attribute: str(about[name]) for name, attribute in LOG_FIELDS if about.get(name) not in (None, "")
    }


def fields_of(owner: object) -> dict[str, object]:
    """Return what a producer, consumer or reader says of a log record, by the names of `LOG_FIELDS`."""
    naming = (*_NAMING, ("producer", "producer_name"))
    return {name: getattr(owner, method)() for name, method in naming if hasattr(owner, method)}


class ClientLog:
    """Logs to the ``logger`` argument of the client, or by default to the logger ``embeddedpulsar``.

    ``logging`` is imported with the first message, because the import is a large part of the cost of opening
    a client. Any thread may call the log. It never raises, and it is never called under a lock for which
    other processes wait.
    """

    __slots__ = ("_argument", "_logger")

    def __init__(self, logger: object = None) -> None:
        self._argument = logger
        self._logger: Any = None
        if logger is not None and not isinstance(logger, ConsoleLogger | FileLogger):
            import logging

            if not isinstance(logger, logging.Logger):
                raise ValueError(
                    "Logger is expected to be either None, logger.Logger, pulsar.ConsoleLogger or "
                    "pulsar.FileLogger"
                )
            self._logger = logger

    @property
    def is_shared(self) -> bool:
        """Whether this is the package's own log, and not that of one client."""
        return self._argument is None

    def exception(self, text: str, *values: object, **fields: object) -> None:
        """Log the exception that is being handled; arguments as for `warning`."""
        self._get().error(text, *values, exc_info=True, extra=log_fields(values, fields))

    def warning(self, text: str, *values: object, **fields: object) -> None:
        """Log a condition that the user should look into.

        Args:
            text: with places for the values.
            values: producers, consumers, readers and messages among them say what the record is about.
            fields: what else it is about, by the names of `LOG_FIELDS`.
        """
        self._get().warning(text, *values, extra=log_fields(values, fields))

    @property
    def is_heard(self) -> bool:
        """Whether anything may come of `info`: for a caller that would have to make the values."""
        return self._argument is not None or package_log.is_heard()

    def info(self, text: str, *values: object, **fields: object) -> None:
        """Log a normal event; arguments as for `warning`. Does nothing if no logger can be enabled for it."""
        # Without the module no logger was made.
        if self._argument is not None or ("logging" in modules and package_log.is_heard()):
            self._get().info(text, *values, extra=log_fields(values, fields))

    def close(self) -> None:
        """Close the file of a `FileLogger`. A later message opens it again."""
        if self._logger is not None and isinstance(self._argument, ConsoleLogger | FileLogger):
            # The handler stays attached, and opens its file again if something is still to be logged.
            for handler in self._logger.handlers:
                handler.close()

    def _get(self) -> Any:
        if self._logger is None:
            self._logger = _make(self._argument)
        return self._logger


def _make(argument: object) -> Any:
    import logging

    if not isinstance(argument, ConsoleLogger | FileLogger):
        return logging.getLogger(_NAME)
    # The logger is outside the tree of loggers, so that two clients may log to different places.
    logger = logging.Logger(_NAME, _level(argument.log_level))  # noqa: LOG001
    handler = argument.make_handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-5s %(name)s | %(message)s"))
    logger.addHandler(handler)
    return logger


def _level(level: LoggerLevel) -> int:
    return {LoggerLevel.Debug: 10, LoggerLevel.Info: 20, LoggerLevel.Warn: 30}.get(level, 40)


R = TypeVar("R")

_LONGEST_S: Final = 0.1
"""Seconds until a waiter checks the condition without a wake-up, in case a wake-up is lost."""
_MOST_LOOKS: Final = 30
"""About 3 s in total: a thread leaves its queue unless another process was stopped with the topic's lock."""


class WaiterSet:
    """The threads that wait for one condition to become true.

    Role: a thread that may have made the condition true wakes all waiters, and each of them checks it. A
    waiter sleeps on its own lock, which is held until the waiter is woken, so an interrupted wait leaves no
    lock behind that could block another thread.

    Attributes:
        waiting: the locks of the waiters; for a test without a call whether there are any.

    Thread-safe. After a fork no thread of the child waits; the owner makes a new set.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Sleep until ``is_over()``. Interruptible; not to be called under a lock."""
        waiter = threads.Lock()
        waiter.acquire()
        # The waiter is listed before the condition is checked. In the other order a wake-up between the two
        # would be lost.
        try:
            self.waiting.append(waiter)
            while not is_over():
                waiter.acquire(timeout=_LONGEST_S)
        finally:
            if waiter in self.waiting:
                self.waiting.remove(waiter)

    def wake(self) -> None:
        """Let the waiters check again. Costs one test if there are none. May be called under any lock."""
        if self.waiting:
            for waiter in list(self.waiting):
                try:
                    waiter.release()
                except RuntimeError:
                    continue  # woken already


class WaitingThreads:
    """The threads of a client that are in a call without a time limit.

    Role: `Client.close` lets them leave the queue before the store is closed. Any thread may call the
    methods.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start empty in a forked child: the threads belong to the parent."""
        self._inside: dict[int, bool] = {}
        self._waiters = WaiterSet()

    def run(self, call: Callable[[], R]) -> R:
        thread = threads.current_id()
        try:
            self._inside[thread] = True
            return call()
        finally:
            self._inside.pop(thread, None)
            self._waiters.wake()

    def others(self) -> bool:
        own = threads.current_id()  # a signal handler may close the client during the wait of its own thread
        return any(thread != own for thread in list(self._inside))

    def wait_gone(self) -> None:
        """Wait for a limited time until they have left."""
        looks = itertools.count()
        self._waiters.wait(lambda: not self.others() or next(looks) >= _MOST_LOOKS)


Close = Callable[[], object]

OPENED: Final[ContextVar[list[Close] | None]] = ContextVar("embeddedpulsar.opened", default=None)
"""The functions that close what the call of this thread attaches. A part is listed before it attaches, so an
interrupt at any later instruction finds it. The finalizers would detach it as well, but not while the program
keeps the traceback, whose frames refer to it: a notebook keeps the last one."""


# Seconds. The pauses double from the first to the longest while nothing can be stored. A publisher that
# failed for another reason than a lock, as a full disk, is tried again after `_AFTER_FAILURE_S`.
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.002
_AFTER_FAILURE_S = 1.0
_PAUSE_OF_FAILED_S = 0.1


class Waiting(Protocol):
    """The interface of a publisher to the flusher."""

    def retry(self) -> bool: ...


class Flusher:
    """Retries to store the messages of producers whose topic was locked.

    Role: `Producer.send_async` never waits for the lock of a topic. If it cannot store a message at once, it
    registers its publisher here. There is one daemon thread per client, started on first need, and asleep
    when no publisher is registered. The thread never waits for a lock, so a topic whose lock is held by a
    stopped process does not delay the others; it tries each publisher in turn, with pauses of 0.5 to 2 ms.
    The sender tries as well, because otherwise a busy sender and this thread would compete for the
    interpreter while one of them holds the lock.

    Thread-safe. `kick` takes no lock, so it may be called under any lock. After a fork the child starts with
    no publishers, because pending messages belong to the parent, and starts its own thread.
    """

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._not_before: dict[int, float] = {}  # of publishers that failed for another reason than a lock
        self._wake = threads.Lock()
        self._wake.acquire()  # stays held until `_ring` releases it
        self._sleeps = False
        self._thread = threads.LoneThread(self._run, "flusher")
        self._closed = False

    def kick(self, publisher: Waiting) -> None:
        """Have ``publisher.retry()`` called until it returns True."""
        # As in `CallbackThread.put`: first the entry, then the flag.
        self._waiting[id(publisher)] = publisher
        if self._sleeps:
            self._ring()
        elif not self._thread.is_started and not self._closed:
            self._begin()

    def close(self) -> None:
        self._closed = True
        self._ring()
        self._thread.wait_over(max(_SHORTEST_GOODBYE_S, timing.left(_LONGEST_GOODBYE_S)))

    def after_fork_in_child(self) -> None:
        self._reset()

    def _begin(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # too many threads; the next send, or flush, tries again
            self._log.warning("Messages wait for a thread that stores them: %s", error)

    def _ring(self) -> None:
        self._sleeps = False
        try:
            self._wake.release()
        except RuntimeError:
            return  # two threads rang at once, and the flusher is awake

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._closed:
            if not self._waiting:
                self._sleep()
                continue
            self._wake.acquire(timeout=pause)
            # If all that is left has failed, there is no hurry.
            longest = _PAUSE_OF_FAILED_S if len(self._not_before) == len(self._waiting) else _LONGEST_PAUSE_S
            pause = _FIRST_PAUSE_S if self._try_all() else min(2 * pause, longest)

    def _sleep(self) -> None:
        # Set the flag before looking at the queue: a publisher that called `kick` before the flag is seen
        # here, and one that calls it after the flag rings.
        self._sleeps = True
        if not self._waiting and not self._closed:
            self._wake.acquire(timeout=_LONGEST_NAP_S)
        self._sleeps = False

    def _try_all(self) -> bool:
        """Try to store for every publisher. Returns True if any of them has stored all its messages."""
        is_progress = False
        for key in list(self._waiting):
            if monotonic() < self._not_before.get(key, 0.0):
                continue
            # Taken out before the attempt: a `kick` during it puts the publisher back, and is not lost when
            # the attempt succeeds.
            publisher = self._waiting.pop(key, None)
            self._not_before.pop(key, None)
            if publisher is None:
                continue
            if self._try(key, publisher):
                is_progress = True
            else:
                self._waiting[key] = publisher
        return is_progress

    def _try(self, key: int, publisher: Waiting) -> bool:
        try:
            return publisher.retry()
        except BaseException:  # noqa: BLE001 - whatever it was, the others have their turn
            self._log.exception("Storing what waits failed, and is tried again: %r", publisher)
            self._not_before[key] = monotonic() + _AFTER_FAILURE_S
            return False


class MemoryLimit:
    """Counts the payload bytes of all messages of a client that are not stored yet.

    A message is accepted while the sum stays within the limit. A message larger than the whole limit is
    accepted if there is no other. Thread-safe. In a forked child the count starts at 0.

    >>> limit = MemoryLimit(10)
    >>> limit.reserve(6, False), limit.used
    (None, 6)
    >>> limit.give_back(6)
    >>> limit.used
    0
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self.used = 0
        self._lock = threads.RLock()
        self._waiters = WaiterSet()

    def reserve(self, size: int, waits: bool) -> None:
        """Count ``size`` bytes. If they exceed the limit, wait for room or raise.

        Raises:
            MemoryBufferIsFull: there is no room, and ``waits`` is False.
        """
        # Between the wait and the lock another thread may have taken the room, so it is asked for again under
        # the lock.
        while not self._try_to_reserve(size):
            if not waits:
                raise MemoryBufferIsFull(
                    f"{self.used} bytes of this client's messages are not stored yet, {size} more are too "
                    f"many for memory_limit_bytes={self.limit}; wait for callbacks, or block_if_queue_full"
                )
            self._waiters.wait(lambda: self._has_room(size))

    def _has_room(self, size: int) -> bool:
        # A message that is larger than the limit would otherwise wait for ever.
        return not self.used or self.used + size <= self.limit

    def _try_to_reserve(self, size: int) -> bool:
        try:
            self._lock.acquire()
            has_room = self._has_room(size)
            if has_room:
                self.used += size
            return has_room
        finally:
            self._lock.release()

    def give_back(self, size: int) -> None:
        try:
            self._lock.acquire()
            self.used -= size
        finally:
            self._lock.release()
        # After the lock is released, and for all: the bytes may be enough for several small messages.
        self._waiters.wake()

    def after_fork_in_child(self) -> None:
        self._reset()


class Workers:
    """Runs each job on a short-lived daemon thread of its own.

    Role: moving dead letters and following the partitions of a topic take locks of other topics. On the timer
    thread they would delay all other timers of the client, and on one common thread a job would delay the
    next. Jobs are rare. Thread-safe. After a fork the child has no jobs.
    """

    def __init__(
        self, log: ClientLog, make_thread: Callable[[Callable[[], object], str], ThreadLike] = threads.Thread
    ) -> None:
        self._log = log
        self._make_thread = make_thread
        self._running: dict[object, ThreadLike] = {}
        fork.register(self)

    def start(self, job: Callable[[], object]) -> None:
        """Run ``job()`` soon. An exception that it raises is logged."""
        key = object()

        def run() -> None:
            try:
                job()
            except AlreadyClosed:
                return  # the consumer or the client was closed meanwhile
            except Exception:  # noqa: BLE001 - there is no caller to raise it to
                self._log.exception("Background work failed: %r", job)
            finally:
                self._running.pop(key, None)

        thread = self._make_thread(run, "worker")
        try:
            # Listed before it starts, so that `close` waits for it; a thread that does not start is taken
            # off.
            self._running[key] = thread
            thread.start()
        except BaseException:
            self._running.pop(key, None)
            raise

    def close(self) -> None:
        """Wait for the running jobs, within the deadline of the call."""
        for thread in list(self._running.values()):
            # A job may close its own client.
            if not thread.is_current:
                thread.join(timing.left(timing.LONGEST_S))

    def after_fork_in_child(self) -> None:
        self._running = {}
