"""Worker processes: the program that does tasks, and the group of processes that a supervisor runs.

A worker does one task at a time, in its main thread. Its supervisor starts it again when it ends, and kills
it when a task is over its time; then the supervisor says what becomes of the task, and the worker is not
needed for that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.exceptions import InvalidMessage, PulsarException, Timeout
from embeddedpulsar.functions.supervisor import GRACE_S, end_processes, restart_delay_s
from embeddedpulsar.futures.encoding import (
    WorkerLost,
    decoded,
    encoded,
    encoded_failure,
    load_main,
    load_reference,
)
from embeddedpulsar.futures.engine import (
    SYSTEM_CLOCK,
    ChildProcess,
    failpoints,
    on_termination,
    termination,
    threads,
)
from embeddedpulsar.futures.task_log import (
    BEGUN,
    CANCEL,
    DONE,
    FAILED,
    PROGRESS,
    PoolTopics,
    Task,
    TaskLog,
    make_pool,
    pool_topics,
    position_of,
    task_of,
)
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple

_LOG: Final = logging.getLogger("embeddedpulsar.futures")
_WAIT_MS: Final = 200
_STEADY_S: Final = 10.0
CHECK_S: Final = 0.2
_MOST_HINTS: Final = 10_000
_HINTS_LAST_MS: Final = 3_600_000
failpoints.declare("task:begun", "task:ran", "task:published")


class TaskInfo(NamedTuple):
    """The task that this process does.

    Attributes:
        task_id: ``ledger-entry`` of its message; the `Future.task_id` begins with it.
        attempt: 1 for the first.
        function: the place of what is called.
    """

    task_id: str
    attempt: int
    function: str


_current: tuple[TaskInfo, TaskLog] | None = None


def current_task() -> TaskInfo | None:
    """Return the task that this process does; None outside of a worker.

    Example:
        >>> current_task()
    """
    return None if _current is None else _current[0]


def report_progress(value: Any) -> None:
    """Say how far the current task is; `Future.progress` returns it in the process that submitted it.

    A value is a message in the store, about 15 us: report some hundred times in a task, not a million times.
    Does nothing outside of a worker, so that the function can be called directly as well. Any thread of the
    worker may call it.

    Args:
        value: anything that msgpack can hold.

    Raises:
        TypeError: msgpack cannot hold the value.

    Example:
        >>> def count(items):
        ...     for number, item in enumerate(items, 1):
        ...         report_progress(number / len(items))
        >>> count(["tea", "cake"])
    """
    current = _current
    if current is not None:
        info, log = current
        log.publish(PROGRESS, info.task_id, info.attempt, encoded("msgpack", value, "the progress"))


# -- the file in which a worker says until when its task may run -----------------------------------------


class Deadline(NamedTuple):
    """Until when the task of a worker may run.

    Attributes:
        at_s: by the monotonic clock; 0 for no limit.
        ledger: of the message of the task.
        entry: of the message of the task.
    """

    at_s: float
    ledger: int
    entry: int


_FORM: Final = struct.Struct("<dqq")
_NOT_READY: Final = Deadline(0.0, -1, -1)
"""What the supervisor writes before it starts a worker."""
_READY: Final = Deadline(0.0, 0, -1)
"""What a worker writes when it takes tasks, and when no task of it has a limit."""


class DeadlineFile:
    """A `Deadline` that one process writes and its supervisor reads.

    The supervisor has to see it while the worker is in a call that gives up neither the interpreter lock nor
    the processor. Not on the disk: it has no meaning after the end of either process.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self._descriptor: Final = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, deadline: Deadline) -> None:
        """Replace the deadline."""
        os.pwrite(self._descriptor, _FORM.pack(*deadline), 0)

    def read(self) -> Deadline:
        """What was written last."""
        data = os.pread(self._descriptor, _FORM.size, 0)
        return Deadline(*_FORM.unpack(data)) if len(data) == _FORM.size else _NOT_READY

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


# -- the program -----------------------------------------------------------------------------------------


