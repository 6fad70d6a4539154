"""An Admin sees what other processes do with a topic, and when they are stopped or killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition
from embeddedpulsar.testing.trial_store import assert_clean
from tests.multiprocess.children import Child, say

SOON_S = 5.0
"""What takes milliseconds by itself; a lock was waited for 30 s."""


def work(path: str) -> None:
    """Hold three of five messages of one subscription, and be active on another, until it is killed."""
    with Client(path) as client:
        producer = client.create_producer("jobs", "maker")
        shared = client.subscribe(
            "jobs",
            "shared",
            ConsumerType.Shared,
            consumer_name="worker",
            receiver_queue_size=3,
            initial_position=InitialPosition.Earliest,
        )
        client.subscribe("jobs", "alone", consumer_name="reader")
        for number in range(5):
            producer.send(b"%d" % number)
        for _ in range(3):
            shared.receive()
        say("ready")
        input()


def stop_inside(path: str, lock: str) -> None:
    """Stop while holding a lock."""
    with Client(path) as client:
        client.subscribe("jobs", "shared", ConsumerType.Shared)
        topic = client._core.store.use_topic("jobs").topic  # type: ignore[attr-defined]
        held = topic.ledger.lock if lock == "topic" else topic.subscription("shared")._existing()._lock
        held.acquire(5.0)
        say("inside")
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_process_that_only_looks(tmp_path: Path):
    """It sees consumers and producers of another one, and when that is killed, that they are gone, although
    no process has cleaned up."""
    with Child(work, tmp_path) as child, Admin(tmp_path) as admin:
        assert child.read() == "ready"
        stats = admin.topics().get_stats("jobs")
        assert [one.producer_name for one in stats.publishers] == ["maker"] and stats.msg_in_counter == 5
        (worker,) = stats.subscriptions["shared"].consumers
        assert worker.consumer_name == "worker" and 3 <= worker.unacked_messages <= 5
        assert stats.subscriptions["alone"].active_consumer_name == "reader"
        assert [one.msg_backlog for one in stats.subscriptions.values()] == [5, 5]
        child.kill()
        child.join()
        stats = admin.topics().get_stats("jobs")
        assert stats.publishers == ()
        for subscription in stats.subscriptions.values():
            assert (subscription.type, subscription.consumers, subscription.msg_backlog) == ("None", (), 5)
            assert (subscription.unacked_messages, subscription.active_consumer_name) == (0, None)
    Client(tmp_path).close()  # removes what the killed process left
    assert_clean(tmp_path)


@pytest.mark.parametrize("lock", ["topic", "subscription"])
def test_a_process_that_is_stopped_inside_a_lock(tmp_path: Path, lock: str):
    """Is not waited for, by a look of a process that has the topic open or has not."""
    with Client(tmp_path) as client, client.create_producer("jobs") as producer:
        producer.send(b"x")
    with Child(stop_inside, tmp_path, lock) as child:
        assert child.read() == "inside"
        begin = time.monotonic()
        for _ in range(2):
            with Admin(tmp_path) as admin:
                for _ in range(2):
                    found = admin.topics().get_stats("jobs")
                    assert len(found.subscriptions["shared"].consumers) == 1
                    assert admin.topics().get_internal_stats("jobs").number_of_entries == 1
                    assert admin.topics().peek_messages("jobs", "shared", 1) == []
        assert time.monotonic() - begin < SOON_S
        child.kill()
        child.join()
