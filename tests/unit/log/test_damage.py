"""Bytes that are not what was written: reported, stepped over, never cut, never given out."""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import pytest

from embeddedpulsar import damage as kinds
from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format.control import TopicWord, tail_word
from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.format.frame import HEADER_SIZE, read_header, seal
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segment_snapshot import committed_segments
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar.damage import Damage
from embeddedpulsar.message_id import Position
from tests.frames import framed
from tests.ledger_site import EVERYTHING, PREFIX, START, LedgerSite, drain, send, values
from tests.support.ledger_files import pretend_reboot

BODY, HEADER, TRAILER = 60, 20, -4
LENGTH, CRC, ENTRY_ID, PUBLISH_TIME = 0, 4, 24, 34


def opened(site: LedgerSite, reports: list[Damage], **options: int) -> ManagedLedger:
    """A ledger that collects what it reports."""
    ledger = site.open(**options)
    ledger.damage = reports.append
    return ledger


def offset_of(ledger: ManagedLedger, position: Position) -> int:
    """Where an entry's frame begins."""
    segment = Segment.open(ledger.directory, position.ledger_id)
    return segment.index.slot(position.entry_id).offset


def overwrite(path: str, offset: int, data: bytes) -> None:
    """Change bytes of a file in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(ledger: ManagedLedger, position: Position, within: int) -> None:
    """Flip a byte of an entry's frame; counted from its end if negative."""
    path = log_path(ledger.directory, position.ledger_id)
    at = offset_of(ledger, position) if within >= 0 else offset_of(ledger, position.next())
    content = Path(path).read_bytes()
    overwrite(path, at + within, bytes([content[at + within] ^ 0x41]))


@pytest.mark.parametrize("within", [BODY, HEADER, LENGTH])
@pytest.mark.parametrize("victim", [0, 3, 5, 7, 11])
def test_a_damaged_frame_is_skipped(site: LedgerSite, victim: int, within: int):
    """Every other entry is read; the report names the file, the entry, the place; bytes stay."""
    reports: list[Damage] = []
    ledger = opened(site, reports, max_entries=6)
    sent = [send(ledger, b"value %d" % n) for n in range(12)]
    flip(ledger, sent[victim], within)
    size = os.path.getsize(log_path(ledger.directory, sent[victim].ledger_id))
    expected = [b"value %d" % n for n in range(12) if n != victim]
    assert values(ledger) == expected
    assert values(ledger) == expected  # told once, skipped every time
    (report,) = reports
    assert (report.ledger_id, report.first_entry, report.last_entry) == (*sent[victim], sent[victim].entry_id)
    assert report.offset == offset_of(ledger, sent[victim]) and report.kind == kinds.HOLE
    assert ledger.statistics().damage_here == 1
    assert os.path.getsize(log_path(ledger.directory, sent[victim].ledger_id)) == size


def test_a_damaged_trailer_harms_nobody(site: LedgerSite):
    """Trailers are for finding the last frame; readers do not need them."""
    reports: list[Damage] = []
    ledger = opened(site, reports)
    sent = [send(ledger, b"%d" % n) for n in range(4)]
    flip(ledger, sent[1], TRAILER)
    assert values(ledger) == [b"0", b"1", b"2", b"3"] and not reports


def test_starting_at_a_damaged_entry(site: LedgerSite):
    """A cursor placed on a damaged entry goes on with the next one; the index is not blamed."""
    reports: list[Damage] = []
    ledger = opened(site, reports)
    sent = [send(ledger, b"%d" % n) for n in range(9)]
    flip(ledger, sent[4], HEADER)
    assert values(ledger, sent[4]) == [b"5", b"6", b"7", b"8"]
    assert [report.kind for report in reports] == [kinds.HOLE]


def test_a_run_of_zeros(site: LedgerSite):
    """A stretch that never reached the disk costs the entries in it, no more."""
    reports: list[Damage] = []
    ledger = opened(site, reports)
    sent = [send(ledger, b"x" * 500 + b"%d" % n) for n in range(100)]
    start = offset_of(ledger, sent[40])
    overwrite(log_path(ledger.directory, sent[0].ledger_id), start & -512, bytes(4096))
    found = values(ledger)
    assert 90 <= len(found) < 100
    assert found == [b"x" * 500 + b"%d" % n for n in range(100) if b"x" * 500 + b"%d" % n in found]
    lost = sum(report.last_entry - report.first_entry + 1 for report in reports)
    assert lost == 100 - len(found) and len(reports) <= 3


