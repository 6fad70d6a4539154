"""Unit tests of embeddedpulsar.schema, beside pulsar.schema."""

from __future__ import annotations

from typing import Any

import pulsar.schema
import pytest

import embeddedpulsar.schema
from embeddedpulsar.enums import SchemaType

VALUES = [b"", b"abc", "", "héllo", 5, None, bytearray(b"a"), memoryview(b"a"), 1.5, ["a"]]


def outcome(function: Any, argument: object) -> Any:
    """The result of a call, or the error's class and text."""
    try:
        return function(argument)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", ["BytesSchema", "StringSchema"])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}-{str(value)[:8]}")
def test_encode_is_that_of_pulsar_client(name: str, value: object):
    """What is encoded is the same, and what is not is a TypeError whose text begins with the same words."""
    ours, theirs = getattr(embeddedpulsar.schema, name)(), getattr(pulsar.schema, name)()
    found, expected = outcome(ours.encode, value), outcome(theirs.encode, value)
    if isinstance(expected, tuple):
        assert found[0] is expected[0] is TypeError
        assert found[1].startswith(expected[1])
    else:
        assert found == expected


@pytest.mark.parametrize("name", ["BytesSchema", "StringSchema"])
@pytest.mark.parametrize("data", [b"", b"abc", "héllo".encode(), b"\xff"])
def test_decode_is_that_of_pulsar_client(name: str, data: bytes):
    """Values and errors of decode are the same."""
    ours, theirs = getattr(embeddedpulsar.schema, name)(), getattr(pulsar.schema, name)()
    assert outcome(ours.decode, data) == outcome(theirs.decode, data)


@pytest.mark.parametrize("name", ["BytesSchema", "StringSchema"])
def test_description_is_that_of_pulsar_client(name: str):
    """Type, name, definition and text are the same."""
    ours, theirs = getattr(embeddedpulsar.schema, name)(), getattr(pulsar.schema, name)()
    info, expected = ours.schema_info(), theirs.schema_info()
    assert int(info.schema_type()) == int(expected.schema_type())
    assert (info.name(), info.schema()) == (expected.name(), expected.schema())
    assert str(ours) == str(theirs)


def test_a_codec_of_your_own():
    """A subclass with encode and decode is a schema; without them it says what is missing."""

    class Number(embeddedpulsar.schema.Schema[int]):
        def __init__(self) -> None:
            super().__init__(int, SchemaType.JSON, {"type": "int"}, "number")

    number = Number()
    assert number.schema_info().schema() == '{\n "type": "int"\n}'
    assert repr(number) == "<Number>"
    with pytest.raises(NotImplementedError, match=r"Number does not define encode\(\)"):
        number.encode(1)
    with pytest.raises(NotImplementedError, match=r"Number does not define decode\(\)"):
        number.decode(b"1")
