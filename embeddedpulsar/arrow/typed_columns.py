"""Batches of messages with the fields of their payloads as columns.

The schemas of topics, read from their directories: without a lock, and without the right to write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.store.schema_registry import NO_VERSION, SchemaDocument, read_schemas
from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.plan import partition_total, topic_directory
from embeddedpulsar.arrow.schema import DROPMALFORMED, FAILFAST, PERMISSIVE, UnreadableMessage
from embeddedpulsar.arrow.value_decoder import (
    PARTS,
    AvroDecoder,
    JsonDecoder,
    PairDecoder,
    ValueDecoder,
    is_pair,
    pair_definition,
    settle,
)
from embeddedpulsar.arrow.value_types import ValueType, default_of, plain_type, record_of, value_type
from embeddedpulsar.enums import KeyValueEncodingType, SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.avro_definition import parsed, why_unreadable
from embeddedpulsar.schema.key_value_info import KeyValueInfo
from embeddedpulsar.schema.schema import SchemaInfo
from embeddedpulsar.schema.schema_avro import with_defaults
from embeddedpulsar.topic_name import TopicName

RECORDS: Final = (SchemaType.JSON, SchemaType.AVRO)
DECODED: Final = (*RECORDS, SchemaType.KEY_VALUE)
"""Types of schemas whose payloads become columns."""


class TopicSchemas:
    """The schemas of the topics of a store, each document read when it is needed first, and again for a
    version that it does not have.

    Args:
        root: directory of the store.
    """

    def __init__(self, root: str) -> None:
        self._root: Final = root
        self._documents: Final[dict[str, SchemaDocument]] = {}

    def latest(self, topic: str) -> SchemaInfo | None:
        """The newest schema of a topic or partition; None if it has none."""
        current = self._document(topic).current
        return _of_payload(current[-1].info()) if current else None

    def latest_version(self, topic: str) -> tuple[int, SchemaInfo | None]:
        """The number of the newest schema, and the schema itself; -1 and None if there is none."""
        current = self._document(topic).current
        return (current[-1].version, current[-1].info()) if current else (NO_VERSION, None)

    def written(self, topic: str, version: int) -> SchemaInfo | None:
        """The schema of messages of a version; of those without one, the newest. None if there is none."""
        if version == NO_VERSION:
            return self.latest(topic)
        stored = self._document(topic).written(version)
        if stored is None:
            self._documents.pop(topic, None)
            stored = self._document(topic).written(version)
        return None if stored is None else _of_payload(stored.info())

    def _document(self, topic: str) -> SchemaDocument:
        found = self._documents.get(topic)
        if found is None:
            name = TopicName.parse(topic)
            base = TopicName.parse(name.base)
            if name.partition >= 0 and partition_total(self._root, base):
                name = base  # partitions share the schemas of their topic
            path = filenames.schemas_path(topic_directory(self._root, name))
            found = self._documents[topic] = read_schemas(path)[0]
        return found


def _of_payload(info: SchemaInfo) -> SchemaInfo:
    """The schema of the payload: of a pair whose key is the key of the message, that of the value."""
    if info.schema_type() != SchemaType.KEY_VALUE:
        return info
    parts = KeyValueInfo.of(info)
    return parts.value if parts.encoding == KeyValueEncodingType.SEPARATED else info


def common_definition(root: str, topics: list[str]) -> str:
    """The definition by which the payloads of all these topics can be read: the newest of one of them.

    Raises:
        InvalidConfiguration: none of them has a schema with fields, or they have nothing in common.
    """
    schemas = TopicSchemas(root)
    found: dict[str, str] = {}
    for topic in topics:
        info = schemas.latest(topic)
        if info is None:
            continue
        if info.schema_type() not in DECODED:
            raise InvalidConfiguration(
                f"{topic} has a schema of type {info.schema_type().name}; columns are made of JSON, AVRO and "
                "KEY_VALUE"
            )
        is_pair = info.schema_type() == SchemaType.KEY_VALUE
        found.setdefault(pair_definition(info) if is_pair else info.schema(), topic)
    if not found:
        of = ", ".join(topics) or "no topic that exists"
        raise InvalidConfiguration(f"{of}: there is no schema to decode by; give one (Spark: valueSchema)")
    for reader in found:
        tree = parsed(with_defaults(reader), strict=False)
        reasons = [
            f"{found[writer]}: {why}"
            for writer in found
            if (why := why_unreadable(parsed(writer, strict=False), tree))
        ]
        if not reasons:
            return reader
    raise InvalidConfiguration(
        f"no schema of these topics can read what all of them have; {reasons[0]}; read them apart, or give a "
        "schema (Spark: valueSchema)"
    )


CORRUPT: Final = "__corrupt"
_OTHER_COLUMNS: Final = names.ALL_COLUMNS[1:]
_PLACE: Final = (names.TOPIC, names.LEDGER_ID, names.ENTRY_ID, names.BATCH_INDEX)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How payloads become columns. It travels to the workers.

    Attributes:
        root: directory of the store.
        definition: in Avro's notation, to which what was written is resolved; None for the fields as they
            were written.
        fields: the columns that are made of payloads.
        mode: what becomes of malformed payloads.
    """

    root: str
    definition: str | None
    fields: Any
    mode: str = FAILFAST


