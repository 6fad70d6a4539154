"""Schemas of numbers and times, and of keys and values, on topics: registered, compared, and decoded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar.schema as schemas
from embeddedpulsar import Admin, Client, IncompatibleSchema, MessageId
from embeddedpulsar.schema import AutoConsumeSchema, AutoProduceBytesSchema


@pytest.fixture
def admin(store_url: Path | str, client: Client) -> Iterator[Admin]:
    """Beside a client."""
    with Admin(store_url) as made:
        yield made


def test_numbers_and_times_on_topics(client: Client, admin: Admin):
    """Each type is registered, is compatible with itself alone, and is decoded without a class as well."""
    when = datetime(2026, 5, 4, 12, 30, 0, 7000, UTC)
    local = when.replace(tzinfo=None)
    integers = dict.fromkeys((schemas.Int8Schema, schemas.Int16Schema, schemas.Int32Schema), -7)
    moments = dict.fromkeys((schemas.DateSchema, schemas.TimestampSchema, schemas.InstantSchema), when)
    values: dict[Any, Any] = (
        integers
        | moments
        | {
            schemas.Int64Schema: 2**40,
            schemas.FloatSchema: 1.5,
            schemas.DoubleSchema: 0.1,
            schemas.BooleanSchema: True,
            schemas.TimeSchema: local.time(),
            schemas.LocalTimeSchema: local.time(),
            schemas.LocalDateSchema: local.date(),
            schemas.LocalDateTimeSchema: local,
        }
    )
    for kind, value in values.items():
        name = f"of-{kind.__name__}"
        with client.create_producer(name, schema=kind()) as producer:
            producer.send(value)
            producer.send(None)
        with client.create_reader(name, MessageId.earliest, schema=kind()) as reader:
            assert reader.read_next().value() == value
            none = reader.read_next()
            assert none.has_null_value()
            with pytest.raises(ValueError, match="has_null_value"):
                none.value()
        with client.create_reader(name, MessageId.earliest, schema=AutoConsumeSchema()) as reader:
            record = reader.read_next().value()
            assert (record.get_native_object(), record.get_fields()) == (value, [])
        producer = client.create_producer(name, schema=AutoProduceBytesSchema())
        producer.send(kind().encode(value))
        with pytest.raises(ValueError, match="does not fit"):
            producer.send(bytes(20))
        stored = admin.schemas().get_schema_info(name)
        assert stored is not None
        assert (stored.type, stored.data, stored.properties) == (
            kind().schema_info().schema_type(),
            "null",
            {},
        )
        for other in values.keys() - {kind}:
            with pytest.raises(IncompatibleSchema):
                client.create_producer(name, schema=other())
