"""Unit tests of schemas of type hints: dicts, lists, any value, unions of models, and models in models."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.store.schema_compatibility import why_invalid
from embeddedpulsar._engine.store.schema_info import SchemaInfo
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from embeddedpulsar.schema.key_value import payload_decoder
from embeddedpulsar.schema.models import duration_of, text_of

UserId = NewType("UserId", int)
ANYTHING = {
    "type": "record",
    "name": "Json",
    "namespace": "org.apache.avro.data",
    "fields": [
        {
            "name": "value",
            "type": [
                *("null", "boolean", "long", "double", "string"),
                *({"type": "array", "items": "Json"}, {"type": "map", "values": "Json"}),
            ],
        }
    ],
}


class Code(str):
    """A text with a name."""

    __slots__ = ()


class Color(Enum):
    """An enumeration."""

    RED = "red"


@dataclass
class Paid:
    """Told apart by a Literal."""

    amount: Decimal
    kind: Literal["paid"] = "paid"


@dataclass
class Sent:
    """Told apart by a Literal."""

    at: datetime
    kind: Literal["sent", "shipped"] = "sent"


@dataclass
class Cat:
    """Looks like a `Dog`."""

    name: str = ""


@dataclass
class Dog:
    """Looks like a `Cat`."""

    name: str = ""


@dataclass
class Typed:
    """Has an attribute that is called as the tag."""

    type: int = 0


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: float = 0.0


ORIGIN = Point(0)


class Options(TypedDict):
    """A typed dict."""

    name: str
    size: NotRequired[int]


class Line(Record):
    """A record."""

    item = String()
    count = Integer()


@dataclass
class Node:
    """Contains itself, and models of all kinds."""

    name: str
    pet: Cat | Dog | None = None
    point: Point = ORIGIN
    options: Options | None = None
    line: Line | None = None
    pair: tuple[int, str] = (1, "a")
    extra: Any = None
    codes: list[Code] = field(default_factory=list)
    user: UserId = UserId(0)
    colors: frozenset[Color] = frozenset()
    children: list[Node] = field(default_factory=list)


NODE = Node(
    "a", Dog("d"), Point(2, 0.5), {"name": "o", "size": 1}, Line(item="x", count=1), (2, "b"),
    {"k": [1, None, 1.5, "x"]},
    [Code("c")], UserId(4), frozenset({Color.RED}), [Node("b", Cat("d"), options={"name": "p", "size": 3})],
)  # fmt: skip

# A type, its definition, and values.
TYPES: dict[str, tuple[Any, Any, list[Any]]] = {
    "dict": (dict, {"type": "map", "values": ANYTHING}, [{}, {"a": 1, "b": [None, {"c": True}]}]),
    "dict of any": (dict[str, Any], {"type": "map", "values": ANYTHING}, [{"a": 1.5}]),
    "dict of lists": (
        dict[str, list[int]],
        {"type": "map", "values": {"type": "array", "items": "long"}},
        [{"a": [1]}],
    ),
    "any": (Any, ANYTHING, [None, 1, 1.5, "x", True, [1, [2]], {"a": {"b": None}}]),
    "object": (object, ANYTHING, ["x"]),
    "list": (list, {"type": "array", "items": ANYTHING}, [[], [1, "a", None]]),
    "list of int": (list[int], {"type": "array", "items": "long"}, [[], [1, 2]]),
    "tuple": (tuple[int, ...], {"type": "array", "items": "long"}, [(), (1, 2)]),
    "tuple of two": (tuple[int, str], {"type": "array", "items": ["long", "string"]}, [(1, "a")]),
    "set": (set[str], {"type": "array", "items": "string"}, [{"a", "b"}]),
    "int": (int, "long", [5]),
    "text or number": (int | str, ["long", "string"], [5, "x"]),
    "optional": (int | None, ["null", "long"], [5, None]),
    "datetime": (datetime, "string", [datetime(2026, 1, 2, 3, 4, 5, 6)]),
    "enum": (Color, {"type": "enum", "name": "Color", "symbols": ["RED"]}, [Color.RED]),
    "annotated": (Annotated[list[int], "numbers"], {"type": "array", "items": "long"}, [[3]]),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_without_a_class(name: str):
    """Definition, and each value comes back; a definition is one that Avro's library takes."""
    hint, definition, values = TYPES[name]
    schema = JsonSchema(hint)
    assert json.loads(schema.schema_info().schema()) == definition
    assert schema.schema_info().schema_type() == SchemaType.JSON and why_invalid(schema.schema_info()) == ""
    assert why_invalid(SchemaInfo(SchemaType.AVRO, "AVRO", schema.schema_info().schema())) == ""
    for value in values:
        found = schema.decode(schema.encode(value))
        assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        *((dict, []), (dict, {1: 2}), (dict[str, int], {"a": "x"}), (list[int], ["x"]), (list[int], (1,))),
        *((list[int], {1}), (int, "x"), (Cat | Dog, "x"), (Cat | Dog, {"name": "x"}), (list[Cat], [Dog()])),
        *(
            (tuple[int, str], (1,)),
            (Any, object()),
            (Options, []),
            (Options, {"nme": "x"}),
            (Point, (1, 2.0)),
        ),
    ],
)
def test_values_of_another_type_are_refused(hint: Any, value: Any):
    """When they are encoded."""
    with pytest.raises(TypeError):
        JsonSchema(hint).encode(value)


