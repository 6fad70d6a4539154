"""Unit tests of JsonSchema with models of other libraries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Literal
from uuid import UUID

import pytest

import embeddedpulsar.schema.json_text as module
from embeddedpulsar.schema import Integer, JsonSchema, Record


class Color(Enum):
    """An enumeration with a value that is not its name."""

    red = "RED"


@dataclass
class Item:
    """Used twice."""

    name: str
    price: Decimal = Decimal("1.50")


@dataclass
class Order:
    """Every kind of attribute."""

    number: int
    weight: float
    paid: bool
    raw: bytes
    when: datetime
    day: date
    key: UUID
    color: Color
    item: Item
    items: list[Item]
    by_name: dict[str, Item]
    tags: tuple[str, ...] = ()
    note: str | None = None
    size: Literal["s", "l"] = "s"
    count: int = 3
    either: int | str = 1
    odd: list[int] = field(default_factory=list)


ORDER = Order(
    7, 2.0, True, b"abc", datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), UUID(int=5), Color.red,
    Item("é"), [Item("a"), Item("b", Decimal(2))], {"k": Item("c")}, ("x",), "n",
)  # fmt: skip


def test_a_dataclass():
    """Definition, text and value; types are defined once."""
    schema = JsonSchema(Order)
    data = schema.encode(ORDER)
    assert schema.decode(data) == ORDER
    assert data.startswith(
        b'{"number":7,"weight":2.0,"paid":true,"raw":"abc","when":"2026-01-02T00:00:00+00:00"'
    )
    definition = json.loads(schema.schema_info().schema())
    fields = {one["name"]: one for one in definition["fields"]}
    assert definition["name"] == "Order" and fields["number"] == {"name": "number", "type": "long"}
    assert fields["note"] == {"name": "note", "type": ["null", "string"], "default": None}
    assert fields["count"] == {"name": "count", "type": "long", "default": 3}
    assert fields["items"]["type"] == {"type": "array", "items": "Item"}
    assert fields["color"]["type"] == {"type": "enum", "name": "Color", "symbols": ["red"]}
    assert fields["either"]["type"] == ["long", "string"]


def test_a_dataclass_of_another_version():
    """Attributes that are missing have their defaults; attributes that are not known are left out."""
    schema = JsonSchema(Item)
    assert schema.decode(b'{"name": "a", "colour": 1}') == Item("a")
    with pytest.raises(TypeError):
        schema.decode(b"{}")
    with pytest.raises(TypeError, match="is not of type"):
        schema.decode(b'{"name": 1}')
    with pytest.raises(ValueError):
        schema.decode(b"{")
    with pytest.raises(TypeError):
        schema.encode({"name": "a"})  # type: ignore[arg-type]


def test_a_pydantic_model():
    """Validated by pydantic, with its names in JSON."""
    pydantic = pytest.importorskip("pydantic", reason="not installed")

    class Shop(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        name: str
        size: int = pydantic.Field(default=2, alias="theSize")
        note: str | None = None
        color: Color = Color.red

    schema = JsonSchema(Shop)
    value = Shop(name="a", theSize=3)
    data = schema.encode(value)
    assert json.loads(data) == {"name": "a", "theSize": 3, "note": None, "color": "RED"}
    assert schema.decode(data) == value
    with pytest.raises(ValueError):
        schema.decode(b'{"name": []}')
    assert json.loads(schema.schema_info().schema())["fields"][1] == {
        "name": "theSize",
        "type": "long",
        "default": 2,
    }


def test_a_msgspec_struct():
    """Validated by msgspec, with its names in JSON."""
    msgspec = pytest.importorskip("msgspec", reason="not installed")

    class Inner(msgspec.Struct):  # type: ignore[misc, name-defined]
        x: int = 1

    class Shop(msgspec.Struct, rename="camel"):  # type: ignore[misc, name-defined, call-arg]
        shop_name: str
        inner: Inner
        size: int = 2

    Shop.__annotations__["inner"] = Inner  # the class is local to this test
    schema = JsonSchema(Shop)
    value = Shop("a", Inner())
    data = schema.encode(value)
    assert json.loads(data) == {"shopName": "a", "inner": {"x": 1}, "size": 2}
    assert schema.decode(data) == value
    fields = json.loads(schema.schema_info().schema())["fields"]
    assert [one["name"] for one in fields] == ["shopName", "inner", "size"]
    assert fields[2]["default"] == 2 and "default" not in fields[0]


class Number(Record):
    """One number."""

    n = Integer()


@pytest.mark.parametrize("decoder", ["msgspec", "orjson", "json"])
def test_the_decoders_give_the_same(monkeypatch: pytest.MonkeyPatch, decoder: str):
    """Whichever is installed: long integers stay exact, and what only `json` reads is read."""
    pytest.importorskip(decoder, reason="not installed")
    monkeypatch.setattr(module, "find_spec", lambda name: name == decoder)
    monkeypatch.setattr(module, "_fast_loads", module._fastest_loads())
    for text in (
        "[1, 1.5, null]",
        "123456789012345678901234567890",
        "-9223372036854775809",
        "Infinity",
        '"\\ud800"',
    ):
        found = module.loads(text.encode())
        assert found == json.loads(text) and type(found) is type(json.loads(text))
    with pytest.raises(ValueError):
        module.loads(b"{]")
    assert JsonSchema(Number).decode(b'{"n": 4}').n == 4
