"""The two ends of a write: tasks stage rows on the workers, the driver commits them.

Rows of Spark as entries: by topic and partition, cut as `Producer.send_arrow` cuts them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.column_writer import ColumnNames, ColumnPortion, portions_of
from embeddedpulsar.arrow.typed_columns import TopicSchemas
from embeddedpulsar.arrow.value_encoder import (
    PairEncoder,
    check_keys,
    is_payload,
    payload_encoder,
    value_part,
)
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.producer.partitioned_publisher import BulkRouting, RoundRobinByBatch, random_below
from embeddedpulsar.client.producer.producer_session import BULK_BYTES, BULK_MESSAGES
from embeddedpulsar.crypto import RowsCipher
from embeddedpulsar.enums import HashingScheme
from embeddedpulsar.exceptions import InvalidConfiguration, MessageTooBig, TopicNotFound
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.spark.batch_reader import spare_modules
from embeddedpulsar.spark.engine import (
    METADATA,
    EntryContent,
    ProducerPrefix,
    encode,
    entry_limits,
    failpoints,
    partition_count,
    record_head,
)
from embeddedpulsar.spark.options import DELIVER_AT, SinkOptions
from embeddedpulsar.spark.sink_commit import (
    SinkCommit,
    SinkIdentity,
    StagedEntry,
    StagedFile,
    encryption_of,
    publish_entries,
    sealed_producer,
)
from embeddedpulsar.spark.sink_place import SinkPlace, sink_key, staged_name
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.producer.producer import Producer


QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""What Spark tells the tasks of a streaming query."""

