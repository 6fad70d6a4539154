"""Compatibility of schemas against models: Avro's reader, and the definition of each strategy."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddedpulsar._engine.format.avro_definition import is_alike, parsed, why_unreadable
from embeddedpulsar._engine.store.schema_compatibility import is_same, why_refused, why_unfit
from embeddedpulsar._engine.store.schema_info import SchemaInfo
from embeddedpulsar._engine.store.schema_registry import SchemaDocument
from embeddedpulsar.enums import SchemaCompatibilityStrategy as Strategy
from embeddedpulsar.enums import SchemaType

fastavro = pytest.importorskip("fastavro", reason="the extra is not installed")

VALUES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": 7,
    "long": 1 << 40,
    "float": 1.5,
    "double": 2.5,
    "bytes": b"soup",
    "string": "soup",
}
LEAVES = st.sampled_from(sorted(VALUES))
ENUM = {"type": "enum", "name": "Size", "symbols": ["S", "L"]}


@st.composite
def field_types(draw: Any, depth: int = 2) -> Any:
    """Types of fields, which may hold each other."""
    kinds = ["leaf", "union", "enum"] + (["array", "map", "record"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "leaf":
        return draw(LEAVES)
    if kind == "union":
        return draw(st.lists(LEAVES, min_size=1, max_size=3, unique=True))
    if kind == "enum":
        return dict(ENUM)
    inner = draw(field_types(depth=depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}
    if kind == "map":
        return {"type": "map", "values": inner}
    return draw(records(f"Inner{depth}", depth - 1))


@st.composite
def records(draw: Any, name: str = "Order", depth: int = 2) -> dict[str, Any]:
    """Records of some of four fields, with or without defaults."""
    fields = []
    for field in draw(st.lists(st.sampled_from("abcd"), max_size=4, unique=True)):
        kind = draw(field_types(depth=depth))
        described: dict[str, Any] = {"name": field, "type": kind}
        first = kind[0] if isinstance(kind, list) else kind
        if isinstance(first, str) and draw(st.booleans()):
            described["default"] = "soup" if first == "bytes" else VALUES[first]
        fields.append(described)
    return {"type": "record", "name": name, "fields": fields}


def once_defined(definition: Any, names: set[str] | None = None) -> Any:
    """The definition with each named type written out where it comes first."""
    names = set() if names is None else names
    if isinstance(definition, list):
        return [once_defined(one, names) for one in definition]
    if not isinstance(definition, dict):
        return definition
    name = definition.get("name")
    if name is not None and definition.get("type") in ("record", "enum"):
        if name in names:
            return name
        names.add(name)
    changed = dict(definition)
    for key in ("items", "values"):
        if key in changed:
            changed[key] = once_defined(changed[key], names)
    if "fields" in changed:
        changed["fields"] = [{**one, "type": once_defined(one["type"], names)} for one in changed["fields"]]
    return changed


def samples(kind: Any) -> Iterator[Any]:
    """Values of a type, one for each branch of each union in it."""
    if isinstance(kind, str):
        yield VALUES[kind]
    elif isinstance(kind, list):
        for branch in kind:
            yield from samples(branch)
    elif kind["type"] == "enum":
        yield kind["symbols"][0]
    elif kind["type"] == "array":
        yield from ([one] for one in samples(kind["items"]))
    elif kind["type"] == "map":
        yield from ({"k": one} for one in samples(kind["values"]))
    else:
        choices = {field["name"]: list(samples(field["type"])) for field in kind["fields"]}
        for index in range(max([1, *map(len, choices.values())])):
            yield {name: some[index % len(some)] for name, some in choices.items()}


def reads_all(writer: Any, reader: Any) -> bool:
    """Whether Avro's reader takes every sample of the writer."""
    written, read = (fastavro.parse_schema(once_defined(one)) for one in (writer, reader))
    for value in samples(writer):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, written, value)
        buffer.seek(0)
        try:
            fastavro.schemaless_reader(buffer, written, read)
        except (fastavro.read.SchemaResolutionError, ValueError, TypeError, KeyError, AttributeError):
            return False
    return True


def has_one_inner(definition: Any) -> bool:
    """Whether no name stands for two types: then it would not be a definition."""
    seen: dict[str, Any] = {}

    def visit(kind: Any) -> bool:
        if isinstance(kind, list):
            return all(map(visit, kind))
        if not isinstance(kind, dict):
            return True
        if kind["type"] in ("record", "enum") and seen.setdefault(kind["name"], kind) != kind:
            return False
        parts = [kind.get("items"), kind.get("values"), *(one["type"] for one in kind.get("fields", ()))]
        return all(visit(part) for part in parts if part is not None)

    return visit(definition)


