"""Values of Arrow columns, as Python has them, for the fields of a definition; others are refused.

Values of Arrow arrays as Python has them, made column by column. Hot: `send_arrow`.

Payloads of rows, encoded by the JSON or Avro schema of a producer: `Producer.send_arrow`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar.arrow import schema as message_columns
from embeddedpulsar.arrow.engine import ABSENT, DefinitionField, DefinitionNode, parsed
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.error_text import nearest
from embeddedpulsar.schema.definition import Record, record_classes, stored_record
from embeddedpulsar.schema.json_schema import JsonSchema
from embeddedpulsar.schema.model_codec import any_form, plain_form
from embeddedpulsar.schema.models import TYPED_DICT, library_of

if TYPE_CHECKING:
    from embeddedpulsar.schema.schema_avro import AvroSchema


Step = Callable[[Any], Any]
_ANY: Final = "org.apache.avro.data.Json"
_LARGEST_FLOAT32: Final = 3.4028235677973366e38
"""From here on, a number is rounded to infinity."""
_MOMENTS: Final = frozenset(
    ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
)
_TIMES: Final = frozenset(("time-millis", "time-micros"))
_types: Final = pa.types


class Steps:
    """Makes the functions that turn values of columns into what a schema takes: a dict for a record, a
    text for a member of an enumeration. Invariants: there is no conversion that changes a value, except of
    whole numbers into decimal ones, and of 64 bits into the 32 of a ``float``. Callers: one thread.

    Args:
        classes: those of the definition, by name.
        is_json: the values become JSON text.
        is_model: the schema is of a model, whose texts may be dates, times, decimal numbers or UUIDs.
        gives_defaults: the defaults of the definition are put in, since there is no class to do that.
    """

    def __init__(
        self, classes: Mapping[str, Any], *, is_json: bool, is_model: bool, gives_defaults: bool
    ) -> None:
        self._classes: Final = classes
        self._is_json: Final = is_json
        self._is_model: Final = is_model
        self._gives_defaults: Final = gives_defaults

    def of(self, node: DefinitionNode, kind: Any, path: str) -> Step:
        """The function for the values of a column.

        Args:
            node: the type of the field.
            kind: the type of the column.
            path: the name of the field, with those around it; empty for the whole value.

        Raises (the function, too):
            TypeError: the field does not have values of the type.
            ValueError: a struct with a field that is not in the definition, or without one that must be; the
                function: a null where none may be, or a value out of range.
        """
        # Three cases: a union, in which the branch decides by the type of the column; a type that has nulls
        # or anything else; and all others, where a null is an error.
        if node.kind == "union":
            branches = [branch for branch in node.branches if branch.kind != "null"]
            step = self._of_branches(branches, bare(kind), path)
            # A union with null: nulls never reach the step.
            if len(branches) < len(node.branches):
                return lambda value: None if value is None else step(value)
        elif node.kind == "null" or node.name == _ANY:
            # "null" and the union of all of JSON take a null as a value of their own.
            return self._of_one(node, bare(kind), path)
        else:
            step = self._of_one(node, bare(kind), path)

        def without_nulls(value: Any) -> Any:
            if value is None:
                raise ValueError(
                    f"{_field(path)} is null, and the schema allows no null there; fill it in, leave out the "
                    "row, or let the field of the schema be null"
                )
            return step(value)

        return without_nulls

    def _of_branches(self, branches: list[DefinitionNode], kind: Any, path: str) -> Step:
        if len(branches) == 1:
            return self._of_one(branches[0], kind, path)
        if _types.is_integer(kind):  # not a decimal number, where there are whole ones
            branches = sorted(branches, key=lambda branch: branch.kind not in ("int", "long"))
        # The first branch that takes the type of the column is the one for all of its values: a column of
        # Arrow has one type, so no value can belong to another branch.
        records = [branch for branch in branches if branch.kind == "record"]
        # Why each branch was refused, for the error.
        reasons = []
        for branch in branches:
            try:
                step = self._of_one(branch, kind, path)
            except (TypeError, ValueError) as error:
                reasons.append(str(error))
                continue
            # Between two records, Avro's library decides by the fields of a value, and models with the same
            # fields are alike to it; the name says which record is meant.
            if branch in records and len(records) > 1 and self._is_model and not self._is_json:
                name = branch.name
                return lambda value: (name, step(value))
            return step
        raise TypeError("; ".join(reasons) or f"{_field(path)} can be nothing but null")

    def _of_one(self, node: DefinitionNode, kind: Any, path: str) -> Step:
        if node.name == _ANY:
            return plain_form if self._is_json else any_form
        if node.kind == "null":
            return lambda value: _only_null(value, path)
        # A column of nulls: the caller has dealt with all of its values.
        if _types.is_null(kind):
            return _unchanged  # never called
        make = _MAKERS.get(node.kind)
        step = None if make is None else make(self, node, kind, path)
        # None means that the type of the field does not take this type of column; a value of the right type
        # that does not fit is an error of the step.
        if step is None:
            wanted = node.others.get("logicalType")
            raise TypeError(
                f"{_field(path)} is a column of {kind}, and {node}{f' ({wanted})' if wanted else ''} by the "
                "schema; cast the column"
            )
        return step

    # -- single values: None for a column of another type

    def _boolean(self, node: DefinitionNode, kind: Any, path: str) -> Step | None:
        return _unchanged if _types.is_boolean(kind) else None

    def _whole(self, node: DefinitionNode, kind: Any, path: str) -> Step | None:
        logical = node.others.get("logicalType")
        # Logical types first: a date is an `int` by its kind, and its column has dates.
        if logical == "date" and _types.is_date(kind):
            return _unchanged
        if logical in _MOMENTS and _types.is_timestamp(kind):
            return _moment(str(logical), kind, path)
        if logical in _TIMES and _types.is_time(kind):
            return lambda value: _checked_time(value, logical == "time-millis", path)
        if not _types.is_integer(kind):
            return None
        # Avro has signed numbers of 32 and of 64 bits; a column that cannot exceed the field needs no check.
        bits = 32 if node.kind == "int" else 64
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        if kind.bit_width < bits or (kind in (pa.int32(), pa.int64()) and kind.bit_width == bits):
            return _unchanged

        def whole(value: int) -> int:
            if not low <= value <= high:
                raise ValueError(f"{_field(path)}: {value} is out of the range of {node.kind}")
            return value

        return whole

    def _number(self, node: DefinitionNode, kind: Any, path: str) -> Step | None:
        if not (_types.is_integer(kind) or _types.is_floating(kind)):
            return None
        is_short, is_whole = node.kind == "float", _types.is_integer(kind)
        # Of floating-point columns, only one of 64 bits has values that a `float` of Avro, with 32, cannot
        # hold.
        if not is_whole and (not is_short or kind != pa.float64()):
            return _unchanged

        def number(value: Any) -> float:
            converted = float(value)
            # 2**53 + 1 and the like: the nearest floating-point number is another number.
            if is_whole and int(converted) != value:
                raise ValueError(f"{_field(path)}: {value} is no {node.kind} exactly; cast the column")
            # Avro packs a float into 32 bits, where a finite number beyond them becomes infinite.
            if is_short and _LARGEST_FLOAT32 <= abs(converted) < float("inf"):
                raise ValueError(f"{_field(path)}: {value} is out of the range of float")
            return converted

        return number

    def _bytes(self, node: DefinitionNode, kind: Any, path: str) -> Step | None:
        # The notation of a decimal number is bytes, but a value of it is a `Decimal`.
        if node.others.get("logicalType") == "decimal":
            if _types.is_decimal(kind):
                return _unchanged
            return Decimal if _types.is_integer(kind) else None
        # Three cases: bytes of one size, bytes, and text in a field of bytes, which is encoded as UTF-8. JSON
        # of a model has texts in place of bytes, so there the conversion goes the other way.
        size = node.size if node.kind == "fixed" else None
        if size is not None and _is_bytes(kind):

            def fixed(value: bytes) -> bytes:
                if len(value) != size:
                    raise ValueError(f"{_field(path)} has {len(value)} bytes, and {size} by the schema")
                return value

            return fixed
        if size is None and _is_bytes(kind):
            return _text if self._is_json and self._is_model else _unchanged
        if size is None and _is_text(kind):
            return _unchanged if self._is_json and self._is_model else _encoded
        return None

    def _string(self, node: DefinitionNode, kind: Any, path: str) -> Step | None:
        # Texts as they are, bytes if they are UTF-8, and for models what their library writes as text.
        if _is_text(kind):
            return _unchanged
        if _is_bytes(kind):
            return lambda value: _decoded(value, path)
        if self._is_model or node.others.get("logicalType") == "uuid":
            if isinstance(kind, pa.UuidType) or _types.is_decimal(kind):
                return str
            if _types.is_temporal(kind) and not _types.is_duration(kind) and not _types.is_interval(kind):
                return lambda value: _checked_time(value, False, path).isoformat()
        return None

    def _enum(self, node: DefinitionNode, kind: Any, path: str) -> Step | None:
        if self._is_json:  # `Record` accepts names and values by itself
            # `classes` has the enumeration where the schema was made of classes; a definition alone has
            # symbols.
            members = self._classes.get(node.short_name)
            step = _member(members, path) if members is not None else _unchanged
            return step if _is_text(kind) or _types.is_integer(kind) or _types.is_floating(kind) else None
        if not _is_text(kind):
            return None
        # Avro refuses an unknown symbol itself, but without the name of the field.
        symbols = frozenset(node.symbols)

        def symbol(value: str) -> str:
            if symbols and value not in symbols:
                raise ValueError(f"{_field(path)}: {value!r} is none of {', '.join(node.symbols)}")
            return value

        return symbol

    # -- several values

    def _array(self, node: DefinitionNode, kind: Any, path: str) -> Step | None:
        if not _is_list(kind):
            return None
        step = self.of(node.branches[0], kind.value_type, f"{path}[]")
        return lambda value: [step(item) for item in value]

    def _map(self, node: DefinitionNode, kind: Any, path: str) -> Step | None:
        if _types.is_map(kind):
            keys, items = kind.key_type, kind.item_type
        else:  # as Polars has a map
            # Polars has no maps: it gives lists of structs with the fields key and value.
            pair = bare(kind.value_type) if _is_list(kind) else None
            if pair is None or not _types.is_struct(pair) or {part.name for part in pair} != {"key", "value"}:
                return None
            keys, items = pair.field("key").type, pair.field("value").type
        if not _is_text(bare(keys)):
            return None
        step = self.of(node.branches[0], items, f"{path}{{}}")

        def mapped(value: Any) -> dict[str, Any]:
            if isinstance(value, dict):
                return {key: step(item) for key, item in value.items()}
            items_by_key = {pair["key"]: step(pair["value"]) for pair in value}
            # A dict keeps the last of two pairs with one key, so a lost pair shows in the number.
            if len(items_by_key) != len(value) or None in items_by_key:
                raise ValueError(f"{_field(path)} has a key twice, or a null for a key")
            return items_by_key

        return mapped

    def _record(self, node: DefinitionNode, kind: Any, path: str) -> Step | None:
        if not _types.is_struct(kind):
            return None
        # Names are checked once for the type, not for each row.
        given = [part.name for part in kind]
        within = f"{path}." if path else ""
        twice = next((name for name in given if given.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{_field(path)} has {within}{twice} more than once; rename it")
        fields = {field.name: field for field in node.fields}
        unknown = next((name for name in given if name not in fields), None)
        if unknown is not None:
            # A field that the schema does not have would be lost without a word: consumers decode by the
            # schema.
            raise ValueError(f"{unknown_field('field', unknown, node, within)}; rename it or leave it out")
        members = self._classes.get(node.short_name)
        # Fields without a column: each needs a default, which the class of the record puts in, or this, where
        # there is no class.
        absent: dict[str, Any] = {}
        for name, field in fields.items():
            if name in given:
                continue
            if not _has_default(field, members):
                raise ValueError(
                    f"there is no column for {_field(within + name)}, which the schema demands without a "
                    "default; add one"
                )
            if self._gives_defaults:
                absent[name] = None if field.default is ABSENT else _default_value(field.node, field.default)
        # A TypedDict tells a key that is absent from one that is null; a column does not. So null means
        # absent there, where null itself is not allowed.
        may_lack = library_of(members) == TYPED_DICT
        steps: list[tuple[str, Step, bool]] = []
        for name in given:
            field = fields[name]
            leaves_out = may_lack and field.default is not ABSENT and not _is_nullable(field.node)
            steps.append((name, self.of(field.node, kind.field(name).type, within + name), leaves_out))
        # Three functions, so that the usual row takes one comprehension without a test.
        if any(leaves_out for _, _, leaves_out in steps):
            return lambda value: {
                name: step(value[name])
                for name, step, leaves_out in steps
                if not (leaves_out and value[name] is None)
            }
        plain = [(name, step) for name, step, _ in steps]
        if absent:
            return lambda value: absent | {name: step(value[name]) for name, step in plain}
        return lambda value: {name: step(value[name]) for name, step in plain}


_MAKERS: Final[Mapping[str, Callable[[Steps, DefinitionNode, Any, str], Step | None]]] = {
    "boolean": Steps._boolean,
    "int": Steps._whole,
    "long": Steps._whole,
    "float": Steps._number,
    "double": Steps._number,
    "bytes": Steps._bytes,
    "fixed": Steps._bytes,
    "string": Steps._string,
    "enum": Steps._enum,
    "array": Steps._array,
    "map": Steps._map,
    "record": Steps._record,
}


def bare(kind: Any) -> Any:
    """The type of the values, however they are stored; a UUID stays one."""
    # Layers may lie within each other: a dictionary of an extension type, say.
    while True:
        if _types.is_dictionary(kind) or _types.is_run_end_encoded(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType):
            kind = kind.storage_type
        else:
            return kind


def _is_list(kind: Any) -> bool:
    """Whether the values of a column are lists, however they are stored."""
    return bool(
        _types.is_list(kind)
        or _types.is_large_list(kind)
        or _types.is_fixed_size_list(kind)
        or _types.is_list_view(kind)
        or _types.is_large_list_view(kind)
    )


def unknown_field(what: str, name: str, record: DefinitionNode, within: str = "") -> str:
    """The text for a name that is no field, with the field that is nearest to it, or all where none is."""
    names = [field.name for field in record.fields]
    near = nearest(name, names, 0.5)
    meant = f"the nearest is {within}{near}" if near else f"its fields are {', '.join(names)}"
    return f"the {what} {within + name!r} is no field of {record}; {meant}"


def _field(path: str) -> str:
    return f"field {path}" if path else "the value"


def _unchanged(value: Any) -> Any:
    return value


def _only_null(value: Any, path: str) -> None:
    if value is not None:
        raise ValueError(f"{_field(path)} is always null by the schema, and not {value!r}")


def _is_text(kind: Any) -> bool:
    return bool(_types.is_string(kind) or _types.is_large_string(kind) or kind == pa.string_view())


def _is_bytes(kind: Any) -> bool:
    return bool(
        _types.is_binary(kind)
        or _types.is_large_binary(kind)
        or _types.is_fixed_size_binary(kind)
        or kind == pa.binary_view()
    )


def _encoded(value: str) -> bytes:
    return value.encode()


def _text(value: bytes) -> str:
    return value.decode()


def _decoded(value: bytes, path: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{_field(path)} is no text in UTF-8: {error}") from None


def _moment(logical: str, kind: Any, path: str) -> Step | None:
    """Moments of a column without a time zone are in UTC, unless the field has moments without one, too."""
    is_local, is_short = logical.startswith("local"), logical.endswith("millis")
    if is_local and kind.tz is not None:
        return None

    def moment(value: Any) -> Any:
        value = _checked_time(value, is_short, path)
        return value if is_local or value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)

    return moment


def _checked_time(value: Any, is_short: bool, path: str) -> Any:
    """A date, time or moment of Python; refuses what the field would cut off."""
    # pandas' Timestamp has nanoseconds, which it cuts off when it becomes a datetime.
    if getattr(value, "nanosecond", 0):
        raise ValueError(f"{_field(path)} has nanoseconds: {value}; round the column to microseconds")
    if hasattr(value, "to_pydatetime"):
        value = value.to_pydatetime()
    # Avro and JSON store whole milliseconds there; cutting off would change the value.
    if is_short and value.microsecond % 1000:
        raise ValueError(f"{_field(path)} has parts of milliseconds: {value}; round the column")
    return value


def _member(kind: type[Enum], path: str) -> Step:
    """The value of a member in JSON, given the value, or else the name."""
    by_name = {name: plain_form(member.value) for name, member in kind.__members__.items()}
    values = [plain_form(member.value) for member in kind]

    def member(value: Any) -> Any:
        # The value comes before the name: a member may have the name of another's value.
        if value in values:
            return value
        if value in by_name:
            return by_name[value]
        raise ValueError(f"{_field(path)}: {value!r} is no member of {kind.__name__}: {', '.join(by_name)}")

    return member


def _is_nullable(node: DefinitionNode) -> bool:
    return node.kind == "null" or (
        node.kind == "union" and any(branch.kind == "null" for branch in node.branches)
    )


def _has_default(field: DefinitionField, members: Any) -> bool:
    """Whether a value without the field has one: by the definition, by the record class, or null where there
    is no class. A model has the defaults that its definition states."""
    # The definition states a default for most fields; a class may have one that no definition can state.
    if field.default is not ABSENT:
        return True
    if isinstance(members, type) and issubclass(members, Record):
        record_field = members.__record_fields__[field.name]
        return not record_field._required or _is_complete(record_field._initial())
    # A schema without a class, from a definition alone: a field that may be null is null without a column.
    return members is None and _is_nullable(field.node)


def _is_complete(value: Any) -> bool:
    """Whether a value that a record class gives has all that the class demands."""
    if value is None:
        return False
    if not isinstance(value, Record):
        return True
    # A record as a default must have its required fields, or encoding would fail for each row.
    fields = type(value).__record_fields__
    return all(_is_complete(value.__dict__[name]) for name, field in fields.items() if field._required)


def _default_value(node: DefinitionNode, default: Any) -> Any:
    """A default as Avro's library takes a value: the notation has texts for bytes."""
    if node.kind == "union":
        # By Avro's specification a default belongs to the first branch. Not all libraries keep to that, so
        # null picks the branch of null, and any other default the first of the other branches.
        branch = next(
            (
                branch_node
                for branch_node in node.branches
                if (branch_node.kind == "null") == (default is None)
            ),
            node.branches[0],
        )
        return _default_value(branch, default)
    # By Avro's specification, each character of the text is a byte.
    if node.kind in ("bytes", "fixed") and isinstance(default, str):
        return default.encode("latin-1")
    if node.kind == "array" and isinstance(default, list):
        return [_default_value(node.branches[0], item) for item in default]
    if node.kind == "map" and isinstance(default, dict):
        return {key: _default_value(node.branches[0], item) for key, item in default.items()}
    # Fields that the default does not name have their own defaults.
    if node.kind == "record" and isinstance(default, dict):
        return {
            field.name: _default_value(field.node, default.get(field.name, field.default))
            for field in node.fields
            if field.name in default or field.default is not ABSENT
        }
    return default


