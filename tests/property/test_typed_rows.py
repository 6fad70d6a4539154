"""Payloads that are decoded together give what each of them gives alone, whatever its neighbours are."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar.arrow.value_decoder import (  # noqa: E402
    AvroDecoder,
    JsonDecoder,
    ValueDecoder,
    decode_valid,
)
from embeddedpulsar.arrow.value_types import record_of, value_type  # noqa: E402

DEFINITION = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": ["null", "string"], "default": None},
            {"name": "b", "type": {"type": "array", "items": "int"}},
        ],
    }
)
TYPES = {field.name: value_type(field) for field in record_of(DEFINITION).fields}
FINALS = [kind.final for kind in TYPES.values()]

records = st.fixed_dictionaries(
    {"a": st.none() | st.text(max_size=4), "b": st.lists(st.integers(-3, 1 << 20), max_size=3)}
)


def avro(record: Any) -> bytes:
    """A record in Avro's binary form."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(DEFINITION)), record)
    return out.getvalue()


def cut(payloads: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Lists of payloads, some of them cut in two, some two in one, and some of no format."""
    whole = payloads.map(lambda one: [one])
    halves = st.builds(lambda one, at: [one[:at], one[at:]], payloads, st.integers(0, 12))
    doubles = st.builds(lambda one, other: [one + other], payloads, payloads)
    odd = st.text('{}[]",:ab1n \n', max_size=8).map(lambda text: [text.encode()]) | st.binary(max_size=6).map(
        lambda data: [data]
    )
    return st.lists(st.one_of(whole, whole, halves, doubles, odd), max_size=8).map(
        lambda found: list(itertools.chain(*found))
    )


def alone(decoder: ValueDecoder, payloads: list[bytes]) -> list[Any]:
    """The records of payloads that are decoded one by one; None for malformed ones."""
    found = []
    for payload in payloads:
        settled = decode_valid(decoder, pa.array([payload], pa.binary()), FINALS)
        found.append(None if settled.malformed else tuple(column[0].as_py() for column in settled.columns))
    return found


def check(decoder: ValueDecoder, payloads: list[bytes]) -> list[Any]:
    """Compare payloads decoded together with payloads decoded alone."""
    settled = decode_valid(decoder, pa.array(payloads, pa.binary()), FINALS)
    malformed = {number for number, _ in settled.malformed}
    rows = iter(list(zip(*(column.to_pylist() for column in settled.columns), strict=True)))
    together = [None if number in malformed else next(rows) for number in range(len(payloads))]
    expected = alone(decoder, payloads)
    assert together == expected
    assert next(rows, None) is None
    return expected


@given(cut(records.map(lambda record: json.dumps(record, indent=1).encode())))
def test_json(payloads: list[bytes]):
    """JSON, which is read as one text."""
    check(JsonDecoder(TYPES, {}), payloads)


@given(cut(records.map(avro)))
def test_avro(payloads: list[bytes]):
    """Avro, which is read as one array."""
    check(AvroDecoder(DEFINITION, None, TYPES), payloads)


@given(st.lists(records, max_size=20))
def test_both_formats_give_the_records(found: list[Any]):
    """What was written is what is read, in both formats."""
    wanted = [(record["a"], record["b"]) for record in found]
    assert check(JsonDecoder(TYPES, {}), [json.dumps(record).encode() for record in found]) == wanted
    assert check(AvroDecoder(DEFINITION, DEFINITION, TYPES), [avro(record) for record in found]) == wanted
