"""The description of a schema: its type, name and definition; and that of a schema of keys and values,
which has those of its two parts, and where the key is stored."""

from __future__ import annotations

from embeddedpulsar import enums
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Final

    from embeddedpulsar.enums import KeyValueEncodingType

NAME: Final = "KEY_VALUE"
_NO_DEFINITION: Final = ("", "null")
_ENCODING: Final = "kv.encoding.type"


class SchemaInfo:
    """The description of a schema: its type, its name, and its definition as text.

    Two descriptions are equal if type, definition and properties are.

    Example:
        >>> info = SchemaInfo(SchemaType.STRING, "STRING", "")
        >>> info.schema_type(), info.name(), info.schema()
        (<SchemaType.STRING: 1>, 'STRING', '')
    """

    __slots__ = ("_definition", "_name", "_properties", "_type")

    def __init__(
        self, schema_type: SchemaType, name: str, schema: str, *, properties: dict[str, str] | None = None
    ) -> None:
        self._type = schema_type
        self._name = name
        self._definition = schema
        self._properties = properties or {}

    def schema_type(self) -> SchemaType:
        """Return the type."""
        return self._type

    def name(self) -> str:
        """Return the name."""
        return self._name

    def schema(self) -> str:
        """Return the definition: JSON text, ``"null"`` for schemas that need none."""
        return self._definition

    def properties(self) -> dict[str, str]:
        """Return the properties. Those of a ``KEY_VALUE`` schema describe its parts. Not in
        ``pulsar-client``."""
        return dict(self._properties)

    def data(self) -> bytes:
        """Return the definition as Pulsar stores it. Not in ``pulsar-client``.

        Example:
            >>> from embeddedpulsar.schema import KeyValueSchema, StringSchema
            >>> SchemaInfo(SchemaType.AVRO, "AVRO", '"int"').data(), StringSchema().schema_info().data()
            (b'"int"', b'')
            >>> KeyValueSchema(StringSchema(), StringSchema()).schema_info().data()
            b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
            >>> KeyValueSchema(StringSchema(), StringSchema()).schema_info().properties()["kv.encoding.type"]
            'INLINE'
        """
        if self._type == SchemaType.KEY_VALUE:
            return KeyValueInfo.of(self).data()
        return b"" if self._definition == "null" else self._definition.encode()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SchemaInfo):
            return NotImplemented
        same = self._type == other._type and self._definition == other._definition
        return same and self._properties == other._properties

    def __hash__(self) -> int:
        return hash(self._definition)

    def __reduce__(self) -> tuple[Any, ...]:
        return described, (self._type, self._name, self._definition, self._properties)

    def __repr__(self) -> str:
        return f"<SchemaInfo {self._type} {self._name!r}>"


def described(kind: SchemaType, name: str, definition: str, properties: dict[str, str]) -> SchemaInfo:
    """The description with these fields, as `pickle` calls it."""
    return SchemaInfo(kind, name, definition, properties=properties)


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
            trees, properties = _json_of(info.schema()), info.properties()
            encoding = enums.KeyValueEncodingType[properties.get(_ENCODING, "INLINE")]
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
    own = dict(_json().loads(properties.get(f"{name}.schema.properties") or "{}"))
    # As `Schema` writes a definition, so that those of one class are the same text.
    text = "null" if tree == "" else _json().dumps(tree, indent=True)
    return SchemaInfo(kind, properties.get(f"{name}.schema.name", kind.name), text, properties=own)


def _tree(part: SchemaInfo) -> Any:
    kind = part.schema_type()
    # Types below BYTES are of clients alone, AUTO_CONSUME for example, and no topic has them.
    if kind.value < SchemaType.BYTES.value:
        raise ValueError(
            f"a key or value cannot have the type {kind.name}, which takes the schema of the topic"
        )
    # The message has one key, which the outer pair may use.
    if kind == SchemaType.KEY_VALUE and KeyValueInfo.of(part).encoding != enums.KeyValueEncodingType.INLINE:
        raise ValueError(
            "a KeyValueSchema in another one stores its keys INLINE: the message has one key only"
        )
    return "" if part.schema() in _NO_DEFINITION else _json().loads(part.schema())


def _data(part: SchemaInfo) -> bytes:
    if part.schema_type() == SchemaType.KEY_VALUE:
        return part.data()
    tree = _tree(part)
    return b"" if tree == "" else _compact(tree).encode()


def _compact(tree: Any) -> str:
    text: str = _json().dumps(tree, separators=(",", ":"), ensure_ascii=False)
    return text


def _json_of(text: str) -> Any:
    with late_imports():
        from embeddedpulsar._engine.format.avro_definition import json_of

    return json_of(text)


def _json() -> ModuleType:
    """Imported for the schemas of pairs alone: every process imports this module, and `json` is a tenth of
    the import of the package."""
    with late_imports():
        import json

    return json
