"""dramatiq: a broker, a result back end, and one of rate limiters. Needs
``pip install "embeddedpulsar[dramatiq]"``.

Example:
    >>> import dramatiq
    >>> from dramatiq.results import Results
    >>> broker = EmbeddedPulsarBroker("memory://bar")
    >>> results = EmbeddedPulsarBackend("memory://bar")
    >>> broker.add_middleware(Results(backend=results))
    >>> dramatiq.set_broker(broker)
    >>> @dramatiq.actor(store_results=True)
    ... def brew(kind):
    ...     return f"{kind} is ready"
    >>> worker = dramatiq.Worker(broker, worker_threads=1)  # in production: `dramatiq module`
    >>> worker.start()
    >>> brew.send("espresso").get_result(block=True, timeout=20_000)
    'espresso is ready'
    >>> worker.stop()
    >>> results.close(), broker.close()
    (None, None)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

try:
    from dramatiq.broker import Broker, Consumer, MessageProxy
    from dramatiq.common import q_name, xq_name
    from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
    from dramatiq.logging import get_logger
    from dramatiq.message import Message
    from dramatiq.rate_limits.backend import RateLimiterBackend
    from dramatiq.results.backend import DEFAULT_TIMEOUT, Missing, ResultBackend
    from dramatiq.results.errors import ResultMissing, ResultTimeout
except ImportError as error:
    raise ImportError('the dramatiq broker needs dramatiq: pip install "embeddedpulsar[dramatiq]"') from error

from datetime import timedelta

from embeddedpulsar.client.consumer.dead_letter import ORIGIN_MESSAGE_ID, REAL_TOPIC, REASON, reason_text
from embeddedpulsar.enums import ConsumerType, InitialPosition
from embeddedpulsar.exceptions import AlreadyClosed, Timeout, TopicNotFound
from embeddedpulsar.frameworks.engine import SYSTEM_CLOCK, threads
from embeddedpulsar.frameworks.job_store import WORKERS, JobStore, JobTable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from dramatiq.encoder import Encoder
    from dramatiq.middleware import Middleware

    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.message import Message as StoredMessage

NAMESPACE: Final = "public/dramatiq"
"""Where the topics of queues and results are."""
DEAD_MESSAGE_TTL: Final = 7 * 24 * 3600 * 1000
"""How long a dead letter is kept by default, ms."""
RESULT_TTL: Final = 24 * 3600 * 1000
"""How long a result may be kept by default, ms."""

_MINUTE_MS: Final = 60_000
# Messages that a consumer gives back are there for others at once.
_REDELIVERY_MS: Final = 1


class EmbeddedPulsarBroker(Broker):
    """Sends messages of actors through topics of a store, and receives them in any number of workers.

    Role: a queue is a topic of ``namespace``, each message of it one message. All workers share the
    subscription ``workers``, and acknowledge a message when it was processed. If a worker dies, its messages
    go to others within milliseconds. A delayed message waits in the store, also while nothing runs: there is
    no delay queue. A message that failed for good goes to the topic ``<queue>.XQ``.

    Thread-safe, but for its consumers. After a fork the child goes on with it. The store is opened when the
    first message is sent or consumed.

    Args:
        service_url: of the store: a directory, or ``memory://name``.
        middleware: as for `dramatiq.Broker`; None for the default middleware.
        namespace: of the topics, as tenant/namespace; made if necessary.
        dead_message_ttl: how long dead letters are kept, ms.
        **options: of `embeddedpulsar.Client`, such as ``durability``.

    Raises:
        ValueError: ``dead_message_ttl`` is not positive.

    Example:
        >>> from dramatiq import Message
        >>> broker = EmbeddedPulsarBroker("memory://queue")
        >>> broker.declare_queue("mails")
        >>> mail = Message("mails", "send", ("ada@example.org",), {}, {})
        >>> enqueued = broker.enqueue(mail)
        >>> consumer = broker.consume("mails", timeout=20_000)
        >>> received = next(consumer)
        >>> received.args
        ('ada@example.org',)
        >>> consumer.ack(received)
        >>> broker.join("mails", timeout=20_000)
        >>> consumer.close()
        >>> broker.close()
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str],
        *,
        middleware: list[Middleware] | None = None,
        namespace: str = NAMESPACE,
        dead_message_ttl: int = DEAD_MESSAGE_TTL,
        **options: Any,
    ) -> None:
        super().__init__(middleware=middleware)
        if dead_message_ttl <= 0:
            raise ValueError(f"dead_message_ttl is ms, more than 0, not {dead_message_ttl}")
        self.store: Final = JobStore(service_url, **options)
        self.namespace: Final = namespace
        self.dead_message_ttl: Final = dead_message_ttl
        self._lock = threads.RLock()
        self._producers: dict[str, Producer[bytes]] = {}

    def topic(self, queue_name: str) -> str:
        """Return the full name of the topic of a queue.

        Example:
            >>> EmbeddedPulsarBroker("./data").topic("default")
            'persistent://public/dramatiq/default'
        """
        return f"persistent://{self.namespace}/{queue_name}"

    def close(self) -> None:
        """Close the store. Consumers of this broker end; the next message opens it again."""
        self._producers = {}
        self.store.close()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue, unless it is declared. Its topic is made when the first message is sent or
        consumed."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Store a message. On return it is stored at the durability of the client.

        Args:
            message: of an actor. A queue that is not declared here is made.
            delay: ms before workers get it, also across restarts; None for at once.

        Raises:
            PulsarException: it is not stored; see `embeddedpulsar.Producer.send`.
        """
        queue_name = q_name(message.queue_name)
        if queue_name != message.queue_name:
            message = message.copy(queue_name=queue_name)
        self.logger.debug("Enqueueing message %r on queue %r.", message.message_id, queue_name)
        self.emit_before("enqueue", message, delay)
        self.producer(queue_name).send(
            message.encode(),
            properties={"message_id": message.message_id, "actor_name": message.actor_name},
            deliver_after=None if delay is None else timedelta(milliseconds=max(0, delay)),
        )
        self.emit_after("enqueue", message, delay)
        return message

    def producer(self, queue_name: str) -> Producer[bytes]:
        """Return the producer of a queue, and make its topic if necessary."""
        producer = self._producers.get(queue_name)
        return producer or self._attached(queue_name)

    def _attached(self, queue_name: str) -> Producer[bytes]:
        try:
            self._lock.acquire()
            if queue_name not in self._producers:
                topic = self.topic(queue_name)
                if queue_name == xq_name(queue_name):
                    self.store.create_log(topic, self.dead_message_ttl)
                else:
                    self.store.create_queue(topic)
                self._producers[queue_name] = self.store.client.create_producer(topic)
            return self._producers[queue_name]
        finally:
            self._lock.release()

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Return an iterator over the messages of a queue.

        Args:
            queue_name: of it; or ``<queue>.XQ`` for its dead letters.
            prefetch: most messages that it holds without an acknowledgement.
            timeout: ms for which it waits for a message before it returns None.

        Raises:
            QueueNotFound: it was not declared.
        """
        self._check_declared(queue_name)
        return _QueueConsumer(self, queue_name, prefetch, timeout)

    def _check_declared(self, queue_name: str) -> None:
        if q_name(queue_name) not in self.queues:
            raise QueueNotFound(queue_name)

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue, delayed ones too. Those that workers process go on."""
        self.producer(queue_name)
        self.store.admin.topics().skip_all_messages(self.topic(queue_name), WORKERS)

    def flush_all(self) -> None:
        """Drop all messages of all declared queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until a queue has no messages, delayed ones and those at workers included. For tests.

        Args:
            queue_name: of it.
            interval: ms between two looks.
            timeout: longest wait, ms; None for no limit.

        Raises:
            QueueJoinTimeout: the time is over.
            QueueNotFound: it was not declared.
        """
        self._check_declared(queue_name)
        self.producer(queue_name)
        end = None if timeout is None else SYSTEM_CLOCK.monotonic() + timeout / 1000
        while self.store.backlog(self.topic(queue_name)):
            if end is not None and SYSTEM_CLOCK.monotonic() >= end:
                raise QueueJoinTimeout(queue_name)
            threads.sleep(interval / 1000)

    def dead_letters(self, queue_name: str) -> list[Message[Any]]:
        """Return the messages of a queue that failed for good, the oldest first.

        Example:
            >>> from dramatiq import Message
            >>> broker = EmbeddedPulsarBroker("memory://dead")
            >>> broker.declare_queue("mails")
            >>> enqueued = broker.enqueue(Message("mails", "send", ("unknown",), {}, {}))
            >>> consumer = broker.consume("mails", timeout=20_000)
            >>> consumer.nack(next(consumer))
            >>> [message.args for message in broker.dead_letters("mails")]
            [('unknown',)]
            >>> consumer.close()
            >>> broker.close()
        """
        topic = self.topic(xq_name(queue_name))
        letters = self.store.admin.dead_letters(self.topic(queue_name), WORKERS, topic)
        try:
            return [Message.decode(letter.data()) for letter in letters.peek(_ALL)]
        except TopicNotFound:
            return []


_ALL: Final = 1 << 30


class _QueueProxy(MessageProxy):
    """A message of a consumer, with what acknowledges it."""

    def __init__(self, message: Message[Any], stored: StoredMessage[bytes]) -> None:
        super().__init__(message)
        self.stored: Final = stored


class _QueueConsumer(Consumer):
    """The messages of one queue, at most ``prefetch`` of them without an acknowledgement.

    One thread iterates; others acknowledge.
    """

    def __init__(self, broker: EmbeddedPulsarBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        self.logger = get_logger(__name__, type(self))
        self._broker: Final = broker
        self._queue_name: Final = queue_name
        self._prefetch: Final = max(1, prefetch)
        self._timeout: Final = timeout
        self._held: set[int] = set()
        self._room = threads.Event()
        broker.producer(queue_name)  # makes the topic
        self._consumer: Final = broker.store.client.subscribe(
            broker.topic(queue_name),
            WORKERS,
            ConsumerType.Shared,
            receiver_queue_size=1,
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=_REDELIVERY_MS,
        )

    def __next__(self) -> MessageProxy | None:
        """Return the next message; None if none came, or was acknowledged to make room, within
        ``timeout``."""
        if not self._has_room():
            return None
        try:
            stored = self._consumer.receive(self._timeout)
        except Timeout:
            return None
        except AlreadyClosed as error:
            raise ConnectionClosed(error) from None
        try:
            proxy = _QueueProxy(Message.decode(stored.data()), stored)
        except DecodeError as error:
            # No worker could read it, so it is set aside; dramatiq's consumers would restart with it for
            # ever.
            self.logger.exception("A message on queue %r is no message of dramatiq.", self._queue_name)
            self._bury(stored, error)
            return None
        self._held.add(id(proxy))
        return proxy

    def _has_room(self) -> bool:
        while len(self._held) >= self._prefetch:
            # Another event each time, made before the look: an acknowledgement in between sets it.
            room = self._room = threads.Event()
            if len(self._held) >= self._prefetch and not room.wait(self._timeout / 1000):
                return False
        return True

    def _let_go(self, message: MessageProxy) -> None:
        self._held.discard(id(message))
        self._room.set()

    def ack(self, message: MessageProxy) -> None:
        """Acknowledge a message that was processed."""
        assert isinstance(message, _QueueProxy)
        try:
            self._consumer.acknowledge(message.stored)
        finally:
            self._let_go(message)

    def nack(self, message: MessageProxy) -> None:
        """Move a message to ``<queue>.XQ``. A crash in between leaves it in both, never in none."""
        assert isinstance(message, _QueueProxy)
        try:
            self._bury(message.stored, message._exception)
        finally:
            self._let_go(message)

    def _bury(self, stored: StoredMessage[bytes], reason: BaseException | None) -> None:
        letter = {
            **stored.properties(),
            REAL_TOPIC: self._broker.topic(self._queue_name),
            ORIGIN_MESSAGE_ID: str(stored.message_id()),
        }
        if reason is not None:
            letter[REASON] = reason_text(reason)
        self._broker.producer(xq_name(self._queue_name)).send(stored.data(), properties=letter)
        self._consumer.acknowledge(stored)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back that were not processed: other consumers get them at once."""
        for message in messages:
            assert isinstance(message, _QueueProxy)
            self._consumer.negative_acknowledge(message.stored)
            self._let_go(message)

    def close(self) -> None:
        """Stop consuming. What is not acknowledged goes to other consumers."""
        try:
            self._consumer.close()
        except AlreadyClosed:
            return  # with the broker


