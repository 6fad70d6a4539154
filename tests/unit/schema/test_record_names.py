"""Unit tests of the names that fields of a record may have."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

import embeddedpulsar.schema as schemas
from embeddedpulsar.schema import Array, Boolean, Integer, JsonSchema, Map, Record, String

TAKEN = sorted(
    {name for name in dir(Record) if not name.startswith("__")}
    | {
        "default",
        "required",
        "required_default",
        "self",
        "cls",
        "args",
        "kwargs",
        "options",
        "values",
        "kind",
    }
    | {"_default", "_required", "_required_default", "_fields", "_avro_namespace", "_sorted_fields"}
    | {"class", "def", "None", "type", "name", "fields", "record", "python_type", "encode", "decode", "mro"}
    | {"__typename", "__v", "__index_level_0__", "_", "_initial", "_holds_records", "a b", "größe"}
)


def made(name: str) -> Any:
    """A record class with a field of this name, and another one."""
    return type("Option", (Record,), {name: Integer(), "other": String()})


@pytest.mark.parametrize("name", TAKEN)
def test_a_field_may_have_any_name(name: str):
    """It is given, read, assigned, compared, copied, shown and encoded, as any other."""
    kind = made(name)
    record = kind(**{name: 7, "other": "x"})
    assert getattr(record, name) == 7 and vars(record) == {name: 7, "other": "x"}
    assert record == kind(**{name: 7, "other": "x"}) != kind(**{name: 8, "other": "x"})
    assert copy.deepcopy(record) == copy.copy(record) == record
    assert repr(record) == f"Option({name}=7, other='x')"
    setattr(record, name, 8)
    assert getattr(record, name) == 8
    with pytest.raises(TypeError, match="for field"):
        setattr(record, name, "8")
    schema = JsonSchema(kind)
    assert json.loads(schema.encode(record)) == {name: 8, "other": "x"}
    assert schema.decode(schema.encode(record)) == record
    assert [field["name"] for field in json.loads(schema.schema_info().schema())["fields"]] == [name, "other"]


@pytest.mark.parametrize("name", [name for name in TAKEN if name.isidentifier() and name.isascii()])
def test_any_name_in_avro(name: str):
    """Of a field of the record, and of one of a record inside."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    kind = made(name)
    outer = type("Outer", (Record,), {"inner": kind(), name: kind(None, False, True), "list": Array(kind())})
    record = outer(inner={name: 1}, list=[{name: 2}], **{name: {name: 3}})
    for make in (schemas.AvroSchema, JsonSchema):
        schema = make(outer)
        decoded = schema.decode(schema.encode(record))
        assert decoded == record
        assert (getattr(decoded.inner, name), getattr(decoded.list[0], name)) == (1, 2)
        assert getattr(getattr(decoded, name), name) == 3


@pytest.mark.parametrize("name", TAKEN)
def test_a_record_with_such_a_field_in_records(name: str):
    """As a field with options, in arrays and maps, as a default, and as a further key of a payload."""
    kind = made(name)
    filled = kind(**{name: 5, "other": "d"})
    outer = type(
        "Outer",
        (Record,),
        {"one": kind, "sure": kind(filled, True, True), "items": Array(kind), "by_key": Map(Array(kind()))},
    )
    fields = {
        field["name"]: field for field in json.loads(JsonSchema(outer).schema_info().schema())["fields"]
    }
    assert fields["sure"] == {"name": "sure", "default": {name: 5, "other": "d"}, "type": "Option"}
    record = outer(one={name: 1}, sure=filled, items=[{name: 2}], by_key={"k": [{name: 3}]})
    assert getattr(record.by_key["k"][0], name) == 3
    assert JsonSchema(outer).decode(JsonSchema(outer).encode(record)) == record
    with pytest.raises(TypeError, match="Array field items items should all be of type Option"):
        outer(items=[1])
    with pytest.raises(TypeError, match=r"sub-record field 'sure'\. Expected: Option"):
        outer(sure=None)

    class Plain(Record):
        x = Integer()

    class Plains(Record):
        one = Plain()
        items = Array(Plain())

    further = json.dumps({name: [1], "x": 2}).encode()
    if name != "x":
        assert JsonSchema(Plain).decode(further) == Plain(x=2)
        nested = b'{"one": %b, "items": [%b], "more": {}}' % (further, further)
        assert JsonSchema(Plains).decode(nested) == Plains(one=Plain(x=2), items=[Plain(x=2)])


def test_settings_of_the_class_beside_fields_of_their_name():
    """A field is none of the settings."""
    kind = type(
        "Option", (Record,), {"z": Integer(), "_sorted_fields": Boolean(), "_avro_namespace": String()}
    )
    assert kind.schema()["name"] == "Option" and "namespace" not in kind.schema()
    assert [field["name"] for field in kind.schema()["fields"]] == ["z", "_sorted_fields", "_avro_namespace"]


def test_options_of_a_record_with_fields_of_their_names():
    """A name is the field's; the options go by their position."""
    kind = type("Option", (Record,), {"required": Boolean(), "default": Integer()})
    record = kind(None, False, True, required=False, default=3)
    assert (record.required, record.default, record._required) == (False, 3, True)
    assert Record.required_default(record) is False and Record.type(record) == "Option"
    outer = type("Outer", (Record,), {"option": record})
    assert outer.schema()["fields"][0]["type"]["name"] == "Option"  # not a union with null: it is required


@pytest.mark.parametrize(
    "name", ["__init__", "__class__", "__dict__", "__len__", "__slots__", "__eq__", "__get__"]
)
def test_a_name_that_python_needs_is_refused(name: str):
    """With a sentence, when the class is made."""
    with pytest.raises(
        TypeError, match=f"a field of the record Option is called {name}, a name that Python needs"
    ):
        made(name)


class Option(Record):
    """With options, for pickle."""

    default = Integer()
    type = String()


def test_such_a_record_can_be_pickled():
    """With the options of a field."""
    record = Option(None, False, True, default=4, type="x")
    again = pickle.loads(pickle.dumps(record))
    assert again == record and again._required is True


def test_a_class_with_its_own_arguments():
    """Decoding calls it by the fields that the payload has."""

    class Order(Record):
        item = String()
        count = Integer()

        def __init__(self, item: str = "", count: int = 0) -> None:
            super().__init__(item=item, count=count + 1)

    assert JsonSchema(Order).decode(b'{"item": "soup", "count": 1, "more": 2}').count == 2
