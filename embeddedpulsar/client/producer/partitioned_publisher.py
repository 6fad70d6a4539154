"""The producer of a partitioned topic behind its interface. Hot: benchmarks measure it beside a plain one.

The producers of the partitions to which a producer is attached.

The choice of the partition of a message: pure, except for the first partition, which is random.

The interceptors of one producer, between its interface and its publisher, and what they see.
"""

from __future__ import annotations

import os
import weakref
from functools import lru_cache, partial
from itertools import count

from embeddedpulsar._engine.format.entry import NO_EXTRAS, Extras, partition_hash
from embeddedpulsar._engine.platform import fork, threads, timing
from embeddedpulsar.client.arguments import (
    DELIVER_AT,
    NO_OPTIONS,
    PARTITION_KEY,
    SEQUENCE_ID,
    Options,
    check_options,
    with_key,
)
from embeddedpulsar.client.producer.pending_entry import BatchContainer, ErrorTaker, shut_batch, tell_failure
from embeddedpulsar.client.producer.producer_session import BURST, PartitionMembership, snapshot_of
from embeddedpulsar.client.producer.publisher import attach_publisher
from embeddedpulsar.enums import PartitionsRoutingMode, ProducerAccessMode
from embeddedpulsar.exceptions import AlreadyClosed, PulsarException, TopicNotFound, UnknownError
from embeddedpulsar.message import Message, T
from embeddedpulsar.records import TYPE_CHECKING, Protocol
from embeddedpulsar.schema import BytesSchema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, Final

    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.interceptors import InterceptorChain
    from embeddedpulsar.client.producer.pending_entry import SendCallback
    from embeddedpulsar.client.producer.producer_session import ProducerConfig
    from embeddedpulsar.client.producer.publisher import Publisher
    from embeddedpulsar.client.statistics import ProducerStats
    from embeddedpulsar.client.transaction import Transaction
    from embeddedpulsar.enums import HashingScheme
    from embeddedpulsar.message import ValueDecoder
    from embeddedpulsar.message_id import MessageId
    from embeddedpulsar.results import Result


_KEYS_REMEMBERED: Final = 8192
TURN: Final = -1
"""In place of a partition: the next partition in turn, chosen when the entry is made."""


class RoutedEntry:
    """One message without a position, in the form of a decoded entry; see `message.DecodedEntry`."""

    __slots__ = ("_options", "offsets", "payload")

    ledger_id = entry_id = -1
    publish_time = 0
    count = 1
    batched = False
    redelivery_count = 0
    producer_name = ""
    schema_version = -1

    def __init__(self, value: bytes, options: Options) -> None:
        self.payload = value
        self.offsets = [0, len(value)]
        self._options = options

    @property
    def first_sequence_id(self) -> int:
        return self._options[SEQUENCE_ID]

    def keys(self) -> Sequence[str | None] | None:
        return (self._options[PARTITION_KEY],)

    def ordering_keys(self) -> Sequence[str | None] | None:
        return (self._options[2],)

    def properties(self, index: int) -> dict[str, str] | None:
        return self._options[0]

    def event_times(self) -> Sequence[int] | None:
        return (self._options[4],)

    def deliver_at(self) -> Sequence[int] | None:
        return (self._options[5],)

    def sequence_ids(self) -> Sequence[int] | None:
        return None

    def null(self, index: int) -> bool:
        return self._options[6]


class _Nowhere:
    """The topic of a message that is not routed yet; see `message.Origin`."""

    topic_name = ""
    schema: ValueDecoder = BytesSchema()
    partition = -1
    by_message = False


_NOWHERE = _Nowhere()


def routed_message(value: bytes, options: Options | None) -> Message[Any]:
    """Return the message for a router: payload and options, no id, no topic; its value is its bytes.

    >>> message = routed_message(b"pasta", ({"table": "7"}, "Ada", None, 0, 0, 0, False))
    >>> message.value(), message.partition_key(), message.properties(), message.message_id()
    (b'pasta', 'Ada', {'table': '7'}, (-1,-1,-1,-1))
    """
    return Message(RoutedEntry(value, options or NO_OPTIONS), 0, _NOWHERE)


