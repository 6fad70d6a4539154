"""Payloads that hold frames: behind damage, and without an index, they are never taken for entries."""

from __future__ import annotations

import os

import pytest

from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.format.frame import FIRST_FRAME_OFFSET, pack_trailer
from embeddedpulsar._engine.log.chain_scan import ChainScan, scan_log
from tests.frames import framed
from tests.log_builder import PREFIX, Ledger, LogBuilder

HEADER = {"length": 0, "crc": 4, "prev_crc": 8, "body_crc": 12, "magic": 16, "entry_id": 24}
PLANTED = "planted", "later", "earlier", "whole segment", "other topic", "with a trailer"


def frames_of(first: int, count: int, publish_ms: int, prev_crc: int = 0x1234) -> bytes:
    """A chain of frames that nobody published."""
    found = b""
    for entry in range(first, first + count):
        one, prev_crc = framed(
            encode_single(b"never published %d" % entry, entry, PREFIX),
            entry_id=entry,
            prev_crc=prev_crc,
            publish_ms=publish_ms,
        )
        found += one
    return found


def aligned(planted: bytes) -> bytes:
    """A payload that puts `planted` at a multiple of 8 in the log: values of one message start at one."""
    return planted + b" is what the payload holds"


def planted_payload(ledger: Ledger, kind: str) -> bytes:
    """What the next entry of the ledger could hold to be mistaken for the entries behind it."""
    now = ledger.header.base_publish_ms + len(ledger.offsets)
    following = len(ledger.offsets) + 1
    if kind == "later":
        return aligned(frames_of(following, 40, now))
    if kind == "planted":
        return aligned(frames_of(following + 3, 7, now, ledger.crc))
    if kind == "earlier":
        return aligned(bytes(ledger.data[FIRST_FRAME_OFFSET:]))
    if kind == "whole segment":
        return aligned(bytes(ledger.data) + frames_of(following, 40, now) + bytes(4096))
    if kind == "other topic":
        return aligned(bytes(ledger.data[:4096]) + frames_of(0, 60, now))
    # Before the frames, a trailer that says that the enclosing frame ended there: 48 header, 40 metadata,
    # 8 offsets.
    return aligned(pack_trailer(48 + 40 + 8 + 8) + frames_of(following, 40, now))


def built(log: LogBuilder, kind: str, before: int = 5, behind: int = 20) -> Ledger:
    """A ledger whose entry number `before` holds planted frames; its index is lost."""
    ledger = log.ledger(1, before)
    log.append(ledger, planted_payload(ledger, kind))
    for number in range(behind):
        log.append(ledger, b"behind %d" % number)
    log.write(ledger)
    os.unlink(index_path(log.directory, 1))
    return ledger


def scan(log: LogBuilder, ledger: Ledger, end: int | None) -> ChainScan:
    """Scan as recovery does (without an end) or as readers do (with it)."""
    header = ledger.header
    path = log_path(log.directory, header.ledger_id)
    return scan_log(path, chain_seed=header.chain_seed, base_publish_ms=header.base_publish_ms, end=end)


def taken(found: ChainScan) -> list[tuple[int, int]]:
    """(offset, entry) of every frame that was taken for one of the log."""
    offsets = [
        int.from_bytes(found.slots[at : at + 4], "little") << 3 for at in range(0, len(found.slots), 24)
    ]
    crcs = [int.from_bytes(found.slots[at + 20 : at + 24], "little") for at in range(0, len(found.slots), 24)]
    return [(offset, entry) for entry, (offset, crc) in enumerate(zip(offsets, crcs, strict=True)) if crc]


def published(ledger: Ledger, *lost: int) -> list[tuple[int, int]]:
    """The same of what was published, without the entries that were hit."""
    return [(offset, entry) for entry, offset in enumerate(ledger.offsets) if entry not in lost]


@pytest.mark.parametrize("is_end_known", [True, False])
@pytest.mark.parametrize("field", HEADER)
@pytest.mark.parametrize("kind", PLANTED)
def test_a_damaged_header_lets_no_payload_out(log: LogBuilder, kind: str, field: str, is_end_known: bool):
    """Any field of the enclosing header damaged: its entry is lost, and every other one is there."""
    ledger = built(log, kind)
    log.flip(ledger, ledger.offsets[5] + HEADER[field])
    found = scan(log, ledger, ledger.end if is_end_known else None)
    assert taken(found) == published(ledger, 5)
    assert [(hole.first_entry_id, hole.last_entry_id) for hole in found.holes] == [(5, 5)]


