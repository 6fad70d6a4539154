"""Recovery: the end of the log from its frames, whatever the words say."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from embeddedpulsar import damage
from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format.control import TopicWord, split_tail, tail_word
from embeddedpulsar._engine.format.frame import SLOT_SIZE, SLOTS_OFFSET, read_slot
from embeddedpulsar._engine.log.recovery import RecoveredTail, recover_topic
from embeddedpulsar._engine.log.topic_control import DELETED, MUST_ROLL, TERMINATED, TopicControl
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.failpoints import InjectedFailure
from embeddedpulsar.exceptions import CorruptionError
from tests.log_builder import FIRST_FRAME_OFFSET, LogBuilder, boot_id, files, ghost
from tests.support.disks.fake_disk import FakeDisk

NOW = b"this boot's id.."


def recover(log: LogBuilder, control: TopicControl | None = None, **words: int) -> RecoveredTail:
    """Recover, and check what holds after every recovery."""
    control = control or log.control(**words)
    seen: list[damage.Damage] = []
    tail = recover_topic(log.directory, control, incarnation=1, boot_id=NOW, report=seen.append)
    assert seen == tail.damaged
    assert control.is_trusted(NOW)
    assert (
        control.words[TopicWord.TAIL]
        == control.words[TopicWord.SYNCED]
        == tail_word(tail.ledger_id, tail.end_offset)
    )
    assert control.words[TopicWord.STATE] & MUST_ROLL or not tail.ledger_id
    control.close()
    return tail


def kinds(tail: RecoveredTail) -> list[str]:
    """What was reported."""
    return [report.kind for report in tail.damaged]


def test_a_topic_without_ledgers(log: LogBuilder):
    """Nothing to find, nothing to report, and no demand for a new ledger."""
    assert recover(log) == RecoveredTail(0, 0, -1, 0, 0, [])


def test_a_clean_log_is_accepted_whole(log: LogBuilder):
    """Tail word right, nothing damaged: the same tail, and no report."""
    one = log.ledger(3, 5)
    two = log.ledger(5, 7, previous=one)
    tail = recover(log, tail=log.tail_of(two))
    assert tail[:6] == (5, two.end, 6, two.crc, 7, [])
    assert (tail.first_ledger_id, tail.highest_ledger_id) == (3, 5)


@pytest.mark.parametrize(
    "word", [0, tail_word(5, FIRST_FRAME_OFFSET), tail_word(5, 1 << 20), tail_word(9, 8192), 2**64 - 1]
)
def test_the_tail_word_is_never_believed(log: LogBuilder, word: int):
    """Behind, before or nonsense: the frames decide. What the word promised beyond them is reported."""
    ledger = log.ledger(5, 7)
    tail = recover(log, tail=word)
    assert tail[:5] == (5, ledger.end, 6, ledger.crc, 7)
    assert kinds(tail) == ([damage.LOST_TAIL] if word > log.tail_of(ledger) else [])


@pytest.mark.parametrize("cut", [1, 8, 40, 48, 60, 100])
def test_a_torn_last_frame_is_not_accepted(log: LogBuilder, cut: int):
    """Any part of a frame behind the last whole one is garbage."""
    ledger = log.ledger(1, 4)
    log.patch(ledger, ledger.end, ghost(ledger)[:cut])
    assert recover(log)[:3] == (1, ledger.end, 3)


def test_whole_frames_behind_the_tail_are_accepted(log: LogBuilder):
    """The disk got the frames and not the word: they were written by an append, so they stay."""
    ledger = log.ledger(1, 4)
    log.append(ledger, b"more")
    log.write(ledger)
    assert recover(log, tail=tail_word(1, ledger.offsets[-1]))[:3] == (1, ledger.end, 4)


def test_bytes_of_another_chain_are_not_accepted(log: LogBuilder):
    """A frame that verifies but names another predecessor is not ours, nor is what follows it."""
    ledger, other = log.ledger(1, 4), log.ledger(2, 4)
    foreign = bytes(other.data[other.offsets[1] :])
    os.unlink(log_path(log.directory, 2))
    os.unlink(index_path(log.directory, 2))
    log.patch(ledger, ledger.end, foreign)
    assert recover(log)[:3] == (1, ledger.end, 3)


@pytest.mark.parametrize("which", [0, 1, 5, 8])
@pytest.mark.parametrize("at", [0, 4, 9, 13, 17, 25, 33, 41, 45, 50, 70, 90])
def test_damage_in_the_middle_is_stepped_over(log: LogBuilder, which: int, at: int):
    """One byte of one frame: that entry is reported lost, all others stay, with their ids."""
    ledger = log.ledger(1, 10)
    log.flip(ledger, ledger.offsets[which] + at)
    tail = recover(log)
    assert tail[:4] == (1, ledger.end, 9, ledger.crc)
    hole = tail.damaged[0]
    assert (hole.kind, hole.first_entry, hole.last_entry) == (damage.HOLE, which, which)
    assert (hole.offset, hole.end_offset) == (ledger.offsets[which], ledger.offsets[which + 1])
    index = Path(index_path(log.directory, 1)).read_bytes()
    assert read_slot(index, which).crc == 0
    assert [read_slot(index, i).crc != 0 for i in range(10)].count(False) == 1
    deltas = [read_slot(index, i).publish_delta_ms for i in range(10)]
    assert deltas == sorted(deltas)


def test_damage_to_the_last_frame_ends_the_log(log: LogBuilder):
    """Nothing behind it can be found: the log ends before it. The word tells that something was there."""
    ledger = log.ledger(1, 4)
    log.flip(ledger, ledger.offsets[3] + 60)
    tail = recover(log, tail=log.tail_of(ledger))
    assert tail[:3] == (1, ledger.offsets[3], 2)
    assert kinds(tail)[0] == damage.LOST_TAIL


def test_a_lost_page_is_a_hole_of_several_entries(log: LogBuilder):
    """Zeros over some frames: the entries between are counted by their ids."""
    ledger = log.ledger(1, 20)
    log.patch(ledger, ledger.offsets[4], bytes(ledger.offsets[9] - ledger.offsets[4] + 10))
    tail = recover(log)
    assert tail[:3] == (1, ledger.end, 19)
    assert tail.damaged[0][2:4] == (4, 9)
    assert tail.messages == 14


def test_frames_inside_a_payload_are_not_taken_for_the_log(log: LogBuilder, tmp_path: Path):
    """A payload that is a copy of this very segment, its own frame damaged in every possible place."""
    ledger = log.ledger(1, 6)
    copy = bytes(ledger.data[FIRST_FRAME_OFFSET:])
    log.append(ledger, bytes(-(ledger.end + 48 + 40 + 8) % 8) + copy)  # aligned as frames are
    log.append(ledger, b"after")
    log.append(ledger, b"the end")
    log.write(ledger)
    for at in (0, 5, 13, 20, 30, 50, 100):
        log.write(ledger)
        log.flip(ledger, ledger.offsets[6] + at)
        tail = recover(log)
        assert tail[:3] == (1, ledger.end, 8)
        assert tail.damaged[0][2:4] == (6, 6)


def test_the_end_of_a_closed_ledger_is_what_the_next_header_says(log: LogBuilder):
    """A ghost behind it, whole and chaining, stays dead."""
    one = log.ledger(1, 4)
    log.ledger(2, 3, previous=one)
    log.patch(one, one.end, ghost(one))
    tail = recover(log)
    assert tail[:3] == (2, log.ledgers[2].end, 2)
    assert not tail.damaged


def test_a_closed_ledger_that_lost_its_end(log: LogBuilder):
    """The next header says how many entries there were: the missing ones are a hole at the end."""
    one = log.ledger(1, 6)
    log.ledger(2, 3, previous=one)
    log.patch(one, one.offsets[4], bytes(one.end - one.offsets[4]))
    tail = recover(log)
    assert tail[:3] == (2, log.ledgers[2].end, 2)
    assert tail.damaged[0][1:6] == (1, 4, 5, one.offsets[4], one.end)


def test_a_stray_of_a_roll_that_died_is_removed(log: LogBuilder):
    """The newest segment has no frames, and the ledger before it went on: it was never the tail."""
    one = log.ledger(1, 4)
    log.ledger(2, 0, previous=one)
    log.append(one, b"went on")
    log.write(one)
    tail = recover(log)
    assert tail[:3] == (1, one.end, 4)
    assert not tail.damaged
    assert files(log.directory) == ["00000000000000000001.idx", "00000000000000000001.log", "ctl"]


def test_a_stray_beside_the_log_is_removed(log: LogBuilder):
    """Two segments follow the same ledger: the newest is linked, the other one is a stray."""
    one = log.ledger(1, 4)
    log.ledger(2, 0, previous=one)
    log.append(one, b"went on")
    log.write(one)
    three = log.ledger(3, 2, previous=one)
    assert recover(log)[:3] == (3, three.end, 1)
    assert "00000000000000000002.log" not in files(log.directory)


def test_an_empty_newest_ledger_is_kept(log: LogBuilder):
    """Switched to and not yet written, or its frames were lost: nothing is appended to the one before."""
    one = log.ledger(1, 4)
    log.ledger(2, 0, previous=one)
    assert recover(log)[:3] == (2, FIRST_FRAME_OFFSET, -1)


def test_an_unfinished_newest_segment_is_no_ledger(log: LogBuilder):
    """Its header never reached the disk."""
    one = log.ledger(1, 4)
    log.ledger(2, 0, previous=one)
    log.patch(log.ledgers[2], 0, bytes(4096))
    tail = recover(log)
    assert tail[:3] == (1, one.end, 3)
    assert tail.highest_ledger_id == 2, "its id is spent all the same"


def test_a_segment_without_header_is_stepped_over(log: LogBuilder):
    """Both copies destroyed: that ledger is reported, those around it stay."""
    one = log.ledger(1, 4)
    two = log.ledger(2, 4, previous=one)
    three = log.ledger(3, 4, previous=two)
    log.patch(two, 0, bytes(1024))
    tail = recover(log)
    assert tail[:3] == (3, three.end, 3)
    assert damage.SEGMENT_HEADER in kinds(tail)
    assert tail.first_ledger_id == 1


def test_a_missing_segment_is_reported(log: LogBuilder):
    """A gap between segments that are there; not so below the first, which was trimmed."""
    one = log.ledger(1, 4)
    two = log.ledger(2, 4, previous=one)
    log.ledger(3, 4, previous=two)
    os.unlink(log_path(log.directory, 2))
    tail = recover(log)
    assert [report[1:4] for report in tail.damaged if report.kind == damage.MISSING_SEGMENT] == [(2, 0, 3)]
    os.unlink(log_path(log.directory, 1))
    assert damage.MISSING_SEGMENT not in kinds(recover(log, trim=3))
    assert damage.MISSING_SEGMENT in kinds(recover(log, trim=2))


def test_the_trim_point_is_the_first_ledger_there_is(log: LogBuilder):
    """A wrong word must not give away ledgers; what an unlink did not reach on the disk is back."""
    one = log.ledger(1, 4)
    log.ledger(2, 4, previous=one)
    for trim in (0, 1, 2, 99):
        control = log.control(trim=trim)
        recover_topic(log.directory, control, incarnation=1, boot_id=NOW)
        assert control.words[TopicWord.TRIM] == 1
        control.close()


def test_indexes_are_derived_again(log: LogBuilder):
    """Gone, cut, zeroed or wrong in one slot: the same bytes come back, and nothing else is touched."""
    one = log.ledger(1, 40)
    log.ledger(2, 30, previous=one)
    path = Path(index_path(log.directory, 1))
    right = path.read_bytes()

    def spoil(data: bytes) -> None:
        path.write_bytes(data)
        tail = recover(log)
        assert damage.INDEX in kinds(tail)
        assert path.read_bytes() == right

    spoil(right[:5000])
    spoil(bytes(len(right)))
    spoil(right[: SLOTS_OFFSET + 5 * SLOT_SIZE] + bytes(SLOT_SIZE) + right[SLOTS_OFFSET + 6 * SLOT_SIZE :])
    path.unlink()
    assert damage.INDEX in kinds(recover(log))
    assert path.read_bytes() == right
    assert not recover(log).damaged


def test_recovery_twice_changes_nothing(log: LogBuilder):
    """The second run finds what the first one found."""
    ledger = log.ledger(1, 30)
    log.flip(ledger, ledger.offsets[7] + 3)
    first = recover(log)
    before = {name: Path(log.directory, name).read_bytes() for name in files(log.directory) if name != "ctl"}
    second = recover(log)
    assert first[:5] == second[:5]
    assert before == {name: Path(log.directory, name).read_bytes() for name in before}


def test_a_damaged_control_file(log: LogBuilder):
    """Header destroyed: everything is derived, no word is believed."""
    ledger = log.ledger(1, 5)
    control = log.control(boot=NOW, tail=5, trim=99, synced=77, state=2**63, recoveries=2**64 - 1)
    control.view[:64] = bytes(64)
    control.reload()
    assert not control.is_trusted(NOW)
    tail = recover(log, control)
    assert tail[:3] == (1, ledger.end, 4)
    assert not tail.damaged


def test_a_copied_directory(log: LogBuilder, tmp_path: Path):
    """The ctl of the copy was written on another inode: it is recovered, in the very same boot."""
    ledger = log.ledger(1, 5)
    control = log.control(boot=boot_id(), tail=log.tail_of(ledger))
    assert control.is_trusted(boot_id())
    control.close()
    copy = tmp_path / "copy"
    shutil.copytree(log.directory, copy)
    with open(log_path(str(copy), 1), "r+b") as file:
        file.truncate(ledger.offsets[3] + 50)  # the copy was made while the file grew
    copied = TopicControl.open(str(copy))
    assert not copied.is_trusted(boot_id())
    tail = recover_topic(str(copy), copied, incarnation=1, boot_id=boot_id())
    assert tail[:3] == (1, ledger.offsets[3], 2)
    assert copied.is_trusted(boot_id())
    copied.close()


def test_no_state_bit_survives(log: LogBuilder):
    """A terminated topic is terminated again by its journal, which has checksums."""
    log.ledger(1, 1)
    control = log.control(state=TERMINATED | DELETED | 1 << 40)
    recover_topic(log.directory, control, incarnation=1, boot_id=NOW)
    assert control.words[TopicWord.STATE] == MUST_ROLL
    control.close()


def test_headers_that_contradict_each_other(log: LogBuilder):
    """A ledger that claims to follow a later one cannot be part of any log."""
    one = log.ledger(9, 1)
    log.ledger(3, 1, previous=one)
    os.unlink(log_path(log.directory, 9))
    with pytest.raises(CorruptionError, match="ids rise"):
        recover(log)


@pytest.mark.parametrize("point", [name for name in failpoints.names() if name.startswith("recover:")])
def test_a_recovery_that_dies_is_repeated(log: LogBuilder, point: str):
    """Interrupted at any step, the next one has the same result."""
    one = log.ledger(1, 20)
    log.ledger(2, 0, previous=one)
    log.append(one, b"went on")
    log.write(one)
    log.flip(one, one.offsets[7] + 3)
    Path(index_path(log.directory, 1)).unlink()
    control = log.control()
    failpoints.set(point, "raise")
    with pytest.raises(InjectedFailure):
        recover_topic(log.directory, control, incarnation=1, boot_id=NOW)
    failpoints.clear()
    control.close()
    again = TopicControl.open(log.directory)
    assert again.is_trusted(NOW) == (point == "recover:adopted")
    tail = recover_topic(log.directory, again, incarnation=1, boot_id=NOW)
    assert tail[:3] == (1, one.end, 20)
    assert [report[2:4] for report in tail.damaged if report.kind == damage.HOLE] == [(7, 7)]
    again.close()


def test_what_is_accepted_is_flushed_first(tmp_path: Path):
    """Logs, rebuilt indexes and names are durable before the words are stored."""
    (tmp_path / "topic").mkdir()
    with disk.use(FakeDisk(tmp_path)) as fake:
        assert isinstance(fake, FakeDisk)
        log = LogBuilder(tmp_path / "topic")
        one = log.ledger(1, 20)
        two = log.ledger(2, 10, previous=one)
        Path(index_path(log.directory, 1)).unlink()
        control = log.control()
        assert not fake.is_durable(log_path(log.directory, 2))

        def look() -> None:
            assert not split_tail(control.words[TopicWord.TAIL])[0]
            for ledger in (1, 2):
                assert fake.is_durable(log_path(log.directory, ledger))
            assert fake.is_durable(index_path(log.directory, 1))

        failpoints.set("recover:synced", look)
        tail = recover_topic(log.directory, control, incarnation=1, boot_id=NOW)
        failpoints.clear()
        assert tail[:2] == (2, two.end)
        control.close()


def test_old_ledgers_are_not_scanned(log: LogBuilder, monkeypatch: pytest.MonkeyPatch):
    """Ledgers before the synced one are left to their readers, if their index is in order."""
    from embeddedpulsar._engine.log import recovery

    scanned: list[str] = []
    real = recovery.scan_log
    monkeypatch.setattr(
        recovery, "scan_log", lambda path, **how: (scanned.append(path), real(path, **how))[1]
    )
    one = log.ledger(1, 5)
    two = log.ledger(2, 5, previous=one)
    three = log.ledger(3, 5, previous=two)
    recover(log, synced=tail_word(2, 4096), tail=log.tail_of(three))
    assert {os.path.basename(path)[19] for path in scanned} == {"3", "2"}
    scanned.clear()
    with open(index_path(log.directory, 1), "r+b") as file:
        file.seek(SLOTS_OFFSET + 2 * SLOT_SIZE)
        file.write(bytes(SLOT_SIZE))
    recover(log, synced=tail_word(2, 4096), tail=log.tail_of(three))
    assert {os.path.basename(path)[19] for path in scanned} == {"3", "2", "1"}
