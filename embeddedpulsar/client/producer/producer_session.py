"""The attachment of a producer to its topic, and that of a partitioned producer to all its partitions.

`ProducerMeter` has the statistics of one producer, for the log and for the application.

The options of a producer, checked.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable

from embeddedpulsar._engine.format.compression import require_codec
from embeddedpulsar._engine.format.frame import METADATA_SIZE
from embeddedpulsar._engine.platform import fork, threads, timing
from embeddedpulsar._engine.store.policies.admitting import MAX_MESSAGE_SIZE
from embeddedpulsar._engine.store.policies.policy_documents import check_encryption
from embeddedpulsar._engine.store.rate_policy import publish_limiter
from embeddedpulsar.client import client_threads
from embeddedpulsar.client.arguments import (
    INT32_MAX,
    INT64_MAX,
    UINT32_MAX,
    UINT64_MAX,
    check_durability,
    check_fits,
    check_key_reader,
    check_range,
    check_type,
    check_types,
    checked_properties,
)
from embeddedpulsar.client.client_context import check_has_schema, registered
from embeddedpulsar.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from embeddedpulsar.exceptions import DescriptorLimitError, PulsarException, StorageError
from embeddedpulsar.message_id import BEFORE_FIRST, Isolation, Position
from embeddedpulsar.policies import PRODUCER_REQUEST_HOLD
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol
from embeddedpulsar.schema import Schema
from embeddedpulsar.schema.schema import BYTES
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.timing import Timer
    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar._engine.store.policies.resource_groups import RateLimiter
    from embeddedpulsar._engine.store.producers import ProducerRegistration
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar.client.client_context import ClientContext, PublisherLike, WatchedTopic
    from embeddedpulsar.client.interceptors import InterceptorChain
    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.statistics import ProducerStats
    from embeddedpulsar.crypto import Encryption
    from embeddedpulsar.message import Message


_ENTRIES_A_LOOK = 64
_BYTES_A_LOOK = 8 << 20


class ProducerSession:
    """One attachment of a producer to its topic.

    The only module of the producer that uses `Topic`. After a fork `revive` opens the topic again; the
    registration belongs to the parent.

    Attributes:
        limiter: the publish rate that the topic has now; None without one.
        max_message_size: bytes of an entry that the topic takes now.
        on_limiter: called when one of the two may be another one, in any thread; takes no lock.

    Args:
        membership: common to all partitions, if the topic is one of them; then it is never created here.
    """

    def __init__(
        self, core: ClientContext, config: ProducerConfig, membership: PartitionMembership | None = None
    ) -> None:
        self.client = core
        self._membership = membership
        self._is_member = False
        self._use: TopicUse = core.use_topic(config.topic, membership is None)
        self._topic: Topic = self._use.topic
        self._registration: ProducerRegistration | None = None
        self.ledger: Log = self._topic.ledger
        self.config = config
        self.topic_name = self._topic.name
        self.partition = TopicName.parse(self.topic_name).partition
        self.durability: str = config.durability or core.config.durability
        # Fixed metadata do not count: as in Pulsar, a payload of 32 bytes less than the limit fits.
        self.settings = core.store.settings
        self._most: int = self.settings.maxMessageSize + METADATA_SIZE
        self.max_message_size = self._most
        self.monotonic: Callable[[], float] = core.store.clock.monotonic
        self.wall_ms: Callable[[], int] = core.store.clock.wall_ms
        self.callbacks, self.flusher, self.memory = core.callbacks, core.flusher, core.memory
        self.run_after_all: Callable[[Callable[[], object]], object] = core.callbacks.run_after_all
        self.log = core.log
        self.call_later = core.scheduler.call_later
        self.stats_interval_s: int = core.config.stats_interval_s
        self.limiter: RateLimiter | None = None
        self.on_limiter: Callable[[], object] = int

    @property
    def topic(self) -> Topic:
        """For transactions, which name it."""
        return self._topic

    def _renew_limiter(self) -> None:
        """Follow the policies of the topic. Called in any thread, which may hold the topic's lock."""
        self.limiter = publish_limiter(self._topic, self.client.store.clock)
        own = self._topic.policies.value(MAX_MESSAGE_SIZE)
        self.max_message_size = min(own + METADATA_SIZE, self._most) if own else self._most
        self.on_limiter()

    @property
    def is_limited(self) -> bool:
        """Whether each message has to be looked at before it is appended."""
        return self.limiter is not None or self.max_message_size < self._most

    def refresh_policies(self) -> None:
        self._topic.policies.call_listeners()

    def attach(self, name: str | None) -> ProducerRegistration:
        """Register with the topic under ``name``, or under a name that the topic makes.

        A partition is registered under the name of its producer; ``name`` is ignored.

        Raises:
            ProducerBusy, ProducerFenced, TopicTerminated: see `Topic.attach_producer`.
            AlreadyClosed: the client was closed while the producer waited for the topic.
        """
        if self._membership is None:
            return self.attach_as(name)
        self._is_member = False
        registration = self._membership.attach(self)
        self._is_member = True
        return registration

    def attach_as(self, name: str | None) -> ProducerRegistration:
        """Register under a name; None for one that the topic makes."""
        try:
            if self.config.access_mode == ProducerAccessMode.WaitForExclusive:
                self.client.waiting.run(lambda: self._register(name))
            else:
                self._register(name)
            self._topic.policies.listen(self._renew_limiter)
            self._renew_limiter()
        except BaseException:
            self.detach()  # in case an interrupt came after the registration
            raise
        assert self._registration is not None
        return self._registration

    def _register(self, name: str | None) -> None:
        check_encryption(self._topic, is_encrypting=self.config.encryption is not None)
        if self.config.schema_version < 0 and not self.config.is_of_letters:
            check_has_schema(self.client.store, self._topic)
        self._topic.attach_producer(
            name,
            access_mode=self.config.access_mode,
            durability=self.durability,
            check_wanted=client_threads.checks(self.client.check_open),
            keep=self._keep,
        )

    def _keep(self, registration: ProducerRegistration) -> None:
        self._registration = registration

    def quota_error(self) -> PulsarException | None:
        """Look whether the backlog of the topic is still beyond its quota.

        Returns:
            The error for a producer whose messages are refused; None if they may be stored, or wait.
        """
        quotas = self._topic.quotas
        quota = quotas.still_exceeded()
        return None if quota is None or quota.policy == PRODUCER_REQUEST_HOLD else quotas.error(quota)

    @property
    def is_held(self) -> bool:
        """Whether the topic takes no messages because of its backlog."""
        return self._topic.quotas.is_held

    def wait_a_moment(self, seconds: float) -> None:
        """Sleep until this process is rung, or so long."""
        mailbox = self.client.store.mailbox
        mailbox.wait(mailbox.generation, seconds)

    def check_connected(self) -> int | None:
        """Check that no other producer fenced this one out.

        Returns:
            The highest sequence id stored under this producer's name, if the topic drops duplicates.

        Raises:
            ProducerFenced: another producer did.
        """
        return None if self._registration is None else self._topic.check_producer(self._registration)

    def detach(self, highest: int | None = None) -> None:
        """Detach from the topic, which may be closed once all callbacks have run.

        Args:
            highest: the last sequence id stored, for the next producer of the name; None if unknown.
        """
        registration = self._registration
        self._topic.policies.unlisten(self._renew_limiter)
        try:
            if registration is not None:
                self._topic.detach_producer(registration, None if highest is None else self._secured(highest))
            self._registration = None
        except DescriptorLimitError:
            raise  # before anything was changed: closing may be repeated
        except Exception as error:
            if not timing.is_interrupt(error):
                self._registration = None
            raise
        finally:
            if self._registration is None:  # otherwise the detach was interrupted, and must be repeated
                self.run_after_all(self._use.release)
        if self._is_member and self._membership is not None:
            self._is_member = False
            self._membership.note_detached()

    @property
    def is_attached(self) -> bool:
        return self._registration is not None

    def _secured(self, highest: int) -> int | None:
        """Return ``highest`` once the entries have the durability of this producer, not before."""
        if self.durability == "process":
            return highest
        try:
            self.ledger.sync()
        except (StorageError, OSError):
            return None
        return highest

    def remember(self, highest: int) -> None:
        """Record the highest sequence id stored in the topic. The producer must not append meanwhile."""
        if self._registration is not None and self._secured(highest) is not None:
            self._topic.remember_producer(self._registration, highest, durable=self.durability != "process")

    def highest_stored(self, name: str, end_word: int, floor_word: int) -> int:
        """Return the highest sequence id of a producer between two tail words; -1 for none."""
        stored = self.ledger.sequence_ids([name], end_word, floor_word).get(name, -1)
        return max(
            stored, self._topic.highest_remembered(name)
        )  # ids of trimmed entries were recorded before

    def revive(self) -> None:
        self._registration = None
        self._use = self.client.use_topic(self.topic_name, self._membership is None)
        self._topic = self._use.topic
        self.ledger = self._topic.ledger
        if self.config.schema is not BYTES:  # the topic may have been made again, without the schema
            version = registered(self.client.store, self.topic_name, self.config.schema, self.durability)[1]
            if version >= 0:  # otherwise the schema gives versions itself
                self.config = self.config._replace(schema_version=version)

    def find_entry(
        self, after: Position | None, producer_name: str, first_sequence_id: int
    ) -> Position | None:
        cursor = self.ledger.cursor(after or BEFORE_FIRST, inclusive=False, isolation=Isolation.EVERYTHING)
        while views := cursor.read(_ENTRIES_A_LOOK, 1 << 30, _BYTES_A_LOOK):
            for view in views:
                if (
                    view.count
                    and view.first_sequence_id == first_sequence_id
                    and view.producer_name == producer_name
                ):
                    return Position(view.ledger_id, view.entry_id)
        return None

    def end(self, publisher: PublisherLike, close: Callable[[], object], name: str) -> None:
        """Close a producer within the operation timeout, and unregister it."""
        self.client.in_time(close)
        self.client.forget_publisher(publisher)
        topic = self.topic_name
        self.client.log.info("Closed producer %s on %s", name, topic, producer=name, topic=topic)

    def abandon(self, publisher: PublisherLike) -> None:
        """Close a producer that is garbage, later. Runs in a finalizer, which only registers it."""
        core = self.client

        def close() -> None:
            publisher.save()  # stores the batch, as the timer would have done
            if not publisher.is_closed or self.is_attached:
                publisher.close()
            core.forget_publisher(publisher)

        if publisher.is_closed and not self.is_attached:
            core.forget_publisher(publisher)
        else:
            core.abandon(close)