def test_damage_at_the_tail_starts_a_new_ledger(site: LedgerSite):
    """Where the writer needs what is damaged it does not go on there; what is around it is read."""
    for within in (BODY, HEADER, LENGTH, CRC, ENTRY_ID, PUBLISH_TIME):
        reports: list[Damage] = []
        ledger = opened(site, reports)
        other = opened(site, reports)
        start = send(ledger, b"good")
        last = send(ledger, b"bad")
        flip(ledger, last, within)
        position = send(other, b"after")
        assert (position.ledger_id > last.ledger_id) == (within not in (BODY, HEADER))
        assert values(other, start) == [b"good", b"after"]
        assert reports
        ledger.close()
        other.close()


def test_a_ghost_in_the_place_of_an_entry(site: LedgerSite):
    """A frame that verifies but does not chain to the one before it was never acknowledged there."""
    reports: list[Damage] = []
    ledger = opened(site, reports)
    first = send(ledger, b"first")
    second = send(ledger, b"second")
    send(ledger, b"third")
    # The same frame as a writer would have built it behind another predecessor.
    path = log_path(ledger.directory, first.ledger_id)
    at = offset_of(ledger, second)
    content = bytearray(Path(path).read_bytes())
    old = read_header(content, at, len(content))
    header, _ = seal(
        old.length,
        old.prev_crc ^ 1,
        old.body_crc,
        old.kind,
        old.codec,
        old.flags,
        old.entry_id,
        old.publish_time,
        old.message_count,
        old.metadata_length,
    )
    overwrite(path, at, header[:HEADER_SIZE])
    assert values(ledger) == [b"first", b"third"]
    assert "does not follow" in reports[0].reason


def test_an_entry_whose_body_makes_no_sense(site: LedgerSite):
    """Right checksums over a body of the wrong shape, as some program might write it: skipped."""
    reports: list[Damage] = []
    ledger = opened(site, reports)
    send(ledger, b"first")
    good = encode_single(b"second", 0, PREFIX)
    part = bytearray(b"".join(good.parts))
    part[good.metadata_length + 4 : good.metadata_length + 8] = (1 << 30).to_bytes(4, "little")
    ledger.append(good._replace(parts=[bytes(part)], body_crc=crc32(part)))
    send(ledger, b"third")
    assert values(ledger) == [b"first", b"third"]
    assert [report.first_entry for report in reports] == [1]


@pytest.mark.parametrize("state", ["removed", "zeroed", "header", "shifted"])
def test_a_damaged_index_is_derived_again(site: LedgerSite, state: str):
    """An index is never needed: it is rebuilt from the frames, and appending goes on."""
    reports: list[Damage] = []
    ledger = opened(site, reports)
    sent = [send(ledger, b"%d" % n) for n in range(30)]
    ledger.close()
    path = index_path(ledger.directory, sent[0].ledger_id)
    content = Path(path).read_bytes()
    if state == "removed":
        os.unlink(path)
    elif state == "zeroed":
        overwrite(path, 4096, bytes(30 * 24))
    elif state == "header":
        overwrite(path, 0, b"nonsense")
    else:
        overwrite(path, 4096 + 24, content[4096 : 4096 + 29 * 24])
    ledger = opened(site, reports)
    assert values(ledger, sent[20]) == [b"%d" % n for n in range(20, 30)]
    assert ledger.messages_after(sent[9]) == 20
    assert kinds.INDEX in {report.kind for report in reports}
    after = send(ledger, b"after")
    assert values(ledger, sent[29]) == [b"29", b"after"]
    assert values(ledger) == [b"%d" % n for n in range(30)] + [b"after"]
    assert ledger.messages_after(sent[9]) == 21
    assert after.ledger_id > sent[0].ledger_id  # others may still have the old index mapped
    assert Path(path).read_bytes()[4096 : 4096 + 30 * 24] == content[4096 : 4096 + 30 * 24]


def test_reading_by_place_stops_at_damage(site: LedgerSite):
    """What comes before is given; `read` goes on behind it. A wrong slot is no damage to an entry."""
    reports: list[Damage] = []
    ledger = opened(site, reports)
    sent = [send(ledger, b"%d" % n) for n in range(30)]
    ledger_id = sent[0].ledger_id
    flip(ledger, sent[7], BODY)
    cursor = ledger.cursor(START, inclusive=True)
    assert [one.entry_id for one in cursor.read_spans(ledger_id, [(2, 3), (6, 9)], EVERYTHING)] == [2, 3, 6]
    assert cursor.read_spans(ledger_id, [(7, 9)], EVERYTHING) == [] == reports
    assert cursor.position == sent[7]
    assert [one.entry_id for one in cursor.read(2, 2, EVERYTHING)] == [8, 9]
    assert [report.first_entry for report in reports] == [7]
    overwrite(index_path(ledger.directory, ledger_id), 4096 + 24 * 20, bytes(24))
    assert cursor.read_spans(ledger_id, [(20, 20)], EVERYTHING) == []
    assert [one.entry_id for one in cursor.read_spans(ledger_id, [(20, 20)], EVERYTHING)] == [20]
    assert [report.kind for report in reports] == [kinds.HOLE, kinds.INDEX]


