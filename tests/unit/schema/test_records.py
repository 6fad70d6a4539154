"""Unit tests of records and fields, beside those of pulsar.schema."""

from __future__ import annotations

import copy
import json
import pickle
from enum import Enum, IntEnum
from typing import Any

import pulsar.schema as theirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embeddedpulsar.schema as ours


class Color(Enum):
    """Values that are numbers."""

    red = 1
    green = 2


class Size(IntEnum):
    """Values that are numbers themselves."""

    small = 1
    large = 2


def shop(m: Any) -> Any:
    """The same records, of one of the two libraries: every field, nested, with and without its options."""

    class Inner(m.Record):
        _avro_namespace = "shop.inner"
        name = m.String(default="soup", required_default=True)
        size = Size

    class Sorted(m.Record):
        _sorted_fields = True
        z = m.Integer(required=True)
        a = m.Integer(default=3)

    class Outer(m.Record):
        null = m.Null()
        flag = m.Boolean()
        sure = m.Boolean(default=True, required=True, required_default=True)
        count = m.Integer(default=5)
        amount = m.Long(required=True)
        single = m.Float()
        double = m.Double(required_default=True)
        raw = m.Bytes()
        type = m.String(required=True)
        color = Color
        other_color = m.CustomEnum(Color, default=Color.red, required=True, required_default=True)
        inner = Inner
        given_inner = Inner(required=True, required_default=True)
        in_order = Sorted()
        names = m.Array(m.String(), default=["a"], required_default=True)
        inners = m.Array(Inner())
        numbers = m.Map(m.Long(), required=True)
        by_name = m.Map(Inner())
        colors = m.Array(m.CustomEnum(Color))
        deep = m.Array(m.Map(m.Array(m.Double())))

    return Outer


VALUES: dict[str, Any] = {
    "flag": True,
    "amount": 2**40,
    "single": 1,
    "double": 2.5,
    "raw": b"abc",
    "type": "Zürich \"'\n\x00",
    "color": 2,
    "inner": {"name": "é", "size": 2},
    "in_order": {"z": 1},
    "inners": [{"name": "x"}, {"size": "small"}],
    "numbers": {"a": 1, "ü": 2},
    "by_name": {"k": {"name": "y"}},
    "deep": [{}, {"x": [1.0, -0.0, 1e300], "y": []}],
}
ONLY_REQUIRED = {"amount": 1, "type": "t", "numbers": {}, "in_order": {"z": 1}}


def test_definitions_are_the_same():
    """To the byte, with namespaces, sorted fields, defaults and references to types already defined."""
    ours_text = ours.JsonSchema(shop(ours)).schema_info().schema()
    assert ours_text == theirs.JsonSchema(shop(theirs)).schema_info().schema()
    assert shop(ours).schema() == shop(theirs).schema()
    fields = {field["name"]: field for field in shop(ours).schema()["fields"]}
    assert fields["given_inner"]["type"] == "shop.inner.Inner" and fields["other_color"]["type"] == "Color"


@pytest.mark.parametrize("values", [VALUES, ONLY_REQUIRED], ids=["all", "required"])
def test_json_is_the_same(values: dict[str, Any]):
    """Encoded to the same bytes, and each decodes what the other encodes."""
    mine, other = ours.JsonSchema(shop(ours)), theirs.JsonSchema(shop(theirs))
    record = shop_record(ours, mine, values)
    data = mine.encode(record)
    assert data == other.encode(shop_record(theirs, other, values))
    assert mine.decode(data) == record
    assert other.encode(other.decode(data)) == data


def shop_record(m: Any, schema: Any, values: dict[str, Any]) -> Any:
    """An object of the class of a schema."""
    return schema._record_cls(**copy.deepcopy(values))


@pytest.mark.parametrize("name", ["Float", "Double"])
@pytest.mark.parametrize("value", [1.5, 1e16, -0.0, float("inf"), float("-inf"), 10**25, True])
def test_numbers_in_json_are_the_same(name: str, value: float):
    """Infinities and numbers beyond 64 bits too."""
    data = {}
    for m in (ours, theirs):
        kind = type("Number", (m.Record,), {"n": getattr(m, name)()})
        data[m] = m.JsonSchema(kind).encode(kind(n=value))
        assert m.JsonSchema(kind).decode(data[m]).n == value
    assert data[ours] == data[theirs]


FIELDS = ["Null", "Boolean", "Integer", "Long", "Float", "Double", "String"]
ODD = [None, True, 1, 1.5, "text", b"bytes", [], {}, Color.red, object()]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_assignments_are_accepted_and_refused_alike(field: str, required: bool, value: object):
    """Of primitive fields, as the argument of the class and as an attribute."""
    results = []
    for m in (ours, theirs):
        kind = type("R", (m.Record,), {"x": getattr(m, field)(required=required)})
        try:
            record = kind(x=value)
            record.x = value
            results.append(record.x)
        except TypeError:
            results.append(TypeError)
    assert results[0] == results[1] and type(results[0]) is type(results[1])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda m: m.Integer(default="1"), TypeError),
        (lambda m: m.Array(m.Integer(), default=["1"]), TypeError),
        (lambda m: m.Map(m.Integer(), default={1: 1}), TypeError),
        (lambda m: m.Map(m.Integer(), default={"a": "b"}), TypeError),
        (lambda m: m.CustomEnum(Color, default="blue"), TypeError),
        (lambda m: m.CustomEnum(int), Exception),
        (lambda m: m.Array(int), Exception),
        (lambda m: m.Map(m.String), Exception),
        (lambda m: shop(m)(amount="x"), TypeError),
        (lambda m: shop(m)(color=9), TypeError),
        (lambda m: shop(m)(inner=7), TypeError),
        (lambda m: shop(m)(names=[1]), TypeError),
        (lambda m: setattr(shop(m)(), "unknown", 1), AttributeError),
        (lambda m: m.JsonSchema(shop(m)).encode({}), TypeError),
    ],
)
def test_errors_are_of_the_same_class(make: Any, error: type[Exception]):
    """Of definitions, values and attributes."""
    for m in (ours, theirs):
        with pytest.raises(error):
            make(m)


