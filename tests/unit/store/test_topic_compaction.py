"""The lock of a compaction: which processes wait for it, and what two threads do that begin one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar._engine.filenames import compaction_lock_path
from embeddedpulsar._engine.log.compacted_ledger import CompactionRecord, remove_others
from embeddedpulsar._engine.platform import lease
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store import topic_compaction
from embeddedpulsar._engine.store.topic_compaction import TopicCompaction
from embeddedpulsar.testing.trial_store import assert_clean


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
        assert compaction.work.begin(compaction._compact, int, is_wanted=True)
        thread = compaction.work._thread
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
        assert compaction.work.begin(compaction._compact, int, is_wanted=True)
        assert not compaction.work.begin(compaction._compact, int, is_wanted=False)
    finally:
        other.release()
        other.close()
    compaction.close()
    assert compaction.ledgers.record().messages == 1
    assert not compaction.work.begin(compaction._compact, int, is_wanted=True)


def test_a_compaction_that_ends_while_it_is_looked_at(
    compaction: TopicCompaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is the new one, and the log behind its horizon is kept."""

    def ended() -> bool:
        record = compaction.ledgers.record()
        record._replace(file=1, ledger=7, entry=3, succeeded_ms=1).write(compaction.ledgers.directory)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "is_running", ended)
        assert compaction.marks() == [(7, 3)]
        compaction.ledgers.record()._replace(file=0, succeeded_ms=0).write(compaction.ledgers.directory)
        assert compaction.status().status == "SUCCESS"
    CompactionRecord().write(compaction.ledgers.directory)


def test_an_error_after_the_commit_leaves_the_commit(
    compaction: TopicCompaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record does not name the ledger again that was replaced, and may be gone."""
    calls = []

    def fails(directory: str, record: CompactionRecord) -> int:
        calls.append(record.file)
        if len(calls) == 2:
            raise OSError("the disk is gone")
        return remove_others(directory, record)

    with monkeypatch.context() as patch:
        patch.setattr(topic_compaction, "remove_others", fails)
        compaction._compact()
    assert calls == [0, 1]
    record = compaction.ledgers.record()
    assert (record.file, record.messages, record.error) == (1, 1, "the disk is gone")


def test_an_error_of_any_kind_is_in_the_status(
    compaction: TopicCompaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not end in the thread unseen."""

    def fails(directory: str, record: CompactionRecord) -> int:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(topic_compaction, "remove_others", fails)
        compaction._compact()
    assert compaction.status() == ("ERROR", "a bug")