def test_a_union_of_models_with_a_literal():
    """The attribute says which one it is; the payload has nothing else."""
    schema = JsonSchema(Paid | Sent)
    for value in (Paid(Decimal("1.50")), Sent(datetime(2026, 1, 2)), Sent(datetime(2026, 1, 2), "shipped")):
        assert schema.decode(schema.encode(value)) == value
    assert schema.encode(Paid(Decimal(1))) == b'{"amount":"1","kind":"paid"}'
    assert [one["name"] for one in json.loads(schema.schema_info().schema())] == ["Paid", "Sent"]
    with pytest.raises(TypeError):
        schema.decode(b'{"amount": "1", "kind": "sent"}')


def test_a_union_of_models_that_look_alike():
    """A tag says which one it is; a payload without one is the first that fits, as before there were tags."""
    schema = JsonSchema(Cat | Dog)
    assert schema.encode(Dog("x")) == b'{"type":"Dog","name":"x"}'
    assert schema.decode(schema.encode(Dog("x"))) == Dog("x")
    assert schema.decode(b'{"name": "x"}') == Cat("x")
    other = JsonSchema(Cat | Typed)
    assert other.encode(Cat("x")) == b'{"__type__":"Cat","name":"x"}'
    for value in (Cat("x"), Typed(4)):
        assert other.decode(other.encode(value)) == value
    nested = JsonSchema(list[Cat | Dog])
    assert nested.decode(nested.encode([Cat("a"), Dog("b")])) == [Cat("a"), Dog("b")]


def test_unions_of_other_libraries():
    """Models of pydantic with a discriminator or without, structs with tags or without, and mixed ones."""
    pydantic = pytest.importorskip("pydantic", reason="not installed")
    msgspec = pytest.importorskip("msgspec", reason="not installed")
    one = pydantic.create_model("One", kind=(Literal["one"], "one"), x=(int, 0))
    two = pydantic.create_model("Two", kind=(Literal["two"], "two"), x=(int, 0))
    plain = pydantic.create_model("Plain", __config__={"extra": "forbid"}, x=(int, 0))
    tagged = msgspec.defstruct("Tagged", [("x", int, 0)], tag="t")
    other = msgspec.defstruct("Other", [("x", int, 0)], tag="o")
    untagged = msgspec.defstruct("Untagged", [("x", int, 0)], forbid_unknown_fields=True)
    discriminated = Annotated[one | two, pydantic.Field(discriminator="kind")]
    for hint, values in (
        (discriminated, [one(x=1), two(x=2)]),
        (list[discriminated], [[one(x=1), two(x=2)]]),
        (one | plain | Cat, [one(x=3), plain(x=4), Cat("c")]),
        (tagged | other, [tagged(1), other(2)]),
        (untagged | plain, [untagged(1), plain(x=1)]),
        (Line | Cat, [Line(item="x"), Cat("c")]),
        (dict[str, one | None], [{"a": one(x=1), "b": None}]),
    ):
        schema = JsonSchema(hint)
        for value in values:
            found = schema.decode(schema.encode(value))
            assert found == value and type(found) is type(value)


