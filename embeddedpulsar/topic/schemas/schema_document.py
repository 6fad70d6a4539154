"""The schemas of one topic: versions that only rise, and the document that holds them."""

from __future__ import annotations

from typing import Any, Final

from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.schema import SchemaInfo

NO_VERSION: Final = -1


class StoredSchema(NamedTuple):
    """A schema of a topic.

    Attributes:
        version: its number in the topic, from 0.
        type: its type.
        data: its definition.
        properties: given when it was uploaded, or of its parts.
        timestamp: when it was added, in ms since 1970.
    """

    version: int
    type: SchemaType
    data: str
    properties: dict[str, str]
    timestamp: int

    def info(self) -> SchemaInfo:
        """The schema without its place in the topic."""
        return SchemaInfo(self.type, self.type.name, self.data, properties=self.properties)

    def json(self) -> dict[str, Any]:
        """Return the fields as Pulsar's administration shows them."""
        return self._asdict() | {"type": self.type.name}


class SchemaDocument(NamedTuple):
    """What a topic knows of its schemas.

    Invariants: a version stands for one schema for the life of the topic. A deletion takes a number, and
    hides what is older: only messages that were written with it still find it.

    Attributes:
        schemas: all that are kept, the oldest first.
        hidden: versions below this were deleted.
        next_version: of the next schema or deletion.
        is_durable: whether the document survives a power loss.
    """

    schemas: tuple[StoredSchema, ...] = ()
    hidden: int = 0
    next_version: int = 0
    is_durable: bool = False

    @property
    def current(self) -> tuple[StoredSchema, ...]:
        """The schemas that were not deleted."""
        return tuple(one for one in self.schemas if one.version >= self.hidden)

    def infos(self) -> list[SchemaInfo]:
        """The schemas that were not deleted, to compare others with them."""
        return [one.info() for one in self.current]

    def version_of(self, info: SchemaInfo) -> int:
        """The version of a schema that was not deleted; -1 if it is none of them."""
        current, kind = self.current, info.schema_type()
        for one in current:  # the usual case, without reading definitions
            if one.data == info.schema() and one.type == kind and kind != SchemaType.KEY_VALUE:
                return one.version
        late = late_import("embeddedpulsar.schema.compatibility")
        if not current or late.why_invalid(info):
            return NO_VERSION
        place = late.place_of([one.info() for one in current], info)
        return current[place].version if place >= 0 else NO_VERSION

    def has_schemas_of(self, other: SchemaDocument) -> bool:
        """Whether two documents differ in their durability at most."""
        return self._replace(is_durable=other.is_durable) == other

    def written(self, version: int) -> StoredSchema | None:
        """The schema of a version, deleted or not."""
        return next((one for one in self.schemas if one.version == version), None)

    def with_schema(self, info: SchemaInfo, now_ms: int) -> SchemaDocument:
        """This with one more schema."""
        new = StoredSchema(self.next_version, info.schema_type(), info.schema(), info.properties(), now_ms)
        return self._replace(schemas=(*self.schemas, new), next_version=new.version + 1)

    def emptied(self, *, force: bool) -> SchemaDocument:
        """This without current schemas; with ``force`` not even messages find them."""
        number = self.next_version + 1
        return self._replace(schemas=() if force else self.schemas, hidden=number, next_version=number)

    def fields(self) -> dict[str, Any]:
        """The fields of the document."""
        return {
            "hidden": self.hidden,
            "next_version": self.next_version,
            "durable": self.is_durable,
            "schemas": [one._asdict() | {"type": one.type.value} for one in self.schemas],
        }

    @classmethod
    def read(cls, fields: dict[str, Any]) -> SchemaDocument:
        """The content of such fields.

        Raises:
            CorruptionError: they are not those of schemas.
        """
        try:
            schemas = tuple(
                StoredSchema(
                    int(one["version"]),
                    SchemaType(one["type"]),
                    str(one["data"]),
                    dict(one["properties"]),
                    int(one["timestamp"]),
                )
                for one in fields["schemas"]
            )
            return cls(schemas, int(fields["hidden"]), int(fields["next_version"]), bool(fields["durable"]))
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptionError(reason=f"a document with schemas that are none: {e!r}") from e
