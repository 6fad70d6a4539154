"""What is known of names and sequence ids: the state machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.document import KIND_TOPIC_SNAPSHOT, decode_document, encode_document
from embeddedpulsar._engine.format.journal_record import (
    ForgetProducer,
    RememberProducer,
    SetDeduplication,
    TopicCommand,
)
from embeddedpulsar._engine.store.topic_journal import ProducerTable, Remembered, SequenceTable

BOOT, OTHER = b"b" * 16, b"o" * 16

commands = st.lists(
    st.one_of(
        st.builds(
            RememberProducer,
            st.integers(-1, 50),
            st.integers(0, 50),
            st.booleans(),
            st.sampled_from(["a", "b", "c"]),
        ),
        st.builds(ForgetProducer, st.sampled_from(["a", "b", "c"])),
        st.builds(SetDeduplication, st.integers(0, 50), st.sampled_from([BOOT, OTHER]), st.booleans()),
    ),
    max_size=30,
)


def follow(table: SequenceTable, command: TopicCommand, time_ms: int) -> None:
    """Apply a command as a table of producers does."""
    producers = ProducerTable()
    producers.sequences = table
    producers.apply(command, time_ms)


def table_of(*given_commands: TopicCommand) -> SequenceTable:
    """A table that followed commands, one per second."""
    table = SequenceTable()
    for number, command in enumerate(given_commands):
        follow(table, command, 1000 * number)
    return table


def test_what_is_known_never_shrinks():
    """A later note with less in it takes nothing back; whether it was the last word may change."""
    table = table_of(RememberProducer(7, 100, True, "p"), RememberProducer(-1, 50, False, "p"))
    assert table.names == {"p": Remembered(7, 100, False, 1000)}
    follow(table, RememberProducer(9, 90, True, "p"), 5000)
    assert table.names["p"] == Remembered(9, 100, True, 5000)


def test_a_name_is_forgotten_as_a_whole():
    """And begins anew, with less."""
    table = table_of(RememberProducer(7, 100, True, "p"), ForgetProducer("p"), ForgetProducer("nobody"))
    assert table.names == {}
    follow(table, RememberProducer(-1, 0, False, "p"), 9000)
    assert table.names["p"].highest == -1


def test_it_is_on_in_the_boot_that_looked():
    """After another boot somebody has to read the log first."""
    table = SequenceTable()
    assert not table.is_on(BOOT) and not table.is_on(b"")
    follow(table, SetDeduplication(10, BOOT, True), 0)
    assert table.is_on(BOOT) and not table.is_on(OTHER)
    follow(table, SetDeduplication(20, BOOT, False), 0)
    assert not table.is_on(BOOT)
    assert table.base == 20


def test_what_all_names_are_known_up_to_never_shrinks():
    """Whoever read less says nothing about what others read."""
    table = table_of(SetDeduplication(20, BOOT, True), SetDeduplication(10, BOOT, True))
    assert table.base == 20


def test_when_a_name_was_heard_of_last():
    """With a note, and when its producer left; of names that are not known, nothing."""
    table = table_of(RememberProducer(7, 100, True, "p"))
    table.note_left("p", 8000)
    table.note_left("q", 8000)
    assert table.names == {"p": Remembered(7, 100, True, 8000)}


def test_who_is_forgotten():
    """Who was not heard of for long; then the eldest, if there are too many; never who is there."""
    table = table_of(*(RememberProducer(1, 1, True, f"p{number}") for number in range(6)))

    def surplus(in_use: set[str], most: int, before_ms: int) -> list[str]:
        return [command.name for command in table.surplus(in_use, most, before_ms)]

    assert surplus(set(), 6, 0) == []
    assert surplus(set(), 6, 2000) == ["p0", "p1"]
    assert surplus({"p0"}, 6, 2000) == ["p1"]
    assert surplus(set(), 4, 0) == ["p0", "p1"]
    assert surplus({"p0", "p2"}, 3, 0) == ["p1", "p3", "p4"]
    assert surplus(set(), 3, 2000) == ["p0", "p1", "p2"]
    assert surplus({f"p{number}" for number in range(6)}, 1, 9000) == []
    table.note_left("p0", 9000)
    assert surplus(set(), 5, 0) == ["p1"]


@given(commands)
def test_snapshots_are_the_whole_state(given_commands: list[TopicCommand]):
    """Through the bytes of a document and back."""
    table = table_of(*given_commands)
    data = encode_document(KIND_TOPIC_SNAPSHOT, {"sequences": table.to_fields()})
    again = SequenceTable.from_fields(decode_document(data, KIND_TOPIC_SNAPSHOT)["sequences"])
    assert vars(again) == vars(table)


@given(commands)
def test_highest_ids_rise_until_they_are_forgotten(given_commands: list[TopicCommand]):
    """Whatever is told, in whatever order."""
    table = SequenceTable()
    for command in given_commands:
        before = dict(table.names)
        follow(table, command, 0)
        for name, known in before.items():
            if command != ForgetProducer(name):
                assert table.names[name].highest >= known.highest
                assert table.names[name].word >= known.word


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"on": True, "boot": b"", "base": 0},
        {"on": True, "boot": b"", "base": "x", "names": []},
        {"on": True, "boot": b"", "base": 0, "names": [["p", 1]]},
        {"on": True, "boot": b"", "base": 0, "names": [["p", "x", 1, True, 0]]},
        {"on": True, "boot": b"", "base": 0, "names": 7},
    ],
)
def test_what_is_no_snapshot(fields):
    """`ProducerTable` makes a corruption of it."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        SequenceTable.from_fields(fields)


def test_names_of_outboxes_are_never_forgotten():
    """A relay may come back after any time, and whatever number of names there is."""
    table = SequenceTable()
    for number in range(3):
        follow(table, RememberProducer(number, number, True, f"outbox.{number}"), 1000)
        follow(table, RememberProducer(number, number, True, f"p{number}"), 1000)
    assert [one.name for one in table.surplus(set(), 6, 2000)] == ["p0", "p1", "p2"]
    assert [one.name for one in table.surplus(set(), 1, 0)] == ["p0", "p1", "p2"]
