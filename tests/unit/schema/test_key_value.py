"""Schemas of keys and values; the vectors are those of Pulsar's Java client 4.0."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from embeddedpulsar._engine.store.schema_info import KeyValueInfo
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema import (
    AutoConsumeSchema,
    AutoProduceBytesSchema,
    BytesSchema,
    DateSchema,
    Int32Schema,
    Int64Schema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    Record,
    Schema,
    SchemaInfo,
    String,
    StringSchema,
)
from embeddedpulsar.schema import KeyValueEncodingType as Encoding
from embeddedpulsar.schema.key_value import payload_decoder

PAIRS = KeyValueSchema(StringSchema(), Int32Schema())


class Order(Record):
    """A record that Java writes as ours does."""

    _avro_namespace = "V"
    item = String()
    table = Integer(required=True)


@pytest.mark.parametrize(
    ("pair", "data"),
    [
        (KeyValue("k", 7), "000000016b0000000400000007"),
        (KeyValue(None, 7), "ffffffff0000000400000007"),
        (KeyValue("k", None), "000000016bffffffff"),
        (KeyValue(None, None), "ffffffffffffffff"),
        (KeyValue("", 7), "000000000000000400000007"),
    ],
)
def test_the_payload_is_that_of_java(pair: Any, data: str):
    """Both ways, and without the class too."""
    assert PAIRS.encode(pair).hex() == data
    assert PAIRS.decode(bytes.fromhex(data)) == pair
    assert payload_decoder(PAIRS.schema_info())(bytes.fromhex(data)) == pair


@pytest.mark.parametrize(
    ("schema", "data", "properties"),
    [
        (PAIRS, "0000000000000000", {"key": "STRING", "value": "INT32", "kv": "INLINE"}),
        (
            KeyValueSchema(Int64Schema(), DateSchema(), Encoding.SEPARATED),
            "0000000000000000",
            {"key": "INT64", "value": "DATE", "kv": "SEPARATED"},
        ),
        (
            KeyValueSchema(StringSchema(), KeyValueSchema(StringSchema(), Int32Schema())),
            "00000000000000080000000000000000",
            {"key": "STRING", "value": "KEY_VALUE", "kv": "INLINE"},
        ),
    ],
    ids=str,
)
def test_the_definition_is_that_of_java(schema: Schema[Any], data: str, properties: dict[str, str]):
    """Each definition behind its length; types, names and properties of the parts are properties."""
    info = schema.schema_info()
    assert (info.schema_type(), info.data().hex()) == (SchemaType.KEY_VALUE, data)
    found = info.properties()
    assert found.pop("kv.encoding.type") == properties["kv"]
    for part in ("key", "value"):
        assert found.pop(f"{part}.schema.type") == found.pop(f"{part}.schema.name") == properties[part]
        inner = json.loads(found.pop(f"{part}.schema.properties"))
        assert bool(inner) == (properties[part] == "KEY_VALUE")
    assert not found
    assert KeyValueInfo.of(info).info() == info


def test_the_definition_of_a_record_in_a_pair():
    """As pulsar-admin shows it, and in Pulsar's bytes."""
    info = KeyValueSchema(StringSchema(), JsonSchema(Order), Encoding.SEPARATED).schema_info()
    definition = json.dumps(json.loads(JsonSchema(Order).schema_info().schema()), separators=(",", ":"))
    assert info.schema() == f'{{"key":"","value":{definition}}}'
    assert info.data() == bytes(4) + len(definition).to_bytes(4, "big") + definition.encode()
    assert KeyValueInfo.of(info).value == JsonSchema(Order).schema_info()
    assert (info == info, info == PAIRS.schema_info(), info == 7) == (True, False, False)


def test_what_properties_lack():
    """Is as in Pulsar: bytes, stored together."""
    info = SchemaInfo(SchemaType.KEY_VALUE, "", '{"key": "", "value": ""}')
    assert KeyValueInfo.of(info) == KeyValueInfo.of(
        KeyValueSchema(BytesSchema(), BytesSchema()).schema_info()
    )


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: KeyValueSchema(str, StringSchema()), TypeError, r"StringSchema\(\) is one"),
        (lambda: KeyValueSchema(StringSchema(), StringSchema(), "INLINE"), TypeError, "KeyValueEncodingType"),
        (lambda: KeyValueSchema(StringSchema(), AutoConsumeSchema()), ValueError, "AUTO_CONSUME"),
        (lambda: KeyValueSchema(AutoProduceBytesSchema(), StringSchema()), ValueError, "AUTO_PUBLISH"),
        (
            lambda: KeyValueSchema(
                StringSchema(), KeyValueSchema(StringSchema(), StringSchema(), Encoding.SEPARATED)
            ),
            ValueError,
            "keys INLINE",
        ),
    ],
)
def test_what_parts_may_not_be(call: Any, error: type[Exception], text: str):
    """Refused when the schema is made."""
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize(
    "data", ["", "00000001", "000000016b00000008", "fffffffe00000000", "000000007fffffff"]
)
def test_a_payload_that_is_cut_off(data: str):
    """Or that is longer than its parts."""
    with pytest.raises(ValueError, match="not a key and a value"):
        PAIRS.decode(bytes.fromhex(data))
    with pytest.raises(ValueError, match="1 bytes are left"):
        PAIRS.decode(PAIRS.encode(KeyValue("k", 7)) + b"!")


def test_a_pair_is_a_tuple():
    """It is unpacked, compared, hashed and pickled like one."""
    pair = KeyValue("k", 7)
    key, value = pair
    assert (key, value, pair.key, pair.value) == ("k", 7, "k", 7)
    assert pickle.loads(pickle.dumps(pair)) == pair and {pair: 1}[KeyValue("k", 7)] == 1
    assert repr(copy.copy(pair)) == "KeyValue(key='k', value=7)"


def test_a_key_that_is_apart():
    """Needs the message: a payload alone is the value."""
    schema = KeyValueSchema(StringSchema(), Int32Schema(), Encoding.SEPARATED)
    assert schema.encode(KeyValue("k", 7)) == bytes.fromhex("00000007")
    assert schema.encode(KeyValue("k", None)) == b""
    assert payload_decoder(schema.schema_info())(bytes.fromhex("00000007")) == 7
    for call in (schema.decode, lambda data: schema.decode_written(data, None)):
        with pytest.raises(ValueError, match=r"Message.value\(\)"):
            call(bytes.fromhex("00000007"))
    assert schema.decode_written(PAIRS.encode(KeyValue("k", 7)), PAIRS.schema_info()) == KeyValue("k", 7)
    for key in ("k", "aw=", "é"):
        with pytest.raises(ValueError, match="not Base64"):
            schema.decode_keyed(bytes.fromhex("00000007"), key, None)
    assert schema.decode_keyed(None, "", StringSchema().schema_info()) == KeyValue(None, None)
    assert str(schema) == "KeyValueSchema(StringSchema, Int32Schema, SEPARATED)"
    assert schema.encoding() == Encoding.SEPARATED
