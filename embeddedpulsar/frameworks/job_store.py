"""What the adapters of several frameworks share: the store of a process, the topics of queues, and tables of
results.

A table is a topic whose messages are the values of keys, each with the time at which it expires.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import struct
from typing import TYPE_CHECKING, Any, Final, TypeVar

from embeddedpulsar.admin.admin import Admin
from embeddedpulsar.client.client import Client
from embeddedpulsar.exceptions import AlreadyClosed, CorruptionError, NotAllowedError, Timeout
from embeddedpulsar.frameworks.engine import SYSTEM_CLOCK, FileLock, threads, values_lock_path
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policy_values import InactiveTopicPolicies
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from embeddedpulsar.admin.topics import Topics
    from embeddedpulsar.client.consumer.reader import Reader
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.message import Message

R = TypeVar("R")

WORKERS: Final = "workers"
"""The subscription of all workers of a queue."""

_HEADER: Final = struct.Struct(">Q")
_MINUTE_MS: Final = 60_000
# What results begin with.
_FINAL: Final = b"F"
_PASSING: Final = b"P"
# Readers that are kept for the next `wait`: as many threads as wait at a time, up to this number.
_IDLE: Final = 16
# Keys that expired whose removal waits for the next caller that has the lock anyway.
_EXPIRED: Final = 1000
# Bytes of new records after which the newest of each key are compacted.
_COMPACT_AT: Final = 16 << 20


class JobStore:
    """The store of one framework: a client and an Admin that are opened on first use.

    Thread-safe. After a fork both go on in the child, which makes consumers and readers of its own. Pickled,
    it is its URL and options.

    Args:
        service_url: of the store: a directory, or ``memory://name``.
        **options: of `Client`, such as ``durability``.

    Raises:
        ValueError: on first use, the URL is ``memory://`` without a name, whose store is that of one client.

    Example:
        >>> store = JobStore("memory://jobs")
        >>> store.create_queue("mails")
        >>> store.admin.topics().get_subscriptions("mails")
        ['workers']
        >>> store.close()
    """

    def __init__(self, service_url: str | os.PathLike[str], **options: Any) -> None:
        self.service_url: Final = service_url
        self.options: Final = options
        self._lock = threads.RLock()
        self._client: Client | None = None
        self._admin: Admin | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.service_url, self.options)

    @property
    def client(self) -> Client:
        """The client."""
        return self._client or self._opened()[0]

    @property
    def admin(self) -> Admin:
        """The Admin of the same store."""
        return self._admin or self._opened()[1]

    def _opened(self) -> tuple[Client, Admin]:
        try:
            self._lock.acquire()
            if self._client is None or self._admin is None:
                # The Admin first: it refuses a store that no other client could open.
                self._admin = self._admin or Admin(self.service_url)
                self._client = Client(os.fspath(self.service_url), **self.options)
            return self._client, self._admin
        finally:
            self._lock.release()

    def create_queue(self, topic: str) -> None:
        """Make the topic of a queue with the subscription of its workers, unless both are there.

        From then on every message is kept until a worker acknowledges it.
        """
        topics = self.admin.topics()
        self.create_namespace(TopicName.parse(topic).namespace_name)
        try:
            topics.create_subscription(topic, WORKERS, MessageId.earliest)
        except NotAllowedError:
            # It is there already, mostly. Otherwise the topic itself is what is not allowed.
            if WORKERS not in topics.get_subscriptions(topic):
                raise

    def create_namespace(self, namespace: str) -> None:
        """Make a namespace, unless it is there."""
        namespaces = self.admin.namespaces()
        if namespace not in namespaces.get_namespaces(namespace.partition("/")[0]):
            try:
                namespaces.create_namespace(namespace)
            except NotAllowedError:
                # Another process made it between the two calls; otherwise it is not allowed at all.
                if namespace not in namespaces.get_namespaces(namespace.partition("/")[0]):
                    raise

    def create_log(self, topic: str, retention_ms: int) -> None:
        """Make a topic that keeps its messages for a time, unless it is there."""
        self._create_topic(
            topic,
            lambda topics: topics.set_retention(topic, max(1, -(-retention_ms // _MINUTE_MS)), -1),
        )

    def create_table(self, topic: str) -> None:
        """Make a topic that keeps the newest message of each key, unless it is there."""
        self._create_topic(topic, lambda topics: topics.set_compaction_threshold(topic, _COMPACT_AT))

    def _create_topic(self, topic: str, set_policy: Callable[[Topics], object]) -> None:
        topics = self.admin.topics()
        self.create_namespace(TopicName.parse(topic).namespace_name)
        try:
            topics.create_non_partitioned_topic(topic)
        except NotAllowedError:
            # Another process made it. If it died right then, what follows is still to be done.
            if topics.get_inactive_topic_policies(topic) is not None:
                return
        set_policy(topics)
        # Set last, so that it says that all is.
        topics.set_inactive_topic_policies(topic, InactiveTopicPolicies(delete_while_inactive=False))

    def backlog(self, topic: str) -> int:
        """Number of messages of a queue that are not acknowledged, delayed ones and those at workers too."""
        return self.admin.topics().get_stats(topic).subscriptions[WORKERS].msg_backlog

    def waiting(self, topic: str) -> int:
        """Number of messages of a queue that no worker has, delayed ones too."""
        workers = self.admin.topics().get_stats(topic).subscriptions[WORKERS]
        return workers.msg_backlog - workers.unacked_messages

    def close(self) -> None:
        """Close the client and the Admin. The next use opens them again."""
        try:
            self._lock.acquire()
            client, admin, self._client, self._admin = self._client, self._admin, None, None
        finally:
            self._lock.release()
        try:
            if client is not None:
                client.close()
        finally:
            if admin is not None:
                admin.close()


def _reopened(service_url: str, options: dict[str, Any]) -> JobStore:
    return JobStore(service_url, **options)


class JobTable:
    """Values by key, each with its own end, in a topic that all processes of a store share.

    Role: results of tasks, schedules, locks and counters. `put` appends one message; a process that reads
    follows the topic and has all values in memory.
    Invariants: a value that was put by any process before `get` begins is seen by it. `pop`, `put_if_absent`
    and `add` read and write in one step, under a lock of files, which ends with its holder.
    Callers: any thread of any process; after a fork the child reads the topic anew. On disk when `put`
    returns: as the durability of the client says.

    Args:
        store: with the topic.
        topic: its name; made if necessary.
        retention_ms: how long values live at most, ms. The topic keeps its messages as long, and removes
            whole ledgers that are older. None: values without an end are kept, and compaction keeps the
            newest of each key.

    Example:
        >>> store = JobStore("memory://table")
        >>> table = JobTable(store, "results", retention_ms=60_000)
        >>> table.put("task-1", b"done", ttl_ms=1000)
        >>> table.get("task-1"), table.get("task-2"), len(table)
        (b'done', None, 1)
        >>> table.put_if_absent("lock", b"mine"), table.put_if_absent("lock", b"yours")
        (True, False)
        >>> table.pop("lock"), table.pop("lock")
        (b'mine', None)
        >>> table.add("count", 2), table.add("count", -5)
        (2, -3)
        >>> table.close()
        >>> store.close()
    """

    def __init__(self, store: JobStore, topic: str, *, retention_ms: int | None) -> None:
        self._store: Final = store
        self._topic: Final = topic
        self._retention_ms: Final = retention_ms
        self._lock = threads.RLock()
        self._values: dict[str, tuple[int, bytes]] = {}
        self._ends: list[tuple[int, str]] = []
        # Keys without a value whose last message is one that expired. Compaction would keep that for ever.
        self._expired: dict[str, None] = {}
        self._version = 0
        self._producer: Producer[Any] | None = None
        self._reader: Reader[Any] | None = None
        self._reading_pid = 0
        self._idle: list[Reader[Any]] = []
        self._idle_pid = 0
        self._file_lock: FileLock | None = None

    # -- writing -----------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, ttl_ms: int | None = None) -> None:
        """Set the value of a key.

        Args:
            key: of it.
            value: of any length within ``maxMessageSize``, also empty.
            ttl_ms: how long it lives, ms; None for as long as the table keeps values.

        Raises:
            PulsarException: it is not stored; see `embeddedpulsar.Producer.send`.
        """
        self._send(key, self.record(value, ttl_ms))

    def remove(self, key: str) -> None:
        """Remove a key, which need not be there."""
        self._send(key, None)

    def record(self, value: bytes, ttl_ms: int | None = None) -> bytes:
        """Return the message of a value, for a producer of the caller; see `put`."""
        lives = self._retention_ms if ttl_ms is None else ttl_ms
        return _HEADER.pack(0 if lives is None else self._now_ms() + lives) + value

    def _send(self, key: str, record: bytes | None) -> None:
        producer = self._producer
        if producer is None:
            producer = self._attached()
        producer.send(record, partition_key=key)

    def _attached(self) -> Producer[Any]:
        try:
            self._lock.acquire()
            if self._producer is None:
                self.prepare_topic()
                self._producer = self._store.client.create_producer(self._topic)
            return self._producer
        finally:
            self._lock.release()

    def prepare_topic(self) -> None:
        """Make the topic with its policies, unless it is there."""
        if self._retention_ms is None:
            self._store.create_table(self._topic)
        else:
            self._store.create_log(self._topic, self._retention_ms)

    # -- reading -----------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if there is none, or it expired."""
        try:
            self._lock.acquire()
            self._refresh()
            record = self._values.get(key)
            return None if record is None else record[1]
        finally:
            self._lock.release()

    def items(self) -> dict[str, bytes]:
        """Return all values by their keys, in the order in which the keys were set."""
        try:
            self._lock.acquire()
            self._refresh()
            return {key: value for key, (_, value) in self._values.items()}
        finally:
            self._lock.release()

    def keys(self) -> list[str]:
        """Return the keys of all values."""
        return list(self.items())

    def count_of(self, prefix: str) -> int:
        """Return the number of keys that begin so."""
        try:
            self._lock.acquire()
            self._refresh()
            return sum(key.startswith(prefix) for key in self._values)
        finally:
            self._lock.release()

    def version(self) -> int:
        """Return a number that is another one when a key was set or removed."""
        try:
            self._lock.acquire()
            self._refresh()
            return self._version
        finally:
            self._lock.release()

    def news(self) -> Reader[Any]:
        """Return a reader of what is set and removed from now on, which the caller closes."""
        self._attached()
        return self._store.client.create_reader(self._topic, MessageId.latest)

    def __len__(self) -> int:
        return self.count_of("")

    def wait(self, key: str, timeout_s: float | None = None) -> bytes | None:
        """Return the value of a key as soon as it is there, sleeping until then.

        Args:
            key: of it.
            timeout_s: longest wait, seconds; None for no limit.

        Returns:
            The value; None if the time is over.
        """
        value = self.get(key)
        if value is not None:
            return value
        end = None if timeout_s is None else SYSTEM_CLOCK.monotonic() + timeout_s
        # A reader of this call alone wakes it: what the table reads may be read by another thread meanwhile.
        news = self._idle_news()
        try:
            while True:
                for _ in news:
                    pass
                value = self.get(key)
                if value is not None:
                    break
                news.read_next(None if end is None else max(0, int((end - SYSTEM_CLOCK.monotonic()) * 1000)))
        except Timeout:
            value = self.get(key)
        except BaseException:
            news.close()
            raise
        self._keep_news(news)
        return value

    def _idle_news(self) -> Reader[Any]:
        """A reader of the topic, which an earlier `wait` may have made: attaching is most of its time."""
        try:
            self._lock.acquire()
            if self._idle and self._idle_pid == os.getpid():
                return self._idle.pop()
            self._idle, self._idle_pid = [], os.getpid()
        finally:
            self._lock.release()
        return self.news()

    def _keep_news(self, news: Reader[Any]) -> None:
        try:
            self._lock.acquire()
            is_kept = self._idle_pid == os.getpid() and self._producer is not None and len(self._idle) < _IDLE
            if is_kept:
                self._idle.append(news)
        finally:
            self._lock.release()
        if not is_kept:
            news.close()

    def _refresh(self) -> None:
        """Apply all messages that are stored by now. Under the lock of threads."""
        if self._reader is None or self._reading_pid != os.getpid():
            self._attached()
            # Without a fork there is none, and after one it is closed: it is that of the parent.
            self._values.clear()
            self._ends.clear()
            self._expired.clear()
            self._reader = self._store.client.create_reader(
                self._topic, MessageId.earliest, is_read_compacted=True
            )
            self._reading_pid = os.getpid()
        reader = self._reader
        while (message := reader.read_nowait()) is not None:
            self._apply(message)
        ends, now_ms = self._ends, self._now_ms()
        while ends and ends[0][0] <= now_ms:
            end_ms, key = heapq.heappop(ends)
            # A later value of the key has an end of its own.
            if self._values.get(key, (0, b""))[0] == end_ms:
                del self._values[key]
                if self._retention_ms is None:
                    self._expired[key] = None

    def _apply(self, message: Message[Any]) -> None:
        key, payload = message.partition_key(), message.data()
        self._version += 1
        self._expired.pop(key, None)
        if not payload:
            self._values.pop(key, None)
            return
        if len(payload) < _HEADER.size:
            raise CorruptionError(
                reason=f"{self._topic} is a table of a framework, and has a message that is no value: "
                f"{key!r}; another program publishes there"
            )
        end_ms = _HEADER.unpack_from(payload)[0]
        self._values[key] = end_ms, payload[_HEADER.size :]
        if end_ms:
            heapq.heappush(self._ends, (end_ms, key))

    def _now_ms(self) -> int:
        return self._store.client._core.store.clock.wall_ms()

    # -- reading and writing in one step -----------------------------------------------------------------

    def pop(self, key: str) -> bytes | None:
        """Remove a key and return its value; None if there is none. Of all callers one gets it."""
        if self.get(key) is None:
            return None  # without the lock, which others may hold

        def step() -> bytes | None:
            value = self.get(key)
            if value is not None:
                self._send(key, None)
            return value

        return self.alone(step)

    def put_if_absent(self, key: str, value: bytes, ttl_ms: int | None = None) -> bool:
        """Set the value of a key that has none. Of all callers one gets True."""

        def step() -> bool:
            if self.get(key) is not None:
                return False
            self.put(key, value, ttl_ms)
            return True

        return self.alone(step)

    def add(self, key: str, amount: int) -> int:
        """Add to the number of a key, which begins at 0, and return the sum.

        Raises:
            ValueError: its value is no number.
        """

        def step() -> int:
            total = int(self.get(key) or b"0") + amount
            self.put(key, b"%d" % total)
            return total

        return self.alone(step)

    def put_alone(self, key: str, value: bytes, ttl_ms: int | None = None) -> None:
        """`put`, not in the middle of a step of another caller: a `pop` removes what it returned."""
        self.alone(lambda: self.put(key, value, ttl_ms))

    def put_unshared(self, key: str, value: bytes, ttl_ms: int | None = None) -> None:
        """`put_alone` of a key that no other caller sets meanwhile: without the lock if it has no value.

        A `pop` of the key takes nothing until the value is there, and then this value.
        """
        if self.get(key) is None and len(self._expired) < _EXPIRED:
            self.put(key, value, ttl_ms)
        else:
            self.put_alone(key, value, ttl_ms)

    def clear(self, prefix: str = "") -> list[bytes]:
        """Remove all keys that begin so, and return their values in order."""

        def step() -> list[bytes]:
            items = {key: value for key, value in self.items().items() if key.startswith(prefix)}
            for key in items:
                self._send(key, None)
            return list(items.values())

        return self.alone(step)

    def alone(self, step: Callable[[], R]) -> R:
        """Call a function that reads and writes the table, while no other caller does."""
        lock = self._file_lock or self._opened_lock()
        try:
            lock.acquire()
            result = step()
            if self._expired:
                self._remove_expired()
            return result
        finally:
            lock.release()

    def _remove_expired(self) -> None:
        """Remove what expired, which another process may have done. No other caller sets a key meanwhile."""
        try:
            self._lock.acquire()
            self._refresh()
            for key in self._expired:
                self._send(key, None)
            self._expired.clear()
        finally:
            self._lock.release()

    def _opened_lock(self) -> FileLock:
        try:
            self._lock.acquire()
            if self._file_lock is None:
                table = hashlib.sha256(self._topic.encode()).hexdigest()[:16]
                self._file_lock = FileLock(values_lock_path(self._store.client._core.store.root, table))
            return self._file_lock
        finally:
            self._lock.release()

    # -- closing -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Detach from the topic. The next use attaches again."""
        try:
            self._lock.acquire()
            closing = (self._producer, self._reader, self._file_lock, *self._idle)
            self._producer = self._reader = self._file_lock = None
            self._idle = []
        finally:
            self._lock.release()
        for opened in closing:
            if opened is not None:
                try:
                    opened.close()
                except AlreadyClosed:
                    continue  # with its client, or it is that of the parent before a fork

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ResultTable(JobTable):
    """A table of results, in which a final one stays: a task that is run twice, since its worker was killed,
    does not replace what it had.

    Example:
        >>> store = JobStore("memory://results")
        >>> table = ResultTable(store, "results", retention_ms=60_000)
        >>> for value in (b"running", b"done", b"running again"):
        ...     table.put_result("task-1", value, is_final=value == b"done")
        >>> table.get("task-1")
        b'done'
        >>> table.close()
        >>> store.close()
    """

    def put_result(self, key: str, value: bytes, *, is_final: bool) -> None:
        """Set a result, unless it has a final one."""
        self.put(key, (_FINAL if is_final else _PASSING) + value)

    def get(self, key: str) -> bytes | None:
        """Return a result; None if there is none, or it expired."""
        value = super().get(key)
        return None if value is None else value[1:]

    @staticmethod
    def result_of(record: bytes) -> bytes:
        """Return the result in a message of the topic."""
        return record[_HEADER.size + 1 :]

    def _apply(self, message: Message[Any]) -> None:
        present = self._values.get(message.partition_key())
        if present is None or not present[1].startswith(_FINAL) or not message.data():
            super()._apply(message)
