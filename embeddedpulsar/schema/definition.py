"""Records: classes that declare the fields of a message, and give its definition in Avro's notation."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from embeddedpulsar.schema.fields import (
    Array,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    Long,
    Map,
    Null,
    String,
    described,
)

_ABSENT = object()


class RecordMeta(type):
    """Collects the fields of a record class, in the order of the class."""

    _fields: dict[str, Any]

    def __new__(cls, name: str, parents: tuple[type, ...], members: dict[str, Any]) -> RecordMeta:
        """Make the class. As in pulsar-client, fields of a parent class are not inherited."""
        fields: dict[str, Any] = {}
        for key, value in members.items():
            if isinstance(value, type) and issubclass(value, Enum):
                fields[key] = CustomEnum(value)
            elif isinstance(value, RecordMeta):
                fields[key] = value()
            elif isinstance(value, Field) or isinstance(type(value), RecordMeta):
                fields[key] = value
        return super().__new__(cls, name, parents, {**members, "_fields": fields})


class Record(metaclass=RecordMeta):
    """Base of record classes: the class attributes are fields, the attributes of an object their values.

    Values are checked when they are assigned. Arguments that are not fields are left out, so a message with
    fields that this class does not know can be read.

    In a class, ``_avro_namespace = "name"`` sets the namespace of the definition, and
    ``_sorted_fields = True`` sorts its fields by name.

    Args:
        default: of a field that holds a record: the value that None stands for.
        required_default: of a field that holds a record: whether the definition names the default.
        required: of a field that holds a record: whether None is refused.
        kwargs: the values of the fields. A dict for a record is turned into the record, also in a list or
            dict.

    Raises:
        TypeError: a value has another type than its field.
        AttributeError: assignment to an attribute that is not a field.

    Example:
        >>> class Order(Record):
        ...     item = String(required=True)
        ...     count = Integer(default=1)
        >>> order = Order(item="soup")
        >>> order.count
        1
        >>> order.count = "two"
        Traceback (most recent call last):
        TypeError: Invalid type '<class 'str'>' for field 'count'. Expected: int
        >>> Order.schema()["fields"]
        [{'name': 'item', 'type': 'string'}, {'name': 'count', 'type': ['null', 'int']}]
        >>> defined = set()
        >>> Order.schema_info(defined)["name"], defined
        ('Order', {'Order'})

        An object of the class stands for a field of another record:

        >>> field = Order(required=True)
        >>> field.type(), field.python_type() is Order, field.default(), field.required_default()
        ('Order', True, None, False)
        >>> field.validate_type("order", order).item
        'soup'
    """

    _avro_namespace: ClassVar[str | None] = None
    _sorted_fields: ClassVar[bool] = False
    _required: bool = False

    def __init__(
        self,
        default: Any = None,
        required_default: bool = False,
        required: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        values = self.__dict__
        values.update(_required_default=required_default, _default=default, _required=required)
        for name, field in type(self)._fields.items():
            value = kwargs.get(name, _ABSENT)
            if value is not _ABSENT:
                values[name] = field.validate_type(name, _converted(field, value))
            elif isinstance(field, Record):
                values[name] = _fresh(field)
            else:
                values[name] = _fresh(field.default())

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """Return the definition of the record and all that it contains."""
        definition: dict[str, Any] = record_definition(cls, set())
        return definition

    @classmethod
    def schema_info(cls, defined_names: set[str]) -> Any:
        """Return the definition. Types in ``defined_names`` are referred to by name, others are added."""
        return record_definition(cls, defined_names)

    def __setattr__(self, key: str, value: Any) -> None:
        if key not in ("_default", "_required", "_required_default"):
            field = type(self)._fields.get(key)
            if field is None:
                raise AttributeError(f"{type(self).__name__} has no field {key!r}", name=key, obj=self)
            value = field.validate_type(key, value)
        super().__setattr__(key, value)

    def __eq__(self, other: object) -> bool:
        """Whether the other record has the same values in the fields of this one."""
        if not isinstance(other, Record):
            return NotImplemented
        theirs = other.__dict__
        return all(self.__dict__[name] == theirs.get(name, _ABSENT) for name in type(self)._fields)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(self.__dict__)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={self.__dict__[name]!r}" for name in type(self)._fields)
        return f"{type(self).__name__}({values})"

    def type(self) -> str:
        """Return the name of the class."""
        return str(self.__class__.__name__)

    def python_type(self) -> Any:
        """Return the class."""
        return self.__class__

    def validate_type(self, name: str, val: Any) -> Any:
        """Return ``val``; raises TypeError if it is not of this class."""
        if val is None and not self._required:
            return self.__dict__["_default"]
        if not isinstance(val, self.__class__):
            given = val.__class__
            expected = described(self.__class__)
            raise TypeError(f"Invalid type '{given}' for sub-record field '{name}'. Expected: {expected}")
        return val

    def default(self) -> Any:
        """Return what None stands for, if this record is a field."""
        return self.__dict__["_default"]

    def required_default(self) -> bool:
        """Return whether the definition of a record with this field names the default."""
        return bool(self.__dict__["_required_default"])


def _converted(field: Any, value: Any) -> Any:
    """The records that dicts stand for."""
    if isinstance(value, dict):
        if isinstance(field, Record):
            return type(field)(**value)
        if isinstance(field, Map) and isinstance(field.value_type, Record):
            kind = type(field.value_type)
            return {key: kind(**item) if isinstance(item, dict) else item for key, item in value.items()}
    elif isinstance(value, list) and isinstance(field, Array) and isinstance(field.array_type, Record):
        kind = type(field.array_type)
        return [kind(**item) if isinstance(item, dict) else item for item in value]
    return value


def _fresh(value: Any) -> Any:
    """A default that no two objects share."""
    if isinstance(value, Record):
        copy = value.__class__.__new__(value.__class__)
        copy.__dict__.update({key: _fresh(item) for key, item in value.__dict__.items()})
        return copy
    if isinstance(value, list):
        return [_fresh(item) for item in value]
    if isinstance(value, dict):
        return {key: _fresh(item) for key, item in value.items()}
    return value


def record_definition(kind: type[Record], defined_names: set[str]) -> Any:
    """The definition of a record class, or its name if it is in ``defined_names``. Adds what it defines.

    A function rather than a method, since a record may have a field called ``schema``.
    """
    namespace = kind._avro_namespace
    full_name = kind.__name__ if namespace is None else f"{namespace}.{kind.__name__}"
    if full_name in defined_names:
        return full_name
    defined_names.add(full_name)
    definition: dict[str, Any] = {"type": "record", "name": kind.__name__}
    if namespace is not None:
        definition["namespace"] = namespace
    fields = kind._fields
    names = sorted(fields) if kind._sorted_fields else list(fields)
    definition["fields"] = [_field_definition(name, fields[name], defined_names) for name in names]
    return definition


def _field_definition(name: str, field: Any, defined_names: set[str]) -> dict[str, Any]:
    record = isinstance(field, Record)
    inner = record_definition(type(field), defined_names) if record else field.schema_info(defined_names)
    kind = inner if field._required else ["null", inner]
    if not field._required_default:
        return {"name": name, "type": kind}
    default = field.__dict__["_default"] if record else field.default()
    return {"name": name, "default": plain(default), "type": kind}


def plain(value: Any) -> Any:
    """A value in Avro's notation: names of members, dicts for records, text for bytes."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Record):
        return {name: plain(value.__dict__[name]) for name in type(value)._fields}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


__all__ = [
    "Array",
    "Boolean",
    "Bytes",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "Long",
    "Map",
    "Null",
    "Record",
    "String",
]