def decoding_of(
    root: str, definition: str, columns: Sequence[str] | None, mode: str
) -> tuple[Decoding, tuple[str, ...]]:
    """How payloads of a definition become columns, and the columns of the result.

    Args:
        root: directory of the store.
        definition: of a record, in Avro's notation.
        columns: those that are wanted; None for all.
        mode: one of `MODES`.

    Raises:
        InvalidConfiguration: it is no definition of a record, a field cannot be a column, or a column that
            does not exist.
    """
    record = record_of(definition)
    for field in record.fields:
        if field.name == CORRUPT or (field.name in names.KNOWN and field.name != names.VALUE):
            raise InvalidConfiguration(f"the field {field.name!r} has the name of a column of messages")
    found = typed_names([field.name for field in record.fields], columns, mode)
    named = frozenset(found)
    wanted = [field for field in record.fields if field.name in named] or record.fields
    fields = pa.schema([(field.name, value_type(field).final) for field in wanted])
    return Decoding(root, definition, fields, mode), found


def typed_names(fields: Sequence[str], columns: Sequence[str] | None, mode: str) -> tuple[str, ...]:
    """The columns asked for; for None the fields, ``__corrupt`` if the mode has it, and those of messages.

    Raises:
        InvalidConfiguration: an unknown name, one that is named twice, or none at all.
    """
    own = (*fields, CORRUPT) if mode == PERMISSIVE else tuple(fields)
    if columns is None:
        return (*own, *_OTHER_COLUMNS)
    known = {*own, *names.KNOWN}
    for name in columns:
        if name == CORRUPT and mode != PERMISSIVE:
            raise InvalidConfiguration(f"there is a column {CORRUPT} in mode PERMISSIVE alone")
        if name not in known:
            raise InvalidConfiguration(
                f"there is no column {name!r}; there are {', '.join((*own, *names.KNOWN))}"
            )
    if not columns or len(set(columns)) != len(columns):
        raise InvalidConfiguration(f"columns {list(columns)}: name at least one, and none twice")
    return tuple(columns)


class _Column(NamedTuple):
    """Where a column of the result comes from: a field by its number, or a column of messages by its name."""

    number: int
    name: str