class EmbeddedPulsarBackend(ResultBackend):
    """Keeps results of actors in a topic of a store, where all processes find them.

    Role: a worker appends each result as one message; a process that asks for results follows the topic, and
    has those that are not expired in memory. Waiting for a result sleeps until there is one.

    Thread-safe. After a fork the child goes on with it.

    Args:
        service_url: of the store: a directory, or ``memory://name``.
        namespace: of the results, as for every back end of dramatiq.
        encoder: of results; None for that of dramatiq.
        use_namespace_prefix_keys: whether keys are readable, likewise.
        topic: of the results.
        max_result_ttl: the longest ``result_ttl`` of any actor, ms: the topic keeps messages as long.
        **options: of `embeddedpulsar.Client`, such as ``durability``.

    Raises:
        ValueError: ``max_result_ttl`` is not positive.

    Example:
        >>> from dramatiq import Message
        >>> message = Message("default", "add", (1, 2), {}, {})
        >>> results = EmbeddedPulsarBackend("memory://sums")
        >>> results.store_result(message, 3, ttl=60_000)
        >>> results.get_result(message)
        3
        >>> results.close()
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str],
        *,
        namespace: str = "dramatiq-results",
        encoder: Encoder | None = None,
        use_namespace_prefix_keys: bool = False,
        topic: str = f"persistent://{NAMESPACE}/results.RQ",
        max_result_ttl: int = RESULT_TTL,
        **options: Any,
    ) -> None:
        super().__init__(
            namespace=namespace, encoder=encoder, use_namespace_prefix_keys=use_namespace_prefix_keys
        )
        if max_result_ttl <= 0:
            raise ValueError(f"max_result_ttl is ms, more than 0, not {max_result_ttl}")
        self._max_result_ttl: Final = max_result_ttl
        self._store_of_results: Final = JobStore(service_url, **options)
        self._table: Final = JobTable(self._store_of_results, topic, retention_ms=max_result_ttl)

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """Return a result.

        Args:
            message: whose result it is.
            block: whether to sleep until it is there.
            timeout: longest wait, ms; None for 10 s.

        Raises:
            ResultMissing: it is not there, and ``block`` is False.
            ResultTimeout: the time is over.
            ResultFailure: the actor raised an exception.
        """
        key = self.build_message_key(message)
        if block:
            value = self._table.wait(key, (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000)
        else:
            value = self._table.get(key)
        if value is None:
            raise ResultTimeout(message) if block else ResultMissing(message)
        return self.unwrap_result(self.encoder.decode(value))

    def _get(self, message_key: str) -> Any:
        value = self._table.get(message_key)
        return Missing if value is None else self.encoder.decode(value)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        if ttl > self._max_result_ttl:
            raise ValueError(
                f"the result_ttl is {ttl} ms, and results are kept for {self._max_result_ttl} ms; "
                "make the back end with max_result_ttl"
            )
        self._table.put(message_key, self.encoder.encode(result), ttl)

    def close(self) -> None:
        """Close the store. The next result opens it again."""
        self._table.close()
        self._store_of_results.close()


class EmbeddedPulsarRateLimiterBackend(RateLimiterBackend):
    """Keeps the counters of rate limiters and barriers in a topic of a store, for all its processes.

    Role: each change reads and writes in one step, under a lock of files that ends with its holder. Waiting
    for a barrier sleeps until it is passed. The limiters and barriers of dramatiq, and its middleware
    ``GroupCallbacks``, take it.

    Thread-safe. After a fork the child goes on with it. What a process that dies had acquired comes back
    when the ``ttl`` of its limiter is over.

    Args:
        service_url: of the store: a directory, or ``memory://name``.
        topic: of the counters.
        **options: of `embeddedpulsar.Client`, such as ``durability``.

    Example:
        >>> from dramatiq.rate_limits import ConcurrentRateLimiter
        >>> backend = EmbeddedPulsarRateLimiterBackend("memory://limits")
        >>> till = ConcurrentRateLimiter(backend, "till", limit=1)
        >>> with till.acquire(raise_on_failure=False) as mine:
        ...     with till.acquire(raise_on_failure=False) as yours:
        ...         mine, yours
        (True, False)
        >>> backend.close()
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str],
        *,
        topic: str = f"persistent://{NAMESPACE}/limits.RL",
        **options: Any,
    ) -> None:
        self._store: Final = JobStore(service_url, **options)
        self._table: Final = JobTable(self._store, topic, retention_ms=None)

    def _value(self, key: str) -> int:
        return int(self._table.get(key) or b"0")

    def _put_if(self, key: str, amount: int, ttl: int, is_allowed: Callable[[int], bool]) -> bool:
        def step() -> bool:
            value = self._value(key) + amount
            if not is_allowed(value):
                return False
            self._table.put(key, b"%d" % value, ttl)
            return True

        return self._table.alone(step)

    def add(self, key: str, value: int, ttl: int) -> bool:
        """Set a counter that is not there, for ``ttl`` ms. Of all callers one gets True."""
        return self._table.put_if_absent(key, b"%d" % value, ttl)

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        """Add to a counter, which begins at 0, unless the sum is more than ``maximum``."""
        return self._put_if(key, amount, ttl, lambda value: value <= maximum)

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        """Subtract from a counter, unless the difference is less than ``minimum``."""
        return self._put_if(key, -amount, ttl, lambda value: value >= minimum)

    def incr_and_sum(
        self, key: str, keys: Callable[[], Iterable[str]], amount: int, maximum: int, ttl: int
    ) -> bool:
        """Add to a counter, unless it or the sum of several counters would be more than ``maximum``."""

        def is_allowed(value: int) -> bool:
            return value <= maximum and amount + sum(map(self._value, keys())) <= maximum

        return self._put_if(key, amount, ttl, is_allowed)

    def wait(self, key: str, timeout: int | None) -> bool:
        """Sleep until an event was published by `wait_notify`, at most ``timeout`` ms; None for no limit.

        Returns:
            Whether it was. It may have been before the call, for as long as the event lives.
        """
        return self._table.wait(key, None if timeout is None else timeout / 1000) is not None

    def wait_notify(self, key: str, ttl: int) -> None:
        """Publish an event, which lives for ``ttl`` ms."""
        self._table.put_alone(key, b"1", ttl)

    def close(self) -> None:
        """Close the store. The next use opens it again."""
        self._table.close()
        self._store.close()
