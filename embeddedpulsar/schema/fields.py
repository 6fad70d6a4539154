"""Fields: what a record class declares, each with a type, a default and the check of its values."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

Classes = type[Any] | tuple[type[Any], ...]


def described(kind: Any) -> str:
    """The name of a class, or of several, for the text of an error."""
    return getattr(kind, "__name__", None) or str(kind)


def is_record(declared: object) -> bool:
    """Whether this is an object of a record class: it may stand wherever a field may."""
    return isinstance(getattr(type(declared), "_fields", None), dict)


class Field:
    """Base of the fields of a `Record`.

    Args:
        default: value of an object that is made without one.
        required: whether None is refused. In the definition, a field that is not required is a union with
            ``null``.
        required_default: whether the definition names the default.

    Raises:
        TypeError: the default is no value of the field.

    Example:
        >>> field = Integer(default=7, required=True)
        >>> field.default(), field.required_default(), field.type(), field.python_type()
        (7, False, 'int', <class 'int'>)
        >>> field.validate_type("count", 3), field.schema(), field.schema_info(set())
        (3, 'int', 'int')
        >>> Integer(default="7")
        Traceback (most recent call last):
        TypeError: Invalid type '<class 'str'>' for field 'default'. Expected: int
    """

    _NAME = ""
    _CLASSES: Classes = object

    def __init__(self, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self._required = required
        self._required_default = required_default
        self._default = None if default is None else self.validate_type("default", default)

    if TYPE_CHECKING:  # for type checkers: a field of an object is its value

        def __get__(self, instance: object, owner: object = None) -> Any: ...

        def __set__(self, instance: object, value: Any) -> None: ...

    def type(self) -> str:
        """Return the name of the type in Avro."""
        return self._NAME

    def python_type(self) -> Classes:
        """Return the class of the values, or several."""
        return self._CLASSES

    def validate_type(self, name: str, val: Any) -> Any:
        """Return what is stored for ``val``; raises TypeError if it is no value of the field ``name``."""
        if val is None and not self._required:
            return self.default()
        expected = self.python_type()
        if not isinstance(val, expected):
            text = f"Invalid type '{type(val)}' for field '{name}'. Expected: {described(expected)}"
            raise TypeError(text)
        return val

    def schema(self) -> Any:
        """Return the definition of the field's type."""
        return self.schema_info(set())

    def schema_info(self, defined_names: set[str]) -> Any:
        """Return the definition. Types in ``defined_names`` are referred to by name, others are added."""
        return self.type()

    def default(self) -> Any:
        """Return the value of a field that was not given."""
        return self._default

    def required_default(self) -> bool:
        """Return whether the definition names the default."""
        return self._required_default


class Null(Field):
    """A field that is always None."""

    _NAME, _CLASSES = "null", type(None)

    def validate_type(self, name: str, val: Any) -> Any:
        """Return None; raises TypeError for all else."""
        if val is not None:
            raise TypeError(f"Invalid type '{type(val)}' for field '{name}'. Expected: None")
        return val


class Boolean(Field):
    """True or False; False if not given."""

    _NAME, _CLASSES = "boolean", bool

    def default(self) -> Any:
        """Return the default, False if there is none."""
        return False if self._default is None else self._default


class Integer(Field):
    """An ``int`` of 32 bits."""

    _NAME, _CLASSES = "int", int


class Long(Field):
    """An ``int`` of 64 bits."""

    _NAME, _CLASSES = "long", int


class Float(Field):
    """A ``float`` or ``int``, stored with 32 bits by Avro."""

    _NAME, _CLASSES = "float", (float, int)


class Double(Field):
    """A ``float`` or ``int``, stored with 64 bits."""

    _NAME, _CLASSES = "double", (float, int)


class Bytes(Field):
    """``bytes``; a ``str`` is encoded in UTF-8."""

    _NAME, _CLASSES = "bytes", (bytes, str)

    def validate_type(self, name: str, val: Any) -> Any:
        """Return ``val`` as bytes; raises TypeError if it is neither bytes nor text."""
        if isinstance(val, str):
            return val.encode()
        return val if val is None else super().validate_type(name, val)


class String(Field):
    """A ``str``; ``bytes`` are decoded as UTF-8."""

    _NAME, _CLASSES = "string", (str, bytes)

    def validate_type(self, name: str, val: Any) -> Any:
        """Return ``val`` as text; raises TypeError if it is neither text nor bytes."""
        val = super().validate_type(name, val)
        return val.decode() if isinstance(val, bytes) else val


