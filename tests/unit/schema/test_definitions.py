"""Unit tests of definitions: malformed, deeply nested and wide ones, and what comparing them costs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from embeddedpulsar import PulsarException
from embeddedpulsar._engine.format.avro_definition import MAX_LEVELS, is_alike, parsed, why_unreadable
from embeddedpulsar._engine.store.schema_compatibility import is_same, place_of, why_invalid, why_refused
from embeddedpulsar._engine.store.schema_info import SchemaInfo
from embeddedpulsar.enums import SchemaCompatibilityStrategy as Strategy
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import IncompatibleSchema, InvalidConfiguration
from embeddedpulsar.schema import AvroSchema, JsonSchema, KeyValueSchema, Schema, StringSchema
from embeddedpulsar.schema.definition import Array, Integer, Record
from embeddedpulsar.schema.key_value import payload_decoder
from tests.strikes import count_instructions


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    """The definition of a record."""
    return {"type": "record", "name": name, "fields": list(fields)}


def field(kind: Any, name: str = "x", **others: Any) -> dict[str, Any]:
    """The definition of a field."""
    return {"name": name, "type": kind, **others}


MALFORMED: dict[str, tuple[Any, str]] = {
    "number": (5, "5 is no type of Avro"),
    "nothing": (None, "None is no type of Avro"),
    "empty": ({}, "{} is no type of Avro"),
    "unknown name": (record(field("Node")), "'Node' is not defined"),
    "later name": (record(field("B"), field(record(name="B"), "y")), "'B' is not defined"),
    "no name": ({"type": "record", "fields": []}, "a record without a name"),
    "name is a number": ({"type": "enum", "name": 5, "symbols": []}, "a enum without a name"),
    "fields is a number": ({"type": "record", "name": "R", "fields": 5}, "the fields of 'R' are no list: 5"),
    "field is a number": (record(5), "5 is no field of a record"),  # type: ignore[arg-type]
    "field without a type": (record({"name": "x"}), "is no field of a record"),
    "field without a name": (record({"type": "int"}), "is no field of a record"),
    "aliases are numbers": (record(field("int", aliases=[5])), "the aliases of 'x' are no texts"),
    "symbols are a text": (
        {"type": "enum", "name": "E", "symbols": "ab"},
        "the symbols of 'E' are no list: 'ab'",
    ),
    "size is a text": ({"type": "fixed", "name": "F", "size": "4"}, "the size '4' of F is no number"),
    "namespace is a number": (record() | {"namespace": 5}, "the namespace 5 of R is no text"),
    "array without items": ({"type": "array"}, "None is no type of Avro"),
    "map of numbers": ({"type": "map", "values": 5}, "5 is no type of Avro"),
    "union of numbers": (["null", 5], "5 is no type of Avro"),
    "type of a list": ({"type": [5]}, "5 is no type of Avro"),
}


# What fastavro takes, and the registry does not.
LENIENT = ("nothing", "aliases are numbers", "symbols are a text", "size is a text", "namespace is a number")


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_definition_is_refused_with_a_sentence(name: str):
    """By the registry and by `AvroSchema`: what is wrong, and where."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    definition, reason = MALFORMED[name]
    info = SchemaInfo(SchemaType.AVRO, "AVRO", json.dumps(definition))
    assert reason in why_invalid(info)
    if name in LENIENT:
        return
    with pytest.raises(InvalidConfiguration, match="not a valid Avro definition: ") as caught:
        AvroSchema(None, definition)
    assert isinstance(caught.value, ValueError)


def nested(levels: int, wrap: Callable[[int, Any], Any]) -> Any:
    """A type in so many others."""
    kind: Any = "int"
    for level in range(levels):
        kind = wrap(level, kind)
    return kind


NESTED: dict[str, tuple[int, Callable[[int, Any], Any]]] = {
    "records": (3, lambda level, kind: record(field(kind), name=f"R{level}")),
    "optional records": (4, lambda level, kind: ["null", record(field(kind), name=f"R{level}")]),
    "arrays": (1, lambda level, kind: {"type": "array", "items": kind}),
    "maps": (1, lambda level, kind: {"type": "map", "values": kind}),
}