@pytest.mark.parametrize("at", [12, 16, 18])
def test_a_sealed_block_of_slots_is_believed_while_it_is_intact(site: LedgerSite, at: int):
    """The key hash of a slot is in no frame header: the checksum of its block is compared."""
    ledger = site.open()
    first, *_ = [send(ledger, b"x") for _ in range(1100)]
    assert ledger.upcoming(first, 1, EVERYTHING) is not None
    ledger.close()
    overwrite(index_path(ledger.directory, first.ledger_id), 4096 + 24 * 5 + at, b"\x77")
    ledger = site.open()
    assert ledger.upcoming(first, 1, EVERYTHING) is None
    assert ledger.upcoming(Position(first.ledger_id, 1030), 10, EVERYTHING) is not None


@pytest.mark.parametrize("victim", ["log", "both"])
def test_a_lost_segment(site: LedgerSite, victim: str):
    """A missing file in the middle is reported with what was in it; the ledgers around it are read."""
    reports: list[Damage] = []
    ledger = opened(site, reports, max_entries=3)
    sent = [send(ledger, b"%d" % n) for n in range(12)]
    lost = sent[4].ledger_id
    ledger.close()
    os.unlink(log_path(ledger.directory, lost))
    if victim == "both":
        os.unlink(index_path(ledger.directory, lost))
    ledger = opened(site, reports)
    assert values(ledger) == [b"%d" % n for n in (0, 1, 2, 6, 7, 8, 9, 10, 11)]
    assert values(ledger, sent[4]) == [b"%d" % n for n in range(6, 12)]
    (report,) = reports
    assert report.kind == kinds.MISSING_SEGMENT
    assert (report.ledger_id, report.first_entry, report.last_entry) == (lost, 0, 2)
    assert ledger.messages_after(sent[5]) == 6
    assert ledger.find_by_publish_time(0) == sent[0]


@pytest.mark.parametrize("victim", [1, 4, 10])
def test_a_segment_with_an_unreadable_header(site: LedgerSite, victim: int):
    """Both copies of a header gone: it is derived, and told once; nothing is lost. One copy is enough."""
    reports: list[Damage] = []
    ledger = opened(site, reports, max_entries=3)
    sent = [send(ledger, b"%d" % n) for n in range(12)]
    ledger.close()
    overwrite(log_path(ledger.directory, sent[victim].ledger_id), 0, bytes(1024))
    ledger = opened(site, reports)
    assert values(ledger) == [b"%d" % n for n in range(12)]
    assert [report.kind for report in reports] == [kinds.SEGMENT_HEADER]
    assert (reports[0].first_entry, reports[0].last_entry) == (0, -1)
    assert ledger.messages_after(sent[2]) == 9 and ledger.last_position() == sent[11]
    assert ledger.find_by_publish_time(0) == sent[0]
    assert (send(ledger, b"more").ledger_id > sent[-1].ledger_id) == (victim == 10)
    assert values(ledger, sent[victim]) == [b"%d" % n for n in range(victim, 12)] + [b"more"]
    ledger.close()
    overwrite(log_path(ledger.directory, sent[6].ledger_id), 0, b"broken first copy")
    ledger = opened(site, reports)
    assert values(ledger) == [b"%d" % n for n in range(12)] + [b"more"]


@pytest.mark.parametrize("victim", [1, 4, 10])
def test_a_segment_of_which_nothing_tells(site: LedgerSite, victim: int):
    """Header, first frame and index gone: the ledger is skipped, its neighbours are found all the same."""
    reports: list[Damage] = []
    ledger = opened(site, reports, max_entries=3)
    sent = [send(ledger, b"%d" % n) for n in range(12)]
    lost = sent[victim].ledger_id
    ledger.close()
    overwrite(log_path(ledger.directory, lost), 0, b"\xee" * 4140)
    os.unlink(index_path(ledger.directory, lost))
    ledger = opened(site, reports)
    left = [b"%d" % n for n in range(12) if sent[n].ledger_id != lost]
    assert values(ledger) == left
    assert reports[0].kind == kinds.SEGMENT_HEADER and "put " in reports[0].reason
    assert ledger.segments() and ledger.statistics().ledgers == 4
    assert ledger.last_position() == (sent[8] if victim == 10 else sent[11])
    assert ledger.messages_after(START) >= 9 and ledger.entries_between(START, sent[8]) >= 6
    assert send(ledger, b"more").ledger_id >= lost
    assert values(ledger) == [*left, b"more"]


