"""A batching producer of a partitioned topic, in every order of sends, flushes, delays and growth, beside a
model that knows nothing but the rules: which message is in which batch of which partition.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddedpulsar import BatchingType, HashingScheme, MessageId, PartitionsRoutingMode
from embeddedpulsar._engine.format.entry import partition_hash
from tests.conformance.manual_time import ManualTime
from tests.conformance.partitioned import PartitionedTopic

MOST = 4
BYTES = 100
DELAY_MS = 20
JAVA = partition_hash(HashingScheme.JavaStringHash)

Batch = list[tuple[int, int, str | None]]  # number, size, key


class Model:
    """What a producer that batches promises."""

    def __init__(self, partitions: int, first: int, turns: bool) -> None:
        self.current = first
        self.turns = turns
        self.waiting: list[Batch] = [[] for _ in range(partitions)]
        self.stored: list[list[Batch]] = [[] for _ in range(partitions)]

    def send(self, number: int, size: int, key: str | None, now: bool) -> None:
        """Send a message; with ``now`` and the batch it joins at once."""
        if key is not None:
            at = JAVA(key) % len(self.waiting)
        else:
            while self.turns and not self.fits(self.current, size):
                self.leave(self.current)
            at = self.current
        if not self.fits(at, size):
            self.leave(at)
        batch = self.waiting[at]
        batch.append((number, size, key))
        if now or len(batch) >= MOST or sum(one[1] for one in batch) >= BYTES:
            self.leave(at)

    def fits(self, partition: int, size: int) -> bool:
        """Whether a message may join a batch."""
        batch = self.waiting[partition]
        return not batch or sum(one[1] for one in batch) + size <= BYTES

    def leave(self, partition: int) -> None:
        """The batch of a partition is stored, and the turn passes if it had it."""
        if not self.waiting[partition]:
            return
        self.stored[partition].append(self.waiting[partition])
        self.waiting[partition] = []
        if self.turns and partition == self.current:
            self.current = (partition + 1) % len(self.waiting)

    def leave_all(self, order: list[int]) -> None:
        """Everything that waits is stored."""
        for partition in order:
            self.leave(partition)

    def grow(self, partitions: int) -> None:
        """There are more partitions."""
        for _ in range(partitions - len(self.waiting)):
            self.waiting.append([])
            self.stored.append([])

    def entries(self, key_based: bool) -> list[list[list[int]]]:
        """The numbers in every entry of every partition."""
        return [
            [numbers for batch in batches for numbers in (by_key(batch) if key_based else [all_of(batch)])]
            for batches in self.stored
        ]


def all_of(batch: Batch) -> list[int]:
    """The numbers of a batch."""
    return [number for number, _, _ in batch]


def by_key(batch: Batch) -> list[list[int]]:
    """The numbers of a batch, key by key, in the order of the first of each."""
    groups: dict[str, list[int]] = {}
    for number, _, key in batch:
        groups.setdefault(key or "", []).append(number)
    return list(groups.values())


def stored_entries(topic: PartitionedTopic, partitions: int) -> list[list[list[int]]]:
    """The same, as it is in the topic."""
    found = []
    for index in range(partitions):
        entries: dict[tuple[int, int], list[int]] = {}
        for message in topic.messages(index):
            at: MessageId = message.message_id()
            entries.setdefault((at.ledger_id(), at.entry_id()), []).append(int(message.data().split()[0]))
        found.append(list(entries.values()))
    return found


steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["send", "send", "send", "send_now"]),
            st.sampled_from([5, 20, 25, 30, 60, 100, 130]),
            st.sampled_from([None, None, "a", "b", "key-1"]),
        ),
        st.just(("flush",)),
        st.just(("wait",)),
        st.tuples(st.just("grow"), st.integers(1, 3)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("key_based", [False, True])
@pytest.mark.parametrize(
    "mode", [PartitionsRoutingMode.RoundRobinDistribution, PartitionsRoutingMode.UseSinglePartition]
)
@settings(deadline=None, max_examples=40)
@given(partitions=st.integers(1, 4), lazy=st.booleans(), program=steps)
def test_batches_are_where_the_rules_put_them(mode, key_based, partitions, lazy, program):
    """Entry by entry, on every partition; and every id that is told is the one that is stored."""
    with tempfile.TemporaryDirectory() as folder:
        time = ManualTime(Path(folder) / "store")
        try:
            topic = PartitionedTopic(time.client, partitions)
            told = run(topic, time, mode, key_based, partitions, lazy, program)
            messages = [one for at in range(len(told[1].stored)) for one in topic.messages(at)]
            assert {int(one.data().split()[0]): one.message_id() for one in messages} == told[0]
            assert stored_entries(topic, len(told[1].stored)) == told[1].entries(key_based)
        finally:
            time.close()


def run(
    topic: PartitionedTopic,
    time: ManualTime,
    mode: PartitionsRoutingMode,
    key_based: bool,
    partitions: int,
    lazy: bool,
    program: list[Any],
) -> tuple[dict[int, MessageId], Model]:
    """Run a program on a producer and on the model."""
    told: dict[int, MessageId] = {}
    producer: Any = topic.producer(
        message_routing_mode=mode,
        batching_type=BatchingType.KeyBased if key_based else BatchingType.Default,
        batching_enabled=True,
        batching_max_messages=MOST,
        batching_max_allowed_size_in_bytes=BYTES,
        batching_max_publish_delay_ms=DELAY_MS,
        lazy_start_partitioned_producers=lazy,
    )
    turns = mode == PartitionsRoutingMode.RoundRobinDistribution
    model = Model(partitions, producer._publisher._router.current, turns)
    for number, (step, *arguments) in enumerate([*program, ("flush",)]):
        if step in ("send", "send_now"):
            size, key = arguments
            payload = b"%d" % number
            payload += b" " * (size - len(payload))
            if step == "send_now":
                told[number] = producer.send(payload, partition_key=key)
            else:
                producer.send_async(
                    payload,
                    lambda result, sent, number=number: told.update({number: sent}),
                    partition_key=key,
                )
            model.send(number, size, key, step == "send_now")
        elif step == "flush":
            producer.flush()
            model.leave_all(list(range(len(model.waiting))))
        elif step == "wait":
            time.pass_ms(3 * DELAY_MS)
            # Timers run in the order in which the batches were begun.
            model.leave_all(sorted(range(len(model.waiting)), key=lambda at: model.waiting[at][:1]))
        else:
            topic.grow(len(model.waiting) + arguments[0])
            model.grow(len(model.waiting) + arguments[0])
    producer.close()
    return told, model
