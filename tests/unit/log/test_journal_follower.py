"""Finding the state from the files alone, and reading on where something is damaged."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from zlib import crc32

import pytest

from embeddedpulsar._engine.format.control import TopicWord, split_journal
from embeddedpulsar._engine.format.document import document_crc
from embeddedpulsar._engine.format.journal_record import FIRST_RECORD_OFFSET
from embeddedpulsar._engine.log.journal import Journal
from embeddedpulsar._engine.log.journal_file import JournalPlace
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from tests.support.damaged_files import flip
from tests.support.journal_replica import Recorder, control_words, open_journal


def written(directory: Path, payloads: int = 5, compactions: int = 0) -> tuple[memoryview, list[bytes]]:
    """A journal with some commands and compactions, closed; returns its words and the payloads."""
    words = control_words()
    journal, _ = open_journal(directory, words)
    names = [b"command %d" % number for number in range(payloads)]
    journal.create([(1, names[0])], 0)
    for number, name in enumerate(names[1:]):
        if number < compactions:
            journal.compact(0)
        journal.append([(1, name)], 0)
    journal.close()
    return words, names


def recovered(directory: Path) -> tuple[Journal, Recorder, memoryview]:
    words = control_words()
    journal, recorder = open_journal(directory, words)
    journal.recover(9)
    return journal, recorder, words


@pytest.mark.parametrize("compactions", [0, 1, 3])
def test_recovery_needs_no_words(tmp_path: Path, compactions: int) -> None:
    """The files alone give the state back, in a new generation that is flushed."""
    _, names = written(tmp_path, compactions=compactions)
    journal, recorder, words = recovered(tmp_path)
    assert recorder.payloads == names
    assert journal.generation == compactions + 2
    assert split_journal(words[TopicWord.JOURNAL])[0] == journal.generation
    assert not journal.damage
    journal.append([(1, b"more")], 0)
    journal.close()
    again, recorder, _ = recovered(tmp_path)
    assert recorder.payloads == [*names, b"more"]
    again.close()


def test_an_empty_directory_recovers_to_nothing(tmp_path: Path) -> None:
    """No files, no state, no complaint."""
    journal, recorder, words = recovered(tmp_path)
    assert not journal.exists
    assert words[TopicWord.JOURNAL] == 0
    assert recorder.commands == []


@pytest.mark.parametrize("compactions", [0, 2])
def test_a_torn_tail_is_cut_at_every_byte(tmp_path: Path, compactions: int) -> None:
    """Whatever part of the last command reached the disk, the ones before it count and it does not."""
    source = tmp_path / "source"
    source.mkdir()
    words, names = written(source, compactions=compactions)
    generation, end = split_journal(words[TopicWord.JOURNAL])
    for cut in range(end - 40, end):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(source, copy)
        os.truncate(copy / f"journal.{generation}", cut)
        journal, recorder, _ = recovered(copy)
        assert recorder.payloads == names[:-1]
        assert not journal.damage
        journal.append([(1, b"more")], 0)
        journal.close()
        again, recorder, _ = recovered(copy)
        assert recorder.payloads == [*names[:-1], b"more"]
        again.close()


@pytest.mark.parametrize(
    "point",
    [
        "compact:snapshot_written",
        "compact:snapshot_synced",
        "compact:journal_created",
        "compact:snapshot_renamed",
        "compact:directory_synced",
        "compact:word_stored",
        "compact:unlinked",
    ],
)
def test_a_compaction_cut_short_changes_nothing(tmp_path: Path, point: str) -> None:
    """At every step the state is whole; commands that follow on the old generation are not lost to the
    new.
    """
    words, names = written(tmp_path, compactions=1)
    journal, recorder = open_journal(tmp_path, words)
    journal.catch_up()
    failpoints.set(point, "raise")
    with pytest.raises(failpoints.InjectedFailure):
        journal.compact(0)
    failpoints.clear()
    journal.close()
    copy = tmp_path.parent / f"{tmp_path.name}-copy"
    shutil.copytree(tmp_path, copy)
    at_once, recorder, _ = recovered(copy)
    assert recorder.payloads == names
    assert not at_once.damage
    at_once.close()
    journal, _ = open_journal(tmp_path, words)
    journal.catch_up()
    journal.append([(1, b"more")], 0)
    journal.close()
    later, recorder, _ = recovered(tmp_path)
    assert recorder.payloads == [*names, b"more"]
    assert not later.damage
    later.compact(0)
    later.close()
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("from_words", [True, False])
@pytest.mark.parametrize("how", ["flip", "unlink", "empty"])
def test_a_damaged_snapshot_falls_back_to_the_generation_before(
    tmp_path: Path, how: str, from_words: bool
) -> None:
    """Nothing is lost: the older snapshot and journal lead to the same state. It is reported."""
    words, names = written(tmp_path, compactions=2)
    snapshot = tmp_path / "snapshot.3"
    if how == "flip":
        flip(snapshot, 20)
    elif how == "unlink":
        snapshot.unlink()
    else:
        snapshot.write_bytes(b"")
    if from_words:
        journal, recorder = open_journal(tmp_path, words)
        journal.catch_up()
    else:
        journal, recorder, _ = recovered(tmp_path)
    assert recorder.payloads == names
    assert "exactly as it was" in str(journal.damage[-1])
    journal.append([(1, b"more")], 0)
    assert journal.generation == 4
    journal.close()
    again, recorder, _ = recovered(tmp_path)
    assert recorder.payloads == [*names, b"more"]
    assert not again.damage
    again.close()


def test_two_damaged_snapshots_start_anew_and_say_so(tmp_path: Path) -> None:
    """When nothing leads to the state any more the owner learns it; commands that are readable are
    applied.
    """
    words, names = written(tmp_path, compactions=2)
    flip(tmp_path / "snapshot.3", 20)
    (tmp_path / "journal.2").unlink()
    journal, recorder = open_journal(tmp_path, words)
    journal.catch_up()
    assert recorder.payloads == names[2:]
    assert "starts anew" in str(journal.damage[-1])
    journal.close()


@pytest.mark.parametrize("offset", [0, 13, 62])
@pytest.mark.parametrize("compactions", [0, 2])
def test_a_damaged_header_costs_nothing(tmp_path: Path, offset: int, compactions: int) -> None:
    """Records carry their own checksums: they are read without the header's chain seed."""
    words, names = written(tmp_path, compactions=compactions)
    generation = split_journal(words[TopicWord.JOURNAL])[0]
    flip(tmp_path / f"journal.{generation}", offset)
    journal, recorder = open_journal(tmp_path, words)
    journal.catch_up()
    assert recorder.payloads == names
    assert journal.damage
    journal.append([(1, b"more")], 0)
    journal.close()
    again, recorder, _ = recovered(tmp_path)
    assert recorder.payloads == [*names, b"more"]
    assert not again.damage
    again.close()


