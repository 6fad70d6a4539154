"""Round trips of numbers, times and pairs of them, in the payload, in a message, and without a class."""

from __future__ import annotations

import struct
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from embeddedpulsar import schema as schemas
from embeddedpulsar._engine.store.schema_info import KeyValueInfo
from embeddedpulsar.schema import KeyValue, KeyValueSchema, Schema
from embeddedpulsar.schema import KeyValueEncodingType as Encoding
from embeddedpulsar.schema.key_value import key_value_decoder, payload_decoder

ZONES = st.sampled_from([timezone(timedelta(minutes=minutes)) for minutes in (0, 345, -720, 840)])
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=ZONES)


def to_ms(value: Any) -> Any:
    """What a type of milliseconds keeps."""
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def integers(bits: int) -> st.SearchStrategy[int]:
    """All of so many bits."""
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


VALUES: dict[Schema[Any], st.SearchStrategy[Any]] = {
    schemas.BytesSchema(): st.binary(max_size=9),
    schemas.StringSchema(): st.text(max_size=9),
    schemas.Int8Schema(): integers(8),
    schemas.Int16Schema(): integers(16),
    schemas.Int32Schema(): integers(32),
    schemas.Int64Schema(): integers(64),
    schemas.FloatSchema(): st.floats(width=32, allow_nan=False),
    schemas.DoubleSchema(): st.floats(allow_nan=False),
    schemas.BooleanSchema(): st.booleans(),
    schemas.InstantSchema(): MOMENTS,
    schemas.DateSchema(): MOMENTS.map(to_ms),
    schemas.TimestampSchema(): MOMENTS.map(to_ms),
    schemas.LocalDateSchema(): st.dates(),
    schemas.LocalTimeSchema(): st.times(),
    schemas.TimeSchema(): st.times().map(to_ms),
    schemas.LocalDateTimeSchema(): st.datetimes(),
}


@st.composite
def typed_values(draw: Any) -> tuple[Schema[Any], Any]:
    """A schema and one of its values."""
    schema = draw(st.sampled_from(list(VALUES)))
    return schema, draw(VALUES[schema])


@settings(max_examples=150, deadline=None)
@given(typed_values())
def test_a_value_comes_back(one: tuple[Schema[Any], Any]):
    """By its schema, and by the definition alone; equal points in time are equal in any time zone."""
    schema, value = one
    data = schema.encode(value)
    assert schema.decode(data) == value
    assert payload_decoder(schema.schema_info())(data) == value


@settings(max_examples=100, deadline=None)
@given(typed_values(), typed_values(), st.booleans(), st.booleans(), st.sampled_from(list(Encoding)))
def test_a_pair_comes_back(key: Any, value: Any, has_key: bool, has_value: bool, encoding: Encoding):
    """From the payload, or from the payload and the key of the message; parts may be None."""
    schema: Any = KeyValueSchema(key[0], value[0], encoding)
    pair = KeyValue(key[1] if has_key else None, value[1] if has_value else None)
    assert KeyValueInfo.of(schema.schema_info()).info() == schema.schema_info()
    if encoding == Encoding.INLINE:
        data, partition_key = schema.encode(pair), ""
    elif has_key and not key[0].encode(key[1]):
        return  # refused: a message has no empty key
    else:
        data, partition_key = schema.encode_keyed(pair, None)
    assert schema.decode_keyed(data, partition_key or "", schema.schema_info()) == pair
    assert key_value_decoder(schema.schema_info())(data, partition_key or "") == pair


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=24))
def test_any_bytes_are_a_pair_or_a_value_error(data: bytes):
    """As a model with struct says."""
    schema = KeyValueSchema(schemas.BytesSchema(), schemas.BytesSchema())
    try:
        found = schema.decode(data)
    except ValueError:
        return
    parts = [b"\xff" * 4 if one is None else struct.pack(">i", len(one)) + one for one in found]
    assert b"".join(parts) == data