__all__ = ["Steps", "bare", "unknown_field"]


_FORMATS: Final[dict[Any, Any]] = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint8(): "B",
    pa.uint16(): "H",
    pa.uint32(): "I",
    pa.uint64(): "Q",
    pa.float32(): "f",
    pa.float64(): "d",
}


def python_values(values: Any) -> list[Any]:
    """The values of an array, maps as dicts.

    ``to_pylist`` makes an object of Arrow for each value, which takes longer than to encode it; here this is
    left to types that are rare.

    Raises:
        ValueError, KeyError: a value that Python does not have, or a map with a key twice.

    Example:
        >>> python_values(pa.array([{"a": 1, "b": ["x"]}, None]))
        [{'a': 1, 'b': ['x']}, None]
    """
    kind = values.type
    # Before the type is looked at: there is no value to convert.
    if not len(values) or values.null_count == len(values):
        return [None] * len(values)
    make = _maker(kind)
    # Rare types go through objects of Arrow. A map with a key twice is an error there.
    if make is None:
        values_as_python: list[Any] = values.to_pylist(maps_as_pydicts="strict")
        return values_as_python
    converted = make(values)
    # The makers take what lies under a null, which is anything; here it becomes None.
    if values.null_count:
        for at in _numbers(pc.indices_nonzero(pc.is_null(values))):
            converted[at] = None
    return converted