class Worker:
    """Does the tasks of a pool, one after the other.

    Callers: one thread, that of the functions.

    Args:
        client: of the store.
        topics: those of the pool.
        deadlines: where it says until when a task may run.
        prefetch: tasks that it fetches at once.
    """

    def __init__(
        self, client: Client, topics: PoolTopics, deadlines: DeadlineFile, prefetch: int = 1
    ) -> None:
        self._client: Final = client
        self._topics: Final = topics
        self._deadlines: Final = deadlines
        self._log: Final = TaskLog(client, topics)
        # From the first one that is retained: the task of a cancellation that is under way may still come.
        # Before the consumer, which brings tasks.
        self._hints: Final = client.create_reader(topics.cancels, MessageId.earliest)
        self._consumer: Final[Consumer[bytes]] = self._log.consumer(f"worker-{os.getpid()}", prefetch)
        self._hinted: Final[dict[tuple[str, int], tuple[int, tuple[int, int]]]] = {}

    def run(self, stopped: threads.Event, max_tasks: int = 0) -> None:
        """Do tasks until an event is set, or ``max_tasks`` are done; 0 for any number."""
        self._deadlines.write(_READY)
        count = 0
        while not stopped.is_set():
            try:
                message = self._consumer.receive(_WAIT_MS)
            except Timeout:
                continue
            if stopped.is_set():  # it has not begun, and goes to another worker at once
                break
            self.do(message)
            count += 1
            if count == max_tasks:
                break

    def do(self, message: Message[bytes]) -> None:
        """Do a task, store what comes of it, and acknowledge it."""
        try:
            task = task_of(message)
        except PulsarException:
            # Nothing waits for a result of it: it was not stored by an executor.
            _LOG.exception("a message is acknowledged without being done")
            self._consumer.acknowledge(message)
            return
        deaths = message.redelivery_count()
        if deaths > task.options.max_worker_deaths:
            error = WorkerLost(f"{task.function} was begun {deaths} times, and its worker died each time")
            self._log.publish(
                FAILED, task.key, task.attempt, encoded_failure("msgpack", error), serializer="msgpack"
            )
            self._consumer.acknowledge(message)
            return
        begun = self._log.publish(BEGUN, task.key, task.attempt, pid=str(os.getpid()))
        if failpoints.ACTIVE:
            failpoints.hit("task:begun")
        if not self._is_cancelled(task, begun):
            self._call(task, message)
        if failpoints.ACTIVE:
            failpoints.hit("task:published")
        self._consumer.acknowledge(message)

    def _call(self, task: Task, message: Message[bytes]) -> None:
        global _current
        serializer = task.options.serializer
        _current = TaskInfo(task.key, task.attempt, task.function), self._log
        try:
            with self._limited(task, message):
                value = _result_of(task)
            data = encoded(serializer, value, f"the result of {task.function}")
        # SystemExit and KeyboardInterrupt, too: they are of the task, and not for this process.
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is wanted
            self._log.fail(task, encoded_failure(serializer, error))
        else:
            if failpoints.ACTIVE:
                failpoints.hit("task:ran")
            self._log.publish(DONE, task.key, task.attempt, data, serializer=serializer)
        finally:
            _current = None

    @contextlib.contextmanager
    def _limited(self, task: Task, message: Message[bytes]) -> Iterator[None]:
        limit_s = task.options.timeout_s
        if not limit_s:
            yield
            return
        place = position_of(message.message_id())
        self._deadlines.write(Deadline(SYSTEM_CLOCK.monotonic() + limit_s, *place))
        try:
            yield
        finally:
            self._deadlines.write(_READY)

    def _is_cancelled(self, task: Task, begun: MessageId) -> bool:
        """Whether an attempt was cancelled before ``begun``."""
        while self._hints.has_message_available():
            message = self._hints.read_next()
            texts = message.properties()
            ledger, _, entry = texts["after"].partition("-")
            after = int(ledger), int(entry)
            self._hinted[texts["task"], int(texts["attempt"])] = message.publish_timestamp(), after
        if not self._hinted:
            return False
        self._discard_old_hints()
        hint = self._hinted.pop((task.key, task.attempt), None)
        if hint is None:
            return False
        # What is first in the results counts. The canceller knew that nothing of this attempt had begun up to
        # `after`.
        after_id = MessageId(-1, *hint[1], -1)
        with self._client.create_reader(self._topics.results, after_id) as reader:
            for message in reader:
                texts = message.properties()
                if message.message_id() == begun:
                    break
                if (texts["task"], int(texts["attempt"])) == (task.key, task.attempt):
                    if texts["event"] in (BEGUN, CANCEL):
                        return texts["event"] == CANCEL
        return False

    def _discard_old_hints(self) -> None:
        if len(self._hinted) > _MOST_HINTS:
            # Those of tasks that other workers had, or that were acknowledged by the canceller.
            newest_ms = max(time_ms for time_ms, _ in self._hinted.values())
            for name, (time_ms, _) in list(self._hinted.items()):
                if time_ms < newest_ms - _HINTS_LAST_MS:
                    del self._hinted[name]


def _result_of(task: Task) -> Any:
    if task.main:
        load_main(task.main)
    function = load_reference(task.function)
    arguments = decoded(task.options.serializer, task.payload)
    if task.is_chunk:
        return [function(*item) for item in arguments]
    positional, named = arguments
    return function(*positional, **named)


