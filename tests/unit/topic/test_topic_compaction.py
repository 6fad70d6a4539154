"""The lock of a compaction: which processes wait for it, and what two threads do that begin one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.platform.processes import lease
from embeddedpulsar.storage.filenames import compaction_lock_path
from embeddedpulsar.testing.store_checks import assert_clean
from embeddedpulsar.topic.topic_compaction import TopicCompaction


@pytest.fixture
def compaction(tmp_path: Path) -> Iterator[TopicCompaction]:
    """Of a topic with two messages of one key."""
    root = tmp_path / "store"
    with Client(root) as client:
        with client.create_producer("topic") as producer:
            for value in (b"1", b"2"):
                producer.send(value, partition_key="a")
        use = client._core.store.use_topic("topic")
        try:
            yield use.topic.compaction.get()
        finally:
            use.release()
    assert_clean(root)


def test_a_process_that_looks_does_not_keep_a_compaction_from_running(compaction: TopicCompaction) -> None:
    """It has the lock for a moment."""
    looking = FileLock(compaction_lock_path(compaction.ledgers.directory))
    try:
        looking.acquire()
        assert compaction._begin(int, is_wanted=True)
        thread = compaction._thread
    finally:
        looking.release()
        looking.close()
    assert thread is not None
    thread.join()
    assert compaction.status() == ("SUCCESS", "")
    assert compaction.ledgers.record().messages == 1


def test_two_that_look_do_not_see_each_other(compaction: TopicCompaction) -> None:
    """Nothing is compacted, and a compaction may begin."""
    path = compaction_lock_path(compaction.ledgers.directory)
    looking = FileLock(path)
    try:
        assert lease.try_lock(looking.fd, shared=True)
        assert not compaction.is_running()
        assert compaction.status() == ("NOT_RUN", "")
    finally:
        looking.close()


def test_a_second_thread_leaves_the_first_one_alone(compaction: TopicCompaction) -> None:
    """Closing the topic waits for the compaction that was asked for."""
    other = FileLock(compaction_lock_path(compaction.ledgers.directory))
    try:
        other.acquire()
        assert compaction._begin(int, is_wanted=True)
        assert not compaction._begin(int, is_wanted=False)
    finally:
        other.release()
        other.close()
    compaction.close()
    assert compaction.ledgers.record().messages == 1
    assert not compaction._begin(int, is_wanted=True)
