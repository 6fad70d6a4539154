"""Which sequence ids the log holds, also where it is damaged."""

from __future__ import annotations

import os

import pytest

from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format.columns import EntryFields
from embeddedpulsar._engine.format.entry import EntryContent, ProducerPrefix, encode, encode_single
from embeddedpulsar._engine.format.frame import HEADER_SIZE
from embeddedpulsar._engine.log import log_survey
from embeddedpulsar._engine.log.log_survey import SequenceScan
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar.message_id import Position
from tests.ledger_site import LedgerSite

A, B = ProducerPrefix("a"), ProducerPrefix("b")
FIRST_SEQUENCE_ID, TRAILER = HEADER_SIZE, -8


def send(ledger: ManagedLedger, producer: ProducerPrefix, sequence_id: int) -> Position:
    """One message."""
    ledger_id, entry_id, _ = ledger.append(encode_single(b"x" * 20, sequence_id, producer))
    return Position(ledger_id, entry_id)


def send_batch(ledger: ManagedLedger, producer: ProducerPrefix, *ids: int, **fields) -> Position:
    """One entry of messages with these ids."""
    is_consecutive = list(ids) == list(range(ids[0], ids[0] + len(ids)))
    content = EntryContent(
        [b"x"] * len(ids), ids[0], True, sequence_ids=None if is_consecutive else list(ids), **fields
    )
    ledger_id, entry_id, _ = ledger.append(encode(content, producer))
    return Position(ledger_id, entry_id)


def scan(ledger: ManagedLedger, wanted=None, end: int | None = None, floor: int = 0) -> dict[str, int]:
    """What a scan finds."""
    return SequenceScan(ledger.view, wanted).run(ledger.tail if end is None else end, floor)