@settings(max_examples=60, deadline=None)
@given(records().filter(has_one_inner), records().filter(has_one_inner))
def test_readable_is_what_avro_reads(writer: Any, reader: Any):
    """A definition is readable exactly if every value written with it is read."""
    text = why_unreadable(tree(writer), tree(reader))
    assert bool(text) != reads_all(writer, reader), text


def tree(definition: Any) -> Any:
    """The definition as it is compared."""
    return parsed(json.dumps(once_defined(definition)), strict=True)


def info(definition: Any) -> SchemaInfo:
    """An Avro schema."""
    return SchemaInfo(SchemaType.AVRO, "AVRO", json.dumps(definition))


@st.composite
def simple_records(draw: Any) -> dict[str, Any]:
    """Records of up to three fields of two types, so that many of them are compatible."""
    fields: list[dict[str, Any]] = []
    for name in draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True)):
        kind = draw(st.sampled_from(["int", "long"]))
        fields.append({"name": name, "type": kind} | ({"default": 0} if draw(st.booleans()) else {}))
    return {"type": "record", "name": "Order", "fields": fields}


def simple_reads(writer: Any, reader: Any) -> bool:
    """The model: a long is no int, and a field that is missing needs a default."""
    written = {one["name"]: one["type"] for one in writer["fields"]}
    return all(
        (written[one["name"]], one["type"]) != ("long", "int") if one["name"] in written else "default" in one
        for one in reader["fields"]
    )


def expected(strategy: Strategy, known: list[Any], new: Any) -> bool:
    """What a strategy says by its definition."""
    if strategy == Strategy.ALWAYS_COMPATIBLE or not known:
        return True
    if strategy == Strategy.ALWAYS_INCOMPATIBLE:
        return False
    asked = known if strategy.name.endswith("_TRANSITIVE") else known[-1:]
    direction = strategy.name.removesuffix("_TRANSITIVE")
    reads_old = all(simple_reads(old, new) for old in asked)
    is_read = all(simple_reads(new, old) for old in asked)
    return {"BACKWARD": reads_old, "FORWARD": is_read, "FULL": reads_old and is_read}[direction]


STRATEGIES = [one for one in Strategy if one is not Strategy.UNDEFINED]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(simple_records(), st.sampled_from(STRATEGIES), st.booleans()), max_size=8))
def test_a_topic_accepts_what_its_strategies_say(steps: list[tuple[Any, Strategy, bool]]):
    """Over any sequence of schemas, strategies and deletions; versions only rise, and stay what they were."""
    document, model, numbers = SchemaDocument(), list[tuple[int, Any]](), dict[int, Any]()
    for definition, strategy, is_deletion in steps:
        if is_deletion and model:
            document, model = document.emptied(force=False), []
            continue
        new = info(definition)
        known = [one for _, one in model]
        same = [number for number, one in model if one == definition]
        assert document.version_of(new) == (same[0] if same else -1)
        reader_fits = not known or simple_reads(known[-1], definition)
        if known and strategy in (
            Strategy.BACKWARD,
            Strategy.FORWARD,
            Strategy.FULL,
            Strategy.FORWARD_TRANSITIVE,
        ):
            assert (not why_unfit(document.infos(), new, strategy)) == reader_fits
        if same:
            continue
        accepted = not why_refused(document.infos(), new, strategy)
        assert accepted == expected(strategy, known, definition)
        if accepted:
            number = document.next_version
            assert number > max(numbers, default=-1)
            document = document.with_schema(new, 0)
            model.append((number, definition))
            numbers[number] = definition
    assert SchemaDocument.read(document.fields()) == document
    for number, definition in numbers.items():
        stored = document.written(number)
        assert stored is not None and json.loads(stored.data) == definition


@settings(max_examples=30, deadline=None)
@given(records().filter(has_one_inner))
def test_a_definition_is_like_itself(definition: Any):
    """However it is written; and reads itself."""
    one, spaced = json.dumps(once_defined(definition)), json.dumps(once_defined(definition), indent=3)
    left, right = parsed(one, strict=True), parsed(spaced, strict=True)
    assert is_alike(left, right) and not why_unreadable(left, right)
    assert is_same(SchemaInfo(SchemaType.JSON, "", one), SchemaInfo(SchemaType.JSON, "", spaced))
