"""Fields: what a record class declares, each with a type, a default and the check of its values."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

Classes = type[Any] | tuple[type[Any], ...]
MakeRecord = Callable[[Any, dict[str, Any]], Any]
"""Makes a record of a class from the values of its fields."""


def described(kind: Any) -> str:
    """The name of a class, or of several, for the text of an error."""
    return getattr(kind, "__name__", None) or str(kind)


def fresh(value: Any) -> Any:
    """A default that no two objects share."""
    # Lists, dicts and records are copied, since two objects must not share a default; all other values cannot
    # change.
    if isinstance(value, list):
        return [fresh(item) for item in value]
    if isinstance(value, dict):
        return {key: fresh(item) for key, item in value.items()}
    copied = getattr(type(value), "__record_copy__", None)
    return value if copied is None else copied(value)


def wrong_type(name: str, value: object, expected: str) -> TypeError:
    """The error of a value of another type than its field, in the words of pulsar-client."""
    return TypeError(f"Invalid type '{type(value)}' for field '{name}'. {expected}")


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
    _holds_records = False

    def __init__(self, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self._required = required
        self._required_default = required_default
        # Checked when the field is declared, where the mistake is, and not when a record is made.
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
        # pulsar-client takes None for "not given", unless the field is required.
        if val is None and not self._required:
            return self.default()
        expected = self.python_type()
        if not isinstance(val, expected):
            raise wrong_type(name, val, f"Expected: {described(expected)}")
        return val

    def _initial(self) -> Any:
        """The value of a new object that is given none."""
        return fresh(self.default())

    def _with_records(self, value: Any, make: MakeRecord) -> Any:
        """``value``, with a record in place of each dict that stands for one."""
        return value

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
            raise TypeError(f"Field {name} is set to be None")
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
        # As pulsar-client: text in a field of bytes is encoded.
        if isinstance(val, str):
            return val.encode()
        return val if val is None else super().validate_type(name, val)


class String(Field):
    """A ``str``; ``bytes`` are decoded as UTF-8."""

    _NAME, _CLASSES = "string", (str, bytes)

    def validate_type(self, name: str, val: Any) -> Any:
        """Return ``val`` as text; raises TypeError if it is neither text nor bytes."""
        if val is None and not self._required:
            return self.default()
        if isinstance(val, bytes):
            return val.decode()
        if not isinstance(val, str):
            raise wrong_type(name, val, "Expected a string")
        return val


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
            raise TypeError(f"{described(enum_type)} is not a valid Enum type: derive it from enum.Enum")
        self.enum_type = enum_type
        # By value and by name, since a member may be given as either; a name comes before a value where they
        # collide.
        self._values: dict[Any, Enum] = {member.value: member for member in enum_type}
        self._members: dict[Any, Enum] = {**self._values, **enum_type.__members__}
        super().__init__(default, required, required_default)

    def python_type(self) -> Classes:
        """Return the enumeration."""
        return self.enum_type

    def validate_type(self, name: str, val: Any) -> Any:
        """Return the member that ``val`` is, names or has as its value; raises TypeError if there is none."""
        if val is None or isinstance(val, self.enum_type):
            return val
        kind = type(val)
        # Only the types that JSON has: any other value would be looked up by its own `__eq__`.
        member = self._members.get(val) if kind in (str, int, float, bool) else None
        if member is not None and (kind is str or self._is_value(member, kind)):
            return member
        if kind not in (str, int):
            raise wrong_type(name, val, f"Expected: {described(self.enum_type)}")
        known = self.enum_type.__members__.keys() if kind is str else self._values.keys()
        # The text of pulsar-client, which lists what is known of the kind that was given.
        raise TypeError(f"Invalid enum value '{val}' for field '{name}'. Expected: {known}")

    @staticmethod
    def _is_value(member: Enum, kind: type) -> bool:
        """Whether a number of this type stands for a member: 1, 1.0 and True are one key of a dict."""
        is_flag = isinstance(member.value, bool)
        return is_flag == (kind is bool) and (kind is int or isinstance(member.value, kind))

    def schema_info(self, defined_names: set[str]) -> Any:
        """Return the definition, or the name if the enumeration is defined already."""
        name = self.enum_type.__name__
        # Defined once; a second field of the enumeration refers to it by its name.
        if name in defined_names:
            return name
        defined_names.add(name)
        return {"type": "enum", "name": name, "symbols": [member.name for member in self.enum_type]}
