"""`Executor`: calls that worker processes make, with the store between the two; and its futures."""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Final, Generic, NoReturn, Self, TypeVar

from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.due_entries import MultiplierRedeliveryBackoff
from embeddedpulsar.exceptions import PulsarException, Timeout
from embeddedpulsar.functions.supervisor import GRACE_S
from embeddedpulsar.futures.encoding import (
    decoded,
    decoded_failure,
    encoded,
    main_place,
    reference_of,
)
from embeddedpulsar.futures.engine import SYSTEM_CLOCK, threads
from embeddedpulsar.futures.task_log import (
    BEGUN,
    CANCEL,
    DONE,
    FAILED,
    OPENED,
    PROGRESS,
    RETRY,
    PoolTopics,
    Task,
    TaskLog,
    TaskOptions,
    as_message_id,
    is_acknowledged,
    key_of,
    make_pool,
    pool_topics,
    position_of,
    result_ttl_ms,
)
from embeddedpulsar.futures.workers import CHECK_S, WorkerGroup, WorkerOptions, processor_count
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId

_LOG: Final = logging.getLogger("embeddedpulsar.futures")
_WAIT_MS: Final = 1000
_MARGIN_MS: Final = 1000
T = TypeVar("T")


class ExecutorClosed(RuntimeError):
    """Raised by ``result`` of a `Future` if the executor was closed before the task was done. The task is
    done all the same: `Executor.future` of another executor takes its result up.

    Example:
        >>> raise ExecutorClosed("the task 3-14-0 is not done")
        Traceback (most recent call last):
            ...
        embeddedpulsar.futures.executor.ExecutorClosed: the task 3-14-0 is not done
    """


class Future(concurrent.futures.Future[T], Generic[T]):
    """The result of a task: a ``concurrent.futures.Future``, with the functions of that module (`wait`,
    ``as_completed``) and ``asyncio.wrap_future``.

    It is made by an `Executor`. All methods may be called from any thread. Callbacks run in a thread of the
    executor.

    Attributes:
        task_id: with which `Executor.future` takes the result up, in any process.

    Example:
        >>> import math
        >>> from embeddedpulsar.futures import Executor
        >>> with Executor("./data", max_workers=1) as executor:
        ...     future = executor.submit(math.factorial, 5)
        ...     future.result(timeout=60), future.attempt, future.running(), future.cancel()
        (120, 1, False, False)
    """

    def __init__(self, owner: _Results, key: str, task_id: str) -> None:
        super().__init__()
        self.task_id: Final = task_id
        self._owner: Final = owner
        self._key: Final = key
        self._message_id: MessageId = as_message_id(key)
        self._attempt = 1
        self._is_begun = False
        self._progress: Any = None
        self._progress_callbacks: list[Callable[[Future[T]], object]] = []

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Future cannot be pickled or copied: its executor belongs to this process. Pass its task_id, "
            "and call Executor.future(task_id) there"
        )

    @property
    def attempt(self) -> int:
        """The number of the attempt that runs, is waited for, or was the last one; 1 for the first."""
        return self._attempt

    def running(self) -> bool:
        """Return whether a worker has begun the task, and it is not done."""
        return self._is_begun and not self.done()

    def cancel(self) -> bool:
        """Cancel the task if no worker has begun it, or its next attempt if it waits for that.

        Exact: after True no worker calls the function, after False one has.

        Returns:
            False if it runs, or is done.
        """
        if not self.done():
            self._owner.cancel([self])
        return self.cancelled()

    def progress(self) -> Any:
        """Return what the function said last with `report_progress`; None before."""
        return self._progress

    def add_progress_callback(self, function: Callable[[Future[T]], object]) -> None:
        """Call ``function(future)`` after each `report_progress` from now on. An exception of it is logged.

        Example:
            >>> with Executor("./data", max_workers=1) as executor:
            ...     future = executor.submit(len, [1, 2])
            ...     future.add_progress_callback(lambda future: print(future.progress()))
            ...     future.result(timeout=60)
            2
        """
        self._progress_callbacks.append(function)

    def _apply(self, event: str, attempt: int, message: Message[bytes]) -> None:
        """Take in what happened to the task. The first end counts: a task may be done more than once."""
        if self.done() or attempt < self._attempt:
            return
        if attempt > self._attempt:
            self._attempt, self._is_begun = attempt, False
        if event == BEGUN:
            self._is_begun = True
        elif event == RETRY:
            self._message_id = as_message_id(message.properties()["at"])
        elif event == CANCEL:
            if not self._is_begun:
                super().cancel()
                self.set_running_or_notify_cancel()  # what `wait` and `as_completed` look at
        elif event == PROGRESS:
            self._progress = decoded("msgpack", message.data())
            for function in list(self._progress_callbacks):
                try:
                    function(self)
                except Exception:  # noqa: BLE001 - it is logged: this is no code of the caller's
                    _LOG.exception("a callback of the progress of %s", self.task_id)
        elif event == FAILED:
            self.set_exception(decoded_failure(message.data()))
        elif event == DONE:
            try:
                value: T = decoded(message.properties()["serializer"], message.data())
            except Exception as error:  # noqa: BLE001 - it is raised where the result is wanted
                self.set_exception(error)
            else:
                self.set_result(value)


