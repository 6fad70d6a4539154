"""huey: a storage, and a `Huey` that loses no task of a worker that dies. Needs
``pip install "embeddedpulsar[huey]"``.

Example:
    >>> huey = EmbeddedPulsarHuey("bar", service_url="memory://bar")
    >>> @huey.task(retries=2)
    ... def brew(kind):
    ...     return f"{kind} is ready"
    >>> result = brew("espresso")
    >>> consumer = huey.create_consumer(workers=1)  # in production: `huey_consumer module.huey`
    >>> consumer.start()
    >>> result.get(blocking=True, timeout=20)
    'espresso is ready'
    >>> consumer.stop(graceful=True)
    >>> huey.storage.close()
"""

from __future__ import annotations

import datetime
import os
import struct
import threading
import uuid
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

try:
    from huey.api import Huey
    from huey.constants import EmptyData
    from huey.storage import BaseStorage
except ImportError as error:
    raise ImportError('the huey storage needs huey: pip install "embeddedpulsar[huey]"') from error

from embeddedpulsar.client.consumer.topic_group import ConsumerSelector
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.frameworks.engine import SYSTEM_CLOCK, threads
from embeddedpulsar.frameworks.job_store import WORKERS, JobStore, JobTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from huey.api import Task

    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.consumer.reader import Reader
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId

NAMESPACE: Final = "public/huey"
"""Where the topics of queues, schedules and data are."""

