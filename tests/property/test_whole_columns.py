"""Whole columns: `send_many` equals a loop of sends, and what `send_arrow` takes is what Arrow reads back."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embeddedpulsar import BatchingType, Client, CompressionType, MessageId
from embeddedpulsar.client.producer import bulk_publisher

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar.arrow import read_topic  # noqa: E402

texts = st.none() | st.text(max_size=4)
payloads = st.none() | st.binary(max_size=30)
maps = st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
times = st.none() | st.integers(0, 2**40)
codecs = st.sampled_from([CompressionType.NONE, CompressionType.LZ4, CompressionType.ZLib])
rows = st.lists(st.tuples(payloads, texts, texts, maps, times), min_size=1, max_size=40)
limits = st.fixed_dictionaries(
    {
        "batching_max_messages": st.integers(1, 12),
        "batching_max_allowed_size_in_bytes": st.integers(1, 200) | st.just(1 << 20),
    }
)


class Store:
    """One store for all examples, a fresh topic for each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.client = Client(path)
        self._names = itertools.count()

    def topic(self) -> str:
        """The name of a topic nobody used yet."""
        return f"t{next(self._names)}"

    def messages(self, topic: str) -> list[Any]:
        """All messages of a topic."""
        with self.client.create_reader(topic, MessageId.earliest) as reader:
            return list(iter_available(reader))


def iter_available(reader: Any) -> Iterator[Any]:
    """What is there now."""
    while reader.has_message_available():
        yield reader.read_next(1000)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """The store."""
    with tempfile.TemporaryDirectory() as path:
        made = Store(Path(path))
        yield made
        made.client.close()


def facts(message: Any) -> tuple[Any, ...]:
    """Everything a consumer sees of a message but where it is stored."""
    return (
        message.data(),
        message.has_null_value(),
        message.partition_key(),
        message.ordering_key(),
        message.properties(),
        message.event_timestamp(),
        message.sequence_id(),
    )


quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@quick
@given(rows=rows, codec=codecs, limits=limits, window=st.integers(1, 50), as_iterators=st.booleans())
def test_send_many_equals_a_loop_of_sends(store, rows, codec, limits, window, as_iterators):
    """Message by message the same, whatever the limits, and the ids returned are those that are read."""
    looped, bulk = store.topic(), store.topic()
    with store.client.create_producer(looped) as producer:
        for value, key, ordering_key, properties, time in rows:
            producer.send(value, properties, key, ordering_key, event_timestamp=time)
        last = producer.last_sequence_id()
    columns = [list(column) for column in zip(*rows, strict=True)]
    values, keys, ordering_keys, properties, event_times = map(iter, columns) if as_iterators else columns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_publisher, "WINDOW", window)
        with store.client.create_producer(bulk, compression_type=codec) as producer:
            sent = producer.send_many(
                values,
                partition_keys=keys,
                ordering_keys=ordering_keys,
                properties=properties,
                event_timestamps=event_times,
                **limits,
            )
            assert producer.last_sequence_id() == last
    got = store.messages(bulk)
    assert [facts(message) for message in got] == [facts(message) for message in store.messages(looped)]
    assert list(sent) == [message.message_id() for message in got]
    assert [sent[i] for i in range(len(sent))] == list(sent)
    assert list(sent.numbers()) == list(range(len(rows)))


