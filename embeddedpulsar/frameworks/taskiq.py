"""taskiq: a broker, a result back end and a schedule source. Needs ``pip install "embeddedpulsar[taskiq]"``.

Example:
    >>> import asyncio
    >>> from taskiq.api import run_receiver_task
    >>> broker = EmbeddedPulsarBroker("memory://kitchen").with_result_backend(
    ...     EmbeddedPulsarResultBackend("memory://kitchen")
    ... )
    >>> @broker.task
    ... async def cook(dish: str) -> str:
    ...     return f"{dish} is ready"
    >>> async def main():
    ...     await broker.startup()
    ...     worker = asyncio.create_task(run_receiver_task(broker))  # else: `taskiq worker module:broker`
    ...     task = await cook.kiq("soup")
    ...     result = await task.wait_result(check_interval=0.01, timeout=20)
    ...     worker.cancel()
    ...     await asyncio.gather(worker, return_exceptions=True)
    ...     await broker.shutdown()
    ...     return result.return_value
    >>> asyncio.run(main())
    'soup is ready'
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

try:
    from taskiq.abc.broker import AsyncBroker
    from taskiq.abc.result_backend import AsyncResultBackend
    from taskiq.abc.schedule_source import ScheduleSource
    from taskiq.acks import AckableMessage
    from taskiq.depends.progress_tracker import TaskProgress
    from taskiq.result import TaskiqResult
    from taskiq.scheduler.scheduled_task import ScheduledTask
    from taskiq.serializers import JSONSerializer
except ImportError as error:
    raise ImportError('the taskiq broker needs taskiq: pip install "embeddedpulsar[taskiq]"') from error

from embeddedpulsar.asyncio.client import Client
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.frameworks.job_store import WORKERS, JobStore, JobTable

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from taskiq.abc.serializer import TaskiqSerializer
    from taskiq.message import BrokerMessage

    from embeddedpulsar.asyncio.consumer import Consumer, Producer
    from embeddedpulsar.message import Message

R = TypeVar("R")

DAY_S: Final = 24 * 3600
"""How long a result is kept by default, seconds."""


class ResultMissingError(LookupError):
    """A result was asked for that is not there: the task is not done, or its result expired."""


class EmbeddedPulsarBroker(AsyncBroker):
    """Sends tasks through a topic of a store, and receives them in any number of workers.

    Role: each task is one message, with its id, name and labels as properties. All workers share the
    subscription ``workers``; a task is acknowledged when taskiq says so, by default when its result is
    saved. If a worker dies before, another one gets the task within milliseconds.

    Labels of a task: ``delay``, seconds (a number) before workers get it, also across restarts;
    ``priority``, 0 to ``max_priority``, of which the highest comes first; ``queue_name``, the topic, if it
    is not that of the broker.

    Coroutines of one loop at a time. `startup` makes the topic and its subscription, so that no task is lost
    that is sent before the first worker starts.

    Args:
        service_url: of the store: a directory, or ``memory://name``.
        queue_name: the topic. With ``max_priority``, a task of priority 3 is in ``<topic>-priority-3``.
        max_priority: the highest priority that tasks may have. Each worker has a consumer for each.
        receiver_queue_size: most tasks that a worker fetches before its coroutines ask for them. taskiq
            itself prefetches (``--max-prefetch``), so more than 1 gains little, and withholds tasks from
            idle workers.
        **options: of `embeddedpulsar.Client`, such as ``durability``.

    Raises:
        ValueError: ``max_priority`` is negative.

    Example:
        >>> import asyncio
        >>> broker = EmbeddedPulsarBroker("memory://mails", max_priority=9)
        >>> @broker.task(priority=9)
        ... async def send(address: str) -> None: ...
        >>> async def main():
        ...     await broker.startup()
        ...     await send.kiq("ada@example.org")
        ...     async for message in broker.listen():
        ...         await message.ack()
        ...         break
        ...     await broker.shutdown()
        ...     return broker.formatter.loads(message.data).args
        >>> asyncio.run(main())
        ['ada@example.org']
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str],
        queue_name: str = "taskiq",
        *,
        max_priority: int = 0,
        receiver_queue_size: int = 1,
        task_id_generator: Callable[[], str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if task_id_generator is not None:
            self.id_generator = task_id_generator
        if max_priority < 0:
            raise ValueError(f"max_priority is the highest priority, 0 or more, not {max_priority}")
        self.queue_name: Final = queue_name
        self.max_priority: Final = max_priority
        self._receiver_queue_size: Final = receiver_queue_size
        self._store: Final = JobStore(service_url, **options)
        self._client: Client | None = None
        self._producers: dict[str, asyncio.Task[Producer[bytes]]] = {}
        self._source: _SortedConsumers | None = None

    async def startup(self) -> None:
        """Open the store, and make the topics of the queue."""
        await super().startup()
        await asyncio.gather(*(self._producer(name) for name in self._topics(self.queue_name)))

    async def shutdown(self) -> None:
        """Close producers and consumers. Tasks that are not acknowledged go to other workers."""
        await super().shutdown()
        client, self._client, self._source = self._client, None, None
        self._producers.clear()
        if client is not None:
            await client.close()
        await asyncio.to_thread(self._store.close)

    def _topics(self, queue_name: str) -> list[str]:
        """The topics of a queue, the one of the highest priority first."""
        return [self._topic(queue_name, priority) for priority in range(self.max_priority, -1, -1)]

    def _topic(self, queue_name: str, priority: int) -> str:
        return f"{queue_name}-priority-{priority}" if priority else queue_name

    async def _opened(self) -> Client:
        if self._client is None:
            opened = await asyncio.to_thread(lambda: Client(self._store.service_url, **self._store.options))
            # Another coroutine may have been faster.
            if self._client is None:
                self._client = opened
            else:
                await opened.close()
        return self._client

    async def _producer(self, topic: str) -> Producer[bytes]:
        task = self._producers.get(topic)
        if task is None or (task.done() and task.exception() is not None):
            task = self._producers[topic] = asyncio.create_task(self._attach(topic))
        return await asyncio.shield(task)

    async def _attach(self, topic: str) -> Producer[bytes]:
        client = await self._opened()
        await asyncio.to_thread(self._store.create_queue, topic)
        # A batch goes whole to one worker, so tasks are not batched.
        return await client.create_producer(topic, batching_enabled=False)

    async def kick(self, message: BrokerMessage) -> None:
        """Store a task. On return it is stored at the durability of the client.

        Raises:
            ValueError: the label ``priority`` or ``delay`` is no number, or out of range.
            PulsarException: it is not stored; see `embeddedpulsar.Producer.send`.
        """
        labels = message.labels
        priority = self._priority(labels.get("priority", 0), message.task_name)
        producer = await self._producer(self._topic(labels.get("queue_name") or self.queue_name, priority))
        # Every label, so that other programs that read the topic see it.
        properties = {
            name: value if isinstance(value, str) else json.dumps(value, default=str)
            for name, value in labels.items()
        }
        await producer.send(
            message.message,
            properties={**properties, "task_id": message.task_id, "task_name": message.task_name},
            deliver_after=_delay(labels.get("delay"), message.task_name),
        )

    def _priority(self, label: Any, task_name: str) -> int:
        try:
            priority = int(label)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the label priority of {task_name} is a whole number, not {label!r}") from error
        if not 0 <= priority <= self.max_priority:
            raise ValueError(
                f"the priority of {task_name} is {priority}, and this broker has 0 to {self.max_priority}; "
                "make the broker with max_priority, in clients and in workers"
            )
        return priority

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield the tasks of the queue as they come, of the highest priority first.

        A task that is yielded and not acknowledged is delivered again when the generator is closed.
        """
        source = await self._attached_consumers()
        while True:
            message, acknowledge = await source.receive()
            yield AckableMessage(data=message.data(), ack=acknowledge)

    async def _attached_consumers(self) -> _SortedConsumers:
        # They stay attached when the generator is closed: taskiq acknowledges the tasks in progress after
        # that, and closes the broker then. A consumer that is not received from gets no new tasks meanwhile.
        if self._source is None:
            client = await self._opened()
            self._source = _SortedConsumers(
                [
                    await client.subscribe(
                        topic,
                        WORKERS,
                        ConsumerType.Shared,
                        receiver_queue_size=self._receiver_queue_size,
                        initial_position=InitialPosition.Earliest,
                    )
                    for topic in self._topics(self.queue_name)
                ]
            )
        return self._source


def _delay(label: Any, task_name: str) -> timedelta | None:
    if label is None:
        return None
    try:
        delay = timedelta(seconds=float(label))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the label delay of {task_name} is a number of seconds, not {label!r}") from error
    return max(delay, timedelta(0))


class _SortedConsumers:
    """The consumers of a queue, by priority. `receive` returns a message of the first that has any.

    Callers: one coroutine.
    """

    def __init__(self, consumers: list[Consumer[bytes]]) -> None:
        self._consumers: Final = consumers
        # Several waited, and more than one of them got a message.
        self._received: Final[list[deque[Message[bytes]]]] = [deque() for _ in consumers]

    async def receive(self) -> tuple[Message[bytes], Callable[[], Awaitable[None]]]:
        """Return the next message, and what acknowledges it."""
        consumers = self._consumers
        if len(consumers) == 1:
            return self._with_acknowledge(consumers[0], await consumers[0].receive())
        while True:
            for consumer, received in zip(consumers, self._received, strict=True):
                message = received.popleft() if received else consumer.receive_nowait()
                if message is not None:
                    return self._with_acknowledge(consumer, message)
            await self._wait()

    def _with_acknowledge(
        self, consumer: Consumer[bytes], message: Message[bytes]
    ) -> tuple[Message[bytes], Callable[[], Awaitable[None]]]:
        return message, lambda: consumer.acknowledge(message)

    async def _wait(self) -> None:
        """Return when any consumer has received a message."""
        waiting = [asyncio.create_task(consumer.receive()) for consumer in self._consumers]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            # A receive that is cancelled in time has taken no message. What the others have is kept, also if
            # this coroutine is cancelled itself.
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            for received, outcome in zip(self._received, outcomes, strict=True):
                if not isinstance(outcome, BaseException):
                    received.append(outcome)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


class EmbeddedPulsarResultBackend(AsyncResultBackend[R]):
    """Keeps results and progress in a topic of a store, where all processes find them.

    Role: a worker appends each result as one message; a process that asks for results follows the topic, and
    has those of the last ``result_ttl_s`` in memory. Results that are older are removed with their ledgers.

    Coroutines of one loop at a time.

    Args:
        service_url: of the store: a directory, or ``memory://name``.
        topic: of the results.
        result_ttl_s: how long a result is kept, seconds.
        keep_results: whether a result stays after `get_result`.
        serializer: of the fields of a `TaskiqResult`; None for JSON, with what pydantic makes of other types.
        **options: of `embeddedpulsar.Client`, such as ``durability``.

    Raises:
        ValueError: ``result_ttl_s`` is not positive.

    Example:
        >>> import asyncio
        >>> from taskiq import TaskiqResult
        >>> async def main():
        ...     results = EmbeddedPulsarResultBackend("memory://results")
        ...     await results.startup()
        ...     done = TaskiqResult(is_err=False, return_value=4, execution_time=0.1)
        ...     await results.set_result("task-1", done)
        ...     value = (await results.get_result("task-1")).return_value
        ...     ready = await results.is_result_ready("task-2")
        ...     await results.shutdown()
        ...     return value, ready
        >>> asyncio.run(main())
        (4, False)
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str],
        topic: str = "taskiq-results",
        *,
        result_ttl_s: float = DAY_S,
        keep_results: bool = True,
        serializer: TaskiqSerializer | None = None,
        **options: Any,
    ) -> None:
        if result_ttl_s <= 0:
            raise ValueError(f"result_ttl_s is how long a result is kept, more than 0, not {result_ttl_s}")
        self._store: Final = JobStore(service_url, **options)
        self._table: Final = JobTable(self._store, topic, retention_ms=int(result_ttl_s * 1000))
        self._topic: Final = topic
        self._keep_results: Final = keep_results
        self._serializer: Final = serializer or JSONSerializer()
        self._mode: Final = "python" if serializer is not None else "json"
        self._client: Client | None = None
        self._producer: Producer[bytes] | None = None
        self._is_loaded = False

    async def startup(self) -> None:
        """Make the topic. Results that are there are read when the first one is asked for."""
        client = await asyncio.to_thread(lambda: Client(self._store.service_url, **self._store.options))
        await asyncio.to_thread(self._table.prepare_topic)
        self._client, self._producer = client, await client.create_producer(self._topic)

    async def shutdown(self) -> None:
        """Close the store."""
        client, self._client, self._producer, self._is_loaded = self._client, None, None, False
        if client is not None:
            await client.close()
        await asyncio.to_thread(self._table.close)
        await asyncio.to_thread(self._store.close)

    async def _put(self, key: str, value: bytes) -> None:
        if self._producer is None:
            await self.startup()
        producer = self._producer
        assert producer is not None
        await producer.send(self._table.record(value), partition_key=key)

    async def _get(self, key: str) -> bytes | None:
        # The first call reads all that is there, later ones what is new.
        if self._is_loaded:
            return self._table.get(key)
        value = await asyncio.to_thread(self._table.get, key)
        self._is_loaded = True
        return value

    async def set_result(self, task_id: str, result: TaskiqResult[R]) -> None:
        """Store a result. On return it is stored at the durability of the client.

        Raises:
            TypeError, ValueError: the serializer cannot handle the value.
            PulsarException: it is not stored; see `embeddedpulsar.Producer.send`.
        """
        await self._put(task_id, self._serializer.dumpb(result.model_dump(mode=self._mode)))

    async def is_result_ready(self, task_id: str) -> bool:
        """Return whether the result is there."""
        return await self._get(task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[R]:
        """Return a result; with its log if asked for. Without ``keep_results`` it is removed.

        Raises:
            ResultMissingError: it is not there.
        """
        value = await self._get(task_id)
        if value is None:
            raise ResultMissingError(
                f"there is no result of task {task_id}: it is not done, or its result was removed or expired"
            )
        if not self._keep_results:
            await asyncio.to_thread(self._table.remove, task_id)
        result: TaskiqResult[R] = TaskiqResult.model_validate(self._serializer.loadb(value))
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Store the progress of a task, in the place of what it was."""
        await self._put(_progress(task_id), self._serializer.dumpb(progress.model_dump(mode=self._mode)))

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return the last progress of a task; None if it reported none."""
        value = await self._get(_progress(task_id))
        return None if value is None else TaskProgress[Any].model_validate(self._serializer.loadb(value))


def _progress(task_id: str) -> str:
    return f"{task_id}/progress"


class EmbeddedPulsarScheduleSource(ScheduleSource):
    """Keeps schedules in a topic of a store, for ``taskiq scheduler``.

    Any process adds and deletes schedules; the scheduler reads them at each of its updates. Schedules with a
    ``cron`` or an ``interval`` stay until they are deleted; one with a ``time`` is deleted when its task was
    sent. A scheduler that dies between the two sends the task again: delivery is at least once.

    Any thread and loop.

    Args:
        service_url: of the store: a directory, or ``memory://name``.
        topic: of the schedules.
        **options: of `embeddedpulsar.Client`, such as ``durability``.

    Example:
        >>> import asyncio
        >>> from taskiq import ScheduledTask
        >>> async def main():
        ...     source = EmbeddedPulsarScheduleSource("memory://schedules")
        ...     nightly = {"task_name": "report", "labels": {}, "args": [], "kwargs": {}, "cron": "0 2 * * *"}
        ...     await source.add_schedule(ScheduledTask(**nightly, schedule_id="nightly"))
        ...     crons = [task.cron for task in await source.get_schedules()]
        ...     await source.delete_schedule("nightly")
        ...     remaining = await source.get_schedules()
        ...     await source.shutdown()
        ...     return crons, remaining
        >>> asyncio.run(main())
        (['0 2 * * *'], [])
    """

    def __init__(
        self, service_url: str | os.PathLike[str], topic: str = "taskiq-schedules", **options: Any
    ) -> None:
        self._store: Final = JobStore(service_url, **options)
        self._table: Final = JobTable(self._store, topic, retention_ms=None)

    async def shutdown(self) -> None:
        """Close the store."""
        await asyncio.to_thread(self._table.close)
        await asyncio.to_thread(self._store.close)

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return all schedules, in the order in which they were added."""
        items = await asyncio.to_thread(self._table.items)
        return [ScheduledTask.model_validate_json(value) for value in items.values()]

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Add a schedule, or replace the one of the same ``schedule_id``."""
        value = schedule.model_dump_json().encode()
        await asyncio.to_thread(self._table.put, schedule.schedule_id, value)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule, which need not be there."""
        await asyncio.to_thread(self._table.remove, schedule_id)

    async def post_send(self, task: ScheduledTask) -> None:
        """Delete a schedule that is due once: its task was sent."""
        if task.time is not None:
            await self.delete_schedule(task.schedule_id)
