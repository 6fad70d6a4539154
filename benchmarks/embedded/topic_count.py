"""A store with many topics, most of which were never opened."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import PROCESS, Contestant
from benchmarks.embedded.acknowledge import resident_megabytes

ONE_BY_ONE = 200


def _timed(work: Any, *arguments: Any) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - begun, result


class TopicCount(Contestant):
    """Timed: a client opens the store and asks for a topic. The other figures are notes."""

    survives = PROCESS

    def __init__(self, topics: int) -> None:
        super().__init__()
        self.key = f"embeddedpulsar {topics}"
        self.name = f"embeddedpulsar, {topics:,} topics"
        self._topics = topics

    def start(self, place: Path) -> None:
        from embeddedpulsar import Admin

        self._root = place / f"store-{self._topics}"
        names = [
            f"persistent://public/default/{n % 1000}-sensor-{n}" for n in range(self._topics - ONE_BY_ONE)
        ]
        with Admin(self._root) as admin:
            topics = admin.topics()
            topics.get_list()
            bulk, _ = _timed(topics.create_non_partitioned_topics, names)
            begun = time.perf_counter()
            for number in range(ONE_BY_ONE):
                topics.create_non_partitioned_topic(f"lone-{number}")
            single = time.perf_counter() - begun
            kept = sum(path.stat().st_blocks * 512 for path in self._root.rglob("*"))
            self._made = {
                "us to make in bulk, a topic": 1e6 * bulk / len(names),
                "us to make one by one": 1e6 * single / ONE_BY_ONE,
                "bytes on disk, a topic": kept / self._topics,
            }

    def run(self, operations: int) -> float:
        from embeddedpulsar import Admin, Client

        before = resident_megabytes()
        begun = time.perf_counter()
        client = Client(self._root)
        partitions = client.get_topic_partitions("lone-7")
        elapsed = time.perf_counter() - begun
        memory = resident_megabytes() - before
        assert partitions == ["persistent://public/default/lone-7"]
        pattern = re.compile("persistent://public/default/lone-1[0-9]")
        seen, consumer = _timed(client.subscribe, pattern, "bench")
        consumer.close()
        with Admin(self._root) as admin:
            listing, names = _timed(admin.topics().get_list)
            deletion, _ = _timed(admin.topics().delete, names[-1])
            admin.topics().create_non_partitioned_topic(names[-1])
            first, producer = _timed(client.create_producer, names[0])
            producer.send(b"21.5 C")
            producer.close()
        client.close()
        (log,) = self._root.glob("topics/**/*.log")
        used = [log.parent, *log.parent.rglob("*")]
        self.notes = self._made | {
            "bytes of memory, a topic": memory * (1 << 20) / self._topics,
            "ms to list all": 1e3 * listing,
            "ms to subscribe to 10 by pattern": 1e3 * seen,
            "ms to delete": 1e3 * deletion,
            "ms to create a producer": 1e3 * first,
            "KiB on disk of a topic with a message": sum(path.stat().st_blocks for path in used) / 2,
            "files and directories of it": len(used),
        }
        return elapsed

    def stop(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
