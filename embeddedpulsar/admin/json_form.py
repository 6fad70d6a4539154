"""The JSON form of result types, with the names of fields that Pulsar has."""

from __future__ import annotations

from typing import Any

from embeddedpulsar.policy_values import camel_case


def json_form(value: Any) -> Any:
    """The value as dicts, lists, strings and numbers. Fields that are None are left out.

    >>> from typing import NamedTuple
    >>> class Size(NamedTuple):
    ...     storage_size: int
    ...     offload: int | None = None
    >>> json_form({"a": [Size(7)]})
    {'a': [{'storageSize': 7}]}
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {
            camel_case(name): json_form(field)
            for name, field in zip(value._fields, value, strict=True)
            if field is not None
        }
    if isinstance(value, dict):
        return {key: json_form(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_form(one) for one in value]
    return value