def main(text: str) -> int:
    """Run a worker until this process is asked to end, or its parent is gone. The text is an order as
    `WorkerGroup` writes it. The exit status is 1 if the worker failed."""
    order: dict[str, Any] = json.loads(text)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # The log of a worker is that of its supervisor: the library is quiet there, and the application is not.
    logging.getLogger("embeddedpulsar").setLevel(logging.WARNING)
    stopped = termination(order["grace"], order["parent"])
    deadlines = DeadlineFile(order["deadlines"])
    try:
        if order["initializer"]:
            function, arguments = order["initializer"], bytes.fromhex(order["initargs"])
            load_reference(function)(*decoded("msgpack", arguments))
        with Client(order["url"], read_only=False, durability=order["durability"]) as client:
            worker = Worker(client, pool_topics(order["pool"]), deadlines, order["prefetch"])
            worker.run(stopped, order["max_tasks"])
    except Exception:  # noqa: BLE001 - it is logged, and the exit status says so
        _LOG.exception("worker %d of the pool %s failed", order["number"], order["pool"])
        return 1
    return 0


_PROGRAM: Final = (
    "import sys; from embeddedpulsar.futures.workers import main; sys.exit(main(sys.stdin.read()))"
)


# -- the supervisor --------------------------------------------------------------------------------------

Start = Callable[[Mapping[str, Any]], ChildProcess]


