"""`send_arrow`: a message for each row, whatever the table is made of, and the same columns back."""

from __future__ import annotations

import datetime
import sys

import pytest

from embeddedpulsar import BatchingType, CompressionType, MessageId, MessageTooBig
from embeddedpulsar.schema import Schema, StringSchema
from tests.conformance.conftest import numbers, receive_all
from tests.conformance.partitioned import PartitionedTopic

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar.arrow import read_topic  # noqa: E402

VALUES = [b"hello-%d" % i for i in range(10)]
MAP = pa.map_(pa.string(), pa.string())


@pytest.mark.in_memory
def test_consumers_see_messages(topic):
    """Values, keys, properties, event times and nulls, with the ids that were returned."""
    consumer = topic.consumer()
    table = pa.table(
        {
            "body": pa.array([b"tea", None, b""], pa.binary()),
            "who": pa.array(["Ada", None, ""]),
            "order": pa.array([None, "7", None]),
            "extra": pa.array([[("a", "b")], None, []], MAP),
            "at": pa.array([1_700_000_000_123, None, 0], pa.timestamp("ms", "UTC")),
            "unused": [1, 2, 3],
        }
    )
    with topic.producer() as producer:
        sent = producer.send_arrow(
            table, value="body", key="who", ordering_key="order", properties="extra", event_time="at"
        )
    messages = receive_all(consumer)
    assert [message.message_id() for message in messages] == list(sent)
    assert [message.data() for message in messages] == [b"tea", b"", b""]
    assert [message.has_null_value() for message in messages] == [False, True, False]
    assert [message.partition_key() for message in messages] == ["Ada", "", ""]
    assert [message.ordering_key() for message in messages] == ["", "7", ""]
    assert [message.properties() for message in messages] == [{"a": "b"}, {}, {}]
    assert [message.event_timestamp() for message in messages] == [1_700_000_000_123, 0, 0]
    assert [message.sequence_id() for message in messages] == [0, 1, 2]


def forms():
    """The same ten values, in every form a table may have."""
    plain = pa.array(VALUES, pa.binary())
    table = pa.table({"value": plain})
    yield "table", table
    yield "batch", table.to_batches()[0]
    yield "array", plain
    yield "chunked array", pa.chunked_array([plain[:3], plain[3:3], plain[3:]])
    yield "dict", {"value": VALUES}
    batches = table.to_batches(max_chunksize=3)
    yield "reader", lambda: pa.RecordBatchReader.from_batches(table.schema, batches)  # is read once only
    yield "chunked table", pa.concat_tables([table.slice(0, 4), table.slice(4, 6)])
    for kind in (pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()):
        yield str(kind), pa.table({"value": plain.cast(pa.string()).cast(kind)})
    yield "fixed", pa.table({"value": plain.cast(pa.binary(7))})
    yield "dictionary", pa.table({"value": plain.dictionary_encode()})
    yield "run ends do not matter to", pa.table({"value": pa.array([b"no", *VALUES, b"no"])}).slice(1, 10)


@pytest.mark.parametrize(("name", "data"), list(forms()))
def test_every_form(topic, name, data):
    """Tables, batches, arrays, dicts, streams; offsets of both widths, views, dictionaries, slices."""
    with topic.producer() as producer:
        sent = producer.send_arrow(data() if callable(data) else data)
    assert numbers(receive_all(topic.consumer())) == list(range(10))
    assert len(sent) == 10