def _maker(kind: Any) -> Callable[[Any], list[Any]] | None:
    # Numbers and structs, lists and texts of these are converted column by column, which takes no object of
    # Arrow for each value.
    if kind in _FORMATS:
        return _numbers
    if _types.is_struct(kind):
        return _structs
    if _types.is_list(kind) or _types.is_large_list(kind):
        return _lists
    if _types.is_string(kind) or _types.is_large_string(kind) or kind == pa.string_view():
        return _texts
    return _members if _types.is_dictionary(kind) else None


def _numbers(values: Any) -> list[Any]:
    kind = values.type
    width, count = kind.bit_width // 8, len(values)
    # A slice has an offset, so the buffer is cut before it is read.
    data = values.buffers()[1].slice(width * values.offset, width * count)
    return memoryview(data).cast("B").cast(_FORMATS[kind]).tolist()


def _structs(values: Any) -> list[Any]:
    names = [part.name for part in values.type]
    # `flatten` of a struct without fields has no arrays, and `zip` of nothing would have no rows.
    if not names:
        return [{} for _ in range(len(values))]
    parts = map(python_values, values.flatten())  # null where the struct is
    return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]


def _lists(values: Any) -> list[Any]:
    # A null list may lie over items, which `flatten` leaves out, so its length is 0 here.
    lengths = _numbers(pc.fill_null(pc.list_value_length(values), 0))
    items, at, rows = python_values(values.flatten()), 0, []  # without those of null lists
    for length in lengths:
        rows.append(items[at : at + length])
        at += length
    return rows