class TypedColumns:
    """Role: makes batches with fields of batches with payloads. Invariants: rows keep their order, and
    a row has the fields of its own payload. Callers: one thread.

    Args:
        decoding: how.
        columns: of the result, in order, as `typed_names` gives them.

    Attributes:
        schema: of the result.
        needed: the columns of messages that the batches must have.
    """

    def __init__(self, decoding: Decoding, columns: Sequence[str]) -> None:
        self._decoding: Final = decoding
        self._schemas: Final = TopicSchemas(decoding.root)
        self._decoders: Final[dict[tuple[str, int], ValueDecoder | str]] = {}
        self._by_format: Final[dict[tuple[SchemaType, str], ValueDecoder | str]] = {}
        fields = decoding.fields
        named, own = frozenset(columns), {*fields.names, CORRUPT}
        wanted = [field for field in fields if field.name in named] or list(fields)
        self._types: Final = _types(decoding.definition, wanted)
        self._finals: Final = [kind.final for kind in self._types.values()]
        self._numbers = pa.array([], pa.int32())
        numbers = {name: number for number, name in enumerate(self._types)}
        self._sources: Final = [_Column(numbers.get(name, -1), name) for name in columns]
        every = _every(decoding)
        self.schema: Final = pa.schema([every.field(name) for name in columns])
        taken = [name for name in columns if name not in own]
        self.needed: Final = tuple(dict.fromkeys((*taken, names.VALUE, names.SCHEMA_VERSION, *_PLACE)))

    @property
    def every(self) -> Any:
        """The schema of all columns that there could be."""
        return _every(self._decoding)

    def of_columns(self, columns: Sequence[str]) -> TypedColumns | None:
        """The same with other columns; None if these need no decoding."""
        fields = {*self._decoding.fields.names, CORRUPT}
        if self._decoding.mode != DROPMALFORMED and fields.isdisjoint(columns):
            return None
        return TypedColumns(self._decoding, columns)

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Batches of the result.

        Raises:
            ValueError: a malformed payload, in mode FAILFAST.
        """
        dropped, topic = 0, ""
        for batch in batches:
            typed = self._typed(batch)
            if typed.num_rows < batch.num_rows:
                dropped += batch.num_rows - typed.num_rows
                topic = batch.column(names.TOPIC)[0].as_py()
            if typed.num_rows:
                yield typed
        if dropped:
            logging.getLogger("embeddedpulsar.arrow").warning(
                "left out %d malformed messages, of %s among others", dropped, topic
            )

    def _typed(self, batch: Any) -> Any:
        columns, malformed = self._decoded(batch)
        corrupt = None
        if malformed:
            if self._decoding.mode == FAILFAST:
                raise _refusal(batch, *min(malformed))
            corrupt = pc.is_in(
                self._counting(batch.num_rows), pa.array([row for row, _ in malformed], pa.int32())
            )
        found = []
        for number, name in self._sources:
            if number >= 0:
                found.append(columns[number])
            elif name == CORRUPT:
                empty = pa.nulls(batch.num_rows, pa.binary())
                values = batch.column(names.VALUE)
                found.append(empty if corrupt is None else pc.if_else(corrupt, values, empty))
            else:
                found.append(batch.column(name))
        typed = pa.RecordBatch.from_arrays(found, schema=self.schema)
        if corrupt is not None and self._decoding.mode == DROPMALFORMED:
            typed = typed.filter(pc.invert(corrupt))
        return typed

    def _decoded(self, batch: Any) -> tuple[list[Any], list[tuple[int, str]]]:
        """The fields of all rows, null where there is no payload or a malformed one; and the latter."""
        values, versions = batch.column(names.VALUE), batch.column(names.SCHEMA_VERSION)
        topic = batch.column(names.TOPIC)[0].as_py()
        parts: list[list[Any]] = []
        order: list[Any] = []
        malformed: list[tuple[int, str]] = []
        for decoder, rows in self._groups(topic, values, versions):
            payloads = values if len(rows) == len(values) else values.take(rows)
            if isinstance(decoder, str):
                malformed += [(row, decoder) for row in rows.to_pylist()]
                continue
            columns, bad = settle(decoder, payloads, self._finals)
            if len(rows) == len(values) and not bad:
                return columns, []
            if bad:
                at = pa.array([number for number, _ in bad], pa.int32())
                malformed += [(rows[number].as_py(), why) for number, why in bad]
                rows = rows.filter(pc.invert(pc.is_in(self._counting(len(rows)), at)))
            parts.append(columns)
            order.append(rows)
        return self._placed(len(values), parts, order), malformed

    def _groups(self, topic: str, values: Any, versions: Any) -> list[tuple[ValueDecoder | str, Any]]:
        """The rows with payloads by what decodes them."""
        rows, is_whole = self._counting(len(values)), not values.null_count
        by_decoder: dict[int, tuple[ValueDecoder | str, list[int]]] = {}
        distinct = versions.unique().to_pylist()
        for version in distinct:
            decoder = self._decoder(topic, version)
            by_decoder.setdefault(id(decoder), (decoder, []))[1].append(version)
        found = []
        for decoder, own in by_decoder.values():
            mask = None if is_whole else pc.is_valid(values)
            if len(own) < len(distinct):
                written = pc.is_in(versions, pa.array(own, versions.type))
                mask = written if mask is None else pc.and_(mask, written)
            found.append((decoder, rows if mask is None else rows.filter(mask)))
        return found

    def _placed(self, count: int, parts: list[list[Any]], order: list[Any]) -> list[Any]:
        """The decoded values in the rows where they belong."""
        if not parts:
            return [pa.nulls(count, kind) for kind in self._finals]
        rows = pa.concat_arrays(order)
        mask = pc.is_in(self._counting(count), rows)
        where = pc.replace_with_mask(
            pa.nulls(count, pa.int64()), mask, pc.sort_indices(rows).cast(pa.int64())
        )
        return [
            pa.concat_arrays([part[number] for part in parts]).take(where)
            for number in range(len(self._finals))
        ]

    def _counting(self, count: int) -> Any:
        if len(self._numbers) < count:
            self._numbers = pa.array(range(count), pa.int32())
        return self._numbers.slice(0, count)

    def _decoder(self, topic: str, version: int) -> ValueDecoder | str:
        """What decodes the payloads of a version; a text that says why nothing does."""
        found = self._decoders.get((topic, version))
        if found is None:
            info = self._schemas.written(topic, version)
            kind = SchemaType.JSON if info is None else info.schema_type()
            if info is None and version >= 0:
                found = f"the topic does not have the schema version {version} any more"
            elif kind not in DECODED:
                found = f"it was written with a schema of type {kind.name}, which has no fields"
            else:
                text = info.schema() if info is not None and kind == SchemaType.AVRO else ""
                if info is not None and kind == SchemaType.KEY_VALUE:
                    found = self._made_of_pair(info)
                else:
                    found = self._by_format.get((kind, text))
                if found is None:
                    found = self._by_format[kind, text] = self._made(kind, text)
            self._decoders[topic, version] = found
        return found

    def _made_of_pair(self, info: SchemaInfo) -> ValueDecoder | str:
        definition = self._decoding.definition
        if not is_pair(definition) or not set(PARTS).issuperset(self._types):
            return "it was written as a key and a value"
        try:
            return PairDecoder(info, definition, self._types)
        except ValueError as error:
            return str(error)

    def _made(self, kind: SchemaType, written: str) -> ValueDecoder | str:
        definition = self._decoding.definition
        if kind == SchemaType.AVRO:
            return AvroDecoder(written, definition, self._types)
        defaults = {}
        if definition is not None:
            found = {field.name: default_of(field) for field in record_of(definition).fields}
            defaults = {name: found[name] for name in self._types if found.get(name) is not None}
        return JsonDecoder(self._types, defaults)


def _every(decoding: Decoding) -> Any:
    own = {field.name: field.type for field in decoding.fields} | {CORRUPT: pa.binary()}
    others = names.arrow_schema([name for name in names.KNOWN if name not in own])
    return pa.schema([*own.items(), *((field.name, field.type) for field in others)])


def _types(definition: str | None, wanted: list[Any]) -> dict[str, ValueType]:
    """The types of fields: of a definition, which says what numbers in JSON mean, or given as they are."""
    if definition is None:
        return {field.name: plain_type(field.type) for field in wanted}
    defined = {field.name: field for field in record_of(definition).fields}
    return {field.name: value_type(defined[field.name])._replace(final=field.type) for field in wanted}


def _refusal(batch: Any, row: int, reason: str) -> UnreadableMessage:
    topic, ledger, entry, index = (batch.column(name)[row].as_py() for name in _PLACE)
    return UnreadableMessage(
        f"{topic}: the payload of message {ledger}:{entry}:{index} is malformed: {reason}; to read others, "
        f"use the mode PERMISSIVE, which puts such payloads into column {CORRUPT}, or DROPMALFORMED"
    )