class Stream:
    """What Polars and DuckDB offer."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        """The Arrow C stream interface."""
        return self._table.__arrow_c_stream__(requested_schema)


def test_other_libraries(topic):
    """Whatever offers __arrow_c_stream__ is taken, without its package being known here."""
    with topic.producer() as producer:
        producer.send_arrow(Stream(pa.table({"value": VALUES})))
    assert numbers(receive_all(topic.consumer())) == list(range(10))


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZLib])
def test_what_was_read_can_be_sent_again(topic, store_path, codec):
    """`read_topic` and `send_arrow` are each other's inverse, column by column."""
    with topic.producer() as producer:
        for i in range(20):
            producer.send(
                None if i == 3 else VALUES[i % 10],
                {"n": str(i)} if i % 3 else None,
                f"key-{i}" if i % 2 else None,
                "order" if i == 5 else None,
                event_timestamp=1_000_000 + i if i % 4 else None,
            )
    columns = ["value", "__key", "__orderingKey", "__messageProperties", "__eventTime", "__sequenceId"]
    table = read_topic(store_path, "topic", columns)
    with topic.client.create_producer("copy", compression_type=codec) as producer:
        producer.send_arrow(
            table,
            key="__key",
            ordering_key="__orderingKey",
            properties="__messageProperties",
            event_time="__eventTime",
            sequence_id="__sequenceId",
        )
    assert read_topic(store_path, "copy", columns).to_pydict() == table.to_pydict()


def test_large_columns_are_handed_on_as_they_are(topic, store_path):
    """Entries of some megabytes, each beginning anywhere in the column, and written ahead by a thread."""
    rows = [(b"%09d" % i) * 111 for i in range(20_000)]
    table = pa.table({"value": rows, "k": [f"{i % 50}" for i in range(20_000)]})
    with topic.producer() as producer:
        sent = producer.send_arrow(table.slice(1), key="k")
    assert 10 < sent.entries() < 30
    got = read_topic(store_path, "topic", ["value", "__key"])
    assert got["value"].to_pylist() == rows[1:]
    assert got["__key"].to_pylist() == [b"%d" % (i % 50) for i in range(1, 20_000)]


def test_empty_tables(topic):
    """No rows, no entry; rows of nothing but nulls are null values."""
    with topic.producer() as producer:
        assert len(producer.send_arrow(pa.table({"value": pa.array([], pa.binary())}))) == 0
        assert len(producer.send_arrow(pa.table({"value": pa.nulls(3)}))) == 3
        assert len(producer.send_arrow(pa.table({"value": pa.nulls(2, pa.large_string())}))) == 2
    assert [message.has_null_value() for message in receive_all(topic.consumer())] == [True] * 5


@pytest.mark.parametrize(
    ("columns", "options", "error", "text"),
    [
        ({"x": [b"a"]}, {}, ValueError, "value='value': 0 columns have that name; there are x"),
        ({"value": [b"a"]}, {"key": "k"}, ValueError, "key='k'"),
        ({"value": [1]}, {}, TypeError, "column of int64, not binary or string"),
        ({"value": [b"a"], "k": [1]}, {"key": "k"}, TypeError, "keys are string or binary"),
        ({"value": [b"a"], "k": [b"\xff"]}, {"key": "k"}, ValueError, "not UTF-8"),
        ({"value": [b"a"], "p": ["x"]}, {"properties": "p"}, TypeError, "map<string, string>"),
        ({"value": [b"a"], "t": ["x"]}, {"event_time": "t"}, TypeError, "a timestamp, a date, or an int64"),
        ({"value": [b"a"], "t": [-5]}, {"event_time": "t"}, ValueError, "must not be negative"),
        ({"value": [b"a"], "s": [None]}, {"sequence_id": "s"}, TypeError, "sequence ids are int64"),
        ({"value": [b"a"], "s": [-1]}, {"sequence_id": "s"}, ValueError, "must not be negative"),
        ({"value": [b"a"]}, {"key": 5}, ValueError, "Argument key"),
        (5, {}, TypeError, "int is no tabular data"),
    ],
)
def test_what_cannot_be_written(topic, columns, options, error, text):
    """The error names the column, its type and what would do; nothing is stored."""
    data = pa.table(columns) if isinstance(columns, dict) else columns
    with topic.producer() as producer, pytest.raises(error, match=text):
        producer.send_arrow(data, **options)
    assert receive_all(topic.consumer()) == []


def test_a_property_without_a_value(topic):
    """A null among the values of a map is refused."""
    table = pa.table({"value": [b"a"], "p": pa.array([[("x", None)]], MAP)})
    with topic.producer() as producer, pytest.raises(ValueError, match="property without a value"):
        producer.send_arrow(table, properties="p")