@pytest.mark.parametrize("name", NESTED)
def test_the_deepest_definition_that_is_accepted(name: str):
    """It is read, compared and registered; one level more is refused, and 10,000 are, with a sentence."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    each, wrap = NESTED[name]
    most = (MAX_LEVELS - 3) // each  # inside of a record with one field
    schema = AvroSchema(None, record(field(nested(most, wrap)), name="Top"))
    info = schema.schema_info()
    assert why_invalid(info) == "" and is_same(info, info)
    longer = SchemaInfo(SchemaType.AVRO, "AVRO", info.schema().replace('"int"', '"long"'))
    assert (
        why_refused([info], longer, Strategy.BACKWARD) == "" != why_refused([info], longer, Strategy.FORWARD)
    )
    for levels in (most + 1, 10_000):
        deep = record(field(nested(levels, wrap)), name="Top")
        with pytest.raises(InvalidConfiguration, match="nested too deeply, and the limit is 300 levels"):
            AvroSchema(None, deep)
        with pytest.raises(InvalidConfiguration, match="nested too deeply, and the limit is 300 levels"):
            Schema(object, SchemaType.JSON, deep, "JSON")
        for kind in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF):
            assert "nested too deeply" in why_invalid(SchemaInfo(kind, kind.name, text_of(levels)))


def text_of(levels: int) -> str:
    """The text of nested arrays, which is too deep for `json.dumps` itself."""
    levels = max(levels, MAX_LEVELS + 1)
    return '{"type": "array", "items": ' * levels + '"int"' + "}" * levels


def test_a_definition_that_contains_itself_as_an_object_is_refused():
    """And one whose parts are shared is not: each is looked at once for each level."""
    loop = record(field("int"))
    loop["fields"].append(field(loop, "loop"))
    with pytest.raises(InvalidConfiguration, match="nested too deeply"):
        Schema(object, SchemaType.JSON, loop, "JSON")
    shared: Any = ["null"]
    for _ in range(10):
        shared = [shared, shared]
    assert Schema(object, SchemaType.JSON, shared, "JSON").schema_info().schema().count("null") == 1024
    with pytest.raises(InvalidConfiguration, match="not the definition of a schema: Object of type set"):
        Schema(object, SchemaType.JSON, {"type": {1}}, "JSON")


def test_definitions_that_refer_to_themselves():
    """By name, directly and through each other: they are compared, whatever the names are."""

    def tree(name: str, other: str, more: list[dict[str, Any]]) -> str:
        inner = record(field(["null", name], "up", default=None), *more, name=other)
        return json.dumps(record(field(["null", inner], "down"), field(["null", name], "next"), name=name))

    one = parsed(tree("Tree", "Leaf", []), strict=True)
    assert is_alike(one, parsed(tree("Tree", "Leaf", []), strict=True))
    renamed = parsed(tree("Baum", "Blatt", []), strict=True)
    assert not is_alike(one, renamed) and why_unreadable(one, renamed) == why_unreadable(renamed, one) == ""
    stricter = parsed(tree("Baum", "Blatt", [field("int", "count")]), strict=True)
    assert why_unreadable(one, stricter) == "down: no type of the reader's union takes record Leaf"
    same = parsed(tree("Tree", "Leaf", [field("int", "count")]), strict=True)
    assert why_unreadable(one, same).startswith("down: the field 'count' of record Leaf has no default")
    endless = parsed(json.dumps(record(field("R", "me"))), strict=True)
    in_union = parsed(json.dumps(record(field(["null", "S"], "me"), name="S")), strict=True)
    assert why_unreadable(endless, in_union) == "" and is_alike(endless, endless)


def test_models_that_are_nested_too_deeply():
    """A record class and arrays of arrays."""
    inner: Any = Integer()
    for _ in range(5000):
        inner = Array(inner)
    kind = type("Deep", (Record,), {"x": inner})
    for make in (JsonSchema, AvroSchema):
        with pytest.raises(InvalidConfiguration, match="nested too deeply"):
            make(kind)


def test_pairs_and_protobuf_that_are_none():
    """Each with a sentence, without the text of an error of Python."""
    for kind in (SchemaType.KEY_VALUE, SchemaType.PROTOBUF_NATIVE):
        for text in ("", "null", "5", "[]", "{}", '{"key": 5}', '{"fileDescriptorSet": 5}', text_of(10_000)):
            reason = why_invalid(SchemaInfo(kind, kind.name, text))
            assert reason and "Error(" not in reason
    pair = KeyValueSchema(StringSchema(), StringSchema()).schema_info()
    assert why_invalid(pair) == ""


def wide(fields: int, kind: Any = "int", default: Any = 0) -> dict[str, Any]:
    """A record with many fields."""
    return record(*(field(kind, f"f{number}", default=default) for number in range(fields)))


def enumeration(symbols: int) -> dict[str, Any]:
    """An enumeration of many symbols."""
    return record(
        field({"type": "enum", "name": "E", "symbols": [f"S{number}" for number in range(symbols)]})
    )


def union(branches: int) -> list[Any]:
    """A union of many records."""
    return [record(field("int"), name=f"R{number}") for number in range(branches)]


WIDE: dict[str, Callable[[int], Any]] = {
    "fields": wide,
    "optional fields": lambda n: wide(n, ["null", "string"], None),
    "aliases": lambda n: record(*(field("int", f"g{number}", aliases=[f"f{number}"]) for number in range(n))),
    "inner records": lambda n: record(
        *(field(record(field("int"), name=f"I{k}"), f"f{k}") for k in range(n))
    ),
    "unions of records": union,
    "symbols": enumeration,
    "deep": lambda n: record(field(nested(n // 8, NESTED["optional records"][1]))),
    "wide and deep": lambda n: record(
        field(nested(5, lambda level, kind: ["null", wide(n // 5) | {"name": f"L{level}"}]))
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_comparing_takes_as_long_as_the_definitions_are(name: str):
    """Four times the size takes four times the steps: reading, finding the same one, and both directions."""

    def compared(size: int) -> int:
        one, other = (
            SchemaInfo(SchemaType.AVRO, "AVRO", json.dumps(WIDE[name](size + more))) for more in (0, 8)
        )
        spaced = SchemaInfo(SchemaType.AVRO, "AVRO", json.dumps(WIDE[name](size), indent=2))
        return count_instructions(
            lambda: (
                why_invalid(other),
                place_of([other, one], spaced),
                why_refused([one], other, Strategy.FULL),
                why_refused([one, spaced], other, Strategy.FULL_TRANSITIVE),
            )
        )

    assert compared(240) < 5 * compared(60)


def test_the_place_of_an_error_far_inside():
    """The text names the way, not all of it."""
    inner = nested(40, lambda level, kind: record(field(kind, f"f{level}"), name=f"R{level}"))
    definition = json.dumps(inner)
    reason = why_unreadable(
        parsed(definition, strict=True), parsed(definition.replace('"int"', '"boolean"'), strict=True)
    )
    assert reason == "f39.f38.f37.f36.....f3.f2.f1.f0: int cannot be read as boolean"
    assert issubclass(InvalidConfiguration, PulsarException)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000]
)
def test_a_payload_that_is_nested_too_deeply(text: bytes):
    """It is malformed, whichever library reads it."""

    class Plain(Record):
        a = Integer()

    with pytest.raises(ValueError, match="nested too deeply"):
        JsonSchema(Plain).decode(text)


def _descriptors(*files: Any) -> str:
    from google.protobuf import descriptor_pb2

    data = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    return base64.b64encode(data).decode()


def _malformed_descriptors() -> dict[str, str]:
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="protobuf is not installed")
    file = descriptor_pb2.FileDescriptorProto
    unknown = file(name="a.proto", package="p")
    unknown.message_type.add(name="Root").field.add(
        name="x", number=1, type=11, label=1, type_name=".p.Nowhere"
    )
    circle = [
        file(name=name, package="p", dependency=[other])
        for name, other in (("a.proto", "b.proto"), ("b.proto", "a.proto"))
    ]
    return {
        "no file": "",
        "no descriptors": "AAAA",
        "a cut one": _descriptors(unknown)[:8],
        "an unknown type": _descriptors(unknown),
        "a circle of imports": _descriptors(*circle),
        "no such message": _descriptors(file(name="a.proto", package="p")),
    }


@pytest.mark.parametrize(
    "name",
    ["no file", "no descriptors", "a cut one", "an unknown type", "a circle of imports", "no such message"],
)
def test_descriptors_of_no_message(name: str):
    """Whoever uses the schema of the topic is told what is wrong, whatever protobuf raises."""
    root = {"rootMessageTypeName": "p.Root", "rootFileDescriptorName": "a.proto"}
    text = json.dumps({"fileDescriptorSet": _malformed_descriptors()[name], **root})
    with pytest.raises(IncompatibleSchema, match=r"Protobuf definition .*: .+; delete its schemas"):
        payload_decoder(SchemaInfo(SchemaType.PROTOBUF_NATIVE, "p", text))