class CustomEnum(Field):
    """A member of an enumeration. It is accepted as member, name or value.

    Args:
        enum_type: the class, derived from `enum.Enum`.
        default: the member of a record that is made without one.
        required: whether the definition has no union with ``null``.
        required_default: whether the definition names the default.

    Raises:
        TypeError: ``enum_type`` is not an enumeration, or the default is not a member.

    Example:
        >>> from enum import Enum
        >>> Color = Enum("Color", "red green")
        >>> CustomEnum(Color).validate_type("color", 2)
        <Color.green: 2>
        >>> CustomEnum(Color).python_type(), CustomEnum(Color).schema_info(set())["symbols"]
        (<enum 'Color'>, ['red', 'green'])
    """

    _NAME = "enum"

    def __init__(
        self,
        enum_type: type[Enum],
        default: Any = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        if not (isinstance(enum_type, type) and issubclass(enum_type, Enum)):
            raise TypeError(f"{described(enum_type)} is not a class derived from enum.Enum")
        self.enum_type = enum_type
        self._members: dict[Any, Enum] = {member.value: member for member in enum_type}
        self._members.update(enum_type.__members__)
        super().__init__(default, required, required_default)

    def python_type(self) -> Classes:
        """Return the enumeration."""
        return self.enum_type

    def validate_type(self, name: str, val: Any) -> Any:
        """Return the member that ``val`` is, names or has as its value; raises TypeError if there is none."""
        if val is None or isinstance(val, self.enum_type):
            return val
        if isinstance(val, str | int | float) and val in self._members:
            return self._members[val]
        known = ", ".join(self.enum_type.__members__)
        raise TypeError(f"Invalid enum value {val!r} for field '{name}'. Expected one of: {known}")

    def schema_info(self, defined_names: set[str]) -> Any:
        """Return the definition, or the name if the enumeration is defined already."""
        name = self.enum_type.__name__
        if name in defined_names:
            return name
        defined_names.add(name)
        return {"type": "enum", "name": name, "symbols": [member.name for member in self.enum_type]}


class _Container(Field):
    """A field of several values of one type."""

    _ITEMS = ""  # the key of the values' type in the definition

    def __init__(
        self, value_type: Any, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        if isinstance(value_type, type) and isinstance(getattr(value_type, "_fields", None), dict):
            value_type = value_type()
        if not (isinstance(value_type, Field) or is_record(value_type)):
            raise TypeError(f"{described(value_type)} is not a field: give an object, String() for example")
        self._values = value_type
        super().__init__(default, required, required_default)

    def schema_info(self, defined_names: set[str]) -> Any:
        """Return the definition."""
        inner = self._values
        composed = isinstance(inner, _Container) or is_record(inner)
        # As in pulsar-client, the definition of an enumeration is its type alone here.
        return {
            "type": self._NAME,
            self._ITEMS: inner.schema_info(defined_names) if composed else inner.type(),
        }

    def _checked(self, name: str, values: Any) -> bool:
        """Whether all values are of the class of this container's type; members must be converted if not."""
        expected = self._values.python_type()
        if all(isinstance(value, expected) for value in values):
            return True
        if isinstance(self._values, CustomEnum):
            return False
        text = f"{described(type(self))} field '{name}': not all values are of type {described(expected)}"
        raise TypeError(text)


class Array(_Container):
    """A list of values of one type.

    Args:
        array_type: field or record of the items, ``Array(String())`` for example.
        default: the list of a record that is made without one.
        required: whether the definition has no union with ``null``.
        required_default: whether the definition names the default.

    Raises:
        TypeError: ``array_type`` is neither a field nor a record, or the default is not such a list.

    Example:
        >>> Array(Integer()).schema()
        {'type': 'array', 'items': 'int'}
        >>> Array(Integer()).array_type.type(), Array(Integer()).schema_info(set())["items"]
        ('int', 'int')
    """

    _NAME, _CLASSES, _ITEMS = "array", list, "items"

    def __init__(
        self, array_type: Any, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        super().__init__(array_type, default, required, required_default)

    @property
    def array_type(self) -> Any:
        """Field or record of the items."""
        return self._values

    def validate_type(self, name: str, val: Any) -> Any:
        """Return ``val``; raises TypeError if it is not a list, or has an item of another type."""
        if val is None:
            return None
        val = super().validate_type(name, val)
        if self._checked(name, val):
            return val
        return [self._values.validate_type(name, item) for item in val]


class Map(_Container):
    """A dict of values of one type; its keys are ``str``.

    Args:
        value_type: field or record of the values, ``Map(Long())`` for example.
        default: the dict of a record that is made without one.
        required: whether the definition has no union with ``null``.
        required_default: whether the definition names the default.

    Raises:
        TypeError: ``value_type`` is neither a field nor a record, or the default is not such a dict.

    Example:
        >>> Map(Long()).schema()
        {'type': 'map', 'values': 'long'}
        >>> Map(Long()).value_type.type(), Map(Long()).schema_info(set())["values"]
        ('long', 'long')
    """

    _NAME, _CLASSES, _ITEMS = "map", dict, "values"

    @property
    def value_type(self) -> Any:
        """Field or record of the values."""
        return self._values

    def validate_type(self, name: str, val: Any) -> Any:
        """Return ``val``; raises TypeError if it is not a dict, or a key or value has another type."""
        if val is None:
            return None
        val = super().validate_type(name, val)
        if not all(isinstance(key, str) for key in val):
            raise TypeError(f"Map field '{name}': not all keys are of type str")
        if self._checked(name, val.values()):
            return val
        return {key: self._values.validate_type(name, item) for key, item in val.items()}