def test_event_times_of_every_unit(topic):
    """Seconds to nanoseconds, dates and whole numbers become milliseconds."""
    moment = datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC)
    milliseconds = int(moment.timestamp() * 1000)
    columns = [pa.array([moment], pa.timestamp(unit, "UTC")) for unit in ("s", "ms", "us", "ns")]
    columns.append(pa.array([milliseconds]))
    with topic.producer() as producer:
        for column in columns:
            producer.send_arrow({"value": [b"x"], "t": column}, event_time="t")
        producer.send_arrow({"value": [b"x"], "t": pa.array([datetime.date(1970, 1, 2)])}, event_time="t")
    times = [message.event_timestamp() for message in receive_all(topic.consumer())]
    assert times == [milliseconds] * 5 + [86_400_000]


class Numbers(Schema):
    """A codec of the application."""

    def __init__(self):
        from embeddedpulsar.enums import SchemaType

        super().__init__(int, SchemaType.BYTES, None, "BYTES")

    def encode(self, obj):
        """Digits."""
        return str(obj).encode()

    def decode(self, data):
        """And back."""
        return int(data)


def test_schemas(topic):
    """Text goes as it is with StringSchema; any other schema encodes value by value."""
    with topic.producer(schema=StringSchema()) as producer:
        producer.send_arrow({"value": ["tea", "Kölsch"]})
    with topic.producer(schema=Numbers()) as producer:
        producer.send_arrow({"value": [7, None, 9]})
    assert [message.data() for message in receive_all(topic.consumer())] == [
        b"tea",
        "Kölsch".encode(),
        b"7",
        b"",
        b"9",
    ]


def test_a_row_that_is_too_big(topic):
    """It is named by its number, and what came before it is stored."""
    table = pa.table({"value": [b"a", b"b", bytes(6 << 20), b"c"]})
    with topic.producer() as producer:
        with pytest.raises(MessageTooBig, match="the value 2 has") as caught:
            producer.send_arrow(table)
        assert list(caught.value.stored.numbers()) == [0, 1]
    with topic.producer(compression_type=CompressionType.LZ4) as producer:
        assert len(producer.send_arrow(table)) == 4


def test_without_pyarrow(topic, monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with topic.producer() as producer, pytest.raises(ImportError, match=r'"embeddedpulsar\[arrow\]"'):
        producer.send_arrow([])


@pytest.mark.parametrize("batching_type", list(BatchingType))
def test_partitions(client, batching_type):
    """Rows go to the partition of their key, those without a key round by entry; ids fit the rows."""
    parts = PartitionedTopic(client, 3)
    values = [b"hello-%d" % i for i in range(200)]
    keys = [f"key-{i % 11}" if i % 4 else None for i in range(200)]
    table = pa.table({"value": values, "k": keys})
    with parts.producer() as one_by_one:
        expected = {key: one_by_one.send(b"x", partition_key=key).partition() for key in keys if key}
    with parts.producer(batching_type=batching_type) as producer:
        sent = producer.send_arrow(table, key="k", batching_max_messages=20)
    for key, one in zip(keys, sent, strict=True):
        assert key is None or one.partition() == expected[key]
    found = {}
    for partition in range(3):
        messages = [one for one in parts.messages(partition) if one.data() != b"x"]
        for key in expected:
            mine = numbers([one for one in messages if one.partition_key() == key])
            assert mine == sorted(mine)
        found.update({numbers([one])[0]: one.message_id() for one in messages})
    assert [found[i] for i in range(200)] == list(sent)


def test_the_application_chooses(client):
    """A message_router is asked about each row."""
    parts = PartitionedTopic(client, 2)

    def choose(message, partitions):
        return int(message.properties()["to"])

    table = pa.table({"value": VALUES, "p": pa.array([[("to", str(i % 2))] for i in range(10)], MAP)})
    with parts.producer(message_router=choose) as producer:
        sent = producer.send_arrow(table, properties="p")
    assert [one.partition() for one in sent] == [i % 2 for i in range(10)]
    with client.create_reader("topic-partition-1", MessageId.earliest) as reader:
        assert numbers(list(reader)) == [1, 3, 5, 7, 9]
