"""Whole columns of topics with transactions: what committed, up to the first that is undecided."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar._engine.format.entry import EntryContent, ProducerPrefix, encode, encode_pulsar
from embeddedpulsar._engine.format.frame import SLOTS_OFFSET
from embeddedpulsar._engine.log.entry_range import EVERYTHING, Bounds, head, messages_in, split
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.topic_lookup import plan_logs
from embeddedpulsar.arrow import dataset, read_topic, scan_topic
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.message_id import MessageId
from tests.support.log_files import BASE_MS, LogFiles
from tests.support.pulsar_entries import PulsarEntry, PulsarMessage
from tests.transaction_site import Process
from tests.unit.arrow.contents import PRODUCERS, contents, plain

P = ProducerPrefix("p")
NONE, COMMITTED, ABORTED, OPEN, PREPARED = "none", "committed", "aborted", "open", "prepared"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """One that has transactions in the store of the test."""
    with Process(tmp_path, boot=timing.boot_id()) as owner:
        yield owner


def ids(process: Process) -> dict[str, tuple[int, int] | None]:
    """A transaction of each kind, as entries have it."""
    transactions = {kind: process.begun() for kind in (COMMITTED, ABORTED, OPEN, PREPARED)}
    transactions[COMMITTED].commit()
    transactions[ABORTED].abort()
    transactions[PREPARED].prepare("x")
    return {NONE: None, **{kind: (0, each.id) for kind, each in transactions.items()}}


def batch(first: int, count: int, transaction: tuple[int, int] | None, **columns: Any) -> EntryContent:
    """Messages first, first + 1 and so on."""
    values = [b"%d" % number for number in range(first, first + count)]
    return EntryContent(values, first, count > 1, transaction=transaction, **columns)


def write(
    root: Path, kinds: list[tuple[str, int]], by_kind: Any, topic: str = "t", roll: int = 0
) -> LogFiles:
    """A topic of entries, each of a kind and so many messages, numbered on."""
    log, number = LogFiles(root, topic), 0
    for i, (kind, count) in enumerate(kinds):
        log.append(encode(batch(number, count, by_kind[kind]), P), BASE_MS + i)
        number += count
        if roll and (i + 1) % roll == 0:
            log.roll()
    log.finish()
    return log


def values(root: Path, topic: str = "t", **options: Any) -> list[int]:
    """The numbers that are read."""
    table = read_topic(root, topic, ["value"], **options)
    return [int(row["value"]) for row in table.to_pylist()]


@given(
    entries=st.lists(
        st.tuples(
            st.sampled_from([NONE, COMMITTED, COMMITTED, ABORTED, ABORTED, OPEN, PREPARED]),
            contents(),
            st.sampled_from([0, 1, 2, 5]),
            st.booleans(),
        ),
        max_size=12,
    ),
    rows=st.sampled_from([1, 4, 1000]),
)
def test_every_shape(tmp_path_factory: Any, entries: list[Any], rows: int) -> None:
    """Any mix of entries, compressed or not, over several ledgers: rows are those of the visible entries, in
    the table, in batches, and however the ranges are cut."""
    root = tmp_path_factory.mktemp("store")
    with Process(root, boot=timing.boot_id()) as process:
        by_kind = ids(process)
        logs = LogFiles(root), LogFiles(root, "visible")
        kinds = [kind for kind, *_ in entries]
        end = min([i for i, kind in enumerate(kinds) if kind in (OPEN, PREPARED)], default=len(kinds))
        if COMMITTED in kinds[end:]:  # it is whole, or not read
            end = min(end, kinds.index(COMMITTED))
        for i, (kind, content, codec, roll) in enumerate(entries):
            content.transaction = by_kind[kind]
            entry = encode(content, PRODUCERS[i % 2], codec)
            logs[0].append(entry, BASE_MS + i)
            if i < end and kind != ABORTED:
                logs[1].append(entry, BASE_MS + i)
            if roll:
                logs[0].roll()
        for log in logs:
            log.finish()
        columns = ["value", "__key", "__eventTime", "__publishTime", "__sequenceId", "__orderingKey"]
        columns += ["__messageProperties", "__producerName"]
        wanted = plain(read_topic(root, "visible", columns).to_pylist())
        # The other topic has committed entries alone, and is read without the rest.
        assert plain(read_topic(root, "t", columns).to_pylist()) == wanted
        assert plain(scan_topic(root, "t", columns, batch_rows=rows).read_all().to_pylist()) == wanted
        ranges = plan_logs(str(root), [logs[0].name])
        assert sum(map(messages_in, ranges)) == len(wanted)
        pieces = [piece for planned in ranges for piece in split(planned, 100)]
        assert sum(map(messages_in, pieces)) == len(wanted)
        assert read_topic(root, "t", isolation="read_uncommitted").num_rows == sum(
            len(content.values) for _, content, _, _ in entries
        )
        shutil.rmtree(root / "clients", ignore_errors=True)


def test_aborted_and_undecided(tmp_path: Path, process: Process) -> None:
    """Committed messages are read up to the first that is undecided, without the aborted ones."""
    by_kind = ids(process)
    kinds = [(NONE, 2), (ABORTED, 3), (COMMITTED, 1), (ABORTED, 1), (NONE, 1), (OPEN, 1), (NONE, 2)]
    write(tmp_path, kinds, by_kind, roll=2)
    assert values(tmp_path) == [0, 1, 5, 7]
    assert values(tmp_path, isolation="read_uncommitted") == list(range(11))
    write(tmp_path, [(NONE, 1), (PREPARED, 1), (NONE, 1)], by_kind, "u")
    assert values(tmp_path, "u") == [0]
    with pytest.raises(InvalidConfiguration, match="isolation is read_committed or"):
        values(tmp_path, isolation="serializable")


def test_a_transaction_that_ends_is_read(tmp_path: Path, process: Process) -> None:
    """The next read has it, or goes on behind it."""
    first, second = process.begun(), process.begun()
    by_kind = {"a": (0, first.id), "b": (0, second.id), NONE: None}
    write(tmp_path, [("a", 2), ("b", 1), (NONE, 1), ("b", 1)], by_kind)
    assert values(tmp_path) == []
    first.commit()
    assert values(tmp_path) == [0, 1]
    second.abort()
    assert values(tmp_path) == [0, 1, 3]


def test_the_transaction_of_a_process_that_died_is_aborted(tmp_path: Path, process: Process) -> None:
    """Without a process that writes that down; nor does the read."""
    other = Process(tmp_path, boot=timing.boot_id())
    transaction = other.begun()
    write(tmp_path, [(NONE, 1), ("x", 1), (NONE, 1)], {NONE: None, "x": (0, transaction.id)})
    assert values(tmp_path) == [0]
    other.die()
    assert values(tmp_path) == [0, 2]
    assert process.log.outcome(transaction.id).name == "UNDECIDED"
    shutil.rmtree(process.clients / other.mailbox.uuid.hex(), ignore_errors=True)


def test_a_store_without_its_transactions(tmp_path: Path, process: Process) -> None:
    """A copy of a topic alone has no outcomes: what no journal says is not committed."""
    log = write(tmp_path, [(NONE, 1), (COMMITTED, 1), (NONE, 1)], ids(process))
    assert values(tmp_path) == [0, 1, 2]
    target = tmp_path / "copy" / "topics" / log.directory.name
    shutil.copytree(log.directory, target)
    assert values(tmp_path / "copy") == [0, 2]


def test_several_logs_have_whole_transactions(tmp_path: Path, process: Process) -> None:
    """Where one log is held back before a part of a transaction, the others wait with their parts of it."""
    by_kind = ids(process)
    second = process.begun()
    second.commit()
    by_kind["second"] = 0, second.id
    for number, kinds in enumerate(
        (
            [(NONE, 1), (OPEN, 1), (COMMITTED, 1)],
            [(NONE, 1), ("second", 1), (NONE, 1), (COMMITTED, 1), (NONE, 1)],
            [(NONE, 1), ("second", 1), (NONE, 1)],
            [(NONE, 3)],
        )
    ):
        write(tmp_path, kinds, by_kind, f"s-partition-{number}")
    # The first log ends before the open entry, and so the second before the committed one that has a part
    # behind it. Alone, each is read as far as it goes.
    assert values(tmp_path, "s") == [0, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert values(tmp_path, "s-partition-1") == [0, 1, 2, 3, 4]
    # Within one log it is the same.
    write(tmp_path, [(NONE, 1), (COMMITTED, 1), (OPEN, 1), (COMMITTED, 1)], by_kind, "u")
    assert values(tmp_path, "u") == [0]


def test_ends_move_until_none_does(tmp_path: Path, process: Process) -> None:
    """An end that moves back leaves parts of further transactions behind it."""
    by_kind = ids(process)
    second = process.begun()
    second.commit()
    by_kind["second"] = 0, second.id
    write(tmp_path, [(NONE, 1), (OPEN, 1), (COMMITTED, 1)], by_kind, "s-partition-0")
    write(tmp_path, [(NONE, 1), (COMMITTED, 1), ("second", 1)], by_kind, "s-partition-1")
    write(tmp_path, [(NONE, 1), ("second", 1), (NONE, 1)], by_kind, "s-partition-2")
    assert values(tmp_path, "s") == [0, 0, 0]
    assert values(tmp_path, "s", isolation="read_uncommitted") == [0, 1, 2] * 3


def test_what_commits_while_logs_are_listed_is_not_read(
    tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcomes are those of the moment before: else its part in what was listed first would be missing."""
    from embeddedpulsar._engine.store import topic_lookup

    transaction = process.begun()
    by_kind = {NONE: None, "x": (0, transaction.id)}
    write(tmp_path, [(NONE, 1), ("x", 1)], by_kind, "s-partition-0")
    write(tmp_path, [(NONE, 1), ("x", 1)], by_kind, "s-partition-1")
    listed = topic_lookup.listed_segments

    def commits_before(*args: Any) -> Any:
        if process.log.outcome(transaction.id).name == "UNDECIDED":
            transaction.commit()
        return listed(*args)

    monkeypatch.setattr(topic_lookup, "listed_segments", commits_before)
    assert values(tmp_path, "s") == [0, 0]
    assert values(tmp_path, "s") == [0, 1, 0, 1]


