"""The choice of the partition of a message. Pure except for the first partition, which is random."""

from __future__ import annotations

import os
from functools import lru_cache, partial
from itertools import count

from embeddedpulsar._engine.format.key_hash import partition_hash
from embeddedpulsar.client.arguments import NO_OPTIONS, PARTITION_KEY, SEQUENCE_ID
from embeddedpulsar.client.producer.pending_entry import BatchContainer, shut_batch
from embeddedpulsar.enums import PartitionsRoutingMode
from embeddedpulsar.exceptions import UnknownError
from embeddedpulsar.message import Message
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.schema import BytesSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Final

    from embeddedpulsar.client.arguments import Options
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.enums import HashingScheme
    from embeddedpulsar.message import ValueDecoder

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
