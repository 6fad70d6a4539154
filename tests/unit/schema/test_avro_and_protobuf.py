"""Unit tests of AvroSchema and ProtobufNativeSchema, beside those of pulsar.schema."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pulsar.schema as theirs
import pytest

import embeddedpulsar.schema as ours
from tests.unit.schema.test_records import ONLY_REQUIRED, VALUES, shop

CUSTOM = {
    "type": "record",
    "name": "Custom",
    "namespace": "shop",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"], "default": None}],
}


def storable(m: Any) -> Any:
    """The records without what pulsar-client describes in a way that Avro refuses."""
    outer = shop(m)
    left_out = ("colors", "given_inner")
    members = {name: field for name, field in outer._fields.items() if name not in left_out}
    return type("Outer", (m.Record,), members)


@pytest.mark.parametrize("values", [VALUES, ONLY_REQUIRED], ids=["all", "required"])
def test_avro_is_the_same(values: dict[str, Any]):
    """Definition and bytes are the same, and each decodes what the other encodes."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    kind, other = storable(ours), storable(theirs)
    mine, their_schema = ours.AvroSchema(kind), theirs.AvroSchema(other)
    assert mine.schema_info().schema() == their_schema.schema_info().schema()
    assert int(mine.schema_info().schema_type()) == int(their_schema.schema_info().schema_type())
    data = mine.encode(kind(**values))
    assert data == their_schema.encode(other(**values))
    assert mine.decode(data) == kind(**values)
    assert their_schema.encode(their_schema.decode(data)) == data


def test_avro_of_a_definition():
    """Values are dicts; the caller's definition stays as it is."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    before = repr(CUSTOM)
    mine, other = ours.AvroSchema(None, schema_definition=CUSTOM), theirs.AvroSchema(None, CUSTOM)
    assert mine.schema_info().schema() == other.schema_info().schema()
    data = mine.encode({"a": 1})
    assert data == other.encode({"a": 1}) and mine.decode(data) == {"a": 1, "b": None}
    assert repr(CUSTOM) == before
    for schema in (mine, other):
        with pytest.raises(ValueError):
            schema.encode([1])
    for m in (ours, theirs):
        with pytest.raises(AssertionError):
            m.AvroSchema(None)
    with pytest.raises(ValueError, match="give one of the two"):
        ours.AvroSchema(storable(ours), CUSTOM)
    with pytest.raises(ValueError, match="not a valid Avro definition"):
        ours.AvroSchema(None, {"type": "record", "name": "X", "fields": [{"name": "a", "type": "enum"}]})


def test_protobuf_is_the_same():
    """Definition, with the files it imports, and bytes."""
    pytest.importorskip("google.protobuf", reason="the extra is not installed")
    from google.protobuf.api_pb2 import Api

    mine, other = ours.ProtobufNativeSchema(Api), theirs.ProtobufNativeSchema(Api)
    info, expected = mine.schema_info(), other.schema_info()
    assert (info.name(), info.schema()) == (expected.name(), expected.schema())
    assert int(info.schema_type()) == int(expected.schema_type()) and str(mine) == str(other)
    value = Api(name="shop", methods=[{"name": "order"}])
    assert mine.encode(value) == other.encode(value)
    assert mine.decode(mine.encode(value)) == value
    for m in (ours, theirs):
        with pytest.raises(TypeError):
            m.ProtobufNativeSchema(dict)
        with pytest.raises(TypeError):
            m.ProtobufNativeSchema(Api).encode({})


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [
        ("schema_avro", "AvroSchema", "fastavro"),
        ("schema_protobuf", "ProtobufNativeSchema", "google.protobuf.message"),
    ],
)
def test_without_the_package(monkeypatch: pytest.MonkeyPatch, module: str, name: str, package: str):
    """The error has the command that installs it."""
    full = f"embeddedpulsar.schema.{module}"
    importlib.import_module(full)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        patch.delitem(sys.modules, full)
        bare = importlib.import_module(full)
        with pytest.raises(ImportError, match=r'pip install "embeddedpulsar\['):
            getattr(bare, name)(object)
    ours.__dict__.pop(name, None)
    ours.__dict__.pop(module, None)
