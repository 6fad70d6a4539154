"""Appending to a journal and following it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import TopicWord, journal_word, split_journal
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar.exceptions import StorageFullError
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.journal_replica import Recorder, control_words, open_journal


def files(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_nothing_exists_before_create(tmp_path: Path) -> None:
    """A word of 0 means that there is no state."""
    journal, recorder = open_journal(tmp_path, control_words())
    assert not journal.exists
    assert not journal.catch_up()
    assert recorder.commands == []


def test_processes_see_each_others_commands_in_one_order(tmp_path: Path) -> None:
    """What one commits the other applies when it next looks; a look without news costs one word."""
    words = control_words()
    first, mine = open_journal(tmp_path, words)
    second, theirs = open_journal(tmp_path, words)
    first.create([(1, b"born")], 5)
    assert second.catch_up()
    second.append([(2, b"a"), (3, b"bcdefghij")], 6)
    assert first.catch_up()
    first.append([(2, b"")], 7)
    assert second.catch_up()
    assert not second.catch_up()
    assert mine.commands == theirs.commands
    assert mine.commands == [[1, b"born", 5], [2, b"a", 6], [3, b"bcdefghij", 6], [2, b"", 7]]
    assert theirs.resets == 1
    first.close()
    second.close()


def test_apply_replaces_replay_for_the_writer(tmp_path: Path) -> None:
    """A writer that holds the decoded command applies that, and gets its result back."""
    journal, recorder = open_journal(tmp_path, control_words())
    journal.create([], 0)
    assert journal.append([(1, b"x")], 0, apply=lambda: "effects") == "effects"
    assert recorder.commands == []
    journal.close()


def test_announce_comes_before_the_commit(tmp_path: Path) -> None:
    """Whoever watches without the lock is told no later than the commit."""
    words = control_words()
    journal, _ = open_journal(tmp_path, words)
    journal.create([], 0)
    before = words[TopicWord.JOURNAL]
    seen: list[int] = []
    journal.append([(1, b"x")], 0, announce=lambda: seen.append(words[TopicWord.JOURNAL]))
    assert seen == [before]
    assert words[TopicWord.JOURNAL] > before
    journal.close()


def test_bytes_of_a_dead_writer_are_overwritten(tmp_path: Path) -> None:
    """What stands behind the commit word is not read, and does not come back behind a shorter record."""
    words = control_words()
    journal, recorder = open_journal(tmp_path, words)
    journal.create([(1, b"born")], 0)
    word = words[TopicWord.JOURNAL]
    journal.append([(1, b"lost"), (1, b"lost too")], 0)
    journal.close()
    words[TopicWord.JOURNAL] = word
    survivor, recorder = open_journal(tmp_path, words)
    survivor.catch_up()
    assert recorder.payloads == [b"born"]
    survivor.append([(1, b"lost")], 0)
    survivor.close()
    recovered, recorder = open_journal(tmp_path, control_words())
    recovered.recover(0)
    assert recorder.payloads == [b"born", b"lost"]
    assert not recovered.damage
    recovered.close()


@pytest.mark.parametrize("point", ["journal:body_done", "journal:word_stored"])
def test_an_interrupted_append_leaves_the_replica_right(tmp_path: Path, point: str) -> None:
    """After an exception anywhere the same process goes on with what is committed."""
    words = control_words()
    journal, recorder = open_journal(tmp_path, words)
    journal.create([(1, b"born")], 0)
    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            journal.append([(1, b"x")], 0)
    finally:
        failpoints.clear()
    journal.catch_up()
    committed = [b"born", b"x"] if point == "journal:word_stored" else [b"born"]
    assert recorder.payloads == committed
    journal.append([(1, b"y")], 0)
    other, theirs = open_journal(tmp_path, words)
    other.catch_up()
    assert recorder.payloads == theirs.payloads == [*committed, b"y"]
    journal.close()
    other.close()


def test_an_interrupted_apply_throws_the_replica_away(tmp_path: Path) -> None:
    """A command that was applied by half is applied again, to a replica built anew."""
    journal, recorder = open_journal(tmp_path, control_words())
    journal.create([(1, b"born")], 0)

    def apply_half() -> None:
        recorder.commands.append([9, b"half", 0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        journal.append([(1, b"x")], 0, apply=apply_half)
    assert journal.catch_up()
    assert recorder.payloads == [b"born", b"x"]
    journal.close()


def test_compaction_starts_a_generation_and_keeps_the_one_before(tmp_path: Path) -> None:
    """A long journal is followed by a snapshot and a short one; others go over to it."""
    words = control_words()
    journal, recorder = open_journal(tmp_path, words, compact_bytes=400)
    other, theirs = open_journal(tmp_path, words)
    journal.create([(1, b"born")], 0)
    other.catch_up()
    for number in range(40):
        journal.append([(1, b"%d" % number)], 0)
    assert journal.generation > 2
    newest = journal.generation
    expected = [
        f"{kind}.{generation}" for kind in ("journal", "snapshot") for generation in (newest - 1, newest)
    ]
    assert files(tmp_path) == expected
    other.catch_up()
    assert theirs.commands == recorder.commands
    assert theirs.resets == 2
    other.append([(1, b"theirs")], 0)
    journal.catch_up()
    assert theirs.commands == recorder.commands
    journal.close()
    other.close()


def test_a_generation_grows_as_long_as_its_snapshot(tmp_path: Path) -> None:
    """The cost of compaction stays in proportion to what was appended since."""
    journal, _ = open_journal(tmp_path, control_words(), compact_bytes=1000)
    journal.create([], 0)
    for _ in range(200):
        journal.append([(1, bytes(100))], 0)
    assert journal.generation < 8
    journal.close()


def test_many_small_commands_are_compacted_too(tmp_path: Path) -> None:
    """What opening the state costs is bounded by their number, whoever wrote them."""
    words = control_words()
    journal, _ = open_journal(tmp_path, words)
    journal.create([(1, b"")], 0)
    for _ in range(6):
        journal, _ = open_journal(tmp_path, words)
        journal.catch_up()
        assert journal.generation == 1
        for _ in range(499):
            journal.append([(1, b"")], 0)
        journal.close()
    journal.catch_up()
    journal.append([(1, b"")] * 10, 0)
    assert journal.generation == 2
    journal.close()


def test_a_full_disk_commits_nothing(tmp_path: Path) -> None:
    """An append without room raises; the next one goes on where the last stood."""
    journal, recorder = open_journal(tmp_path, control_words())
    journal.create([(1, b"born")], 0)
    faulty = FaultyDisk()
    faulty.fail("pwrite_all", errno=errno.ENOSPC)
    with disk.use(faulty), pytest.raises(StorageFullError):
        journal.append([(1, b"x")], 0)
    assert not journal.catch_up()
    journal.append([(1, b"y")], 0)
    assert recorder.payloads == [b"born", b"y"]
    journal.close()


@pytest.mark.parametrize("call", ["create_exclusive", "fsync", "replace", "fsync_dir"])
def test_a_compaction_without_room_is_put_off(tmp_path: Path, call: str) -> None:
    """The append is committed all the same, and compaction is tried again when there is more."""
    words = control_words()
    journal, recorder = open_journal(tmp_path, words, compact_bytes=200)
    journal.create([], 0)
    full = FaultyDisk()
    full.fail(call, errno=errno.ENOSPC, times=1000)
    with disk.use(full):
        for number in range(20):
            journal.append([(1, b"%d" % number)], 0)
    tried = [name for name, _ in full.log].count(call)
    assert 1 < tried < 10
    assert journal.generation == 1
    for number in range(20, 30):
        journal.append([(1, b"%d" % number)], 0)
    assert journal.generation == 2
    survivor, theirs = open_journal(tmp_path, words)
    survivor.catch_up()
    assert theirs.payloads == recorder.payloads == [b"%d" % number for number in range(30)]
    journal.close()
    survivor.close()


def test_sync_flushes_once(tmp_path: Path) -> None:
    """Nothing new, no flush."""
    journal, _ = open_journal(tmp_path, control_words())
    journal.create([], 0)
    counting = FaultyDisk()
    with disk.use(counting):
        journal.sync()
        journal.sync()
        assert [call for call, _ in counting.log] == ["fdatasync"]
        journal.append([(1, b"x")], 0)
        journal.sync()
    assert [call for call, _ in counting.log].count("fdatasync") == 2
    journal.close()


def test_after_a_failed_flush_the_generation_is_left(tmp_path: Path) -> None:
    """A flush that failed is never tried again: the state moves to files that are flushed themselves."""
    words = control_words()
    journal, recorder = open_journal(tmp_path, words)
    journal.create([(1, b"born")], 0)
    faulty = FaultyDisk()
    faulty.fail("fdatasync")
    with disk.use(faulty), pytest.raises(OSError, match="error"):
        journal.sync()
    journal.append([(1, b"x")], 0)
    assert journal.generation == 2
    assert recorder.payloads == [b"born", b"x"]
    journal.close()


def test_remove_leaves_no_file_and_a_number_that_is_not_used_again(tmp_path: Path) -> None:
    """A state that is created anew never shares a generation with the old one, whoever still has that
    open.
    """
    words = control_words()
    journal, recorder = open_journal(tmp_path, words)
    other, theirs = open_journal(tmp_path, words)
    journal.create([(1, b"old")], 0)
    other.catch_up()
    journal.remove(0)
    assert not journal.exists
    assert files(tmp_path) == []
    assert recorder.commands == []
    journal.create([(1, b"new")], 0)
    other.catch_up()
    assert theirs.payloads == [b"new"]
    assert split_journal(words[TopicWord.JOURNAL])[0] == 2
    journal.close()
    other.close()


def test_whoever_finds_an_ended_journal_completes_the_removal(tmp_path: Path) -> None:
    """Removal is committed by its record, wherever the remover died after it."""
    words = control_words()
    journal, _ = open_journal(tmp_path, words)
    journal.create([(1, b"old")], 0)
    other, theirs = open_journal(tmp_path, words)
    other.catch_up()
    failpoints.set("journal:end_stored", "raise")
    with pytest.raises(failpoints.InjectedFailure):
        journal.remove(0)
    failpoints.clear()
    journal.close()
    assert other.exists
    assert other.catch_up()
    assert not other.exists
    assert theirs.commands == []
    assert files(tmp_path) == []


def test_preload_leaves_little_to_be_done_under_the_lock(tmp_path: Path) -> None:
    """What was committed by then is applied already; what is committed later is followed as always."""
    words = control_words()
    journal, _ = open_journal(tmp_path, words)
    journal.create([(1, b"born")], 0)
    other, theirs = open_journal(tmp_path, words)
    other.preload()
    assert theirs.payloads == [b"born"]
    assert not other.catch_up()
    journal.append([(2, b"a")], 0)
    assert other.catch_up()
    assert theirs.payloads == [b"born", b"a"]
    assert theirs.resets == 1
    journal.close()
    other.close()


@pytest.mark.parametrize("what", ["nothing", "compacted away", "ended", "damaged"])
def test_preload_changes_nothing_and_complains_of_nothing(tmp_path: Path, what: str) -> None:
    """Without the lock only `catch_up`, which follows under it, may find out what is the matter."""
    words = control_words()
    journal, _ = open_journal(tmp_path, words)
    other, theirs = open_journal(tmp_path, words)
    if what != "nothing":
        journal.create([(1, b"born"), (1, b"bread")], 0)
    if what == "compacted away":
        word = words[TopicWord.JOURNAL]
        journal.compact(0)
        journal.compact(0)
        now, words[TopicWord.JOURNAL] = words[TopicWord.JOURNAL], word
        other.preload()
        words[TopicWord.JOURNAL] = now
    elif what == "ended":
        failpoints.set("journal:end_stored", "raise")
        with pytest.raises(failpoints.InjectedFailure):
            journal.remove(0)
        failpoints.clear()
    elif what == "damaged":
        path = tmp_path / "journal.1"
        data = bytearray(path.read_bytes())
        data[-10] ^= 1
        path.write_bytes(data)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    other.preload()
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before
    assert other.damage == []
    other.catch_up()
    assert theirs.payloads == {"damaged": [b"born"], "compacted away": [b"born", b"bread"]}.get(what, [])
    assert len(other.damage) == (what == "damaged")
    journal.close()
    other.close()


def test_create_sweeps_what_a_dead_creator_left(tmp_path: Path) -> None:
    """A journal that was written and never committed does not stand in the way."""
    words = control_words()
    journal, _ = open_journal(tmp_path, words)
    failpoints.set("journal:created", "raise")
    with pytest.raises(failpoints.InjectedFailure):
        journal.create([(1, b"never")], 0)
    failpoints.clear()
    assert not journal.exists
    journal.create([(1, b"born")], 0)
    other, theirs = open_journal(tmp_path, words)
    other.catch_up()
    assert theirs.payloads == [b"born"]
    journal.close()
    other.close()


def test_what_others_build_beside_a_journal_stays(tmp_path: Path) -> None:
    """A new generation removes unfinished snapshots only: other files are built under other locks."""
    words = control_words()
    journal, _ = open_journal(tmp_path, words, compact_bytes=400)
    others = ["compacted.2.new", "00000000000000000007.idx.new", "ctl.new", "snapshot.of-mine.new"]
    for name in [*others, "snapshot.1000.new"]:
        (tmp_path / name).write_bytes(b"half")
    journal.create([(1, b"born")], 0)
    journal.compact(0)
    for name in others:
        assert (tmp_path / name).exists()
    assert not (tmp_path / "snapshot.1000.new").exists()
    (tmp_path / "snapshot.1000.new").write_bytes(b"half")
    for number in range(40):
        journal.append([(1, b"%d" % number)], 0)
    assert journal.generation > 2
    assert not (tmp_path / "snapshot.1000.new").exists()
    assert all((tmp_path / name).read_bytes() == b"half" for name in others)
    journal.close()


def test_discard_builds_the_replica_anew(tmp_path: Path) -> None:
    """For an owner that does not trust its replica any more."""
    journal, recorder = open_journal(tmp_path, control_words())
    journal.create([(1, b"born")], 0)
    recorder.commands.append([7, b"nonsense", 0])
    journal.discard()
    assert journal.catch_up()
    assert recorder.payloads == [b"born"]
    journal.close()


def test_generation_numbers_are_in_the_word() -> None:
    """The word holds both halves of the commit."""
    assert split_journal(journal_word(3, 800)) == (3, 800)
    assert Recorder().payloads == []
