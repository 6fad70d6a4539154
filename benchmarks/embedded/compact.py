"""A keyed topic that is compacted, and table views of what is left. Each round is a process of its own."""

from __future__ import annotations

import resource
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.actors import Actor
from benchmarks.contest import PROCESS, READ_ONLY, Contestant
from benchmarks.embedded import prepare

_HERE = "benchmarks.embedded.compact:"


def fill(root: Path, messages: int, keys: int) -> None:
    """Send messages in batches to a new store, so that each key gets the same number of values."""
    from embeddedpulsar import Client

    with Client(root) as client:
        producer = client.create_producer(prepare.TOPIC, batching_enabled=True, block_if_queue_full=True)
        for number in range(messages):
            producer.send_async(b"value %d" % number, None, partition_key=f"key {number % keys}")
        producer.flush()


def compact(admin: Any) -> None:
    """Compact the topic, and wait for the end."""
    topics = admin.topics()
    topics.compact(prepare.TOPIC)
    while (status := topics.compaction_status(prepare.TOPIC)).status == "RUNNING":
        time.sleep(0.005)
    assert status.status == "SUCCESS", status


def most_megabytes() -> float:
    """The most memory that this process had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Compaction:
    """In the actor: one compaction by the admin."""

    def __init__(self, root: str) -> None:
        from embeddedpulsar import Admin

        self._admin = Admin(root)

    def run(self) -> dict[str, Any]:
        begun, processor = time.perf_counter(), time.process_time()
        compact(self._admin)
        return {
            "seconds": time.perf_counter() - begun,
            "s of CPU": time.process_time() - processor,
            "MiB at most": most_megabytes(),
        }

    def close(self) -> None:
        self._admin.close()


class View:
    """In the actor: a table view that is made and asked for values."""

    def __init__(self, root: str, keys: int) -> None:
        from embeddedpulsar import Client

        self._client, self._keys = Client(root), keys

    def run(self) -> dict[str, Any]:
        begun, processor = time.perf_counter(), time.process_time()
        view: Any = self._client.create_table_view(prepare.TOPIC)
        seconds, used = time.perf_counter() - begun, time.process_time() - processor
        keys = [f"key {number % self._keys}" for number in range(100_000)]
        begun = time.perf_counter()
        values = [view.get(key) for key in keys]
        each = (time.perf_counter() - begun) / len(keys)
        assert all(values)
        return {
            "seconds": seconds,
            "s of CPU": used,
            "us a get": 1e6 * each,
            "MiB at most": most_megabytes(),
        }

    def close(self) -> None:
        self._client.close()


class Compacting(Contestant):
    """Timed: `Admin.topics().compact` of a topic that a new process opens."""

    key = "compact"
    survives = PROCESS

    def __init__(self, messages: int, keys: int) -> None:
        super().__init__()
        self.name = f"embeddedpulsar, {messages:,} messages of {keys:,} keys"
        self._messages, self._keys = messages, keys

    def start(self, place: Path) -> None:
        self._root = place / "store"

    def run(self, operations: int) -> float:
        # A store for each round: a second compaction has nothing to read.
        shutil.rmtree(self._root, ignore_errors=True)
        fill(self._root, self._messages, self._keys)
        return measured(self, Actor(_HERE + "Compaction", root=str(self._root)))


class Loading(Contestant):
    """Timed: `create_table_view` of a compacted topic, in a new process."""

    key = "view"
    survives = READ_ONLY

    def __init__(self, keys: int) -> None:
        super().__init__()
        self.name = f"embeddedpulsar, a table view of {keys:,} keys"
        self._keys = keys

    def start(self, place: Path) -> None:
        from embeddedpulsar import Admin

        self._root = place / "store"
        fill(self._root, 2 * self._keys, self._keys)
        with Admin(self._root) as admin:
            compact(admin)

    def run(self, operations: int) -> float:
        return measured(self, Actor(_HERE + "View", root=str(self._root), keys=self._keys))


def measured(contestant: Contestant, actor: Actor) -> float:
    """Run an actor once. Returns the seconds; its other figures become the notes of the contestant."""
    try:
        actor.wait_ready()
        actor.begin()
        answer = actor.finish()
    finally:
        actor.stop()
    seconds = float(answer.pop("seconds"))
    contestant.notes.update(answer)
    return seconds
