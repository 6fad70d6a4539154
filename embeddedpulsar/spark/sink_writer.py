"""The two ends of a write: tasks stage rows on the workers, the driver commits them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from embeddedpulsar._engine.format.staged_rows import record_head
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store.sink_place import SinkPlace, sink_key, staged_name
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.producer.staged_entry import StagedEntry, publish_entries
from embeddedpulsar.crypto.rows_cipher import RowsCipher
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.spark.sink_commit import SinkCommit, SinkIdentity, StagedFile
from embeddedpulsar.spark.sink_options import SinkOptions
from embeddedpulsar.spark.sink_sealing import encryption_of
from embeddedpulsar.spark.worker_memory import spare_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.spark.row_encoder import RowEncoder

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
    part, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
    place = SinkPlace(options.path, sink_key(identity.producer, identity.run))
    name = staged_name(batch, part, attempt)
    cipher = RowsCipher() if options.encryption_keys else None
    logs: dict[str, int] = {}

    def records() -> Iterator[list[Any]]:
        for laid in encoder.entries(batches):
            number = logs.setdefault(laid.log, len(logs))
            parts = laid.parts if cipher is None else cipher.encrypt(laid.parts)
            yield [
                record_head(number, laid.count, laid.flags, laid.key_hash, parts, laid.schema_version),
                *parts,
            ]

    size = place.stage(name, records())
    failpoints.hit("sink:staged")
    key = b"" if cipher is None else cipher.key
    return StagedRows(identity, StagedFile(name if size else "", size, tuple(logs), key))


def publish(options: SinkOptions, encoder: RowEncoder, batches: Iterable[pa.RecordBatch]) -> None:
    """Publish the rows of one attempt of a task at once."""
    producers: list[Producer[bytes]] = []
    logs: dict[str, int] = {}
    names, reader = encryption_of(options) or (None, None)
    with Client(options.path, durability=options.durability) as client:

        def entries() -> Iterator[StagedEntry]:
            for laid in encoder.entries(batches):
                number = logs.setdefault(laid.log, len(logs))
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
        from embeddedpulsar.spark.row_encoder import RowEncoder

        encoder = RowEncoder(self._options, self._columns)
        spare_modules()
        if self._options.exactly_once:
            return stage(self._options, identity, batch, encoder, batches)
        publish(self._options, encoder, batches)
        return StagedRows(identity, StagedFile("", 0, ()))

    def _commit(self, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = [one for one in messages if isinstance(one, StagedRows)]
        files = [one.file for one in found if one.file.name]
        if files:
            self._of(found[0].identity).commit(batch, files)

    def _of(self, identity: SinkIdentity) -> SinkCommit:
        options = self._options
        return SinkCommit(options.path, identity, options.durability, options.codec, encryption_of(options))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of ``df.write``, made on the driver and sent to the workers and back."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        token = os.urandom(8).hex()
        is_numbered = options.batch_id is not None
        self._batch = options.batch_id or 0
        self._identity = SinkIdentity(
            options.producer_name or f"spark-{token}", "batches" if is_numbered else token, is_numbered
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
        context = TaskContext.get()
        query = "" if context is None else context.getLocalProperty(QUERY_ID) or ""
        batch = "" if context is None else context.getLocalProperty(BATCH_ID) or ""
        producer = self._options.producer_name or (f"spark-{query}" if query else "")
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
        found = [one for one in messages if isinstance(one, StagedRows)]
        if found:
            self._of(found[0].identity).abort(batchId)
