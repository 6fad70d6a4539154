"""Schemas of numbers, truth values, dates and times; the vectors are those of Pulsar's Java client 4.0."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest

from embeddedpulsar import schema
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema import Schema, SchemaInfo
from embeddedpulsar.schema.key_value import payload_decoder

VECTORS: list[tuple[Schema[Any], Any, str]] = [
    (schema.Int8Schema(), -128, "80"),
    (schema.Int8Schema(), 127, "7f"),
    (schema.Int16Schema(), -32768, "8000"),
    (schema.Int16Schema(), 258, "0102"),
    (schema.Int32Schema(), -2, "fffffffe"),
    (schema.Int32Schema(), 2**31 - 1, "7fffffff"),
    (schema.Int64Schema(), -2, "fffffffffffffffe"),
    (schema.Int64Schema(), 2**63 - 1, "7fffffffffffffff"),
    (schema.FloatSchema(), 1.5, "3fc00000"),
    (schema.FloatSchema(), math.inf, "7f800000"),
    (schema.DoubleSchema(), 1.5, "3ff8000000000000"),
    (schema.BooleanSchema(), True, "01"),
    (schema.BooleanSchema(), False, "00"),
    (schema.DateSchema(), datetime(2023, 11, 14, 22, 13, 20, 123000, UTC), "0000018bcfe5687b"),
    (schema.DateSchema(), datetime(1969, 12, 31, 23, 59, 59, 999000, UTC), "ffffffffffffffff"),
    (schema.TimeSchema(), time(12, 34, 56, 789000), "0000000002b32c95"),
    (schema.TimestampSchema(), datetime(2023, 11, 14, 22, 13, 20, 123000, UTC), "0000018bcfe5687b"),
    (schema.InstantSchema(), datetime(2023, 11, 14, 22, 13, 20, 123456, UTC), "000000006553f100075bca00"),
    (schema.InstantSchema(), datetime(1969, 12, 31, 23, 59, 59, 999000, UTC), "ffffffffffffffff3b8b87c0"),
    (schema.LocalDateSchema(), date(2023, 11, 14), "0000000000004cdb"),
    (schema.LocalDateSchema(), date(1, 1, 1), "fffffffffff506c6"),
    (schema.LocalDateSchema(), date(9999, 12, 31), "00000000002cc0a0"),
    (schema.LocalTimeSchema(), time(12, 34, 56, 789123), "000029327b066fb8"),
    (
        schema.LocalDateTimeSchema(),
        datetime(2023, 11, 14, 22, 13, 20, 123456),
        "0000000000004cdb000048c27af0ca00",
    ),
    (schema.LocalDateTimeSchema(), datetime(1, 1, 1), "fffffffffff506c60000000000000000"),
]


@pytest.mark.parametrize(("one", "value", "data"), VECTORS, ids=[f"{one}-{data}" for one, _, data in VECTORS])
def test_the_bytes_are_those_of_java(one: Schema[Any], value: Any, data: str):
    """Both ways, and without the class too."""
    assert one.encode(value).hex() == data
    decoded = one.decode(bytes.fromhex(data))
    assert (decoded, type(decoded)) == (value, type(value))
    assert payload_decoder(one.schema_info())(bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    ("one", "value", "error", "text"),
    [
        (schema.Int8Schema(), 128, ValueError, r"-128 to 127: use Int16Schema\(\)"),
        (schema.Int32Schema(), -(2**31) - 1, ValueError, r"use Int64Schema\(\)"),
        (schema.Int64Schema(), 2**63, ValueError, r"StringSchema\(\)"),
        (schema.Int32Schema(), True, TypeError, r"BooleanSchema\(\)"),
        (schema.Int32Schema(), 1.0, TypeError, r"DoubleSchema\(\)"),
        (schema.Int32Schema(), "1", TypeError, "expected type is <class 'int'>"),
        (schema.FloatSchema(), 1e39, ValueError, r"DoubleSchema\(\)"),
        (schema.DoubleSchema(), 10**400, ValueError, "another schema"),
        (schema.DoubleSchema(), False, TypeError, "float"),
        (schema.BooleanSchema(), 1, TypeError, r"send bool\(1\)"),
        (schema.DateSchema(), date(2026, 5, 4), TypeError, r"LocalDateSchema\(\)"),
        (schema.TimestampSchema(), datetime(2026, 5, 4), TypeError, "tzinfo=UTC"),
        (schema.InstantSchema(), datetime(2026, 5, 4), TypeError, "no time zone"),
        (schema.InstantSchema(), 1700000000, TypeError, "fromtimestamp"),
        (schema.TimeSchema(), datetime(2026, 5, 4, tzinfo=UTC), TypeError, r"value.time\(\)"),
        (schema.LocalTimeSchema(), time(1, tzinfo=UTC), TypeError, "tzinfo=None"),
        (schema.LocalDateSchema(), datetime(2026, 5, 4, tzinfo=UTC), TypeError, r"value.date\(\)"),
        (schema.LocalDateTimeSchema(), datetime(2026, 5, 4, tzinfo=UTC), TypeError, r"InstantSchema\(\)"),
        (schema.LocalDateTimeSchema(), date(2026, 5, 4), TypeError, "datetime"),
    ],
)
def test_what_is_refused(one: Schema[Any], value: Any, error: type[Exception], text: str):
    """A value of another type or range; the text names what to do."""
    with pytest.raises(error, match=text):
        one.encode(value)


@pytest.mark.parametrize("one", {type(one): one for one, _, _ in VECTORS}.values(), ids=str)
def test_another_size_is_refused(one: Schema[Any]):
    """As the payload of a null value, which is empty."""
    for data in (b"", bytes(17)):
        with pytest.raises(ValueError, match="bytes, and these are"):
            one.decode(data)


@pytest.mark.parametrize(
    ("one", "data"),
    [
        (schema.InstantSchema(), "7fffffffffffffff00000000"),
        (schema.InstantSchema(), "000001ffffffffff00000000"),
        (schema.TimestampSchema(), "7fffffffffffffff"),
        (schema.DateSchema(), "8000000000000000"),
        (schema.LocalDateSchema(), "00000000002cc0a1"),
        (schema.LocalDateSchema(), "8000000000000000"),
        (schema.LocalTimeSchema(), "00004e94914f0000"),
        (schema.LocalDateTimeSchema(), "00000000002cc0a10000000000000000"),
        (schema.LocalDateTimeSchema(), "0000000000000000ffffffffffffffff"),
    ],
    ids=str,
)
def test_times_that_python_lacks(one: Schema[Any], data: str):
    """Java's reach further than the year 9999: the error says how to get the bytes."""
    with pytest.raises(ValueError, match=r"Message.data\(\) has"):
        one.decode(bytes.fromhex(data))