def test_defaults():
    """A field that is not given has its default, as in pulsar-client; no two records share a default list."""
    first, second, other = shop(ours)(), shop(ours)(), shop(theirs)()
    for name in ("null", "flag", "sure", "count", "amount", "raw", "other_color", "names", "color", "deep"):
        assert getattr(first, name) == getattr(other, name)
    assert first.inner.name == other.inner.name == "soup"
    kind = shop(ours)
    first, second = kind(), kind()
    first.names.append("b")
    first.inner.name = "tea"
    assert (second.names, second.inner.name) == (["a"], "soup")
    first.count = None
    assert first.count == 5


def test_records_are_values():
    """They compare by their fields, can be copied and pickled, and show themselves."""
    record = Pair(a=1, b="x")
    assert record == Pair(a=1, b="x") != Pair(a=1) and record != 1
    assert copy.copy(record) == copy.deepcopy(record) == pickle.loads(pickle.dumps(record)) == record
    assert repr(record) == "Pair(a=1, b='x')"
    assert str(record) == str(TheirPair(a=1, b="x"))
    with pytest.raises(TypeError):
        hash(record)


class Pair(ours.Record):
    """Two fields."""

    a = ours.Integer()
    b = ours.String()


class TheirPair(theirs.Record):
    """The same two."""

    a = theirs.Integer()
    b = theirs.String()


def test_a_field_may_be_called_schema():
    """And `type`: the names of methods are not taken."""

    class Note(ours.Record):
        schema = ours.String()
        type = ours.String()

    class Notes(ours.Record):
        notes = ours.Array(Note)
        last = Note

    schema = ours.JsonSchema(Notes)
    notes = Notes(notes=[{"schema": "a"}], last={"type": "b"})
    assert schema.decode(schema.encode(notes)) == notes and notes.notes[0].schema == "a"


def test_an_enumeration_of_texts():
    """It is stored by value, and read by value or name; in arrays and maps too."""
    Mood = Enum("Mood", {"good": "GOOD!", "bad": "BAD!"})

    class Day(ours.Record):
        mood = Mood
        moods = ours.Array(ours.CustomEnum(Mood))
        by_day = ours.Map(ours.CustomEnum(Mood))

    schema = ours.JsonSchema(Day)
    day = Day(mood=Mood.good, moods=[Mood.bad], by_day={"mon": Mood.good})
    assert schema.decode(schema.encode(day)) == day
    assert Day(mood="bad").mood is Mood.bad


PRIMITIVES = {
    "Boolean": st.booleans(),
    "Integer": st.integers(-(2**31), 2**31 - 1),
    "Long": st.integers(-(2**63), 2**63 - 1),
    "Double": st.floats(allow_nan=False),
    "String": st.text(st.characters(exclude_categories=["Cs"])),
    "Bytes": st.text(st.characters(exclude_categories=["Cs"])).map(str.encode),
}


@given(st.data())
def test_random_records(data: st.DataObject):
    """Definition, JSON and Avro are those of pulsar-client, and both read them back."""
    layout = data.draw(
        st.lists(st.tuples(st.sampled_from(sorted(PRIMITIVES)), *[st.booleans()] * 3), max_size=5)
    )
    values: dict[str, Any] = {}
    for index, (name, required, array, _) in enumerate(layout):
        one = PRIMITIVES[name]
        values[f"f{index}"] = data.draw(st.lists(one, max_size=3) if array else one)
        if not required and data.draw(st.booleans()):
            values[f"f{index}"] = None

    def record(m: Any) -> Any:
        members: dict[str, Any] = {"_sorted_fields": bool(layout) and layout[0][3]}
        for index, (name, required, array, noted) in enumerate(layout):
            field = getattr(m, name)
            options = {"required": required, "required_default": noted and not required}
            members[f"f{index}"] = m.Array(field(), **options) if array else field(**options)
        return type("Drawn", (m.Record,), members)

    mine, other = record(ours), record(theirs)
    assert json.dumps(mine.schema()) == json.dumps(other.schema())
    for name in ("JsonSchema", "AvroSchema"):
        if name == "AvroSchema":
            pytest.importorskip("fastavro", reason="the extra is not installed")
        our_schema, their_schema = getattr(ours, name)(mine), getattr(theirs, name)(other)
        encoded = our_schema.encode(mine(**values))
        assert encoded == their_schema.encode(other(**values))
        found, expected = our_schema.decode(encoded), their_schema.decode(encoded)
        assert [getattr(found, key) for key in values] == [getattr(expected, key) for key in values]
