"""`send_arrow` of fields and structs: each row is a value of the producer's schema, or is refused by name."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import pytest

from embeddedpulsar import Client
from embeddedpulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    CustomEnum,
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

from embeddedpulsar.arrow import dataset, read_topic  # noqa: E402

FORMATS: list[Any] = [JsonSchema, AvroSchema]
WAITS = 2000


class Size(enum.Enum):
    """Sizes, with other values than names."""

    small = "S"
    large = "L"


class Place(Record):
    """Where something is."""

    town = String(required=True)
    floor = Integer(default=3, required=True)


class Order(Record):
    """A field of every kind."""

    item = String(required=True)
    count = Integer(required=True, default=1)
    total = Long()
    price = Double(required=True)
    weight = Float()
    paid = Boolean()
    raw = Bytes()
    size = CustomEnum(Size, required=True)
    place = Place(required=True)
    tags = Array(String(), required=True)
    stock = Map(Long())
    visits = Array(Place())


ROWS: list[dict[str, Any]] = [
    {
        "item": "tea",
        "count": 2,
        "total": 1 << 40,
        "price": 2.5,
        "weight": 0.5,
        "paid": True,
        "raw": b"leaf",
        "size": "small",
        "place": {"town": "Jena", "floor": 1},
        "tags": ["hot", "green"],
        "stock": {"a": 1, "b": 2},
        "visits": [{"town": "Gera", "floor": 2}],
    },
    {
        "item": "cäke",
        "count": -7,
        "total": None,
        "price": 0.0,
        "weight": None,
        "paid": False,
        "raw": None,
        "size": "large",
        "place": {"town": "", "floor": 0},
        "tags": [],
        "stock": None,
        "visits": None,
    },
]
PLACE = pa.struct([("town", pa.string()), ("floor", pa.int32())])
TYPES = {
    "item": pa.string(),
    "count": pa.int32(),
    "total": pa.int64(),
    "price": pa.float64(),
    "weight": pa.float32(),
    "paid": pa.bool_(),
    "raw": pa.binary(),
    "size": pa.string(),
    "place": PLACE,
    "tags": pa.list_(pa.string()),
    "stock": pa.map_(pa.string(), pa.int64()),
    "visits": pa.list_(PLACE),
}
OTHER_TYPES = {
    "item": pa.string_view(),
    "count": pa.int8(),
    "total": pa.uint64(),
    "price": pa.float32(),
    "weight": pa.float16(),
    "raw": pa.binary_view(),
    "size": pa.dictionary(pa.int8(), pa.string()),
    "place": pa.struct([("floor", pa.uint8()), ("town", pa.large_string())]),
    "tags": pa.list_view(pa.string()),
    "visits": pa.large_list(pa.struct([("town", pa.string_view()), ("floor", pa.int64())])),
}


@dataclasses.dataclass
class Visit:
    """A model with texts that columns have other types for."""

    name: str
    at: datetime.datetime
    day: datetime.date
    cost: Decimal
    token: UUID
    size: Size
    note: str | None
    extra: Any
    count: int = 5
    marks: list[int] = dataclasses.field(default_factory=lambda: [1])


class Loose(TypedDict):
    """A typed dict with a key that may be left out."""

    name: str
    count: NotRequired[int]


class Deep(Record):
    """A field called value, which is a record."""

    value = Place(required=True)


def expected(row: dict[str, Any]) -> Order:
    """The record of a row."""
    places = None if row["visits"] is None else [Place(**one) for one in row["visits"]]
    return Order(**{**row, "place": Place(**row["place"]), "visits": places})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """The directory of a store, which is whole in the end."""
    yield tmp_path / "store"
    assert_clean(tmp_path / "store")


def published(store: Path, schema: Any, frame: Any, **options: Any) -> list[Any]:
    """The messages that a consumer with the schema receives of a frame."""
    with Client(store) as client:
        consumer = client.subscribe("topic", "s", schema=schema)
        sent = client.create_producer("topic", schema=schema).send_arrow(frame, **options)
        messages = [consumer.receive(WAITS) for _ in range(len(sent))]
        for message in messages:
            consumer.acknowledge(message)
        return messages


def refusal(store: Path, schema: Any, frame: Any, **options: Any) -> str:
    """The text of the error of a frame, of which nothing is stored."""
    with Client(store) as client:
        producer = client.create_producer("topic", schema=schema)
        with pytest.raises((ValueError, TypeError)) as caught:
            producer.send_arrow(frame, **options)
        assert len(caught.value.stored) == 0  # type: ignore[union-attr]
    assert read_topic(store, "topic", ["value"], decode=False).num_rows == 0
    return str(caught.value)


def table(rows: list[dict[str, Any]], types: dict[str, Any] = TYPES) -> Any:
    """Rows as columns."""
    columns = {name: [row[name] for row in rows] for name in types}
    return pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})


def structs(frame: Any) -> Any:
    """Columns as one column of structs."""
    return frame.to_struct_array().combine_chunks()


FORMS: dict[str, Callable[[], Any]] = {
    "table": lambda: table(ROWS),
    "batch": lambda: table(ROWS).to_batches()[0],
    "reader": lambda: table(ROWS).to_reader(max_chunksize=1),
    "chunks": lambda: pa.concat_tables([table(ROWS[:1]), table(ROWS[1:])]),
    "other types": lambda: table(ROWS, TYPES | OTHER_TYPES),
    "structs": lambda: pa.table({"value": structs(table(ROWS))}),
    "structs of other types": lambda: pa.table({"value": structs(table(ROWS, TYPES | OTHER_TYPES))}),
    "structs, sliced": lambda: pa.table({"value": structs(table([*ROWS, *ROWS]))[1:]}).slice(1),
    "array": lambda: structs(table(ROWS)),
    "maps as lists": lambda: table(ROWS).set_column(
        10, "stock", pa.array([[{"key": "a", "value": 1}, {"key": "b", "value": 2}], None])
    ),
    "no rows": lambda: table([]),
}


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("form", list(FORMS))
def test_rows_are_values(store: Path, make: Any, form: str) -> None:
    """What a consumer receives, and what is read as a frame, equals the rows."""
    messages = published(store, make(Order), FORMS[form]())
    wanted = [] if form == "no rows" else ROWS
    assert [message.value() for message in messages] == [expected(row) for row in wanted]
    if not wanted:
        return
    assert [message.data() for message in messages] == [make(Order).encode(expected(row)) for row in wanted]
    columns = list(TYPES)
    frame = read_topic(store, "topic", columns, decode=True)
    symbols = {"small": "S", "large": "L"} if make is JsonSchema else {}
    read = [dict(row) | {"size": symbols.get(row["size"], row["size"])} for row in wanted]
    assert frame.to_pylist(maps_as_pydicts="strict") == read
    assert dataset(store, "topic", columns, decode=True).to_table().equals(frame)
    # What was read is a frame, too.
    again = published(store, make(Order), frame)
    assert [message.value() for message in again] == [expected(row) for row in wanted]


@pytest.mark.parametrize("make", FORMATS)
def test_polars_frames(store: Path, make: Any) -> None:
    """Views, large lists, categories, and maps as lists of structs."""
    pl = pytest.importorskip("polars", reason="the extra is not installed")
    plain = [row | {"stock": None} for row in ROWS]
    frame = pl.DataFrame([{key: row[key] for key in row if key != "stock"} for row in plain])
    frame = frame.with_columns(
        pl.col("size").cast(pl.Enum(["small", "large"])), pl.col("item").cast(pl.Categorical)
    )
    for form in (frame, frame.select(pl.struct(pl.all()).alias("value")), frame.lazy().collect()):
        messages = published(store, make(Order), form)
        assert [message.value() for message in messages] == [expected(row) for row in plain]


@pytest.mark.parametrize("make", FORMATS)
def test_parts_of_messages(store: Path, make: Any) -> None:
    """A column named by an argument is the key, and the field of its name as well."""
    frame = pa.table(
        {
            "town": ["Jena", "Gera"],
            "floor": pa.array([1, 2], pa.int32()),
            "at": pa.array([1000, 2000], pa.timestamp("ms", "UTC")),
            "__messageId": [b"x", b"y"],
            "__index_level_0__": [0, 1],
        }
    )
    messages = published(store, make(Place), frame, key="town", event_time="at")
    assert [message.value() for message in messages] == [
        Place(town="Jena", floor=1),
        Place(town="Gera", floor=2),
    ]
    assert [message.partition_key() for message in messages] == ["Jena", "Gera"]
    assert [message.event_timestamp() for message in messages] == [1000, 2000]


@pytest.mark.parametrize("make", FORMATS)
def test_null_structs(store: Path, make: Any) -> None:
    """A null struct is a null value, and other columns beside structs are not written."""
    values = pa.array([{"town": "Jena", "floor": 1}, None], PLACE)
    messages = published(store, make(Place), pa.table({"value": values, "unknown": [1, 2]}))
    assert [message.has_null_value() for message in messages] == [False, True]
    nulls = published(store, make(Place), pa.table({"value": pa.nulls(2)}))
    assert [message.has_null_value() for message in nulls] == [True, True]


@pytest.mark.parametrize("make", FORMATS)
def test_a_field_called_value(store: Path, make: Any) -> None:
    """The field comes first; structs of whole values have a column of another name, or are an array."""
    places = pa.array([{"town": "Jena", "floor": 1}], PLACE)
    wholes = pa.StructArray.from_arrays([places], ["value"])
    wanted = [Deep(value=Place(town="Jena", floor=1))]
    for frame, options in (
        (pa.table({"value": places}), {}),
        (pa.table({"row": wholes}), {"value": "row"}),
        (wholes, {}),
    ):
        messages = published(store, make(Deep), frame, **options)
        assert [message.value() for message in messages] == wanted


@pytest.mark.parametrize("make", FORMATS)
def test_defaults(store: Path, make: Any) -> None:
    """A column that is missing gives the default of its field, also inside of structs."""
    frame = table(ROWS[:1]).select(["item", "price", "size", "tags"])
    frame = frame.append_column("place", pa.array([{"town": "Jena"}]))
    (message,) = published(store, make(Order), frame)
    wanted = Order(item="tea", price=2.5, size="small", tags=["hot", "green"], place=Place(town="Jena"))
    assert message.value() == wanted
    assert (message.value().count, message.value().place.floor) == (1, 3)


def changed(name: str, values: Any) -> Any:
    """The rows with another column."""
    frame = table(ROWS)
    return frame.set_column(frame.schema.names.index(name), name, values)


REFUSED: list[tuple[Any, str]] = [
    (lambda: changed("item", pa.array(["tea", None])), "row 1: field item is null, and the schema allows no"),
    (
        lambda: changed("place", pa.array([{"town": "Jena"}, {"town": None}])),
        "row 1: field place.town is null",
    ),
    (lambda: changed("tags", pa.array([["a"], ["b", None]])), "row 1: field tags[] is null"),
    (
        lambda: changed("visits", pa.array([[{"town": None, "floor": 1}], None], pa.list_(PLACE))),
        "row 0: field visits[].town is null",
    ),
    (lambda: changed("count", pa.array([1, 1 << 31])), "row 1: field count: 2147483648 is out of the range"),
    (
        lambda: changed("total", pa.array([1, 1 << 63], pa.uint64())),
        "row 1: field total: 9223372036854775808",
    ),
    (lambda: changed("weight", pa.array([1.0, 1e39])), "row 1: field weight: 1e+39 is out of the range"),
    (lambda: changed("price", pa.array([1, 2**53 + 1])), "row 1: field price: 9007199254740993 is no double"),
    (lambda: changed("count", pa.array(["1", "2"])), "field count is a column of string, and int by the"),
    (lambda: changed("item", pa.array([1, 2])), "field item is a column of int64, and string by the schema"),
    (
        lambda: changed("item", pa.array([1, 2], pa.timestamp("us"))),
        "field item is a column of timestamp[us], and string by the schema; cast the column",
    ),
    (lambda: changed("item", pa.array([b"a", b"\xff"])), "row 1: field item is no text in UTF-8"),
    (lambda: changed("tags", pa.array(["a", "b"])), "field tags is a column of string, and array by"),
    (lambda: changed("size", pa.array(["small", "huge"])), "row 1: "),
    (
        lambda: table(ROWS).rename_columns(["itme", *list(TYPES)[1:]]),
        "the column 'itme' is no field of record Order; the nearest is item; rename the column or drop it",
    ),
    (lambda: table(ROWS).drop_columns(["price"]), "there is no column for field price, which the schema"),
    (
        lambda: changed("place", pa.array([{"floor": 1}, {"floor": 2}])),
        "there is no column for field place.town, which the schema demands without a default; add one",
    ),
    (
        lambda: changed("place", pa.array([{"town": "a", "flor": 2}] * 2)),
        "the field 'place.flor' is no field of record Place; the nearest is place.floor",
    ),
    (
        lambda: pa.table({"value": ["a"]}),
        "the column 'value' is no field of record Order; its fields are item",
    ),
    (lambda: pa.table({"__key": ["a"]}), "no column has the name of a field of record Order"),
    (
        lambda: pa.table([pa.array(["a"]), pa.array(["b"])], ["item", "item"]),
        "2 columns are called 'item'; rename them",
    ),
    (
        lambda: changed("stock", pa.array([[("a", 1), ("a", 2)], None], pa.map_(pa.string(), pa.int64()))),
        "row 0: ",
    ),
]


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(store: Path, make: Any, number: int) -> None:
    """What does not fit is refused with the row and the field, in both forms, and nothing is stored."""
    frame, text = REFUSED[number]
    assert text in refusal(store, make(Order), frame())


def test_a_refused_row_leaves_whole_entries(store: Path) -> None:
    """The entries before the row are stored, and the error has them."""
    frame = pa.table({"town": ["a"] * 25 + [None], "floor": pa.array([1] * 26, pa.int32())})
    with Client(store) as client:
        producer = client.create_producer("topic", schema=JsonSchema(Place))
        with pytest.raises(ValueError, match="row 25: field town is null") as caught:
            producer.send_arrow(frame.to_reader(max_chunksize=5), batching_max_messages=10)
    assert list(caught.value.stored.numbers()) == list(range(20))  # type: ignore[attr-defined]
    assert read_topic(store, "topic", ["value"], decode=False).num_rows == 20


MOMENT = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)


@pytest.mark.parametrize("make", FORMATS)
def test_models(store: Path, make: Any) -> None:
    """Dates, times, decimal numbers and UUIDs of models, members by name or value, and anything for Any."""
    token = UUID(int=7)
    frame = pa.table(
        {
            "name": ["a", "b"],
            "at": pa.array([MOMENT, MOMENT], pa.timestamp("ns")),
            "day": pa.array([MOMENT.date()] * 2),
            "cost": pa.array([Decimal("1.50"), Decimal("-2.00")], pa.decimal128(9, 2)),
            "token": pa.array([str(token)] * 2),
            "size": ["small", "large"],
            "note": [None, "n"],
            "extra": pa.array([{"x": [1, 2]}, None]),
        }
    )
    messages = published(store, make(Visit), frame)
    first = Visit("a", MOMENT, MOMENT.date(), Decimal("1.50"), token, Size.small, None, {"x": [1, 2]})
    second = Visit("b", MOMENT, MOMENT.date(), Decimal("-2.00"), token, Size.large, "n", None)
    assert [message.value() for message in messages] == [first, second]
    if make is JsonSchema:
        by_value = frame.set_column(5, "size", pa.array(["S", "L"]))
        assert [message.value() for message in published(store, make(Visit), by_value)] == [first, second]
    text = refusal(store.with_name("2"), make(Visit), frame.drop_columns(["note"]))
    assert "there is no column for field note, which the schema demands without a default" in text
    assert_clean(store.with_name("2"))


def test_models_of_pydantic(store: Path) -> None:
    """The class validates every row."""
    pydantic = pytest.importorskip("pydantic", reason="the extra is not installed")
    line = pydantic.create_model("line", count=(int, pydantic.Field(gt=0)), item=(str, "tea"))
    messages = published(store, JsonSchema(line), pa.table({"count": [1, 2]}))
    assert [message.value() for message in messages] == [line(count=1), line(count=2)]
    assert "row 1: " in refusal(store.with_name("2"), JsonSchema(line), pa.table({"count": [1, 0]}))
    assert_clean(store.with_name("2"))


def test_typed_dicts(store: Path) -> None:
    """A key that may be left out is left out where the column has a null."""
    messages = published(store, JsonSchema(Loose), pa.table({"name": ["a", "b"], "count": [1, None]}))
    assert [message.value() for message in messages] == [{"name": "a", "count": 1}, {"name": "b"}]


LOGICAL = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "here", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}, "default": "\u00ff\u0001"},
        {"name": "some", "type": ["null", "string", "long"]},
        {"name": "blob", "type": "bytes", "default": "\u00fe"},
    ],
}


def test_logical_types(store: Path) -> None:
    """A definition with logical types, defaults of bytes, and a union of several types."""
    day, at = datetime.date(2024, 2, 29), MOMENT.replace(microsecond=123000)
    types = {
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "here": pa.timestamp("us"),
        "cost": pa.decimal128(9, 2),
        "some": pa.int64(),
    }
    rows = [{"day": day, "at": at, "here": MOMENT, "cost": Decimal("1.25"), "some": 7}]
    schema = AvroSchema(None, LOGICAL)
    (message,) = published(store, schema, table(rows, types))
    wanted = {**rows[0], "at": at.replace(tzinfo=datetime.UTC), "mark": b"\xff\x01", "blob": b"\xfe"}
    assert message.value() == wanted
    columns = ["day", "at", "here", "cost", "mark", "blob"]
    assert read_topic(store, "topic", columns, decode=True).to_pylist() == [
        {name: wanted[name] for name in columns}
    ]
    late = [rows[0] | {"at": MOMENT}]
    assert "row 0: field at has parts of milliseconds" in refusal(
        store.with_name("2"), schema, table(late, types)
    )
    wide = types | {"cost": pa.decimal128(12, 3)}
    exact = [rows[0] | {"cost": Decimal("1.255")}]
    assert refusal(store.with_name("2"), schema, table(exact, wide)).startswith("row 0: ")
    zoned = types | {"here": pa.timestamp("us", "UTC")}
    assert "field here is a column of timestamp" in refusal(store.with_name("2"), schema, table(rows, zoned))
    assert_clean(store.with_name("2"))


def test_values_that_are_no_records(store: Path) -> None:
    """Other schemas encode the values of one column, as before."""
    lists = published(store, JsonSchema(list[int]), pa.table({"value": [[1, 2], [3]]}))
    assert [message.value() for message in lists] == [[1, 2], [3]]
    for row in ({"a": 1}, {"a": None}):
        (message,) = published(store.with_name("2"), JsonSchema(dict), pa.table({"value": [row]}))
        assert message.value() == row
    assert_clean(store.with_name("2"))


@dataclasses.dataclass
class Paid:
    """One model of a union."""

    amount: int


@dataclasses.dataclass
class Sent:
    """The other one."""

    place: str


def test_a_union_of_models_takes_objects(tmp_path: Path):
    """A row of a frame does not say which model it is: the error says what to send, and nothing is stored."""
    schema: Any = JsonSchema(Paid | Sent)
    with Client(tmp_path / "store") as client:
        producer = client.create_producer("t", schema=schema)
        rows = pa.array([{"amount": 1}, {"amount": 2}])
        for frame in (rows, pa.table({"value": rows})):
            with pytest.raises(TypeError, match="a row of a frame, is none of Paid, Sent: send an object"):
                producer.send_arrow(frame)
        producer.send_many([Paid(3), Sent("here")])
    found = read_topic(tmp_path / "store", "t").column("value").to_pylist()
    assert found == [b'{"type":"Paid","amount":3}', b'{"type":"Sent","place":"here"}']
    assert_clean(tmp_path / "store")