def flip(ledger: ManagedLedger, position: Position, within: int) -> None:
    """Damage a byte of an entry, counted from its end if negative."""
    at = ledger.view.offset_of(position.ledger_id, position.entry_id + (within < 0)) + within
    with open(log_path(ledger.directory, position.ledger_id), "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x41]))


def test_a_number_given_for_deduplication(site: LedgerSite):
    """It stands for the ids of its entry, lower or higher ones; also where the scan has to go forward."""
    ledger = site.open()
    send_batch(ledger, A, 5, 6, 7, fields=EntryFields(deduplication_id=5))
    send_batch(ledger, B, 1, fields=EntryFields(deduplication_id=90))
    assert scan(ledger) == {"a": 5, "b": 90}
    place = send(ledger, ProducerPrefix("c"), 3)
    send(ledger, ProducerPrefix("c"), 4)
    flip(ledger, place, TRAILER + 4)  # nothing is found from the end
    assert scan(ledger) == {"a": 5, "b": 90, "c": 4}


def test_the_highest_of_each_name(site: LedgerSite):
    """Over single messages and batches, and over ledgers."""
    ledger = site.open(max_entries=2)
    assert scan(ledger) == {}
    for number in range(5):
        send(ledger, A, number)
    send_batch(ledger, B, 7, 8, 9)
    send(ledger, A, 5)
    assert len(ledger.segments()) == 4
    assert scan(ledger) == {"a": 5, "b": 9}
    assert scan(ledger, ["a"]) == {"a": 5}
    assert scan(ledger, ["a", "b", "c"]) == {"a": 5, "b": 9}


def test_ids_that_are_not_consecutive(site: LedgerSite):
    """The highest of a batch is anywhere in it; zero and negative ones are ids."""
    ledger = site.open()
    send_batch(ledger, A, 3, 11, 5)
    send_batch(ledger, B, 40, 2)
    assert scan(ledger) == {"a": 11, "b": 40}
    assert scan(ledger, ["b"]) == {"b": 40}


def test_ids_that_fell(site: LedgerSite):
    """Of all names the highest counts, wherever it is; of wanted ones the last."""
    ledger = site.open()
    for one in (1, 50, 3):
        send(ledger, A, one)
    assert scan(ledger) == {"a": 50}
    assert scan(ledger, ["a"]) == {"a": 3}


def test_between_two_words(site: LedgerSite):
    """Entries from the end that is given down to the floor, across ledgers."""
    ledger = site.open(max_entries=2)
    words = [ledger.tail]
    for number in range(6):
        send(ledger, A, number)
        words.append(ledger.tail)
    for end in range(1, 7):
        for floor in range(end):
            assert scan(ledger, end=words[end], floor=words[floor]) == {"a": end - 1}
    assert scan(ledger, end=words[4], floor=words[4]) == {}


def test_parts_of_a_message_say_nothing(site: LedgerSite):
    """Only the last one counts a message."""
    ledger = site.open()
    send(ledger, A, 3)
    encoded = encode(
        EntryContent([b"x"], 4, False, chunks=[{"uuid": "u", "id": 0, "total": 2, "size": 2}]), A
    )
    ledger.append(encoded._replace(count=0))
    assert scan(ledger) == scan(ledger, ["a"]) == {"a": 3}


@pytest.mark.parametrize("within", [4, 8, 20, TRAILER, TRAILER + 4])
@pytest.mark.parametrize("victim", [0, 2, 4])
def test_where_frames_do_not_fit_together(site: LedgerSite, within: int, victim: int):
    """The ledger is read forward: what is whole counts."""
    ledger = site.open()
    ledger.damage = lambda _: None
    sent = [send(ledger, A, number) for number in range(3)] + [send(ledger, B, 7), send(ledger, A, 3)]
    end = ledger.tail
    send(ledger, B, 8)  # so that the last of those is not at the tail, where it is a matter of the writer
    flip(ledger, sent[victim], within)
    found = scan(ledger, end=end)
    assert found["a"] == (2 if victim == 4 and within >= 0 else 3), "trailers are not needed to read"
    assert found["b"] in (7, 8), "more is no harm: it is stored"


@pytest.mark.parametrize("wanted", [None, ["a"]])
def test_an_id_that_is_damage(site: LedgerSite, wanted):
    """An entry whose id was changed by the disk is not believed: nothing would be stored below that id."""
    ledger = site.open()
    ledger.damage = lambda _: None
    send(ledger, A, 1)
    damaged = send(ledger, A, 2)
    send(ledger, B, 9)
    flip(ledger, damaged, FIRST_SEQUENCE_ID + 5)
    assert scan(ledger, wanted)["a"] == 1


def test_an_id_column_that_is_damage(site: LedgerSite):
    """The same in a batch with ids of its own."""
    ledger = site.open()
    ledger.damage = lambda _: None
    send(ledger, A, 1)
    damaged = send_batch(ledger, A, 2, 7, 5)
    send(ledger, B, 9)
    flip(ledger, damaged, -20)
    assert scan(ledger) == {"a": 1, "b": 9}


def test_ledgers_that_are_gone(site: LedgerSite):
    """Trimmed, or lost: the others are read."""
    ledger = site.open(max_entries=2)
    sent = [send(ledger, A if number < 2 else B, number) for number in range(5)]
    first = sent[0].ledger_id
    for path in (log_path(ledger.directory, first), index_path(ledger.directory, first)):
        os.remove(path)
    SEGMENTS.drop(ledger._control.home)
    with LedgerSite(site.root) as elsewhere:
        other = elsewhere.open()
        other.damage = lambda _: None
        assert scan(other) == {"b": 4}
        assert scan(other, ["a"]) == {}


def test_progress_is_told(site: LedgerSite, monkeypatch):
    """Now and then, with the number of entries so far."""
    monkeypatch.setattr(log_survey, "_PROGRESS_EVERY", 4)
    ledger = site.open(max_entries=5)
    for number in range(10):
        send(ledger, A, number)
    told: list[int] = []
    SequenceScan(ledger.view, None, told.append).run(ledger.tail, 0)
    assert told == [4, 8]
