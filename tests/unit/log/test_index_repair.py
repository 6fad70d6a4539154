"""Whether an index fits its segment, and writing a new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import index_path
from embeddedpulsar._engine.format.frame import (
    BLOCK_CRC,
    SLOT_SIZE,
    SLOTS_OFFSET,
    block_crc,
    block_crc_offset,
    block_range,
    is_block_sealed_and_intact,
)
from embeddedpulsar._engine.log.segment_index import SegmentIndex, index_fits, write_index
from embeddedpulsar._engine.log.segments import Link
from tests.log_builder import LogBuilder


@pytest.fixture
def closed(tmp_path: Path) -> tuple[LogBuilder, Link]:
    """A ledger of 1,030 entries (one full block and some) that another one follows."""
    log = LogBuilder(tmp_path / "topic")
    ledger = log.ledger(1, 0)
    ledger.header = ledger.header._replace(index_capacity=2048)
    for number in range(1030):
        log.append(ledger, b"%d" % number)
    log.write(ledger)
    link = Link(ledger.header, ledger.end, 1029, ledger.crc, 1030)
    write_index(log.directory, ledger.header, bytes(ledger.slots))
    return log, link


def test_what_is_written_fits(closed: tuple[LogBuilder, Link]):
    """By its blocks and order alone, and byte for byte; full blocks are sealed."""
    log, link = closed
    slots = bytes(log.ledgers[1].slots)
    assert index_fits(log.directory, link)
    assert index_fits(log.directory, link, slots)
    assert not index_fits(log.directory, link, slots[:-1] + b"\x55")
    index = SegmentIndex.open(log.directory, 1, writable=False)
    assert is_block_sealed_and_intact(index.data, 0)
    assert not is_block_sealed_and_intact(index.data, 1)
    assert index.capacity == 2048
    index.close()


def spoiled(log: LogBuilder, offset: int, data: bytes) -> None:
    """Overwrite bytes of the index."""
    path = Path(index_path(log.directory, 1))
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (0, b"x"),
        (SLOTS_OFFSET + 5 * SLOT_SIZE, b"\xff"),
        (block_crc_offset(0), bytes(4)),
        (SLOTS_OFFSET + 1029 * SLOT_SIZE + 20, b"\xff\xff"),
        (SLOTS_OFFSET + 1027 * SLOT_SIZE, bytes(24)),
        (SLOTS_OFFSET + 1027 * SLOT_SIZE + 8, b"\0\0"),
    ],
)
def test_damage_is_noticed(closed: tuple[LogBuilder, Link], offset: int, data: bytes):
    """Header, sealed block, missing seal, last slot, open slots out of order."""
    log, link = closed
    spoiled(log, offset, data)
    assert not index_fits(log.directory, link)


def test_files_that_are_missing_or_short(closed: tuple[LogBuilder, Link]):
    """Both are rebuilt, never mapped."""
    log, link = closed
    path = Path(index_path(log.directory, 1))
    data = path.read_bytes()
    path.write_bytes(data[:9000])
    assert not index_fits(log.directory, link)
    assert not index_fits(log.directory, link, bytes(log.ledgers[1].slots))
    path.write_bytes(data[:-4096])
    assert not index_fits(log.directory, link)
    path.unlink()
    assert not index_fits(log.directory, link)
    assert index_fits(log.directory, link) is False


def test_an_empty_ledger_needs_no_slots(tmp_path: Path):
    """Its index fits if it has a header."""
    log = LogBuilder(tmp_path / "topic")
    ledger = log.ledger(1, 0)
    assert index_fits(log.directory, Link(ledger.header, ledger.end, -1, ledger.crc, 0))


def test_a_right_seal_is_believed(closed: tuple[LogBuilder, Link]):
    """Slots were right when their block was sealed; whoever uses one compares it with its frame anyway."""
    log, link = closed
    spoiled(log, SLOTS_OFFSET + 5 * SLOT_SIZE, b"\xff")
    data = Path(index_path(log.directory, 1)).read_bytes()
    start, end = block_range(0)
    spoiled(log, block_crc_offset(0), BLOCK_CRC.pack(block_crc(data[start:end])))
    assert index_fits(log.directory, link)