@quick
@given(rows=rows, limits=limits, window=st.integers(1, 50), by_arrow=st.booleans())
def test_key_based_keeps_the_order_of_each_key(store, rows, limits, window, by_arrow):
    """An entry holds one key, each key is in order, nothing is lost, and ids belong to their values."""
    topic = store.topic()
    values = [b"%d" % i for i in range(len(rows))]
    keys, ordering_keys = [row[1] for row in rows], [row[2] for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_publisher, "WINDOW", window)
        patch.setattr("embeddedpulsar.arrow.column_writer.WINDOW", window)
        with store.client.create_producer(topic, batching_type=BatchingType.KeyBased) as producer:
            if by_arrow:
                table = pa.table(
                    {
                        "value": pa.array(values, pa.binary()),
                        "k": pa.array(keys, pa.string()),
                        "o": pa.array(ordering_keys, pa.string()),
                    }
                )
                sent = producer.send_arrow(table, key="k", ordering_key="o", **limits)
            else:
                sent = producer.send_many(values, partition_keys=keys, ordering_keys=ordering_keys, **limits)
    got = store.messages(topic)
    sticky: dict[Any, list[int]] = {}
    for message in got:
        key = message.ordering_key() or message.partition_key()
        number = int(message.data())
        assert sent[number] == message.message_id()
        assert key == (ordering_keys[number] or keys[number] or "")
        sticky.setdefault(key, []).append(number)
    entries = {(message.message_id().ledger_id(), message.message_id().entry_id()) for message in got}
    assert len(entries) == sent.entries()
    for numbers in sticky.values():
        assert numbers == sorted(numbers)
    assert sorted(itertools.chain(*sticky.values())) == list(range(len(rows)))
    assert [message.sequence_id() for message in got] == list(range(len(rows)))


kinds = st.sampled_from(["binary", "large_binary", "dictionary", "binary_view"])


@quick
@given(
    rows=rows,
    codec=codecs,
    limits=limits,
    kind=kinds,
    text_kind=st.sampled_from(["string", "large_string", "dictionary"]),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    ends=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    window=st.integers(1, 50),
)
def test_send_arrow_round_trip(store, rows, codec, limits, kind, text_kind, cuts, ends, window):
    """Sliced, chunked, of any width or dictionary, with nulls: the columns come back as they went in."""
    value, key, ordering_key, properties, time = map(list, zip(*rows, strict=True))
    table = pa.table(
        {
            "v": chunked(value, kind, pa.binary(), cuts),
            "k": chunked(key, text_kind, pa.string(), cuts),
            "o": chunked(ordering_key, text_kind, pa.string(), []),
            "p": pa.array([None if one is None else list(one.items()) for one in properties], MAP),
            "t": pa.array(time, pa.timestamp("ms", "UTC")),
        }
    ).slice(ends[0], max(len(rows) - sum(ends), 0))
    part = slice(ends[0], ends[0] + len(table))
    topic = store.topic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embeddedpulsar.arrow.column_writer.WINDOW", window)
        with store.client.create_producer(topic, compression_type=codec) as producer:
            sent = producer.send_arrow(
                table, value="v", key="k", ordering_key="o", properties="p", event_time="t", **limits
            )
    columns = ["value", "__key", "__orderingKey", "__messageProperties", "__eventTime", "__sequenceId"]
    got = read_topic(store.path, topic, columns).to_pydict()
    assert got["value"] == value[part]
    assert got["__key"] == [one.encode() if one else None for one in key[part]]
    assert got["__orderingKey"] == [one.encode() if one else None for one in ordering_key[part]]
    assert [dict(one) for one in got["__messageProperties"]] == [one or {} for one in properties[part]]
    assert got["__eventTime"] == pa.array([one or None for one in time[part]], TIME).to_pylist()
    assert got["__sequenceId"] == list(range(len(table)))
    assert list(sent) == [message.message_id() for message in store.messages(topic)]


MAP = pa.map_(pa.string(), pa.string())
TIME = pa.timestamp("ms", "UTC")
TYPES = {
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "string": pa.string(),
    "large_string": pa.large_string(),
}


def chunked(column: list[Any], kind: str, plain: Any, cuts: list[int]) -> Any:
    """A column in chunks, each a slice of a longer array, so that offsets begin anywhere."""
    bounds = [0, *sorted(min(cut, len(column)) for cut in cuts), len(column)]
    chunks = []
    for start, stop in itertools.pairwise(bounds):
        array = pa.array([column[0], *column[start:stop], column[-1]], plain)
        array = array.dictionary_encode() if kind == "dictionary" else array.cast(TYPES[kind])
        chunks.append(array.slice(1, stop - start))
    return pa.chunked_array(chunks, chunks[0].type)