class _Results:
    """What becomes of the tasks of an executor: reads the results of the pool, and completes futures.

    Invariants: a future gets the events of its task in their order, from one thread. What another thread
    wants of the futures is done by that thread, between two events.
    Threads: `reader` reads; all methods but those that say so may be called from any thread.
    """

    def __init__(self, client: Client, url: str, topics: PoolTopics) -> None:
        self._client: Final = client
        self._url: Final = url
        self._topics: Final = topics
        self.log: Final = TaskLog(client, topics)
        self._lock: Final = threads.RLock()
        self._futures: Final[dict[str, Future[Any]]] = {}
        self._calls: Final[deque[Callable[[], object]]] = deque()
        # A message of this executor says where its reading begins.
        opened = self.log.publish(OPENED, "", 0, pid=str(os.getpid()))
        self._last: tuple[int, int] = position_of(opened)
        self._reader: Final = client.create_reader(topics.results, opened)
        self._is_closed = False
        self._thread: Final = threads.start_daemon(self._run, "executor-results")

    def submit(self, task: Task, now_ms: int) -> Future[Any]:
        """Store a task, and return its future."""
        try:
            self._lock.acquire()
            # The thread that reads waits here: a worker may be faster than this one.
            message_id = self.log.submit(task)
            key = key_of(message_id)
            future: Future[Any] = Future(self, key, f"{key}-{now_ms}")
            future._message_id = message_id
            self._futures[key] = future
        finally:
            self._lock.release()
        return future

    def is_reading_thread(self) -> bool:
        """Whether the caller is the thread that completes futures, as a callback of one is."""
        return self._thread.is_current

    def pending(self) -> list[Future[Any]]:
        """The futures that are not done."""
        try:
            self._lock.acquire()
            return list(self._futures.values())
        finally:
            self._lock.release()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._step(_WAIT_MS)
            except PulsarException:
                if not self._is_closed:
                    _LOG.exception("the results of %s are read again", self._topics.results)
                    threads.sleep(_WAIT_MS / 1000)

    def _step(self, timeout_ms: int) -> None:
        self._run_calls()
        try:
            message = self._reader.read_next(timeout_ms)
        except Timeout:
            return
        self._last = position_of(message.message_id())
        self._handle(message)

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _handle(self, message: Message[bytes]) -> None:
        texts = message.properties()
        try:
            self._lock.acquire()
            future = self._futures.get(texts["task"])
        finally:
            self._lock.release()
        if future is not None:
            self._complete(future, message, texts)

    def _complete(self, future: Future[Any], message: Message[bytes], texts: dict[str, str]) -> None:
        try:
            future._apply(texts["event"], int(texts["attempt"]), message)
        # Callbacks do not raise here. What is left is a message that no executor or worker wrote.
        except Exception:  # noqa: BLE001 - it is logged, and the next message is read
            _LOG.exception("message %s of %s", message.message_id(), self._topics.results)
        if future.done():
            try:
                self._lock.acquire()
                self._futures.pop(future._key, None)
            finally:
                self._lock.release()

    def _call(self, function: Callable[[], T]) -> T:
        """Have the thread that reads call a function, and return what it returns."""
        if self._thread.is_current:  # a callback of a future
            return function()
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def call() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
                outcome.set_exception(error)

        self._calls.append(call)
        # It wakes the thread, which waits for a message.
        self.log.publish(OPENED, "", 0)
        while not outcome.done():
            if self._thread.is_over:
                raise ExecutorClosed("the executor is closed")
            concurrent.futures.wait([outcome], _WAIT_MS / 1000)
        return outcome.result()

    # -- cancelling ----------------------------------------------------------------------------------

    def cancel(self, futures: list[Future[Any]]) -> None:
        """Cancel those of the tasks that have not begun. They are cancelled, or have begun, on return."""
        if not self._is_closed:
            self._call(lambda: self._cancel(futures))

    def cancel_later(self, futures: list[Future[Any]]) -> None:
        """The same within a second. Waits for nothing and locks nothing."""
        self._calls.append(lambda: self._cancel(futures))

    def _cancel(self, futures: list[Future[Any]]) -> None:
        # Up to the last event that was read, none of these attempts had begun.
        waiting = [future for future in futures if not future.done() and not future._is_begun]
        last = MessageId.earliest
        for future in waiting:
            last = self.log.cancel(future._key, future._attempt, self._last)
        while waiting and self._last < position_of(last):
            self._step(_WAIT_MS)
        cancelled = [future._message_id for future in waiting if future.cancelled()]
        if cancelled:
            self.log.acknowledge(cancelled)

    # -- taking up the tasks of other processes ------------------------------------------------------

    def adopt(self, task_id: str) -> Future[Any]:
        """The future of a task of any process.

        Raises:
            ValueError: it is no id of a task.
            LookupError: there is no result, and no worker will do the task.
        """
        parts = task_id.split("-")
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            raise ValueError(f"{task_id!r} is no id of a task; Future.task_id has it")
        return self._call(lambda: self._adopt(task_id, f"{parts[0]}-{parts[1]}", int(parts[2])))

    def _adopt(self, task_id: str, key: str, since_ms: int) -> Future[Any]:
        future = self._futures.get(key)
        if future is not None:
            return future
        future = Future(self, key, task_id)
        # First what was, then what comes: the thread that reads is this one, so nothing is missed between.
        with self._client.create_reader(self._topics.results, MessageId.earliest) as history:
            expired_ms = SYSTEM_CLOCK.wall_ms() - result_ttl_ms(self._url, self._topics)
            history.seek(max(0, since_ms - _MARGIN_MS))
            for message in history:
                texts = message.properties()
                # What is older than results are kept is there by chance. That a task was begun still counts.
                is_end = texts["event"] in (DONE, FAILED)
                is_kept = not is_end or message.publish_timestamp() >= expired_ms
                if position_of(message.message_id()) > self._last:
                    break
                if texts["task"] == key and is_kept:
                    self._complete(future, message, texts)
        if future.done():
            return future
        self._futures[key] = future
        while not future.done():
            attempt = future._attempt
            if not is_acknowledged(self._url, self._topics, key_of(future._message_id)):
                return future  # a worker has it, or will have it
            # It is acknowledged after its result was stored, or the next attempt.
            while self._reader.has_message_available():
                self._step(0)
            if future._attempt == attempt and not future.done():
                self._futures.pop(key, None)
                raise LookupError(
                    f"there is no result of the task {task_id}: it has expired, or was removed; results are "
                    "kept for result_ttl"
                )
        return future

    def close(self) -> None:
        """Stop reading. Futures that are not done get `ExecutorClosed`. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.log.publish(OPENED, "", 0)  # wakes the thread
        if not self._thread.is_current:
            self._thread.join()
        for future in self.pending():
            future.set_exception(
                ExecutorClosed(f"the task {future.task_id} is not done, and stays in the store")
            )
        self._futures.clear()


class _Supervision:
    """The workers that an executor runs, and the thread that supervises them."""

    def __init__(self, client: Client, url: str, pool: str, options: WorkerOptions) -> None:
        self._group: Final = WorkerGroup(client, url, pool, options)
        self._stopped: Final = threads.Event()
        # Before the thread: a fault is raised where the executor is made.
        self._group.supervise()
        self._thread: Final = threads.start_daemon(self._run, "executor-workers")

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_S):
            try:
                self._group.supervise()
            except (PulsarException, OSError):
                _LOG.exception("the workers are supervised again")

    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        return self._group.pids()

    def close(self) -> None:
        """End the workers. Idempotent."""
        self._stopped.set()
        self._thread.join()
        self._group.close()


class Executor(concurrent.futures.Executor):
    """Calls functions in worker processes, with the store between: a ``concurrent.futures.Executor``.

    Tasks and results are messages, so that work survives: a worker that is killed (its task is done again at
    once), the process that submitted it (`future` takes the result up), and a restart. A function is called
    **at least once**: again, if its worker dies before its result is stored.

    Workers are processes that this executor starts (``max_workers``), others that run ``embeddedpulsar
    workers``, or both. They import functions by their names. Any number of executors, in any processes, may
    use one pool.

    Thread-safe. After a fork the child makes an executor of its own.

    Args:
        service_url: of the store, see `Client`; or a `Client` that is open, and stays open.
        pool: the name of the pool: ``name``, or ``tenant/namespace/name``. Tasks of a pool are done by its
            workers.
        max_workers: processes to start; None for one for each processor, 0 for none: then other processes do
            the tasks.
        serializer: how arguments and results are written. ``msgpack`` holds None, numbers, texts, bytes,
            lists, tuples, sets, dicts, dates, Decimal and UUID, and refuses everything else. ``json`` holds
            what JSON has. ``pickle`` holds nearly everything, and **a program that can write to the store can
            then run code in this process**: it is for stores that only trusted programs write to.
        retries: how often a task is done again after an exception or when it was over time.
        retry_backoff: the delays before that; default 1, 2, 4 ... 60 s.
        timeout: seconds that a task may run. Its worker is then killed, and the task has failed with
            ``TimeoutError``. None for no limit. Needs a supervisor, which an executor and ``embeddedpulsar
            workers`` are.
        max_worker_deaths: how often a task is done again after the death of its worker; then it has failed
            with `WorkerLost`.
        result_ttl: for how long results are kept, in whole minutes, at least 1; for the pool, not for this
            executor alone. None leaves it as it is: a day at first.
        initializer, initargs: called once by each worker that this executor starts.
        max_tasks_per_child: tasks after which such a worker is replaced by a new process.
        prefetch: tasks that such a worker fetches at once. With 1 no task waits behind another one while a
            worker is free; some ten are faster where tasks take less than a millisecond.
        grace_s: seconds that such a worker may take to end its task when the executor is closed.
        durability: of tasks and results; see `Client`.

    Raises:
        ValueError: a value is out of its range.
        TypeError: the initializer cannot be imported by a worker.
        StorageError: the store cannot be used.

    Example:
        >>> import math
        >>> with Executor("./data", max_workers=2) as executor:
        ...     future = executor.submit(pow, 2, 10)
        ...     list(executor.map(math.sqrt, [1, 4, 9], timeout=60)), future.result()
        ([1.0, 2.0, 3.0], 1024)
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str] | Client,
        pool: str = "default",
        max_workers: int | None = None,
        *,
        serializer: str = "msgpack",
        retries: int = 0,
        retry_backoff: MultiplierRedeliveryBackoff | None = None,
        timeout: float | None = None,
        max_worker_deaths: int = 3,
        result_ttl: timedelta | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        max_tasks_per_child: int | None = None,
        prefetch: int = 1,
        grace_s: float = GRACE_S,
        durability: str = "process",
    ) -> None:
        backoff = TaskOptions().backoff if retry_backoff is None else retry_backoff
        self._options = TaskOptions(
            serializer, retries, backoff, timeout or 0.0, 0.0, max_worker_deaths
        ).check()
        if result_ttl is not None and result_ttl < timedelta(minutes=1):
            raise ValueError(f"result_ttl is at least a minute, not {result_ttl}")
        topics = pool_topics(pool)
        count = processor_count() if max_workers is None else max_workers
        place = reference_of(initializer) if initializer is not None else ""
        workers = WorkerOptions(
            count, grace_s, max_tasks_per_child or 0, prefetch, place, initargs, durability
        )
        # Without workers of its own, the executor checks no options of any: that is for their process.
        if count != 0:
            workers.check()
        self._state = _State(service_url, pool, topics, workers, result_ttl)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Executor cannot be pickled or copied: its threads and workers belong to this process. Pass "
            "the URL of the store and the name of the pool, and make another one there; workers of a pool "
            "serve all of its executors"
        )

    def options(
        self,
        *,
        retries: int | None = None,
        retry_backoff: MultiplierRedeliveryBackoff | None = None,
        timeout: float | None = None,
        delay: float | None = None,
        serializer: str | None = None,
        max_worker_deaths: int | None = None,
    ) -> Self:
        """Return an executor with the same pool and workers, for tasks with other options.

        Args:
            retries, retry_backoff, timeout, serializer, max_worker_deaths: as for the class; None leaves them
                as they are. A timeout of 0 is no limit.
            delay: seconds after which a task may begin.

        Raises:
            ValueError: a value is out of its range.

        Example:
            >>> with Executor("./data", max_workers=1) as executor:
            ...     executor.options(timeout=10, retries=2).submit(pow, 2, 3).result(timeout=60)
            8
        """
        chosen = {
            "retries": retries,
            "backoff": retry_backoff,
            "timeout_s": timeout,
            "delay_s": delay,
            "serializer": serializer,
            "max_worker_deaths": max_worker_deaths,
        }
        # The view has no workers of its own: it shares them, the results and the end with this executor.
        view = object.__new__(type(self))
        view._state = self._state
        changes: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
        view._options = self._options._replace(**changes).check()
        return view

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a worker call ``fn(*args, **kwargs)``, and return its future. The task is stored on return.

        Raises:
            TypeError: a worker could not import the function, or the serializer cannot hold the arguments.
            RuntimeError: the executor was shut down, or belongs to another process.
            PulsarException: the task cannot be stored.

        Example:
            >>> with Executor("./data", max_workers=1) as executor:
            ...     executor.submit(int, "ff", base=16).result(timeout=60)
            255
        """
        return self._submit(fn, [list(args), kwargs], is_chunk=False)

    def _submit(self, function: Callable[..., Any], arguments: list[Any], *, is_chunk: bool) -> Future[Any]:
        place, options = reference_of(function), self._options
        payload = encoded(options.serializer, arguments, f"the arguments of {place}")
        main = main_place() or "" if options.serializer == "pickle" else ""
        return self._state.submit(Task("", 1, place, payload, is_chunk, options, main))

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int = 1000,
    ) -> Iterator[T]:
        """Call ``fn`` with the items of the iterables, and yield the results in their order.

        Lazy: items are taken from the iterables as results are taken from the iterator, so that iterables may
        be endless.

        Args:
            fn: the function.
            iterables: its arguments, as for ``map``; the shortest ends it.
            timeout: seconds from this call after which ``TimeoutError`` is raised; None for no limit.
            chunksize: calls that are one task. More are faster, and are done again together.
            buffersize: tasks that are submitted ahead of the result that is yielded next.

        Raises:
            ValueError: ``chunksize`` or ``buffersize`` is below 1.
            TypeError, RuntimeError, PulsarException: as `submit`.

        Example:
            >>> import itertools
            >>> with Executor("./data", max_workers=1) as executor:
            ...     powers = executor.map(pow, itertools.repeat(2), itertools.count(), buffersize=4)
            ...     list(itertools.islice(powers, 5))
            [1, 2, 4, 8, 16]
        """
        if chunksize < 1 or buffersize < 1:
            raise ValueError("chunksize and buffersize are at least 1")
        end_s = math.inf if timeout is None else SYSTEM_CLOCK.monotonic() + timeout
        items = zip(*iterables, strict=False)
        futures: deque[Future[Any]] = deque()

        def submit_one() -> None:
            chunk = [list(item) for _, item in zip(range(chunksize), items, strict=False)]
            if chunk:
                futures.append(self._submit(fn, chunk, is_chunk=True))

        # Now, as the standard executors: work begins before the first result is asked for.
        for _ in range(buffersize):
            count = len(futures)
            submit_one()
            if len(futures) == count:
                break

        def results() -> Iterator[T]:
            try:
                while futures:
                    wait_s = None if end_s == math.inf else max(0.0, end_s - SYSTEM_CLOCK.monotonic())
                    values = futures[0].result(wait_s)
                    futures.popleft()
                    submit_one()
                    yield from values
            finally:
                # The caller has enough, or a call failed. This may be a finalizer, in the middle of any call
                # of this thread.
                if futures:
                    self._state.results.cancel_later(list(futures))

        return results()

    def future(self, task_id: str) -> Future[Any]:
        """Return the future of a task that any process has submitted: its result is there, or comes.

        Args:
            task_id: the `Future.task_id`.

        Raises:
            ValueError: it is no id of a task.
            LookupError: there is no result, and no worker will do the task: the result has expired, or the
                task was removed from the store.
            RuntimeError: the executor was shut down, or belongs to another process.

        Example:
            >>> with Executor("./data", max_workers=1) as executor:
            ...     task_id = executor.submit(pow, 2, 5).task_id
            >>> with Executor("./data", max_workers=0) as later:
            ...     later.future(task_id).result(timeout=60)
            32
        """
        self._state.check_open()
        return self._state.results.adopt(task_id)

    def worker_pids(self) -> list[int]:
        """Return the ids of the worker processes of this executor.

        Example:
            >>> with Executor("./data", max_workers=1) as executor:
            ...     len(executor.worker_pids())
            1
        """
        supervision = self._state.supervision
        return [] if supervision is None else supervision.pids()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks, and end the workers of this executor when its futures are done. Idempotent.

        It waits for the futures of this executor, whichever workers do the tasks: without workers of its own,
        for those that run elsewhere. `close` does not wait.

        Args:
            wait: return when that has happened. Otherwise it happens in the background, and the end of the
                program waits for it.
            cancel_futures: cancel the tasks that have not begun.

        Example:
            >>> executor = Executor("./data", max_workers=0)
            >>> future = executor.submit(pow, 2, 3)
            >>> executor.shutdown(cancel_futures=True)
            >>> future.cancelled()
            True
        """
        self._state.shut_down(wait, cancel_futures)

    def close(self) -> None:
        """End the workers of this executor after the tasks that they do now. Idempotent.

        What is not done stays in the store for other workers, or for those of the next executor. Its futures
        get `ExecutorClosed`.

        Example:
            >>> executor = Executor("./data", max_workers=0)
            >>> task_id = executor.submit(pow, 2, 6).task_id
            >>> executor.close()
            >>> with Executor("./data", max_workers=1) as later:
            ...     later.future(task_id).result(timeout=60)
            64
        """
        self._state.close()

    def __repr__(self) -> str:
        return f"<Executor of the pool {self._state.pool!r} in {self._state.url}>"


