"""Records: classes that declare the fields of a message, each with a type, a default and the check of its
values; and their definition in Avro's notation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from embeddedpulsar.exceptions import InvalidConfiguration

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


_ABSENT = object()
_SHOWN = 12
"""So many names of fields an error shows."""
_OPTIONS = ("default", "required_default", "required")
_NO_OPTIONS = (None, False, False)
_SPECIAL = frozenset(
    name
    for kind in (type, object, int, float, str, list, dict, Exception)
    for name in dir(kind)
    if name.startswith("__")
) | frozenset(
    (
        *("__await__", "__aiter__", "__anext__", "__bytes__", "__complex__", "__copy__", "__deepcopy__"),
        *("__del__", "__delete__", "__delitem__", "__enter__", "__exit__", "__aenter__", "__aexit__"),
        *("__fspath__", "__get__", "__getattr__", "__index__", "__iadd__", "__next__", "__set__"),
        *("__set_name__", "__slots__", "__annotations__", "__orig_bases__", "__match_args__"),
        *("__record_fields__", "__record_nested__", "__record_options__", "__record_copy__"),
    )
)
"""Names that change what Python does with an object: no field has one of them."""


class RecordMeta(type):
    """Collects the fields of a record class, in the order of the class.

    Invariant: a field may have any name but those of ``_SPECIAL``, so nothing here or in the schemas reads an
    attribute of a record or its class that a field may hide: the fields are in ``__record_fields__``, the
    options of a record that stands for a field in ``__record_options__``, and methods of `Record` are called
    through `Record` itself.
    """

    __record_fields__: dict[str, Field]
    __record_nested__: bool

    def __new__(cls, name: str, parents: tuple[type, ...], members: dict[str, Any]) -> RecordMeta:
        """Make the class. As in pulsar-client, fields of a parent class are not inherited."""
        declared: dict[str, Any] = {}
        # Four ways to declare a field: an enumeration, a record class, a field, an object of a record class.
        for key, value in members.items():
            if isinstance(value, type) and issubclass(value, Enum):
                declared[key] = CustomEnum(value)
            elif isinstance(value, RecordMeta):
                declared[key] = value()
            elif isinstance(value, Field) or isinstance(type(value), RecordMeta):
                declared[key] = value
        # Refused when the class is made: a field of such a name would change how Python treats every record.
        special = _SPECIAL.intersection(declared)
        if special:
            text = f"a field of the record {name} is called {min(special)}, a name that Python needs itself"
            raise TypeError(f"{text}: declare it under another name")
        fields = {
            key: value if isinstance(value, Field) else _RecordField(value) for key, value in declared.items()
        }
        # Records without records inside are decoded without looking at each value.
        nested = any(field._holds_records for field in fields.values())
        own = {**members, "__record_fields__": fields, "__record_nested__": nested}
        # `_fields` is the attribute of pulsar-client; a field may have that name.
        if "_fields" not in declared:
            own["_fields"] = declared
        return super().__new__(cls, name, parents, own)


class Record(metaclass=RecordMeta):
    """Base of record classes: the class attributes are fields, the attributes of an object their values.

    Values are checked when they are assigned.

    In a class, ``_avro_namespace = "name"`` sets the namespace of the definition, and
    ``_sorted_fields = True`` sorts its fields by name.

    A field may be called like an argument or a method of this class. The name is the field's then: the
    argument is given by its position, and the method called through `Record`, ``Record.type(order)`` for
    example.

    Args:
        default: of a record that stands for a field of another record: the value that None stands for.
        required_default: of such a record: whether the definition names the default.
        required: of such a record: whether None is refused.
        kwargs: the values of the fields. A dict for a record is turned into the record, also in a list or
            dict.

    Raises:
        TypeError: a value has another type than its field.
        AttributeError: an argument, or an attribute that is assigned, is not a field.

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
        >>> Order(item="soup", cuont=2)
        Traceback (most recent call last):
        AttributeError: Cannot set undeclared field cuont on record Order, which has the fields item, count
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
    __record_options__: tuple[Any, bool, bool] = _NO_OPTIONS

    def __init__(self, /, *options: Any, **kwargs: Any) -> None:
        fields = type(self).__record_fields__
        values = self.__dict__
        # The common case, values of fields alone, skips the sorting of arguments.
        if options or not kwargs.keys() <= fields.keys():
            kwargs = _without_options(self, options, kwargs)
        for name, field in fields.items():
            value = kwargs.get(name, _ABSENT)
            # Not given at all: the default of the field. None that is given is checked instead.
            if value is _ABSENT:
                values[name] = field._initial()
            elif field._holds_records:
                values[name] = field.validate_type(name, field._with_records(value, _made))
            else:
                values[name] = field.validate_type(name, value)

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """Return the definition of the record and all that it contains."""
        return class_definition(cls)

    @classmethod
    def schema_info(cls, defined_names: set[str]) -> Any:
        """Return the definition. Types in ``defined_names`` are referred to by name, others are added."""
        return record_definition(cls, defined_names)

    def __setattr__(self, key: str, value: Any) -> None:
        field = type(self).__record_fields__.get(key)
        if field is not None:
            self.__dict__[key] = field.validate_type(key, value)
        elif key[:1] == "_" and key[1:] in _OPTIONS:
            # pulsar-client has the options as attributes: assigning one changes the record as a field of
            # another.
            options = list(self.__record_options__)
            options[_OPTIONS.index(key[1:])] = value
            self.__dict__["__record_options__"] = tuple(options)
        else:
            raise _undeclared(self, key)

    def __eq__(self, other: object) -> bool:
        """Whether the other record has the same values in the fields of this one."""
        if not isinstance(other, Record):
            return NotImplemented
        mine, theirs = self.__dict__, other.__dict__
        return all(mine[name] == theirs.get(name, _ABSENT) for name in type(self).__record_fields__)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        default, required_default, required = self.__record_options__
        options = {"_required_default": required_default, "_default": default, "_required": required}
        return str(options | record_values(self))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in record_values(self).items())
        return f"{type(self).__name__}({values})"

    if not TYPE_CHECKING:  # for type checkers, a record has its fields alone

        def __getattr__(self, name: str) -> Any:
            # What pulsar-client keeps beside the values, unless a field has the name.
            if name[:1] == "_" and name[1:] in _OPTIONS:
                return self.__record_options__[_OPTIONS.index(name[1:])]
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=self)

    def __record_copy__(self) -> Record:
        copy = type(self).__new__(type(self))
        copy.__dict__.update({key: fresh(item) for key, item in self.__dict__.items()})
        return copy

    def type(self) -> str:
        """Return the name of the class."""
        return str(self.__class__.__name__)

    def python_type(self) -> Any:
        """Return the class."""
        return self.__class__

    def validate_type(self, name: str, val: Any) -> Any:
        """Return ``val``; raises TypeError if it is not of this class."""
        default, _, required = self.__record_options__
        if val is None and not required:
            return default
        if not isinstance(val, self.__class__):
            expected = described(self.__class__)
            raise TypeError(
                f"Invalid type '{val.__class__}' for sub-record field '{name}'. Expected: {expected}"
            )
        return val

    def default(self) -> Any:
        """Return what None stands for, if this record is a field."""
        return self.__record_options__[0]

    def required_default(self) -> bool:
        """Return whether the definition of a record with this field names the default."""
        return bool(self.__record_options__[1])


