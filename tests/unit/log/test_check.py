"""The auditor: silent about what is in order, exact about what is not, and it changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import damage
from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format.control import KIND_TOPIC, journal_word, tail_word
from embeddedpulsar._engine.format.frame import SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar._engine.format.journal_record import JournalHeader, pack_journal_header, pack_record
from embeddedpulsar._engine.log import log_check
from embeddedpulsar._engine.log.log_check import check_topic
from tests.log_builder import LogBuilder, boot_id, files


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """Two ledgers, the second being the tail, under control words of this boot."""
    log = LogBuilder(tmp_path / "topic")
    one = log.ledger(3, 8)
    two = log.ledger(5, 6, previous=one)
    log.control(boot_id(), tail=log.tail_of(two), trim=3).close()
    return log


def kinds(log: LogBuilder) -> list[str]:
    """What a check finds, having made sure that it changes nothing."""
    before = {name: Path(log.directory, name).read_bytes() for name in files(log.directory)}
    report = check_topic(log.directory)
    assert before == {name: Path(log.directory, name).read_bytes() for name in files(log.directory)}
    assert report.is_clean == (not report.problems)
    assert all(str(problem) for problem in report.problems)
    return [problem.kind for problem in report.problems]


def test_a_log_in_order(log: LogBuilder):
    """Nothing to say but how much there is."""
    assert check_topic(log.directory) == log_check.CheckReport([], 2, 14, 14, False)


def test_an_empty_directory(tmp_path: Path):
    """A topic nobody wrote to; and no topic at all."""
    assert check_topic(str(tmp_path)) == log_check.CheckReport([], is_unclean=True)
    with pytest.raises(FileNotFoundError):
        check_topic(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("at", "kind"),
    [
        (3, damage.HOLE),
        (20, damage.HOLE),
        (60, damage.HOLE),
        (-3, log_check.TRAILER),
        (-7, log_check.TRAILER),
    ],
)
@pytest.mark.parametrize("which", [0, 3, 5])
def test_damage_to_a_frame(log: LogBuilder, at: int, kind: str, which: int):
    """Header, body or trailer of any frame, the last of the tail included."""
    ledger = log.ledgers[5]
    ends = [*ledger.offsets[1:], ledger.end]
    log.flip(ledger, (ledger.offsets[which] if at > 0 else ends[which]) + at)
    expected = damage.LOST_TAIL if kind == damage.HOLE and which == 5 else kind
    assert kinds(log) == [expected]


SPOILS: list[tuple[str, Callable[[LogBuilder], object], set[str]]] = [
    ("tail beyond the log", lambda log: log.control(boot_id(), tail=tail_word(5, 32768)), {damage.LOST_TAIL}),
    (
        "tail in nothing",
        lambda log: log.control(boot_id(), tail=tail_word(9, 8192)),
        {damage.MISSING_SEGMENT},
    ),
    ("segment gone", lambda log: os.unlink(log_path(log.directory, 3)), {damage.MISSING_SEGMENT}),
    ("index gone", lambda log: os.unlink(index_path(log.directory, 3)), {damage.INDEX}),
    ("header of a segment", lambda log: log.patch(log.ledgers[3], 0, bytes(700)), {damage.SEGMENT_HEADER}),
    ("end of a closed ledger", lambda log: log.flip(log.ledgers[3], log.ledgers[3].end - 60), {damage.HOLE}),
    ("cut", lambda log: os.truncate(log_path(log.directory, 3), 4500), {damage.HOLE}),
]


@pytest.mark.parametrize(("name", "spoil", "expected"), SPOILS)
def test_other_damage(log: LogBuilder, name: str, spoil: Callable[[LogBuilder], object], expected: set[str]):
    """Each kind under its own name."""
    spoil(log)
    assert set(kinds(log)) == expected


def test_an_index_that_does_not_fit(log: LogBuilder):
    """One slot; the header; the index of another ledger."""
    path = Path(index_path(log.directory, 3))
    right = path.read_bytes()
    at = SLOTS_OFFSET + 2 * SLOT_SIZE + 8
    for wrong in (
        right[:at] + b"\x55" + right[at + 1 :],
        b"x" + right[1:],
        Path(index_path(log.directory, 5)).read_bytes(),
    ):
        path.write_bytes(wrong)
        assert kinds(log) == [damage.INDEX]


def test_links_are_compared(tmp_path: Path):
    """The next header disagrees with the ledger about its end."""
    log = LogBuilder(tmp_path / "topic")
    one = log.ledger(3, 8)
    one.crc ^= 1
    two = log.ledger(5, 6, previous=one)
    log.control(boot_id(), tail=log.tail_of(two)).close()
    assert kinds(log) == [log_check.LINK]


def test_an_unclean_topic_is_checked_as_recovery_would_see_it(log: LogBuilder):
    """Words of another boot are not used, and that is not a problem by itself."""
    log.control(tail=tail_word(77, 8)).close()
    report = check_topic(log.directory)
    assert (report.is_unclean, report.problems, report.frames) == (True, [], 14)


def test_a_damaged_control_file(log: LogBuilder):
    """It is named, and everything else is checked all the same."""
    with open(os.path.join(log.directory, "ctl"), "r+b") as file:
        file.write(b"\0")
    report = check_topic(log.directory)
    assert [problem.kind for problem in report.problems] == [log_check.CONTROL]
    assert report.frames == 14


def test_journals_are_followed(log: LogBuilder):
    """Up to the commit word, every record must chain."""
    header = pack_journal_header(JournalHeader(1, 7, 0, KIND_TOPIC))
    one, crc = pack_record(1, b"one", 7, 0)
    two, _ = pack_record(1, b"two", crc, 0)
    path = Path(log.directory, "journal.1")
    path.write_bytes(header + one + two)
    whole = len(header + one + two)
    tail = log.tail_of(log.ledgers[5])
    log.control(boot_id(), tail=tail, journal=journal_word(1, whole)).close()
    assert kinds(log) == []
    path.write_bytes(header + one + two[:-8] + b"damage!!")
    assert kinds(log) == [log_check.JOURNAL]
    log.control(boot_id(), tail=tail, journal=journal_word(2, whole)).close()
    assert kinds(log) == [log_check.JOURNAL]