def _texts(values: Any) -> list[Any]:
    # One type of offsets, and no nulls: what remains is one text and where its pieces end.
    wide = pc.fill_null(values.cast(pa.large_string()), "")
    ends = _numbers(
        pa.Array.from_buffers(pa.int64(), len(wide) + 1, [None, wide.buffers()[1]], 0, wide.offset)
    )
    data = wide.buffers()[2]
    # If all characters are ASCII, a byte is a character, and pieces of one large `str` are the values: one
    # decoding for all of them.
    try:
        text = str(memoryview(data.slice(ends[0], ends[-1] - ends[0])), "ascii") if data is not None else ""
    except UnicodeDecodeError:  # characters have not all one byte
        texts: list[Any] = values.to_pylist()
        return texts
    first = ends[0]
    return [text[start - first : end - first] for start, end in pairwise(ends)]


def _members(values: Any) -> list[Any]:
    # A member of a dictionary is converted once, and every row refers to the same object.
    members = python_values(values.dictionary)
    return [members[at] for at in _numbers(pc.fill_null(values.indices, 0))]


_OF_MESSAGES: Final = frozenset(message_columns.KNOWN) - {message_columns.VALUE}
_OF_PANDAS: Final = re.compile(r"__index_level_\d+__")
Build = Callable[[Any], Any]
"""Makes what a schema encodes of the dict of a row."""


