"""The registry: adding, finding and deleting the schemas of the topics of a store.

The schemas of one topic: versions that only rise, and the document that holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.document import KIND_SCHEMAS, decode_document, encode_document
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.store.policies.admitting import SCHEMA_AUTO_UPDATE, SCHEMA_COMPATIBILITY
from embeddedpulsar._engine.store.policies.policy_documents import remove_unfinished
from embeddedpulsar._engine.store.schema_info import SchemaInfo
from embeddedpulsar.damage import TOPIC_FILES, Damage
from embeddedpulsar.enums import SchemaCompatibilityStrategy, SchemaType
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    IncompatibleSchema,
    StorageError,
    TopicNotFound,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.topic_name import TopicName, is_system_topic

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar._engine.store.store_session import StoreSession


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
        return tuple(schema for schema in self.schemas if schema.version >= self.hidden)

    def infos(self) -> list[SchemaInfo]:
        """The schemas that were not deleted, to compare others with them."""
        return [schema.info() for schema in self.current]

    def version_of(self, info: SchemaInfo) -> int:
        """The version of a schema that was not deleted; -1 if it is none of them."""
        current, kind = self.current, info.schema_type()
        for schema in current:  # the usual case, without reading definitions
            if schema.data == info.schema() and schema.type == kind and kind != SchemaType.KEY_VALUE:
                return schema.version
        if not current:
            return NO_VERSION
        with late_imports():
            from embeddedpulsar._engine.store.schema_compatibility import place_of, why_invalid

        if why_invalid(info):
            return NO_VERSION
        place = place_of([schema.info() for schema in current], info)
        return current[place].version if place >= 0 else NO_VERSION

    def has_schemas_of(self, other: SchemaDocument) -> bool:
        """Whether two documents differ in their durability at most."""
        return self._replace(is_durable=other.is_durable) == other

    def written(self, version: int) -> StoredSchema | None:
        """The schema of a version, deleted or not."""
        return next((schema for schema in self.schemas if schema.version == version), None)

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
            "schemas": [schema._asdict() | {"type": schema.type.value} for schema in self.schemas],
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
                    int(schema["version"]),
                    SchemaType(schema["type"]),
                    str(schema["data"]),
                    dict(schema["properties"]),
                    int(schema["timestamp"]),
                )
                for schema in fields["schemas"]
            )
            return cls(schemas, int(fields["hidden"]), int(fields["next_version"]), bool(fields["durable"]))
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptionError(reason=f"a document with schemas that are none: {e!r}") from e


_RESTORE: Final = "restore the file from a backup; read the messages without a schema until then"

failpoints.declare("schema:locked", "schema:written")


class SchemaRegistry:
    """The schemas of the topics of one store.

    Role: `schemas` in the directory of a topic holds its versions; partitions share those of their topic.
    A topic without that document has no schema.
    Invariants: a document is replaced as a whole, under the catalog lock, so every process sees it before a
    change or after it. A version is in the document before a message is stored with it. Definitions are read
    and compared without the lock, whatever their size; under the lock the document must still have the
    schemas that were compared, else they are compared again.
    Callers: any thread, holding no file lock.

    Args:
        session: of the store.
        clock: dates what is added.
        durable: whether what is added must survive a power loss.
    """

    def __init__(self, session: StoreSession, clock: Clock, *, durable: bool) -> None:
        self._session: Final = session
        self._clock: Final = clock
        self._durable: Final = durable

    # -- reading -----------------------------------------------------------------------------------

    def document(self, name: str) -> SchemaDocument:
        """The schemas of a topic or partition.

        Raises:
            TopicNotFound: no such topic.
            StorageError: the document is damaged.
        """
        return self._read(self._entry(name))[0]

    def latest(self, name: str) -> StoredSchema | None:
        """The newest schema of a topic; None if it has none. Errors are those of `document`."""
        return next(reversed(self.document(name).current), None)

    def written(self, name: str, version: int) -> StoredSchema | None:
        """The schema with which messages of a version were written, deleted since then or not; None if it is
        not kept. Errors are those of `document`."""
        return self.document(name).written(version)

    def strategy(self, name: str) -> SchemaCompatibilityStrategy:
        """The compatibility strategy that holds for a topic."""
        policies, full = self._session.policies, TopicName.parse(name).full
        if is_system_topic(full):
            return SchemaCompatibilityStrategy[self._session.settings.systemTopicSchemaCompatibilityStrategy]
        return policies.value(SCHEMA_COMPATIBILITY, full)

    def _entry(self, name: str) -> TopicEntry:
        """The topic that keeps the schemas: of a partition, that which is partitioned."""
        parsed, find = TopicName.parse(name), self._session.catalog.find
        base = find(parsed.base) if parsed.partition >= 0 else None
        entry = base if base is not None and base.partitions else find(parsed.full)
        if entry is None:
            raise TopicNotFound(f"{parsed.full}: no such topic in {self._session.root}")
        return entry

    def _path(self, entry: TopicEntry) -> str:
        return filenames.schemas_path(self._session.directories.path(entry))

    def _read(self, entry: TopicEntry) -> tuple[SchemaDocument, dict[str, Any]]:
        """The schemas, and all fields that their document has."""
        try:
            return read_schemas(self._path(entry))
        except (CorruptionError, ForeignFileError) as e:
            self._session.damage.enqueue(
                Damage(
                    e.path or "",
                    offset=e.offset or 0,
                    reason=e.reason,
                    kind=TOPIC_FILES,
                    topic=entry.name,
                    done="no one uses a schema of the topic; its messages are whole",
                    remedy=e.remedy,
                )
            )
            raise

    # -- changing ----------------------------------------------------------------------------------

    def add(self, name: str, info: SchemaInfo, *, durable: bool = False) -> int:
        """The version of a producer's schema, which is added if it is new and compatible.

        Args:
            name: of a topic or partition that exists.
            info: a valid schema or not.
            durable: see `SchemaRegistry`; for this schema.

        Raises:
            IncompatibleSchema: it is not valid, not compatible, or new and may not be added.
            TopicNotFound: no such topic; it may have been deleted meanwhile.
            StorageError: the document is damaged, or cannot be written.
        """

        def check(document: SchemaDocument) -> str:
            if not self._session.policies.value(SCHEMA_AUTO_UPDATE, TopicName.parse(name).full):
                return "Schema not found and schema auto updating is disabled; upload it with Admin.schemas()"
            return self._why_refused(document, name, info)

        return self._add(name, info, check, durable=durable)

    def upload(self, name: str, info: SchemaInfo) -> int:
        """As `add`, also where programs may not add schemas."""
        return self._add(name, info, lambda document: self._why_refused(document, name, info))

    def _why_refused(self, document: SchemaDocument, name: str, info: SchemaInfo) -> str:
        """Why a schema is not compatible with those of a topic; empty if it is."""
        with late_imports():  # most topics have no schema
            from embeddedpulsar._engine.store.schema_compatibility import why_refused
        return why_refused(document.infos(), info, self.strategy(name))

    def copy(self, name: str, info: SchemaInfo, *, durable: bool = False) -> int:
        """As `add`, whatever the strategy says: for a topic that takes messages as another one has them."""
        return self._add(name, info, lambda _: "", durable=durable)

    def admit(self, name: str, info: SchemaInfo, is_idle: Callable[[], bool]) -> None:
        """Check the schema of a consumer; a topic that is idle and has none gets it.

        Args:
            name: of a topic or partition that exists.
            info: the schema.
            is_idle: whether the topic has no messages, producers and consumers.

        Raises:
            IncompatibleSchema: the topic has schemas, and this one does not fit; or it has messages without a
                schema.
            TopicNotFound, StorageError: see `add`.
        """
        with late_imports():
            from embeddedpulsar._engine.store.schema_compatibility import why_invalid, why_unfit
        document = self.document(name)
        if not document.current and is_idle():
            self.add(name, info)
            return
        text = why_invalid(info)
        strategy = self.strategy(name)
        if not text and document.current:
            text = _answer(lambda known: why_unfit(known.infos(), info, strategy), document)
        elif strategy != SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE:
            # An invalid schema keeps its own text. Of a topic in use without a schema nothing says whether
            # the consumer can decode its messages: only ALWAYS_COMPATIBLE lets it try.
            text = text or (
                "the topic is in use and has no schema; start a producer with the schema first, or add it "
                "with Admin.schemas().create_schema(topic, schema)"
            )
        if text:
            raise _refused(name, info, text)

    def delete(self, name: str, *, force: bool) -> int:
        """Delete the schemas of a topic.

        Args:
            name: of a topic or partition.
            force: also for messages that were written with them.

        Returns:
            The version that the deletion took; -1 if there was nothing to delete.
        """

        def change(document: SchemaDocument) -> SchemaDocument:
            if not (document.schemas if force else document.current):
                return document
            return document.emptied(force=force)

        before, after = self._change(name, change, durable=self._durable)
        return NO_VERSION if after == before else after.next_version - 1

    def _add(
        self,
        name: str,
        info: SchemaInfo,
        check: Callable[[SchemaDocument], str],
        *,
        durable: bool = False,
    ) -> int:
        with late_imports():
            from embeddedpulsar._engine.store.schema_compatibility import why_invalid
        durable = durable or self._durable
        while True:
            # 1. Without the lock: reading and comparing definitions takes as long as these are large.
            document = self.document(name)
            version = document.version_of(info)
            if version != NO_VERSION and (document.is_durable or not durable):
                return version
            if version == NO_VERSION:
                text = why_invalid(info) or _answer(check, document)
                if text:
                    raise _refused(name, info, text)
                wanted = document.with_schema(info, self._clock.wall_ms())
            else:
                wanted = document._replace(is_durable=True)
            # 2. Under the lock: only what was compared is replaced.
            _, after = self._change(name, partial(_unless_changed, document, wanted), durable=durable)
            if after.has_schemas_of(wanted):
                return version if version != NO_VERSION else wanted.next_version - 1
            # 3. Another process added or deleted schemas meanwhile: each further turn follows such a change.

    def _change(
        self, name: str, change: Callable[[SchemaDocument], SchemaDocument], *, durable: bool
    ) -> tuple[SchemaDocument, SchemaDocument]:
        """The schemas of a topic before and after a change."""
        self._session.check_in_place()
        catalog = self._session.catalog
        try:
            catalog.lock.acquire()
            entry = self._entry(name)
            if not entry.is_made:  # it was announced and never opened
                entry = self._session.directories.make(entry, self._clock.wall_ms(), durable=durable)
            before, fields = self._read(entry)
            after = change(before)
            if after == before:
                return before, after
            # What survives a power loss is not replaced by a file that may not.
            durable = durable or before.is_durable
            after = after._replace(is_durable=durable)
            path = self._path(entry)
            # 1. What a process left that died at the next step.
            remove_unfinished(path)
            if failpoints.ACTIVE:
                failpoints.hit("schema:locked")
            # 2. The document. From here on every process finds the version; no message has it yet.
            fields = fields | after.fields() | {"owner": entry.name}
            disk.DISK.atomic_write(path, encode_document(KIND_SCHEMAS, fields), durable)
            if failpoints.ACTIVE:
                failpoints.hit("schema:written")
            return before, after
        finally:
            catalog.lock.release()


def _answer(check: Callable[[SchemaDocument], str], document: SchemaDocument) -> str:
    """What a check says of the schemas of a topic; or that one of them cannot be read here."""
    try:
        return check(document)
    except ValueError as error:
        return f"a schema that the topic has cannot be compared with it: {error}"


def _unless_changed(
    compared: SchemaDocument, wanted: SchemaDocument, current: SchemaDocument
) -> SchemaDocument:
    """What replaces a document: the wanted one, if it still has the schemas that were compared."""
    if not current.has_schemas_of(compared):
        return current
    return wanted._replace(is_durable=wanted.is_durable or current.is_durable)


def _refused(name: str, info: SchemaInfo, text: str) -> IncompatibleSchema:
    full = TopicName.parse(name).full
    return IncompatibleSchema(f"the {info.schema_type().name} schema cannot be used on {full}: {text}")


def read_schemas(path: str) -> tuple[SchemaDocument, dict[str, Any]]:
    """The schemas of a document, and all fields that it has; no schemas if there is no such file.

    Raises:
        StorageError: the document is damaged.
    """
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        return SchemaDocument(), {}
    try:
        fields = decode_document(data, KIND_SCHEMAS)
        return SchemaDocument.read(fields), fields
    except (CorruptionError, ForeignFileError) as e:
        raise type(e)(path=path, offset=e.offset, reason=e.reason, remedy=_RESTORE) from None
    except StorageError as e:
        raise e.at(path) from None