def test_places_and_times(tmp_path: Path, process: Process) -> None:
    """Cuts within entries, starts and ends among aborted entries and behind the end."""
    by_kind = ids(process)
    kinds = [(NONE, 3), (ABORTED, 3), (COMMITTED, 3), (ABORTED, 2), (OPEN, 2), (NONE, 1)]
    write(tmp_path, kinds, by_kind)

    def between(start: tuple[int, int], end: tuple[int, int]) -> list[int]:
        return values(tmp_path, start=MessageId(-1, 7, *start), end=MessageId(-1, 7, *end))

    assert between((0, 1), (2, 2)) == [1, 2, 6, 7]
    assert between((1, 1), (2, 1)) == [6]
    assert between((0, 2), (1, 2)) == [2]
    assert between((3, 1), (5, -1)) == []
    assert between((5, -1), (5, -1)) == []
    assert values(tmp_path, start_time=BASE_MS + 1, end_time=BASE_MS + 3) == [6, 7, 8]


def test_heads_count_what_is_visible(tmp_path: Path, process: Process) -> None:
    """A micro-batch of so many messages has so many; aborted entries cost it nothing but their bytes."""
    kinds = [(NONE, 2), (ABORTED, 3), (COMMITTED, 2), (ABORTED, 2), (NONE, 1)]
    log = write(tmp_path, kinds, ids(process))
    (planned,) = plan_logs(str(tmp_path), [log.name])
    assert planned.aborted == ((1, 2), (3, 4)) and messages_in(planned) == 5
    for limit in range(1, 7):
        part = head(planned, limit, 1 << 30)
        assert part is not None and messages_in(part) == min(limit, 5)
    # From within the first entry, and from an aborted one.
    for start, left in ((MessageId(-1, 7, 0, 1), 4), (MessageId(-1, 7, 1, 1), 3)):
        (planned,) = plan_logs(str(tmp_path), [log.name], Bounds(start=start))
        assert messages_in(planned) == left
        part = head(planned, 2, 1 << 30)
        assert part is not None and messages_in(part) == 2
    (planned,) = plan_logs(str(tmp_path), [log.name], Bounds(end=MessageId(-1, 7, 3, 1)))
    assert messages_in(planned) == 4 and planned.keep == 1