def test_models_in_models():
    """Each comes back as it was, in JSON and in Avro."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    for schema in (JsonSchema(Node), AvroSchema(Node)):
        found = schema.decode(schema.encode(NODE))
        assert found == NODE
        assert type(found.codes[0]) is Code and type(found.point) is Point and type(found.pet) is Dog
        assert found.extra == NODE.extra and type(found.children[0].pet) is Cat
    generic = payload_decoder(AvroSchema(Node).schema_info())(AvroSchema(Node).encode(NODE))
    assert generic["colors"] == ["RED"] and generic["extra"]["value"]["k"]["value"][0] == {"value": 1}


def test_avro_of_other_models():
    """Typed dicts, named tuples, and models of pydantic and msgspec; with their names in JSON."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    pydantic = pytest.importorskip("pydantic", reason="not installed")
    msgspec = pytest.importorskip("msgspec", reason="not installed")
    shop = pydantic.create_model(
        "Shop",
        name=(str, ...),
        the_size=(int, pydantic.Field(default=1, alias="theSize")),
        at=(datetime, ...),
    )
    struct = msgspec.defstruct("Shop", [("the_name", str), ("raw", bytes, b"")], rename="camel")
    for kind, value in (
        (Options, {"name": "a", "size": 1}),
        (Point, Point(1, 2.5)),
        (shop, shop(name="a", theSize=3, at=datetime(2026, 1, 2))),
        (struct, struct("a", b"\xff\x00")),
        (Paid, Paid(Decimal("1.5"))),
    ):
        schema = AvroSchema(kind)
        assert schema.decode(schema.encode(value)) == value
        assert why_invalid(schema.schema_info()) == ""
        with pytest.raises(TypeError):
            schema.encode(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a message in Avro has all keys of Options: give 'size'"):
        AvroSchema(Options).encode({"name": "a"})
    names = [one["name"] for one in json.loads(AvroSchema(struct).schema_info().schema())["fields"]]
    assert names == ["theName", "raw"]
    for refused in (dict, list[Cat], int, Cat | Dog):
        with pytest.raises(TypeError, match="is not a Record, a dataclass"):
            AvroSchema(refused)


def test_classes_of_one_name():
    """Each has a name of its own in the definition."""

    def named(kind: Any) -> Any:
        return dataclass(type("Same", (), {"__annotations__": {"x": kind}}))

    one, other = named(int), named(str)
    schema = JsonSchema(dict[str, one | other])  # type: ignore[valid-type]
    names = [branch["name"] for branch in json.loads(schema.schema_info().schema())["values"]]
    assert names == ["Same", "Same_2"]
    value = {"a": one(1), "b": other("x")}
    assert schema.decode(schema.encode(value)) == value
    assert [type(item) for item in schema.decode(schema.encode(value)).values()] == [one, other]


def test_what_has_no_form():
    """It is refused when the schema is made: a sentence that names the type."""
    for hint in (complex, dict[int, str], bytearray, list[complex], Cat | complex):
        with pytest.raises(TypeError, match="has no JSON form in a schema"):
            JsonSchema(hint)
    for hint in ("text", None):
        with pytest.raises(TypeError, match="is not a Record, a model or a type"):
            JsonSchema(hint)

    @dataclass
    class Unknown:
        x: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(
        TypeError, match="the type hints of Unknown cannot be read: name 'Nowhere' is not defined"
    ):
        JsonSchema(Unknown)
    deep: Any = int
    for _ in range(2000):
        deep = list[deep]
    with pytest.raises(InvalidConfiguration, match="nested too deeply"):
        JsonSchema(deep)


def test_a_value_that_contains_itself():
    """Is refused with a sentence."""
    node = Node("a")
    node.children.append(node)
    loop: dict[str, Any] = {}
    loop["me"] = loop
    line = Line()
    line.__dict__["item"] = line
    for schema, value in ((JsonSchema(Node), node), (JsonSchema(dict), loop), (JsonSchema(Line), line)):
        with pytest.raises(ValueError, match="contains itself"):
            schema.encode(value)
    pytest.importorskip("fastavro", reason="the extra is not installed")
    with pytest.raises(ValueError, match="contains itself"):
        AvroSchema(Node).encode(node)


def test_fields_of_a_dataclass_that_are_no_arguments():
    """They are in the text, for programs of other languages, and computed again when it is read."""

    @dataclass
    class Sum:
        a: int
        total: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            self.total = self.a + 1

    schema = JsonSchema(Sum)
    assert schema.encode(Sum(1)) == b'{"a":1,"total":2}' and schema.decode(b'{"a":5,"total":2}') == Sum(5)


@pytest.mark.parametrize("hint", [Node, Cat | Dog, dict, Any, list[int], Options, Point])
def test_schemas_of_types_can_be_pickled(hint: Any):
    """And work as before."""
    schema = JsonSchema(hint)
    again = pickle.loads(pickle.dumps(schema))
    assert again.schema_info() == schema.schema_info()
    if hint is Node:
        pytest.importorskip("fastavro", reason="the extra is not installed")
        assert again.decode(schema.encode(NODE)) == NODE
        avro = pickle.loads(pickle.dumps(AvroSchema(hint)))
        assert avro.decode(AvroSchema(hint).encode(NODE)) == NODE
        with pytest.raises(TypeError):
            again.encode("x")


class Level(Enum):
    """Members whose names are not their values."""

    LOW = "low"
    HIGH = "high"


@dataclass
class Alarm:
    """A model of members and durations."""

    level: Literal[Level.LOW, Level.HIGH]
    lasted: timedelta = timedelta(0)


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema])
def test_members_in_a_literal(schema: Any):
    """In Avro by their names, as members elsewhere."""
    kept = schema(Alarm)
    assert kept.decode(kept.encode(Alarm(Level.HIGH))) == Alarm(Level.HIGH)


@given(st.timedeltas())
def test_durations(length: timedelta):
    """Every one comes back as it is."""
    assert duration_of(text_of(length)) == length
    assert JsonSchema(Alarm).decode(JsonSchema(Alarm).encode(Alarm(Level.LOW, length))).lasted == length


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("P1W", 604_800), ("p1dt2h3m4,5s", 93_784.5), ("+PT90061S", 90_061), ("-PT0.0000019S", -0.000001)],
)
def test_durations_of_others(text: str, seconds: float):
    """Other programs write other parts of ISO 8601."""
    assert duration_of(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "P", "PT", "5", "P1Y", "P1M", "PT5", "1D", "P1000000000D", "PT1.5H"])
def test_no_durations(text: str):
    """The error says what one looks like, or that it is too long."""
    with pytest.raises(ValueError, match=r"duration"):
        duration_of(text)
