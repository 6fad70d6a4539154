"""Headers that are derived because both copies are damaged, and those that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.log.segment import (
    Closing,
    Segment,
    find_segment_header,
    is_never_written,
    read_segment_header,
)
from embeddedpulsar._engine.log.segment_index import SegmentIndex
from embeddedpulsar._engine.log.trimming import remove_strays
from embeddedpulsar.exceptions import CorruptionError
from tests.log_builder import LOG_SIZE, Ledger, LogBuilder, files

GARBAGE = b"\xee" * 1024
DERIVED = "ledger_id", "base_publish_ms", "chain_seed", "log_size", "prev_ledger_id", "prev_end_offset"
DERIVED += "prev_last_entry_id", "prev_last_crc", "prev_messages"


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """Three ledgers."""
    made = LogBuilder(tmp_path / "topic")
    first = made.ledger(3, 4)
    second = made.ledger(5, 6, previous=first)
    made.ledger(9, 5, previous=second)
    return made


def facts(header: object) -> list[object]:
    """What of a header can be derived."""
    return [getattr(header, name) for name in DERIVED]


@pytest.mark.parametrize("index", ["intact", "header damaged", "gone"])
@pytest.mark.parametrize("page", [GARBAGE, bytes(1024), b"\xee" * 4096])
@pytest.mark.parametrize("ledger_id", [3, 5, 9])
def test_it_is_derived(log: LogBuilder, ledger_id: int, page: bytes, index: str):
    """From the first frame, the index and the ledger before: the same as was written, and it is told."""
    ledger = log.ledgers[ledger_id]
    log.patch(ledger, 0, page)
    if index == "gone":
        os.unlink(index_path(log.directory, ledger_id))
    elif index == "header damaged":
        with open(index_path(log.directory, ledger_id), "r+b") as file:
            file.write(bytes(100))
    found = find_segment_header(log.directory, ledger_id)
    assert facts(found.header) == facts(ledger.header)
    assert find_segment_header(log.directory, ledger_id) == found
    report = found.report("x.log")
    assert "derived" in str(report) and "good copy" in str(report) and "no entries of" in str(report)
    with pytest.raises(CorruptionError):
        read_segment_header(log.directory, ledger_id)
    with pytest.raises(CorruptionError, match="; put "):
        Segment.open(log.directory, ledger_id, writable=True)  # nothing is appended behind damage
    segment = Segment.open(log.directory, ledger_id)
    assert segment.header == found.header
    segment.close()


def test_the_ledger_before_is_damaged_as_well(log: LogBuilder):
    """A whole row of damaged headers: each is derived from its own frames and those of the one before."""
    for ledger in log.ledgers.values():
        log.patch(ledger, 0, GARBAGE)
    for ledger_id, ledger in log.ledgers.items():
        assert facts(find_segment_header(log.directory, ledger_id).header) == facts(ledger.header)


def test_the_first_frame_is_damaged_as_well(log: LogBuilder):
    """The index vouches for one of the next frames; without it nothing does; the error says what to do."""
    ledger = log.ledgers[5]
    log.patch(ledger, 0, b"\xee" * 4140)
    found = find_segment_header(log.directory, 5).header
    assert found.base_publish_ms == ledger.header.base_publish_ms
    assert found.prev_end_offset == ledger.header.prev_end_offset
    os.unlink(index_path(log.directory, 5))
    with pytest.raises(CorruptionError) as failure:
        find_segment_header(log.directory, 5)
    assert failure.value.path == log_path(log.directory, 5)
    assert "damaged" in failure.value.reason and "copy" in failure.value.remedy


def test_frames_of_another_place_vouch_for_nothing(log: LogBuilder):
    """Behind the header lie good frames, but not the first ones."""
    ledger = log.ledgers[5]
    os.unlink(index_path(log.directory, 5))
    log.patch(ledger, 0, GARBAGE)
    log.patch(ledger, 4096, bytes(ledger.data[ledger.offsets[2] :]))
    with pytest.raises(CorruptionError):
        find_segment_header(log.directory, 5)


def test_the_header_of_another_ledger_is_no_damage(log: LogBuilder):
    """A file under a wrong name keeps its own header: nothing of it is taken."""
    os.replace(log_path(log.directory, 3), log_path(log.directory, 5))
    with pytest.raises(CorruptionError, match="its own name"):
        find_segment_header(log.directory, 5)


def test_strays_and_what_only_looks_like_them(log: LogBuilder):
    """Above the tail, segments without content or with an intact header are strays; damaged ones are kept."""
    log.ledger(11, 0, previous=log.ledgers[9])
    log.ledger(12, 3)
    log.patch(log.ledgers[12], 0, bytes(4200))
    blank = Path(log_path(log.directory, 13))
    blank.write_bytes(bytes(LOG_SIZE))
    assert is_never_written(str(blank)) and not is_never_written(log_path(log.directory, 12))
    kept = [name for name in files(log.directory) if "11" not in name and "13" not in name]
    Path(f"{index_path(log.directory, 3)}.new").write_bytes(b"half an index")
    assert remove_strays(log.directory, 9) == 4
    assert files(log.directory) == kept


def test_a_short_file(log: LogBuilder):
    """Cut within its header page: nothing to derive it from."""
    os.truncate(log_path(log.directory, 5), 700)
    with pytest.raises(CorruptionError, match="neither its first frame"):
        find_segment_header(log.directory, 5)


def test_a_lost_ledger_before(log: LogBuilder):
    """Where the ledger before tells nothing, the link to it is all there is."""
    first: Ledger = log.ledgers[3]
    log.patch(first, 0, b"\xee" * (first.end))
    os.unlink(index_path(log.directory, 3))
    log.patch(log.ledgers[5], 0, GARBAGE)
    header = find_segment_header(log.directory, 5).header
    assert (header.prev_ledger_id, header.prev_end_offset, header.prev_last_entry_id) == (3, 0, -1)


@pytest.mark.parametrize("kind", [SegmentIndex, Closing])
def test_an_interrupted_constructor_leaves_nothing_to_close(kind):
    """The finalizer runs all the same."""
    kind.__new__(kind).__del__()