def test_pruned_queries(tmp_path: Path, process: Process) -> None:
    """Keys and event times find entries of transactions as all others, and none that were aborted."""
    by_kind, log = ids(process), LogFiles(tmp_path)
    for i, kind in enumerate((NONE, COMMITTED, ABORTED, COMMITTED, NONE)):
        for number in range(2):
            content = batch(10 * i + number, 1, by_kind[kind], keys=[f"k{number}"], event_times=[100 + i])
            log.append(encode(content, P), BASE_MS + i)
    log.finish()
    import pyarrow.dataset as ds

    rows = dataset(tmp_path, "t").to_table(["value"], filter=ds.field("__key") == b"k1").to_pylist()
    assert [int(row["value"]) for row in rows] == [1, 11, 31, 41]
    assert dataset(tmp_path, "t").count_rows() == 8


def test_entries_of_pulsar(tmp_path: Path, process: Process) -> None:
    """An entry that is kept as a client of Pulsar sent it has its transaction before it."""
    by_kind, log = ids(process), LogFiles(tmp_path)
    for i, kind in enumerate((NONE, COMMITTED, ABORTED, OPEN)):
        entry = PulsarEntry([PulsarMessage(b"%d" % i), PulsarMessage(b"%d" % i)])
        log.append(encode_pulsar(entry.encoded(), by_kind[kind]), BASE_MS + i)
    log.finish()
    assert values(tmp_path) == [0, 0, 1, 1]


