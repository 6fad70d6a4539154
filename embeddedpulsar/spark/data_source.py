"""The format ``embeddedpulsar`` of Spark's Python Data Source API, and Spark's types of its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.schema import require_pyarrow
from embeddedpulsar.exceptions import InvalidConfiguration

try:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import (
        BinaryType,
        DataType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )
except ImportError as error:
    raise ImportError(
        'reading topics in Spark needs PySpark 4.2 or later: pip install "embeddedpulsar[spark]"'
    ) from error

from embeddedpulsar.spark.batch_reader import BatchReader, PushdownBatchReader
from embeddedpulsar.spark.options import parse_columns, parse_options
from embeddedpulsar.spark.sink_options import SinkOptions, parse_sink_options, written_columns
from embeddedpulsar.spark.stream_options import parse_stream_options
from embeddedpulsar.spark.stream_reader import StreamReader

if TYPE_CHECKING:
    from embeddedpulsar.spark.sink_writer import BatchWriter, StreamWriter


class DefaultSource(DataSource):
    """The format as Spark finds it by itself: everything but filter pushdown.

    What Spark does not offer to Python sources is not here either: it does not tell which columns a query
    uses. Give option ``columns``, or a schema, to read fewer.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return "embeddedpulsar"

    def schema(self) -> StructType:
        """All columns, or those of option ``columns``."""
        return struct_type(parse_columns(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        """A reader of the columns of `schema`, which may be one the user gave."""
        require_pyarrow()
        return BatchReader(parse_options(self.options), requested_columns(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """A reader of the columns of `schema`, for `spark.readStream`."""
        require_pyarrow()
        return StreamReader(parse_stream_options(self.options), requested_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A writer of rows of `schema`, for `df.write`.

        Raises:
            InvalidConfiguration: an option or a column that is not known, or a mode other than append.
        """
        from embeddedpulsar.spark.sink_writer import BatchWriter

        return BatchWriter(*self._written(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """A writer of rows of `schema`, for `df.writeStream`; errors as of `writer`."""
        from embeddedpulsar.spark.sink_writer import StreamWriter

        return StreamWriter(*self._written(schema, overwrite))

    def _written(self, schema: StructType, overwrite: bool) -> tuple[SinkOptions, tuple[str, ...]]:
        require_pyarrow()
        if overwrite:
            raise InvalidConfiguration(
                'a topic is a log, and nothing of it is overwritten: write with mode("append"), or '
                'outputMode("append") or "update"; delete the topic to begin anew'
            )
        options = parse_sink_options(self.options)
        found = {field.name: field.dataType.simpleString() for field in schema.fields}
        return options, written_columns(found, options)


class PushdownDataSource(DefaultSource):
    """The format as `embeddedpulsar.spark.register` sets it up: with filter pushdown."""

    def reader(self, schema: StructType) -> BatchReader:
        """As `DefaultSource.reader`, with filters deciding what is read."""
        require_pyarrow()
        return PushdownBatchReader(parse_options(self.options), requested_columns(schema))


_TYPES: dict[str, DataType] = {
    names.VALUE: BinaryType(),
    names.KEY: BinaryType(),
    names.TOPIC: StringType(),
    names.MESSAGE_ID: BinaryType(),
    names.PUBLISH_TIME: TimestampType(),
    names.EVENT_TIME: TimestampType(),
    names.PROPERTIES: MapType(StringType(), StringType()),
    names.PARTITION: IntegerType(),
    names.ORDERING_KEY: BinaryType(),
    names.SEQUENCE_ID: LongType(),
    names.PRODUCER_NAME: StringType(),
    names.LEDGER_ID: LongType(),
    names.ENTRY_ID: LongType(),
    names.BATCH_INDEX: IntegerType(),
}


def struct_type(columns: tuple[str, ...] | None) -> StructType:
    """The schema of these columns, or of all; every field is nullable, as Spark wants it of batches."""
    return StructType([StructField(name, _TYPES[name], True) for name in names.check_columns(columns)])


def requested_columns(schema: StructType) -> tuple[str, ...]:
    """The columns a schema asks for, in its order.

    Raises:
        InvalidConfiguration: a column that does not exist, or has another type.
    """
    columns = names.check_columns(schema.names)
    for field in schema.fields:
        kind = _TYPES[field.name]
        if not field.nullable:
            raise InvalidConfiguration(f"column {field.name} is nullable, as all are; leave NOT NULL out")
        if field.dataType != kind:
            given, wanted = field.dataType.simpleString(), kind.simpleString()
            if given == wanted:  # a map whose values are not nullable, say
                given, wanted = field.dataType.json(), kind.json()
            raise InvalidConfiguration(
                f"column {field.name} is {wanted}, not {given}; read it as it is and cast it in the query"
            )
    return columns
