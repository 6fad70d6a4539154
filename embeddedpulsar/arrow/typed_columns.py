"""Batches of messages with the fields of their payloads as columns.

The schemas of topics, read from their directories: without a lock, and without the right to write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.engine import NO_VERSION, SchemaDocument, parsed, schemas_of, why_unreadable
from embeddedpulsar.arrow.schema import (
    DROPMALFORMED,
    FAILFAST,
    PERMISSIVE,
    UnreadableMessage,
)
from embeddedpulsar.arrow.value_decoder import (
    PARTS,
    AvroDecoder,
    JsonDecoder,
    PairDecoder,
    ValueDecoder,
    decode_valid,
    is_pair,
    pair_definition,
)
from embeddedpulsar.arrow.value_types import (
    ValueType,
    default_of,
    plain_type,
    record_of,
    value_type,
)
from embeddedpulsar.enums import KeyValueEncodingType, SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.key_value import payload_decoder
from embeddedpulsar.schema.schema import KeyValueInfo, SchemaInfo
from embeddedpulsar.schema.schema_avro import with_defaults

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
        # The version may have been registered after the document was read: a new producer began while a
        # stream was running. It is read again, once for each such version.
        if stored is None:
            self._documents.pop(topic, None)
            stored = self._document(topic).written(version)
        return None if stored is None else _of_payload(stored.info())

    def _document(self, topic: str) -> SchemaDocument:
        document = self._documents.get(topic)
        if document is None:
            document = self._documents[topic] = schemas_of(self._root, topic)
        return document


def _of_payload(info: SchemaInfo) -> SchemaInfo:
    """The schema of the payload: of a pair whose key is the key of the message, that of the value."""
    # With SEPARATED, the key is the key of the message, in Base64, and the payload is the value alone.
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
    topic_of: dict[str, str] = {}
    for topic in topics:
        info = schemas.latest(topic)
        # A log without a schema, or one that has no messages yet, has nothing to say.
        if info is None:
            continue
        if info.schema_type() not in DECODED:
            raise InvalidConfiguration(
                f"{topic} has a schema of type {info.schema_type().name}; columns are made of JSON, AVRO and "
                "KEY_VALUE"
            )
        is_pair = info.schema_type() == SchemaType.KEY_VALUE
        # Equal definitions are compared once. The topic is kept for the error.
        topic_of.setdefault(pair_definition(info) if is_pair else info.schema(), topic)
    if not topic_of:
        of = ", ".join(topics) or "no topic that exists"
        raise InvalidConfiguration(f"{of}: there is no schema to decode by; give one (Spark: valueSchema)")
    # Each definition may be the reader of all others: the first that can read them wins. Nothing is made up:
    # a definition that no topic has could have fields that its consumers do not know.
    for reader in topic_of:
        # With defaults: a field that a record class gives a value may be missing in what was written with an
        # older definition.
        tree = parsed(with_defaults(reader), strict=False)
        reasons = [
            f"{topic_of[writer]}: {why}"
            for writer in topic_of
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
        # `value` is free as the name of a field: the column of payloads is not part of a result with fields.
        if field.name == CORRUPT or (field.name in names.KNOWN and field.name != names.VALUE):
            raise InvalidConfiguration(f"the field {field.name!r} has the name of a column of messages")
    result = typed_names([field.name for field in record.fields], columns, mode)
    named = frozenset(result)
    # Without a field among the columns, all are decoded: in mode DROPMALFORMED they decide which messages
    # there are.
    wanted = [field for field in record.fields if field.name in named] or record.fields
    fields = pa.schema([(field.name, value_type(field).final) for field in wanted])
    return Decoding(root, definition, fields, mode), result


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
    """Makes batches with fields of batches with payloads. Invariants: rows keep their order, and
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
        # Decoders by topic and version, and by what they decode: most versions and most topics have one
        # definition, and decoders of one format are shared. A text says why there is none.
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
        # The payload, the version that decides its decoder, and the place for errors are needed in any case.
        self.needed: Final = tuple(dict.fromkeys((*taken, names.VALUE, names.SCHEMA_VERSION, *_PLACE)))

    @property
    def every(self) -> Any:
        """The schema of all columns that there could be."""
        return _every(self._decoding)

    def of_columns(self, columns: Sequence[str]) -> TypedColumns | None:
        """The same with other columns; None if these need no decoding."""
        fields = {*self._decoding.fields.names, CORRUPT}
        # Malformed messages are found by decoding, so with DROPMALFORMED a count has to decode as well.
        if self._decoding.mode != DROPMALFORMED and fields.isdisjoint(columns):
            return None
        return TypedColumns(self._decoding, columns)

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Batches of the result.

        Raises:
            ValueError: a malformed payload, in mode FAILFAST.
        """
        # One warning for a read, not one for each batch.
        dropped, topic = 0, ""
        for batch in batches:
            typed = self._typed(batch)
            # Only DROPMALFORMED removes rows here.
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
                # The first in the order of the rows, whatever order the decoders found them in.
                raise _refusal(batch, *min(malformed))
            corrupt = pc.is_in(
                self._counting(batch.num_rows), pa.array([row for row, _ in malformed], pa.int32())
            )
        arrays = []
        for number, name in self._sources:
            if number >= 0:
                arrays.append(columns[number])
            elif name == CORRUPT:
                # The payload of a malformed message, and null for all others.
                empty = pa.nulls(batch.num_rows, pa.binary())
                values = batch.column(names.VALUE)
                arrays.append(empty if corrupt is None else pc.if_else(corrupt, values, empty))
            else:
                arrays.append(batch.column(name))
        typed = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if corrupt is not None and self._decoding.mode == DROPMALFORMED:
            typed = typed.filter(pc.invert(corrupt))
        return typed

    def _decoded(self, batch: Any) -> tuple[list[Any], list[tuple[int, str]]]:
        """The fields of all rows, null where there is no payload or a malformed one; and the latter."""
        values, versions = batch.column(names.VALUE), batch.column(names.SCHEMA_VERSION)
        # A batch is of one log, so the first row names the topic of all.
        topic = batch.column(names.TOPIC)[0].as_py()
        parts: list[list[Any]] = []
        order: list[Any] = []
        malformed: list[tuple[int, str]] = []
        # Rows that were written with one version are decoded together. The usual batch has one version and no
        # fault: its columns are the result as they are.
        for decoder, rows in self._groups(topic, values, versions):
            payloads = values if len(rows) == len(values) else values.take(rows)
            # No decoder for this version: all of its rows are malformed, for one reason.
            if isinstance(decoder, str):
                malformed += [(row, decoder) for row in rows.to_pylist()]
                continue
            columns, bad = decode_valid(decoder, payloads, self._finals)
            if len(rows) == len(values) and not bad:
                return columns, []
            if bad:
                at = pa.array([number for number, _ in bad], pa.int32())
                malformed += [(rows[number].as_py(), why) for number, why in bad]
                # What remains are the rows that have a value, in the order of the decoded columns.
                rows = rows.filter(pc.invert(pc.is_in(self._counting(len(rows)), at)))
            parts.append(columns)
            order.append(rows)
        # Several versions, null payloads or malformed ones: the values are put where they belong.
        return self._placed(len(values), parts, order), malformed

    def _groups(self, topic: str, values: Any, versions: Any) -> list[tuple[ValueDecoder | str, Any]]:
        """The rows with payloads by what decodes them."""
        rows, is_whole = self._counting(len(values)), not values.null_count
        by_decoder: dict[int, tuple[ValueDecoder | str, list[int]]] = {}
        distinct = versions.unique().to_pylist()
        # By the decoder and not by the version: several versions may share one.
        for version in distinct:
            decoder = self._decoder(topic, version)
            by_decoder.setdefault(id(decoder), (decoder, []))[1].append(version)
        groups = []
        for decoder, own in by_decoder.values():
            # A null payload has null fields and needs no decoder.
            mask = None if is_whole else pc.is_valid(values)
            if len(own) < len(distinct):
                written = pc.is_in(versions, pa.array(own, versions.type))
                mask = written if mask is None else pc.and_(mask, written)
            groups.append((decoder, rows if mask is None else rows.filter(mask)))
        return groups

    def _placed(self, count: int, parts: list[list[Any]], order: list[Any]) -> list[Any]:
        """The decoded values in the rows where they belong."""
        if not parts:
            return [pa.nulls(count, kind) for kind in self._finals]
        # `where` has for each row the number of its value among the decoded ones, null for none: a `take` by
        # it gives nulls where there is no value. The inverse of a permutation is its sort order.
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
        # Grown as needed and kept: batches have about the same size.
        if len(self._numbers) < count:
            self._numbers = pa.array(range(count), pa.int32())
        return self._numbers.slice(0, count)

    def _decoder(self, topic: str, version: int) -> ValueDecoder | str:
        """What decodes the payloads of a version; a text that says why nothing does."""
        decoder = self._decoders.get((topic, version))
        if decoder is None:
            # Decided once for each version. A message without a version may have been written before the
            # topic had a schema; if it has none now, payloads are taken for JSON.
            info = self._schemas.written(topic, version)
            kind = SchemaType.JSON if info is None else info.schema_type()
            if info is None and version >= 0:
                decoder = f"the topic does not have the schema version {version} any more"
            elif kind not in DECODED:
                decoder = f"it was written with a schema of type {kind.name}, which has no fields"
            else:
                # JSON names its fields, so payloads of all versions have one decoder; of Avro, each
                # definition has its own, since only the definition says what the bytes are.
                text = info.schema() if info is not None and kind == SchemaType.AVRO else ""
                if info is not None and kind == SchemaType.KEY_VALUE:
                    # A pair depends on the whole schema, so it is not shared.
                    decoder = self._made_of_pair(info)
                else:
                    decoder = self._by_format.get((kind, text))
                if decoder is None:
                    decoder = self._by_format[kind, text] = self._made(kind, text)
            self._decoders[topic, version] = decoder
        return decoder

    def _made_of_pair(self, info: SchemaInfo) -> ValueDecoder | str:
        definition = self._decoding.definition
        if not is_pair(definition) or not set(PARTS).issuperset(self._types):
            return "it was written as a key and a value"
        try:
            return PairDecoder(info, definition, self._types)
        except ValueError as error:
            # The parts were written with a schema that gives no such columns; the reason goes with each of
            # its rows.
            return str(error)

    def _made(self, kind: SchemaType, written: str) -> ValueDecoder | str:
        definition = self._decoding.definition
        if kind == SchemaType.AVRO:
            # Avro resolves the writer's definition to the reader's, defaults included.
            return AvroDecoder(written, definition, self._types)
        defaults = {}
        # JSON has no resolution: a field that a payload lacks gets the default of the definition, or null.
        if definition is not None:
            default_by_name = {field.name: default_of(field) for field in record_of(definition).fields}
            defaults = {
                name: default_by_name[name] for name in self._types if default_by_name.get(name) is not None
            }
        return JsonDecoder(self._types, defaults)


def _every(decoding: Decoding) -> Any:
    # A field may have the name `value`, and takes the place of the column of payloads.
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


_SINGLE: Final = {
    SchemaType.STRING: pa.string(),
    SchemaType.BOOLEAN: pa.bool_(),
    SchemaType.INT8: pa.int8(),
    SchemaType.INT16: pa.int16(),
    SchemaType.INT32: pa.int32(),
    SchemaType.INT64: pa.int64(),
    SchemaType.FLOAT: pa.float32(),
    SchemaType.DOUBLE: pa.float64(),
    SchemaType.DATE: pa.timestamp("ms", "UTC"),
    SchemaType.TIMESTAMP: pa.timestamp("ms", "UTC"),
    SchemaType.INSTANT: pa.timestamp("us", "UTC"),
    SchemaType.TIME: pa.time64("us"),
    SchemaType.LOCAL_TIME: pa.time64("us"),
    SchemaType.LOCAL_DATE: pa.date32(),
    SchemaType.LOCAL_DATE_TIME: pa.timestamp("us"),
}
"""The column of each schema of a single value."""


class SingleValues:
    """Makes batches whose column ``value`` has single values of batches with payloads. Callers: one thread.

    Args:
        root: directory of the store.
        kind: the newest type of the topic, which the column has.
        columns: of the result, in order.
        mode: what becomes of a payload of another type, or one that is malformed.

    Attributes:
        schema: of the result.
    """

    def __init__(self, root: str, kind: SchemaType, columns: Sequence[str], mode: str) -> None:
        self._schemas: Final = TopicSchemas(root)
        self._kind: Final = kind
        self._mode: Final = mode
        self._decoders: Final[dict[tuple[str, int], Callable[[bytes], Any] | str]] = {}
        self.schema: Final = pa.schema(
            [
                (field.name, _SINGLE[kind] if field.name == names.VALUE else field.type)
                for field in names.arrow_schema(tuple(columns))
            ]
        )

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Batches of the result, of batches that have its columns, the payload, the version and the place.

        Raises:
            UnreadableMessage: a malformed payload, in mode FAILFAST.
        """
        malformed, topic = 0, ""
        for batch in batches:
            topic = batch.column(names.TOPIC)[0].as_py()
            payloads = batch.column(names.VALUE).to_pylist()
            versions = batch.column(names.SCHEMA_VERSION).to_pylist()
            values: list[Any] = []
            bad: list[int] = []
            for row, (payload, version) in enumerate(zip(payloads, versions, strict=True)):
                value, reason = self._value(topic, payload, version)
                if reason and self._mode == FAILFAST:
                    raise _refusal(batch, row, reason)
                if reason:
                    bad.append(row)
                values.append(value)
            typed = pa.RecordBatch.from_arrays(
                [
                    pa.array(values, field.type) if field.name == names.VALUE else batch.column(field.name)
                    for field in self.schema
                ],
                schema=self.schema,
            )
            malformed += len(bad)
            if bad and self._mode == DROPMALFORMED:
                rows = set(bad)
                typed = typed.filter(pa.array([row not in rows for row in range(len(values))]))
            if typed.num_rows:
                yield typed
        if malformed:
            logging.getLogger("embeddedpulsar.arrow").warning(
                "%d malformed messages, of %s among others, are %s",
                malformed,
                topic,
                "null" if self._mode == PERMISSIVE else "left out",
            )

    def _value(self, topic: str, payload: bytes | None, version: int) -> tuple[Any, str]:
        """The value, None for a null value; and why there is none."""
        if payload is None:
            return None, ""
        decoder = self._decoders.get((topic, version))
        if decoder is None:
            info = self._schemas.written(topic, version)
            if info is not None and info.schema_type() == self._kind:
                decoder = payload_decoder(info)
            else:
                decoder = f"it was not written with a schema of type {self._kind.name}"
            self._decoders[topic, version] = decoder
        if isinstance(decoder, str):
            return None, decoder
        try:
            return decoder(payload), ""
        except (ValueError, TypeError, OverflowError) as error:
            return None, str(error)


def single_type(root: str, topics: list[str]) -> SchemaType | None:
    """The type of the single values of topics; None if one of them has another schema, or all have none.

    Raises:
        InvalidConfiguration: they have single values of several types.
    """
    schemas = TopicSchemas(root)
    kinds = {info.schema_type() for topic in topics if (info := schemas.latest(topic)) is not None}
    if not kinds or not kinds <= _SINGLE.keys():
        return None
    if len(kinds) > 1:
        listed = ", ".join(sorted(kind.name for kind in kinds))
        raise InvalidConfiguration(f"the partitions have values of several types: {listed}; read them apart")
    return kinds.pop()
