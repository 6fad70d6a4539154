"""Models: dataclasses, pydantic models, structs, typed dicts, named tuples; and definitions of type hints."""

from __future__ import annotations

import datetime
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.definition import Record, plain, record_definition

PRIMITIVES: Final[dict[Any, str]] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
}
TEXTS: Final = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, Decimal, UUID)
"""Types that are written as text."""
# What Avro's own library calls a value of JSON of which nothing is known.
_JSON: Final = "org.apache.avro.data.Json"
_LONG: Final = 2**63
_LISTS: Final = (list, set, frozenset, Sequence, MutableSequence)
_MAPS: Final = (dict, Mapping, MutableMapping)
_CONSTANT_FACTORIES: Final = (list, dict, set, frozenset, tuple, str, bytes, int, float, bool)

DATACLASS, PYDANTIC, STRUCT, RECORD = "dataclass", "pydantic", "struct", "record"
TYPED_DICT, NAMED_TUPLE = "dict", "tuple"


class _Absent:
    """A default that an attribute does not have."""


class _Computed:
    """A default that is computed for each object, so that none can be stated."""


class _OwnDefaults(NamedTuple):
    """A default that is a model with the defaults of its own attributes."""

    kind: Any


ABSENT: Final = _Absent()
COMPUTED: Final = _Computed()


class Attribute(NamedTuple):
    """An attribute of a model.

    Attributes:
        name: in JSON, and in the definition.
        hint: its type.
        default: the value of an object that is given none; ABSENT if there must be one, COMPUTED if it is not
            the same for every object.
        member: its name in Python.
    """

    name: str
    hint: Any
    default: Any
    member: str


class _NoForm(Exception):
    """A default that a definition cannot state."""


# -- texts ------------------------------------------------------------------------------------------


_DURATION: Final = re.compile(
    r"([+-]?)P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{1,6})\d*)?S)?)?",
    re.IGNORECASE,
)


def text_of(value: Any) -> str:
    """The text of a value of `TEXTS`: of times and durations that of ISO 8601.

    Example:
        >>> text_of(datetime.timedelta(days=1, milliseconds=1500)), text_of(datetime.timedelta(seconds=-5))
        ('P1DT1.5S', '-PT5S')
    """
    if not isinstance(value, datetime.timedelta):
        return value.isoformat() if hasattr(value, "isoformat") else str(value)
    length = abs(value)
    seconds = f"{length.seconds}.{length.microseconds:06}".rstrip("0").rstrip(".")
    days = f"{length.days}D" if length.days else ""
    time = f"T{seconds}S" if length % datetime.timedelta(days=1) or not days else ""
    return f"{'-' if value < datetime.timedelta() else ''}P{days}{time}"


