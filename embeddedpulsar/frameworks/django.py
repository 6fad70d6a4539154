"""A back end for the tasks of Django, and its workers: tasks and results are in a store, without a server.

`TaskBackend` is for ``TASKS`` of the settings, and ``python -m embeddedpulsar.frameworks.django worker`` runs
beside the web server. With Django 6 these are the tasks of ``django.tasks``, before that those of the package
django-tasks. docs/django.md has the details.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from traceback import format_exception
from typing import TYPE_CHECKING
from urllib.parse import quote

from embeddedpulsar.client.consumer.topic_group import ConsumerSelector
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import NotAllowedError
from embeddedpulsar.frameworks.engine import SYSTEM_CLOCK, threads
from embeddedpulsar.frameworks.job_store import WORKERS, JobStore, ResultTable

try:
    import django
    from django.core.exceptions import ImproperlyConfigured
    from django.db import close_old_connections, transaction
    from django.utils import timezone
    from django.utils.crypto import get_random_string
    from django.utils.module_loading import import_string

    if django.VERSION >= (6, 0):
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json
    else:
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
except ImportError as error:
    raise ImportError(
        'the tasks of Django need Django 6, or django-tasks: pip install "embeddedpulsar[django]"',
        name="django",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Final

    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.message import Message

NAMESPACE: Final = "public/django"
"""Where the topics of queues and results are, unless the options say otherwise."""

_OPTIONS: Final = frozenset(
    {"durability", "enqueue_on_commit", "max_attempts", "namespace", "path", "result_ttl_s"}
)
_RESULTS: Final = ";results"
_RESULT_TTL_S: Final = 24 * 3600
_MAX_ATTEMPTS: Final = 5
_LOOK_EACH_S: Final = 1.0
"""How long a priority that is used for the first time may stay unnoticed."""
_TIMES: Final = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")


class WorkerDiedError(Exception):
    """Every worker that began to run a task has died: it is not tried again."""


class TaskBackend(BaseTaskBackend):  # type: ignore[misc]  # django has no types
    """Tasks of Django in a store.

    Options, in ``OPTIONS`` of the back end:

    * ``path``: the directory of the store, a path or a URL as for `Client`. Required.
    * ``namespace``: where the topics are; default is ``public/django``.
    * ``durability``: what an enqueued task survives, see `Client`; default is ``process``.
    * ``enqueue_on_commit``: True sends a task when the transaction commits in which it is enqueued.
    * ``result_ttl_s``: for how long results are kept, in seconds; default is a day, None for ever.
    * ``max_attempts``: how many workers may die of a task before it fails; default is 5.

    A task is stored when ``enqueue`` returns, and acknowledged when its result is stored. What a worker runs
    that is killed goes to another one within milliseconds. Callers: any thread; a fork goes on.

    Raises:
        ImproperlyConfigured: no path, or an option that there is not.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = self.options
        unknown = set(options) - _OPTIONS
        if unknown or not options.get("path"):
            what = f"unknown options {sorted(unknown)}" if unknown else "no option 'path'"
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}] has {what}: 'OPTIONS' needs the directory of a store as 'path', and may "
                f"have {', '.join(sorted(_OPTIONS - {'path'}))}"
            )
        self.max_attempts: Final = options.get("max_attempts", _MAX_ATTEMPTS)
        self._namespace: Final = options.get("namespace", NAMESPACE)
        self._on_commit: Final = bool(options.get("enqueue_on_commit"))
        self.jobs: Final = JobStore(options["path"], durability=options.get("durability", "process"))
        ttl_s = options.get("result_ttl_s", _RESULT_TTL_S)
        self._table: Final = ResultTable(
            self.jobs,
            f"persistent://{self._namespace}/{_RESULTS}",
            retention_ms=None if ttl_s is None else round(ttl_s * 1000),
        )
        self._lock: Final = threads.RLock()
        self._producers: dict[str, Producer[bytes]] = {}
        self._is_prepared = False

    # -- topics --------------------------------------------------------------------------------------------

    @property
    def results(self) -> ResultTable:
        """The results of all tasks."""
        self._prepare()
        return self._table

    def _prepare(self) -> None:
        if not self._is_prepared:
            with contextlib.suppress(NotAllowedError):  # it exists
                self.jobs.admin.namespaces().create_namespace(self._namespace)
            self._is_prepared = True

    def topic(self, queue: str, priority: int = 0) -> str:
        """Return the topic of a queue for one priority."""
        name = quote(queue, safe="").replace("-partition-", "%2Dpartition-")
        suffix = f";priority{priority:+d}" if priority else ""
        return f"persistent://{self._namespace}/{name}{suffix}"

    def topics(self, queue: str) -> list[str]:
        """Return the topics of a queue that there are, by falling priority."""
        self._prepare()
        prefix = self.topic(queue)
        priorities = {0}
        for topic in self.jobs.admin.topics().get_list(self._namespace):
            if topic.startswith(f"{prefix};priority"):
                priorities.add(int(topic.removeprefix(f"{prefix};priority")))
        return [self.topic(queue, priority) for priority in sorted(priorities, reverse=True)]

    def _producer(self, topic: str) -> Producer[bytes]:
        try:
            self._lock.acquire()
            producer = self._producers.get(topic)
            if producer is None:
                self._prepare()
                self.jobs.create_queue(topic)
                producer = self._producers[topic] = self.jobs.client.create_producer(topic)
            return producer
        finally:
            self._lock.release()

    # -- Django's interface --------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Store a task to be run by a worker.

        Returns:
            Its `TaskResult`, with the id by which any process gets the result.

        Raises:
            PulsarException: it is not stored.
        """
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=get_random_string(32),
            status=TaskResultStatus.READY,
            enqueued_at=None if self._on_commit else timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        if self._on_commit:
            transaction.on_commit(lambda: self._send(result))
        else:
            self._send(result)
        return result

    def _send(self, result: Any) -> None:
        task = result.task
        if result.enqueued_at is None:
            object.__setattr__(result, "enqueued_at", timezone.now())
        record = self.record(result)
        # The result first: a worker that has the message finds it.
        self.store(result, record)
        options: dict[str, Any] = {}
        if task.run_after is not None:
            due = task.run_after if timezone.is_aware(task.run_after) else timezone.make_aware(task.run_after)
            options["deliver_at"] = round(due.timestamp() * 1000)
        properties = {"task": task.module_path, "id": result.id}
        self._producer(self.topic(task.queue_name, task.priority)).send(record, properties, **options)
        task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """Return the `TaskResult` of an id.

        Raises:
            TaskResultDoesNotExist: there is none; it may have expired.
        """
        record = self.results.get(str(result_id))
        if record is None:
            raise TaskResultDoesNotExist(
                f"there is no result {result_id!r}: the id is of no task, or it has expired"
            )
        return self.result_of(record)

    # -- records -------------------------------------------------------------------------------------------

    def record(self, result: Any) -> bytes:
        """Return a result as bytes, with its task: what a message and a result have in the store."""
        task = result.task
        document: dict[str, Any] = {
            "id": result.id,
            "task": task.module_path,
            "priority": task.priority,
            "queue_name": task.queue_name,
            "run_after": None if task.run_after is None else task.run_after.isoformat(),
            "args": result.args,
            "kwargs": result.kwargs,
            "status": str(result.status.value),
            "errors": [[error.exception_class_path, error.traceback] for error in result.errors],
            "worker_ids": result.worker_ids,
            "return_value": result._return_value,
        }
        for name in _TIMES:
            time = getattr(result, name)
            document[name] = None if time is None else time.isoformat()
        return json.dumps(document, separators=(",", ":")).encode()

    def result_of(self, record: bytes) -> Any:
        """Return the result in a record.

        Raises:
            ImportError: its task cannot be imported.
        """
        document = json.loads(record)
        run_after = document["run_after"]
        task = import_string(document["task"]).using(
            priority=document["priority"],
            queue_name=document["queue_name"],
            run_after=None if run_after is None else datetime.fromisoformat(run_after),
            backend=self.alias,
        )
        times = {
            name: None if document[name] is None else datetime.fromisoformat(document[name])
            for name in _TIMES
        }
        result = TaskResult(
            task=task,
            id=document["id"],
            status=TaskResultStatus(document["status"]),
            args=document["args"],
            kwargs=document["kwargs"],
            backend=self.alias,
            errors=[
                TaskError(exception_class_path=path, traceback=text) for path, text in document["errors"]
            ],
            worker_ids=document["worker_ids"],
            **times,
        )
        object.__setattr__(result, "_return_value", document["return_value"])
        return result

    def store(self, result: Any, record: bytes | None = None) -> None:
        """Store the present state of a result. That of a task that has finished stays."""
        self.results.put_result(result.id, record or self.record(result), is_final=result.is_finished)

    def close(self) -> None:
        """Leave the store. The next use opens it again."""
        try:
            self._lock.acquire()
            self._producers = {}
        finally:
            self._lock.release()
        self._table.close()
        self.jobs.close()


class Worker:
    """Runs the tasks of a back end, one after the other, until `stop` is called.

    Role: the queues are served in turn, and in each the highest priority first. The task that is being run is
    held by this process alone: if it dies, another worker has the task within milliseconds.
    Callers: one thread; `stop` may be called by any thread and by signal handlers.

    Args:
        backend: with the store.
        queues: names; those of the back end by default.

    Example:
        >>> backend = TaskBackend("default", {"OPTIONS": {"path": "./data"}})
        >>> Worker(backend).run(is_burst=True)
        0
        >>> backend.close()
    """

    def __init__(self, backend: TaskBackend, queues: Iterable[str] = ()) -> None:
        self.id: Final = get_random_string(32)
        self._backend: Final = backend
        self._queues: Final = list(queues) or sorted(backend.queues or {"default"})
        self._selector: Final = ConsumerSelector([])
        self._consumers: dict[str, dict[str, Consumer[bytes]]] = {queue: {} for queue in self._queues}
        self._looked_at = -_LOOK_EACH_S
        self._is_over = False

    def stop(self) -> None:
        """End `run` when the task that it runs is done."""
        self._is_over = True
        self._selector.wake()

    def run(self, is_burst: bool = False, max_tasks: int | None = None) -> int:
        """Run tasks.

        Args:
            is_burst: end when there is no task that is due, instead of waiting for one.
            max_tasks: end after so many.

        Returns:
            How many were run.
        """
        count = 0
        try:
            while not self._is_over and (max_tasks is None or count < max_tasks):
                consumers = self._present_consumers(count)
                received = self._selector.receive_nowait(consumers)
                if received is not None:
                    # Others are woken for what comes while the task is run.
                    self._selector.end_wait(consumers)
                    self._run(*received)
                    count += 1
                elif is_burst:
                    break
                elif self._selector.request_wakeup(consumers):
                    self._selector.wait(consumers, _LOOK_EACH_S)
            return count
        finally:
            for consumers_of_queue in self._consumers.values():
                for consumer in consumers_of_queue.values():
                    self._selector.remove(consumer)
                    consumer.close()
                consumers_of_queue.clear()

    def _present_consumers(self, turn: int) -> list[Consumer[bytes]]:
        """The consumers of all queues, beginning with another queue each turn."""
        now = SYSTEM_CLOCK.monotonic()
        if now - self._looked_at >= _LOOK_EACH_S:
            self._looked_at = now
            for queue, consumers in self._consumers.items():
                topics = self._backend.topics(queue)
                for topic in topics:
                    if topic not in consumers:
                        consumers[topic] = self._attached(topic)
                self._consumers[queue] = {topic: consumers[topic] for topic in topics}
        queues = self._queues[turn % len(self._queues) :] + self._queues[: turn % len(self._queues)]
        return [consumer for queue in queues for consumer in self._consumers[queue].values()]

    def _attached(self, topic: str) -> Consumer[bytes]:
        self._backend.jobs.create_queue(topic)
        consumer = self._backend.jobs.client.subscribe(
            topic, WORKERS, ConsumerType.Shared, receiver_queue_size=1, ack_group_time_ms=0
        )
        self._selector.add(consumer)
        return consumer

    def _run(self, consumer: Consumer[bytes], message: Message[bytes]) -> None:
        record = message.data()
        deaths = message.redelivery_count()
        if deaths:
            # What workers that died had stored: who they were, and perhaps that they had finished.
            record = self._backend.results.get(message.properties()["id"]) or record
        try:
            result = self._backend.result_of(record)
        except Exception as error:  # noqa: BLE001 - the task is of the user, and not there
            self._refuse(json.loads(record), error)
        else:
            if not result.is_finished:
                if deaths >= self._backend.max_attempts:
                    self._finish(result, WorkerDiedError(f"{deaths} workers died while they ran it"))
                else:
                    self._attempt(result)
        # Behind the result: of both, the acknowledgement is what may be missing after a kill.
        consumer.acknowledge(message)

    def _attempt(self, result: Any) -> None:
        now = timezone.now()
        object.__setattr__(result, "status", TaskResultStatus.RUNNING)
        object.__setattr__(result, "started_at", result.started_at or now)
        object.__setattr__(result, "last_attempted_at", now)
        result.worker_ids.append(self.id)
        self._backend.store(result)
        task_started.send(sender=type(self._backend), task_result=result)
        task = result.task
        context = [TaskContext(task_result=result)] if task.takes_context else []
        close_old_connections()
        try:
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
        except KeyboardInterrupt:
            raise  # the task goes to another worker
        except BaseException as error:  # noqa: BLE001 - also SystemExit is of the task
            self._finish(result, error)
        else:
            object.__setattr__(result, "_return_value", value)
            self._finish(result, None)
        finally:
            close_old_connections()

    def _finish(self, result: Any, error: BaseException | None) -> None:
        status = TaskResultStatus.SUCCESSFUL if error is None else TaskResultStatus.FAILED
        if error is not None:
            result.errors.append(
                TaskError(
                    exception_class_path=f"{type(error).__module__}.{type(error).__qualname__}",
                    traceback="".join(format_exception(error)),
                )
            )
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", status)
        self._backend.store(result)
        task_finished.send(type(self._backend), task_result=result)

    def _refuse(self, document: dict[str, Any], error: Exception) -> None:
        """Have a task fail that this worker cannot import."""
        text = "".join(format_exception(error))
        document["errors"].append([f"{type(error).__module__}.{type(error).__qualname__}", text])
        document |= {"status": "FAILED", "finished_at": timezone.now().isoformat()}
        record = json.dumps(document, separators=(",", ":")).encode()
        self._backend.results.put_result(document["id"], record, is_final=True)
        sys.stderr.write(f"task {document['id']} of {document['task']} cannot be run: {error}\n")


def run_worker(options: argparse.Namespace) -> int:
    """Run a worker in this process, until SIGTERM or Ctrl-C.

    Returns:
        The exit status.
    """
    django.setup()
    if django.VERSION >= (6, 0):
        from django.tasks import task_backends
    else:
        from django_tasks import task_backends
    backend = task_backends[options.backend]
    if not isinstance(backend, TaskBackend):
        kind = f"{type(backend).__module__}.{type(backend).__qualname__}"
        sys.stderr.write(f"TASKS[{options.backend!r}] is a {kind}: this worker runs tasks of {__name__}\n")
        return 2
    worker = Worker(backend, options.queue or ())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    try:
        worker.run(options.burst, options.max_tasks)
    finally:
        backend.close()
    return 0


def _supervise(options: argparse.Namespace, words: list[str]) -> int:
    """Run several workers as processes, and start those again that die, until SIGTERM or Ctrl-C."""
    over = threads.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    command = [sys.executable, "-m", "embeddedpulsar.frameworks.django", *words, "--processes", "1"]
    workers = [subprocess.Popen(command) for _ in range(options.processes)]
    statuses: list[int] = []
    while workers and not over.is_set():
        over.wait(_LOOK_EACH_S / 10)
        for worker in list(workers):
            if worker.poll() is None:
                continue
            workers.remove(worker)
            statuses.append(worker.returncode)
            # Those that have ended by themselves, or cannot begin, are not started again.
            if worker.returncode not in (0, 1, 2) and not over.is_set():
                sys.stderr.write(f"worker {worker.pid} died with {worker.returncode}; another one starts\n")
                workers.append(subprocess.Popen(command))
    for worker in workers:
        worker.terminate()
    statuses += [worker.wait() for worker in workers]
    return max((status for status in statuses if status in (1, 2)), default=0)


def main(words: list[str] | None = None) -> int:
    """The program ``python -m embeddedpulsar.frameworks.django``.

    Returns:
        The exit status.
    """
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(prog="python -m embeddedpulsar.frameworks.django")
    command = parser.add_subparsers(required=True).add_parser("worker", help="run tasks until SIGTERM")
    command.add_argument("--settings", help="module of the settings; default: DJANGO_SETTINGS_MODULE")
    command.add_argument("--backend", default="default", help="name in TASKS (default: default)")
    command.add_argument("--queue", action="append", help="which queue; may be repeated (default: all)")
    command.add_argument("--processes", type=int, default=1, help="how many tasks at a time (default: 1)")
    command.add_argument("--burst", action="store_true", help="end when no task is due")
    command.add_argument("--max-tasks", type=int, help="end after so many tasks")
    options = parser.parse_args(words)
    if options.processes < 1:
        parser.error("--processes: at least 1")
    if options.settings:
        os.environ["DJANGO_SETTINGS_MODULE"] = options.settings
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as manage.py
    return run_worker(options) if options.processes == 1 else _supervise(options, words)


if __name__ == "__main__":
    # The back end of the settings is a class of the imported module, not of this one.
    from embeddedpulsar.frameworks.django import main as imported_main

    sys.exit(imported_main())
