"""The control words of a topic."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import control_path, under_construction
from embeddedpulsar._engine.format.control import TopicWord, tail_word
from embeddedpulsar._engine.log.topic_control import ATTENTION, MUST_ROLL, TopicControl
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.timing import boot_id
from embeddedpulsar.exceptions import CorruptionError, StorageError
from tests.ledger_site import LedgerSite, send, values


def test_created_words_are_zero_and_shared(tmp_path: Path):
    """A new ctl is trusted in this boot; what one maps of it another sees."""
    directory = str(tmp_path)
    one = TopicControl.create(directory, 7, boot_id())
    other = TopicControl.open(directory)
    assert one.tail == 0 and one.is_trusted(boot_id()) and not one.is_trusted(bytes(16))
    one.words[TopicWord.TAIL] = tail_word(3, 8192)
    assert other.tail_position == (3, 8192)
    other.check_incarnation(7)
    with pytest.raises(StorageError, match="incarnation 7 of the topic, not 8"):
        other.check_incarnation(8)
    one.demand(MUST_ROLL)
    assert other.words[TopicWord.OWNER] == ATTENTION and other.describe_owner() == ""
    other.words[TopicWord.OWNER] = 77 << 32
    assert one.describe_owner() == "process 77"
    one.close()
    other.close()
    assert one.describe_owner() == ""


def test_a_half_made_file_is_replaced(tmp_path: Path):
    """A process that died while it made the ctl leaves a file that has not its name yet."""
    directory = str(tmp_path)
    Path(under_construction(control_path(directory))).write_bytes(b"half")
    TopicControl.create(directory, 1, boot_id()).close()
    assert os.listdir(directory) == ["ctl"]


def test_another_boot_or_a_copy_is_not_trusted(tmp_path: Path):
    """Words are believed in the boot and on the inode they were written in; `adopt` makes them so."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    TopicControl.create(str(there), 1, boot_id()).close()
    shutil.copytree(there, here)
    copied = TopicControl.open(str(here))
    assert not copied.is_trusted(boot_id())
    copied.adopt(1, boot_id())
    assert copied.is_trusted(boot_id())
    copied.close()


def test_a_damaged_header_is_not_trusted(tmp_path: Path):
    """Damage in the header leads to recovery, a cut file to a new one."""
    directory = str(tmp_path)
    TopicControl.create(directory, 1, boot_id()).close()
    with open(control_path(directory), "r+b") as file:
        file.write(b"\0" * 64)
    control = TopicControl.open(directory)
    assert control.header is None and not control.is_trusted(boot_id())
    control.close()
    os.truncate(control_path(directory), 100)
    with pytest.raises(CorruptionError):
        TopicControl.open(directory)


@pytest.mark.parametrize("how", ["removed", "cut", "zeroed", "other boot"])
def test_a_ledger_opens_without_its_control_words(tmp_path: Path, how: str):
    """Whatever became of the ctl, the log is found again by its frames, and a new ledger begins."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=4)
        sent = [send(ledger, b"%d" % n) for n in range(10)]
        ledger.close()
        path = control_path(site.directory)
        if how == "removed":
            os.unlink(path)
        elif how == "cut":
            os.truncate(path, 4096)
        elif how == "zeroed":
            Path(path).write_bytes(bytes(8192))
        else:
            control = TopicControl.open(site.directory)
            control.adopt(1, b"another boot id.")
            control.close()
        ledger = site.open(max_entries=4)
        assert values(ledger) == [b"%d" % n for n in range(10)]
        position = send(ledger, b"after")
        assert position.ledger_id > sent[-1].ledger_id
        assert values(ledger, sent[-1]) == [b"9", b"after"]
        assert ledger.statistics().recoveries >= 1


def test_threads_may_flush_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two that trim a topic do, without the lock: neither closes the descriptor that the other flushes."""
    control = TopicControl.create(str(tmp_path), 7, boot_id())
    fdatasync, others = disk.DISK.fdatasync, [control.flush]

    def meanwhile(fd: int, path: str) -> None:
        if others:
            others.pop()()
        fdatasync(fd, path)

    monkeypatch.setattr(disk.DISK, "fdatasync", meanwhile)
    control.flush()
    control.close()