def duration_of(text: str) -> datetime.timedelta:
    """The duration of a text of ISO 8601, of weeks, days, hours, minutes and seconds; what is finer than a
    microsecond is cut off.

    Raises:
        ValueError: it is no such text. Months and years have no length.

    Example:
        >>> duration_of("P1DT2H0.5S")
        datetime.timedelta(days=1, seconds=7200, microseconds=500000)
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(parts := match.groups()[1:]):
        raise ValueError(f"{text!r} is no duration of ISO 8601, such as P1DT2H30M or PT0.5S")
    weeks, days, hours, minutes, seconds = (int(part or 0) for part in parts[:5])
    try:
        length = datetime.timedelta(
            days, seconds, int((parts[5] or "").ljust(6, "0")), 0, minutes, hours, weeks
        )
        return -length if match[1] == "-" else length
    except OverflowError:
        raise ValueError(f"the duration {text!r} is too long") from None


# -- models -----------------------------------------------------------------------------------------


def library_of(kind: Any) -> str | None:
    """What a model is made with; None for another class."""
    if not isinstance(kind, type):
        return None
    # A record class first: its fields may have the names by which the others are recognized.
    if issubclass(kind, Record):
        return RECORD
    if hasattr(kind, "model_fields") and hasattr(kind, "model_validate_json"):
        return PYDANTIC
    if hasattr(kind, "__struct_fields__"):
        return STRUCT
    if hasattr(kind, "__dataclass_fields__"):
        return DATACLASS
    if typing.is_typeddict(kind):
        return TYPED_DICT
    if issubclass(kind, tuple) and hasattr(kind, "_field_defaults"):
        return NAMED_TUPLE
    return None


def attributes_of(kind: Any) -> list[Attribute]:
    """The attributes of a model that a message has.

    Raises:
        TypeError: its type hints name something that does not exist where they are.
    """
    library = library_of(kind)
    if library == RECORD:
        # The fields of a record class check their values themselves, so no hint is needed.
        return [Attribute(name, Any, ABSENT, name) for name in kind.__record_fields__]
    if library == PYDANTIC:
        return [
            Attribute(
                # By the name that the model has in JSON, since decoders and other languages see that one
                # alone.
                info.serialization_alias or name,
                # Metadata of a field belongs to the hint: a constraint in `Annotated` is what pydantic
                # validates.
                Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation,
                _default(info.default, info.default_factory) if not info.is_required() else ABSENT,
                name,
            )
            for name, info in kind.model_fields.items()
        ]
    hints = _hints(kind)
    if library == STRUCT:
        return list(_of_struct(kind, hints))
    if library == DATACLASS:
        import dataclasses

        return [
            Attribute(
                item.name,
                hints[item.name],
                ABSENT
                if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
                else _default(
                    item.default,
                    None if item.default_factory is dataclasses.MISSING else item.default_factory,
                ),
                item.name,
            )
            # Fields without `init` are computed by the class: a message has no value for them.
            for item in dataclasses.fields(kind)
            if item.init
        ]
    if library == TYPED_DICT:
        return [
            # COMPUTED, since an absent key has no value that a definition could state.
            Attribute(name, hint, ABSENT if _is_required(kind, name, hint) else COMPUTED, name)
            for name, hint in hints.items()
        ]
    return [
        Attribute(name, hints.get(name, Any), kind._field_defaults.get(name, ABSENT), name)
        for name in kind._fields
    ]


def _of_struct(kind: Any, hints: dict[str, Any]) -> Iterator[Attribute]:
    # Defaults belong to the last fields, so both lists are matched from their ends.
    defaults = dict(zip(kind.__struct_fields__[::-1], kind.__struct_defaults__[::-1], strict=False))
    for name, encoded in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        default = defaults.get(name, ABSENT)
        # msgspec marks a field without a default by a value of its own.
        if type(default).__name__ == "NoDefault" or repr(default) == "NODEFAULT":
            default = ABSENT
        factory = getattr(default, "factory", None) if type(default).__name__ == "Factory" else None
        yield Attribute(encoded, hints[name], _default(default, factory), name)


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    """Whether a typed dict must have a key. Python itself does not see the marks in hints that are texts."""
    origin = get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        return origin is typing.Required
    return name in kind.__required_keys__


def _default(value: Any, factory: Any) -> Any:
    """A default, or what can be said of the function that gives it: it may give another one each time."""
    if factory is None:
        return value
    # Called here, since these give an equal value each time; any other function may give another one.
    if factory in _CONSTANT_FACTORIES:
        return factory()
    return _OwnDefaults(factory) if library_of(factory) is not None else COMPUTED


def _hints(kind: Any) -> dict[str, Any]:
    try:
        # The class itself is known by its name: a model may contain itself, and is not bound in its module
        # yet when a decorator asks for its hints.
        return get_type_hints(kind, localns={kind.__name__: kind}, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"the type hints of {kind.__name__} cannot be read: {error}; define what they name in the "
            "module, not in a function"
        ) from None


# -- type hints -------------------------------------------------------------------------------------


def plain_hint(hint: Any) -> Any:
    """A type without what only says more about it."""
    # Layers may lie within each other, in any order.
    while True:
        origin = get_origin(hint)
        if origin in (Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
            hint = get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            # A NewType: its values are those of the type that it names.
            hint = hint.__supertype__
        elif origin is not None and library_of(origin) is not None:
            hint = origin  # a generic model: its attributes are those of the model without arguments
        else:
            # `object` takes anything, as Any does.
            return Any if hint is object else hint


def alternatives(hint: Any) -> tuple[Any, ...] | None:
    """The types of a union, None first; None for all else."""
    if get_origin(hint) not in (Union, types.UnionType):
        return None
    branches = [plain_hint(argument) for argument in get_args(hint)]
    # None first, as definitions have it: a union that begins with null has null as its default.
    return tuple(sorted(branches, key=lambda branch: branch is not type(None)))


def item_hint(hint: Any) -> Any:
    """The type of the items of a list, a set, or a tuple of any length; ABSENT for all else."""
    origin, arguments = get_origin(hint), get_args(hint)
    # A list without a type for its items takes any.
    if hint in (list, set, frozenset, tuple):
        return Any
    if origin in _LISTS or (origin is tuple and arguments[1:] == (...,)):
        return plain_hint(arguments[0])
    return ABSENT


def map_hint(hint: Any) -> Any:
    """The type of the values of a dict whose keys are texts; ABSENT for all else."""
    if hint is dict:
        return Any
    arguments = get_args(hint)
    if get_origin(hint) in _MAPS and plain_hint(arguments[0]) in (str, Any):
        return plain_hint(arguments[1])
    return ABSENT


def places(hint: Any) -> tuple[Any, ...] | None:
    """The types of a tuple of a given length; None for all else."""
    arguments = get_args(hint)
    if get_origin(hint) is not tuple or arguments[1:] == (...,):
        return None
    return tuple(map(plain_hint, arguments))


def primitive_base(hint: Any) -> Any:
    """The type of `PRIMITIVES` or `TEXTS` that a class is or is derived from; None if there is none."""
    # An enumeration and a model may be derived from `str` or `dict`, and are themselves first.
    if not isinstance(hint, type) or issubclass(hint, Enum) or library_of(hint) is not None:
        return None
    return next((base for base in hint.__mro__ if base in PRIMITIVES or base in TEXTS), None)


# -- definitions ------------------------------------------------------------------------------------


class Definer:
    """Writes one definition. Named types are written out where they come first, and are names from there on.

    Attributes:
        names: the names of the classes in the definition.
    """

    def __init__(self) -> None:
        self.names: Final[dict[Any, str]] = {}

    def definition(self, hint: Any) -> Any:
        """The definition of a type, in Avro's notation.

        Raises:
            TypeError: it contains a type without a form in JSON.
            InvalidConfiguration: types are nested too deeply.
        """
        try:
            return self._of(hint)
        except RecursionError:
            name = getattr(hint, "__name__", "of the schema")
            raise InvalidConfiguration(f"the type {name} is nested too deeply to have a definition") from None

    def _of(self, given: Any) -> Any:
        hint = plain_hint(given)
        # The order in which hints are distinguished is that of `model_codec`, or value and definition would
        # disagree.
        if hint is Any:
            return self._any()
        base = primitive_base(hint)
        if base is not None:
            return PRIMITIVES.get(base, "string")
        if get_origin(hint) is Literal:
            # Of a Literal the types of the values: a definition cannot list values, except of an enumeration.
            return self._one_of([type(value) for value in get_args(hint)])
        branches = alternatives(hint)
        if branches is not None:
            return self._one_of(branches)
        item = item_hint(hint)
        if item is not ABSENT:
            return {"type": "array", "items": self._of(item)}
        parts = places(hint)
        if parts is not None:
            # Avro has no tuples: a tuple of places is an array whose items may be of any of the types.
            return {"type": "array", "items": self._one_of(parts) if parts else "null"}
        value = map_hint(hint)
        if value is not ABSENT:
            return {"type": "map", "values": self._of(value)}
        if isinstance(hint, type) and (issubclass(hint, Enum) or library_of(hint) is not None):
            # A name from the second place on, so that a model may contain itself, and each type is defined
            # once.
            return self.names.get(hint) or self._named(hint)
        raise TypeError(
            f"the type {hint} has no JSON form in a schema; give the attribute a more precise type"
        )

    def _named(self, kind: Any) -> Any:
        if library_of(kind) == RECORD:
            return self._record(kind)
        # Generic models have brackets in their names, which Avro does not allow.
        name = kept = re.sub(r"\W", "_", kind.__name__)
        number = 1
        # Two classes of one name, from different modules, are two types.
        while name in self.names.values():  # another class of this name
            number += 1
            name = f"{kept}_{number}"
        # Known before its fields are read: they may refer to it.
        self.names[kind] = name
        if issubclass(kind, Enum):
            return {"type": "enum", "name": name, "symbols": [member.name for member in kind]}
        return {
            "type": "record",
            "name": name,
            "fields": [self._field(attribute) for attribute in attributes_of(kind)],
        }

    def _record(self, kind: Any) -> Any:
        # A record writes its own definition, with the names that are defined already.
        before = set(self.names.values())
        known = set(before)
        definition = record_definition(kind, known)
        # Records inside of it were defined with it, and are names from here on, too.
        self.names.update((name, name) for name in known - before)  # of what it contains
        self.names[kind] = definition["name"] if isinstance(definition, dict) else definition
        return definition

    def _any(self) -> Any:
        if _JSON in self.names.values():
            return _JSON
        self.names[Any] = _JSON
        namespace, _, name = _JSON.rpartition(".")
        # JSON values of any kind in the notation of Avro's own library: a record that contains itself in
        # lists and maps.
        parts = ["null", "boolean", "long", "double", "string"]
        inner = [{"type": "array", "items": name}, {"type": "map", "values": name}]
        fields = [{"name": "value", "type": [*parts, *inner]}]
        return {"type": "record", "name": name, "namespace": namespace, "fields": fields}

    def _one_of(self, hints: Iterable[Any]) -> Any:
        """A union, each type once; of a single type, the type itself."""
        kinds: list[Any] = []
        for hint in hints:
            kind = self._of(hint)
            # A union must not contain a union, nor a type twice.
            kinds += [
                branch_kind
                for branch_kind in (kind if isinstance(kind, list) else [kind])
                if branch_kind not in kinds
            ]
        return kinds[0] if len(kinds) == 1 else kinds

    def _field(self, attribute: Attribute) -> dict[str, Any]:
        # The branch of the default comes first in a union: only so may it be the default.
        hint, default = plain_hint(attribute.hint), attribute.default
        branches = alternatives(hint)
        form, is_computed = ABSENT, False
        if default is not ABSENT:
            try:
                form = default_form(hint, default)
            except _NoForm:
                # No form: the default is computed, or is no value that a definition can state. The field gets
                # a zero, so that it can be added to a schema: by Avro's rules a new field needs a default.
                is_computed = True
        if branches is not None:
            first = next(
                (branch for branch in branches if form is not ABSENT and _fits(branch, default)), None
            )
            kind = self._one_of(
                branches if first is None else sorted(branches, key=lambda branch: branch is not first)
            )
        else:
            kind = self._of(hint)
        field: dict[str, Any] = {"name": attribute.name, "type": kind}
        if is_computed:
            try:
                form, field["computed"] = _zero(hint, ()), True
            except _NoForm:
                # Not even a zero: a model that contains itself without an end. The field is required then.
                field.pop("computed", None)
        return field if form is ABSENT else {**field, "default": form}


def default_form(hint: Any, value: Any) -> Any:
    """A default as a definition states it: names of members, latin-1 texts for bytes, dicts for models.

    Raises:
        _NoForm: it cannot be stated, or is no value of the type.
    """
    hint = plain_hint(hint)
    if isinstance(value, _OwnDefaults):
        return _own_defaults(value.kind)
    if value is COMPUTED or value is ABSENT:
        raise _NoForm
    branches = alternatives(hint)
    if branches is not None:
        branch = next((branch_hint for branch_hint in branches if _fits(branch_hint, value)), ABSENT)
        if branch is ABSENT:
            raise _NoForm
        return default_form(branch, value)
    if get_origin(hint) is Literal:
        # The hint says which values there may be; the value itself says which type it has.
        return default_form(type(value), value)
    base = primitive_base(hint)
    if base is not None:
        return _primitive_form(base, value)
    item = item_hint(hint)
    if item is not ABSENT and isinstance(value, list | tuple | set | frozenset):
        forms = [default_form(item, item_value) for item_value in value]
        # The order of a set is another one in each process.
        return sorted(forms, key=json.dumps) if isinstance(value, set | frozenset) else forms
    parts = places(hint)
    if parts is not None and isinstance(value, tuple) and len(parts) == len(value):
        return [default_form(part, item_value) for part, item_value in zip(parts, value, strict=True)]
    values = map_hint(hint)
    if values is not ABSENT and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: default_form(values, item_value) for key, item_value in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _member_name(hint, value)
    library = library_of(hint)
    if library == RECORD and isinstance(value, hint):
        return plain(value)
    if library == TYPED_DICT and isinstance(value, dict):
        # A key that the default lacks is ABSENT, and has no form: the default cannot be stated as a whole.
        return {
            attribute.name: default_form(attribute.hint, value.get(attribute.name, ABSENT))
            for attribute in attributes_of(hint)
        }
    if library is not None and library != TYPED_DICT and isinstance(value, hint):
        return {
            attribute.name: default_form(attribute.hint, getattr(value, attribute.member))
            for attribute in attributes_of(hint)
        }
    raise _NoForm


def _primitive_form(base: Any, value: Any) -> Any:
    if base in TEXTS:
        if not isinstance(value, base):
            raise _NoForm
        return text_of(value)
    # An int is a float to type checkers.
    if base is float and type(value) is int:
        value = float(value)
    if not isinstance(value, base) or (isinstance(value, bool) and base is not bool):
        raise _NoForm
    # A number beyond a long, and infinities, are in no definition.
    if (base is int and not -_LONG <= value < _LONG) or (base is float and not math.isfinite(value)):
        raise _NoForm
    # Avro's notation has a character for each byte. A value of a derived class is stated as the type it is
    # derived from.
    return value.decode("latin-1") if base is bytes else None if value is None else base(value)


def _member_name(kind: Any, value: Any) -> str:
    try:
        return str(kind(value).name)
    except ValueError:
        raise _NoForm from None


def _own_defaults(kind: Any) -> Any:
    if library_of(kind) == RECORD:
        return plain(kind())
    return {
        attribute.name: default_form(attribute.hint, attribute.default) for attribute in attributes_of(kind)
    }


def _fits(hint: Any, value: Any) -> bool:
    try:
        default_form(hint, value)
    except _NoForm:
        return False
    # A model with its own defaults fits the branch of its class alone.
    return not isinstance(value, _OwnDefaults) or hint is value.kind


def _zero(given: Any, outer: tuple[Any, ...]) -> Any:
    """A value that fits a type, for a field whose default is computed: definitions need one to be compatible.

    Raises:
        _NoForm: there is none, as of a model that contains itself.
    """
    hint = plain_hint(given)
    branches = alternatives(hint)
    if branches is not None:
        # The first branch: Avro takes defaults of a union from it.
        return _zero(branches[0], outer)
    if get_origin(hint) is Literal:
        return default_form(hint, get_args(hint)[0])
    base = primitive_base(hint)
    if base is not None:
        kind = PRIMITIVES.get(base, "string")
        return {"boolean": False, "long": 0, "double": 0.0, "string": "", "bytes": "", "null": None}[kind]
    if item_hint(hint) is not ABSENT or places(hint) is not None:
        return []
    if map_hint(hint) is not ABSENT:
        return {}
    if hint is Any:
        return {"value": None}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint)).name
    # A model within itself: no value of it has an end.
    if hint in outer:
        raise _NoForm
    return {attribute.name: _zero(attribute.hint, (*outer, hint)) for attribute in attributes_of(hint)}
