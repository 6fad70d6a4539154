"""Publishing the rows of an outbox: each once, and those of a topic in the order of their ids.

The producers of an outbox have one name, and the sequence id of a message is the id of its row. The topic
drops duplicates, so it knows the last id that is stored under the name: that is the position of the relay. A
row at or before it is in the topic.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.producer.producer_config import BULK_MESSAGES
from embeddedpulsar.enums import HashingScheme, SchemaType
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.outbox.engine import Store, failpoints, partition_hash
from embeddedpulsar.outbox.tables import Claim, OutboxRow
from embeddedpulsar.schema import Schema, SchemaInfo
from embeddedpulsar.schema.schema import BYTES, EncodedSchema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.producer.producer import Producer

failpoints.declare("outbox:published")


class RowRefused(Exception):
    """A row cannot be published now; those before it are.

    Attributes:
        row_id: which.
    """

    def __init__(self, row_id: int, cause: BaseException) -> None:
        super().__init__(f"row {row_id}: {type(cause).__name__}: {cause}")
        self.row_id = row_id


class _Log:
    """The producer of one partition, and the last id that is stored there."""

    def __init__(self, producer: Producer[Any], schema: str | None) -> None:
        self.producer: Final = producer
        self.schema: Final = schema
        # Before the first message it is what the topic knows of the name.
        self.last = producer.last_sequence_id()


class TopicPublisher:
    """Publishes the rows of one topic.

    Role: used by the one relay that holds the lock of the outbox. Invariants: rows of a partition are
    published in the order of their ids, and `last` of the partition is the highest one that is stored.

    Args:
        client: of the store.
        topic: full name.
        name: of the producers.
        durability: of what is published.

    Raises:
        PulsarException: the topic cannot be used.
    """

    def __init__(self, client: Client, topic: str, name: str, durability: str | None) -> None:
        store: Store = client._core.store
        self.topic: Final = topic
        self._client: Final = client
        self._name: Final = name
        self._durability: Final = durability
        self._hash: Final = partition_hash(HashingScheme.JavaStringHash)
        self._logs: Final[dict[int, _Log]] = {}
        self.partitions: int = store.topics.resolve(topic)
        store.drop_duplicates(topic)

    def places(self, rows: Sequence[OutboxRow], partitions: int) -> list[tuple[int, OutboxRow]]:
        """The partition of each row, -1 in a topic without partitions: the one that a producer chooses for a
        key, and without a key one that follows from the id, so that it is the same at every attempt."""
        if not partitions:
            return [(-1, row) for row in rows]
        return [((self._hash(row.key) if row.key is not None else row.id) % partitions, row) for row in rows]

    def last_in(self, places: Sequence[tuple[int, OutboxRow]]) -> int:
        """The highest id that is stored in the partitions of some rows."""
        schemas = {index: row.schema for index, row in reversed(places)}
        return max(self._log(index, schema).last for index, schema in schemas.items())

    def publish(self, places: Sequence[tuple[int, OutboxRow]], published: list[int]) -> None:
        """Publish rows, given in the order of their ids; those that are in the topic are passed over.

        Args:
            places: the rows with their partitions.
            published: gets the ids of rows that are in the topic, in any order.

        Raises:
            RowRefused: a row could not be published. Its partition has none behind it.
        """
        by_partition: dict[int, list[OutboxRow]] = {}
        for index, row in places:
            by_partition.setdefault(index, []).append(row)
        for index, rows in by_partition.items():
            for schema, same in groupby(rows, key=lambda row: row.schema):
                for is_delayed, run in groupby(same, key=lambda row: row.deliver_at is not None):
                    self._publish_run(index, schema, list(run), is_delayed, published)

    def _publish_run(
        self, index: int, schema: str | None, rows: list[OutboxRow], is_delayed: bool, published: list[int]
    ) -> None:
        log = self._log(index, schema)
        # At once; and if that fails, one by one, so that what can be published is.
        try:
            left = _behind(log.last, rows, published)
            if left:
                (_send_delayed if is_delayed else _send)(log.producer, left)
                log.last = left[-1].id
            if failpoints.ACTIVE:
                failpoints.hit("outbox:published")
        # Whatever a value makes of it: the row stays, with the reason.
        except Exception as error:
            self._drop(index)
            if len(left) == 1:
                raise RowRefused(left[0].id, error) from error
        else:
            published.extend(row.id for row in left)
            return
        for row in left:
            self._publish_run(index, schema, [row], is_delayed, published)

    def _log(self, index: int, schema: str | None) -> _Log:
        """The producer of a partition with a schema. Another one under its name is closed before."""
        log = self._logs.get(index)
        if log is not None and log.schema == schema:
            return log
        self._drop(index)
        topic = self.topic if index < 0 else TopicName.parse(self.topic).of_partition(index).full
        producer = self._client.create_producer(
            topic, self._name, _schema_of(schema), durability=self._durability
        )
        self._logs[index] = log = _Log(producer, schema)
        return log

    def _drop(self, index: int) -> None:
        log = self._logs.pop(index, None)
        if log is not None:
            with contextlib.suppress(PulsarException):  # its topic may be gone
                log.producer.close()

    def close(self) -> None:
        """Close the producers. Idempotent."""
        for index in list(self._logs):
            self._drop(index)


def _behind(last: int, rows: list[OutboxRow], published: list[int]) -> list[OutboxRow]:
    """The rows that are not in the topic; the ids of the others are added to ``published``."""
    if rows[0].id > last:
        return rows
    published.extend(row.id for row in rows if row.id <= last)
    return [row for row in rows if row.id > last]


def _send(producer: Producer[Any], rows: list[OutboxRow]) -> None:
    # With keys each message is an entry of its own, as those of single sends are: Key_Shared subscriptions
    # deliver an entry of several keys to the consumer of its first key.
    has_keys = any(row.key is not None or row.ordering_key is not None for row in rows)
    producer.send_many(
        [row.value for row in rows],
        partition_keys=_column(row.key for row in rows),
        ordering_keys=_column(row.ordering_key for row in rows),
        properties=_column(json.loads(row.properties) if row.properties else None for row in rows),
        event_timestamps=_column(row.event_timestamp for row in rows),
        sequence_ids=[row.id for row in rows],
        batching_max_messages=1 if has_keys else BULK_MESSAGES,
    )


def _send_delayed(producer: Producer[Any], rows: list[OutboxRow]) -> None:
    for row in rows:
        producer.send(
            row.value,
            json.loads(row.properties) if row.properties else None,
            row.key,
            row.ordering_key,
            row.id,
            event_timestamp=row.event_timestamp,
            deliver_at=row.deliver_at,
        )


def _column(values: Iterator[Any]) -> list[Any] | None:
    column = list(values)
    return None if all(value is None for value in column) else column


def _schema_of(text: str | None) -> Schema[Any]:
    if text is None:
        return BYTES
    kind, name, definition, properties = json.loads(text)
    return EncodedSchema(SchemaInfo(SchemaType(kind), name, definition, properties=properties))


def partitions_of(claim: Claim, present: int) -> int:
    """Among how many partitions the rows up to `Claim.claimed` are distributed: as many as the relay noted
    that chose them. A topic that has fewer by now was deleted and made again, without these rows."""
    return claim.partitions if claim.partitions <= present else present