def test_rounding():
    """What is finer than the type is cut off, as in Java; other time zones are read in UTC."""
    there = timezone(timedelta(hours=2))
    given = datetime(2026, 5, 4, 12, 30, 0, 1999, there)
    assert schema.DateSchema().decode(schema.DateSchema().encode(given)) == given.replace(microsecond=1000)
    assert schema.InstantSchema().decode(schema.InstantSchema().encode(given)) == given
    assert schema.InstantSchema().decode(bytes(8) + b"\x00\x00\x07\xff").microsecond == 2
    assert schema.TimeSchema().decode(schema.TimeSchema().encode(time(0, 0, 0, 1999))) == time(0, 0, 0, 1000)
    assert schema.TimeSchema().decode((-5_400_000).to_bytes(8, "big", signed=True)) == time(22, 30)
    assert schema.FloatSchema().decode(schema.FloatSchema().encode(3)) == 3.0


def test_descriptions():
    """Each is named like its type, and has no definition."""
    info = schema.LocalDateTimeSchema().schema_info()
    assert (info.schema_type(), info.name(), info.schema()) == (
        SchemaType.LOCAL_DATE_TIME,
        "LOCAL_DATE_TIME",
        "null",
    )
    assert payload_decoder(SchemaInfo(SchemaType.BYTES, "BYTES", ""))(b"a") == b"a"
