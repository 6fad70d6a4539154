"""Random record classes and frames: what is received and read equals the rows, whatever the columns are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar import Client, MessageId
from embeddedpulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
)
from embeddedpulsar.testing import assert_clean

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
pytest.importorskip("fastavro", reason="the extra `avro` is not installed")

from embeddedpulsar.arrow import read_topic  # noqa: E402
from embeddedpulsar.arrow.row_values import python_values  # noqa: E402

NUMBERS = itertools.count()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


class Kind(NamedTuple):
    """A type of a field.

    Attributes:
        field: makes the field, given whether it is required.
        types: the Arrow types that a column of it may have.
        values: of the field.
    """

    field: Callable[[bool], Any]
    types: list[Any]
    values: st.SearchStrategy[Any]


LEAVES = [
    Kind(
        lambda required: Integer(required=required),
        [pa.int32(), pa.int64()],
        st.integers(-(1 << 31), 1 << 30),
    ),
    Kind(lambda required: Long(required=required), [pa.int64()], st.integers(-(1 << 63), (1 << 63) - 1)),
    Kind(
        lambda required: Double(required=required),
        [pa.float64()],
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    Kind(
        lambda required: Float(required=required),
        [pa.float32(), pa.float64()],
        st.floats(allow_nan=False, allow_infinity=False, width=32),
    ),
    Kind(lambda required: Boolean(required=required), [pa.bool_()], st.booleans()),
    Kind(
        lambda required: String(required=required),
        [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
        TEXTS,
    ),
    Kind(
        lambda required: Bytes(required=required),
        [pa.binary(), pa.large_binary(), pa.binary_view()],
        TEXTS.map(str.encode),
    ),
]


class Fields(NamedTuple):
    """A record class, an Arrow type for its rows, and rows."""

    record: type[Record]
    type: Any
    rows: st.SearchStrategy[dict[str, Any]]


@st.composite
def kinds(draw: Any, depth: int) -> Kind:
    """Types of fields, which may hold each other."""
    which = draw(st.sampled_from(["leaf", "array", "map", "record"] if depth else ["leaf"]))
    if which == "record":
        inner = draw(fields(depth - 1))
        return Kind(lambda required: inner.record(required=required), [inner.type], inner.rows)
    # A record takes texts in place of bytes in lists and maps, and has them in JSON.
    leaf = draw(st.sampled_from(LEAVES if which == "leaf" else LEAVES[:-1]))
    if which == "leaf":
        return leaf
    kind = draw(st.sampled_from(leaf.types))
    if which == "array":
        make = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view]))
        return Kind(
            lambda required: Array(leaf.field(True), required=required),
            [make(kind)],
            st.lists(leaf.values, max_size=3),
        )
    return Kind(
        lambda required: Map(leaf.field(True), required=required),
        [pa.map_(pa.string(), kind)],
        st.dictionaries(TEXTS, leaf.values, max_size=3),
    )


@st.composite
def fields(draw: Any, depth: int = 2) -> Fields:
    """Records of one to four fields, in an order of the columns that may be another one."""
    members: dict[str, Any] = {}
    columns: list[tuple[str, Any]] = []
    values: dict[str, st.SearchStrategy[Any]] = {}
    for name in draw(st.lists(st.sampled_from(["a", "b", "value", "key"]), min_size=1, unique=True)):
        kind, required = draw(kinds(depth)), draw(st.booleans())
        members[name] = kind.field(required)
        columns.append((name, draw(st.sampled_from(kind.types))))
        values[name] = kind.values if required else st.none() | kind.values
    record = type(f"Row{next(NUMBERS)}", (Record,), members)
    return Fields(record, pa.struct(draw(st.permutations(columns))), st.fixed_dictionaries(values))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Client]]:
    """A store with a client, for a topic of every example."""
    root = tmp_path_factory.mktemp("frames") / "store"
    with Client(root) as client:
        yield root, client
    assert_clean(root)


def made(kind: type[Record], row: dict[str, Any]) -> Record:
    """The record of a row; a null is what the class has for None."""
    return kind(**row)


def plain(value: Any) -> Any:
    """A record as a dict."""
    if isinstance(value, Record):
        return {name: plain(vars(value)[name]) for name in type(value).__record_fields__}
    return value


@given(
    found=fields().flatmap(lambda one: st.tuples(st.just(one), st.lists(one.rows, min_size=1, max_size=5))),
    make=st.sampled_from([JsonSchema, AvroSchema]),
    form=st.sampled_from(["columns", "structs", "batches"]),
)
def test_frames_of_records(
    store: tuple[Path, Client], found: tuple[Fields, list[dict[str, Any]]], make: Any, form: str
) -> None:
    """A consumer receives the rows, in the bytes of `send`, and the frame comes back."""
    (record, kind, _), rows = found
    root, client = store
    schema, topic = make(record), f"topic-{next(NUMBERS)}"
    structs = pa.array(rows, kind)
    frame: Any = pa.Table.from_struct_array(structs)
    if form == "structs":
        frame = pa.table({"whole": structs})
    elif form == "batches":
        frame = frame.to_reader(max_chunksize=2)
    with client.create_producer(topic, schema=schema) as producer:
        sent = producer.send_arrow(frame, value="whole")
    expected = [made(record, row) for row in rows]
    reader = client.create_reader(topic, MessageId.earliest, schema=schema)
    messages = [reader.read_next(2000) for _ in sent]
    reader.close()
    assert [message.value() for message in messages] == expected
    assert [message.data() for message in messages] == [schema.encode(one) for one in expected]
    columns = list(record.__record_fields__)
    read = read_topic(root, topic, columns, decode=True)
    assert read.to_pylist(maps_as_pydicts="strict") == [plain(one) for one in expected]


@given(
    found=fields().flatmap(lambda one: st.tuples(st.just(one), st.lists(one.rows, min_size=2, max_size=5))),
    make=st.sampled_from([JsonSchema, AvroSchema]),
    at=st.integers(0, 4),
)
def test_nulls_are_refused(
    store: tuple[Path, Client], found: tuple[Fields, list[dict[str, Any]]], make: Any, at: int
) -> None:
    """A null in a field that allows none is refused by row and field, and nothing of the frame is stored."""
    (record, kind, _), rows = found
    required = [name for name, field in record.__record_fields__.items() if field._required]
    if not required:
        return
    _, client = store
    name, row = required[at % len(required)], at % len(rows)
    rows[row] = {**rows[row], name: None}
    topic = f"topic-{next(NUMBERS)}"
    with client.create_producer(topic, schema=make(record)) as producer:
        with pytest.raises(ValueError, match=f"row {row}: field {name} is null") as caught:
            producer.send_arrow(pa.Table.from_struct_array(pa.array(rows, kind)), value="whole")
        assert len(caught.value.stored) == 0  # type: ignore[attr-defined]


ARRAYS = st.sampled_from(
    [
        (pa.int16(), st.integers(-9, 9)),
        (pa.float32(), st.floats(width=32, allow_nan=False)),
        (pa.string(), TEXTS | st.text("ab")),
        (pa.string_view(), TEXTS | st.text("ab", min_size=14)),
        (pa.large_string(), st.text("ab")),
        (pa.dictionary(pa.int8(), pa.string()), st.text("ab", max_size=2)),
        (pa.bool_(), st.booleans()),
        (pa.date32(), st.dates()),
    ]
)


@st.composite
def arrays(draw: Any) -> Any:
    """Arrays, with nulls at any depth, that may begin and end within their buffers."""
    kind, values = draw(ARRAYS)
    for _ in range(draw(st.integers(0, 2))):
        values = st.none() | values
        if draw(st.booleans()):
            kind, values = pa.struct([("a", kind), ("b", pa.int8())]), st.fixed_dictionaries({"a": values})
        else:
            make = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view]))
            kind, values = make(kind), st.lists(values, max_size=3)
    found = pa.array(draw(st.lists(st.none() | values, max_size=6)), kind)
    start = draw(st.integers(0, len(found)))
    return found.slice(start, draw(st.integers(0, len(found) - start)))


@given(arrays())
def test_values_of_columns(values: Any) -> None:
    """Made column by column, the values are those of Arrow."""
    assert python_values(values) == values.to_pylist()