failpoints.declare("sink:staged")


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What one task did.

    Attributes:
        identity: of the sink.
        file: what it staged.
    """

    identity: SinkIdentity
    file: StagedFile


def stage(
    options: SinkOptions,
    identity: SinkIdentity,
    batch: int,
    encoder: RowEncoder,
    batches: Iterable[pa.RecordBatch],
) -> StagedRows:
    """Write the rows of one attempt of a task into a file of its own."""
    context = TaskContext.get()
    # Without a context, outside of a task, there is one attempt of one part: as tests and notebooks call it.
    part, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
    place = SinkPlace(options.path, sink_key(identity.producer, identity.run))
    # The name has the attempt and something random: attempts of a task may run at the same time, and only one
    # of them is named by a commit message.
    name = staged_name(batch, part, attempt)
    # Staged rows are in no file in the clear; the key travels with the commit message alone.
    cipher = RowsCipher() if options.encryption_keys else None
    logs: dict[str, int] = {}

    def records() -> Iterator[list[Any]]:
        for laid in encoder.entries(batches):
            # Numbers of logs are those of the file, in the order of appearance.
            number = logs.setdefault(laid.log, len(logs))
            parts = laid.parts if cipher is None else cipher.encrypt(laid.parts)
            yield [
                record_head(number, laid.count, laid.flags, laid.key_hash, parts, laid.schema_version),
                *parts,
            ]

    size = place.stage(name, records())
    failpoints.hit("sink:staged")
    # An attempt without rows has no file: nothing to commit.
    key = b"" if cipher is None else cipher.key
    return StagedRows(identity, StagedFile(name if size else "", size, tuple(logs), key))


def publish(options: SinkOptions, encoder: RowEncoder, batches: Iterable[pa.RecordBatch]) -> None:
    """Publish the rows of one attempt of a task at once."""
    producers: list[Producer[bytes]] = []
    logs: dict[str, int] = {}
    # At least once: messages are in the topic before the task has succeeded, and again if it is repeated.
    # Encryption is left to the producers.
    names, reader = encryption_of(options) or (None, None)
    with Client(options.path, durability=options.durability) as client:

        def entries() -> Iterator[StagedEntry]:
            for laid in encoder.entries(batches):
                number = logs.setdefault(laid.log, len(logs))
                # A producer for each log, made when its first entry comes: a task may have rows of few of
                # many topics.
                if number == len(producers):
                    keys = None if names is None else list(names)
                    producers.append(
                        client.create_producer(laid.log, encryption_keys=keys, crypto_key_reader=reader)
                    )
                yield StagedEntry(
                    number,
                    laid.parts,
                    laid.count,
                    laid.flags,
                    laid.key_hash,
                    schema_version=laid.schema_version,
                )

        publish_entries(producers, entries(), options.codec)


class _Writer:
    """What both writers have in common. Pickled: it holds numbers and strings only."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def _write(self, identity: SinkIdentity, batch: int, batches: Iterable[pa.RecordBatch]) -> StagedRows:

        # Read in the worker: settings and policies of the store may have changed since the plan.
        # What a task publishes at once goes by producers with automatic names.
        producer = identity.producer if self._options.exactly_once else _LONGEST_AUTOMATIC_NAME
        encoder = RowEncoder(self._options, self._columns, producer)
        spare_modules()
        if self._options.exactly_once:
            return stage(self._options, identity, batch, encoder, batches)
        publish(self._options, encoder, batches)
        # What was published at once needs no commit.
        return StagedRows(identity, StagedFile("", 0, ()))

    def _commit(self, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged_rows = [message for message in messages if isinstance(message, StagedRows)]
        files = [message.file for message in staged_rows if message.file.name]
        # Tasks without rows, and those that published at once, leave nothing.
        if files:
            # The identity comes from the tasks: only they know the id of a streaming query.
            self._of(staged_rows[0].identity).commit(batch, files)

    def _of(self, identity: SinkIdentity) -> SinkCommit:
        options = self._options
        return SinkCommit(options.path, identity, options.durability, options.codec, encryption_of(options))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of ``df.write``, made on the driver and sent to the workers and back."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        # Two writes without a number must not share a directory, so their key is random.
        token = os.urandom(8).hex()
        is_numbered = options.batch_id is not None
        self._batch = options.batch_id or 0
        self._identity = SinkIdentity(
            # A numbered batch is repeated under the same name: the run is the same for all of them, and its
            # last number is kept.
            options.producer_name or f"spark-{token}",
            "batches" if is_numbered else token,
            is_numbered,
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._write(self._identity, self._batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks staged."""
        self._commit(self._batch, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks staged."""
        self._of(self._identity).abort(self._batch)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``, made anew for every batch and its commit."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        # Local properties of the task: Spark gives a Python writer no other way to the id of its query.
        context = TaskContext.get()
        query = "" if context is None else context.getLocalProperty(QUERY_ID) or ""
        batch = "" if context is None else context.getLocalProperty(BATCH_ID) or ""
        producer = self._options.producer_name or (f"spark-{query}" if query else "")
        # Without either, batches of several queries would count in one sink and drop each other's.
        if not producer:
            raise InvalidConfiguration(
                "Spark does not tell which query this is; give the option producerName"
            )
        return self._write(SinkIdentity(producer, query, True), int(batch or 0), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what the tasks of a batch staged, unless that was done before."""
        self._commit(batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks of a batch staged."""
        staged_rows = [message for message in messages if isinstance(message, StagedRows)]
        # Nothing staged, nothing to remove; and no identity to remove it under.
        if staged_rows:
            self._of(staged_rows[0].identity).abort(batchId)


_PREFIX: Final = ProducerPrefix("")
_LONGEST_AUTOMATIC_NAME: Final = "standalone-4294967295-4294967295"
_WAITING_BYTES: Final = 64 << 20
"""Rows of many topics wait until each has a full entry, up to so many bytes together."""


class Laid(NamedTuple):
    """The columns of one entry, and where it goes.

    Attributes:
        log: full name of the topic or partition.
        parts: the columns as they are stored.
        count: messages.
        flags, key_hash, schema_version: as `StagedEntry` has them.
    """

    log: str
    parts: list[Any]
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    flags: int
    key_hash: int
    schema_version: int


class RowEncoder:
    """The part of a write that every task does by itself. Invariants: rows of a log keep their order,
    except that delayed ones are entries of their own; an entry fits the largest message of its topic.
    Callers: one thread.

    Args:
        options: of the write.
        columns: the names that are written.
        producer: the name of the producer that will publish, or a longer one: an entry has it beside its
            columns.
    """

    def __init__(self, options: SinkOptions, columns: tuple[str, ...], producer: str) -> None:
        self._options: Final = options
        self._name_bytes: Final = ProducerPrefix(producer).metadata_length - METADATA.size
        self._columns: Final = columns
        self._entry_limit: Final = entry_limits(options.path)
        self._limits: Final[dict[str, int]] = {}
        self._waiting: Final[dict[str, list[Any]]] = {}
        self._schemas: Final = TopicSchemas(options.path)
        self._encoders: Final[dict[str, tuple[int, Any, bool]]] = {}
        self._routes: Final[dict[str, tuple[TopicName, BulkRouting | None]]] = {}

    def entries(self, batches: Iterable[Any]) -> Iterator[Laid]:
        """The entries of all rows.

        Raises:
            ValueError: a row without a topic, a key that is not UTF-8, or a record that does not fit.
            MessageTooBig: a row larger than ``maxMessageSize`` of the topic.
            TopicNotFound: a topic that does not exist and must not be made.
        """
        # Bytes that wait, of all topics together.
        size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            for topic, records in self._by_topic(batch.select(list(self._columns))):
                rows = self._with_payloads(topic, records)
                # Delayed rows are entries of one message, as in Pulsar, whose producers do not batch messages
                # with a delivery time.
                delayed, prompt = _divided(rows)
                if delayed is not None:
                    yield from self._delayed(topic, delayed)
                if prompt.num_rows:
                    waiting = self._waiting.setdefault(topic, [])
                    waiting.append(prompt)
                    size += prompt.nbytes
                    # A topic with a full entry is written at once; the others wait, so that rows of a
                    # thousand topics do not become entries of one row each.
                    if (
                        sum(map(len, waiting)) >= BULK_MESSAGES
                        or sum(part.nbytes for part in waiting) >= BULK_BYTES
                    ):
                        size -= sum(part.nbytes for part in waiting)
                        yield from self._flush(topic)
            # Too much waits together: all of it is written, in smaller entries.
            if size > _WAITING_BYTES:
                yield from self._flush_all()
                size = 0
        yield from self._flush_all()

    def _with_payloads(self, topic: str, rows: Any) -> Any:
        """The rows with payloads in place of values that the schema of the topic encodes."""
        at = rows.schema.get_field_index(names.VALUE)
        values = rows.column(at)
        # Bytes and texts are payloads; they are stored as they are, also in a topic with a schema.
        if is_payload(values.type):
            return rows
        _, encoder, is_keyed = self._encoder(topic, values.type)
        # With a separated key, consumers take the column for the key of the pair, so it must be what they can
        # decode.
        if is_keyed:
            check_keys(rows.column(names.KEY))
        rows = rows.set_column(at, names.VALUE, encoder.encode(values))
        # The key of the pair becomes the key of the message, unless a column has it.
        if isinstance(encoder, PairEncoder) and encoder.separates_key:
            rows = rows.append_column(names.KEY, encoder.keys(values))
        return rows

    def _encoder(self, topic: str, kind: Any) -> tuple[int, Any, bool]:
        """The version of the schema of a topic, what encodes by it, and whether column ``__key`` has keys of
        pairs."""
        known = self._encoders.get(topic)
        if known is None:
            self._route(topic)  # so that it exists
            version, info = self._schemas.latest_version(topic)
            # With a column of keys, `value` is the value of the pair alone.
            own = value_part(info) if names.KEY in self._columns else None
            encoder = payload_encoder(topic, own or info, kind)
            known = self._encoders[topic] = version, encoder, own is not None
        return known

    def _version(self, topic: str) -> int:
        # -1: payloads as they are have no schema version.
        return self._encoders[topic][0] if topic in self._encoders else -1

    def _by_topic(self, batch: Any) -> Iterator[tuple[str, Any]]:
        if self._options.topic:
            yield self._options.topic, batch
            return
        column = batch.column(names.TOPIC)
        if column.null_count:
            raise ValueError("a row has a null in column __topic, and there is no option topic")
        topics = column.dictionary_encode()
        # One topic in the batch: nothing is filtered.
        if len(topics.dictionary) == 1:
            yield _full(topics.dictionary[0]), batch
            return
        for number, topic in enumerate(topics.dictionary):
            # A pass for each topic of the batch. A batch has some thousand rows, so there are few.
            yield _full(topic), batch.filter(pc.equal(topics.indices, number))

    def _flush_all(self) -> Iterator[Laid]:
        for topic in list(self._waiting):
            yield from self._flush(topic)

    def _flush(self, topic: str) -> Iterator[Laid]:
        # Removed before it is cut: what is waiting is all of it.
        table = pa.Table.from_batches(self._waiting.pop(topic))
        for portion in self._portions(topic, table):
            yield from self._laid(topic, portion)

    def _portions(self, topic: str, table: Any) -> Iterator[ColumnPortion]:
        given = table.schema.names
        # Without sequence ids: the commit gives them.
        optional = [name if name in given else None for name in _OPTIONAL]
        key, ordering_key, properties, event_time = optional
        columns = ColumnNames(names.VALUE, key, ordering_key, properties, event_time, None)
        _, routing = self._route(topic)
        return portions_of(table, columns, None, BULK_MESSAGES, BULK_BYTES, False, routing)

    def _laid(self, topic: str, portion: ColumnPortion) -> Iterator[Laid]:
        parts, flags, key_hash = portion.laid_out()
        size, count, limit = sum(map(len, parts)), portion.count, self._limit(topic)
        # As publishers cut: halves, until each fits, and one row that does not fit is an error.
        if size <= limit:
            log = self._log(topic, portion.partition)
            yield Laid(log, parts, count, flags, key_hash, self._version(topic))
        elif count == 1:
            raise self._too_big(topic, size)
        else:
            yield from self._laid(topic, portion.part(0, count // 2))
            yield from self._laid(topic, portion.part(count // 2, count))

    def _limit(self, topic: str) -> int:
        """The most bytes of columns in an entry."""
        limit = self._limits.get(topic)
        if limit is None:
            name, _ = self._route(topic)  # so that it exists
            # The commit publishes entries as they were cut, so all that comes to the columns is taken off
            # here: a batch with an entry that no topic takes would be decided and never finished.
            limit = self._limits[topic] = self._entry_limit(name) - self._reserved
        return limit

    @property
    def _reserved(self) -> int:
        return self._options.growth + self._name_bytes

    def _too_big(self, topic: str, size: int) -> MessageTooBig:
        growth = self._options.growth
        takes = f"encryption takes {growth} and " if growth else ""
        return MessageTooBig(
            f"a row for {topic} has {size} bytes with its key and properties, and maxMessageSize is "
            f"{self._limit(topic) + self._reserved}, of which {takes}the name of the producer takes "
            f"{self._name_bytes}; send less at once, or raise it in broker.conf or by "
            "Admin.topics().set_max_message_size"
        )

    def _delayed(self, topic: str, rows: Any) -> Iterator[Laid]:
        """An entry for each row: its delivery time is that of the entry."""
        times = rows.column(DELIVER_AT)
        # Parts of milliseconds are cut off, as of event times.
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64()).to_pylist()
        for number, deliver_ms in enumerate(times):
            # Through the same layout as other rows, for its checks and its routing.
            portion = next(self._portions(topic, pa.Table.from_batches([rows.slice(number, 1)])))
            ((value, is_null, key, ordering_key, fields, time, _),) = portion.rows()
            content = EntryContent(
                [value],
                batched=False,
                keys=[key],
                ordering_keys=[ordering_key],
                properties=[fields],
                event_times=[time or 0],
                # 0 stands for "at once" in the format, and a time before 1970 is in the past as 1 is.
                deliver_at=[max(1, deliver_ms)],
                null_values=[is_null],
            )
            entry = encode(content, _PREFIX)
            # `encode` gives a whole body; staged rows have the columns alone, and the commit makes the
            # metadata.
            columns = b"".join(entry.parts)[entry.metadata_length :]
            if len(columns) > self._limit(topic):
                raise self._too_big(topic, len(columns))
            log = self._log(topic, portion.partition)
            yield Laid(log, [columns], 1, entry.flags, entry.key_hash, self._version(topic))

    def _log(self, topic: str, partition: int) -> str:
        name, routing = self._route(topic)
        return name.full if routing is None else name.of_partition(partition).full

    def _route(self, topic: str) -> tuple[TopicName, BulkRouting | None]:
        route = self._routes.get(topic)
        if route is None:
            name = TopicName.parse(topic)
            # The topic exists from here on, with the number of partitions that the cut of this task uses.
            partitions = _made(self._options, name)
            routing = None
            if partitions:
                # Each task begins with another partition, as each producer does, so that small batches
                # spread.
                first = random_below(partitions)
                routing = BulkRouting(RoundRobinByBatch(partitions, HashingScheme.JavaStringHash, first))
            route = self._routes[topic] = name, routing
        return route


_OPTIONAL: Final = (names.KEY, names.ORDERING_KEY, names.PROPERTIES, names.EVENT_TIME)


def _full(topic: Any) -> str:
    return TopicName.parse(topic.as_py()).full


def _divided(rows: Any) -> tuple[Any, Any]:
    """The rows with a delivery time, or None; and the others."""
    if DELIVER_AT not in rows.schema.names:
        return None, rows
    times = rows.column(DELIVER_AT)
    # A column of nulls is the same as none.
    if times.null_count == len(times):
        return None, rows
    return rows.filter(times.is_valid()), rows.filter(times.is_null())


def _made(options: SinkOptions, name: TopicName) -> int:
    """The number of partitions of a topic, which is made as a producer makes it; 0 without partitions."""
    # Made by a producer that is closed at once: creation has rules and policies, which a producer keeps.
    try:
        return partition_count(options.path, name)
    except TopicNotFound:
        with Client(options.path) as client:
            # A topic that requires encryption lets no other producer in.
            open_producer = sealed_producer if options.encryption_keys else Client.create_producer
            open_producer(client, name.full).close()
        return partition_count(options.path, name)