def start_worker(order: Mapping[str, Any]) -> ChildProcess:
    """Start a worker, with the module path of this process."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    # By the standard input: all users of the machine see a command line.
    return ChildProcess([sys.executable, "-c", _PROGRAM], {"PYTHONPATH": path}, json.dumps(order).encode())


class _Slot:
    """The place of one worker in its group."""

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.deadlines: Final = DeadlineFile(path)
        self.process: ChildProcess | None = None
        self.started_s = 0.0
        self.due_s = 0.0
        self.failures = 0


class WorkerOptions(NamedTuple):
    """How the workers of a pool run.

    Attributes:
        processes: their number.
        grace_s: how long one may take to end when it is asked to.
        max_tasks: tasks after which a worker is replaced; 0 for any number.
        prefetch: tasks that a worker fetches at once.
        initializer: the place of a function that each calls at its start; or empty.
        initargs: its arguments.
        durability: of what they store; see `Client`.
    """

    processes: int
    grace_s: float = GRACE_S
    max_tasks: int = 0
    prefetch: int = 1
    initializer: str = ""
    initargs: tuple[Any, ...] = ()
    durability: str = "process"

    def check(self) -> WorkerOptions:
        """Return this value if it is valid.

        Raises:
            ValueError: a number is out of its range.
        """
        if isinstance(self.processes, bool) or not isinstance(self.processes, int) or self.processes < 1:
            raise ValueError(f"a pool has at least one worker, not {self.processes!r}")
        if isinstance(self.max_tasks, bool) or not isinstance(self.max_tasks, int) or self.max_tasks < 0:
            raise ValueError(f"max_tasks_per_child is a whole number from 1 on, not {self.max_tasks!r}")
        if isinstance(self.prefetch, bool) or not isinstance(self.prefetch, int) or self.prefetch < 1:
            raise ValueError(f"prefetch is a whole number from 1 on, not {self.prefetch!r}")
        if not 0 <= self.grace_s < math.inf:
            raise ValueError(f"grace_s is a number of seconds from 0 on, not {self.grace_s!r}")
        return self


class WorkerGroup:
    """The worker processes that one supervisor runs.

    `supervise` starts those that are missing, one that fails at once after delays that double up to half a
    minute, and kills those that are over their time. A task that is over its time failed: what becomes of it
    is stored before its worker is killed.

    Callers: one thread.

    Args:
        client: of the store.
        url: of the store, for the workers.
        pool: its name.
        options: of the workers.
    """

    def __init__(
        self, client: Client, url: str, pool: str, options: WorkerOptions, _start: Start = start_worker
    ) -> None:
        self._url: Final = url
        self._pool: Final = pool
        self._topics: Final = pool_topics(pool)
        self._options: Final = options
        self._start: Final = _start
        self._log: Final = TaskLog(client, self._topics)
        self._folder: Final = tempfile.TemporaryDirectory(prefix="embeddedpulsar-workers-")
        paths = [os.path.join(self._folder.name, str(number)) for number in range(options.processes)]
        self._slots: Final = [_Slot(path) for path in paths]

    def supervise(self) -> None:
        """Start the workers that are missing and due; kill those whose task is over its time."""
        now_s = SYSTEM_CLOCK.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.process is not None:
                status = slot.process.status()
                if status is None:
                    self._check_time(slot, now_s)
                    continue
                self._record_end(slot, number, status, now_s)
            if now_s >= slot.due_s:
                slot.deadlines.write(_NOT_READY)
                slot.started_s = now_s
                slot.process = self._start(self._order(slot, number))

    def _order(self, slot: _Slot, number: int) -> dict[str, Any]:
        options = self._options
        return {
            "url": self._url,
            "pool": self._pool,
            "number": number,
            "parent": os.getpid(),
            "deadlines": slot.path,
            "grace": options.grace_s,
            "max_tasks": options.max_tasks,
            "prefetch": options.prefetch,
            "initializer": options.initializer,
            "initargs": encoded("msgpack", list(options.initargs), "initargs").hex(),
            "durability": options.durability,
        }

    def _record_end(self, slot: _Slot, number: int, status: int, now_s: float) -> None:
        slot.process = None
        if status == 0:  # it has done its number of tasks
            slot.failures = 0
            return
        _LOG.warning("worker %d of the pool %s ended: %d", number, self._pool, status)
        # It took tasks: this end is not one of a row of failures, and its work is to go on.
        if now_s - slot.started_s >= _STEADY_S or slot.deadlines.read() != _NOT_READY:
            slot.failures = 0
        slot.failures += 1
        slot.due_s = now_s + restart_delay_s(slot.failures)

    def _check_time(self, slot: _Slot, now_s: float) -> None:
        deadline = slot.deadlines.read()
        if not deadline.at_s or now_s < deadline.at_s:
            return
        # The worker is not asked: it may be in a call that never returns. If it ends its task now, it stores
        # a result as well, and the first one counts.
        message_id = MessageId(-1, deadline.ledger, deadline.entry, -1)
        try:
            with Admin(self._url) as admin:
                message = admin.topics().get_message_by_id(self._topics.tasks, *deadline[1:])
        except InvalidMessage:  # it was acknowledged, and its ledger is gone
            return
        task = task_of(message)
        if slot.deadlines.read() != deadline:  # it has ended
            return
        error = TimeoutError(f"{task.function} ran longer than {task.options.timeout_s:g} s")
        self._log.fail(task, encoded_failure(task.options.serializer, error))
        self._log.acknowledge([message_id])
        if slot.deadlines.read() == deadline and slot.process is not None:
            _LOG.warning("process %d is killed: %s", slot.process.pid, error)
            slot.process.kill()
            slot.process.wait(_STEADY_S)
            # This end is no failure of the worker.
            slot.started_s = -math.inf

    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        processes = [slot.process for slot in self._slots if slot.process is not None]
        return [process.pid for process in processes if process.status() is None]

    def close(self) -> None:
        """Ask all workers to end after their task; kill those that do not within the grace. Idempotent."""
        processes = [slot.process for slot in self._slots if slot.process is not None]
        try:
            end_processes(processes, SYSTEM_CLOCK, self._options.grace_s)
        finally:
            for slot in self._slots:
                slot.process = None
            slots, self._slots[:] = list(self._slots), []
            for slot in slots:
                slot.deadlines.close()
            self._folder.cleanup()


def processor_count() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_workers(
    service_url: str | os.PathLike[str],
    pool: str = "default",
    *,
    max_workers: int | None = None,
    grace_s: float = GRACE_S,
    max_tasks_per_child: int | None = None,
    prefetch: int = 1,
    initializer: str = "",
    durability: str = "process",
) -> None:
    """Run workers of a pool in the foreground, until Ctrl-C, SIGTERM or SIGHUP: what ``embeddedpulsar
    workers`` does.

    Any number of processes, and of executors, may run workers of one pool. For the main thread of a program.

    Args:
        service_url: of the store.
        pool: ``name``, or ``tenant/namespace/name``.
        max_workers: the number of processes; None for one for each processor.
        grace_s: seconds that a worker may take to end its task when it is asked to end. Then it is killed,
            and another worker does the task again.
        max_tasks_per_child: tasks after which a worker is replaced by a new process; None for any number.
        prefetch: tasks that a worker fetches at once; see `Executor`.
        initializer: ``module:function`` that each worker calls at its start; or empty.
        durability: of results; see `Client`.

    Raises:
        ValueError: a number is out of its range.
        StorageError: the store cannot be used.
    """
    count = processor_count() if max_workers is None else max_workers
    options = WorkerOptions(
        count, grace_s, max_tasks_per_child or 0, prefetch, initializer, (), durability
    ).check()
    stopped = threads.Event()
    with Client(service_url, read_only=False) as client, on_termination(stopped.set):
        store = client._core.store
        url = store.root if store.is_temporary else client._core.config.url.text
        make_pool(url, pool_topics(pool), None)
        group = WorkerGroup(client, url, pool, options)
        try:
            while not stopped.is_set():
                # A store that is busy or full for a moment must not end the workers.
                try:
                    group.supervise()
                except (PulsarException, OSError):
                    _LOG.exception("the workers of %s are supervised again", pool)
                stopped.wait(CHECK_S)
        finally:
            group.close()