def random_below(limit: int) -> int:
    """Return a random number below ``limit``, from the kernel: importing ``random`` would take 5 ms."""
    return int.from_bytes(os.urandom(8), "little") % limit


class Router:
    """Routes by key, and messages without a key to one partition: this is ``UseSinglePartition``.

    Role: `PartitionedPublisher` calls `route` for every message that does not join `batch` at once. The
    ordering key is not used. The partitions of the last few thousand keys are cached.
    Any thread may call the methods. They need no lock, because each result is one step. `grow` and
    `attached` are called by one thread at a time.

    Attributes:
        batch: the open batch that a message without a key may join; one that accepts none if its partition is
            not attached, or if `route` must be called.

    Example:
        >>> from embeddedpulsar.enums import HashingScheme
        >>> router = Router(3, HashingScheme.JavaStringHash, 2)
        >>> router.route(b"x", None), router.of_key("order-12345"), router.of_key("user:42")
        (2, 1, 2)
    """

    def __init__(self, partitions: int, scheme: HashingScheme, first: int) -> None:
        self._hash = partition_hash(scheme)
        self._batches: list[BatchContainer] = []
        self.grow(partitions)
        self.batch = self._batches[first]

    @property
    def current(self) -> int:
        return self.batch.partition

    def attached(self, partition: int, batch: BatchContainer) -> None:
        batch.partition = partition
        self._batches[partition] = batch
        if self.batch.partition == partition:
            self.batch = batch

    def grow(self, partitions: int) -> None:
        """Divide keys among a larger number of partitions from now on."""
        self._batches += map(shut_batch, range(len(self._batches), partitions))
        self.partitions = partitions
        self.of_key: Callable[[str], int] = lru_cache(_KEYS_REMEMBERED)(
            partial(_of_key, self._hash, partitions)
        )

    def route(self, value: bytes, options: Options | None) -> int:
        """Return the partition of a message."""
        if options is not None and options[PARTITION_KEY]:
            return self.of_key(options[PARTITION_KEY])
        return self.current

    def batch_left(self, partition: int) -> None:
        """A batch of a partition was published: a round-robin router moves to the next partition."""


def _of_key(hash_of: Callable[[str], int], partitions: int, key: str) -> int:
    return hash_of(key) % partitions


class RoundRobinByMessage(Router):
    """Routes by key, and messages without a key to each partition in turn.

    Example:
        >>> from embeddedpulsar.enums import HashingScheme
        >>> router = RoundRobinByMessage(3, HashingScheme.JavaStringHash, 1)
        >>> [router.route(b"x", None) for _ in range(5)]
        [1, 2, 0, 1, 2]
    """

    def __init__(self, partitions: int, scheme: HashingScheme, first: int) -> None:
        self._turns = count(first)
        super().__init__(partitions, scheme, first)

    def route(self, value: bytes, options: Options | None) -> int:
        if options is not None and options[PARTITION_KEY]:
            return self.of_key(options[PARTITION_KEY])
        return next(self._turns) % self.partitions


class RoundRobinByBatch(Router):
    """Routes by key, and messages without a key to one partition until its batch is sent, then to the next.

    A batch is sent because it is full, because its delay is over, or because of a flush.

    Example:
        >>> from embeddedpulsar.enums import HashingScheme
        >>> router = RoundRobinByBatch(2, HashingScheme.JavaStringHash, 1)
        >>> router.batch_left(0)  # some keyed messages
        >>> router.route(b"x", None), router.route(b"x", None)
        (1, 1)
        >>> router.batch_left(1)
        >>> router.route(b"x", None)
        0
    """

    def batch_left(self, partition: int) -> None:
        # Called under the lock of the partition's producer: of two threads at one partition, one moves on.
        if partition == self.batch.partition:
            self.batch = self._batches[(partition + 1) % self.partitions]