@pytest.mark.parametrize("kind", ["no index", "a flag is lost", "all flags are lost"])
def test_the_index_promises_nothing(tmp_path: Path, process: Process, kind: str) -> None:
    """Frames say which entries are of transactions, where the index is lost or wrong."""
    log = write(tmp_path, [(NONE, 1), (ABORTED, 1), (COMMITTED, 1), (OPEN, 1)], ids(process))
    path = log.index_path(7)
    index = bytearray(path.read_bytes())
    for entry in range(4) if kind == "all flags are lost" else (1,):
        index[SLOTS_OFFSET + 24 * entry + 16] &= 0xFF ^ 8
    path.write_bytes(index)
    if kind == "no index":
        path.unlink()
    assert values(tmp_path) == [0, 2]


@pytest.mark.parametrize("kind", [ABORTED, OPEN, COMMITTED])
def test_damage_is_reported_whatever_its_transaction(tmp_path: Path, process: Process, kind: str) -> None:
    """A damaged entry does not say whose it is, and is no reason to end."""
    from embeddedpulsar import CorruptionError

    log = write(tmp_path, [(NONE, 1), (kind, 1), (NONE, 1)], ids(process))
    _, _, _, at, length = log.written[1]
    data = bytearray(log.log_path(7).read_bytes())
    data[at + length - 12] ^= 0x40
    log.log_path(7).write_bytes(data)
    with pytest.raises(CorruptionError):
        values(tmp_path)
    assert values(tmp_path, fail_on_data_loss=False) == [0, 2]


def test_ranges_without_transactions_say_nothing_of_them(tmp_path: Path) -> None:
    """They travel as before."""
    log = write(tmp_path, [(NONE, 1)] * 5, {NONE: None})
    assert [planned.aborted for planned in plan_logs(str(tmp_path), [log.name], EVERYTHING)] == [()]
