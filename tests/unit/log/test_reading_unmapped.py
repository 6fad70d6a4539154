"""Reading a few bytes of a segment for which there is no room among the maps of the process."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import damage as kinds
from embeddedpulsar._engine.filenames import log_path
from embeddedpulsar._engine.log import segments
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.segment_reader import EntryCursor
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import ForeignFileError, StoreGoneError
from tests.ledger_site import START, LedgerSite, drain, send, send_batch
from tests.unit.log.test_damage import BODY, CRC, ENTRY_ID, HEADER, LENGTH, flip

FIRST = b"first"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerSite]:
    """A place for ledgers, in a process that has no room for another map."""
    monkeypatch.setattr(segments, "_descriptor_budget", lambda: 0)
    monkeypatch.setattr(segments, "_map_budget", lambda: 0)
    with LedgerSite(tmp_path) as made:
        yield made
    monkeypatch.undo()
    SEGMENTS.allow(0)


def behind_first(ledger: ManagedLedger) -> EntryCursor:
    """A cursor that has read the first message."""
    send(ledger, FIRST)
    cursor = ledger.cursor(START, inclusive=True)
    assert texts(cursor) == [FIRST]
    return cursor


def unmap(ledger: ManagedLedger) -> None:
    """Use the maps for something else."""
    SEGMENTS.drop_all()
    assert not is_mapped(ledger)


def is_mapped(ledger: ManagedLedger) -> bool:
    """Whether any segment of the topic is mapped."""
    return any(home == ledger._control.home for home, _ in SEGMENTS._segments)


def texts(cursor: EntryCursor) -> list[bytes]:
    """The messages up to the tail."""
    return [value for entry in drain(cursor) for value in entry.values()]


def test_small_messages_are_read_without_a_map(site: LedgerSite):
    """Whichever the maxima are; no descriptor is left open."""
    ledger = site.open()
    cursor = behind_first(ledger)
    sent = [b"%d" % n * 50 for n in range(9)]
    for value in sent:
        send(ledger, value)
    unmap(ledger)
    gc.collect()  # what tests before this one left is closed now
    before = len(os.listdir("/proc/self/fd"))
    found = cursor.read(3, 100, 1 << 20) + cursor.read(100, 2, 1 << 20) + cursor.read(100, 100, 1)
    assert [entry.value(0) for entry in found] == sent[:6]
    assert texts(cursor) == sent[6:] and cursor.is_at(ledger.tail)
    assert len(os.listdir("/proc/self/fd")) == before and not is_mapped(ledger)


def test_where_there_is_room_the_segment_is_mapped(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """And a segment that another cursor or the producer has mapped is used."""
    ledger = site.open()
    cursor = behind_first(ledger)
    send(ledger, b"second")
    unmap(ledger)
    monkeypatch.setattr(SEGMENTS, "_capacity", 1)
    assert texts(cursor) == [b"second"] and is_mapped(ledger)


def test_a_segment_in_use_is_mapped_after_all(site: LedgerSite):
    """After 32 messages, one at a time: each costs more than from a map."""
    ledger = site.open()
    cursor = behind_first(ledger)
    mapped = []
    for number in range(70):
        send(ledger, b"%d" % number)
        unmap(ledger)
        assert texts(cursor) == [b"%d" % number]
        mapped.append(is_mapped(ledger))
    assert [number for number, was_mapped in enumerate(mapped) if was_mapped] == [32, 65]


@pytest.mark.parametrize("size", [100, 3_000, 5_000, 20_000, 300_000])
def test_everything_else_is_read_from_a_map(site: LedgerSite, size: int):
    """Batches, large messages, and what is far behind the tail."""
    ledger = site.open()
    cursor = behind_first(ledger)
    sent = [[b"a" * size], [b"b" * size, b"c" * size], [b"d"], *[[b"e%d" % n] for n in range(100)]]
    for value in sent:
        send_batch(ledger, value)
    unmap(ledger)
    assert texts(cursor) == [value for batch in sent for value in batch]


@pytest.mark.parametrize("within", [LENGTH, CRC, 12, HEADER, ENTRY_ID, BODY])
@pytest.mark.parametrize("victim", [0, 1, 4])
def test_damage_is_noticed(site: LedgerSite, victim: int, within: int):
    """Reported and stepped over, as in a map; what comes before it is given out."""
    reports: list[Damage] = []
    ledger = site.open()
    ledger.damage = reports.append
    cursor = behind_first(ledger)
    sent = [send(ledger, b"%d" % n) for n in range(5)]
    send(ledger, b"last")
    flip(ledger, sent[victim], within)
    unmap(ledger)
    assert texts(cursor) == [*(b"%d" % n for n in range(5) if n != victim), b"last"]
    assert [(report.kind, report.first_entry) for report in reports] == [(kinds.HOLE, victim + 1)]


def test_a_roll_is_followed(site: LedgerSite):
    """To the end of the closed ledger, then into the next one."""
    ledger = site.open(max_entries=3)
    cursor = behind_first(ledger)
    for number in range(10):
        send(ledger, b"%d" % number)
    unmap(ledger)
    assert texts(cursor) == [b"%d" % number for number in range(10)]


def test_a_trimmed_ledger_is_left(site: LedgerSite):
    """Reading goes on at the first one that is retained."""
    ledger = site.open(max_entries=3)
    cursor = behind_first(ledger)
    sent = [send(ledger, b"%d" % number) for number in range(8)]
    ledger.trim_before(sent[5].ledger_id)
    unmap(ledger)
    assert texts(cursor) == [b"5", b"6", b"7"]


@pytest.mark.parametrize("state", ["removed", "cut"])
def test_a_lost_file(site: LedgerSite, state: str):
    """Ends as with a map: the rest of the ledger is skipped."""
    ledger = site.open(max_entries=3)
    cursor = behind_first(ledger)
    sent = [send(ledger, b"%d" % number) for number in range(4)]
    path = log_path(ledger.directory, sent[0].ledger_id)
    unmap(ledger)
    if state == "cut":
        os.truncate(path, 4096)
    else:
        os.unlink(path)
    assert texts(cursor) == [b"2", b"3"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(path + ".away", path)])
def test_a_file_that_is_not_the_segment(site: LedgerSite, make: Callable[[str], object]):
    """Is not read, and not waited for: mapping it says what is wrong."""
    ledger = site.open()
    ledger_id = send(ledger, FIRST).ledger_id
    path = log_path(ledger.directory, ledger_id)
    unmap(ledger)
    home = ledger._control.home
    assert SEGMENTS.read_unmapped(home, ledger_id, 0, 4) == b"EPSG"
    os.rename(path, path + ".away")
    make(path)
    assert SEGMENTS.read_unmapped(home, ledger_id, 0, 4) == b""
    with pytest.raises((ForeignFileError, OSError)):
        SEGMENTS.get(home, ledger_id)


def test_a_copy_in_the_place_of_the_store(site: LedgerSite):
    """Nothing is read from it, although its bytes are the same."""
    ledger = site.open()
    cursor = behind_first(ledger)
    send(ledger, b"second")
    unmap(ledger)
    shutil.copytree(ledger.directory, ledger.directory + ".copy")
    os.rename(ledger.directory, ledger.directory + ".away")
    os.rename(ledger.directory + ".copy", ledger.directory)
    with pytest.raises(StoreGoneError):
        texts(cursor)
    os.rename(ledger.directory, ledger.directory + ".copy")
    os.rename(ledger.directory + ".away", ledger.directory)
    assert texts(cursor) == [b"second"]


def test_a_forked_child_reads_on(site: LedgerSite):
    """And its parent too."""
    ledger = site.open()
    cursor = behind_first(ledger)
    send(ledger, b"second")
    unmap(ledger)
    pid = os.fork()
    if not pid:
        os._exit(texts(cursor) != [b"second"])
    assert os.waitpid(pid, 0)[1] == 0
    assert texts(cursor) == [b"second"]