@pytest.mark.parametrize("is_end_known", [True, False])
@pytest.mark.parametrize("kind", PLANTED)
def test_a_whole_header_gone(log: LogBuilder, kind: str, is_end_known: bool):
    """Nothing of the header is left to name the frame behind: the trailer and the end do."""
    ledger = built(log, kind)
    log.patch(ledger, ledger.offsets[5], bytes(48))
    assert taken(scan(log, ledger, ledger.end if is_end_known else None)) == published(ledger, 5)


@pytest.mark.parametrize("is_end_known", [True, False])
@pytest.mark.parametrize("kind", PLANTED[:-1])
def test_at_the_end_of_the_log(log: LogBuilder, kind: str, is_end_known: bool):
    """The last entry holds the frames: nothing follows it, and nothing in it is an end."""
    ledger = built(log, kind, behind=0)
    log.patch(ledger, ledger.offsets[5], bytes(48))
    found = scan(log, ledger, ledger.end if is_end_known else None)
    assert taken(found) == published(ledger, 5)
    assert found.last_entry_id == 4


@pytest.mark.parametrize("is_end_known", [True, False])
@pytest.mark.parametrize("kind", PLANTED)
def test_neighbours_damaged_too(log: LogBuilder, kind: str, is_end_known: bool):
    """Bodies before and behind, whose headers tell where they end; and a header further on."""
    ledger = built(log, kind)
    log.flip(ledger, ledger.offsets[4] + 100)
    log.flip(ledger, ledger.offsets[5] + HEADER["length"])
    log.flip(ledger, ledger.offsets[6] + 100)
    log.flip(ledger, ledger.offsets[12] + HEADER["magic"])
    found = scan(log, ledger, ledger.end if is_end_known else None)
    assert taken(found) == published(ledger, 4, 5, 6, 12)


def test_the_body_of_an_intact_header_is_not_searched(log: LogBuilder):
    """Two entries in a row with damaged bodies: planted frames of the second are inside of a known frame."""
    ledger = log.ledger(1, 5)
    log.append(ledger, planted_payload(ledger, "later"))
    log.append(ledger, planted_payload(ledger, "later"))
    log.append(ledger, b"last")
    log.write(ledger)
    os.unlink(index_path(log.directory, 1))
    for entry in (5, 6):
        log.flip(ledger, ledger.offsets[entry + 1] - 20)
    assert taken(scan(log, ledger, None)) == published(ledger, 5, 6)


def test_a_lost_page_and_then_more(log: LogBuilder):
    """Between a lost page and a damaged header stand frames that only the run behind them can vouch for."""
    ledger = log.ledger(1, 150, size=60)
    os.unlink(index_path(log.directory, 1))
    log.patch(ledger, 8192, b"\xee" * 4096)
    log.flip(ledger, ledger.offsets[100] + HEADER["length"])
    size = ledger.offsets[1] - ledger.offsets[0]
    hit = [entry for entry, at in enumerate(ledger.offsets) if at < 12288 and at + size > 8192]
    assert taken(scan(log, ledger, None)) == published(ledger, 100, *hit)


def test_what_nothing_speaks_for_is_not_taken(log: LogBuilder):
    """Behind a lost page, frames that fit by number and time, and garbage behind them: only an end helps."""
    ledger = log.ledger(1, 150, size=60)
    os.unlink(index_path(log.directory, 1))
    log.patch(ledger, 8192, b"\xee" * 4096)
    log.patch(ledger, ledger.end, b"what a dead writer left ")
    found = scan(log, ledger, None)
    assert found.end_offset <= 8192 and not found.holes
    known = scan_log(
        log_path(log.directory, 1),
        chain_seed=ledger.header.chain_seed,
        base_publish_ms=ledger.header.base_publish_ms,
        end=ledger.end,
        last_entry_id=149,
    )
    assert known.last_entry_id == 149 and len(known.holes) == 1
