"""The description of a schema of keys and values: those of its two parts, and where the key is stored."""

from __future__ import annotations

import json
from typing import Any, Final

from embeddedpulsar.enums import KeyValueEncodingType, SchemaType
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.avro_definition import json_of
from embeddedpulsar.schema.schema import SchemaInfo

NAME: Final = "KEY_VALUE"
_NO_DEFINITION: Final = ("", "null")
_ENCODING: Final = "kv.encoding.type"


class KeyValueInfo(NamedTuple):
    """What Pulsar keeps in the definition and in the properties of a ``KEY_VALUE`` schema.

    Attributes:
        key: the schema of the keys.
        value: that of the values.
        encoding: where the key is stored.
    """

    key: SchemaInfo
    value: SchemaInfo
    encoding: KeyValueEncodingType

    def info(self) -> SchemaInfo:
        """The description of the whole.

        Raises:
            ValueError: a part has a type that no topic keeps, a definition that is not JSON, or is a pair
                whose key is stored apart.
        """
        # Definitions within the definition, properties of the parts among the properties: the form in which
        # Pulsar stores a schema of pairs.
        trees = {"key": _tree(self.key), "value": _tree(self.value)}
        properties = {_ENCODING: self.encoding.name}
        for name, part in (("key", self.key), ("value", self.value)):
            properties[f"{name}.schema.name"] = part.name()
            properties[f"{name}.schema.type"] = part.schema_type().name
            properties[f"{name}.schema.properties"] = _compact(part.properties())
        return SchemaInfo(SchemaType.KEY_VALUE, NAME, _compact(trees), properties=properties)

    @classmethod
    def of(cls, info: SchemaInfo) -> KeyValueInfo:
        """The parts of a description. What properties lack is as in Pulsar: bytes, stored together.

        Raises:
            ValueError: it is not that of keys and values.
        """
        try:
            # What other clients wrote may lack any of this; Pulsar takes bytes that are stored together then.
            trees, properties = json_of(info.schema()), info.properties()
            encoding = KeyValueEncodingType[properties.get(_ENCODING, "INLINE")]
            key, value = (_part(name, trees[name], properties) for name in ("key", "value"))
        except (KeyError, TypeError, AttributeError) as error:
            text = "it needs a definition for each of key and value, and known types and a known encoding"
            raise ValueError(f"{text} ({error})") from error
        parts = cls(key, value, encoding)
        # Checks the parts as one that is made here.
        parts.info()
        return parts

    def data(self) -> bytes:
        """The definitions as Pulsar stores them: each behind its length."""
        parts = [_data(self.key), _data(self.value)]
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _part(name: str, tree: Any, properties: dict[str, str]) -> SchemaInfo:
    kind = SchemaType[properties.get(f"{name}.schema.type", "BYTES")]
    own = dict(json.loads(properties.get(f"{name}.schema.properties") or "{}"))
    # As `Schema` writes a definition, so that those of one class are the same text.
    text = "null" if tree == "" else json.dumps(tree, indent=True)
    return SchemaInfo(kind, properties.get(f"{name}.schema.name", kind.name), text, properties=own)


def _tree(part: SchemaInfo) -> Any:
    kind = part.schema_type()
    # Types below BYTES are of clients alone, AUTO_CONSUME for example, and no topic has them.
    if kind.value < SchemaType.BYTES.value:
        raise ValueError(
            f"a key or value cannot have the type {kind.name}, which takes the schema of the topic"
        )
    # The message has one key, which the outer pair may use.
    if kind == SchemaType.KEY_VALUE and KeyValueInfo.of(part).encoding != KeyValueEncodingType.INLINE:
        raise ValueError(
            "a KeyValueSchema in another one stores its keys INLINE: the message has one key only"
        )
    return "" if part.schema() in _NO_DEFINITION else json.loads(part.schema())


def _data(part: SchemaInfo) -> bytes:
    if part.schema_type() == SchemaType.KEY_VALUE:
        return part.data()
    tree = _tree(part)
    return b"" if tree == "" else _compact(tree).encode()


def _compact(tree: Any) -> str:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
