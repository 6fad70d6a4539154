"""Random programs of a consumer and an Admin of one subscription, compared with a list of numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.chunks import begin_ledger, log_of

STEPS = 60
WORDS = (
    "publish publish publish receive receive receive acknowledge acknowledge skip skip skip_all unload "
    "attach attach leave roll reopen reset look"
).split()


class Program:
    """A store, at most one consumer, and what the subscription should have left: numbers, in order."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.left: list[int] = []
        self.published = 0
        self.consumer: Any = None
        self.held: dict[int, Any] = {}
        self.open()
        self.admin.topics().create_subscription("topic", "sub", MessageId.earliest)

    def open(self) -> None:
        self.client, self.admin = Client(self.root), Admin(self.root)

    def look(self) -> None:
        """Compare; while a consumer is attached, some of its acknowledgements are not written yet."""
        if self.consumer is None:
            messages = self.admin.topics().peek_messages("topic", "sub", 10_000)
            assert [int(message.data()) for message in messages] == self.left

    def publish(self) -> None:
        kind = self.random.choice(["plain", "batched", "chunked"])
        options: dict[str, Any] = {}
        if kind == "batched":
            options = {"batching_enabled": True, "batching_max_publish_delay_ms": 60_000}
        elif kind == "chunked":
            options = {"chunking_enabled": True, "chunk_max_message_size": 1000}
        with self.client.create_producer("topic", **options) as producer:
            for _ in range(self.random.randint(1, 5)):
                padding = b" " * 3000 if kind == "chunked" else b""
                producer.send_async(b"%d" % self.published + padding, None)
                self.left.append(self.published)
                self.published += 1
            producer.flush()

    def attach(self) -> None:
        if self.consumer is None:
            self.consumer = self.client.subscribe(
                "topic",
                "sub",
                self.random.choice(list(ConsumerType)),
                receiver_queue_size=self.random.choice([1, 3, 1000]),
                batch_index_ack_enabled=True,
            )

    def leave(self) -> None:
        if self.consumer is not None:
            self.consumer.close()
            self.consumer, self.held = None, {}
        self.look()

    def receive(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            message = None if self.consumer is None else self.consumer.receive_nowait()
            if message is not None:
                self.held[int(message.data())] = message

    def acknowledge(self) -> None:
        for number in self.random.sample(sorted(self.held), self.random.randint(0, len(self.held))):
            self.consumer.acknowledge(self.held.pop(number))
            if number in self.left:
                self.left.remove(number)

    def skip(self) -> None:
        count = self.random.randint(1, 6)
        assert self.admin.topics().skip_messages("topic", "sub", count) == min(count, len(self.left))
        del self.left[:count]
        self.held = {}

    def skip_all(self) -> None:
        if self.random.random() < 0.3:
            self.admin.topics().skip_all_messages("topic", "sub")
            self.left, self.held = [], {}

    def unload(self) -> None:
        self.admin.topics().unload("topic")
        self.held = {}

    def reset(self) -> None:
        if self.random.random() < 0.4:
            self.admin.topics().reset_cursor("topic", "sub", MessageId.earliest)
            messages = self.admin.topics().peek_messages("topic", "sub", 10_000)
            self.left, self.held = [int(message.data()) for message in messages], {}

    def roll(self) -> None:
        if self.published:
            begin_ledger(log_of(self.client))

    def reopen(self) -> None:
        self.close()
        self.open()
        self.look()

    def close(self) -> None:
        self.consumer, self.held = None, {}
        self.client.close()
        self.admin.close()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left(tmp_path: Path, seed: int):
    """After each program: what is listed, and what a consumer receives."""
    program = Program(tmp_path, seed)
    for _ in range(STEPS):
        getattr(program, program.random.choice(WORDS))()
    program.leave()
    received = []
    with program.client.subscribe("topic", "sub", ConsumerType.Shared) as consumer:
        while (message := consumer.receive_nowait()) is not None:
            received.append(int(message.data()))
            consumer.acknowledge(message)
    assert sorted(received) == program.left
    program.close()
    assert_clean(tmp_path)
