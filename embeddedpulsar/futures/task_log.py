"""The topics of a pool of workers, and the messages in them: tasks, what becomes of them, and cancellations.

Three topics, each a plain topic of the store:

* ``pool-NAME-tasks``: one message for each attempt of a task; the subscription ``workers``, Shared, has those
  that are not done.
* ``pool-NAME-results``: what becomes of the tasks, in the order in which it happened: begun, progress, retry,
  done, failed, cancel. It has no subscription; its retention says for how long results can be had.
* ``pool-NAME-cancels``: that there is a cancellation in the results, so that a worker need not read them.

A task begins or is cancelled, whichever is first in the results. A worker publishes ``begun`` before it calls
the function, then looks whether there is a cancellation of the task before that. The canceller publishes to
the cancels first, so a worker that sees nothing there has begun before any cancellation in the results.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.due_entries import MultiplierRedeliveryBackoff
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.exceptions import CorruptionError, NotAllowedError
from embeddedpulsar.futures.encoding import check_serializer
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policy_values import InactiveTopicPolicies
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import TopicName

WORKERS: Final = "workers"
"""The subscription of the tasks."""
BEGUN, PROGRESS, RETRY, DONE, FAILED, CANCEL, OPENED = (
    "begun",
    "progress",
    "retry",
    "done",
    "failed",
    "cancel",
    "opened",
)
"""Events: what the messages in the results say. ``opened`` is of no task: an executor reads from there on."""
DAY_S: Final = 86_400.0


class PoolTopics(NamedTuple):
    """The full names of the topics of a pool."""

    tasks: str
    results: str
    cancels: str


def pool_topics(pool: str) -> PoolTopics:
    """The topics of a pool.

    Args:
        pool: ``name``, or ``tenant/namespace/name``.

    Raises:
        ValueError: it is no name.

    Example:
        >>> pool_topics("images").tasks
        'persistent://public/default/pool-images-tasks'
    """
    parts = pool.split("/") if isinstance(pool, str) else []
    if len(parts) == 1:
        parts = ["public", "default", *parts]
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"a pool is called name or tenant/namespace/name, not {pool!r}")
    prefix = f"persistent://{parts[0]}/{parts[1]}/pool-{parts[2]}"
    names = [TopicName.parse(f"{prefix}-{kind}").full for kind in PoolTopics._fields]
    return PoolTopics(*names)


class TaskOptions(NamedTuple):
    """How a task is done.

    Attributes:
        serializer: ``msgpack``, ``json`` or ``pickle``.
        retries: how often a task is done again that raised, or was over time.
        backoff: the delays before that.
        timeout_s: how long it may run; 0 for any time.
        delay_s: how long it waits before it may begin.
        max_worker_deaths: how often it is done again after the death of its worker.
    """

    serializer: str = "msgpack"
    retries: int = 0
    backoff: MultiplierRedeliveryBackoff = MultiplierRedeliveryBackoff(1000, 60_000, 2.0)
    timeout_s: float = 0.0
    delay_s: float = 0.0
    max_worker_deaths: int = 3

    def check(self) -> TaskOptions:
        """Return this value if it is valid.

        Raises:
            ValueError: a number is out of its range, or there is no such serializer.
        """
        check_serializer(self.serializer)
        for name in ("retries", "max_worker_deaths"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ValueError(f"{name} is a whole number from 0 on, not {number!r}")
        for name in ("timeout_s", "delay_s"):
            number = getattr(self, name)
            if not isinstance(number, int | float) or not 0 <= number < math.inf:
                raise ValueError(f"{name.removesuffix('_s')} is a number of seconds, not {number!r}")
        if not isinstance(self.backoff, MultiplierRedeliveryBackoff):
            raise ValueError(f"retry_backoff is a MultiplierRedeliveryBackoff, not {self.backoff!r}")
        return self


class Task(NamedTuple):
    """One attempt of a task, as it is stored.

    Attributes:
        key: ``ledger-entry`` of the first attempt.
        attempt: 1 for the first.
        function: the place of what is called.
        payload: the arguments, encoded.
        is_chunk: whether the arguments are those of several calls.
        options: how it is done.
        main: the main program of the submitter, for what is pickled; or empty.
    """

    key: str
    attempt: int
    function: str
    payload: bytes
    is_chunk: bool
    options: TaskOptions
    main: str

    def properties(self) -> dict[str, str]:
        """The properties of its message: what differs from the defaults."""
        options, backoff = self.options, self.options.backoff
        texts = {"function": self.function, "serializer": options.serializer}
        if self.key:
            texts |= {"task": self.key, "attempt": str(self.attempt)}
        if self.is_chunk:
            texts["chunk"] = "1"
        if self.main:
            texts["main"] = self.main
        if options.retries:
            texts["retries"] = str(options.retries)
            texts["backoff"] = f"{backoff.min_delay_ms} {backoff.max_delay_ms} {backoff.multiplier}"
        if options.timeout_s:
            texts["timeout"] = str(options.timeout_s)
        if options.max_worker_deaths != _DEFAULTS.max_worker_deaths:
            texts["deaths"] = str(options.max_worker_deaths)
        return texts


_DEFAULTS: Final = TaskOptions()


def task_of(message: Message[bytes]) -> Task:
    """The task of a message.

    Raises:
        CorruptionError: the message is none.
    """
    texts = message.properties()
    try:
        # What earlier releases did not write has the value that held for them.
        least, longest, factor = texts.get("backoff", "1000 60000 2.0").split()
        options = TaskOptions(
            check_serializer(texts["serializer"]),
            int(texts.get("retries", 0)),
            MultiplierRedeliveryBackoff(int(least), int(longest), float(factor)),
            float(texts.get("timeout", 0)),
            0.0,
            int(texts.get("deaths", _DEFAULTS.max_worker_deaths)),
        )
        return Task(
            texts.get("task", "") or key_of(message.message_id()),
            int(texts.get("attempt", 1)),
            texts["function"],
            message.data(),
            "chunk" in texts,
            options,
            texts.get("main", ""),
        )
    except (KeyError, ValueError) as error:
        raise CorruptionError(
            f"message {message.message_id()} of {message.topic_name()} is no task: {error!r}"
        ) from error


def key_of(message_id: MessageId) -> str:
    """What a task is called in the results: the position of its first attempt."""
    return f"{message_id.ledger_id()}-{message_id.entry_id()}"


def position_of(message_id: MessageId) -> tuple[int, int]:
    """Where a message is. Events are stored one by one."""
    return message_id.ledger_id(), message_id.entry_id()


def make_pool(url: str, topics: PoolTopics, result_ttl_s: float | None) -> None:
    """Make the topics of a pool that do not exist, and set for how long results are kept.

    Args:
        url: of the store.
        topics: those of the pool.
        result_ttl_s: seconds; None leaves it as it is, a day at first.
    """
    with Admin(url) as admin:
        calls = admin.topics()
        # The subscription first: from then on tasks wait for workers. A process that dies in between leaves
        # the rest to the next one.
        try:
            calls.create_subscription(topics.tasks, WORKERS, MessageId.earliest)
        except NotAllowedError:  # it exists
            if calls.get_retention(topics.results) is not None and result_ttl_s is None:
                return
        for topic in (topics.results, topics.cancels):
            try:
                calls.create_non_partitioned_topic(topic)
            except NotAllowedError:  # it exists
                continue
        for topic in (topics.cancels, topics.results):
            calls.set_inactive_topic_policies(topic, InactiveTopicPolicies(delete_while_inactive=False))
        # Last: it says that all of this was done.
        seconds = DAY_S if result_ttl_s is None else result_ttl_s
        calls.set_retention(topics.results, max(1, math.ceil(seconds / 60)), -1)


def result_ttl_ms(url: str, topics: PoolTopics) -> float:
    """For how long results can be had, in ms."""
    with Admin(url) as admin:
        retention = admin.topics().get_retention(topics.results)
    if retention is None or retention.time_minutes < 0:
        return math.inf
    return retention.time_minutes * 60_000.0


class TaskLog:
    """Publishes what becomes of the tasks of a pool.

    Callers: any thread.

    Args:
        client: of the store; it owns the producers.
        topics: those of the pool.
    """

    def __init__(self, client: Client, topics: PoolTopics) -> None:
        self._client: Final = client
        self._topics: Final = topics
        self._tasks: Final = self._producer(topics.tasks)
        self._results: Final = self._producer(topics.results)
        self._cancels: Producer[bytes] | None = None

    def _producer(self, topic: str) -> Producer[bytes]:
        # Arguments and results may be larger than a message. One by one: a batch would go to one worker.
        return self._client.create_producer(topic, batching_enabled=False, chunking_enabled=True)

    def submit(self, task: Task) -> MessageId:
        """Store a task; return the id of its message."""
        delay_ms = round(task.options.delay_s * 1000)
        if delay_ms:
            after = timedelta(milliseconds=delay_ms)
            return self._tasks.send(task.payload, properties=task.properties(), deliver_after=after)
        return self._tasks.send(task.payload, properties=task.properties())

    def publish(self, event: str, key: str, attempt: int, payload: bytes = b"", **texts: str) -> MessageId:
        """Store what happened to a task."""
        properties = {"event": event, "task": key, "attempt": str(attempt), **texts}
        return self._results.send(payload, properties=properties)

    def fail(self, task: Task, failure: bytes) -> None:
        """Store that an attempt failed: it is done again after its delay, or that was the last one.

        A process that is killed in between leaves the message of the attempt, so the task is done once more.
        """
        if task.attempt > task.options.retries:
            self.publish(FAILED, task.key, task.attempt, failure)
            return
        delay_ms = task.options.backoff.next(task.attempt - 1)
        again = task._replace(attempt=task.attempt + 1)
        message_id = self.submit(again._replace(options=task.options._replace(delay_s=delay_ms / 1000)))
        self.publish(RETRY, task.key, again.attempt, failure, at=key_of(message_id))

    def cancel(self, key: str, attempt: int, after: tuple[int, int]) -> MessageId:
        """Store that an attempt is to be cancelled if it has not begun.

        Args:
            key: of the task.
            attempt: its number.
            after: position in the results up to which the attempt has not begun.
        """
        if self._cancels is None:
            self._cancels = self._producer(self._topics.cancels)
        # The hint first: a worker that does not see it has begun before the cancellation below.
        self._cancels.send(
            b"", properties={"task": key, "attempt": str(attempt), "after": f"{after[0]}-{after[1]}"}
        )
        return self.publish(CANCEL, key, attempt)

    def consumer(self, name: str, prefetch: int) -> Consumer[bytes]:
        """A consumer of the tasks, which fetches so many at once."""
        return self._client.subscribe(
            self._topics.tasks,
            WORKERS,
            ConsumerType.Shared,
            receiver_queue_size=prefetch,
            consumer_name=name,
            initial_position=InitialPosition.Earliest,
        )

    def acknowledge(self, message_ids: list[MessageId]) -> None:
        """Acknowledge tasks that other processes may have received."""
        # A consumer that stays would take part in the division of the tasks, and receive none.
        with self._client.subscribe(
            self._topics.tasks, WORKERS, ConsumerType.Shared, receiver_queue_size=1, ack_group_time_ms=0
        ) as consumer:
            for message_id in message_ids:
                consumer.acknowledge(message_id)


def is_acknowledged(url: str, topics: PoolTopics, key: str) -> bool:
    """Whether no worker will do the attempt at a position any more."""
    with Admin(url) as admin:
        cursor = admin.topics().get_internal_stats(topics.tasks).cursors[WORKERS]
    place = _pair(key, "-")
    if place <= _pair(cursor.mark_delete_position, ":"):
        return True
    # Written as `(3:4..3:6],(3:9..3:10]`: without the beginning, and with the end.
    for interval in cursor.individually_deleted_messages.strip("[]").split("],"):
        first, _, last = interval.strip("(]").partition("..")
        if last and _pair(first, ":") < place <= _pair(last, ":"):
            return True
    return False


def _pair(text: str, separator: str) -> tuple[int, int]:
    ledger, _, entry = text.rpartition(separator)
    return int(ledger), int(entry)


def as_message_id(key: str) -> MessageId:
    """The id of the message at a position.

    Example:
        >>> key_of(as_message_id("3-14"))
        '3-14'
    """
    ledger, entry = _pair(key, "-")
    return MessageId(-1, ledger, entry, -1)