class PartitionMembership:
    """One producer's attachment to a partitioned topic: its name, and the watch for more partitions.

    The name may be made with the first partition that is attached; the others use the same name. The
    topic is watched from the first attachment to the end of the last one, because a closing client detaches
    one partition after the other. A forked child starts with no name, no attachment and no watch. Any thread
    may call the methods.

    Args:
        on_changed: called with a changed number of partitions. It must not refer to producers: the client
            refers to it, so a producer that the application drops would never be collected.

    Attributes:
        name: None until it is made.
    """

    def __init__(
        self,
        core: ClientContext,
        topic: str,
        name: str | None,
        partitions: int,
        on_changed: Callable[[int], object],
    ) -> None:
        self.name = name
        self._core = core
        self._topic = topic
        self._partitions = partitions
        self._on_changed = on_changed
        self._begin()
        fork.register(self)

    def _begin(self) -> None:
        self._lock = threads.RLock()  # guards the following, and the making of the name
        self._attached = 0
        self._watched: WatchedTopic | None = None

    def attach(self, session: ProducerSession) -> ProducerRegistration:
        """Attach one partition, under the name if there is one; otherwise the topic makes the name."""
        registration = self._first(session) if self.name is None else session.attach_as(self.name)
        try:
            self._lock.acquire()
            self._attached += 1
            if self._watched is None:
                watch = self._core.partition_watch
                self._watched = watch.add(self._topic, self._partitions, self._on_changed)
        finally:
            self._lock.release()
        return registration

    def _first(self, session: ProducerSession) -> ProducerRegistration:
        """Attach under the lock, so that two threads do not have two names made.

        Later attachments, which may wait for exclusive access, do not hold it, so that others can be closed.
        """
        try:
            self._lock.acquire()
            registration = session.attach_as(self.name)
            self.name = registration.name
        finally:
            self._lock.release()
        return registration

    def note_detached(self) -> None:
        try:
            self._lock.acquire()
            self._attached -= 1
            watched = self._watched
            if self._attached or watched is None:
                return
            self._watched = None
        finally:
            self._lock.release()
        self._core.partition_watch.remove(watched)

    def after_fork_in_child(self) -> None:
        self.name = None
        self._begin()


