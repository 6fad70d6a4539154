"""Whole topics have the values that a reader with a schema has, or refuse the same messages by name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar import Client, InvalidConfiguration, MessageId
from embeddedpulsar.arrow import dataset, export, read_topic, scan_topic
from embeddedpulsar.arrow.value_decoder import AvroDecoder, JsonDecoder, PairDecoder, decode_valid
from embeddedpulsar.arrow.value_types import record_of, value_type
from embeddedpulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Double,
    Float,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    Long,
    Map,
    Record,
    String,
    StringSchema,
)
from embeddedpulsar.schema.json_text import loads


class Inner(Record):
    """A record in a record."""

    text = String()


class Place(Record):
    """Fields of all kinds, without a map."""

    number = Integer()
    wide = Long()
    short = Float()
    exact = Double()
    is_open = Boolean()
    name = String()
    names = Array(String())
    inner = Inner()
    inners = Array(Inner())


class Marked(Record):
    """The same kinds beside a map, which is decoded in another way."""

    number = Integer()
    wide = Long()
    short = Float()
    exact = Double()
    name = String()
    inner = Inner()
    marks = Map(String())


LATIN = b"caf\xe9"
MALFORMED: dict[str, bytes] = {
    "text": b'{"name":"%s"}' % LATIN,
    "text of an array": b'{"names":["a","%s"]}' % LATIN,
    "text of a record": b'{"inner":{"text":"%s"}}' % LATIN,
    "text of records": b'{"inners":[{"text":"%s"}]}' % LATIN,
    "text of no field": b'{"unknown":"%s"}' % LATIN,
    "key": b'{"%s":1}' % LATIN,
    "overlong": b'{"name":"\xc0\x80"}',
    "surrogate in UTF-8": b'{"name":"\xed\xa0\x80"}',
    "half a surrogate": b'{"name":"\\ud800"}',
    "half a surrogate in an array": b'{"names":["\\udc00"]}',
    "a second record": b'{"number":1}{"number":2}',
    "a second record in a line": b'{"number":1}\n{"number":2}',
    "a comma and a record": b'{"number":1},{"number":2}',
    "a comma and members": b'{"number":1},"other":{"number":2}',
    "the end of an array": b'{"number":1}],"other":[{"number":2}',
    "the end of an array, alone": b'{"number":1}]',
    "a brace": b'{"number":1}}',
    "text behind": b'{"number":1} x',
    "NUL behind": b'{"number":1}\0',
    "nothing": b"",
    "a space": b" ",
    "cut off": b'{"number":',
    "an array": b'[{"number":1}]',
    "null": b"null",
    "a number": b"1",
    "beyond int": b'{"number":2147483648}',
    "beyond long": b'{"wide":9223372036854775808}',
    "below long": b'{"wide":-9223372036854775809}',
    "beyond float": b'{"short":1e39}',
    "a digit too many": b'{"exact":%s}' % (b"9" * 400),
    "a fraction": b'{"number":1.5}',
    "a text for a number": b'{"number":"1"}',
    "a truth value for a number": b'{"number":true}',
    "a number for a text": b'{"name":1}',
    "a text for a record": b'{"inner":"x"}',
    "NaN for an int": b'{"number":NaN}',
    "deep": b'{"unknown":' + b"[" * 100_000,
}
# What `JsonSchema` takes, though Arrow's parser does not, or would read otherwise.
READ: dict[str, tuple[bytes, dict[str, Any]]] = {
    "a key twice": (b'{"number":1,"number":2}', {"number": 2}),
    "a key twice, deeper": (b'{"inner":{"text":"a","text":"b"}}', {"inner": {"text": "b"}}),
    "a key twice, in other words": (b'{"number":1,"n\\u0075mber":2}', {"number": 2}),
    "another key twice": (b'{"other":1,"other":2,"number":1}', {"number": 1}),
    "NaN": (b'{"exact":NaN}', {"exact": math.nan}),
    "infinity": (b'{"exact":-Infinity}', {"exact": -math.inf}),
    "infinity of a float": (b'{"short":Infinity}', {"short": math.inf}),
    "a number too large for a float of 64 bits": (b'{"exact":1e999}', {"exact": math.inf}),
    "whole for double": (b'{"exact":3}', {"exact": 3.0}),
    "a mark of the byte order": (b'\xef\xbb\xbf{"number":1}', {"number": 1}),
    "UTF-16": ('{"name":"é"}'.encode("utf-16"), {"name": "é"}),
    "white space": (b' \r\n\t{"number" : 1}\n ', {"number": 1}),
    "records in an array": (
        b'{"inners":[{"text":"a"},{"text":"}]"}] }',
        {"inners": [{"text": "a"}, {"text": "}]"}]},
    ),
    "braces in a text": (b'{"name":"}],{\\"number\\":1}"}', {"name": '}],{"number":1}'}),
    "the largest": (
        b'{"wide":9223372036854775807,"number":-2147483648}',
        {"wide": 2**63 - 1, "number": -(2**31)},
    ),
    "a pair of surrogates": (b'{"name":"\\ud83d\\ude00"}', {"name": "\U0001f600"}),
    "nulls": (b'{"name":null,"inner":null,"names":null}', {"name": None}),
    "deep, of no field": (b'{"unknown":' + b"[" * 200 + b"]" * 200 + b',"number":1}', {"number": 1}),
}
FINE = b'{"number":7,"name":"fine"}'


def publish(root: Path, payloads: list[bytes], record: type[Record], *, batched: bool = False) -> None:
    """Store payloads in the topic `t`, which has the schema of a record."""
    with Client(root) as client:
        client.create_producer("t", schema=JsonSchema(record)).close()
        with client.create_producer("t", batching_enabled=batched) as producer:
            for payload in payloads:
                producer.send_async(payload, None)


def same(one: Any, other: Any) -> bool:
    """Whether values are equal, NaN and what stands for a missing part of a record included."""
    if isinstance(one, dict):
        return all(same(value, (other or {}).get(name)) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return bool(one == other)


WAYS: dict[str, Callable[..., Any]] = {
    "read_topic": lambda root, **options: read_topic(root, "t", **options).to_pylist(),
    "scan_topic": lambda root, **options: scan_topic(root, "t", **options).read_all().to_pylist(),
    "dataset": lambda root, **options: dataset(root, "t", **options).to_table().to_pylist(),
    "polars": lambda root, **options: dataset(root, "t", **options).lazy_frame().collect().to_dicts(),
}


@pytest.mark.parametrize("record", [Place, Marked])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_payload_follows_the_mode(tmp_path: Path, name: str, record: type[Record]):
    """Beside others, in a batch: null with the payload, left out, or refused by the name of the message."""
    payload = MALFORMED[name]
    if record is Marked and ("names" in str(payload) or "inners" in str(payload)):
        payload = payload.replace(b'"names":', b'"number":').replace(b'"inners":', b'"number":')
    publish(tmp_path, [FINE, payload, FINE], record, batched=True)
    fields = list(record._fields)  # what is not asked for is not decoded
    for way, read in WAYS.items():
        rows = read(tmp_path, columns=[*fields, "__corrupt"], decode=True, mode="PERMISSIVE")
        assert [row["number"] for row in rows] == [7, None, 7], way
        assert [row["__corrupt"] for row in rows] == [None, payload, None], way
        dropped = read(tmp_path, columns=fields, decode=True, mode="DROPMALFORMED")
        assert [row["number"] for row in dropped] == [7, 7], way
        with pytest.raises(Exception, match=r"message 1:0:1 is malformed"):
            read(tmp_path, columns=fields, decode=True)
    table = read_topic(tmp_path, "t", decode=True, mode="PERMISSIVE")
    table.validate(full=True)


@pytest.mark.parametrize("name", READ)
def test_what_a_reader_decodes_is_decoded(tmp_path: Path, name: str):
    """With the same value, alone and beside payloads of all kinds."""
    payload, expected = READ[name]
    for record in (Place, Marked):
        fields = set(record._fields)
        wanted = {key: value for key, value in expected.items() if key in fields}
        root = tmp_path / record.__name__
        publish(root, [payload, FINE, payload], record, batched=True)
        for way, read in WAYS.items():
            rows = read(root, columns=sorted(fields), decode=True)
            assert len(rows) == 3, way
            for row in (rows[0], rows[2]):
                assert same(wanted, row), (way, row)
                assert all(row[key] is None for key in fields - expected.keys()), (way, row)
            assert (rows[1]["number"], rows[1]["name"]) == (7, "fine")
        read_topic(root, "t", decode=True).validate(full=True)
        with (
            Client(root) as client,
            client.create_reader("t", MessageId.earliest, schema=JsonSchema(record)) as reader,
        ):
            value = reader.read_next(5000).value()
            got = {key: plain(getattr(value, key)) for key in wanted}
            assert same(wanted, got), got


def plain(value: Any) -> Any:
    """A record as a dict."""
    if isinstance(value, Record):
        return {name: plain(value.__dict__[name]) for name in type(value)._fields}
    return [plain(item) for item in value] if isinstance(value, list) else value


def decoders() -> dict[str, tuple[JsonDecoder, list[Any]]]:
    """Of the two records, with the types of their columns."""
    found = {}
    for record in (Place, Marked):
        node = record_of(JsonSchema(record).schema_info().schema())
        types = {field.name: value_type(field) for field in node.fields}
        found[record.__name__] = JsonDecoder(types, {}), [kind.final for kind in types.values()]
    return found


TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30]),
    st.floats(),
    st.sampled_from([1e39, 1e300]),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
INNERS = st.one_of(LEAVES, st.fixed_dictionaries({}, optional={"text": LEAVES, "other": LEAVES}))
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "number": LEAVES,
        "wide": LEAVES,
        "short": LEAVES,
        "exact": LEAVES,
        "is_open": LEAVES,
        "name": LEAVES,
        "names": st.one_of(LEAVES, st.lists(LEAVES, max_size=3)),
        "inner": INNERS,
        "inners": st.one_of(LEAVES, st.lists(INNERS, max_size=3)),
        "marks": st.dictionaries(TEXTS, LEAVES, max_size=2),
        "other": st.one_of(LEAVES, st.lists(INNERS, max_size=2)),
    },
)
GARBLED = st.tuples(
    RECORDS, st.integers(0, 200), st.sampled_from([b"", b"}", b"]", b",", b"\xff", b'"', b"{}"])
)


def garbled(parts: tuple[Any, int, bytes]) -> bytes:
    """The JSON of a record with something put into it."""
    record, place, extra = parts
    data = json.dumps(record).encode()
    place %= len(data) + 1
    return data[:place] + extra + data[place:]


@given(st.lists(GARBLED.map(garbled), min_size=1, max_size=6))
def test_together_and_one_by_one(payloads: list[bytes]):
    """What is decoded together has the values of what is decoded one by one; what is malformed is so in any
    company, and never a record for `JsonSchema` alone to read with other values."""
    array = pa.array(payloads, pa.binary())
    for name, (decoder, types) in decoders().items():
        settled = decode_valid(decoder, array, types)
        each = decoder.decode_each(array)
        alone = [decode_valid(decoder, array.slice(number, 1), types) for number in range(len(payloads))]
        bad = [number for number, _ in settled.malformed]
        assert bad == [number for number, _ in each.malformed]
        assert bad == [number for number, one in enumerate(alone) if one.malformed]
        assert same([one.to_pylist() for one in settled.columns], [one.to_pylist() for one in each.columns])
        for column, kind in zip(settled.columns, types, strict=True):
            assert column.type == kind
            column.validate(full=True)
        good = [payload for number, payload in enumerate(payloads) if number not in bad]
        for row, payload in enumerate(good):
            value = loads(payload)
            for field, column in zip(decoder._types, settled.columns, strict=True):
                expected, got = value.get(field), column[row].as_py()
                if field == "short" and expected is not None:
                    expected = pa.scalar(float(expected), pa.float32()).as_py()
                if field == "marks" and expected is not None:
                    expected = list(expected.items())
                assert same(expected, got) or name == "", (payload, field, expected, got)


@pytest.mark.parametrize("share", [0.001, 0.1, 1.0])
def test_malformed_payloads_are_found_in_one_pass(share: float):
    """The calls of Arrow's parser do not grow with the malformed payloads: they are looked at one by one."""
    decoder, types = decoders()["Place"]
    calls = []
    whole = decoder.decode
    step = int(1 / share)
    payloads = [b'{"number":"x"}' if number % step == 0 else FINE for number in range(10_000)]
    decoder.decode = lambda part: calls.append(len(part)) or whole(part)  # type: ignore[method-assign]
    settled = decode_valid(decoder, pa.array(payloads, pa.binary()), types)
    assert [number for number, _ in settled.malformed] == list(range(0, 10_000, step))
    assert len(settled.columns[0]) == 10_000 - len(settled.malformed)
    assert len(calls) < 120


