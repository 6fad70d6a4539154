"""The read-only listing of committed segments, against files written byte by byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_plain, encode_single
from embeddedpulsar._engine.log.segment_snapshot import (
    SegmentInfo,
    committed_segments,
    is_trimmed_behind,
    topic_incarnation,
)
from embeddedpulsar.exceptions import CorruptionError
from tests.support.log_files import LogFiles

BASE = 1_000_000
PRODUCER = ProducerPrefix("p")


def two_ledgers(root: Path) -> LogFiles:
    """Ledger 7 with a batch of three and a single message, ledger 9 with a single message."""
    log = LogFiles(root)
    log.append(encode_plain([b"a", b"b", b"c"], 0, PRODUCER), BASE)
    log.append(encode_single(b"d", 3, PRODUCER), BASE + 5)
    log.roll()
    log.append(encode_single(b"e", 4, PRODUCER), BASE + 9)
    return log


def facts(segments: list[SegmentInfo]) -> list[tuple[int, int, int, int, int]]:
    """(ledger, entries, messages, base, last publish time) of each segment."""
    return [(s.ledger_id, s.entries, s.messages, s.base_publish_ms, s.last_publish_ms) for s in segments]


BOTH = [(7, 2, 4, BASE, BASE + 5), (9, 1, 1, BASE + 5, BASE + 9)]


def test_segments_with_their_ends(tmp_path):
    """Each segment with its entries, messages and times; ends are those that were committed."""
    log = two_ledgers(tmp_path)
    log.finish()
    segments = committed_segments(str(log.directory))
    assert facts(segments) == BOTH
    ends = {ledger: at + length for ledger, _entry, _ms, at, length in log.written}
    assert [s.end_offset for s in segments] == [ends[7], ends[9]]
    assert topic_incarnation(str(log.directory)) == 3


def test_a_stray_segment_does_not_exist(tmp_path):
    """A file above the tail's ledger was never committed."""
    log = two_ledgers(tmp_path)
    log.finish()
    shutil.copy(log.log_path(9), log.log_path(11))
    assert facts(committed_segments(str(log.directory))) == BOTH


def test_a_ledger_without_entries(tmp_path):
    """A ledger that was just begun is listed with nothing in it."""
    log = two_ledgers(tmp_path)
    log.roll()
    log.finish()
    last = committed_segments(str(log.directory))[-1]
    assert (last.ledger_id, last.entries, last.messages) == (11, 0, 0)


@pytest.mark.parametrize("kind", ["another boot", "a copy", "a damaged ctl", "no ctl"])
def test_words_of_another_life_are_not_believed(tmp_path, kind):
    """After a reboot, in a copy, or without an intact ctl the end is derived from the frames."""
    log = two_ledgers(tmp_path)
    log.finish(boot=b"other boot......" if kind == "another boot" else None)
    ctl = log.directory / "ctl"
    if kind == "a copy":
        content = ctl.read_bytes()
        (tmp_path / "keeps-the-inode").hardlink_to(ctl)
        ctl.unlink()
        ctl.write_bytes(content)
    elif kind == "a damaged ctl":
        content = bytearray(ctl.read_bytes())
        content[50] ^= 1
        ctl.write_bytes(content)
    elif kind == "no ctl":
        ctl.unlink()
    assert facts(committed_segments(str(log.directory))) == BOTH


def test_a_stray_segment_after_a_reboot(tmp_path):
    """A last ledger without a single frame is passed over when the end is derived."""
    log = two_ledgers(tmp_path)
    log.roll()
    log.finish(boot=b"other boot......")
    content = bytearray(log.log_path(11).read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    log.log_path(11).write_bytes(content)
    assert facts(committed_segments(str(log.directory))) == BOTH


@pytest.mark.parametrize("damage", ["no index", "wrong slot", "damaged last frame"])
def test_the_last_segment_is_counted_by_hand_when_it_must(tmp_path, damage):
    """Without a slot that agrees with the last frame, entries and messages come from the frames."""
    log = two_ledgers(tmp_path)
    log.append(encode_plain([b"f", b"g"], 5, PRODUCER), BASE + 20)
    log.finish()
    if damage == "no index":
        log.index_path(9).unlink()
    elif damage == "wrong slot":
        content = bytearray(log.index_path(9).read_bytes())
        content[4096 + 24 + 20] ^= 1
        log.index_path(9).write_bytes(content)
    else:
        at = log.written[-1][3]
        content = bytearray(log.log_path(9).read_bytes())
        content[at + 8] ^= 1
        log.log_path(9).write_bytes(content)
    last = committed_segments(str(log.directory))[-1]
    if damage == "damaged last frame":
        assert (last.entries, last.messages) == (1, 1)
    else:
        assert (last.entries, last.messages, last.last_publish_ms) == (2, 3, BASE + 20)


def test_the_trim_point_is_obeyed(tmp_path):
    """Ledgers below it are gone, whether their files are there or not."""
    log = two_ledgers(tmp_path)
    log.finish(trim=9)
    assert facts(committed_segments(str(log.directory))) == BOTH[1:]


def test_a_missing_segment_is_damage(tmp_path):
    """A ledger that was not trimmed must have its file."""
    log = two_ledgers(tmp_path)
    log.finish(trim=7)
    log.log_path(7).unlink()
    with pytest.raises(CorruptionError, match="ledger 7 is gone"):
        committed_segments(str(log.directory))


def test_nothing_was_ever_published(tmp_path):
    """A directory without a ledger has no segments; a directory that is not there is an error."""
    (tmp_path / "t").mkdir()
    assert committed_segments(str(tmp_path / "t")) == []
    assert topic_incarnation(str(tmp_path / "t")) == 0
    with pytest.raises(FileNotFoundError):
        committed_segments(str(tmp_path / "nothing"))


def test_what_was_trimmed_behind_a_place(tmp_path):
    """The oldest segment says where the one before it ended: a place at that end lost nothing."""
    log = two_ledgers(tmp_path)
    log.finish()
    first, second = committed_segments(str(log.directory))
    assert not is_trimmed_behind((0, 0), second)  # before everything, and no ledger that went
    assert not is_trimmed_behind((7, 0), first)
    # Entry 1 is the last of ledger 7, of which the place names the first that was not read.
    assert is_trimmed_behind((7, 0), second) and is_trimmed_behind((7, 1), second)
    assert not is_trimmed_behind((7, 2), second)
    log.log_path(9).unlink()
    assert is_trimmed_behind((7, 2), second)  # nothing tells any more
