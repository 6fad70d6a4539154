"""Models: dataclasses, pydantic models and msgspec structs as the classes of a JSON schema."""

from __future__ import annotations

import datetime
import json
import types
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.json_text import loads

_PRIMITIVES = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
}
# Written as text; the second is how text is read.
_TEXTS: dict[Any, Callable[[str], Any]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    Decimal: Decimal,
    UUID: UUID,
}
_ABSENT = object()

Codec = tuple[dict[str, Any], Callable[[Any], bytes], Callable[[bytes], Any]]


class Attribute(NamedTuple):
    """An attribute of a model: its name in JSON, its type, and its default or _ABSENT."""

    name: str
    hint: Any
    default: Any


def model_codec(kind: Any) -> Codec:
    """Definition, encoder and decoder of a model class.

    Raises:
        TypeError: the class is no model, or the type of an attribute has no JSON form.
    """
    if not isinstance(kind, type) or _attributes(kind) is None:
        text = "is not a Record, a dataclass, a pydantic model or a msgspec.Struct"
        raise TypeError(f"{getattr(kind, '__name__', kind)} {text}")
    definition = _definition(kind, set())
    if hasattr(kind, "model_validate_json"):
        return definition, lambda value: _pydantic_bytes(value), kind.model_validate_json
    if hasattr(kind, "__struct_fields__"):
        import msgspec

        return definition, msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode
    return definition, _dataclass_bytes, lambda data: _built(kind, loads(data))


def _pydantic_bytes(value: Any) -> bytes:
    text: str = value.model_dump_json(by_alias=True)
    return text.encode()


def _attributes(kind: Any) -> list[Attribute] | None:
    """The attributes of a model class; None if it is another class."""
    if hasattr(kind, "model_fields") and hasattr(kind, "model_validate_json"):
        hints = get_type_hints(kind)
        found = []
        for name, info in kind.model_fields.items():
            alias = info.serialization_alias or name
            default = info.default
            found.append(Attribute(alias, hints[name], default if _is_plain(default) else _ABSENT))
        return found
    if hasattr(kind, "__struct_fields__"):
        hints = get_type_hints(kind)
        defaults = dict(zip(kind.__struct_fields__[::-1], kind.__struct_defaults__[::-1], strict=False))
        names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        return [
            Attribute(
                encoded, hints[name], value if _is_plain(value := defaults.get(name, _ABSENT)) else _ABSENT
            )
            for name, encoded in names
        ]
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses

        hints = get_type_hints(kind)
        return [
            Attribute(item.name, hints[item.name], item.default if _is_plain(item.default) else _ABSENT)
            for item in dataclasses.fields(kind)
            if item.init
        ]
    return None


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def _definition(hint: Any, defined: set[str]) -> Any:
    """The definition of a type, in Avro's notation. Named types are written out once."""
    primitive = _PRIMITIVES.get(hint) if isinstance(hint, type) else None
    if primitive is not None:
        return primitive
    if hint in _TEXTS:
        return "string"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _definition(arguments[0], defined)
    if origin is Literal and all(isinstance(value, str) for value in arguments):
        return "string"
    if origin in (Union, types.UnionType):
        # null first: only so may it be the default
        ordered = sorted(arguments, key=lambda argument: argument is not type(None))
        return [_definition(argument, defined) for argument in ordered]
    if _is_list(origin, arguments):
        return {"type": "array", "items": _definition(arguments[0], defined)}
    if _is_map(origin, arguments):
        return {"type": "map", "values": _definition(arguments[1], defined)}
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return _enum_definition(hint, defined)
        attributes = _attributes(hint)
        if attributes is not None:
            return _record_definition(hint.__name__, attributes, defined)
    raise TypeError(f"the type {hint} has no JSON form in a schema; give the attribute a more precise type")


def _is_list(origin: Any, arguments: Sequence[Any]) -> bool:
    return origin in (list, set, frozenset, Sequence) or (origin is tuple and arguments[1:] == (...,))


def _is_map(origin: Any, arguments: Sequence[Any]) -> bool:
    return origin in (dict, Mapping) and arguments[0] is str


def _enum_definition(kind: type[Enum], defined: set[str]) -> Any:
    if kind.__name__ in defined:
        return kind.__name__
    defined.add(kind.__name__)
    return {"type": "enum", "name": kind.__name__, "symbols": [member.name for member in kind]}


def _record_definition(name: str, attributes: list[Attribute], defined: set[str]) -> Any:
    if name in defined:
        return name
    defined.add(name)
    fields = []
    for attribute in attributes:
        kind = _definition(attribute.hint, defined)
        field: dict[str, Any] = {"name": attribute.name, "type": kind}
        first = kind[0] if isinstance(kind, list) else kind
        if first == _PRIMITIVES.get(type(attribute.default)):
            field["default"] = attribute.default
        fields.append(field)
    return {"type": "record", "name": name, "fields": fields}


def _dataclass_bytes(value: Any) -> bytes:
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """A value of the kinds that `json` knows."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, bytes):
        return value.decode()
    if kind in _TEXTS:
        return value.isoformat() if hasattr(value, "isoformat") else str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    raise TypeError(f"{kind.__name__} has no JSON form")


def _built(hint: Any, value: Any) -> Any:
    """The value of a type of a dataclass's attribute, from what `_plain` makes of it.

    Raises:
        TypeError: the value has another type.
        ValueError: text that is not the form of the type, or no member of the enumeration.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _built(arguments[0], value)
    if origin in (Union, types.UnionType):
        return _built_one_of(arguments, value)
    if origin is Literal:
        if value not in arguments:
            raise TypeError(f"{value!r} is none of {arguments}")
        return value
    if _is_list(origin, arguments) and isinstance(value, list):
        items = [_built(arguments[0], item) for item in value]
        return items if origin in (list, Sequence) else origin(items)
    if _is_map(origin, arguments) and isinstance(value, dict):
        return {key: _built(arguments[1], item) for key, item in value.items()}
    if hint in _TEXTS and isinstance(value, str):
        return _TEXTS[hint](value)
    if hint is float and type(value) is int:
        return float(value)
    if hint is bytes and isinstance(value, str):
        return value.encode()
    if hint in _PRIMITIVES and type(value) is hint:
        return value
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if hasattr(hint, "__dataclass_fields__") and isinstance(value, dict):
        attributes = _attributes(hint) or ()
        # What the class does not know is left out: a newer program may have written it.
        known = {name: _built(kind, value[name]) for name, kind, _ in attributes if name in value}
        return hint(**known)
    raise TypeError(f"{value!r} is not of type {hint}")


def _built_one_of(hints: Sequence[Any], value: Any) -> Any:
    for hint in hints:
        try:
            return _built(hint, value)
        except (TypeError, ValueError):
            continue
    raise TypeError(f"{value!r} is of none of the types {hints}")