def test_malformed_avro_and_pairs():
    """Each payload that is malformed is found, with those beside it decoded; also by a value out of range."""
    definition = json.loads(AvroSchema(Inner).schema_info().schema())
    text = json.dumps(definition)
    types = {field.name: value_type(field) for field in record_of(text).fields}
    good = AvroSchema(Inner).encode(Inner(text="a"))
    bad = [b"", good + b"\0", good[:-1], b"\x02\x02\xff"]
    payloads = pa.array([good, *bad, good] * 100, pa.binary())
    settled = decode_valid(AvroDecoder(text, None, types), payloads, [pa.string()])
    assert settled.columns[0].to_pylist() == ["a"] * 200
    assert [number for number, _ in settled.malformed] == [n for n in range(600) if n % 6 not in (0, 5)]

    schema = KeyValueSchema(StringSchema(), JsonSchema(Inner))
    pair = {"key": value_type(record_of(_pair("string")).fields[0])}
    inner = value_type(record_of(_pair(definition)).fields[0])
    decoder = PairDecoder(schema.schema_info(), None, {**pair, "value": inner})
    whole = schema.encode(KeyValue("k", Inner(text="a")))
    without = schema.encode(KeyValue("k", None))
    bad = [b"", whole + b"x", whole.replace(b"k", b"\xff"), whole.replace(b'"a"', b'"\xff"')]
    settled = decode_valid(
        decoder, pa.array([whole, *bad, without] * 60, pa.binary()), [pa.string(), inner.final]
    )
    assert settled.columns[0].to_pylist() == ["k", "k"] * 60
    assert settled.columns[1].to_pylist() == [{"text": "a"}, None] * 60
    assert [number for number, _ in settled.malformed] == [n for n in range(360) if n % 6 not in (0, 5)]


