"""Whole-column reads of damaged logs: an error by default, everything that is left on request."""

from __future__ import annotations

import logging
from zlib import crc32

import pytest

pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

from embeddedpulsar._engine.format.entry import EntryContent, ProducerPrefix, encode, encode_plain
from embeddedpulsar._engine.format.frame import read_header
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.exceptions import CorruptionError
from tests.support.log_files import LogFiles

PRODUCER = ProducerPrefix("p")
ENTRIES = 6


@pytest.fixture
def log(tmp_path) -> LogFiles:
    """Six batches of two, values "00" "01" "10" ... "51", in ledger 7."""
    log = LogFiles(tmp_path)
    for i in range(ENTRIES):
        log.append(encode_plain([b"%d0" % i, b"%d1" % i], 2 * i, PRODUCER), 1_000_000 + i)
    log.finish()
    return log


def damage(log: LogFiles, entry: int, offset: int) -> None:
    """Flip a bit `offset` bytes into the frame of an entry."""
    path = log.log_path(7)
    content = bytearray(path.read_bytes())
    content[log.written[entry][3] + offset] ^= 0x10
    path.write_bytes(content)


def values(log: LogFiles, **options) -> list[str]:
    """The values that can be read."""
    table = read_topic(log.directory.parent.parent, "t", ["value"], **options)
    return [value.decode() for value in table.column(0).to_pylist()]


def without(*entries: int) -> list[str]:
    """The values of all entries but these."""
    return [f"{i}{k}" for i in range(ENTRIES) if i not in entries for k in range(2)]


@pytest.mark.parametrize("entry", range(ENTRIES))
@pytest.mark.parametrize("offset", [0, 4, 9, 24, 44, 50, 100])
@pytest.mark.parametrize("indexed", [True, False])
def test_one_damaged_entry_is_left_out_alone(log, caplog, entry, offset, indexed):
    """A flipped bit anywhere in an entry costs that entry; the others are found, also without an index."""
    damage(log, entry, offset)
    if not indexed:
        log.index_path(7).unlink()
    with pytest.raises(CorruptionError, match=r"entr(y|ies) "):
        values(log)
    with caplog.at_level(logging.WARNING):
        assert values(log, fail_on_data_loss=False) == without(entry)
    assert f"entries {entry} to {entry} of ledger" in caplog.text


def test_the_error_names_file_place_and_remedy(log):
    """Path, offset, the entries lost and what to do stand in the text."""
    damage(log, 2, 60)
    with pytest.raises(CorruptionError) as caught:
        values(log)
    text = str(caught.value)
    assert str(log.log_path(7)) in text
    assert "entry 2: body checksum mismatch" in text
    assert "fail_on_data_loss=False" in text
    assert caught.value.offset == log.written[2][3]


def test_two_neighbours(log):
    """A hole of several entries is one report."""
    damage(log, 2, 0)
    damage(log, 3, 0)
    with pytest.raises(CorruptionError, match="entries 2 to 3"):
        values(log)
    assert values(log, fail_on_data_loss=False) == without(2, 3)


def test_a_frame_inside_a_payload_is_not_taken_for_an_entry(tmp_path):
    """When reading resumes after damage, a copy of a segment in a payload does not come to life."""
    inner = LogFiles(tmp_path / "inner")
    for i in range(4):
        inner.append(encode_plain([b"ghost%d" % i] * 2, 0, PRODUCER), 1_000_000)
    inner.finish()
    _, _, _, at, length = inner.written[0]
    copied = inner.log_path(7).read_bytes()[at : at + 4 * length]
    assert read_header(copied, 0, len(copied)).entry_id == 0
    log = LogFiles(tmp_path / "outer")
    log.append(encode_plain([copied], 0, PRODUCER), 1_000_000)
    log.append(encode_plain([b"last"], 1, PRODUCER), 1_000_000)
    log.finish()
    damage(log, 0, 0)
    assert values(log, fail_on_data_loss=False) == ["last"]


@pytest.mark.parametrize("offset", [0, 4, 12, 16, 24])
def test_frames_in_a_payload_that_would_fit_are_not_taken_either(tmp_path, offset):
    """Entry ids that go on, times that do, a chain: without an index the rest of the header decides."""
    inner = LogFiles(tmp_path / "inner")
    for i in range(40):
        inner.append(encode_plain([b"ghost%d" % i] * 2, 0, PRODUCER), 1_000_000)
    inner.finish()
    start, length = inner.written[2][3], inner.written[-1][3] + inner.written[-1][4] - inner.written[2][3]
    copied = inner.log_path(7).read_bytes()[start : start + length]
    assert read_header(copied, 0, len(copied)).entry_id == 2
    log = LogFiles(tmp_path / "outer")
    log.append(encode_plain([b"first"], 0, PRODUCER), 1_000_000)
    log.append(encode_plain([copied], 1, PRODUCER), 1_000_000)
    for i in range(3):
        log.append(encode_plain([b"behind%d" % i], 2 + i, PRODUCER), 1_000_000)
    log.finish()
    log.index_path(7).unlink()
    damage(log, 1, offset)
    assert values(log, fail_on_data_loss=False) == ["first", "behind0", "behind1", "behind2"]


@pytest.mark.parametrize("ruined", [4096, 4140])
def test_a_segment_without_a_header(log, caplog, ruined):
    """Derived from the first frame, it is read as ever; without that and an index, it is left out."""
    path = log.log_path(7)
    path.write_bytes(b"\xee" * ruined + path.read_bytes()[ruined:])
    log.index_path(7).unlink()
    if ruined == 4096:
        assert values(log) == without()
        return
    with pytest.raises(CorruptionError, match="fail_on_data_loss=False") as failure:
        values(log)
    assert str(path) in str(failure.value)
    with caplog.at_level(logging.WARNING):
        assert values(log, fail_on_data_loss=False) == []
    assert "segment header" in caplog.text and str(path) in caplog.text


def test_a_shortened_file_is_refused_before_it_is_touched(log):
    """A segment that ends before its committed end would kill the process if it were mapped and read."""
    content = log.log_path(7).read_bytes()
    log.log_path(7).write_bytes(content[: log.written[3][3]])
    with pytest.raises(CorruptionError, match=r"were committed|was cut"):
        values(log, fail_on_data_loss=False)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(("slot", "number"), [(0, 4), (-1, 1 << 30), (-1, -8), (1, 1 << 20)])
def test_sane_checksums_around_wild_offsets(tmp_path, count, keyed, slot, number):
    """Offsets that lead out of the entry, under a right checksum, are refused; nothing outside is read."""
    entry = encode(EntryContent([b"abcd"] * count, keys=["k"] * count if keyed else None), PRODUCER)
    body = bytearray(b"".join(entry.parts))
    offsets = [entry.metadata_length + 4 * i for i in range(count + 1)]
    body[offsets[slot] : offsets[slot] + 4] = number.to_bytes(4, "little", signed=True)
    entry = entry._replace(parts=[bytes(body)], body_crc=crc32(body))
    log = LogFiles(tmp_path)
    log.append(entry, 1_000_000)
    log.finish()
    if count == 1 and slot == 0:
        return  # the first offset of a single value is not looked at: it says nothing
    with pytest.raises(CorruptionError) as caught:
        values(log, fail_on_data_loss=False)
    assert str(log.log_path(7)) in str(caught.value)