class CustomRouter(Router):
    """Calls the ``message_router`` of the application."""

    def __init__(self, partitions: int, scheme: HashingScheme, choose: Callable[[Any, int], int]) -> None:
        super().__init__(partitions, scheme, 0)
        self._choose = choose

    def attached(self, partition: int, batch: BatchContainer) -> None:
        """No message may join a batch before the function was called."""

    def route(self, value: bytes, options: Options | None) -> int:
        """Return the partition that the function chooses.

        Raises:
            UnknownError: it returned a number that is no partition.
            Exception: any exception of the function, or of ``int`` applied to its result.
        """
        partitions = self.partitions
        chosen = int(self._choose(routed_message(value, options), partitions))
        if not 0 <= chosen < partitions:
            raise UnknownError(
                f"message_router chose partition {chosen} of {partitions}; it must return a number from 0 to "
                f"{partitions - 1}"
            )
        return chosen


def make_router(
    config: ProducerConfig, partitions: int, random: Callable[[int], int] = random_below
) -> Router:
    """Return the router of a producer; ``random`` chooses the first partition."""
    if config.message_router is not None:
        return CustomRouter(partitions, config.hashing_scheme, config.message_router)
    kind: type[Router] = Router
    if config.routing_mode == PartitionsRoutingMode.RoundRobinDistribution:
        kind = RoundRobinByBatch if config.batching else RoundRobinByMessage
    return kind(partitions, config.hashing_scheme, random(partitions))


class BulkRouting:
    """The router of a partitioned producer, for whole columns.

    A key goes to the partition that `Router` returns. Messages without a key go to the partitions in
    turn, entry by entry, or to the one partition of ``UseSinglePartition``. A ``message_router`` is called
    for each message.

    Attributes:
        is_custom: whether `choose` must be called for each message, instead of `of_key`.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self.is_custom = isinstance(router, CustomRouter)

    def of_keys(self, keys: Iterable[str | None]) -> list[int]:
        of_key = self._router.of_key
        return [TURN if key is None else of_key(key) for key in keys]

    def next_partition(self) -> int:
        index = self._router.route(b"", None)
        self._router.batch_left(index)
        return index

    def choose(
        self,
        value: bytes,
        is_null: bool | None = None,
        key: str | None = None,
        ordering_key: str | None = None,
        properties: dict[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
    ) -> int:
        """Return the partition that the application's router chooses; None for unset options."""
        options = (
            properties or None,
            key,
            ordering_key,
            sequence_id or 0,
            event_time or 0,
            0,
            bool(is_null),
        )
        return self._router.route(value, options)


