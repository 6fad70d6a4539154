"""JSON text of records, and its decoder."""

from __future__ import annotations

import json
import re
from enum import Enum
from importlib.util import find_spec
from typing import Any

from embeddedpulsar.schema.definition import Record, record_values


def _fastest_loads() -> Any:
    """The fastest decoder that is installed, of those that read any JSON value."""
    # Which decoder is installed must not decide what a program reads: those that are quicker are used as far
    # as they agree with `json`, and fall back to it.
    if find_spec("msgspec"):
        import msgspec

        return msgspec.json.decode
    if not find_spec("orjson"):
        return json.loads
    import orjson

    has_long_number = re.compile(rb"[0-9]{19}").search  # orjson makes floats of integers beyond 64 bits
    fast = orjson.loads
    return lambda data: json.loads(data) if has_long_number(data) else fast(data)


_fast_loads: Any = _fastest_loads()


def _fastest_dumps() -> Any:
    if find_spec("msgspec"):
        import msgspec

        return msgspec.json.encode
    # Without msgspec, decimal numbers and times become texts as well.
    return lambda value: json.dumps(value, separators=(",", ":"), default=str).encode()


dumps: Any = _fastest_dumps()
"""The JSON text of dicts, lists, texts, numbers and None, as bytes; decimal numbers are texts."""
_INFINITY = float("inf")
_string: Any = json.encoder.encode_basestring_ascii


def loads(data: bytes) -> Any:
    """The value of JSON text, the same whichever decoder is installed.

    Raises:
        ValueError: ``data`` is not JSON, or nested too deeply.
    """
    try:
        return _loads(data)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


def _loads(data: bytes) -> Any:
    try:
        return _fast_loads(data)
    except ValueError:
        return json.loads(data)  # the others refuse NaN, infinities and lone surrogates


def record_bytes(record: Record) -> bytes:
    """A record as JSON, to the byte what pulsar-client gives."""
    return _text(record, "\n").encode("ascii")


def _text(value: Any, line: str) -> str:
    """What `json.dumps` with an indent of one gives, which is slow: it uses no C code.

    Args:
        value: a record, or a value of one of its fields.
        line: line break and indent of the surrounding value.
    """
    # The types of JSON by identity, which is quicker than `isinstance`; what is derived from them comes last.
    kind = type(value)
    if kind is str:
        text: str = _string(value)
        return text
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    # `int.__repr__`, since a class derived from int may have another one.
    if kind is int:
        return int.__repr__(value)
    if kind is float and -_INFINITY < value < _INFINITY:
        return float.__repr__(value)
    if isinstance(value, Record):
        return _object_text(record_values(value), line)
    if kind is bytes:
        return str(_string(value.decode()))
    if isinstance(value, Enum):
        return _text(value.value, line)
    if kind is list:
        if not value:
            # The separators of `json.dumps` with an indent of one: a line for each item.
            return "[]"
        inner = line + " "
        return f"[{inner}{f',{inner}'.join([_text(item, inner) for item in value])}{line}]"
    # A key of another type becomes a text in `json`, by rules of its own.
    if kind is dict and all(type(key) is str for key in value):
        return _object_text(value, line)
    # NaN, infinities, and what a program has put into a container.
    return json.dumps(value, default=_builtin, indent=True).replace("\n", line)


def _object_text(fields: dict[str, Any], line: str) -> str:
    if not fields:
        return "{}"
    inner = line + " "
    text = f",{inner}".join([f"{_string(key)}: {_text(item, inner)}" for key, item in fields.items()])
    return f"{{{inner}{text}{line}}}"


def _builtin(value: Any) -> Any:
    """What `json.dumps` is to write for an object that it does not know."""
    if isinstance(value, Record):
        return record_values(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")
