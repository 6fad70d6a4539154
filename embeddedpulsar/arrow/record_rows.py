"""Payloads of rows, encoded by the JSON or Avro schema of a producer: `Producer.send_arrow`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from embeddedpulsar.arrow import schema as message_columns
from embeddedpulsar.arrow.python_values import python_values
from embeddedpulsar.arrow.row_values import Steps, bare, unknown_field
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.avro_definition import DefinitionNode, parsed
from embeddedpulsar.schema.definition import Record, record_classes, stored_record
from embeddedpulsar.schema.json_schema import JsonSchema

if TYPE_CHECKING:
    from embeddedpulsar.schema.schema_avro import AvroSchema  # its library is loaded where it is used

_OF_MESSAGES: Final = frozenset(message_columns.KNOWN) - {message_columns.VALUE}
_OF_PANDAS: Final = re.compile(r"__index_level_\d+__")
Build = Callable[[Any], Any]
"""Makes what a schema encodes of the dict of a row."""


class RecordRows:
    """Role: makes payloads of rows, whose columns are the fields of a schema, or which are structs of one
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
        if self._kind is None or not self._kind.equals(rows.type):
            self._kind = rows.type
            self._step = self._steps.of(self._root, rows.type, "")
        first, self._row = self._row, self._row + len(rows)
        step, build, encode = self._step, self._build, self._schema.encode
        found: list[bytes | None] = []
        try:
            for row in _values(rows):
                found.append(None if row is None else encode(build(step(row))))  # noqa: PERF401
        except MemoryError:
            raise
        except Exception as error:  # each library of models has its own
            raise ValueError(f"row {first + len(found)}: {error}") from error
        return pa.array(found, pa.large_binary())

    def _structs(self, batch: Any, *, is_one_column: bool) -> Any:
        """The rows as structs: the column of structs, or the columns of fields put together."""
        names = batch.schema.names
        if self._value in names and (is_one_column or self._is_whole(batch.schema)):
            column = batch.column(names.index(self._value))
            return _storage(column)
        columns = []
        for name in names:
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
        if self._value not in self._fields:
            return bool(pa.types.is_struct(kind) or pa.types.is_null(kind))
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


def _unchanged(value: Any) -> Any:
    return value


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
    found: dict[str, Any] = {}
    for one, name in definer.names.items():
        if not isinstance(one, type):
            continue
        if issubclass(one, Record):
            found |= record_classes(one)
        elif issubclass(one, Enum) or name not in found:
            found[name] = one
    return found


def _builder(schema: Any, kind: Any) -> Build:
    if not isinstance(schema, JsonSchema):
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
        raise
    except Exception:  # noqa: BLE001 - what it is comes up again at its row
        return (row.as_py(maps_as_pydicts="strict") for row in rows)
