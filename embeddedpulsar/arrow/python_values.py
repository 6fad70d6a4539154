"""Values of Arrow arrays as Python has them, made column by column. Hot: `send_arrow`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_FORMATS: Final[dict[Any, Any]] = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint8(): "B",
    pa.uint16(): "H",
    pa.uint32(): "I",
    pa.uint64(): "Q",
    pa.float32(): "f",
    pa.float64(): "d",
}
_types: Final = pa.types


def python_values(values: Any) -> list[Any]:
    """The values of an array, maps as dicts.

    ``to_pylist`` makes an object of Arrow for each value, which takes longer than to encode it; here this is
    left to types that are rare.

    Raises:
        ValueError, KeyError: a value that Python does not have, or a map with a key twice.

    Example:
        >>> python_values(pa.array([{"a": 1, "b": ["x"]}, None]))
        [{'a': 1, 'b': ['x']}, None]
    """
    kind = values.type
    if not len(values) or values.null_count == len(values):
        return [None] * len(values)
    make = _maker(kind)
    if make is None:
        found: list[Any] = values.to_pylist(maps_as_pydicts="strict")
        return found
    found = make(values)
    if values.null_count:
        for at in _numbers(pc.indices_nonzero(pc.is_null(values))):
            found[at] = None
    return found


def _maker(kind: Any) -> Callable[[Any], list[Any]] | None:
    if kind in _FORMATS:
        return _numbers
    if _types.is_struct(kind):
        return _structs
    if _types.is_list(kind) or _types.is_large_list(kind):
        return _lists
    if _types.is_string(kind) or _types.is_large_string(kind) or kind == pa.string_view():
        return _texts
    return _members if _types.is_dictionary(kind) else None


def _numbers(values: Any) -> list[Any]:
    kind = values.type
    width, count = kind.bit_width // 8, len(values)
    data = values.buffers()[1].slice(width * values.offset, width * count)
    return memoryview(data).cast("B").cast(_FORMATS[kind]).tolist()


def _structs(values: Any) -> list[Any]:
    names = [part.name for part in values.type]
    if not names:
        return [{} for _ in range(len(values))]
    parts = map(python_values, values.flatten())  # null where the struct is
    return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]


def _lists(values: Any) -> list[Any]:
    lengths = _numbers(pc.fill_null(pc.list_value_length(values), 0))
    items, at, found = python_values(values.flatten()), 0, []  # without those of null lists
    for length in lengths:
        found.append(items[at : at + length])
        at += length
    return found


def _texts(values: Any) -> list[Any]:
    wide = pc.fill_null(values.cast(pa.large_string()), "")
    ends = _numbers(
        pa.Array.from_buffers(pa.int64(), len(wide) + 1, [None, wide.buffers()[1]], 0, wide.offset)
    )
    data = wide.buffers()[2]
    try:
        text = str(memoryview(data.slice(ends[0], ends[-1] - ends[0])), "ascii") if data is not None else ""
    except UnicodeDecodeError:  # characters have not all one byte
        found: list[Any] = values.to_pylist()
        return found
    first = ends[0]
    return [text[start - first : end - first] for start, end in pairwise(ends)]


def _members(values: Any) -> list[Any]:
    members = python_values(values.dictionary)
    return [members[at] for at in _numbers(pc.fill_null(values.indices, 0))]
