"""Whole topics as Arrow tables: columns taken out of the mapped segments without a step per message.

    table = embeddedpulsar.arrow.read_topic("./data", "orders", columns=["value", "__key"])
    for batch in embeddedpulsar.arrow.scan_topic("./data", "orders"):
        ...

Reading takes no lock, needs no right to write and disturbs no writer; it sees what was committed when it was
called. The result goes to pandas, Polars or DuckDB without a copy (`__arrow_c_stream__`). Needs pyarrow:
``pip install "embeddedpulsar[arrow]"``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from embeddedpulsar.arrow.schema import (
    ALL_COLUMNS,
    KNOWN,
    PLACE_COLUMNS,
    PUBLISH_TIME,
    SCHEMA_VERSION,
    TOPIC,
    VALUE,
    arrow_schema,
    check_columns,
    check_mode,
    reads_uncommitted,
    require_pyarrow,
)
from embeddedpulsar.enums import ConsumerCryptoFailureAction
from embeddedpulsar.error_text import naming_arguments
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.message_id import MessageId

if TYPE_CHECKING:
    import pyarrow as pa

    from embeddedpulsar.arrow.datasets import ExportReport, TopicDataset
    from embeddedpulsar.arrow.engine import EntryRange
    from embeddedpulsar.arrow.mapped_segment import Source
    from embeddedpulsar.arrow.typed_columns import SingleValues, TypedColumns
    from embeddedpulsar.crypto import CryptoKeyReader
    from embeddedpulsar.exceptions import CorruptionError

__all__ = ["ALL_COLUMNS", "arrow_schema", "dataset", "export", "read_topic", "scan_topic"]

BATCH_ROWS: Final = 16_384
LARGE_ENTRY: Final = 1024
"""Entries of this many messages become batches of their own, which are not copied."""

Time = int | datetime


@naming_arguments
def read_topic(
    path: str | os.PathLike[str],
    topic: str,
    columns: Sequence[str] | None = None,
    *,
    start: MessageId | None = None,
    end: MessageId | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    fail_on_data_loss: bool = True,
    crypto_key_reader: CryptoKeyReader | None = None,
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    decode: bool | None = None,
    value_schema: str | None = None,
    mode: str = "FAILFAST",
    isolation: str = "read_committed",
) -> pa.Table:
    """Read a topic into one table.

    Payloads of batched, uncompressed entries are not copied: the table refers to the mapped segments, which
    stay readable also after the topic was trimmed. Messages that were published one by one are gathered, and
    compressed entries decompressed. The partitions of a partitioned topic follow each other.

    Args:
        path: directory of the store.
        topic: name of the topic; with ``-partition-N`` of one partition.
        columns: names out of `ALL_COLUMNS`, in the order wanted; all of them by default. Every column
            left out is work saved, ``__messageProperties`` most of all.
        start, end: the piece from `start` on, up to and without `end`; a batch index is respected. For one
            log only, so not for a topic with several partitions.
        start_time, end_time: the same by publish time, as a datetime with a time zone or in ms since 1970.
        fail_on_data_loss: raise at a damaged entry, and where segments are trimmed while the topic is read.
            False leaves out what is lost and logs a warning.
        crypto_key_reader: has the private keys of encrypted messages.
        crypto_failure_action: what becomes of messages that cannot be decrypted. FAIL raises, as soon as
            something is asked for that is encrypted. DISCARD leaves them out and logs a warning. CONSUME is
            refused: ciphertext in a column is of no use without the context that a message has.
        decode: instead of ``value``, have a column for each field of the newest schema of the topic, which
            is JSON or Avro. What was written with an older one is resolved to it. A null value has null in
            each. Needs the extra ``avro`` for Avro. By default True with `value_schema`, else False.
        value_schema: the definition of a record in Avro's notation, by which payloads are decoded instead of
            the newest one.
        mode: what becomes of payloads that cannot be decoded, and of event times beyond the year 294246,
            which a column of microseconds cannot hold. FAILFAST raises ValueError. PERMISSIVE has null in all
            fields, and the payload in column ``__corrupt``; such a time is null, with a warning.
            DROPMALFORMED leaves the messages out and logs a warning.
        isolation: ``read_committed`` reads each log up to the first message of a transaction that is open or
            prepared, without those of aborted ones, and of several partitions whole transactions alone.
            ``read_uncommitted`` reads all that is stored.

    Returns:
        A ``pyarrow.Table`` with the schema of `arrow_schema`, or with the fields and those columns.

    Raises:
        ImportError: pyarrow is not installed.
        TopicNotFound: no such topic in the store.
        InvalidConfiguration: an unknown column or mode, a start or end that fits no single log, CONSUME, or a
            `value_schema` with ``decode=False``.
        CorruptionError: damage, with `fail_on_data_loss`.
        ValueError: a malformed payload, or a time that a column cannot hold, in mode FAILFAST.
        CryptoError: an entry is encrypted and its payload, keys, properties or event times were asked for,
            and there is no key for it.

    Example:
        >>> import embeddedpulsar
        >>> with embeddedpulsar.Client("./data") as client:
        ...     _ = client.create_producer("orders").send(b"one tea", partition_key="table-7")
        >>> read_topic("./data", "orders", ["value", "__key"]).to_pylist()
        [{'value': b'one tea', '__key': b'table-7'}]
    """
    discards = _is_discard(crypto_failure_action)
    mode = check_mode(mode)
    # With `decode` the columns asked for are fields of payloads; the log is read for the payloads, their
    # schema versions and the places that errors name.
    typed = _typed(path, topic, columns, value_schema, mode) if _is_decoded(decode, value_schema) else None
    wanted = columns if typed is None else typed.needed
    names, ranges = _planned(
        path, topic, wanted, start, end, start_time, end_time, fail_on_data_loss, isolation
    )
    from embeddedpulsar.arrow.columns import record_batches, table

    # Pyarrow is imported by now, or `_planned` has refused with the command that installs it.
    opened = _opened(ranges, names, crypto_key_reader, discards, fail_on_data_loss)
    on_damage = _damage_handler(fail_on_data_loss)
    # Fields are made batch by batch, each with the decoder of its schema version, so small entries are
    # gathered into batches before. Payloads as they are need no such copy.
    if typed is not None:
        batches = record_batches(
            opened, names, rows=BATCH_ROWS, large=LARGE_ENTRY, on_damage=on_damage, mode=mode
        )
        return require_pyarrow().Table.from_batches(typed.batches(batches), schema=typed.schema)
    # A table is made of chunks, so every batch of the log is a chunk that refers to the map.
    whole: pa.Table = table(opened, names, on_damage, mode)
    return whole


@naming_arguments
def scan_topic(
    path: str | os.PathLike[str],
    topic: str,
    columns: Sequence[str] | None = None,
    *,
    start: MessageId | None = None,
    end: MessageId | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    fail_on_data_loss: bool = True,
    batch_rows: int = BATCH_ROWS,
    crypto_key_reader: CryptoKeyReader | None = None,
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    decode: bool | None = None,
    value_schema: str | None = None,
    mode: str = "FAILFAST",
    isolation: str = "read_committed",
) -> pa.RecordBatchReader:
    """Read a topic batch by batch; arguments and errors as in `read_topic`.

    What is to be read is settled when the call is made; the batches are made as they are asked for.

    Args:
        batch_rows: small entries are gathered into batches of about this many rows; large ones are batches
            of their own.

    Returns:
        A ``pyarrow.RecordBatchReader``, to be iterated or handed on.

    Example:
        >>> import embeddedpulsar
        >>> with embeddedpulsar.Client("./data") as client:
        ...     producer = client.create_producer("beeps")
        ...     _ = [producer.send(b"beep") for _ in range(3)]
        >>> sum(batch.num_rows for batch in scan_topic("./data", "beeps", ["value"]))
        3
    """
    discards = _is_discard(crypto_failure_action)
    mode = check_mode(mode)
    typed = _typed(path, topic, columns, value_schema, mode) if _is_decoded(decode, value_schema) else None
    wanted = columns if typed is None else typed.needed
    names, ranges = _planned(
        path, topic, wanted, start, end, start_time, end_time, fail_on_data_loss, isolation
    )
    # The columns of a batch are single arrays, unlike those of a table: entries below LARGE_ENTRY messages
    # are copied together, larger ones refer to the map.
    from embeddedpulsar.arrow.columns import record_batches

    opened = _opened(ranges, names, crypto_key_reader, discards, fail_on_data_loss)
    # The reader below is lazy, and retention could remove segments between this call and the first batch.
    # Asking for the first segment now maps those that would go first.
    first = list(islice(opened, 1))  # maps the segments that would be trimmed first
    batches = record_batches(
        chain(first, opened),
        names,
        rows=batch_rows,
        large=LARGE_ENTRY,
        on_damage=_damage_handler(fail_on_data_loss),
        mode=mode,
    )
    reader = require_pyarrow().RecordBatchReader
    if typed is not None:
        return reader.from_batches(typed.schema, typed.batches(batches))
    return reader.from_batches(arrow_schema(names), batches)


@naming_arguments
def dataset(
    path: str | os.PathLike[str],
    topic: str,
    columns: Sequence[str] | None = None,
    *,
    start: MessageId | None = None,
    end: MessageId | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    fail_on_data_loss: bool = True,
    crypto_key_reader: CryptoKeyReader | None = None,
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    decode: bool | None = None,
    value_schema: str | None = None,
    mode: str = "FAILFAST",
    isolation: str = "read_committed",
) -> TopicDataset:
    """A topic as a ``pyarrow.dataset.Dataset``; arguments and errors as in `read_topic`.

    DuckDB takes it by the name of the variable, Polars by its method ``lazy_frame``, pandas by
    ``to_table().to_pandas()``. Only the columns they use are read. Of filters on publish time, topic,
    partition, ``__ledgerId``, ``__entryId``, ``__key`` and ``__eventTime``, only what can have such rows.
    With `decode` the columns are those of the schema that is the newest now.

    What is read is what is stored when the query begins; a second query sees what was published meanwhile.

    Example:
        >>> import embeddedpulsar
        >>> with embeddedpulsar.Client("./data") as client:
        ...     producer = client.create_producer("sales")
        ...     _ = [producer.send(b"tea", partition_key=f"shop-{n % 2}") for n in range(4)]
        >>> sales = dataset("./data", "sales")
        >>> sales.to_table(["__key"]).group_by("__key").aggregate([([], "count_all")]).to_pylist()
        [{'__key': b'shop-0', 'count_all': 2}, {'__key': b'shop-1', 'count_all': 2}]
    """
    discards = _is_discard(crypto_failure_action)
    limits = (start, end, start_time, end_time, fail_on_data_loss, isolation)
    mode = check_mode(mode)
    typed = _typed(path, topic, columns, value_schema, mode) if _is_decoded(decode, value_schema) else None
    # The ranges of this plan are not kept. It is made for its errors: a topic that does not exist, or a start
    # that fits no single log, is refused here and not when a query runs.
    names, _ = _planned(path, topic, columns if typed is None else None, *limits)
    from embeddedpulsar.arrow.columns import record_batches
    from embeddedpulsar.arrow.datasets import TopicDataset

    def read(ranges: list[EntryRange], wanted: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        # A query that uses no field of the payload decodes none: `of_columns` is None for it.
        decoded = None if typed is None else typed.of_columns(wanted)
        needed = wanted if decoded is None else decoded.needed
        opened = _opened(ranges, needed, crypto_key_reader, discards, fail_on_data_loss)
        on_damage = _damage_handler(fail_on_data_loss)
        batches = record_batches(
            opened, needed, rows=BATCH_ROWS, large=LARGE_ENTRY, on_damage=on_damage, mode=mode
        )
        return batches if decoded is None else decoded.batches(batches)

    # Every column can be named in a query or a filter, also where `columns` has left it out of the result.
    every = arrow_schema(KNOWN) if typed is None else typed.every
    own = names if typed is None else tuple(typed.schema.names)
    # Each scanner plans anew, so that a second query sees what was published meanwhile.
    return TopicDataset(own, every, lambda: _planned(path, topic, None, *limits)[1], read)


def export(
    path: str | os.PathLike[str],
    topic: str,
    target: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    file_format: str = "parquet",
    start_time: Time | None = None,
    end_time: Time | None = None,
    crypto_key_reader: CryptoKeyReader | None = None,
    mode: str = "FAILFAST",
    decode: bool | None = None,
    value_schema: str | None = None,
    on_progress: Callable[[int], object] = int,
) -> ExportReport:
    """Write the messages of a topic as plain files, in folders as Hive has them:
    ``<target>/topic=<name>/date=<day>/part-00000.parquet``, by day of publication in UTC.

    A second export into the same directory adds files.

    Args:
        path: directory of the store.
        topic: name of a topic, partition or partitioned topic.
        target: a directory.
        columns: as in `read_topic`.
        file_format: ``parquet``, ``jsonl`` or ``csv``. Texts take payloads and keys that are UTF-8.
        start_time, end_time, crypto_key_reader: as in `read_topic`.
        mode: what becomes of a message that the format cannot hold: with a payload or key that is no text, a
            time after the year 9999 in texts, or after 294246 in Parquet. FAILFAST raises, PERMISSIVE writes
            null for it, DROPMALFORMED leaves the message out; both log a warning.
        decode: as in `read_topic`; single values, such as those of `StringSchema` and ``Int64Schema``, are
            in column ``value``. JSON lines have records and arrays as objects and lists, and CSV has JSON
            texts in their cells.
        value_schema: as in `read_topic`.
        on_progress: called with the number of messages that are written.

    Raises:
        InvalidConfiguration: another format or mode.
        ValueError: a message that the format cannot hold, in mode FAILFAST. The error names it, and no file
            is left.

    Example:
        >>> import embeddedpulsar
        >>> with embeddedpulsar.Client("./data") as client:
        ...     _ = client.create_producer("visits").send(b"a guest")
        >>> export("./data", "visits", "./exported", ["value"], file_format="jsonl").rows
        1
    """
    require_pyarrow()
    decodes = _is_decoded(decode, value_schema)
    wanted = () if decodes else check_columns(columns)
    # Only an export loads the writers of files.
    from embeddedpulsar.arrow.datasets import FORMATS, write_export
    from embeddedpulsar.arrow.engine import directory_of

    if file_format not in FORMATS:
        raise InvalidConfiguration(f"file_format is {', '.join(FORMATS)}, not {file_format!r}")
    mode = check_mode(mode)
    # The topic and the day of publication name the folder. The place of a message is for the error about one
    # that a text cannot hold. None of them is written unless asked for.
    beside = (TOPIC, PUBLISH_TIME, *PLACE_COLUMNS)
    scan = functools.partial(
        scan_topic,
        path,
        topic,
        start_time=start_time,
        end_time=end_time,
        crypto_key_reader=crypto_key_reader,
        mode=mode,
    )
    single = _single_values(path, topic, columns, beside, mode) if decodes and value_schema is None else None
    # Three cases: the payloads as they are, single values, and records, whose fields are columns.
    if not decodes:
        batches, schema = scan(tuple(dict.fromkeys((*wanted, *beside)))), None
    elif single is not None:
        wanted, schema = check_columns(columns), single.schema
        needed = (*wanted, *beside, VALUE, SCHEMA_VERSION)
        batches = single.batches(scan(tuple(dict.fromkeys(needed))))
    else:
        schema = _typed(path, topic, columns, value_schema, mode).schema
        wanted = tuple(schema.names)
        needed = tuple(dict.fromkeys((*wanted, *beside)))
        batches = scan(needed, decode=True, value_schema=value_schema)
    return write_export(batches, wanted, directory_of(target), file_format, on_progress, mode, schema)


def _single_values(
    path: str | os.PathLike[str],
    topic: str,
    columns: Sequence[str] | None,
    beside: tuple[str, ...],
    mode: str,
) -> SingleValues | None:
    from embeddedpulsar.arrow.engine import root_of, topic_partitions
    from embeddedpulsar.arrow.typed_columns import SingleValues, single_type

    root = root_of(path)
    kind = single_type(root, [log.full for log in topic_partitions(root, topic)])
    if kind is None:
        return None
    return SingleValues(root, kind, tuple(dict.fromkeys((*check_columns(columns), *beside))), mode)


def _is_discard(action: ConsumerCryptoFailureAction) -> bool:
    # Refused, not ignored: a caller that asked for CONSUME would take the ciphertext for payloads.
    if action == ConsumerCryptoFailureAction.CONSUME:
        raise InvalidConfiguration(
            "whole columns have no place for ciphertext, which is of no use without its encryption context; "
            "use FAIL or DISCARD, or a Reader with crypto_failure_action=CONSUME"
        )
    return ConsumerCryptoFailureAction(action) == ConsumerCryptoFailureAction.DISCARD

    # A schema of the caller's own means decoding, so `decode` need not be given beside it.


def _is_decoded(decode: bool | None, value_schema: str | None) -> bool:
    # The types are for callers without a type checker: a schema object is the likely mistake.
    given: object = value_schema
    if given is not None and not isinstance(given, str):
        raise InvalidConfiguration(
            "value_schema is the definition of a record in Avro's notation, a text, not "
            f"{type(given).__name__}; of a JsonSchema or AvroSchema it is schema.schema_info().schema()"
        )
    if value_schema is not None and decode is False:
        raise InvalidConfiguration(
            "value_schema says how payloads are decoded, and decode is False; leave one of the two out"
        )
    return value_schema is not None if decode is None else decode


def _typed(
    path: str | os.PathLike[str],
    topic: str,
    columns: Sequence[str] | None,
    definition: str | None,
    mode: str,
) -> TypedColumns:
    require_pyarrow()
    from embeddedpulsar.arrow.engine import root_of, topic_partitions
    from embeddedpulsar.arrow.typed_columns import TypedColumns, common_definition, decoding_of

    root = root_of(path)
    # Without a schema of the caller's own, the partitions decide: each log may have been opened with another
    # newest schema, and one of them has to read what all of them have.
    if definition is None:
        logs = [log.full for log in topic_partitions(root, topic)]
        definition = common_definition(root, logs or [topic])
    return TypedColumns(*decoding_of(root, definition, columns, mode))


def _opened(
    ranges: list[EntryRange],
    names: tuple[str, ...],
    keys: CryptoKeyReader | None,
    discards: bool,
    strict: bool,
) -> Iterator[tuple[EntryRange, Source]]:
    from embeddedpulsar.arrow.mapped_segment import open_ahead, raise_gone, warn_of_gone

    on_gone = raise_gone if strict else warn_of_gone
    # A table of messages has no schema versions; with that column, the log of an offloaded ledger is fetched.
    from_tables = SCHEMA_VERSION not in names
    # The plan was made by the same call, so what retention removed before the first row counts as removed
    # before the plan.
    return open_ahead(ranges, keys, on_gone, discards=discards, is_fresh=True, from_tables=from_tables)


def _planned(
    path: str | os.PathLike[str],
    topic: str,
    columns: Sequence[str] | None,
    start: MessageId | None,
    end: MessageId | None,
    start_time: Time | None,
    end_time: Time | None,
    strict: bool,
    isolation: str,
) -> tuple[tuple[str, ...], list[EntryRange]]:
    require_pyarrow()
    names, uncommitted = check_columns(columns), reads_uncommitted(isolation)
    from embeddedpulsar.arrow.engine import Bounds, plan_logs, root_of, topic_partitions
    from embeddedpulsar.arrow.mapped_segment import raise_lost, warn_of_lost

    root = root_of(path)
    bounds = Bounds(start, end, milliseconds(start_time), milliseconds(end_time))
    logs = topic_partitions(root, topic)
    # A message id is a place in one log. `earliest` and `latest` are places in every log, so these are
    # allowed.
    if len(logs) > 1 and not (_is_open(start) and _is_open(end)):
        raise InvalidConfiguration(
            f"{topic} has {len(logs)} partitions, and a message id is a place in one; read one partition "
            f"({topic}-partition-0), or use start_time and end_time"
        )
    on_lost = raise_lost if strict else warn_of_lost
    # One log after the other: that is the order of the rows, and `open_ahead` relies on it.
    return names, plan_logs(root, logs, bounds, on_lost, uncommitted=uncommitted)


def _damage_handler(strict: bool) -> Callable[[CorruptionError, int, int], None]:
    from embeddedpulsar.arrow.mapped_segment import raise_damage, warn_of_damage

    return raise_damage if strict else warn_of_damage


def milliseconds(time: Time | None) -> int | None:
    """A point in time as ms since 1970.

    Raises:
        InvalidConfiguration: a datetime without a time zone, or another type.

    Example:
        >>> milliseconds(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
        1000
    """
    if time is None or (isinstance(time, int) and not isinstance(time, bool)):
        return time
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise InvalidConfiguration(
            f"{time!r} is no point in time; use ms since 1970, or a datetime with a time zone"
        )
    elapsed = time - datetime(1970, 1, 1, tzinfo=UTC)
    # A datetime without a time zone could mean local time or UTC, and the two differ by hours; bool is an int
    # in Python, and no time.
    # Rounded up: publish times are whole milliseconds, and "from 0.5 ms on" begins with the first.
    return (elapsed.days * 86_400 + elapsed.seconds) * 1000 - -elapsed.microseconds // 1000


def _is_open(side: MessageId | None) -> bool:
    return side is None or side in (MessageId.earliest, MessageId.latest)
