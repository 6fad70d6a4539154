"""Publishing what a function returns and publishes."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.format.key_hash import partition_hash
from embeddedpulsar._engine.platform.scheduler import Backoff
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar.enums import CompressionType, HashingScheme
from embeddedpulsar.exceptions import ProducerBusy
from embeddedpulsar.functions.state_table import Output, Pending
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.schema import BYTES
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.message_id import MessageId
    from embeddedpulsar.schema.schema import Schema

_PATIENCE_S: Final = 30.0
"""How long a dead instance may still seem to be connected."""
_OVERHEAD: Final = 64
"""Bytes of a message, or a property, besides its texts; more than there are."""


class Draft(NamedTuple):
    """A message that a function wants to be published.

    Attributes:
        topic: full name.
        payload: as it is stored.
        options: of `Producer.send`, as far as they are given.
        compression: of the message.
        callback: called with the result and the id; None for none.
    """

    topic: str
    payload: bytes
    options: dict[str, Any]
    compression: CompressionType
    callback: Callable[[Any, MessageId], object] | None

    def size(self) -> int:
        """Bytes of it in a commit, about."""
        properties = self.options.get("properties") or {}
        return (
            _OVERHEAD
            + len(self.payload)
            + len(self.topic)
            + sum(len(key) + len(value) + _OVERHEAD for key, value in properties.items())
        )


class OutputProducers:
    """The producers of one instance.

    Role: `send` publishes at once. For EFFECTIVELY_ONCE, `number` decides where each message goes and under
    which sequence id, which is committed with the positions of the inputs; then `publish` stores them. Done
    again under the same producer name and ids, after the death of this process and by another one, it stores
    what is missing and nothing twice: the topics drop duplicates.
    Callers: one thread.

    Args:
        client: of the store.
        name: of the producers; unique among all instances that ever ran.
        schemas: of topics, by their full names; others have none.
    """

    def __init__(self, client: Client, name: str, schemas: Mapping[str, Schema[Any]] | None = None) -> None:
        self.name: Final = name
        self._schemas: Final = schemas or {}
        self._client: Final = client
        self._plain: Final[dict[tuple[str, CompressionType], Producer[bytes]]] = {}
        self._named: Final[dict[tuple[str, str], Producer[bytes]]] = {}
        self._numbers: Final[defaultdict[str, int]] = defaultdict(int)
        self._turns: Final[defaultdict[str, int]] = defaultdict(int)
        self._partitions: Final[dict[str, int]] = {}
        self._hash: Final = partition_hash(HashingScheme.JavaStringHash)

    def register(self, topic: str) -> None:
        """Have a topic take its schema, before anything is to be published.

        Raises:
            IncompatibleSchema: it does not accept the schema.
        """
        self._client.create_producer(topic, schema=self._schema(topic)).close()

    def send(self, draft: Draft) -> MessageId:
        """Publish a message, and return when it is stored.

        Raises:
            PulsarException: it is not stored.
        """
        key = draft.topic, draft.compression
        producer = self._plain.get(key)
        if producer is None:
            producer = self._plain[key] = self._client.create_producer(
                draft.topic, compression_type=draft.compression, schema=self._schema(draft.topic)
            )
        return producer.send(draft.payload, **draft.options)

    # -- EFFECTIVELY_ONCE --------------------------------------------------------------------------

    def number(self, draft: Draft) -> Output:
        """Decide the partition and the sequence id of a message."""
        partitions = self._prepare(draft.topic)
        topic = draft.topic
        if partitions:
            key = draft.options.get("partition_key")
            turn = self._turns[topic]
            self._turns[topic] = turn + 1
            index = (self._hash(key) if key else turn) % partitions
            topic = TopicName.parse(topic).of_partition(index).full
        self._numbers[topic] += 1  # from 1 on, because 0 counts as not set
        return Output(topic, self._numbers[topic], draft.payload, draft.options, draft.compression.name)

    def publish(self, pending: Pending) -> list[MessageId]:
        """Store the messages that are not stored yet, each in an entry of its own, as single sends do: so
        Key_Shared subscriptions of the output topic keep the order of each key.

        Returns:
            Their ids; ``(-1,-1,-1,-1)`` for those that were stored before.

        Raises:
            ProducerBusy: another process uses that producer name.
            PulsarException: not all are stored. It may be called again.
        """
        found: list[MessageId] = []
        by_place = groupby(pending.outputs, key=lambda one: (one.topic, one.compression))
        for (topic, compression), group in by_place:
            outputs = list(group)
            producer = self._producer_of(pending.producer, topic, CompressionType[compression])
            options = [one.options for one in outputs]
            sent = producer.send_many(
                [one.payload for one in outputs],
                partition_keys=_column(options, "partition_key"),
                ordering_keys=_column(options, "ordering_key"),
                properties=_column(options, "properties"),
                event_timestamps=_column(options, "event_timestamp"),
                sequence_ids=[one.sequence_id for one in outputs],
                batching_max_messages=1,
            )
            found += list(sent)
        return found

    def settle(self, pending: Pending) -> None:
        """`publish` for an instance that died in the middle of it.

        Raises:
            ProducerBusy: it lives.
        """
        pauses, waited_s = Backoff(), 0.0
        while True:
            try:
                self.publish(pending)
                break
            except ProducerBusy:
                pause_s = pauses.next()
                if waited_s + pause_s > _PATIENCE_S:
                    raise
                waited_s += pause_s
                self._client._core.store.clock.sleep(pause_s)
        if pending.producer != self.name:
            self._close([key for key in self._named if key[0] == pending.producer])

    def _producer_of(self, name: str, topic: str, compression: CompressionType) -> Producer[bytes]:
        # One producer for each topic: its sequence ids rise, whatever the compression of single messages.
        producer = self._named.get((name, topic))
        if producer is None:
            base = TopicName.parse(topic).base
            self._prepare(base)
            producer = self._named[name, topic] = self._client.create_producer(
                topic, name, self._schema(base), send_timeout_millis=0, compression_type=compression
            )
        return producer

    def _schema(self, topic: str) -> Schema[Any]:
        return self._schemas.get(topic, BYTES)

    def _prepare(self, topic: str) -> int:
        """Make a topic that is not there, and have it drop duplicates; return the number of partitions."""
        partitions = self._partitions.get(topic)
        if partitions is None:
            store = self._client._core.store
            partitions = self._partitions[topic] = store.topics.resolve(topic)
            if TopicName.parse(topic).is_persistent and not store.policy(topic, DEDUPLICATION):
                store.set_policy(topic, DEDUPLICATION, True)
        return partitions

    def _close(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in list(keys):
            producer = self._named.pop(key)
            if producer.is_connected():
                producer.close()

    def close(self) -> None:
        """Detach from all topics. Idempotent."""
        with contextlib.ExitStack() as closing:
            for producer in [*self._plain.values(), *self._named.values()]:
                if producer.is_connected():
                    closing.callback(producer.close)
            self._plain.clear()
            self._named.clear()


def _column(options: list[dict[str, Any]], name: str) -> list[Any] | None:
    values = [one.get(name) for one in options]
    return None if all(value is None for value in values) else values