class _State:
    """What an executor and its views with other options share."""

    def __init__(
        self,
        service_url: str | os.PathLike[str] | Client,
        pool: str,
        topics: PoolTopics,
        workers: WorkerOptions,
        result_ttl: timedelta | None,
    ) -> None:
        self.pool: Final = pool
        self._process: Final = os.getpid()
        self._own: Client | None = None
        self._is_shut_down = False
        self._lock: Final = threads.RLock()
        self._closing: threads.Daemon | None = None
        self.supervision: _Supervision | None = None
        if isinstance(service_url, Client):
            client = service_url
        else:
            client = self._own = Client(service_url, read_only=False, durability=workers.durability)
        try:
            store = client._core.store
            # The name of a store in memory is known to this process alone.
            self.url: Final[str] = store.root if store.is_temporary else client._core.config.url.text
            make_pool(self.url, topics, None if result_ttl is None else result_ttl.total_seconds())
            self.results: Final = _Results(client, self.url, topics)
            if workers.processes:
                self.supervision = _Supervision(client, self.url, pool, workers)
        except BaseException:
            if self._own is not None:
                self._own.shutdown()
            raise
        _open_states.add(self)

    def check_open(self) -> None:
        """Raise an error unless tasks can be submitted."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"the executor belongs to process {self._process}, not to {os.getpid()}; "
                "make one after the fork"
            )
        if self._is_shut_down:
            raise RuntimeError("the executor was shut down and takes no tasks")

    def submit(self, task: Task) -> Future[Any]:
        """Store a task, and return its future."""
        self.check_open()
        return self.results.submit(task, SYSTEM_CLOCK.wall_ms())

    def shut_down(self, wait: bool, cancel_futures: bool) -> None:
        """See `Executor.shutdown`."""
        if os.getpid() != self._process:
            return
        self._is_shut_down = True
        if cancel_futures:
            self.results.cancel(self.results.pending())
        if wait:
            if self.results.is_reading_thread():
                raise RuntimeError("shutdown(wait=True) in a callback would wait for itself; give wait=False")
            self._end_when_done()
            if self._closing is not None:  # a call before did not wait, and its thread may be at it
                self._closing.join()
        elif self._closing is None:
            self._closing = threads.start_daemon(self._end_when_done, "executor-shutdown")

    def _end_when_done(self) -> None:
        """Close when all futures are done."""
        try:
            while pending := self.results.pending():
                concurrent.futures.wait(pending)
        finally:  # after Ctrl-C, too
            self.close()

    def close(self) -> None:
        """See `Executor.close`."""
        if os.getpid() != self._process:
            return
        self._is_shut_down = True
        try:
            self._lock.acquire()
            if self not in _open_states:
                return
            _open_states.discard(self)
        finally:
            self._lock.release()
        try:
            if self.supervision is not None:
                self.supervision.close()
        finally:
            self.results.close()
            if self._own is not None:
                self._own.close()

    def end_with_program(self) -> None:
        """What happens at the end of the program: tasks of a `shutdown` are waited for, others stay in the
        store."""
        if self._closing is not None:
            self._closing.join()
        self.close()


_open_states: Final[weakref.WeakSet[_State]] = weakref.WeakSet()


def _end_with_program() -> None:
    for state in list(_open_states):
        if state._process == os.getpid():
            state.end_with_program()


atexit.register(_end_with_program)
