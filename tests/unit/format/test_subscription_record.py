"""Commands of a subscription's journal, there and back."""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import (
    ACK,
    FORM_BITMAP,
    FORM_LIST,
    FORM_RANGE,
    MAX_ENTRY_ID,
    Ack,
    decode_ack,
    encode_ack,
    group_batches,
    group_entries,
)
from embeddedpulsar._engine.format.journal_record import RecordTypes
from embeddedpulsar._engine.format.subscription_record import FreshRun, Share
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
ENTRY = st.integers(-1, (1 << 63) - 1)
NAME = st.text(min_size=1, max_size=30)
ENTRIES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 500)), max_size=60)
BATCHES = st.dictionaries(
    st.tuples(st.integers(1, 4), st.integers(0, 500)),
    st.integers(1, 200).flatmap(lambda size: st.tuples(st.integers(0, (1 << size) - 1), st.just(size))),
    max_size=5,
)


def _run(extra: int) -> st.SearchStrategy[FreshRun]:
    """Runs of ``extra`` + 1 entries, with and without columns."""
    column = st.lists(U32, min_size=extra + 1, max_size=extra + 1).map(lambda numbers: array("I", numbers))
    first = st.integers(0, 100)
    columns = st.tuples(st.none() | column, st.none() | column)
    return st.builds(lambda ledger, at, two: FreshRun(ledger, at, at + extra, *two), U64, first, columns)


SHARES = st.builds(
    lambda ledger, first, owners, picks: Share(
        ledger, first, owners, bytes(pick % (len(owners) + 1) for pick in picks)
    ),
    U64,
    st.integers(0, 100),
    st.lists(U64, max_size=5).map(tuple),
    st.binary(min_size=1, max_size=40),
)
COMMANDS = st.one_of(
    st.builds(record.Create, NAME, U64, U64, ENTRY),
    st.builds(
        record.Attach,
        U64,
        NAME,
        st.integers(0, 3),
        st.integers(-5, 5),
        st.binary(min_size=16, max_size=16),
        U64,
        st.builds(
            record.ConsumerRules,
            st.integers(0, 3),
            st.integers(0, 65535),
            st.integers(0, 15),
            st.integers(-1, 1000),
            U32,
            U32,
            U32,
            st.lists(st.integers(0, 65535).map(lambda first: (first, 65535)), max_size=3).map(tuple),
        ),
    ),
    st.builds(record.Detach, U64, st.integers(0, 2), U64),
    st.builds(
        record.Assign,
        st.tuples(U64, ENTRY),
        U64,
        st.lists(st.integers(0, 40).flatmap(_run), max_size=3).map(tuple),
        st.lists(st.tuples(U64, U64, st.integers(0, MAX_ENTRY_ID)), max_size=3).map(tuple),
        st.lists(st.tuples(U64, U64, st.integers(0, 50), st.integers(50, MAX_ENTRY_ID)), max_size=3).map(
            tuple
        ),
        st.lists(st.tuples(U64, U64), max_size=3).map(tuple),
        st.lists(SHARES, max_size=3).map(tuple),
    ),
    st.builds(record.Redeliver, U64, U64, U64, ENTRIES.map(group_entries)),
    st.builds(
        record.Ledgers,
        st.dictionaries(U64, ENTRY, max_size=5).map(lambda listed: tuple(sorted(listed.items()))),
    ),
    st.builds(Ack, U64, U64, ENTRIES.map(group_entries), BATCHES.map(group_batches)),
    st.builds(record.AckCumulative, U64, U64, U64, ENTRY, st.integers(-1, 1000), U32),
    st.builds(record.Seek, U64, ENTRY),
    st.builds(record.Clamp, U64, ENTRY),
    st.builds(record.Checkpoint, U64, U32, U32),
    st.builds(record.Limits, U32, U32),
    st.builds(record.Expired, U64, U64),
    st.builds(record.OpenRange, U64),
    st.builds(
        record.TransactionAck,
        st.tuples(U64, U64),
        st.builds(Ack, U64, U64, ENTRIES.map(group_entries), BATCHES.map(group_batches)),
        st.none() | st.builds(record.AckedThrough, U64, ENTRY, st.integers(-1, 1000), U32),
    ),
    st.builds(record.TransactionEnd, st.tuples(U64, U64), st.integers(1, 2), U64),
    st.builds(record.TransactionCommits, st.lists(st.tuples(U64, U64), max_size=5).map(tuple), U64),
)


@given(COMMANDS)
def test_every_command_comes_back(command: record.Command):
    """Encoding and decoding give an equal command."""
    assert record.decode(*record.encode(command)) == command