ONE: Final = 1 << 48
"""The increment of a tally per message, besides its bytes: one number counts both, to save time."""
SAMPLES: Final = 1024
BURST: Final = 32
"""Messages sent one by one that take the slow path, which measures time, at the start of each interval."""
_NO_LATENCIES: Final[deque[float]] = deque(maxlen=0)
"""Of a producer that has measured nothing: a deque takes 0.7 KiB, and there may be thousands of producers."""
_COLUMNS_SIZE: Final = struct.Struct("<I")
_COLUMNS_SIZE_AT: Final = 8


class Totals(NamedTuple):
    """Counters that only increase."""

    messages: int
    size: int
    failures: int


class CountingPublisher(Protocol):
    """The interface of a publisher to its meter.

    Attributes:
        tally: messages and bytes of the hot path.
    """

    @property
    def tally(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def pending(self) -> int: ...
    def sample(self, messages: int) -> None: ...


class ProducerMeter:
    """Counts what one attachment of a producer stores, and logs it every ``stats_interval_in_seconds``.

    The hot path adds to the publisher's `tally`; everything else is counted here, once per entry. An
    interval without messages is not logged.

    `begin` and `stored` are called under the publisher's lock; any thread may call the other methods.

    Attributes:
        publisher: its tally counts too; the publisher sets this attribute.
        chunked: messages sent in chunks.
        burst: number of messages that are still to take the slow path, to be measured.
    """

    def __init__(self, session: ProducerSession) -> None:
        self.publisher: CountingPublisher | None = None
        self._session = session
        self._interval_s = session.stats_interval_s
        self._monotonic = session.monotonic
        self.reset()

    def reset(self) -> None:
        self.chunked = self.burst = 0
        self._entries = self._messages = self._size = self._failures = 0
        self._latencies = _NO_LATENCIES
        self._begun = self._monotonic()
        self._before = Totals(0, 0, 0)
        self._timer: Timer | None = None
        self._is_closed = False

    def start(self) -> None:
        if self._interval_s:
            self._timer = self._session.call_later(self._interval_s, self._on_timer)

    def stored(self, out: PendingEntry) -> None:
        """An entry is in the log; at level ``flush`` `durable` follows."""
        encoded = out.encoded
        self._entries += 1
        self._messages += out.count
        if out.chunks is not None:
            self._entries += len(out.chunks.earlier)
            self._size += out.chunks.length
            self.chunked += 1
        elif encoded is not None:
            columns = encoded.size - encoded.metadata_length
            if encoded.codec:
                (columns,) = _COLUMNS_SIZE.unpack_from(encoded.parts[0], _COLUMNS_SIZE_AT)
            self._size += columns - 4 * out.count - 4
        if out.began and not out.end_word:
            (self._latencies or self._measured()).append(self._monotonic() - out.began)
            out.began = 0.0

    def durable(self, out: PendingEntry) -> None:
        began, out.began = out.began, 0.0
        if began:
            (self._latencies or self._measured()).append(self._monotonic() - began)

    def _measured(self) -> deque[float]:
        if self._latencies is _NO_LATENCIES:
            self._latencies = deque(maxlen=SAMPLES)
        return self._latencies

    def failed(self, count: int) -> None:
        self._failures += count

    def close(self) -> None:
        self._is_closed = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def totals(self) -> Totals:
        tally = 0 if self.publisher is None else self.publisher.tally
        size = tally & (ONE - 1)
        return Totals(self._messages + (tally >> 48), self._size + size, self._failures)

    @property
    def entries(self) -> int:
        return self._entries + (0 if self.publisher is None else self.publisher.tally >> 48)

    def _on_timer(self) -> None:
        if self._is_closed:
            return
        # The next interval begins before anything is logged: rates are of whole intervals, and a handler of
        # the log that takes long shifts none.
        self._timer = self._session.call_later(self._interval_s, self._on_timer)
        stats, totals, before = snapshot_of([self]), self.totals(), self._before
        samples = len(self._latencies)
        self._before, self._begun = totals, self._monotonic()
        self._latencies.clear()
        if self.publisher is not None:
            self.publisher.sample(BURST)
        if totals == before:
            return
        name = self.publisher.name if self.publisher is not None else ""
        self._session.log.info(
            "Producer %s on %s, in %d s: sent %d messages, %d bytes; %d failed; %d pending; latency in ms of "
            "%d entries: %.3f median, %.3f 95 %%, %.3f 99 %%, %.3f at most. In all: %d messages, %d bytes; "
            "%d failed",
            name,
            self._session.topic_name,
            self._interval_s,
            totals.messages - before.messages,
            totals.size - before.size,
            totals.failures - before.failures,
            stats.pending_messages,
            samples,
            stats.latency_ms_50,
            stats.latency_ms_95,
            stats.latency_ms_99,
            stats.latency_ms_max,
            *totals,
            producer=name,
            topic=self._session.topic_name,
        )


def snapshot_of(meters: Iterable[ProducerMeter]) -> ProducerStats:
    """Return the sum of the statistics of all attachments of one producer."""
    from embeddedpulsar.client.statistics import ProducerStats, percentiles  # on first use: few ask for them

    messages = size = entries = failures = pending = chunked = 0
    message_rate = byte_rate = 0.0
    latencies: list[float] = []
    for meter in meters:
        totals, before = meter.totals(), meter._before
        passed = max(meter._monotonic() - meter._begun, 1e-9)
        messages += totals.messages
        size += totals.size
        failures += totals.failures
        entries += meter.entries
        chunked += meter.chunked
        pending += 0 if meter.publisher is None else meter.publisher.pending
        message_rate += (totals.messages - before.messages) / passed
        byte_rate += (totals.size - before.size) / passed
        latencies += meter._latencies.copy()
    return ProducerStats(
        messages,
        size,
        entries,
        failures,
        pending,
        message_rate,
        byte_rate,
        *percentiles(latencies),
        chunked,
    )


DEFAULT_SEND_TIMEOUT_MS = 30_000
BULK_MESSAGES = 10_000
BULK_BYTES = 1 << 20
"""Most messages and bytes of an entry of `Producer.send_many` and `send_arrow`."""
LONGEST_NAME = 4096
"""Most bytes of a producer's name, which every entry contains."""


class BulkLimits(NamedTuple):
    """The limits of an entry of columns, and whether an entry holds one key only."""

    messages: int
    payload: int
    key_based: bool


class ProducerConfig(NamedTuple):
    """The options of a producer for one topic; see `Client.create_producer`. Immutable.

    The defaults are those of ``pulsar-client``. None stands for an option that is not set, 0 for no limit.

    Attributes:
        initial_sequence_id: id before the first automatic one; None to continue after the last stored id.
        key_based: whether a batch holds one key only.
        max_pending_across: most messages not stored yet on all partitions together.
        chain: the interceptors.
        chunk_max_size: most bytes of payload in one chunk; 0 or less for as many as fit.
        schema_version: stored with every message; -1 for none.
        is_of_letters: whether it publishes dead letters or retry letters, which a topic may not refuse.
    """

    topic: str
    schema: Schema[Any]
    name: str | None = None
    initial_sequence_id: int | None = None
    send_timeout_ms: int = DEFAULT_SEND_TIMEOUT_MS
    compression: int = 0
    max_pending_messages: int = 1000
    block_if_queue_full: bool = False
    batching: bool = False
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    batching_max_delay_ms: int = 10
    key_based: bool = False
    properties: dict[str, str] | None = None
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    durability: str | None = None
    max_pending_across: int = 50_000
    routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    message_router: Callable[[Message[Any], int], int] | None = None
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    lazy_start: bool = False
    encryption: Encryption | None = None
    chain: InterceptorChain | None = None
    chunking: bool = False
    chunk_max_size: int = -1
    schema_version: int = -1
    is_of_letters: bool = False


def producer_config(options: dict[str, Any]) -> ProducerConfig:
    """Check the arguments of `Client.create_producer`, given by name.

    Args:
        options: the arguments.

    Raises:
        ValueError: a wrong type or value.
        TypeError: a number out of range, a property that is not text, an invalid routing mode.
        NotImplementedError: an option whose feature is not built.
        ImportError: a codec, or the extra ``crypto`` for encryption, is not installed.
    """
    check_types(_TYPES, options)
    if options["crypto_key_reader"] is not None:
        check_key_reader(options["crypto_key_reader"])
    check_types(_LATER_TYPES, options)
    _check_values(options)
    codec = int(options["compression_type"])
    if codec:
        require_codec(codec)
    return ProducerConfig(
        topic=options["topic"],
        schema=options["schema"],
        name=options["producer_name"] or None,
        initial_sequence_id=_initial_sequence_id(options["initial_sequence_id"]),
        send_timeout_ms=max(options["send_timeout_millis"], 0),  # as in pulsar-client, negative is no limit
        compression=int(options["compression_type"]),
        max_pending_messages=options["max_pending_messages"],
        block_if_queue_full=options["block_if_queue_full"],
        batching=options["batching_enabled"],
        batching_max_messages=options["batching_max_messages"],
        batching_max_bytes=min(options["batching_max_allowed_size_in_bytes"], INT32_MAX),
        batching_max_delay_ms=min(options["batching_max_publish_delay_ms"], INT32_MAX),
        key_based=options["batching_type"] == BatchingType.KeyBased,
        properties=options["properties"] and checked_properties(options["properties"]),
        access_mode=options["access_mode"],
        durability=options["durability"],
        max_pending_across=options["max_pending_messages_across_partitions"],
        routing_mode=options["message_routing_mode"],
        message_router=options["message_router"],
        hashing_scheme=options["hashing_scheme"],
        lazy_start=options["lazy_start_partitioned_producers"],
        encryption=_encryption(options),
        chain=_chain(options),
        chunking=options["chunking_enabled"],
        chunk_max_size=options["chunk_max_message_size"],
    )


def _check_values(options: dict[str, Any]) -> None:
    if options["durability"] is not None:
        check_durability(options["durability"])
    if len((options["producer_name"] or "").encode()) > LONGEST_NAME:
        raise ValueError(f"Argument producer_name must have at most {LONGEST_NAME} bytes")
    for name, low, high, least, text in _NUMBERS:
        if not least <= options[name] <= high:
            check_fits(options[name], name, low, high)
            raise ValueError(text)
    check_type(int, options["chunk_max_message_size"], "chunk_max_message_size")
    check_range(options["chunk_max_message_size"], "chunk_max_message_size", -1, INT32_MAX)
    _check_routing(options["message_routing_mode"], options["message_router"])
    if options["batching_enabled"] and options["chunking_enabled"]:
        raise ValueError("Batching and chunking of messages can't be enabled together.")


def _check_routing(mode: PartitionsRoutingMode, router: object) -> None:
    """Check the routing options. As in ``pulsar-client``, a router alone implies `CustomPartition`."""
    if not isinstance(mode, PartitionsRoutingMode):
        raise TypeError(
            "Argument message_routing_mode is expected to be of type 'PartitionsRoutingMode' and not "
            f"{type(mode).__name__!r}; {PartitionsRoutingMode.choices()}"
        )
    if router is not None and not callable(router):
        raise ValueError(f"Argument message_router is expected to be callable, and {router!r} is not")
    if router is None and mode == PartitionsRoutingMode.CustomPartition:
        raise ValueError(
            "message_routing_mode=CustomPartition needs a message_router, which chooses the partitions"
        )


def _initial_sequence_id(given: int | None) -> int | None:
    """Return None for 0 and -1, as ``pulsar-client`` does: the producer continues after its last stored id.

    The id must be smaller than the largest number, so that further ids can follow.
    """
    if not given:
        return None
    check_fits(given, "initial_sequence_id", -INT64_MAX - 1, INT64_MAX)
    check_range(given, "initial_sequence_id", -1, INT64_MAX - _ROOM_FOR_IDS)
    return None if given == -1 else given


def _chain(options: dict[str, Any]) -> InterceptorChain | None:
    """Return the chain of the interceptors, which are imported only for those who have some."""
    given = options["interceptors"]
    if given is None:
        return None
    from embeddedpulsar.client.interceptors import ProducerInterceptor, chain_of

    return chain_of(given, ProducerInterceptor)


def _encryption(options: dict[str, Any]) -> Encryption | None:
    """Return the keys and the reader of an encrypting producer; incomplete options are an error."""
    more = options["encryption_keys"]
    if more is not None and (isinstance(more, str) or not all(isinstance(name, str) for name in more)):
        raise ValueError("Argument encryption_keys is expected to be a list of str")
    names = tuple(dict.fromkeys(filter(None, (options["encryption_key"], *(more or ())))))
    reader = options["crypto_key_reader"]
    if not names and reader is None:
        return None
    if reader is None:
        raise ValueError("encryption_key needs crypto_key_reader, which is not set: it has the public key")
    if not names:
        raise ValueError(
            "crypto_key_reader needs encryption_key, which is not set: nothing would be encrypted"
        )
    from embeddedpulsar.crypto import Encryption, require_cryptography

    require_cryptography()
    return Encryption(names, reader)


_TYPES: tuple[tuple[str, type[Any], bool], ...] = (
    ("topic", str, False),
    ("producer_name", str, True),
    ("schema", Schema, False),
    ("initial_sequence_id", int, True),
    ("send_timeout_millis", int, False),
    ("compression_type", CompressionType, False),
    ("max_pending_messages", int, False),
    ("max_pending_messages_across_partitions", int, False),
    ("block_if_queue_full", bool, False),
    ("batching_enabled", bool, False),
    ("batching_max_messages", int, False),
    ("batching_max_allowed_size_in_bytes", int, False),
    ("batching_max_publish_delay_ms", int, False),
    ("chunking_enabled", bool, False),
    ("properties", dict, True),
    ("batching_type", BatchingType, False),
    ("encryption_key", str, True),
)
_LATER_TYPES: tuple[tuple[str, type[Any], bool], ...] = (
    ("lazy_start_partitioned_producers", bool, False),
    ("access_mode", ProducerAccessMode, False),
    ("hashing_scheme", HashingScheme, False),
)
"""In the order in which ``pulsar-client`` checks them, the key reader between, so that the first error is the
same."""

_ROOM_FOR_IDS = 2**48
_ANY = -INT32_MAX - 1
_NUMBERS = (
    ("send_timeout_millis", _ANY, INT32_MAX, _ANY, ""),
    ("max_pending_messages", _ANY, INT32_MAX, 0, "maxPendingMessages needs to be >= 0"),
    ("max_pending_messages_across_partitions", _ANY, INT32_MAX, 0, "maxPendingMessages needs to be >=0"),
    ("batching_max_messages", 0, UINT32_MAX, 2, "batchingMaxMessages needs to be greater than 1"),
    ("batching_max_allowed_size_in_bytes", 0, UINT64_MAX, 0, ""),
    ("batching_max_publish_delay_ms", 0, UINT64_MAX, 0, ""),
)
"""The ranges of the types of ``pulsar-client``, the smallest values, and the error texts, in its order."""
