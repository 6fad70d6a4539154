"""Spark's types of the columns of messages."""

from __future__ import annotations

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

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.exceptions import InvalidConfiguration

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
    names.SCHEMA_VERSION: IntegerType(),
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
