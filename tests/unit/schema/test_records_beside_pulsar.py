"""What records and fields do, case by case, beside `pulsar-client`: values and texts of errors."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pulsar.schema as theirs
import pytest

import embeddedpulsar.schema as ours


class Color(Enum):
    """Values that are numbers."""

    red = 1
    green = 2


class Other(Enum):
    """A member that looks like one of `Color`."""

    red = 1


class Word(Enum):
    """Values that are texts."""

    a = "x"


def classes(m: Any) -> SimpleNamespace:
    """The same record classes, of one of the two libraries, beside its names."""

    class Line(m.Record):
        item = m.String(required=True)
        count = m.Integer(default=1)

    class OtherLine(m.Record):
        item = m.String(required=True)

    class Order(m.Record):
        table = m.Integer(required=True)
        line = Line()
        must = Line(required=True)
        lines = m.Array(Line())
        by = m.Map(Line())
        color = Color
        word = m.CustomEnum(Word, default=Word.a)
        words = m.Array(m.String())
        numbers = m.Map(m.Integer())
        integer = m.Integer()
        long = m.Long()
        single = m.Float()
        double = m.Double(default=2.5)
        flag = m.Boolean()
        raw = m.Bytes()
        text = m.String()
        null = m.Null()
        sure = m.Integer(required=True, default=3)
        sure_text = m.String(required=True)
        deep = m.Array(m.Array(m.Integer()))

    class Child(Order):
        more = m.Integer()

    class Given(m.Record):
        line = Line(default=Line(item="soup"), required_default=False)

    return SimpleNamespace(
        m=m, Line=Line, OtherLine=OtherLine, Order=Order, Child=Child, Given=Given, **vars(m)
    )


OURS, THEIRS = classes(ours), classes(theirs)


def outcome(action: Callable[[Any], Any], k: SimpleNamespace) -> str:
    """The value as text, a record by the name of its class, or the class and text of the error."""
    try:
        value = action(k)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return type(value).__name__ if isinstance(value, k.m.Record) else repr(value)


def assigned(record: Any, name: str, value: object) -> Any:
    """What an attribute is after an assignment."""
    setattr(record, name, value)
    return getattr(record, name)


ALIKE: list[tuple[Callable[[Any], Any], str]] = [
    # numbers: the type is checked, not the range
    (
        lambda k: k.Order(table="x"),
        "TypeError: Invalid type '<class 'str'>' for field 'table'. Expected: int",
    ),
    (
        lambda k: k.Order(table=None),
        "TypeError: Invalid type '<class 'NoneType'>' for field 'table'. Expected: int",
    ),
    (
        lambda k: k.Order(integer=1.5),
        "TypeError: Invalid type '<class 'float'>' for field 'integer'. Expected: int",
    ),
    (lambda k: k.Order(integer=True).integer, "True"),
    (lambda k: k.Order(integer=2**40).integer, "1099511627776"),
    (lambda k: k.Order(long=2**70).long, "1180591620717411303424"),
    (lambda k: k.Order(long="1"), "TypeError: Invalid type '<class 'str'>' for field 'long'. Expected: int"),
    (
        lambda k: k.Order(single="1"),
        "TypeError: Invalid type '<class 'str'>' for field 'single'. Expected: "
        "(<class 'float'>, <class 'int'>)",
    ),
    (lambda k: k.Order(single=1).single, "1"),
    (lambda k: k.Order(double=None).double, "2.5"),
    (lambda k: k.Order(flag=1), "TypeError: Invalid type '<class 'int'>' for field 'flag'. Expected: bool"),
    (lambda k: k.Order(flag=None).flag, "False"),
    (
        lambda k: k.Order(sure=None),
        "TypeError: Invalid type '<class 'NoneType'>' for field 'sure'. Expected: int",
    ),
    (lambda k: k.Order().sure, "3"),
    # texts, bytes and null
    (
        lambda k: k.Order(text=1),
        "TypeError: Invalid type '<class 'int'>' for field 'text'. Expected a string",
    ),
    (lambda k: k.Order(text=b"a").text, "'a'"),
    (lambda k: k.Order(text=None).text, "None"),
    (
        lambda k: k.Order(sure_text=None),
        "TypeError: Invalid type '<class 'NoneType'>' for field 'sure_text'. Expected a string",
    ),
    (lambda k: k.Order().sure_text, "None"),
    (lambda k: k.Order(raw="a").raw, "b'a'"),
    (lambda k: k.Order(raw=None).raw, "None"),
    (lambda k: k.Order(null=1), "TypeError: Field null is set to be None"),
    # enumerations
    (lambda k: k.Order(color=1).color, "<Color.red: 1>"),
    (lambda k: k.Order(color="red").color, "<Color.red: 1>"),
    (lambda k: k.Order(color=Color.green).color, "<Color.green: 2>"),
    (
        lambda k: k.Order(color="blue"),
        "TypeError: Invalid enum value 'blue' for field 'color'. Expected: dict_keys(['red', 'green'])",
    ),
    (
        lambda k: k.Order(color=7),
        "TypeError: Invalid enum value '7' for field 'color'. Expected: dict_keys([1, 2])",
    ),
    (
        lambda k: k.Order(color=1.0),
        "TypeError: Invalid type '<class 'float'>' for field 'color'. Expected: Color",
    ),
    (
        lambda k: k.Order(color=True),
        "TypeError: Invalid type '<class 'bool'>' for field 'color'. Expected: Color",
    ),
    (
        lambda k: k.Order(color=Other.red),
        "TypeError: Invalid type '<enum 'Other'>' for field 'color'. Expected: Color",
    ),
    (
        lambda k: k.Order(color=[]),
        "TypeError: Invalid type '<class 'list'>' for field 'color'. Expected: Color",
    ),
    (lambda k: k.Order(word=None).word, "None"),
    (lambda k: k.Order().word, "<Word.a: 'x'>"),
    # arrays
    (lambda k: k.Order(words=1), "TypeError: Invalid type '<class 'int'>' for field 'words'. Expected: list"),
    (
        lambda k: k.Order(words=("a",)),
        "TypeError: Invalid type '<class 'tuple'>' for field 'words'. Expected: list",
    ),
    (lambda k: k.Order(words=[1]), "TypeError: Array field words items should all be of type string"),
    (lambda k: k.Order(words=["a", None]), "TypeError: Array field words items should all be of type string"),
    (lambda k: k.Order(words=[b"a"]).words, "[b'a']"),
    (lambda k: k.Order(words=None).words, "None"),
    (lambda k: k.Order(deep=[["a"]]).deep, "[['a']]"),
    (lambda k: k.Order(deep=["a"]), "TypeError: Array field deep items should all be of type array"),
    (lambda k: k.Order(lines=[1]), "TypeError: Array field lines items should all be of type Line"),
    (
        lambda k: k.Order(lines=[k.OtherLine(item="a")]),
        "TypeError: Array field lines items should all be of type Line",
    ),
    (lambda k: k.Order(lines=[{"item": "a"}]).lines[0].count, "1"),
    (lambda k: k.Order(lines=[]).lines, "[]"),
    # maps
    (
        lambda k: k.Order(numbers=1),
        "TypeError: Invalid type '<class 'int'>' for field 'numbers'. Expected: dict",
    ),
    (
        lambda k: k.Order(numbers={"a": "b"}),
        "TypeError: Map values for field numbers should all be of type int",
    ),
    (
        lambda k: k.Order(numbers={"a": None}),
        "TypeError: Map values for field numbers should all be of type int",
    ),
    (lambda k: k.Order(numbers={1: 1}), "TypeError: Map keys for field numbers  should all be strings"),
    (lambda k: k.Order(by={"k": {"item": "a"}}).by["k"].item, "'a'"),
    (lambda k: k.Order(by={"k": 1}), "TypeError: Map values for field by should all be of type Line"),
    (
        lambda k: k.Map(k.String()).validate_type("f", {"a": 1}),
        "TypeError: Map values for field f should all be of type (<class 'str'>, <class 'bytes'>)",
    ),
    # records in records
    (
        lambda k: k.Order(line=1),
        "TypeError: Invalid type '<class 'int'>' for sub-record field 'line'. Expected: Line",
    ),
    (lambda k: k.Order(line={"item": "a"}).line.count, "1"),
    (
        lambda k: k.Order(line={"item": 1}),
        "TypeError: Invalid type '<class 'int'>' for field 'item'. Expected a string",
    ),
    (lambda k: k.Order(line=None).line, "None"),
    (
        lambda k: k.Order(must=None),
        "TypeError: Invalid type '<class 'NoneType'>' for sub-record field 'must'. Expected: Line",
    ),
    (lambda k: (k.Order().line.item, k.Order().must.count), "(None, 1)"),
    (lambda k: k.Given(line=None).line.item, "'soup'"),
    (lambda k: (k.Given().line.item, k.Given().line.count), "(None, 1)"),
    # attributes after construction
    (lambda k: assigned(k.Order(), "integer", 3), "3"),
    (lambda k: assigned(k.Order(), "color", "green"), "<Color.green: 2>"),
    (lambda k: assigned(k.Order(), "text", b"x"), "'x'"),
    (
        lambda k: assigned(k.Order(), "table", None),
        "TypeError: Invalid type '<class 'NoneType'>' for field 'table'. Expected: int",
    ),
    (
        lambda k: assigned(k.Order(), "words", [1]),
        "TypeError: Array field words items should all be of type string",
    ),
    (
        lambda k: assigned(k.Order(), "line", {"item": "x"}),
        "TypeError: Invalid type '<class 'dict'>' for sub-record field 'line'. Expected: Line",
    ),
    (
        lambda k: assigned(k.Order(), "lines", [{"item": "x"}]),
        "TypeError: Array field lines items should all be of type Line",
    ),
    (lambda k: k.Order().nope, "AttributeError: 'Order' object has no attribute 'nope'"),
    (lambda k: assigned(k.Line(), "_required", True), "True"),
    # equality, text, options
    (lambda k: k.Order(integer=1) == k.Order(integer=1), "True"),
    (lambda k: k.Order(integer=1) != k.Order(integer=2), "True"),
    (lambda k: k.OtherLine(item="a") == k.Line(item="a"), "True"),
    (lambda k: hash(k.Line()), "TypeError: unhashable type: 'Line'"),
    (
        lambda k: str(k.Line(required=True, item="a")),
        "\"{'_required_default': False, '_default': None, '_required': True, 'item': 'a', 'count': 1}\"",
    ),
    (lambda k: (k.Line(None, True, True)._required, k.Line(None, True)._required_default), "(True, True)"),
    (lambda k: k.Line().required_default(), "False"),
    (lambda k: (k.Integer(3, True, True).default(), k.Integer(3, True)._required), "(3, True)"),
    # fields by themselves
    (
        lambda k: k.Integer(default="x"),
        "TypeError: Invalid type '<class 'str'>' for field 'default'. Expected: int",
    ),
    (
        lambda k: k.String(default=1),
        "TypeError: Invalid type '<class 'int'>' for field 'default'. Expected a string",
    ),
    (lambda k: k.Null(default=1), "TypeError: Field default is set to be None"),
    (
        lambda k: k.Array(k.Integer(), default=["x"]),
        "TypeError: Array field default items should all be of type int",
    ),
    (
        lambda k: k.Map(k.Integer(), default={"a": "x"}),
        "TypeError: Map values for field default should all be of type int",
    ),
    (lambda k: k.CustomEnum(Color, default="red").default(), "<Color.red: 1>"),
    (
        lambda k: k.CustomEnum(Color, default="nope"),
        "TypeError: Invalid enum value 'nope' for field 'default'. Expected: dict_keys(['red', 'green'])",
    ),
    (lambda k: k.Array(k.Line()).array_type.type(), "'Line'"),
    (lambda k: k.Map(k.Line()).schema()["values"]["name"], "'Line'"),
    # schemas
    (lambda k: k.JsonSchema(k.Line).decode(b'{"item": "a", "further": 1}').item, "'a'"),
    (lambda k: k.JsonSchema(k.Order).decode(b'{"lines": [{"further": 1}]}').lines[0].count, "1"),
    (
        lambda k: k.JsonSchema(k.Line).decode(b'{"item": null}'),
        "TypeError: Invalid type '<class 'NoneType'>' for field 'item'. Expected a string",
    ),
    (lambda k: k.JsonSchema(k.Line).encode(k.Child(more=1)).__class__, "TypeError"),
]

# Where the two differ: the outcome here, and that of pulsar-client.
DIFFERENT: list[tuple[Callable[[Any], Any], str, str]] = [
    # pulsar-client drops what is not a field
    (
        lambda k: k.OtherLine(item="a", c=8),
        "AttributeError: Cannot set undeclared field c on record OtherLine, which has the fields item",
        "OtherLine",
    ),
    (
        lambda k: k.Order(line={"item": "a", "c": 8}),
        "AttributeError: Cannot set undeclared field c on record Line, which has the fields item, count",
        "Order",
    ),
    (
        lambda k: k.Child(more=1, table=2),
        "AttributeError: Cannot set undeclared field table on record Child, which has the fields more; "
        "fields of a parent class are not inherited: declare it again",
        "Child",
    ),
    (
        lambda k: k.OtherLine("a"),
        "TypeError: Invalid type '<class 'str'>' for sub-record field 'default'. Expected: OtherLine; the "
        "values of fields are given by their names",
        "OtherLine",
    ),
    (
        lambda k: k.OtherLine(None, False, False, "a"),
        "TypeError: OtherLine takes the values of its fields by their names, not by position",
        "OtherLine",
    ),
    # the same class of error, and a text that says more
    (
        lambda k: k.Record(a=1, c=8),
        "AttributeError: Cannot set undeclared field a on record Record, which has the fields none",
        "AttributeError: 'Record' object has no attribute '_fields'",
    ),
    (
        lambda k: assigned(k.OtherLine(), "c", 1),
        "AttributeError: Cannot set undeclared field c on record OtherLine, which has the fields item",
        "AttributeError: Cannot set undeclared field c on record",
    ),
    (
        lambda k: k.Array(int),
        "TypeError: Argument int is not a Record or a Field: give an object, String() for example",
        "Exception: Argument int is not a Record or a Field",
    ),
    (
        lambda k: k.CustomEnum(int),
        "TypeError: int is not a valid Enum type: derive it from enum.Enum",
        "Exception: int is not a valid Enum type",
    ),
    # what pulsar-client lets in, or refuses
    (
        lambda k: k.Order(raw=1),
        "TypeError: Invalid type '<class 'int'>' for field 'raw'. Expected: (<class 'bytes'>, <class 'str'>)",
        "Order",
    ),
    (
        lambda k: k.Order(word="x").word,
        "<Word.a: 'x'>",
        "TypeError: Invalid enum value 'x' for field 'word'. Expected: dict_keys(['a'])",
    ),
    (
        lambda k: k.Array(k.CustomEnum(Color)).validate_type("f", ["red"]),
        "[<Color.red: 1>]",
        "TypeError: Array field f items should all be of type enum",
    ),
    (
        lambda k: k.Line(item="a") == 1,
        "False",
        "AttributeError: 'int' object has no attribute 'item'",
    ),
    (
        lambda k: k.JsonSchema(k.OtherLine).decode(b"[]"),
        "TypeError: the payload is of type list, not an object with the fields of OtherLine",
        "TypeError: test_records_beside_pulsar.classes.<locals>.OtherLine() argument after ** must be a "
        "mapping, not list",
    ),
]


@pytest.mark.parametrize(("action", "expected"), ALIKE, ids=[str(index) for index in range(len(ALIKE))])
def test_what_is_as_in_pulsar_client(action: Callable[[Any], Any], expected: str):
    """The value, or the error with its text."""
    found, other = outcome(action, OURS), outcome(action, THEIRS)
    if expected.isidentifier():  # the class of an error whose text names the library
        found, other = found.partition(":")[0], other.partition(":")[0]
    assert (found, other) == (expected, expected)


@pytest.mark.parametrize(
    ("action", "expected", "in_pulsar"), DIFFERENT, ids=[str(index) for index in range(len(DIFFERENT))]
)
def test_what_differs_from_pulsar_client(action: Callable[[Any], Any], expected: str, in_pulsar: str):
    """On purpose: see docs/compatibility.md."""
    other = outcome(action, THEIRS).replace("tests.unit.schema.", "")
    assert (outcome(action, OURS), other) == (expected, in_pulsar)
