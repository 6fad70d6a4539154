"""Topics come, go and come again while consumers of a pattern run in other processes."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import embeddedpulsar as pulsar
from embeddedpulsar.testing.trial_store import assert_clean
from tests.multiprocess.children import Child, say
from tests.support.clients import send


def consume(root: str, name: str) -> None:
    """Say what comes, until it is the end."""
    with pulsar.Client(root) as client:
        consumer = client.subscribe(
            re.compile("jobs-.*"), "work", pulsar.ConsumerType.Shared, consumer_name=name
        )
        say("attached")
        for message in consumer:
            consumer.acknowledge(message)
            if message.data() == b"end":
                break
            say(message.data().decode())


def test_topics_of_any_process_join_and_leave(tmp_path: Path):
    """Each message of each life of each topic is received once, by either consumer."""
    with pulsar.Client(tmp_path) as client, pulsar.Admin(tmp_path) as admin:
        with Child(consume, tmp_path, "a") as a, Child(consume, tmp_path, "b") as b:
            assert a.read() == b.read() == "attached"
            topics = admin.topics()
            for life in range(4):
                topics.create_partitioned_topic("jobs-parts", 2)
                for topic in ("jobs-red", "jobs-parts", "other"):
                    send(client, topic, *(f"{topic}-{life}-{i}" for i in range(3)))
                wait_until_received(client, [name for name in topics.get_list() if "jobs-" in name])
                for topic in ("jobs-red", "other"):
                    topics.delete(topic, force=True)
                topics.delete_partitioned_topic("jobs-parts", force=True)
            lines: list[str] = []
            send(client, "jobs-end", "end", "end")
            for child in (a, b):
                output, _ = child.process.communicate(timeout=30)
                lines += output.splitlines()
        expected = [
            f"{topic}-{life}-{i}"
            for topic in ("jobs-red", "jobs-parts")
            for life in range(4)
            for i in range(3)
        ]
        assert sorted(lines) == sorted(expected)
    assert_clean(tmp_path)


def wait_until_received(client: pulsar.Client, names: list[str]) -> None:
    """Until the subscription exists on all topics, with nothing left, or the time limit of the test."""
    core: Any = client._core
    while names:
        time.sleep(0.02)
        for name in list(names):
            use = core.store.use_topic(name)
            try:
                is_joined = "work" in use.topic.subscriptions()
                if is_joined and not use.topic.subscription("work").backlog():
                    names.remove(name)
            finally:
                use.release()