def test_damage_in_the_middle_loses_only_what_it_hit(tmp_path: Path) -> None:
    """Within a boot the commit word says that what follows was committed: reading goes on behind the
    damage.
    """
    words, names = written(tmp_path, payloads=6)
    record = 24 + 16
    flip(tmp_path / "journal.1", FIRST_RECORD_OFFSET + 2 * record + 30)
    journal, recorder = open_journal(tmp_path, words)
    journal.catch_up()
    assert recorder.payloads == names[:2] + names[3:]
    assert "commands are lost" in str(journal.damage[0])
    journal.append([(1, b"more")], 0)
    assert journal.generation == 2
    assert (tmp_path / "journal.1").exists()
    journal.close()


def test_a_process_that_follows_survives_damage_too(tmp_path: Path) -> None:
    """A replica in step reads only the news, and when those are damaged it reads everything with patience."""
    words, names = written(tmp_path, payloads=2)
    follower, recorder = open_journal(tmp_path, words)
    follower.catch_up()
    writer, _ = open_journal(tmp_path, words)
    writer.catch_up()
    end = split_journal(words[TopicWord.JOURNAL])[1]
    writer.append([(1, b"hit")], 0)
    writer.append([(1, b"spared")], 0)
    flip(tmp_path / "journal.1", end + 25)
    follower.catch_up()
    assert recorder.payloads == [*names, b"spared"]
    assert follower.damage
    follower.close()
    writer.close()


def test_a_missing_journal_is_salvaged_from_the_generation_before(tmp_path: Path) -> None:
    """The word names a file that is gone: what the rest knows counts, loudly."""
    words, names = written(tmp_path, payloads=3, compactions=2)
    (tmp_path / "journal.3").unlink()
    (tmp_path / "snapshot.3").unlink()
    journal, recorder = open_journal(tmp_path, words)
    journal.catch_up()
    assert recorder.payloads == names[:2]
    assert "missing" in str(journal.damage[0])
    journal.append([(1, b"more")], 0)
    assert recorder.payloads == [*names[:2], b"more"]
    journal.close()


