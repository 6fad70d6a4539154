"""Payloads of columns with a `key` and a `value`, by a schema of pairs: the opposite of `pair_decoder`."""

from __future__ import annotations

import base64
from typing import Any, Final

import pyarrow as pa

from embeddedpulsar.arrow.pair_decoder import PARTS
from embeddedpulsar.arrow.plain_encoder import PlainEncoder, is_payload
from embeddedpulsar.arrow.value_encoder import ValueEncoder
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema.key_value import joined_pair, key_bytes
from embeddedpulsar.schema.key_value_info import KeyValueInfo
from embeddedpulsar.schema.schema import SchemaInfo
from embeddedpulsar.schema_enums import KeyValueEncodingType


class PairEncoder:
    """Role: makes payloads of pairs, and keys of messages where the schema stores keys there. Invariants: a
    null pair is a null. Callers: one thread.

    Args:
        what: whose pairs they are, for errors.
        info: the schema.
        kind: the type of the pairs, a struct.

    Raises:
        InvalidConfiguration: the struct has other fields, or parts that do not fit.

    Attributes:
        separates_key: whether keys are those of messages.
    """

    def __init__(self, what: str, info: SchemaInfo, kind: Any) -> None:
        found = KeyValueInfo.of(info)
        given = [field.name for field in kind]
        if sorted(given) != list(PARTS):
            raise InvalidConfiguration(
                f"the schema of {what} is of type KEY_VALUE, so records have the fields key and value, not "
                f"{', '.join(given)}; either may be null"
            )
        self.separates_key: Final = found.encoding == KeyValueEncodingType.SEPARATED
        self._numbers: Final = [given.index(name) for name in PARTS]
        self._parts: Final = [
            payload_encoder(
                f"the {name} of {what}",
                part,
                kind.field(name).type,
                as_keys=self.separates_key and part is found.key,
            )
            for name, part in zip(PARTS, (found.key, found.value), strict=True)
        ]

    def encode(self, pairs: Any) -> Any:
        """The payloads of pairs; errors as of `ValueEncoder.encode`."""
        if self.separates_key:
            return self._part(pairs, 1)
        keys, values = (self._part(pairs, number).to_pylist() for number in range(2))
        is_there = pairs.is_valid().to_pylist()
        return pa.array(
            [
                joined_pair(key, value) if one else None
                for one, key, value in zip(is_there, keys, values, strict=True)
            ],
            pa.binary(),
        )

    def keys(self, pairs: Any) -> Any:
        """The keys of the messages, in Base64.

        Raises:
            ValueError: a key that is no bytes.
        """
        found = self._part(pairs, 0).to_pylist()
        if b"" in found:
            raise ValueError(
                "a key is encoded to no bytes, which is no key of a message; use another key, or "
                "KeyValueEncodingType.INLINE"
            )
        return pa.array([None if key is None else base64.b64encode(key) for key in found], pa.binary())

    def _part(self, pairs: Any, number: int) -> Any:
        column = pairs.flatten()[self._numbers[number]]
        encoder = self._parts[number]
        return column.cast(pa.binary()) if encoder is None else encoder.encode(column)


Encoder = ValueEncoder | PlainEncoder | PairEncoder


def payload_encoder(
    what: str, info: SchemaInfo | None, kind: Any, *, as_keys: bool = False
) -> Encoder | None:
    """What makes payloads of a column; None if it has payloads.

    Args:
        what: whose values they are: a topic, or a part of its pairs.
        info: the schema; None for none.
        kind: the type of the column.
        as_keys: see `ValueEncoder`.

    Raises:
        InvalidConfiguration: the schema has other values.
    """
    if is_payload(kind):
        return None
    if not pa.types.is_struct(kind):
        return PlainEncoder(what, info, kind)
    if info is not None and info.schema_type() == SchemaType.KEY_VALUE:
        return PairEncoder(what, info, kind)
    return ValueEncoder(what, info, kind, as_keys=as_keys)


def value_part(info: SchemaInfo | None) -> SchemaInfo | None:
    """The schema of the values alone, where keys are those of messages; None for another schema."""
    if info is None or info.schema_type() != SchemaType.KEY_VALUE:
        return None
    found = KeyValueInfo.of(info)
    return found.value if found.encoding == KeyValueEncodingType.SEPARATED else None


def check_keys(keys: Any) -> None:
    """Refuse keys of messages that are not in Base64, as the consumers of such a schema would.

    Raises:
        ValueError: one is not.
    """
    for key in keys.unique().to_pylist():
        if key:
            key_bytes(key if isinstance(key, str) else key.decode("ascii", "replace"))
