"""Clearing what a dead writer left behind the tail."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import log_path
from embeddedpulsar._engine.log.segment import Segment, clear_unpublished
from embeddedpulsar._engine.platform import disk
from tests.log_builder import LOG_SIZE, LogBuilder, ghost
from tests.support.disks.fake_disk import FakeDisk


def test_a_whole_frame_goes_for_good(tmp_path: Path):
    """Zeroed and flushed; the rest of the file is not touched."""
    log = LogBuilder(tmp_path / "topic")
    ledger = log.ledger(1, 3)
    log.patch(ledger, ledger.end, ghost(ledger))
    with disk.use(FakeDisk(tmp_path)) as fake:
        assert isinstance(fake, FakeDisk)
        segment = Segment.open(log.directory, 1, writable=True)
        assert clear_unpublished(segment, ledger.end, LOG_SIZE, 64 << 10)
        assert fake.is_durable(log_path(log.directory, 1))
        assert not clear_unpublished(segment, ledger.end, LOG_SIZE, 64 << 10), "there is none any more"
        segment.close()
    data = Path(log_path(log.directory, 1)).read_bytes()
    assert data[: ledger.end] == bytes(ledger.data)
    assert not any(data[ledger.end : ledger.end + 48])


@pytest.mark.parametrize("part", [0, 10, 48, 60])
def test_torn_frames_cost_nothing(tmp_path: Path, part: int):
    """They never verify: no flush. A frame of which only the header is there does not verify either way."""
    log = LogBuilder(tmp_path / "topic")
    ledger = log.ledger(1, 3)
    log.patch(ledger, ledger.end, ghost(ledger)[:part])
    with disk.use(FakeDisk(tmp_path)) as fake:
        assert isinstance(fake, FakeDisk)
        segment = Segment.open(log.directory, 1, writable=True)
        assert clear_unpublished(segment, ledger.end, LOG_SIZE, 64 << 10) == (part >= 48)
        assert ("fdatasync" in [call for call, _ in fake.log]) == (part >= 48)
        segment.close()


def test_nothing_beyond_the_reserved_blocks_is_touched(tmp_path: Path):
    """No frame can be there, and a store there could kill the process."""
    log = LogBuilder(tmp_path / "topic")
    ledger = log.ledger(1, 3)
    log.patch(ledger, ledger.end, ghost(ledger))
    segment = Segment.open(log.directory, 1, writable=True)
    assert not clear_unpublished(segment, ledger.end, ledger.end + 40, 64 << 10)
    segment.close()
