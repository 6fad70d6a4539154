"""Publishing to partitioned topics, through the public API and nothing else."""

from __future__ import annotations

import time
from itertools import cycle, islice
from typing import Any

from benchmarks.contest import PROCESS
from benchmarks.embedded import publish

PARTITIONS = 4
KEYS = 1000


class _OnPartitions(publish._Publisher):
    """Has the first producer make the topic with partitions."""

    def _open(self) -> None:
        self._root.mkdir(mode=0o700)
        settings = f"allowAutoTopicCreationType=partitioned\ndefaultNumPartitions={PARTITIONS}\n"
        (self._root / "broker.conf").write_text(settings, "utf-8")
        super()._open()
        for _ in range(PARTITIONS):  # the first message makes the segment, of each partition
            self._producer.send(self.payload)


class SendAsync(_OnPartitions, publish.SendAsync):
    """`send_async`, a batch to each partition in turn."""

    key = "partitions"
    name = "partitions in turn, by batch"


class SendAsyncKeyed(publish.SendAsync):
    """`send_async` with keys, on a plain topic."""

    key = "plain-keys"
    name = f"plain topic, {KEYS} keys"
    survives = PROCESS

    def publish(self, producer: Any, operations: int) -> float:
        send, payload = producer.send_async, self.payload
        keys = [f"customer-{i}" for i in range(KEYS)]
        begun = time.perf_counter()
        for key in islice(cycle(keys), operations):
            send(payload, None, None, key)
        producer.flush()
        return time.perf_counter() - begun


class SendAsyncByKey(_OnPartitions, SendAsyncKeyed):
    """`send_async` with keys, each to its partition."""

    key = "partitions-keys"
    name = f"partitions by key, {KEYS} keys"


class Send(_OnPartitions, publish.Send):
    """`send`, a message to each partition in turn."""

    key = "partitions"
    name = "partitions in turn, by message"
