"""The schemas of topics, read from their directories: without a lock, and without the right to write."""

from __future__ import annotations

from typing import Final

from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.store.schema_registry import NO_VERSION, SchemaDocument, read_schemas
from embeddedpulsar.arrow.pair_decoder import pair_definition
from embeddedpulsar.arrow.plan import partition_total, topic_directory
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema.avro_definition import parsed
from embeddedpulsar.schema.avro_resolution import why_unreadable
from embeddedpulsar.schema.key_value_info import KeyValueInfo
from embeddedpulsar.schema.schema import SchemaInfo
from embeddedpulsar.schema.schema_avro import with_defaults
from embeddedpulsar.schema_enums import KeyValueEncodingType
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