@pytest.mark.parametrize("is_recovered", [False, True])
@pytest.mark.parametrize("field", [0, 4, 12, 16, 24])
def test_frames_in_a_payload_stay_in_it(site: LedgerSite, field: int, is_recovered: bool):
    """A damaged header and a lost index do not let a copied segment out, nor frames made up for it."""
    reports: list[Damage] = []
    ledger = opened(site, reports)
    sent = [send(ledger, b"before %d" % n) for n in range(5)]
    path = log_path(ledger.directory, sent[0].ledger_id)
    copied = Path(path).read_bytes()[: offset_of(ledger, sent[4]) + 112]
    later, crc = b"", 7
    for entry in range(6, 60):
        one, crc = framed(
            encode_single(b"never sent", 0, PREFIX),
            entry_id=entry,
            prev_crc=crc,
            publish_ms=ledger.statistics().last_publish_ms,
        )
        later += one
    hit = send(ledger, copied + later)
    expected = [b"before %d" % n for n in range(5)] + [b"behind %d" % n for n in range(5)]
    for n in range(5):
        send(ledger, b"behind %d" % n)
    flip(ledger, hit, field)
    ledger.close()
    os.unlink(index_path(ledger.directory, hit.ledger_id))
    if is_recovered:
        pretend_reboot(ledger.directory)
    ledger = opened(site, reports)
    assert values(ledger) == expected
    assert values(ledger, hit) == expected[5:]
    ledger.close()
    with_arrow = [info.entries for info in committed_segments(ledger.directory)]
    assert with_arrow == [11]


def test_a_tail_segment_that_is_gone(site: LedgerSite):
    """Even then appending goes on, in a new ledger."""
    reports: list[Damage] = []
    ledger = opened(site, reports, max_entries=3)
    sent = [send(ledger, b"%d" % n) for n in range(5)]
    ledger.close()
    for path in (
        log_path(ledger.directory, sent[-1].ledger_id),
        index_path(ledger.directory, sent[-1].ledger_id),
    ):
        os.unlink(path)
    ledger = opened(site, reports)
    assert send(ledger, b"new").ledger_id > sent[-1].ledger_id
    assert values(ledger) == [b"0", b"1", b"2", b"new"]
    assert reports


def test_damaged_control_words_end_in_no_loop(site: LedgerSite):
    """A tail that does not exist, before the trim point: there is nothing to read, and that is reported."""
    reports: list[Damage] = []
    ledger = opened(site, reports)
    first = send(ledger, b"x")
    ledger.words[TopicWord.TAIL] = tail_word(1 << 31, 8192)
    ledger.words[TopicWord.TRIM] = 1 << 60
    assert values(ledger) == [] and values(ledger, first) == []
    assert ledger.last_position() is None and ledger.messages_after(first) == 0
    assert {report.kind for report in reports} == {kinds.MISSING_SEGMENT}


def test_a_cut_file(site: LedgerSite):
    """A closed segment that was made shorter loses its end, not the process that reads it."""
    reports: list[Damage] = []
    ledger = opened(site, reports, max_entries=6)
    sent = [send(ledger, b"x" * 2000 + b"%d" % n) for n in range(12)]
    at = offset_of(ledger, sent[3])
    ledger.close()
    SEGMENTS.drop(ledger._control.home)
    os.truncate(log_path(ledger.directory, sent[0].ledger_id), at + 10)
    ledger = opened(site, reports)
    found = [int(value[2000:]) for value in values(ledger)]
    assert found == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    assert (reports[0].first_entry, reports[0].last_entry) == (3, 5)


def test_damage_is_logged_when_nobody_asks(site: LedgerSite, caplog: pytest.LogCaptureFixture):
    """Without a hook the package's logger tells."""
    ledger = site.open()
    position = send(ledger, b"x")
    send(ledger, b"y")
    flip(ledger, position, BODY)
    assert [entry.value(0) for entry in drain(ledger.cursor(START, inclusive=True))] == [b"y"]
    assert "hole, entries 0 to 0 of ledger" in caplog.text