class Partitions:
    """The plain producers of one partitioned producer.

    Attaches partitions, all at once or each with its first message, under one name.
    Invariants: `publishers` has an item for each partition that the router knows. An item changes once, from
    None to a publisher; the list only grows. Once `is_closed` is set, no partition is attached. Any
    thread may call the methods.

    Attributes:
        publishers: one per partition.
        is_closed: whether no more partitions may be attached.
        is_deleted: likewise, because the topic was deleted. A new topic of the same name is another one.
        chain: interceptors to notify of more partitions; or None.
    """

    def __init__(self, core: ClientContext, config: ProducerConfig, router: Router) -> None:
        self.topic = TopicName.parse(config.topic)
        self.publishers: list[Publisher | None] = [None] * router.partitions
        self.is_closed = self.is_deleted = False
        self.chain = config.chain
        self._core = core
        self._config = config
        self._router = router
        mine = weakref.ref(self)
        self._membership = PartitionMembership(
            core, self.topic.full, config.name, router.partitions, lambda partitions: _grow(mine, partitions)
        )
        self._lock = threads.RLock()
        fork.register(self)

    def __iter__(self) -> Iterator[Publisher]:
        return iter([publisher for publisher in self.publishers if publisher is not None])

    @property
    def name(self) -> str:
        return self._membership.name or next(iter(self)).name

    def begin(self) -> None:
        """Attach all partitions, or, if they are attached lazily, the first one for messages.

        In order of their numbers: of two producers that want exclusive access, one gets all partitions.
        If one cannot be attached, none stays attached.
        """
        is_lazy = self._config.lazy_start and self._config.access_mode == ProducerAccessMode.Shared
        try:
            for index in [self._router.current] if is_lazy else range(self._router.partitions):
                self.attached(index)
        except BaseException:
            self.close()
            raise
        if self._config.access_mode == ProducerAccessMode.WaitForExclusive:
            # Only the first partition is waited for. Later ones are free, or another process has exclusive
            # access to them, and a send must not wait for that.
            self._config = self._config._replace(access_mode=ProducerAccessMode.Exclusive)

    def attached(self, index: int) -> Publisher:
        """Return the publisher of a partition, which is attached first if necessary.

        Raises:
            ProducerBusy, ProducerFenced, TopicTerminated: see `Topic.attach_producer`.
            AlreadyClosed: the producer is closed.
            TopicNotFound: the topic was deleted.
        """
        publisher = self.publishers[index]
        if publisher is not None:
            return publisher
        try:
            self._lock.acquire()
            if self.is_closed:
                raise AlreadyClosed(f"the producer {self._membership.name} is closed; create a new one")
            if self.is_deleted:
                raise TopicNotFound(f"{self.topic.full}: the topic was deleted; create a new producer")
            publisher = self.publishers[index]
            if publisher is None:
                publisher = self._attach(index)
        finally:
            self._lock.release()
        return publisher

    def _attach(self, index: int) -> Publisher:
        config = self._config._replace(
            topic=self.topic.of_partition(index).full,
            max_pending_messages=pending_limit(self._config, self._router.partitions),
        )
        publisher = attach_publisher(self._core, config, self._membership)
        router = self._router
        # The client refers to the queue, which must not refer to `self`.
        publisher.queue.on_left = lambda: router.batch_left(index)
        router.attached(index, publisher.queue.batch)
        self.publishers[index] = publisher
        return publisher

    def grow(self, partitions: int) -> None:
        """Add partitions, each attached with its first message. A smaller number changes nothing."""
        try:
            self._lock.acquire()
            more = partitions - len(self.publishers)
            if more > 0 and not self.is_closed:
                # First the items of `publishers`, then the router that uses them.
                self.publishers.extend([None] * more)
                self._router.grow(partitions)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the attached producers. After an interrupt, the next call continues.

        Raises:
            AlreadyClosed: everything was closed before.
        """
        self._core.in_time(self._close)

    def _close(self) -> None:
        try:
            self._lock.acquire()
            was_closed, self.is_closed = self.is_closed, True
        finally:
            self._lock.release()
        still_open = [publisher for publisher in self if publisher.is_connected()]
        if was_closed and not still_open:
            raise AlreadyClosed(f"the producer {self._membership.name} was closed before")
        for publisher in still_open:
            timing.within_half(publisher.end)

    def after_fork_in_child(self) -> None:
        """In the parent, another thread may have been attaching."""
        self._lock = threads.RLock()


def _grow(reference: weakref.ref[Partitions], partitions: int) -> None:
    owner = reference()
    if owner is not None:
        owner.is_deleted = not partitions
        owner.grow(partitions)
        if owner.chain is not None:
            owner.chain.tell("on_partitions_change", owner.topic.full, partitions)


def pending_limit(config: ProducerConfig, partitions: int) -> int:
    """The ``max_pending_messages`` of each partition; 0 for no limit.

    >>> from types import SimpleNamespace as Config
    >>> limits = [(1000, 50_000), (1000, 8000), (1000, 3), (0, 8000), (1000, 0)]
    >>> [pending_limit(Config(max_pending_messages=own, max_pending_across=all), 10) for own, all in limits]
    [1000, 800, 1, 0, 0]
    """
    share = config.max_pending_across // partitions
    if config.max_pending_across and not share:
        share = 1  # 0 would mean no limit
    return min(config.max_pending_messages, share)


class PartitionedPublisher:
    """A publisher per partition, and a router that chooses the partition of each message.

    Has the interface of `Publisher` to `Producer`. Thread-safe.

    Attributes:
        queue: this object, with `alone_max` for the hot path of `Producer.send`.
        lane: has the open batch that messages without a key join: the router.
        routing: of whole columns.
    """

    def __init__(self, core: ClientContext, config: ProducerConfig, partitions: int) -> None:
        router = make_router(config, partitions)
        self.config = config
        self.wall_ms: Callable[[], int] = core.store.clock.wall_ms
        self._router = self.lane = router
        self.routing = BulkRouting(router)
        self._partitions = Partitions(core, config, router)
        self._partitions.begin()
        self._publishers = self._partitions.publishers
        is_custom = isinstance(router, CustomRouter)
        self._goes_by_key = not is_custom
        self._is_turning = isinstance(router, RoundRobinByBatch)
        self.alone_max = -1 if config.batching or is_custom else 1 << 62

    @property
    def queue(self) -> PartitionedPublisher:
        return self

    @property
    def topic_name(self) -> str:
        return self._partitions.topic.full

    @property
    def name(self) -> str:
        return self._partitions.name

    @property
    def last_sequence_id(self) -> int:
        return max(publisher.last_sequence_id for publisher in self._partitions)

    @property
    def is_closed(self) -> bool:
        return self._partitions.is_closed or all(publisher.is_closed for publisher in self._partitions)

    def is_connected(self) -> bool:
        return not self.is_closed and any(publisher.is_connected() for publisher in self._partitions)

    def stats(self) -> ProducerStats:
        publishers = list(self._partitions)
        statistics = snapshot_of([publisher.meter for publisher in publishers])
        for publisher in publishers:
            publisher.sample(BURST)
        return statistics

    def send_alone(
        self,
        value: bytes,
        properties: dict[str, str] | None = None,
        key: str | None = None,
        ordering_key: str | None = None,
        event_time: int | None = None,
        extras: Extras | None = NO_EXTRAS,
    ) -> MessageId | None:
        """`Publisher.send_alone` of the partition of the message. Hot."""
        if key:
            if key.__class__ is not str or not key.isascii():
                return None
            index = self._router.of_key(key)
        else:
            index = self._router.route(value, None)
        publisher = self._publishers[index]
        if publisher is None:
            publisher = self._attached(index)
        if len(value) <= publisher.queue.alone_max:
            sent = publisher.send_alone(value, properties, key, ordering_key, event_time)
            if sent is not None:
                return sent
        options = check_options(
            False, properties, key, ordering_key, None, None, False, event_time, None, None, self.wall_ms
        )
        return publisher.send(value, options)

    def send(self, value: bytes, options: Options | None, txn: Transaction | None = None) -> MessageId:
        publisher = self._attached(self._router.route(value, options))
        if self._is_turning and len(value) > publisher.queue.batch.share:
            publisher = self._with_room(publisher, len(value), options)
        return publisher.send(value, options, txn)

    def enqueue(
        self,
        value: bytes,
        callback: SendCallback | None,
        options: Options | None,
        txn: Transaction | None = None,
    ) -> None:
        if options is not None and options[PARTITION_KEY] and self._goes_by_key:
            keyed = self._publishers[self._router.of_key(options[PARTITION_KEY])]
            if keyed is not None:
                keyed.enqueue(value, callback, options, txn)
                return
        try:
            publisher = self._attached(self._router.route(value, options))
            if self._is_turning and len(value) > publisher.queue.batch.share:
                publisher = self._with_room(publisher, len(value), options)
        except PulsarException as error:
            if txn is not None:
                txn._failed(error)
            next(iter(self._partitions)).tell_later(callback, error)
            return
        publisher.enqueue(value, callback, options, txn)

    def defer_first(
        self, txn: Transaction, value: bytes, callback: SendCallback | None, options: Options | None = None
    ) -> bool:
        """Defer nothing: messages of one transaction may go to several partitions."""
        return False

    def store_soon(self) -> None:
        for publisher in list(self._partitions):
            publisher.store_soon()

    def flush(self) -> None:
        attached = list(self._partitions)
        if self.is_closed:
            raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")
        # First store everything, then wait for callbacks. With nothing queued, the turn must not change.
        for publisher in attached:
            if not publisher.queue.is_empty:
                publisher.flush_all()
        for publisher in attached:
            publisher.queue.completions.wait()
        errors = [publisher.queue.completions.pop_failure() for publisher in attached]
        for error in errors:
            if error is not None:
                raise error

    def end(self) -> None:
        self._partitions.close()

    def abandon(self) -> None:
        """Leave the publishers of the partitions to the client to close. Runs in a finalizer."""
        for publisher in self._partitions:
            publisher.abandon()

    def of_partition(self, partition: int) -> Publisher:
        """Return the publisher of a partition, which is attached first if necessary."""
        return self._attached(partition)

    def of_message(self, value: bytes, options: Options) -> Publisher:
        """Return the publisher of the partition to which a message goes."""
        return self._attached(self._router.route(value, options))

    def _attached(self, index: int) -> Publisher:
        publisher = self._publishers[index]
        if publisher is None:
            with timing.translated:
                return self._partitions.attached(index)
        return publisher

    def _with_room(self, publisher: Publisher, size: int, options: Options | None) -> Publisher:
        """End the batch of the current partition if the message does not fit, and use the next partition."""
        if options is not None and (options[PARTITION_KEY] or options[DELIVER_AT]):
            return publisher  # the message becomes an entry of its own
        for _ in self._publishers:  # the next batch may hold keyed messages, and be full too
            with timing.translated:
                is_turn_over = publisher.queue.finish_batch(size)
            if not is_turn_over:
                break
            publisher = self._attached(self._router.current)
        return publisher


class Sender(Protocol):
    """What all messages of one producer share; see `message.Origin`. `Interception` has it."""

    topic_name: str
    schema: Any
    wall_ms: Callable[[], int]
    partition: int
    by_message: bool

    @property
    def encode(self) -> Callable[[Any, Options], tuple[bytes, Options]]:
        """Payload and options of a value."""


class ProducerMessage(Message[T]):
    """A message before it is stored. Producers make it for `ProducerInterceptor`.

    It has the methods of `Message`. It has no position yet: its id is ``(-1,-1,-1,-1)``, its publish time 0.
    Immutable: `replace` makes a changed copy.
    """

    __slots__ = ("_content", "_given", "options", "payload")

    _origin: Sender

    def __init__(self, sender: Sender, content: T | None, options: Options) -> None:
        self._content = content
        self._given = options  # without a key that the schema makes of the content
        self.payload, self.options = sender.encode(content, options)
        super().__init__(RoutedEntry(self.payload, self.options), 0, sender)

    def value(self) -> T:
        """Return the content as it was given to ``send``."""
        return self._content  # type: ignore[return-value]

    def replace(self, **fields: Any) -> ProducerMessage[T]:
        """Return a copy with other arguments of `Producer.send`: ``content``, ``properties`` and so on.

        Raises:
            TypeError: ``send`` has no such argument, or the schema rejects the content.
            ValueError: an argument has a wrong type or value.

        Example:
            >>> from embeddedpulsar.client.arguments import NO_OPTIONS
            >>> from types import SimpleNamespace as Sender
            >>> sender = Sender(topic_name="persistent://public/default/t", partition=-1, wall_ms=int)
            >>> sender.encode = lambda content, options: (content, options)
            >>> ProducerMessage(sender, b"one tea", NO_OPTIONS).replace(partition_key="table-7")
            <Message (-1,-1,-1,-1) of persistent://public/default/t key='table-7' 7 bytes>
        """
        properties, key, ordering_key, sequence_id, event_time, deliver_at, _ = self._given
        given: dict[str, Any] = {
            "content": self._content,
            "properties": properties,
            "partition_key": key,
            "ordering_key": ordering_key,
            "sequence_id": sequence_id,
            "replication_clusters": None,
            "disable_replication": False,
            "event_timestamp": event_time,
            "deliver_at": deliver_at,
            "deliver_after": None,
        }
        # The names are those of `send`: `check_options` would answer a wrong one with another text. Times
        # are checked again, from the clock of the client: ``deliver_after`` counts from now.
        unknown = sorted(fields.keys() - given.keys())
        if unknown:
            raise TypeError(f"send() has no argument {unknown[0]!r}; it has {', '.join(sorted(given))}")
        given |= fields
        content = given.pop("content")
        options = check_options(content is None, **given, now_ms=self._origin.wall_ms)
        return ProducerMessage(self._origin, content, options)


class Interception:
    """Passes the messages of one producer to its interceptors.

    Producers without interceptors have none, and no checks for it in their hot paths.

    Attributes:
        topic_name, schema, partition, encode, wall_ms: see `Sender`.
    """

    by_message = False

    def __init__(
        self,
        publisher: Publisher | PartitionedPublisher,
        encode: Callable[[Any], bytes],
        chain: InterceptorChain,
    ) -> None:
        self._publisher = publisher
        self._failure: BaseException | None = None
        self.chain = chain
        self.topic_name, self.schema, self.partition = publisher.topic_name, publisher.config.schema, -1
        self._plain = encode
        self.wall_ms: Callable[[], int] = publisher.wall_ms

    def encode(self, content: Any, options: Options) -> tuple[bytes, Options]:
        if self.schema.separates_key:
            return with_key(self.schema, content, options)
        return self._plain(content), options

    def send(self, content: Any, options: Options, txn: Transaction | None = None) -> MessageId:
        message = self.chain.before_send(ProducerMessage(self, content, options))
        try:
            sent = self._publisher.send(message.payload, message.options, txn)
        except PulsarException as error:
            self.chain.on_send_acknowledgement(message, None, error)
            raise
        self.chain.on_send_acknowledgement(message, sent, None)
        return sent

    def enqueue(
        self,
        content: Any,
        callback: SendCallback | None,
        options: Options | None,
        txn: Transaction | None = None,
    ) -> None:
        message = self.chain.before_send(ProducerMessage(self, content, options or NO_OPTIONS))
        told = None  # raises, because no interceptor can be called any more
        if callback is not None or not self._publisher.is_closed:
            told = _Told(self, message, callback)
        given = None if message.options == NO_OPTIONS else message.options
        self._publisher.enqueue(message.payload, told, given, txn)

    def note_failure(self, error: BaseException) -> None:
        """Keep a failure that no callback received, for the next flush."""
        self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise a failure that no callback received, once."""
        error, self._failure = self._failure, None
        if error is not None:
            raise error


class _Told(ErrorTaker):
    """The callback of one `send_async`, which calls the interceptors before the application."""

    __slots__ = ("_callback", "_interception", "_message")

    def __init__(
        self, interception: Interception, message: ProducerMessage[Any], callback: SendCallback | None
    ) -> None:
        self._interception = interception
        self._message = message
        self._callback = callback

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self._interception.chain.on_send_acknowledgement(self._message, message_id, None)
        if self._callback is not None:
            self._callback(result, message_id)

    def failed(self, error: BaseException, message_id: MessageId) -> None:
        self._interception.chain.on_send_acknowledgement(self._message, None, _named(error))
        if self._callback is not None:
            tell_failure(self._callback, error, message_id)
        else:
            self._interception.note_failure(error)

    def __repr__(self) -> str:
        return repr(self._callback)


def _named(error: BaseException) -> PulsarException:
    """Return the error for interceptors: one that is not Pulsar's becomes the error of its result."""
    if isinstance(error, PulsarException):
        return error
    named = UnknownError(f"{type(error).__name__}: {error}")
    named.__cause__ = error
    return named
