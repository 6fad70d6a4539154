"""Values of JSON, as Python has them, for columns of Arrow: what does not fit a column is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from embeddedpulsar.arrow.value_types import ValueType

Convert = Callable[[Any], Any]
_MOST_MS: Final = (2**63 - 1) // 1000
"""The last millisecond that a column of microseconds has."""
_LARGEST_FLOAT32: Final = 3.4028235677973366e38
"""From here on, a number is rounded to infinity."""


def converter(kind: ValueType) -> Convert:
    """The function that makes of a value of a field what `pa.array` takes for its type in JSON.

    It does what Arrow's parser of JSON does with the text of the value: there is no conversion of one kind
    into another, except of whole numbers into decimal ones.

    Raises (the function):
        ValueError: the value is of another kind, or out of range.

    Example:
        >>> converter(ValueType(pa.int32(), pa.int32(), pa.int32()))(7)
        7
        >>> converter(ValueType(pa.int8(), pa.int8(), pa.int8()))(300)
        Traceback (most recent call last):
        ValueError: 300 is out of the range of int8
    """
    return _nullable(_converter(kind.final, kind.raw, kind.between))


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _converter(final: Any, raw: Any, between: Any) -> Convert:
    types = pa.types
    if types.is_struct(raw):
        return _of_struct(
            {
                part.name: converter(ValueType(final[i].type, part.type, between[i].type))
                for i, part in enumerate(raw)
            }
        )
    if types.is_list(raw):
        return _of_list(converter(ValueType(final.value_type, raw.value_type, between.value_type)))
    if types.is_map(raw):
        return _of_map(converter(ValueType(final.item_type, raw.item_type, between.item_type)))
    if types.is_integer(raw):
        if types.is_timestamp(between) and between.unit == "ms" and final.unit == "us":
            return _of_int(raw, -_MOST_MS, _MOST_MS)
        limit = 1 << (raw.bit_width - 1)
        return _of_int(raw, -limit, limit - 1)
    if types.is_floating(raw):
        return _of_float(raw)
    if types.is_boolean(raw):
        return _of_kind((bool,), raw)
    if types.is_string(raw):
        return _of_text(raw)
    if types.is_binary(raw):
        text = _of_text(raw)
        return lambda value: text(value).encode()
    if types.is_null(raw):
        return _of_kind((), raw)
    return lambda value: value  # decimal numbers: Arrow checks them exactly


def _unfit(value: Any, raw: Any) -> ValueError:
    text = repr(value)
    return ValueError(f"{text if len(text) <= 40 else text[:39] + '…'} is no {raw}")


def _of_kind(kinds: tuple[type, ...], raw: Any) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) not in kinds:
            raise _unfit(value, raw)
        return value

    return convert


def _of_int(raw: Any, low: int, high: int) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not int:
            raise _unfit(value, raw)
        if not low <= value <= high:
            raise ValueError(f"{value} is out of the range of {raw}")
        return value

    return convert


def _of_float(raw: Any) -> Convert:
    is_short = raw == pa.float32()

    def convert(value: Any) -> float:
        if isinstance(value, bool | str | list | dict):
            raise _unfit(value, raw)
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"a number of {len(str(value))} digits is out of the range of {raw}") from None
        if is_short and _LARGEST_FLOAT32 <= abs(number) < float("inf"):
            raise ValueError(f"{value} is out of the range of {raw}")
        return number

    return convert


def _of_text(raw: Any) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise _unfit(value, raw)
        if not value.isascii():
            value.encode()  # refuses half of a pair of surrogates
        return value

    return convert


def _of_list(convert_item: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _unfit(value, "array")
        return [convert_item(item) for item in value]

    return convert


def _of_map(convert_item: Convert) -> Convert:
    convert_key = _of_text("text")

    def convert(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise _unfit(value, "object")
        return [(convert_key(key), convert_item(item)) for key, item in value.items()]

    return convert


def _of_struct(parts: dict[str, Convert]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _unfit(value, "object")
        return {name: convert_part(value.get(name)) for name, convert_part in parts.items()}

    return convert
