"""Schemas of the inputs and the output of a function, by the names that its configuration has."""

from __future__ import annotations

import inspect
from typing import Any, Final

from embeddedpulsar import schema as schemas
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.user_code import found_in
from embeddedpulsar.schema.auto_schema import AutoConsumeSchema
from embeddedpulsar.schema.schema import BYTES, EncodedSchema, Schema

_OF_CLASSES: Final = ("json", "avro", "protobuf_native")
_OTHERS: Final = (
    *("bytes", "string", "boolean", "int8", "int16", "int32", "int64", "float", "double", "date", "time"),
    *("timestamp", "instant", "local_date", "local_time", "local_date_time"),
)


class _PlainValues(Schema[Any]):
    """Values by the schema of their writer alone: dicts for records."""

    def __init__(self) -> None:
        super().__init__(object, SchemaType.AUTO_CONSUME, None, SchemaType.AUTO_CONSUME.name)
        self._records: Final = AutoConsumeSchema()

    def decode_message(self, msg: Any) -> Any:
        return self._records.decode_message(msg).get_native_object()


def input_schema(config: FunctionConfig, topic: str) -> Schema[Any]:
    """The schema that decodes the messages of an input of ``custom_schema_inputs``.

    Raises:
        InvalidConfiguration: there is none of the name that the configuration has.

    Example:
        >>> config = FunctionConfig("shop.Count", custom_schema_inputs={"names": "string"}).check()
        >>> input_schema(config, "persistent://public/default/names")
        <StringSchema>
    """
    name = config.custom_schema_inputs[topic]
    if name.lower() == "auto_consume":
        return AutoConsumeSchema()
    if name.lower() in _OF_CLASSES and not config.input_type_class_name:
        return _PlainValues()
    return _named(name, config.input_type_class_name, config.py) if name else BYTES


def output_schema(config: FunctionConfig) -> Schema[Any] | None:
    """The schema that encodes what the function returns; None if a SerDe does.

    Raises:
        InvalidConfiguration: there is none of the name that the configuration has.
    """
    name, class_name = config.output_schema_type, config.output_type_class_name
    if name.lower() in _OF_CLASSES and not class_name:
        raise InvalidConfiguration(
            f"the schema {name} of the output needs output_type_class_name, the class of the values"
        )
    return _named(name, class_name, config.py) if name else None


def of_encoded(schema: Schema[Any]) -> Schema[Any]:
    """The schema of a producer of payloads that ``schema`` has encoded."""
    return EncodedSchema(schema.schema_info())


def _named(name: str, class_name: str, py: str) -> Schema[Any]:
    lower = name.lower()
    given = [found_in(class_name, py)] if class_name else []
    if lower in _OF_CLASSES or lower in _OTHERS:
        words = "".join(word.capitalize() for word in lower.split("_"))
        kind = getattr(schemas, f"{words}Schema")
        made: Schema[Any] = kind(*given) if lower in _OF_CLASSES else kind()
        return made
    if "." not in name:
        names = ", ".join((*_OF_CLASSES, *_OTHERS))
        raise InvalidConfiguration(f"a schema is module.Class, or one of {names}, not {name!r}")
    kind = found_in(name, py)
    if not (inspect.isclass(kind) and issubclass(kind, Schema)):
        raise InvalidConfiguration(f"{name} is no class derived from Schema")
    required = [
        one for one in inspect.signature(kind).parameters.values() if one.default is inspect.Parameter.empty
    ]
    # As in Pulsar: nothing, the class of the values, or that and the properties of the schema.
    made = kind(*[*(given or [None]), {}][: len(required)])
    return made