# Keys of the table of data: what tasks put, and counters.
_DATA: Final = "d/"
_COUNTER: Final = "c/"
# A scheduled task: when it is due in microseconds since 1970 of its own clock, and until when, in ms of the
# machine's, a scheduler that took it has time to put it into the queue.
_SCHEDULED: Final = struct.Struct(">qQ")
_CLAIM_MS: Final = 60_000
# An acknowledgement is written to the store within this time, seconds.
_WRITTEN_S: Final = 1.0
# Messages that are looked at when one is acknowledged: more than one, so that their number does not grow.
_SEEN: Final = 4
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class EmbeddedPulsarStorage(BaseStorage):  # type: ignore[misc]
    """The queue, the schedule and the data of a `Huey` in topics of a store.

    Role: each priority of the queue is a topic with the subscription ``workers``; data, counters and locks
    are one table of values, scheduled tasks another one. `dequeue` sleeps until there is a task.

    Thread-safe. After a fork the child goes on with it. Tasks are acknowledged when they are dequeued, as by
    the other storages of huey, or after they ran, if ``acknowledge_late`` says so: `EmbeddedPulsarHuey` has
    what that needs.

    Args:
        name: of the queue.
        service_url: of the store: a directory, or ``memory://name``.
        read_timeout: longest time for which `dequeue` waits, seconds.
        expire_time: how long results of tasks are kept, seconds; None until they are read.
        acknowledge_late: whether tasks are acknowledged by `acknowledge`.
        **options: of `embeddedpulsar.Client`, such as ``durability``.

    Raises:
        ValueError: ``read_timeout`` or ``expire_time`` is not positive.

    Example:
        >>> storage = EmbeddedPulsarStorage("mails", service_url="memory://mails")
        >>> storage.enqueue(b"later"), storage.enqueue(b"first", priority=9)
        (None, None)
        >>> storage.dequeue(), storage.dequeue(), storage.queue_size()
        (b'first', b'later', 0)
        >>> storage.put_if_empty("lock", b"mine", ttl=60), storage.put_if_empty("lock", b"yours")
        (True, False)
        >>> storage.incr("sent"), storage.incr("sent", 2)
        (1, 3)
        >>> storage.close()
    """

    blocking = True
    priority = True

    def __init__(
        self,
        name: str = "huey",
        *,
        service_url: str | os.PathLike[str],
        read_timeout: float = 1.0,
        expire_time: float | None = None,
        acknowledge_late: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(name)
        if read_timeout <= 0:
            raise ValueError(f"read_timeout is seconds, more than 0, not {read_timeout}")
        if expire_time is not None and expire_time <= 0:
            raise ValueError(f"expire_time is seconds, more than 0, or None, not {expire_time}")
        self.topic: Final = f"persistent://{NAMESPACE}/{quote(name, safe='')}"
        self._read_timeout: Final = read_timeout
        self._expire_ms: Final = None if expire_time is None else int(expire_time * 1000)
        self._is_late: Final = acknowledge_late
        self._store: Final = JobStore(service_url, **options)
        self._data: Final = JobTable(self._store, f"{self.topic}.data", retention_ms=None)
        self._schedule: Final = JobTable(self._store, f"{self.topic}.schedule", retention_ms=None)
        self._levels: Final = JobTable(self._store, f"{self.topic}.priorities", retention_ms=None)
        self._producers: dict[float, Producer[bytes]] = {}
        self._queue = _Queue()
        self._lock: Final = threads.RLock()
        self._current: Final = threading.local()

    def close(self) -> None:
        """Close the store. Tasks that are not acknowledged go to other workers. The next use opens it."""
        try:
            self._lock.acquire()
            queue, self._queue, self._producers = self._queue, _Queue(), {}
        finally:
            self._lock.release()
        # Not within the lock, which a thread that is about to wait in the queue may need.
        queue.close()
        for table in (self._data, self._schedule, self._levels):
            table.close()
        self._store.close()

    # -- the queue ---------------------------------------------------------------------------------------

    def _topic(self, priority: float) -> str:
        return f"{self.topic}.priority{priority}" if priority else self.topic

    def _producer(self, priority: float) -> Producer[bytes]:
        producer = self._producers.get(priority)
        if producer is None:
            producer = self._attached_producer(priority)
        return producer

    def _attached_producer(self, priority: float) -> Producer[bytes]:
        try:
            self._lock.acquire()
            if priority not in self._producers:
                topic = self._topic(priority)
                self._store.create_queue(topic)
                # After the topic: workers that see the priority find it.
                self._levels.put_if_absent(str(priority), b"")
                self._producers[priority] = self._store.client.create_producer(topic)
            return self._producers[priority]
        finally:
            self._lock.release()

    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        """Add a task. On return it is stored at the durability of the client.

        Args:
            data: of the task.
            priority: the highest comes first; None for 0. Each priority that was ever used is a topic, to
                which all workers attach, so use few of them.
        """
        self._producer(_number(priority)).send(data)

    def _priorities(self) -> list[float]:
        """All priorities, the highest first."""
        return sorted((_number(float(key)) for key in self._levels.keys()), reverse=True)

    def dequeue(self) -> bytes | None:
        """Return the next task, of the highest priority that has any; None after ``read_timeout``."""
        queue = self._queue
        if queue.pid != os.getpid():
            queue = self._queue_of_child()
        received = queue.receive(self._read_timeout, self._attach_new)
        if received is None:
            return None
        consumer, message = received
        queue.held.add(message.message_id())
        if self._is_late:
            self._current.message = consumer, message
        else:
            self._acknowledge(consumer, message)
        return message.data()

    def _queue_of_child(self) -> _Queue:
        try:
            self._lock.acquire()
            if self._queue.pid != os.getpid():
                self._queue = _Queue()
            return self._queue
        finally:
            self._lock.release()

    def _attach_new(self, queue: _Queue) -> None:
        """Attach to priorities that are used since the last call."""
        if queue.news is None:
            self._producer(0)
            # Before they are listed: a later one wakes those that wait.
            queue.news = self._levels.news()
        for priority in self._priorities():
            queue.add(priority, self._attached)

    def _attached(self, priority: float) -> Consumer[bytes]:
        return self._store.client.subscribe(
            self._topic(priority),
            WORKERS,
            ConsumerType.Shared,
            receiver_queue_size=1,
            initial_position=InitialPosition.Earliest,
        )

    def acknowledge(self) -> None:
        """Acknowledge the task that this thread dequeued last, with ``acknowledge_late``."""
        current = getattr(self._current, "message", None)
        if current is not None:
            self._current.message = None
            self._acknowledge(*current)

    def _acknowledge(self, consumer: Consumer[bytes], message: Message[bytes]) -> None:
        consumer.acknowledge(message)
        self._queue.acknowledged(message.message_id())

    def queue_size(self) -> int:
        """Return the number of tasks that no worker has."""
        return sum(self._store.waiting(self._topic(priority)) for priority in self._priorities())

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        """Return the first tasks, in the order in which they come; all of them without a limit.

        With ``acknowledge_late`` those that workers of other processes execute are among them.
        """
        items: list[bytes] = []
        handed = {*self._queue.held, *self._queue.acked}
        for priority in self._priorities():
            count = self._store.backlog(self._topic(priority))
            if limit:
                count = min(count, limit - len(items))
            if count > 0:
                topics, topic = self._store.admin.topics(), self._topic(priority)
                peeked = topics.peek_messages(topic, WORKERS, count + len(handed))
                free = [message.data() for message in peeked if message.message_id() not in handed]
                items += free[:count]
        return items

    def flush_queue(self) -> None:
        """Remove all tasks of the queue."""
        for priority in self._priorities():
            self._store.admin.topics().skip_all_messages(self._topic(priority), WORKERS)

    # -- the schedule ------------------------------------------------------------------------------------

    def add_to_schedule(self, data: bytes, ts: datetime.datetime) -> None:
        """Add a task that is due at a time, in the clock of huey: naive, UTC or local."""
        self._schedule.put_alone(uuid.uuid4().hex, _SCHEDULED.pack(_microseconds(ts), 0) + data)

    def _scheduled(self) -> list[tuple[int, int, str, bytes]]:
        """When each task is due, until when it is claimed, its key and data; the soonest first."""
        tasks = []
        for key, value in self._schedule.items().items():
            due, claimed_ms = _SCHEDULED.unpack_from(value)
            tasks.append((due, claimed_ms, key, value[_SCHEDULED.size :]))
        return sorted(tasks, key=lambda task: task[0])

    def read_schedule(self, ts: datetime.datetime) -> list[bytes]:
        """Remove the tasks that are due from the schedule and return them, the soonest first."""

        def step() -> list[bytes]:
            due = [task for task in self._scheduled() if task[0] <= _microseconds(ts)]
            for _, _, key, _ in due:
                self._schedule.remove(key)
            return [data for _, _, _, data in due]

        return self._schedule.alone(step)

    def claim_schedule(self, ts: datetime.datetime) -> list[tuple[str, bytes]]:
        """Return the tasks that are due with their keys, the soonest first.

        They stay in the schedule until `remove_scheduled`, and other callers do not get them for a minute.
        So a scheduler that dies before it has put them into the queue loses none.
        """

        def step() -> list[tuple[str, bytes]]:
            now_ms, claimed = SYSTEM_CLOCK.wall_ms(), []
            for due, claimed_ms, key, data in self._scheduled():
                if due <= _microseconds(ts) and claimed_ms <= now_ms:
                    self._schedule.put(key, _SCHEDULED.pack(due, now_ms + _CLAIM_MS) + data)
                    claimed.append((key, data))
            return claimed

        return self._schedule.alone(step)

    def remove_scheduled(self, key: str) -> None:
        """Remove a task that was claimed."""
        self._schedule.remove(key)

    def schedule_size(self) -> int:
        """Return the number of scheduled tasks."""
        return len(self._schedule)

    def scheduled_items(self, limit: int | None = None) -> list[bytes]:
        """Return the first scheduled tasks, the soonest first; all of them without a limit."""
        return [data for _, _, _, data in self._scheduled()[: limit or None]]

    def flush_schedule(self) -> None:
        """Remove all scheduled tasks."""
        self._schedule.clear()

    # -- data and counters -------------------------------------------------------------------------------

    def put_data(self, key: str | bytes, value: bytes, is_result: bool = False) -> None:
        """Set the value of a key. That of a task's result expires, if the storage has an ``expire_time``."""
        if is_result:
            # Two workers put results of one task at a time only if it runs twice, and of these one will do.
            self._data.put_unshared(_data_key(key), value, self._expire_ms)
        else:
            self._data.put_alone(_data_key(key), value)

    def peek_data(self, key: str | bytes) -> Any:
        """Return the value of a key, or `EmptyData`."""
        value = self._data.get(_data_key(key))
        return EmptyData if value is None else value

    def pop_data(self, key: str | bytes) -> Any:
        """Remove a key and return its value, or `EmptyData`. Of all callers one gets it."""
        value = self._data.pop(_data_key(key))
        return EmptyData if value is None else value

    def has_data_for_key(self, key: str | bytes) -> bool:
        """Return whether a key has a value."""
        return self._data.get(_data_key(key)) is not None

    def wait_result(
        self, key: str | bytes, timeout: float | None = None, backoff: float = 1.15, max_delay: float = 1.0
    ) -> bool:
        """Sleep until a key has a value.

        Args:
            key: of it.
            timeout: longest wait, seconds; None for no limit.
            backoff, max_delay: of storages that poll, which this one does not.

        Returns:
            False if the time is over.
        """
        return self._data.wait(_data_key(key), timeout) is not None

    def put_if_empty(self, key: str | bytes, value: bytes, ttl: float | None = None) -> bool:
        """Set the value of a key that has none, for ``ttl`` seconds. Of all callers one gets True."""
        return self._data.put_if_absent(_data_key(key), value, None if ttl is None else int(ttl * 1000))

    def incr(self, key: str | bytes, amount: int = 1) -> int:
        """Add to a counter, which begins at 0, and return the sum."""
        return self._data.add(_COUNTER + _text(key), amount)

    def delete_counter(self, key: str | bytes) -> None:
        """Remove a counter."""
        self._data.remove(_COUNTER + _text(key))

    def result_store_size(self) -> int:
        """Return the number of keys that have a value."""
        return self._data.count_of(_DATA)

    def result_items(self) -> dict[str, bytes]:
        """Return all values by their keys."""
        items = self._data.items().items()
        return {key.removeprefix(_DATA): value for key, value in items if key.startswith(_DATA)}

    def flush_results(self) -> None:
        """Remove all values."""
        self._data.clear(_DATA)

    def flush_counters(self) -> None:
        """Remove all counters."""
        self._data.clear(_COUNTER)


def _number(priority: float | None) -> float:
    number = float(priority or 0)
    return int(number) if number.is_integer() else number


def _microseconds(ts: datetime.datetime) -> int:
    return (ts.replace(tzinfo=None) - _EPOCH) // _MICROSECOND


def _text(key: str | bytes) -> str:
    return key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key


def _data_key(key: str | bytes) -> str:
    return _DATA + _text(key)


class _Queue:
    """The consumers of a queue in one process, by priority.

    Any number of threads receive. One at a time looks at the consumers in the order of their priorities, and
    sleeps for all of them if none has a message; the others wait for their turn.

    Attributes:
        pid: of the process.
        news: reads what priorities are used later; None before the first look.
        held: the messages that were received and are not acknowledged.
        acked: when others were acknowledged, which is written to the store within a second.
    """

    def __init__(self) -> None:
        self.pid: Final = os.getpid()
        self.news: Reader[Any] | None = None
        self.held: set[MessageId] = set()
        self.acked: dict[MessageId, float] = {}
        self._consumers: dict[float, Consumer[bytes]] = {}
        # The news before the consumers of the priorities, the highest first.
        self._sources: list[Reader[Any] | Consumer[bytes]] = []
        self._selector: Final = ConsumerSelector([])
        self._turn: Final = threading.Lock()

    def acknowledged(self, message_id: MessageId) -> None:
        """Keep that a message was acknowledged, as long as the store may not show it."""
        now = SYSTEM_CLOCK.monotonic()
        self.held.discard(message_id)
        self.acked[message_id] = now
        # In one step each, for other threads do the same.
        for other in list(islice(self.acked, _SEEN)):
            if self.acked.get(other, now) < now - _WRITTEN_S:
                self.acked.pop(other, None)

    def add(self, priority: float, attach: Callable[[float], Consumer[bytes]]) -> None:
        """Attach to a priority, unless that is done."""
        if priority not in self._consumers:
            consumer = attach(priority)
            self._selector.add(consumer)
            self._consumers = dict(sorted({**self._consumers, priority: consumer}.items(), reverse=True))

    def receive(
        self, timeout_s: float, attach_new: Callable[[_Queue], None]
    ) -> tuple[Consumer[bytes], Message[bytes]] | None:
        """Return the next message with its consumer; None after the timeout."""
        end = SYSTEM_CLOCK.monotonic() + timeout_s
        if not self._turn.acquire(timeout=timeout_s):
            return None
        try:
            if self.news is None:
                self._attach(attach_new)
            while True:
                received = self._selector.receive_nowait(self._sources)
                if received is None:
                    remaining = end - SYSTEM_CLOCK.monotonic()
                    if remaining <= 0:
                        return None
                    if self._selector.request_wakeup(self._sources):
                        self._selector.wait(self._sources, remaining)
                elif received[0] is self.news:
                    self._attach(attach_new)
                else:
                    return cast("tuple[Consumer[bytes], Message[bytes]]", received)
        finally:
            # What comes while this thread works is for others, of this process or of another.
            self._selector.end_wait(self._sources)
            self._turn.release()

    def _attach(self, attach_new: Callable[[_Queue], None]) -> None:
        attach_new(self)
        assert self.news is not None
        self._selector.add(self.news)
        self._sources = [self.news, *self._consumers.values()]

    def close(self) -> None:
        """Detach. Messages that are not acknowledged go to other consumers. A thread that waits ends."""
        for opened in (self.news, *self._consumers.values()):
            try:
                if opened is not None:
                    opened.close()
            except AlreadyClosed:
                continue  # with its client, or it is that of the parent before a fork
        if self.pid == os.getpid():
            self._selector.wake()


class EmbeddedPulsarHuey(Huey):  # type: ignore[misc]
    """A `Huey` whose tasks are acknowledged after they ran, so that none is lost when a worker is killed.

    Role: the task of a worker that dies goes to another one within milliseconds; it may then run twice.
    Scheduled tasks leave the schedule when they are in the queue. Everything else is huey's.

    Args:
        name: of the queue.
        service_url: of the store: a directory, or ``memory://name``.
        **options: of `huey.Huey`, of `EmbeddedPulsarStorage` and of `embeddedpulsar.Client`.

    Example:
        >>> huey = EmbeddedPulsarHuey("sums", service_url="memory://sums")
        >>> @huey.task()
        ... def add(a, b):
        ...     return a + b
        >>> result = add(1, 2)
        >>> huey.execute(huey.dequeue()), result.get(), huey.pending_count()
        (3, 3, 0)
        >>> huey.storage.close()
    """

    def __init__(self, name: str = "huey", *, service_url: str | os.PathLike[str], **options: Any) -> None:
        self._claimed: dict[str, str] = {}
        super().__init__(
            name,
            **{
                "storage_class": EmbeddedPulsarStorage,
                "acknowledge_late": True,
                "service_url": service_url,
                **options,
            },
        )

    def execute(self, task: Task, timestamp: datetime.datetime | None = None) -> Any:
        """Execute a task and acknowledge it, also if it failed. An interrupt leaves it to another worker."""
        try:
            value = super().execute(task, timestamp)
        except Exception:
            self._acknowledge()
            raise
        self._acknowledge()
        return value

    def _acknowledge(self) -> None:
        # In immediate mode huey has a storage of its own.
        if isinstance(self.storage, EmbeddedPulsarStorage):
            self.storage.acknowledge()

    def read_schedule(self, timestamp: datetime.datetime | None = None) -> list[Task]:
        """Return the scheduled tasks that are due. Each leaves the schedule when it is enqueued."""
        if not isinstance(self.storage, EmbeddedPulsarStorage):
            tasks: list[Task] = super().read_schedule(timestamp)
            return tasks
        due = self.storage.claim_schedule(self._get_timestamp() if timestamp is None else timestamp)
        scheduled = []
        for key, data in due:
            for task in self._deserialize_all([data]):
                self._claimed[task.id] = key
                scheduled.append(task)
        return scheduled

    def enqueue(self, task: Any) -> Any:
        """Put a task into the queue, and take it off the schedule if it comes from there."""
        result = super().enqueue(task)
        key = self._claimed.pop(getattr(task, "id", ""), None)
        if key is not None:
            self.storage.remove_scheduled(key)
        return result
