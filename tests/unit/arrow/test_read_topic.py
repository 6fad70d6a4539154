"""Whole-column reads give what consumers would get, message by message."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar import MessageId, TopicNotFound  # noqa: E402
from embeddedpulsar._engine.format.entry import (  # noqa: E402
    EntryContent,
    decode,
    encode,
    encode_plain,
    encode_pulsar,
    encode_single,
)
from embeddedpulsar._engine.format.frame import read_header  # noqa: E402
from embeddedpulsar.arrow import ALL_COLUMNS, arrow_schema, milliseconds, read_topic, scan_topic  # noqa: E402
from embeddedpulsar.exceptions import InvalidConfiguration  # noqa: E402
from tests.support.log_files import LogFiles  # noqa: E402
from tests.support.pulsar_entries import PulsarEntry, pulsar_entries  # noqa: E402
from tests.unit.arrow.contents import PRODUCERS, contents, plain, rows_of  # noqa: E402

BASE = 1_000_000


def expected_rows(log: LogFiles) -> list[dict[str, object]]:
    """All rows of a topic, decoded entry by entry from its files."""
    rows = []
    for ledger, _entry, _ms, at, length in log.written:
        data = log.log_path(ledger).read_bytes()
        header = read_header(data, at, at + length)
        rows += rows_of(decode(header, data[at + 48 : at + length - 8], ledger), log.name)
    return rows


@given(
    entries=st.lists(
        st.tuples(
            contents() | pulsar_entries(),
            st.sampled_from([0, 1, 2, 5]),
            st.sampled_from(PRODUCERS),
            st.booleans(),
        ),
        max_size=12,
    ),
    topic=st.sampled_from(["t", "t-partition-3"]),
    rows=st.sampled_from([1, 4, 1000]),
)
def test_every_column_of_every_shape(tmp_path_factory, entries, topic, rows):
    """Any mix of entries, compressed or not, over several ledgers, reads as the consumers decode it."""
    root = tmp_path_factory.mktemp("store")
    log = LogFiles(root, topic)
    for i, (content, codec, producer, roll) in enumerate(entries):
        is_pulsar = isinstance(content, PulsarEntry)
        entry = encode_pulsar(content.encoded()) if is_pulsar else encode(content, producer, codec)
        log.append(entry, BASE + i)
        if roll:
            log.roll()
    log.finish()
    wanted = expected_rows(log)
    found = read_topic(root, topic)
    assert found.schema.equals(arrow_schema())
    assert plain(found.to_pylist()) == wanted
    batches = scan_topic(root, topic, batch_rows=rows)
    assert plain(batches.read_all().to_pylist()) == wanted


@pytest.mark.parametrize("name", ALL_COLUMNS)
def test_each_column_alone(tmp_path, name):
    """A projection gives the column that the whole table has, with the same type."""
    log = LogFiles(tmp_path)
    for i in range(3):
        log.append(encode_plain([b"a", b"bb"], 2 * i, PRODUCERS[0]), BASE + i)
        content = EntryContent([b"c"], 9, False, keys=["k"], properties=[{"a": "b"}], event_times=[7])
        log.append(encode(content, PRODUCERS[1]), BASE + i)
    log.finish()
    alone = read_topic(tmp_path, "t", [name])
    assert alone.column_names == [name]
    assert alone.column(0).combine_chunks() == read_topic(tmp_path, "t").column(name).combine_chunks()


def test_batches_of_many_messages_have_long_indexes(tmp_path):
    """Message ids stay right where the batch index needs two and three bytes."""
    log = LogFiles(tmp_path, "t-partition-300")
    for _ in range(200):
        log.append(encode_single(b"", 0, PRODUCERS[0]), BASE)
    log.append(encode_plain([b""] * 17_000, 0, PRODUCERS[0]), BASE)
    log.finish()
    assert read_topic(tmp_path, "t-partition-300", ["__messageId"]).to_pylist() == [
        {"__messageId": row["__messageId"]} for row in expected_rows(log)
    ]


def test_payloads_of_batches_are_not_copied(tmp_path):
    """The values of a table lie in the mapped file: dropping every other reference keeps them readable."""
    log = LogFiles(tmp_path)
    log.append(encode_plain([b"x" * 1000] * 100, 0, PRODUCERS[0]), BASE)
    log.finish()
    before = pa.total_allocated_bytes()
    table = read_topic(tmp_path, "t", ["value"])
    assert pa.total_allocated_bytes() - before < 10_000
    os.unlink(log.log_path(7))
    assert table.column("value").to_pylist() == [b"x" * 1000] * 100


def test_an_empty_topic_is_an_empty_table(tmp_path):
    """A topic that was only created has the schema and no rows."""
    log = LogFiles(tmp_path)
    os.unlink(log.directory / "ctl") if (log.directory / "ctl").exists() else None
    table = read_topic(tmp_path, "t")
    assert table.num_rows == 0
    assert table.schema.equals(arrow_schema())
    assert list(scan_topic(tmp_path, "t")) == []


def _two_ledgers(root: Path) -> LogFiles:
    """Ledgers 7 and 9, each with a batch of three, a single message and a batch of two; ten ms apart."""
    log = LogFiles(root)
    for ledger in range(2):
        for i, count in enumerate((3, 1, 2)):
            values = [f"{ledger}{i}{k}".encode() for k in range(count)]
            entry = (
                encode_plain(values, 0, PRODUCERS[0])
                if count > 1
                else encode_single(values[0], 0, PRODUCERS[0])
            )
            log.append(entry, BASE + 30 * ledger + 10 * i)
        if ledger == 0:
            log.roll()
    log.finish()
    return log


ALL_VALUES = ["000", "001", "002", "010", "020", "021", "100", "101", "102", "110", "120", "121"]


def _values(table) -> list[str]:
    return [value.decode() for value in table.column("value").to_pylist()]


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        (None, None, "000", "121"),
        (MessageId.earliest, MessageId.latest, "000", "121"),
        (MessageId(-1, 7, 1), None, "010", "121"),
        (MessageId(-1, 7, 0, 1), None, "001", "121"),
        (MessageId(-1, 7, 2, 1), MessageId(-1, 9, 0, 1), "021", "100"),
        (None, MessageId(-1, 7, 0, 2), "000", "001"),
        (None, MessageId(-1, 9, 1), "000", "102"),
        (MessageId(-1, 8, 0), None, "100", "121"),
        (MessageId(-1, 7, 99), MessageId(-1, 9, 99), "100", "121"),
        (MessageId(-1, 9, 0, 0), MessageId(-1, 9, 0, 3), "100", "102"),
    ],
)
def test_half_open_ranges_of_message_ids(tmp_path, start, end, first, last):
    """From start on, up to and without end; batch indexes count, ids need not exist."""
    _two_ledgers(tmp_path)
    table = read_topic(tmp_path, "t", ["value"], start=start, end=end)
    assert _values(table) == ALL_VALUES[ALL_VALUES.index(first) : ALL_VALUES.index(last) + 1]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (MessageId.latest, None),
        (None, MessageId.earliest),
        (MessageId(-1, 9, 3), None),
        (MessageId(-1, 7, 1), MessageId(-1, 7, 1)),
        (MessageId(-1, 9, 0), MessageId(-1, 7, 0)),
    ],
)
def test_ranges_that_hold_nothing(tmp_path, start, end):
    """A range behind the end, before the start or turned round is empty, not an error."""
    _two_ledgers(tmp_path)
    assert read_topic(tmp_path, "t", ["value"], start=start, end=end).num_rows == 0


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        (BASE, None, "000", "121"),
        (BASE + 1, None, "010", "121"),
        (BASE + 20, BASE + 31, "020", "102"),
        (None, BASE + 10, "000", "002"),
        (datetime.fromtimestamp(1000.0195, UTC), None, "020", "121"),
        (BASE - 5, BASE + 10_000, "000", "121"),
    ],
)
def test_half_open_ranges_of_publish_time(tmp_path, start, end, first, last):
    """Times are compared with the publish time of the entries, in whole milliseconds."""
    _two_ledgers(tmp_path)
    table = read_topic(tmp_path, "t", ["value"], start_time=start, end_time=end)
    assert _values(table) == ALL_VALUES[ALL_VALUES.index(first) : ALL_VALUES.index(last) + 1]


@given(data=st.data())
def test_ranges_tile(tmp_path_factory, data):
    """Reading up to any message and from there on gives everything once."""
    root = tmp_path_factory.mktemp("store")
    _two_ledgers(root)
    cut = MessageId(
        -1, data.draw(st.integers(6, 10)), data.draw(st.integers(0, 4)), data.draw(st.integers(-1, 4))
    )
    before = read_topic(root, "t", ["value"], end=cut)
    behind = read_topic(root, "t", ["value"], start=cut)
    if cut.batch_index() > 0 and (cut.entry_id(), cut.batch_index()) not in {(0, 1), (0, 2), (2, 1)}:
        return  # an index behind the end of its batch: both sides are clamped to the batch
    assert _values(before) + _values(behind) == ALL_VALUES


def test_the_plan_is_made_when_the_call_is_made(tmp_path):
    """What is committed after the call is not in the batches, although they are made later."""
    log = LogFiles(tmp_path)
    log.append(encode_single(b"1", 0, PRODUCERS[0]), BASE)
    log.finish()
    batches = scan_topic(tmp_path, "t", ["value"])
    log.append(encode_single(b"2", 0, PRODUCERS[0]), BASE)
    log.finish()
    assert batches.read_all().num_rows == 1
    assert read_topic(tmp_path, "t", ["value"]).num_rows == 2


def test_partitions_follow_each_other(tmp_path):
    """A partitioned topic is read whole by its name, and one partition by its own."""
    for partition in range(2):
        log = LogFiles(tmp_path, f"t-partition-{partition}", first_ledger=7 + partition)
        log.append(encode_plain([b"%d" % partition] * 2, 0, PRODUCERS[0]), BASE)
        log.finish()
    assert _values(read_topic(tmp_path, "t", ["value"])) == ["0", "0", "1", "1"]
    assert read_topic(tmp_path, "t", ["__partition"]).column(0).to_pylist() == [0, 0, 1, 1]
    assert _values(read_topic(tmp_path, "t-partition-1", ["value"])) == ["1", "1"]
    with pytest.raises(InvalidConfiguration, match="2 partitions"):
        read_topic(tmp_path, "t", start=MessageId(0, 7, 0))


def test_what_was_trimmed_is_not_there(tmp_path):
    """Segments below the trim point are not looked for."""
    log = LogFiles(tmp_path)
    log.append(encode_single(b"1", 0, PRODUCERS[0]), BASE)
    log.roll()
    log.append(encode_single(b"2", 0, PRODUCERS[0]), BASE)
    log.finish(trim=9)
    log.log_path(7).unlink()
    assert _values(read_topic(tmp_path, "t", ["value"])) == ["2"]


def test_reading_needs_no_right_to_write(tmp_path):
    """Read-only files in a read-only directory are enough, and nothing in it changes."""
    log = _two_ledgers(tmp_path)
    for file in log.directory.iterdir():
        file.chmod(0o400)
    log.directory.chmod(0o500)
    before = {file.name: file.read_bytes() for file in log.directory.iterdir()}
    try:
        assert _values(read_topic(tmp_path, "t", ["value"])) == ALL_VALUES
    finally:
        log.directory.chmod(0o700)
    assert {file.name: file.read_bytes() for file in log.directory.iterdir()} == before


def test_an_unknown_topic_says_where_it_looked(tmp_path):
    """The error names the topic and the directory, and says if that is no store at all."""
    with pytest.raises(TopicNotFound, match="is not the directory of a store"):
        read_topic(tmp_path, "nothing")
    (tmp_path / "topics").mkdir()
    with pytest.raises(TopicNotFound, match="persistent://public/default/nothing is not in"):
        read_topic(tmp_path, "nothing")


@pytest.mark.parametrize("columns", [["values"], [], ["value", "value"], "value"])
def test_columns_are_checked(tmp_path, columns):
    """Unknown, doubled and missing names are refused, and so is a string."""
    with pytest.raises(InvalidConfiguration):
        read_topic(tmp_path, "t", columns)


def test_a_time_needs_its_zone():
    """A datetime without a zone could mean two things; a number means milliseconds."""
    with pytest.raises(InvalidConfiguration, match="time zone"):
        milliseconds(datetime(2026, 1, 1))
    assert milliseconds(5) == 5
    assert milliseconds(None) is None