@given(COMMANDS, st.data())
def test_damaged_payloads_raise_nothing_but_corruption(command: record.Command, data: st.DataObject):
    """The checksum has passed when these are decoded; a hostile writer is refused all the same."""
    kind, payload = record.encode(command)
    damaged = bytearray(payload[: data.draw(st.integers(0, len(payload)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        record.decode(kind, bytes(damaged))
    except CorruptionError:
        return


@given(st.integers(0, 18), st.binary(max_size=120))
def test_any_bytes_raise_nothing_but_corruption(kind: int, payload: bytes):
    """Whatever stands there."""
    try:
        record.decode(kind, payload)
    except CorruptionError:
        return


def test_unknown_commands_ask_for_an_upgrade():
    """A journal of a newer release is not guessed at."""
    with pytest.raises(UnsupportedFormatVersion, match="upgrade"):
        record.decode(77, b"")


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [(40, 2, "an acknowledgement of kind 2"), (24, 3, "outcome 3 of a transaction")],
)
def test_kinds_and_outcomes_that_are_none(offset: int, value: int, reason: str):
    """A later release that has another one has another record type, too."""
    command = (
        record.TransactionAck((0, 1), Ack(1, 1, (), ()), None)
        if offset == 40
        else record.TransactionEnd((0, 1), record.ABORTED, 5)
    )
    kind, payload = record.encode(command)
    damaged = payload[:offset] + bytes([value]) + payload[offset + 1 :]
    with pytest.raises(CorruptionError, match=reason):
        record.decode(kind, damaged)


def test_what_a_release_without_transactions_says_of_them():
    """It names the type, and asks for an upgrade, before anything is applied."""
    older = RecordTypes("subscription")
    older.add_fixed(record.OPEN_RANGE, record.OpenRange, record.OPEN_RANGE_BODY)
    kind, payload = record.encode(record.TransactionAck((0, 1), Ack(1, 1, (), ()), None))
    reason = r"it has a subscription command of type 16; this release reads types up to 15.*upgrade"
    with pytest.raises(UnsupportedFormatVersion, match=reason):
        older.decode(kind, payload)


def test_parts_of_entries_come_before_the_whole():
    """How far cumulative acknowledgements reach, compared."""
    order = [(7, 4, -1, 0), (7, 5, 0, 3), (7, 5, 1, 3), (7, 5, 2, 3), (7, 6, -1, 0), (8, -1, -1, 0)]
    ranks = [record.AckedThrough(*one).rank for one in order]
    assert ranks == sorted(ranks)
    assert record.AckedThrough(7, 5, 2, 3).rank == record.AckedThrough(7, 5).rank


@pytest.mark.parametrize("name", ["", "x" * 5000])
def test_names_are_bounded(name: str):
    """An empty or endless name is a mistake of the caller."""
    with pytest.raises(ValueError, match="name"):
        record.encode(record.Create(name, 1, 1, -1))


def test_the_uuid_of_a_client_has_16_bytes():
    """Nothing is padded or cut silently."""
    with pytest.raises(ValueError, match="16 bytes"):
        record.encode(record.Attach(1, "c", 0, 0, b"short", 0))


@given(ENTRIES)
def test_groups_hold_exactly_the_entries(entries: list[tuple[int, int]]):
    """Whatever form a group takes."""
    found = set()
    for group in group_entries(entries):
        if group.form == FORM_RANGE:
            ids = set(range(group.first, group.last + 1))
        elif group.form == FORM_LIST:
            ids = set(group.entries())
        else:
            bits = int.from_bytes(group.data, "little")
            ids = {group.first + i for i in range(bits.bit_length()) if bits >> i & 1}
        assert (min(ids), max(ids)) == (group.first, group.last)
        found |= {(group.ledger_id, entry) for entry in ids}
    assert found == set(entries)


def test_the_smallest_form_is_chosen():
    """A run is a range, in whatever order it came; dense entries are a bitmap, scattered ones a list."""
    assert [group.form for group in group_entries([(1, n) for n in (3, 1, 2, 2)])] == [FORM_RANGE]
    assert [group.form for group in group_entries([(1, n) for n in range(0, 100, 3)])] == [FORM_BITMAP]
    assert [group.form for group in group_entries([(1, n) for n in range(0, 100_000, 1000)])] == [FORM_LIST]
    in_order = Ack(1, 1, group_entries([(1, n) for n in range(1000)]), ())
    assert len(encode_ack(in_order)) == 48


@pytest.mark.parametrize("entry", [-1, MAX_ENTRY_ID + 1])
def test_entries_no_ledger_has_are_refused(entry: int):
    """Before anything is allocated for them."""
    with pytest.raises(ValueError, match="no ledger has entry"):
        group_entries([(1, entry)])
    with pytest.raises(ValueError, match="no batch"):
        group_batches({(1, entry): (1, 2)})


@pytest.mark.parametrize(("indexes", "size"), [(4, 2), (-1, 2), (0, 0), (0, 1 << 40)])
def test_batches_that_cannot_be_are_refused(indexes: int, size: int):
    """An index beyond the batch, an empty batch, an endless one."""
    with pytest.raises(ValueError, match="no batch"):
        group_batches({(1, 1): (indexes, size)})


def test_a_bitmap_must_end_where_it_says():
    """Or entries beyond the group's last could be acknowledged unseen."""
    payload = bytearray(encode_ack(Ack(1, 1, group_entries([(1, 0), (1, 2)]), ())))
    payload[48] = 0xFF
    with pytest.raises(CorruptionError, match="form 1 is not that of entries 0 to 2"):
        decode_ack(payload)
    assert record.decode(ACK, encode_ack(Ack(1, 1, (), ()))) == Ack(1, 1, (), ())


def test_the_example_in_the_documentation(project_root: Path):
    """docs/format/subscription.md shows what the encoder writes."""
    page = (project_root / "docs" / "format" / "subscription.md").read_text("utf-8")
    shown = page.partition("<!-- example: acknowledgement -->")[2].partition("<!--")[0]
    lines = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ?)+)", shown, re.MULTILINE)
    entries = [(7, 0), (7, 1), (7, 2), (9, 1), (9, 3)]
    ack = Ack(3, 4, group_entries(entries), group_batches({(9, 4): (0b101, 3)}))
    assert bytes.fromhex("".join(lines)) == encode_ack(ack)
