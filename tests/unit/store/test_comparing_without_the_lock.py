"""Unit tests of the registry: definitions are compared without the catalog's lock, with the newest ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, IncompatibleSchema
from embeddedpulsar._engine.store import schema_compatibility
from embeddedpulsar._engine.store.schema_info import SchemaInfo
from embeddedpulsar._engine.store.schema_registry import SchemaDocument, SchemaRegistry
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.schema.schema import Schema
from embeddedpulsar.testing.trial_store import assert_clean


def info(**defaults: Any) -> SchemaInfo:
    """A record with fields of these names and defaults; a field of None has no default."""
    fields = [
        {"name": name, "type": "int"} | ({} if default is None else {"default": default})
        for name, default in defaults.items()
    ]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    return SchemaInfo(SchemaType.AVRO, "AVRO", text)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A store with a topic that has one schema; at the end it is audited."""
    store = tmp_path / "store"
    with Admin(str(store)) as admin:
        admin.schemas().create_schema("t", info(a=None))
    yield store
    assert_clean(store)


class Comparisons:
    """Watches the comparisons of a registry: none holds the catalog's lock, and each may be followed by what
    another process does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, registry: SchemaRegistry) -> None:
        self.known: list[int] = []
        self.meanwhile: list[Callable[[], object]] = []
        lock = registry._session.catalog.lock
        original = schema_compatibility.why_refused  # `why_unfit` calls it, too

        def why_refused(known: Any, *others: Any) -> str:
            assert not lock.held
            text = original(known, *others)
            self.known.append(len(known))
            if self.meanwhile:
                self.meanwhile.pop(0)()
            return text

        monkeypatch.setattr(schema_compatibility, "why_refused", why_refused)
        valid = schema_compatibility.why_invalid

        def why_invalid(new: SchemaInfo) -> str:
            assert not lock.held
            return valid(new)

        monkeypatch.setattr(schema_compatibility, "why_invalid", why_invalid)
        version_of = SchemaDocument.version_of

        def found(document: Any, new: SchemaInfo) -> int:
            assert not lock.held
            return version_of(document, new)

        monkeypatch.setattr(SchemaDocument, "version_of", found)


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """The store, opened."""
    opened = Store.open(str(path))
    yield opened
    opened.release()


def add_by_another(path: Path, new: SchemaInfo) -> Callable[[], object]:
    """Adds a schema to the topic."""

    def add() -> None:
        with Admin(str(path)) as admin:
            admin.schemas().create_schema("t", new)

    return add


def test_a_schema_that_another_process_adds_meanwhile_is_compared_too(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The comparison begins again, as often as it takes."""
    registry = store.schemas
    comparisons = Comparisons(monkeypatch, registry)
    comparisons.meanwhile = [
        add_by_another(path, info(a=None, b=0)),
        lambda: comparisons.known.append(-1),  # the comparison of the other one
        add_by_another(path, info(a=None, b=0, c=0)),
    ]
    assert registry.add("t", info(a=None, b=0, c=0, d=0)) == 3
    assert comparisons.known == [1, 1, -1, 2, 2, 3]
    assert [one.version for one in registry.document("t").schemas] == [0, 1, 2, 3]


def test_what_is_not_compatible_with_a_schema_of_meanwhile_is_refused(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """It was with the older ones."""
    registry = store.schemas
    comparisons = Comparisons(monkeypatch, registry)
    comparisons.meanwhile = [add_by_another(path, info(a=None, b=0))]
    clash = SchemaInfo(
        SchemaType.AVRO,
        "AVRO",
        info(a=None, b=0).schema().replace('"b", "type": "int"', '"b", "type": ["int", "string"]'),
    )
    with pytest.raises(
        IncompatibleSchema, match=r"the old schema does not read .* b: string cannot be read as int"
    ):
        registry.add("t", clash)
    assert len(registry.document("t").schemas) == 2


def test_the_same_schema_meanwhile_is_one_version(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch):
    """Both producers get its number."""
    registry = store.schemas
    comparisons = Comparisons(monkeypatch, registry)
    comparisons.meanwhile = [add_by_another(path, info(a=None, b=0))]
    assert registry.add("t", info(a=None, b=0)) == 1
    assert len(registry.document("t").schemas) == 2


def test_a_deletion_meanwhile(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch):
    """The version is the next one, and the deletion is not undone."""
    registry = store.schemas
    comparisons = Comparisons(monkeypatch, registry)

    def delete() -> None:
        with Admin(str(path)) as admin:
            admin.schemas().delete_schema("t")

    comparisons.meanwhile = [delete]
    assert registry.add("t", info(a=None, b=0)) == 2
    assert comparisons.known == [1, 0]
    assert [one.version for one in registry.document("t").current] == [2]


def test_durability_meanwhile_is_kept(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch):
    """A document that another process made durable stays so."""
    registry = store.schemas
    comparisons = Comparisons(monkeypatch, registry)
    comparisons.meanwhile = [lambda: registry.add("t", info(a=None), durable=True)]
    assert registry.add("t", info(a=None, b=0)) == 1
    document = registry.document("t")
    assert document.is_durable and len(document.schemas) == 2
    assert len(comparisons.known) == 1  # durability is nothing to compare


def test_producers_and_consumers_compare_without_the_lock(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """Of every kind: a new schema, one that differs in spaces, one that does not fit."""

    class Own(Schema[bytes]):
        def __init__(self, definition: str) -> None:
            super().__init__(bytes, SchemaType.AVRO, json.loads(definition), "AVRO")

        def encode(self, obj: bytes) -> bytes:
            return obj

        def decode(self, data: bytes) -> bytes:
            return data

    comparisons = Comparisons(monkeypatch, store.schemas)
    with Client(str(path)) as client:
        client.create_producer("t", schema=Own(info(a=None, b=0).schema())).close()
        client.create_producer("t", schema=Own(info(a=None).schema())).close()
        client.subscribe("t", "s", schema=Own(info(a=None).schema())).close()
        with pytest.raises(IncompatibleSchema):
            client.create_producer("t", schema=Own(info(q=None).schema()))
        with pytest.raises(IncompatibleSchema):
            client.subscribe("t", "s", schema=Own(info(q=None).schema()))
    assert len(comparisons.known) == 4