def _pair(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "value", "type": ["null", kind]}]})


MOST_MS = (2**63 - 1) // 1000
TIMES = [1, 1_700_000_000_000, MOST_MS, MOST_MS + 1, 1_795_720_034_911_430_333, 2**63 - 1]


@pytest.mark.parametrize("batched", [False, True])
def test_times_that_a_column_cannot_hold(tmp_path: Path, batched: bool):
    """Refused by the name of the message, null, or left out; never another time. The others are exact."""
    with Client(tmp_path) as client, client.create_producer("t", batching_enabled=batched) as producer:
        producer.send_async(b"none", None)
        for time in TIMES:
            producer.send_async(b"%d" % time, None, event_timestamp=time)
    name = "message 1:0:4" if batched else "message 1:4:-1"
    kept = [None if time > MOST_MS else time * 1000 for time in TIMES]

    def times(table: Any) -> list[Any]:
        return table.column("__eventTime").cast(pa.int64()).to_pylist()

    for read in (
        lambda **options: read_topic(tmp_path, "t", **options),
        lambda **options: scan_topic(tmp_path, "t", **options).read_all(),
        lambda **options: dataset(tmp_path, "t", **options).to_table(),
        lambda **options: dataset(tmp_path, "t", **options).lazy_frame().collect().to_arrow(),
    ):
        columns = ["value", "__eventTime"]
        with pytest.raises(Exception, match=rf"{name}: its __eventTime of {MOST_MS + 1} ms"):
            read(columns=columns)
        assert times(read(columns=columns, mode="PERMISSIVE")) == [None, *kept]
        assert times(read(columns=columns, mode="DROPMALFORMED")) == [None, *kept[:3]]
        assert read(columns=["value"], mode="DROPMALFORMED").num_rows == 4
        assert read(columns=["value"]).num_rows == 7
    if batched:  # only what is read counts
        start, end = MessageId(-1, 1, 0, 1), MessageId(-1, 1, 0, 4)
        assert times(read_topic(tmp_path, "t", start=start, end=end)) == kept[:3]


