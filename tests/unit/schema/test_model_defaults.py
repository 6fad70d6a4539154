"""Unit tests of defaults of models: what a definition states, and that a new field may be added with one."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest

from embeddedpulsar._engine.store.schema_compatibility import is_same, why_invalid, why_refused
from embeddedpulsar.enums import SchemaCompatibilityStrategy as Strategy
from embeddedpulsar.schema import AvroSchema, Integer, JsonSchema, Record


class Color(enum.Enum):
    """Stored by value, defined by name."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Part:
    """With defaults of its own."""

    a: int = 1
    b: int | None = 2
    c: list[str] = field(default_factory=list)


@dataclass
class Strict:
    """Without."""

    a: int


@dataclass
class Tree:
    """That contains itself."""

    name: str = "root"
    children: list[Tree] = field(default_factory=list)


class Point(NamedTuple):
    """A named tuple."""

    x: int = 0
    y: float = 1.5


class Options(TypedDict):
    """A typed dict."""

    name: str
    size: NotRequired[int]


class Line(Record):
    """A record."""

    count = Integer(default=1)


COMPUTED = "computed"
# Type, default or function that makes it, and what the definition states.
DEFAULTS: dict[str, tuple[Any, Any, Any]] = {
    "bool": (bool, True, True),
    "int": (int, 5, 5),
    "float": (float, 1.5, 1.5),
    "float of an int": (float, 2, 2.0),
    "str": (str, "é", "é"),
    "none": (int | None, None, None),
    "optional": (int | None, 5, 5),
    "optional list": (list[int] | None, list, []),
    "union": (int | str, "x", "x"),
    "union of int": (str | int | None, 7, 7),
    "literal": (Literal["s", "l"], "l", "l"),
    "literals of numbers": (Literal[1, 2], 2, 2),
    "list": (list[str], list, []),
    "list of all": (list, list, []),
    "dict": (dict[str, int], dict, {}),
    "dict of all": (dict[str, Any], dict, {}),
    "set": (set[int], set, []),
    "frozenset": (frozenset[str], frozenset({"b", "a"}), ["a", "b"]),
    "tuple": (tuple[int, ...], (1, 2), [1, 2]),
    "tuple of places": (tuple[int, str], (1, "a"), [1, "a"]),
    "bytes": (bytes, b"\xff", "\xff"),
    "enum": (Color, Color.BLUE, "BLUE"),
    "optional enum": (Color | None, Color.RED, "RED"),
    "decimal": (Decimal, Decimal("0.50"), "0.50"),
    "datetime": (datetime.datetime, datetime.datetime(2020, 1, 1), "2020-01-01T00:00:00"),
    "date": (datetime.date, datetime.date(2020, 1, 1), "2020-01-01"),
    "time": (datetime.time, datetime.time(1, 2), "01:02:00"),
    "timedelta": (datetime.timedelta, datetime.timedelta(hours=-25, microseconds=5), "-P1DT3599.999995S"),
    "no time": (datetime.timedelta | None, datetime.timedelta(), "PT0S"),
    "uuid": (uuid.UUID, uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "model": (Part, Part, {"a": 1, "b": 2, "c": []}),
    "optional model": (Part | None, Part, {"a": 1, "b": 2, "c": []}),
    "tree": (Tree, Tree, {"name": "root", "children": []}),
    "named tuple": (Point, Point(3), {"x": 3, "y": 1.5}),
    "enums in a tuple": (tuple[Color, ...], (Color.RED,), ["RED"]),
    "function": (str, lambda: str(uuid.uuid4()), COMPUTED),
    "time of now": (datetime.datetime, datetime.datetime.now, COMPUTED),
    "function of a list": (list[int], lambda: [1], COMPUTED),
    "function of a model": (Strict, lambda: Strict(4), COMPUTED),
    "not a number": (float, float("nan"), COMPUTED),
    "infinity": (float | None, float("inf"), COMPUTED),
    "beyond 64 bits": (int, 2**63, COMPUTED),
    "of another type": (int, "x", COMPUTED),
}


def dataclass_of(kind: Any, default: Any) -> Any:
    """Two versions of a dataclass."""
    is_made = callable(default) and not isinstance(default, enum.Enum)
    stated = field(default_factory=default) if is_made else field(default=default)
    before = dataclasses.make_dataclass("Event", [("id", str)])
    return before, dataclasses.make_dataclass("Event", [("id", str), ("x", kind, stated)])


def pydantic_of(kind: Any, default: Any) -> Any:
    """Two versions of a model of pydantic."""
    pydantic = pytest.importorskip("pydantic", reason="not installed")
    is_made = callable(default) and not isinstance(default, enum.Enum)
    stated = pydantic.Field(default_factory=default) if is_made else pydantic.Field(default=default)
    before = pydantic.create_model("Event", id=(str, ...))
    return before, pydantic.create_model("Event", id=(str, ...), x=(kind, stated))


def struct_of(kind: Any, default: Any) -> Any:
    """Two versions of a struct of msgspec."""
    msgspec = pytest.importorskip("msgspec", reason="not installed")
    is_made = callable(default) and not isinstance(default, enum.Enum)
    stated = msgspec.field(default_factory=default) if is_made else msgspec.field(default=default)
    before = msgspec.defstruct("Event", [("id", str)])
    return before, msgspec.defstruct("Event", [("id", str), ("x", kind, stated)])


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("make", [dataclass_of, pydantic_of, struct_of])
def test_a_field_with_a_default_may_be_added(make: Callable[[Any, Any], Any], name: str):
    """The definition states it; what was written before is read with the default of the class."""
    kind, default, stated = DEFAULTS[name]
    before, after = make(kind, default)
    old, new = JsonSchema(before), JsonSchema(after)
    stored = {one["name"]: one for one in json.loads(new.schema_info().schema())["fields"]}["x"]
    if stated is COMPUTED:
        assert stored["computed"] is True and "default" in stored
    else:
        assert stored["default"] == stated and "computed" not in stored
        assert type(stored["default"]) is type(stated)
    assert why_invalid(new.schema_info()) == ""
    assert why_refused([old.schema_info()], new.schema_info(), Strategy.FULL_TRANSITIVE) == ""
    fresh = after(id="a")
    found = new.decode(old.encode(before(id="a")))
    if name not in ("function", "time of now", "not a number"):
        assert found == fresh
    if name not in ("of another type", "not a number", "infinity", "bytes"):
        assert new.decode(new.encode(fresh)) == fresh
        assert old.decode(new.encode(fresh)) == before(id="a")


@pytest.mark.parametrize(
    "name", [name for name in DEFAULTS if name not in ("beyond 64 bits", "of another type")]
)
@pytest.mark.parametrize("make", [dataclass_of, pydantic_of, struct_of])
def test_the_same_in_avro(make: Callable[[Any, Any], Any], name: str):
    """Avro's library accepts the definition, and reads old messages with the default of the class."""
    fastavro = pytest.importorskip("fastavro", reason="the extra is not installed")
    kind, default, _ = DEFAULTS[name]
    before, after = make(kind, default)
    old, new = AvroSchema(before), AvroSchema(after)
    fastavro.parse_schema(json.loads(new.schema_info().schema()))
    assert why_refused([old.schema_info()], new.schema_info(), Strategy.FULL) == ""
    fresh = after(id="a")
    found = new.decode_written(old.encode(before(id="a")), old.schema_info())
    if name in ("function", "time of now"):
        assert found.x and found.x != fresh.x
    elif name != "not a number":
        assert found == fresh and new.decode(new.encode(fresh)) == fresh
    assert old.decode_written(new.encode(fresh), new.schema_info()) == before(id="a")


def test_definitions_are_the_same_in_every_process():
    """A default that is not the same for each object is not stated: each process would add a version."""
    for kind, default, _ in DEFAULTS.values():
        one, other = (JsonSchema(dataclass_of(kind, default)[1]).schema_info() for _ in range(2))
        assert is_same(one, other) and one.schema() == other.schema()
    assert sys.flags.hash_randomization  # so that the order of sets is another one each time


def test_defaults_of_typed_dicts_and_named_tuples():
    """A key that may be missing, and the default of a field."""
    fields = json.loads(JsonSchema(Options).schema_info().schema())["fields"]
    assert fields == [
        {"name": "name", "type": "string"},
        {"name": "size", "type": "long", "computed": True, "default": 0},
    ]
    fields = json.loads(JsonSchema(Point).schema_info().schema())["fields"]
    assert [one["default"] for one in fields] == [0, 1.5]
    assert JsonSchema(Point).decode(b'{"y": 2}') == Point(0, 2.0)
    assert JsonSchema(Options).decode(b'{"name": "a", "more": 1}') == {"name": "a"}


def test_a_union_whose_default_is_not_its_first_type():
    """The type of the default is stated first, as Avro has it; None first otherwise."""

    def type_of(kind: Any, default: Any) -> Any:
        return json.loads(JsonSchema(dataclass_of(kind, default)[1]).schema_info().schema())["fields"][1][
            "type"
        ]

    assert type_of(int | None, 5) == ["long", "null"] and type_of(int | None, None) == ["null", "long"]
    assert type_of(int | str | None, "x") == ["string", "null", "long"]
    assert type_of(Part | Color, Color.RED)[0] == {
        "type": "enum",
        "name": "Color",
        "symbols": ["RED", "BLUE"],
    }


def test_a_field_that_contains_the_model_itself():
    """A default that has no end cannot be stated, and the rest is as it was."""
    fields = json.loads(JsonSchema(Tree).schema_info().schema())["fields"]
    assert fields[1] == {"name": "children", "type": {"type": "array", "items": "Tree"}, "default": []}


def test_a_record_as_default():
    """Of a dataclass with a field that is a `Record`."""
    kind = dataclasses.make_dataclass("Event", [("id", str), ("x", Line, field(default_factory=Line))])
    stored = json.loads(JsonSchema(kind).schema_info().schema())["fields"][1]
    assert stored["type"]["name"] == "Line" and stored["default"] == {"count": 1}
    assert JsonSchema(kind).decode(b'{"id": "a"}').x == Line(count=1)