def _undeclared(record: Record, name: str) -> AttributeError:
    kind = type(record)
    names = list(kind.__record_fields__)
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "") or "none"
    text = f"Cannot set undeclared field {name} on record {kind.__name__}, which has the fields {shown}"
    # The commonest reason: classes are derived to add fields.
    if any(name in parent.__record_fields__ for parent in kind.__mro__ if isinstance(parent, RecordMeta)):
        text += "; fields of a parent class are not inherited: declare it again"
    return AttributeError(text, name=name, obj=record)


def _without_options(record: Record, given: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The values of fields among the arguments of a record; the others become its options.

    Raises:
        AttributeError: an argument is neither a field nor an option.
        TypeError: there are more positional arguments than options, one is given twice, or the default is no
            record of the class.
    """
    kind = type(record)
    if len(given) > len(_OPTIONS):
        raise TypeError(f"{kind.__name__} takes the values of its fields by their names, not by position")
    options: dict[str, Any] = dict(zip(_OPTIONS, given, strict=False))
    values = {}
    for name, value in kwargs.items():
        if name in kind.__record_fields__:
            values[name] = value
        elif name not in _OPTIONS:
            # An option is a field's if a field has its name; it was found above then.
            raise _undeclared(record, name)
        elif name in options:
            raise TypeError(f"{kind.__name__} got the argument {name!r} twice")
        else:
            options[name] = value
    default = options.get("default")
    if default is not None and not isinstance(default, kind):
        text = f"Invalid type '{type(default)}' for sub-record field 'default'. Expected: {kind.__name__}"
        raise TypeError(f"{text}; the values of fields are given by their names")
    record.__dict__["__record_options__"] = (
        default,
        options.get("required_default", False),
        options.get("required", False),
    )
    return values


def record_values(record: Record) -> dict[str, Any]:
    """The values of a record's fields, in their order."""
    values = record.__dict__
    return {name: values[name] for name in type(record).__record_fields__}


def _made(kind: Any, values: dict[str, Any]) -> Any:
    """A record of a dict that a program gives: all of it must be fields."""
    unknown = values.keys() - kind.__record_fields__.keys()
    if unknown:
        raise _undeclared(kind.__new__(kind), min(unknown, key=str))
    return kind(**values)


def stored_record(kind: Any, values: Any) -> Any:
    """The record of a class that a payload describes. What the class does not know is left out: a program
    with a newer class may have written it.

    Raises:
        TypeError: the payload is no object, or a value has another type than its field.
    """
    fields = kind.__record_fields__
    if not isinstance(values, dict):
        text = f"the payload is of type {described(type(values))}"
        raise TypeError(f"{text}, not an object with the fields of {kind.__name__}")
    # A record of plain fields, and no field that this class does not know: nothing to look at.
    if not kind.__record_nested__ and values.keys() <= fields.keys():
        return kind(**values)
    known = {
        name: fields[name]._with_records(value, stored_record) if fields[name]._holds_records else value
        for name, value in values.items()
        if name in fields
    }
    return kind(**known)


class _RecordField(Field):
    """The field of a record that is declared by an object of another record."""

    _holds_records = True

    def __init__(self, record: Record) -> None:
        super().__init__(
            None, required=record.__record_options__[2], required_default=record.__record_options__[1]
        )
        self.record = record

    def type(self) -> str:
        return type(self.record).__name__

    def python_type(self) -> Any:
        return type(self.record)

    def validate_type(self, name: str, val: Any) -> Any:
        return Record.validate_type(self.record, name, val)

    def schema_info(self, defined_names: set[str]) -> Any:
        return record_definition(type(self.record), defined_names)

    def default(self) -> Any:
        return self.record.__record_options__[0]

    def _initial(self) -> Any:
        return fresh(self.record)

    def _with_records(self, value: Any, make: MakeRecord) -> Any:
        return make(type(self.record), value) if isinstance(value, dict) else value


class _Container(Field):
    """A field of several values of one type."""

    _ITEMS = ""  # the key of the values' type in the definition

    def __init__(
        self, value_type: Any, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        if isinstance(value_type, RecordMeta):
            value_type = value_type()
        if isinstance(type(value_type), RecordMeta):
            self._values: Field = _RecordField(value_type)
        elif isinstance(value_type, Field):
            self._values = value_type
        else:
            text = f"Argument {described(value_type)} is not a Record or a Field"
            raise TypeError(f"{text}: give an object, String() for example")
        self._declared = value_type
        self._holds_records = self._values._holds_records
        super().__init__(default, required, required_default)

    def schema_info(self, defined_names: set[str]) -> Any:
        """Return the definition."""
        inner = self._values
        composed = isinstance(inner, _Container | _RecordField)
        # As in pulsar-client, the definition of an enumeration is its type alone here.
        return {
            "type": self._NAME,
            self._ITEMS: inner.schema_info(defined_names) if composed else inner.type(),
        }

    def _are_values(self, values: Iterable[Any]) -> bool:
        """Whether all are of the class of this container's type."""
        expected = self._values.python_type()
        return all(isinstance(value, expected) for value in values)


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
        return self._declared

    def validate_type(self, name: str, val: Any) -> Any:
        """Return ``val``; raises TypeError if it is not a list, or has an item of another type."""
        if val is None:
            return None
        val = super().validate_type(name, val)
        if self._are_values(val):
            return val
        if isinstance(self._values, CustomEnum):
            return [self._values.validate_type(name, item) for item in val]
        raise TypeError(f"Array field {name} items should all be of type {self._values.type()}")

    def _with_records(self, value: Any, make: MakeRecord) -> Any:
        if not isinstance(value, list):
            return value
        return [self._values._with_records(item, make) for item in value]


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
        return self._declared

    def validate_type(self, name: str, val: Any) -> Any:
        """Return ``val``; raises TypeError if it is not a dict, or a key or value has another type."""
        if val is None:
            return None
        val = super().validate_type(name, val)
        if not all(isinstance(key, str) for key in val):
            raise TypeError(f"Map keys for field {name}  should all be strings")
        if self._are_values(val.values()):
            return val
        if isinstance(self._values, CustomEnum):
            return {key: self._values.validate_type(name, item) for key, item in val.items()}
        expected = described(self._values.python_type())
        raise TypeError(f"Map values for field {name} should all be of type {expected}")

    def _with_records(self, value: Any, make: MakeRecord) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: self._values._with_records(item, make) for key, item in value.items()}


def class_definition(kind: type[Record]) -> dict[str, Any]:
    """The definition of a record class and all that it contains.

    Raises:
        InvalidConfiguration: arrays, maps and records are nested too deeply.
    """
    try:
        definition: dict[str, Any] = record_definition(kind, set())
    except RecursionError:
        text = f"the fields of the record {kind.__name__} are nested too deeply to have a definition"
        raise InvalidConfiguration(text) from None
    return definition


def record_classes(kind: type[Record]) -> dict[str, type[Record]]:
    """A record class and those that its fields have, by their names."""
    classes: dict[str, type[Record]] = {}
    pending = [kind]
    while pending:
        record_class = pending.pop()
        # Two classes of one name are one type in a definition, which names it once.
        if record_class.__name__ in classes:
            continue
        classes[record_class.__name__] = record_class
        for field in record_class.__record_fields__.values():
            # Arrays and maps may lie within each other; what they hold in the end may be a record.
            while isinstance(field, _Container):
                field = field._values
            if isinstance(field, _RecordField):
                pending.append(type(field.record))
    return classes


def record_definition(kind: type[Record], defined_names: set[str]) -> Any:
    """The definition of a record class, or its name if it is in ``defined_names``. Adds what it defines.

    A function rather than a method, since a record may have a field called ``schema``.
    """
    settings = kind._avro_namespace, kind._sorted_fields
    # A field may have the name of a setting.
    namespace, is_sorted = (None if isinstance(value, Field | Record) else value for value in settings)
    full_name = kind.__name__ if namespace is None else f"{namespace}.{kind.__name__}"
    if full_name in defined_names:
        # Defined once; from then on the name refers to it, also within its own fields.
        return full_name
    defined_names.add(full_name)
    definition: dict[str, Any] = {"type": "record", "name": kind.__name__}
    if namespace is not None:
        definition["namespace"] = namespace
    fields = kind.__record_fields__
    names = sorted(fields) if is_sorted else list(fields)
    definition["fields"] = [_field_definition(name, fields[name], defined_names) for name in names]
    return definition


def _field_definition(name: str, field: Field, defined_names: set[str]) -> dict[str, Any]:
    inner = field.schema_info(defined_names)
    kind = inner if field._required else ["null", inner]
    if not field._required_default:
        # The default is part of the definition only where it was asked for: a definition that changes is a
        # new version of the topic's schema.
        return {"name": name, "type": kind}
    return {"name": name, "default": plain(field.default()), "type": kind}


def builtin_of(value: Any) -> Any:
    """Dicts for records and names for members of enumerations, as Avro's library takes them."""
    if isinstance(value, Record):
        return {name: builtin_of(item) for name, item in record_values(value).items()}
    # Avro's library takes the name of a member, JSON its value.
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return [builtin_of(item) for item in value]
    if isinstance(value, dict):
        return {key: builtin_of(item) for key, item in value.items()}
    return value


def plain(value: Any) -> Any:
    """A value in Avro's notation: names of members, dicts for records, text for bytes."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Record):
        return {name: plain(item) for name, item in record_values(value).items()}
    # Avro's notation has a character for each byte.
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