@pytest.mark.parametrize("file_format", ["parquet", "jsonl", "csv"])
def test_exports_hold_what_they_can(tmp_path: Path, file_format: str):
    """A text has no years after 9999 and no bytes: refused by name, null, or left out, by the mode."""
    root = tmp_path / "store"
    with Client(root) as client, client.create_producer("t") as producer:
        producer.send(b"fine", event_timestamp=1)
        producer.send(b"late", event_timestamp=253_402_300_800_000)
        producer.send(b"later", event_timestamp=2**63 - 1)
        producer.send(LATIN, event_timestamp=1)
    is_text = file_format != "parquet"
    with pytest.raises(ValueError, match="message 1:[12]:-1" if is_text else "message 1:2:-1"):
        export(root, "t", tmp_path / "failed", ["value", "__eventTime"], file_format=file_format)
    assert not list((tmp_path / "failed").rglob("*.*"))
    for mode, rows in (("PERMISSIVE", 4), ("DROPMALFORMED", 1 if is_text else 3)):
        report = export(
            root, "t", tmp_path / mode, ["value", "__eventTime"], file_format=file_format, mode=mode
        )
        (path,) = report.files
        if file_format == "jsonl":
            lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
            assert [line["value"] for line in lines] == ["fine", "late", "later", None][:rows]
            assert [line["__eventTime"] is None for line in lines] == [False, True, True, False][:rows]
        elif file_format == "csv":
            assert len(Path(path).read_text("utf-8").splitlines()) == rows + 1
        else:
            assert pa.parquet.read_table(path).num_rows == rows
    with pytest.raises(ValueError, match=r"message 1:3:-1 has a value that is not UTF-8"):
        export(root, "t", tmp_path / "values", ["value"], file_format=file_format if is_text else "csv")


SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "carrier", "type": "string"}]}'


def test_a_schema_that_is_given_decodes(tmp_path: Path):
    """Without `decode`; with `decode=False` it is refused, not ignored. So is a mode that does not exist."""
    with Client(tmp_path) as client:
        client.create_producer("t").send(b'{"carrier": "UA"}')
    for way, read in WAYS.items():
        (row,) = read(tmp_path, value_schema=SCHEMA)
        assert row["carrier"] == "UA", way
        with pytest.raises(InvalidConfiguration, match="decode is False"):
            read(tmp_path, value_schema=SCHEMA, decode=False)
        for other in (JsonSchema(Place), json.loads(SCHEMA), Place):
            with pytest.raises(InvalidConfiguration, match=r"a text, not \w+; .* schema\.schema_info\(\)"):
                read(tmp_path, value_schema=other)
        with pytest.raises(InvalidConfiguration, match="mode is FAILFAST"):
            read(tmp_path, mode="LENIENT")
        assert re.search("value", str(list(read(tmp_path)[0])))


def test_frames_of_polars_with_categories_are_published(tmp_path: Path):
    """Categorical and Enum columns, several batches with dictionaries of their own, nested ones in values."""
    words = ["a", "b", "a", None]
    frames = [
        pl.DataFrame({"v": pl.Series(words, dtype=kind)})
        for kind in (pl.Categorical, pl.Enum(["b", "a"]), pl.String)
    ]
    made = [
        pa.table({"v": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None], index), values)})
        for index in (pa.int8(), pa.uint16(), pa.uint32(), pa.int64())
        for values in (
            pa.array(["a", "b"], pa.string_view()),
            pa.array([b"a", b"b"], pa.binary_view()),
            pa.array(["a", "b"], pa.large_string()),
        )
    ]
    ends = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3, 4], pa.int32()), pa.array(words, pa.string()))
    batches = [
        pa.record_batch({"v": pa.DictionaryArray.from_arrays(pa.array([0], pa.uint32()), values)})
        for values in (pa.array([word], pa.string_view()) for word in words[:3])
    ]
    with Client(tmp_path) as client:
        for number, frame in enumerate([*frames, *made, pa.table({"v": ends})]):
            for column in ("value", "key"):
                with client.create_producer(f"{column}-{number}", batching_max_messages=2) as producer:
                    producer.send_arrow(frame, value="v", key="v" if column == "key" else None)
                name = "value" if column == "value" else "__key"
                got = read_topic(tmp_path, f"{column}-{number}", [name]).column(0).to_pylist()
                assert got == [b"a", b"b", b"a", None], (number, column)
        with client.create_producer("several") as producer:
            producer.send_arrow(pa.Table.from_batches(batches), value="v", key="v")
        assert read_topic(tmp_path, "several", ["value"]).column(0).to_pylist() == [b"a", b"b", b"a"]
        structs = pl.DataFrame(
            {"v": pl.Series([{"text": "a"}, {"text": "b"}], dtype=pl.Struct({"text": pl.Categorical}))}
        )
        with client.create_producer("texts", schema=StringSchema()) as producer:
            producer.send_many(frames[0]["v"].to_list()[:3])
            producer.send_arrow(frames[1].head(2), value="v")
        assert read_topic(tmp_path, "texts", ["value"]).column(0).to_pylist() == [
            b"a",
            b"b",
            b"a",
            b"a",
            b"b",
        ]
        assert structs.height == 2
        properties = pa.MapArray.from_arrays(
            pa.array([0, 1]),
            pa.array(["k"], pa.string()),
            pa.array(["v"], pa.string()).dictionary_encode(),
        )
        with client.create_producer("properties") as producer:
            producer.send_arrow(pa.table({"v": ["x"], "p": properties}), value="v", properties="p")
        (row,) = read_topic(tmp_path, "properties", ["__messageProperties"]).to_pylist()
        assert row["__messageProperties"] == [("k", "v")]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([1, -1], pa.int64()), "-1 in row 1"),
        (pa.array([1, -1], pa.timestamp("us")), "-1 in row 1"),
        (pa.array([1, -(2**40)], pa.timestamp("s")), "in row 1"),
        (pa.array([1, -1], pa.date32()), "-1 in row 1"),
        (pa.array([1, 2**62], pa.timestamp("s")), "int64 of ms cannot hold"),
        (pa.array([1, 2**63], pa.uint64()), "int64 of ms cannot hold"),
    ],
    ids=str,
)
def test_event_times_that_cannot_be_published(tmp_path: Path, column: Any, text: str):
    """Are refused, and nothing is sent; no time wraps around into another one."""
    with Client(tmp_path) as client, client.create_producer("t") as producer:
        with pytest.raises(ValueError, match=text):
            producer.send_arrow(pa.table({"v": ["a", "b"], "t": column}), value="v", event_time="t")
        producer.send_arrow(
            pa.table({"v": ["a"], "t": pa.array([2**40], pa.timestamp("s"))}), value="v", event_time="t"
        )
        (message,) = client.create_reader("t", MessageId.earliest)
        assert message.event_timestamp() == 2**40 * 1000
