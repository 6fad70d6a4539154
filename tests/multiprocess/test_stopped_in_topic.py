"""A process that is stopped inside the lock of a topic, of its flushes, of the catalog or of the store."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import Client
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.testing.trial_store import assert_clean
from tests.multiprocess.children import Child, say
from tests.multiprocess.test_stopped_in_subscription import go_on, send, soon, subscribe, wait_until


def hold(path: str, which: str) -> None:
    """Stop inside a lock of the store."""
    with Client(path) as client:
        store = client._core.store
        session: Any = store._session
        ledger = store.use_topic("stuck").topic.ledger
        locks = {
            "topic": ledger.lock,
            "sync": ledger._commit.lock,
            "catalog": session.catalog.lock,
            "store": session.lock,
        }
        lock = locks[which]
        try:
            lock.acquire()
            if which == "sync":
                ledger._commit._become_flusher()  # as every flush does
            say("inside")
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            lock.release()
        say("outside")
        input()


@contextmanager
def stopped_in(path: Path, which: str) -> Iterator[Child]:
    """Another process that is stopped in one lock."""
    with Child(hold, path, which) as child:
        assert child.read() == "inside"
        yield child


@pytest.mark.parametrize("which", ["topic", "sync", "catalog", "store"])
def test_other_topics_are_not_harmed(tmp_path: Path, which: str):
    """Sending one by one and in batches, receiving, acknowledging, nacks, seeking, closing and subscribing on
    another topic go on, in a process that uses the stuck one as well."""
    with Client(tmp_path, operation_timeout_seconds=2) as client:
        send(client, b"there", topic="stuck")
        send(client, b"a", b"b", b"c")
        mine = subscribe(client, "s", "stuck")
        mine.acknowledge(mine.receive(5000))
        theirs = subscribe(client, "s", negative_ack_redelivery_delay_ms=100)
        slow = client.create_producer("stuck")
        batched = client.create_producer("topic", batching_enabled=True, batching_max_publish_delay_ms=20)
        with stopped_in(tmp_path, which) as child:
            slow.send_async(b"late", None)
            with soon():
                if which == "topic":
                    assert mine.receive_nowait() is None
                    with pytest.raises(pulsar.Timeout):
                        mine.receive(100)
                messages = [theirs.receive(2000) for _ in range(3)]
                theirs.acknowledge(messages[0])
                theirs.negative_acknowledge(messages[1])
                assert theirs.receive(2000).data() == messages[1].data()
                batched.send_async(b"d", None)
                assert theirs.receive(2000).data() == b"d"
                batched.send(b"e")
                assert theirs.receive(2000).data() == b"e"
                wait_until(lambda: not theirs._core.acks.unwritten)
                with subscribe(client, "another") as another:
                    assert another.receive(2000).data() == b"a"
                theirs.seek(pulsar.MessageId.earliest)
                assert theirs.receive(2000).data() == b"a"
            go_on(child)
        slow.flush()
        assert mine.receive(5000).data() == b"late"
    assert_clean(tmp_path)


def test_a_client_closes_in_time_behind_a_flush_that_is_stuck(tmp_path: Path):
    """At level "flush" sends that wait for the disk do not hold up `close`, which says how many they are."""
    client = Client(tmp_path, operation_timeout_seconds=1, durability="flush")
    send(client, b"there", topic="stuck")
    producer = client.create_producer("stuck")
    with stopped_in(tmp_path, "sync") as child:
        for number in range(3):
            producer.send_async(b"%d" % number, None)
        with soon(), pytest.raises(LockTimeout, match="messages to persistent://public/default/stuck"):
            producer.close()
        with soon():
            client.close()
        go_on(child)
    with Client(tmp_path) as again:
        reader = again.create_reader("stuck", pulsar.MessageId.earliest)
        assert [reader.read_next(2000).data() for _ in range(4)] == [b"there", b"0", b"1", b"2"]
    assert_clean(tmp_path)


def test_callbacks_of_other_topics_do_not_wait_behind_a_flush_that_is_stuck(tmp_path: Path):
    """At level "flush": they are called as ever, those of the stuck topic later, in order."""
    called: list[object] = []

    def note(_: pulsar.Result, message_id: pulsar.MessageId) -> None:
        called.append(message_id)

    with Client(tmp_path, durability="flush") as client:
        send(client, b"there", topic="stuck")
        stuck, free = client.create_producer("stuck"), client.create_producer("free")
        with stopped_in(tmp_path, "sync") as child:
            for number in range(3):
                stuck.send_async(b"%d" % number, note)
            done = threading.Event()
            with soon():
                free.send_async(b"a", lambda *_: done.set())
                assert done.wait(10)
                free.flush()
            assert called == []
            go_on(child)
        stuck.flush()
        assert [one.entry_id() for one in called] == [1, 2, 3]
        stuck.send_async(b"3", note)
        stuck.flush()
        assert len(called) == 4
    assert_clean(tmp_path)


def test_making_topics_keeps_to_the_operation_timeout(tmp_path: Path):
    """A new topic needs the catalog: the call fails in time, and works when the other goes on."""
    with Client(tmp_path, operation_timeout_seconds=1) as client:
        send(client, b"there", topic="stuck")
        with stopped_in(tmp_path, "catalog") as child:
            calls: list[Callable[[], object]] = [
                lambda: client.create_producer("new"),
                lambda: client.subscribe("newer", "s"),
            ]
            for call in calls:
                begun = time.monotonic()
                with pytest.raises(LockTimeout):
                    call()
                assert 0.9 < time.monotonic() - begun < 5
            go_on(child)
        for call in calls:
            call()
    assert_clean(tmp_path)


@pytest.mark.parametrize("batching", [False, True])
def test_sending_waits_for_no_lock_of_the_store(tmp_path: Path, batching: bool):
    """New segments need ids, and those the lock of the store: `send_async` returns at once all the same, and
    after SIGCONT everything is stored in order."""
    (tmp_path / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=2\n")
    results: list[pulsar.Result] = []
    with Client(tmp_path) as client:
        consumer = subscribe(client, "s", "stuck")
        send(client, b"there", topic="stuck")
        producer = client.create_producer(
            "stuck", batching_enabled=batching, batching_max_messages=2, batching_max_publish_delay_ms=5
        )
        with stopped_in(tmp_path, "store") as child:
            with soon():
                for number in range(100):
                    producer.send_async(b"%d" % number, lambda result, _: results.append(result))
            time.sleep(0.1)
            assert len(results) < 100
            go_on(child)
            producer.flush()
        assert results == [pulsar.Result.Ok] * 100
        got = [consumer.receive(2000).data() for _ in range(101)]
        assert got == [b"there", *[b"%d" % n for n in range(100)]]
    assert_clean(tmp_path)


def test_deleting_a_stuck_topic_holds_up_no_other(tmp_path: Path):
    """It fails within seconds, changes nothing, and others can make topics meanwhile; later it works."""
    with Client(tmp_path) as client, pulsar.Admin(tmp_path) as admin:
        send(client, b"there", topic="stuck")
        reader = client.create_reader("stuck", pulsar.MessageId.earliest)
        with stopped_in(tmp_path, "topic") as child:
            for force in (False, True):
                with soon(), pytest.raises(LockTimeout):
                    admin.topics().delete("stuck", force=force)
            with soon():
                send(client, b"x", topic="new")
            assert reader.read_next(2000).data() == b"there"
            reader.close()
            go_on(child)
        send(client, b"more", topic="stuck")
        admin.topics().delete("stuck", force=True)
        assert "persistent://public/default/stuck" not in admin.topics().get_list()
    assert_clean(tmp_path)