class RecordRows:
    """Makes payloads of rows, whose columns are the fields of a schema, or which are structs of one
    column. Invariants: a payload is what the schema gives for the row's value, so a consumer with the schema
    decodes it. Callers: one thread.

    Args:
        schema: of the producer.
        root: its definition, a record.
        value: the name of the column of structs.
        roles: the names of the columns of keys, properties and so on.
    """

    def __init__(
        self,
        schema: JsonSchema[Any] | AvroSchema[Any],
        root: DefinitionNode,
        value: str,
        roles: Sequence[str],
    ) -> None:
        self._schema: Final = schema
        self._root: Final = root
        self._value: Final = value
        self._roles: Final = frozenset(roles)
        self._fields: Final = frozenset(field.name for field in root.fields)
        # An Avro schema may be made of a definition alone, without a class; then values are dicts, and
        # defaults come from here.
        is_json = schema.schema_info().schema_type() == SchemaType.JSON
        kind = schema._record_cls if is_json or schema._is_record else None  # type: ignore[union-attr]
        is_record = isinstance(kind, type) and issubclass(kind, Record)
        is_model = kind is not None and not is_record
        classes = _classes_of(kind) if kind is not None else {}
        self._steps: Final = Steps(classes, is_json=is_json, is_model=is_model, gives_defaults=kind is None)
        self._build: Final = _builder(schema, kind)
        self._row = 0
        self._kind: Any = None
        self._step: Callable[[Any], Any] = _unchanged

    def payloads(self, batch: Any, *, is_one_column: bool) -> Any:
        """The payloads of the rows of a record batch, nulls for null structs.

        Args:
            batch: the rows.
            is_one_column: whether the column ``value`` is all that was given.

        Raises:
            ValueError: a column that is no field, a field without a column, a null or another value that the
                field does not have.
            TypeError: a column whose type the field does not have.
        """
        rows = self._structs(batch, is_one_column=is_one_column)
        # Batches of one call have one type, so the steps are made once; a stream may change from texts to a
        # dictionary of texts.
        if self._kind is None or not self._kind.equals(rows.type):
            self._kind = rows.type
            self._step = self._steps.of(self._root, rows.type, "")
        # Rows are numbered over all batches of a call: an error names the row of the caller's table.
        first, self._row = self._row, self._row + len(rows)
        step, build, encode = self._step, self._build, self._schema.encode
        encoded: list[bytes | None] = []
        try:
            for row in _values(rows):
                # A loop, not a comprehension: where it fails, the length of the list is the number of the
                # row.
                encoded.append(None if row is None else encode(build(step(row))))  # noqa: PERF401
        except MemoryError:
            raise
        except Exception as error:  # each library of models has its own
            raise ValueError(f"row {first + len(encoded)}: {error}") from error
        return pa.array(encoded, pa.large_binary())

    def _structs(self, batch: Any, *, is_one_column: bool) -> Any:
        """The rows as structs: the column of structs, or the columns of fields put together."""
        names = batch.schema.names
        # The columns are fields, or one column has whole values. The argument `value` names that column.
        if self._value in names and (is_one_column or self._is_whole(batch.schema)):
            column = batch.column(names.index(self._value))
            return _storage(column)
        columns = []
        for name in names:
            # Columns of keys and the like, columns that a read of this topic has given, and pandas' index are
            # no fields and are passed over. Any other name is taken for a mistake.
            if name in self._fields:
                if names.count(name) > 1:
                    raise ValueError(f"{names.count(name)} columns are called {name!r}; rename them")
                columns.append(name)
            elif not (name in self._roles or name in _OF_MESSAGES or _OF_PANDAS.fullmatch(name)):
                raise ValueError(
                    f"{unknown_field('column', name, self._root)}; rename the column or drop it. A column of "
                    "keys or of other parts of messages is named by an argument, key=... for example, and "
                    f"the argument value names a column of structs"
                )
        if not columns:
            raise ValueError(
                f"no column has the name of a field of {self._root}, and there is no column {self._value!r} "
                f"of structs; the fields are {', '.join(field.name for field in self._root.fields)}"
            )
        return pa.StructArray.from_arrays([batch.column(name) for name in columns], columns)

    def _is_whole(self, schema: Any) -> bool:
        """Whether the column called as the argument ``value`` has whole values. A field of the name comes
        first, unless the column has structs and the field takes none."""
        kind = bare(schema.field(self._value).type)
        # A column of nulls is a column of null records.
        if self._value not in self._fields:
            return bool(pa.types.is_struct(kind) or pa.types.is_null(kind))
        # A struct beats a field of its name that takes no record: the value cannot be meant for the field.
        if not pa.types.is_struct(kind):
            return False
        node = next(field.node for field in self._root.fields if field.name == self._value)
        branches = node.branches if node.kind == "union" else [node]
        return all(branch.kind != "record" for branch in branches)


