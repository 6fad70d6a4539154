"""The format ``embeddedpulsar`` of Spark's Python Data Source API."""

from __future__ import annotations

from typing import NoReturn

from embeddedpulsar.arrow.schema import require_pyarrow

try:
    from pyspark.sql.datasource import DataSource
except ImportError as error:
    raise ImportError(
        'reading topics in Spark needs PySpark 4.2 or later: pip install "embeddedpulsar[spark]"'
    ) from error

from pyspark.sql.types import StructType

from embeddedpulsar.spark.batch_reader import BatchReader, PushdownBatchReader
from embeddedpulsar.spark.options import parse_options
from embeddedpulsar.spark.row_schema import requested_columns, struct_type


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
        return struct_type(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> BatchReader:
        """A reader of the columns of `schema`, which may be one the user gave."""
        require_pyarrow()
        return BatchReader(parse_options(self.options), requested_columns(schema))

    def streamReader(self, schema: StructType) -> NoReturn:
        """Streaming reads are not available.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "format embeddedpulsar has no streaming reads (spark.readStream); read in batches with "
            "spark.read, from startingOffsets on, or consume the topic with embeddedpulsar.Consumer"
        )

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Writing is not available.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "format embeddedpulsar does not write (df.write); publish with embeddedpulsar.Producer"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Streaming writes are not available.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "format embeddedpulsar does not write streams (df.writeStream); publish with "
            "embeddedpulsar.Producer"
        )


class PushdownDataSource(DefaultSource):
    """The format as `embeddedpulsar.spark.register` sets it up: with filter pushdown."""

    def reader(self, schema: StructType) -> BatchReader:
        """As `DefaultSource.reader`, with filters deciding what is read."""
        require_pyarrow()
        return PushdownBatchReader(parse_options(self.options), requested_columns(schema))
