"""The descriptor of a journal comes and goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.log.journal_file import JournalDescriptor
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.disk import Disk


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file."""
    made = tmp_path / "journal"
    made.write_bytes(b"abc")
    return str(made)


def used(path: str) -> JournalDescriptor:
    """A descriptor of the file, in use."""
    made = JournalDescriptor()
    made.use(os.open(path, os.O_RDWR), path)
    return made


class FlushCounter(Disk):
    """Notes which inode is flushed, and lets something happen meanwhile."""

    def __init__(self) -> None:
        self.flushed: list[int] = []
        self.meanwhile = int

    def fdatasync(self, fd: int, path: str) -> None:
        """Counts."""
        self.flushed.append(os.fstat(fd).st_ino)
        self.meanwhile()


def test_rest_and_return(path: str):
    """At rest there is a file but no descriptor; it is opened again when asked for."""
    own = used(path)
    first = own.get()
    own.close_descriptor()
    assert own.is_set
    with pytest.raises(OSError):
        os.fstat(first)
    assert os.pread(own.get(), 3, 0) == b"abc"
    own.close()
    assert not own.is_set


def test_a_file_that_was_removed_meanwhile(path: str):
    """Is missed when it is needed again."""
    own = used(path)
    own.close_descriptor()
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        own.get()
    own.close()


def test_a_flush_reaches_the_file_whoever_rests_meanwhile(path: str):
    """A flush that may have hit another file of the same number is done again on its own descriptor."""
    inode = os.stat(path).st_ino
    own = used(path)
    with disk.use(FlushCounter()) as counter:
        own.flush()
        assert counter.flushed == [inode]
        counter.meanwhile = own.close_descriptor
        own.flush()
        assert counter.flushed == [inode] * 3
        own.flush()
        assert counter.flushed == [inode] * 4
    own.close()
    own.flush()
