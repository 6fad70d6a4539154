"""Many topics under a low limit on open files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from embeddedpulsar import Client, MessageId
from embeddedpulsar.exceptions import StorageError
from tests.multiprocess.children import Child, say


def use_many_topics(root: str, count: str) -> None:
    """Child: under a limit of 256 files, publish to one topic after the other, then read the first."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    most = 0
    with Client(root) as client:
        for number in range(int(count)):
            with client.create_producer(f"t{number}") as producer:
                producer.send(b"%d" % number)
            most = max(most, len(os.listdir("/proc/self/fd")))
        first = client.create_reader("t0", MessageId.earliest).read_next(1000).data()
    say(first.decode(), most)


def hold_many_topics(root: str) -> None:
    """Child: keep every producer, until there are no descriptors left; then close them, and go on."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    text = ""
    with Client(root) as client:
        for number in range(10):
            client.create_producer(f"idle{number}").close()
        producers = []
        try:
            for number in range(100):
                producers.append(client.create_producer(f"t{number}"))
        except StorageError as e:
            text = str(e)
        held = len(producers)
        for producer in producers:
            producer.close()
        client.create_producer("another").send(b"x")
    say(held, text)


def test_topics_one_after_the_other_need_few_descriptors(tmp_path: Path):
    """300 topics with a producer each, closed again, under a limit of 256."""
    with Child(use_many_topics, tmp_path / "store", 300) as child:
        first, most = child.read().split()
        assert first == "0"
        assert int(most) < 240
        assert child.join() == 0


def test_a_limit_that_is_reached_is_named(tmp_path: Path):
    """Idle topics make room first; then the error says limit and remedy, and closing producers helps."""
    with Child(hold_many_topics, tmp_path / "store") as child:
        held, _, text = child.read().partition(" ")
        assert int(held) > 10
        assert "128, EMFILE" in text
        assert "ulimit -n" in text
        assert child.join() == 0
