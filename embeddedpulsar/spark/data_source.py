"""The format ``embeddedpulsar`` of Spark's Python Data Source API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.arrow.schema import FAILFAST, check_mode, require_pyarrow
from embeddedpulsar.exceptions import InvalidConfiguration

try:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType
except ImportError as error:
    raise ImportError(
        'reading topics in Spark needs PySpark 4.2 or later: pip install "embeddedpulsar[spark]"'
    ) from error

from embeddedpulsar.spark.batch_reader import BatchReader, PushdownBatchReader
from embeddedpulsar.spark.options import (
    SinkOptions,
    known_options,
    parse_columns,
    parse_options,
    parse_sink_options,
    parse_stream_options,
    requested_columns,
    struct_type,
    switch,
    written_columns,
)
from embeddedpulsar.spark.stream_reader import StreamReader

if TYPE_CHECKING:
    from embeddedpulsar.arrow.typed_columns import Decoding
    from embeddedpulsar.spark.batch_reader import TypedSource
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

    # Spark makes the source once for a query and asks it for the schema and then for a reader. Topics may get
    # a new schema between the two.
    _typed: TypedSource | None = None  # made by `schema`, so that what it found holds for the reader, too

    def schema(self) -> StructType | str:
        """All columns, or those of option ``columns``; fields of payloads with option ``decode``."""
        if not self._is_typed():
            return struct_type(parse_columns(self.options))
        return self._typed_source().schema()

    def reader(self, schema: StructType) -> BatchReader:
        """A reader of the columns of `schema`, which may be one the user gave."""
        # The planner of a source has no JVM and no file of the store open: this says what there could be, and
        # checks options, nothing else.
        require_pyarrow()
        return BatchReader(parse_options(self.options), *self._requested(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """A reader of the columns of `schema`, for `spark.readStream`."""
        require_pyarrow()
        return StreamReader(parse_stream_options(self.options), *self._requested(schema))

    def _requested(self, schema: StructType) -> tuple[tuple[str, ...], Decoding | None]:
        if not self._is_typed():
            return requested_columns(schema), None
        return tuple(schema.names), self._typed_source().decoding(schema)

    def _typed_source(self) -> TypedSource:
        require_pyarrow()
        from embeddedpulsar.spark.batch_reader import TypedSource

        if self._typed is None:
            self._typed = TypedSource(self.options)
        return self._typed

    def _is_typed(self) -> bool:
        """Whether the options ask for columns made of payloads."""
        options = known_options(self.options)
        # A schema of the user's own means decoding, as in `embeddedpulsar.arrow.read_topic`.
        decodes = switch("decode", options.get("decode", "true" if "valueschema" in options else "false"))
        check_mode(options.get("mode", FAILFAST))
        if "valueschema" in options and not decodes:
            raise InvalidConfiguration("option valueSchema is about decoded payloads; set decode to true")
        return decodes

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
        # Spark asks for `overwrite` also where a stream has the output mode "complete".
        if overwrite:
            raise InvalidConfiguration(
                'a topic is a log, and nothing of it is overwritten: write with mode("append"), or '
                'outputMode("append") or "update"; delete the topic to begin anew'
            )
        from embeddedpulsar.spark.sink_commit import with_growth

        options = with_growth(parse_sink_options(self.options))
        types_by_name = {field.name: field.dataType.simpleString() for field in schema.fields}
        return options, written_columns(types_by_name, options)


class PushdownDataSource(DefaultSource):
    """The format as `embeddedpulsar.spark.register` sets it up: with filter pushdown."""

    def reader(self, schema: StructType) -> BatchReader:
        """As `DefaultSource.reader`, with filters deciding what is read."""
        require_pyarrow()
        return PushdownBatchReader(parse_options(self.options), *self._requested(schema))