def rows_of(schema: Any, value: str, roles: Sequence[str]) -> RecordRows | None:
    """What encodes rows by a schema; None if its values are no records."""
    if schema.schema_info().schema_type() == SchemaType.AVRO:
        from embeddedpulsar.schema.schema_avro import AvroSchema

        is_known = isinstance(schema, AvroSchema)
    else:
        is_known = isinstance(schema, JsonSchema)
    if not is_known:
        return None
    root = parsed(schema.schema_info().schema(), strict=False)
    return RecordRows(schema, root, value, roles) if root.kind == "record" else None


def _storage(column: Any) -> Any:
    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column


def _classes_of(kind: Any) -> dict[str, Any]:
    """The classes of a schema, by their names in its definition."""
    if issubclass(kind, Record):
        return record_classes(kind)
    from embeddedpulsar.schema.models import Definer  # few schemas are of models

    definer = Definer()
    definer.definition(kind)
    classes: dict[str, Any] = {}
    for hint, name in definer.names.items():
        if not isinstance(hint, type):
            continue
        # A record class within a model has its own fields, with classes of their own. Of two classes with one
        # name the first stays, except that an enumeration replaces it: its members are what is looked up
        # here.
        if issubclass(hint, Record):
            classes |= record_classes(hint)
        elif issubclass(hint, Enum) or name not in classes:
            classes[name] = hint
    return classes


def _builder(schema: Any, kind: Any) -> Build:
    if not isinstance(schema, JsonSchema):
        # An Avro schema has its builder already, or none where it was made of a definition and takes dicts.
        return schema._build or _unchanged
    if issubclass(kind, Record):
        return lambda row: stored_record(kind, row)
    from embeddedpulsar.schema.model_codec import json_builder  # few schemas are of models

    return json_builder(kind)


def _values(rows: Any) -> Any:
    """The rows as dicts, one after another where one cannot be: what was before it is known then."""
    try:
        return python_values(rows)
    except MemoryError:
        # Out of memory is no fault of a row, and converting one by one would not cure it.
        raise
    except Exception:  # noqa: BLE001 - what it is comes up again at its row
        return (row.as_py(maps_as_pydicts="strict") for row in rows)