def test_nothing_readable_is_damage_and_nothing_is_deleted(tmp_path: Path) -> None:
    """A directory of rubbish recovers to "does not exist", says so, and keeps the rubbish."""
    (tmp_path / "journal.4").write_bytes(b"rubbish " * 40)
    journal, recorder, words = recovered(tmp_path)
    assert not journal.exists
    assert recorder.commands == []
    assert journal.damage
    assert (tmp_path / "journal.4").exists()
    journal.create([(1, b"anew")], 0)
    assert split_journal(words[TopicWord.JOURNAL])[0] == 5
    assert (tmp_path / "journal.4").exists()
    journal.close()


def test_a_creation_that_lost_power_is_no_damage(tmp_path: Path) -> None:
    """A file of zeros, or none, is what a power loss leaves of an unflushed creation."""
    (tmp_path / "journal.1").write_bytes(bytes(100))
    journal, _, _ = recovered(tmp_path)
    assert not journal.exists
    assert not journal.damage
    assert os.listdir(tmp_path) == []


def test_a_removal_that_lost_power_is_completed(tmp_path: Path) -> None:
    """The last record of the newest journal counts, whatever older generation is still there."""
    words, _ = written(tmp_path, compactions=2)
    journal, _ = open_journal(tmp_path, words)
    journal.catch_up()
    failpoints.set("journal:word_cleared", "raise")
    with pytest.raises(failpoints.InjectedFailure):
        journal.remove(0)
    failpoints.clear()
    (tmp_path / "snapshot.3").unlink()
    again, recorder, _ = recovered(tmp_path)
    assert not again.exists
    assert recorder.commands == []
    assert os.listdir(tmp_path) == []
    assert not again.damage


def test_the_journal_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A subscription's files in a topic's directory are somebody's mistake, not this owner's state."""
    written(tmp_path)
    journal = Journal(JournalPlace(str(tmp_path), control_words(), TopicWord.JOURNAL, 3), Recorder())
    with pytest.raises(CorruptionError, match="belongs to something else"):
        journal.recover(0)


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A downgrade does not eat the state."""
    written(tmp_path)
    path = tmp_path / "journal.1"
    data = bytearray(path.read_bytes())
    data[4:6] = (99).to_bytes(2, "little")
    data[60:64] = zlib.crc32(data[:60]).to_bytes(4, "little")  # else it is damage, not a version
    path.write_bytes(data)
    journal, _ = open_journal(tmp_path, control_words())
    with pytest.raises(UnsupportedFormatVersion):
        journal.recover(0)
    assert path.read_bytes() == data


def test_every_flipped_byte_is_survived(tmp_path: Path) -> None:
    """Any single damaged byte of any file: no exception, and at most one command is missing."""
    source = tmp_path / "source"
    source.mkdir()
    words, names = written(source, payloads=4, compactions=1)
    for name in sorted(os.listdir(source)):
        for offset in range(0, (source / name).stat().st_size, 2):
            copy = tmp_path / "copy"
            shutil.copytree(source, copy)
            flip(copy / name, offset)
            journal, recorder = open_journal(copy, memoryview(bytearray(words.tobytes())).cast("Q"))
            try:
                journal.catch_up()
                assert len(set(names) - set(recorder.payloads)) <= 1, (name, offset)
            except UnsupportedFormatVersion:
                assert (name, offset) == ("journal.2", 4)  # the version number itself
            journal.close()
            shutil.rmtree(copy)


def test_a_newer_snapshot_is_refused_by_name(tmp_path: Path) -> None:
    """It is intact, so it is not damage, and the generation before is not put in its place."""
    words, _ = written(tmp_path, compactions=1)
    path = tmp_path / "snapshot.2"
    data = bytearray(path.read_bytes())
    data[4:6] = (99).to_bytes(2, "little")
    data[12:16] = document_crc(data).to_bytes(4, "little")
    path.write_bytes(data)
    journal = tmp_path / "journal.2"
    header = bytearray(journal.read_bytes())
    header[16:20] = document_crc(data).to_bytes(4, "little")
    header[60:64] = crc32(header[:60]).to_bytes(4, "little")
    journal.write_bytes(header)
    reader, _ = open_journal(tmp_path, words)
    with pytest.raises(UnsupportedFormatVersion) as caught:
        reader.catch_up()
    assert caught.value.path == str(path)
