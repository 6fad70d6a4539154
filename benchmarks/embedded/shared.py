"""Two producer processes and two consumer processes that share one subscription."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from benchmarks.actors import Crowd, CrowdReceiver, Sender
from benchmarks.contest import PROCESS

TOPIC = "bench"
KEYS = 100
END = b"end"


class SharedCrowd(Crowd):
    """Batched `send_async` on one side; receive, data, acknowledge on the other."""

    name = "embeddedpulsar, Shared, 2 to 2, each message acknowledged"
    survives = PROCESS
    sender = "benchmarks.embedded.shared:CrowdSender"
    receiver = "benchmarks.embedded.shared:SharedReceiver"
    kind = "Shared"

    def __init__(self, size: int = 100, key: str = "embeddedpulsar") -> None:
        super().__init__(size)
        self.key = key

    def start(self, place: Path) -> None:
        from embeddedpulsar import Client

        root = str(place / "store")
        self.open_crowd(place, root=root, kind=self.kind)
        self._client = Client(root)
        self._producer: Any = self._client.create_producer(TOPIC)

    def call_off(self) -> None:
        """Whoever gets such a message stops; what is left of them is skipped in the next round."""
        for number in range(20 * self.receivers):
            self._producer.send(END, partition_key=f"end-{number}")

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "_client"):
            self._client.close()


class KeySharedCrowd(SharedCrowd):
    """The same with a key in each message."""

    name = f"embeddedpulsar, Key_Shared, 2 to 2, {KEYS} keys, each message acknowledged"
    kind = "KeyShared"


class CrowdSender(Sender):
    def __init__(self, root: str, kind: str) -> None:
        from embeddedpulsar import BatchingType, Client

        self._client = Client(root)
        self._is_keyed = kind == "KeyShared"
        batching = BatchingType.KeyBased if self._is_keyed else BatchingType.Default
        self._producer: Any = self._client.create_producer(
            TOPIC,
            batching_enabled=True,
            batching_type=batching,
            block_if_queue_full=True,
            max_pending_messages=10_000,
        )

    def send_many(self, operations: int, payload: bytes) -> None:
        send = self._producer.send_async
        if self._is_keyed:
            keys = itertools.cycle([f"key-{number}" for number in range(KEYS)])
            for key in itertools.islice(keys, operations):
                send(payload, None, partition_key=key)
        else:
            for _ in range(operations):
                send(payload, None)
        self._producer.flush()

    def close(self) -> None:
        self._client.close()


class SharedReceiver(CrowdReceiver):
    def __init__(self, number: int, tally: str, root: str, kind: str) -> None:
        from embeddedpulsar import Client, ConsumerType

        super().__init__(number, tally)
        self._client = Client(root)
        self._consumer: Any = self._client.subscribe(TOPIC, "bench", ConsumerType[kind])

    def run(self) -> dict[str, Any]:
        """Receive without a time limit, as a worker does, until a message says that it is over."""
        receive, acknowledge = self._consumer.receive, self._consumer.acknowledge
        words, word = self._tally.words, self._word
        count = total = 0
        while True:
            message = receive()
            data = message.data()
            acknowledge(message)
            if data == END:
                if words[0]:
                    self._consumer.redeliver_unacknowledged_messages()  # the others want to stop as well
                    return {}
                continue  # of an earlier round
            total += len(data)
            count += 1
            words[word] = count

    def close(self) -> None:
        self._client.close()
