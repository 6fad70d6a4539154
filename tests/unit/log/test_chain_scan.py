"""Scanning a log: windows, long frames, holes, ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format.frame import SLOT_SIZE
from embeddedpulsar._engine.log import chain_scan
from embeddedpulsar._engine.log.chain_scan import ChainScan, LogWindow, scan_log
from tests.log_builder import FIRST_FRAME_OFFSET, Ledger, LogBuilder, ghost


def scan(log: LogBuilder, ledger: Ledger, **how: int) -> ChainScan:
    """Scan a ledger as recovery does."""
    header = ledger.header
    path = log_path(log.directory, header.ledger_id)
    return scan_log(path, chain_seed=header.chain_seed, base_publish_ms=header.base_publish_ms, **how)


def test_slots_are_those_of_the_writer(log: LogBuilder):
    """The derived index is the index, byte for byte."""
    ledger = log.ledger(1, 30)
    found = scan(log, ledger)
    assert bytes(found.slots) == bytes(ledger.slots)
    assert (found.end_offset, found.last_entry_id, found.last_crc) == (ledger.end, 29, ledger.crc)
    assert (found.messages, found.frames, found.holes) == (30, 30, [])


@pytest.mark.parametrize("window", [64, 100, 256, 4096])
def test_small_windows_see_the_same(log: LogBuilder, monkeypatch: pytest.MonkeyPatch, window: int):
    """Frames longer than the window, headers across its end, damage anywhere."""
    ledger = log.ledger(1, 3)
    for size in (5000, 10, 300, 9000, 10, 10, 2000):
        log.append(ledger, os.urandom(size))
    log.write(ledger)
    monkeypatch.setattr(chain_scan, "WINDOW", window)
    assert scan(log, ledger).end_offset == ledger.end
    for which in range(1, len(ledger.offsets) - 1):
        for at in (0, 20, 70):
            log.write(ledger)
            log.flip(ledger, ledger.offsets[which] + at)
            found = scan(log, ledger)
            assert found.end_offset == ledger.end
            assert [(h.first_entry_id, h.last_entry_id) for h in found.holes] == [(which, which)]


def test_without_index_numbers_decide(log: LogBuilder):
    """A page with later frames in the place of an earlier one: the longer sequence is kept."""
    ledger = log.ledger(1, 200, size=100)
    data = bytes(ledger.data)
    log.patch(ledger, 8192, data[20480:24576])
    os.unlink(index_path(log.directory, 1))
    found = scan(log, ledger)
    assert found.last_entry_id == 199
    lost = sum(hole.last_entry_id - hole.first_entry_id + 1 for hole in found.holes)
    hit = [
        o
        for o, e in zip(ledger.offsets, [*ledger.offsets[1:], ledger.end], strict=True)
        if o < 12288 and e > 8192
    ]
    assert lost == len(hit)


def test_a_frame_elsewhere_than_the_index_has_it_is_not_taken(log: LogBuilder):
    """The same with the index: what lies in the wrong place is not even considered."""
    ledger = log.ledger(1, 200, size=100)
    log.patch(ledger, 8192, bytes(ledger.data)[12288:16384])
    found = scan(log, ledger)
    assert [hole.offset < 12288 and hole.end_offset > 8192 for hole in found.holes] == [True]


def test_a_closed_ledger_ends_where_it_ends(log: LogBuilder):
    """Frames behind the end do not exist; entries that should be before it and are not are a hole."""
    ledger = log.ledger(1, 5)
    log.patch(ledger, ledger.end, ghost(ledger))
    assert scan(log, ledger).last_entry_id == 5
    assert scan(log, ledger, end=ledger.end, last_entry_id=4).last_entry_id == 4
    os.truncate(log_path(log.directory, 1), ledger.offsets[2] + 10)
    found = scan(log, ledger, end=ledger.end, last_entry_id=4)
    assert [hole[:4] for hole in found.holes] == [(ledger.offsets[2], ledger.end, 2, 4)]
    assert len(found.slots) == 5 * SLOT_SIZE


def test_trailers_are_looked_at(log: LogBuilder):
    """A frame whose end mark is damaged is accepted, and noted."""
    ledger = log.ledger(1, 5)
    log.flip(ledger, ledger.offsets[3] - 2)
    found = scan(log, ledger)
    assert found.last_entry_id == 4
    assert found.bad_trailers == [(ledger.offsets[3] - 8, ledger.offsets[3] - ledger.offsets[2])]


def test_windows_of_a_file(tmp_path: Path):
    """Short reads, the end of the file, holes, closing twice."""
    path = tmp_path / "file"
    path.write_bytes(b"abcdefgh" * 100)
    os.truncate(path, 1 << 20)
    window = LogWindow(str(path))
    data, at = window.at(8, 16)
    assert bytes(data[at : at + 16]) == b"abcdefgh" * 2
    data, at = window.at((1 << 20) - 8, 64)
    assert len(data) - at == 8
    assert window.next_data(0) == 0
    assert window.next_data(1 << 20) == -1
    window.close()
    window.close()
    assert FIRST_FRAME_OFFSET == 4096
