"""The function of a storm over workers, and the check of what it left: `function_storm`."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any, Final

from embeddedpulsar import Admin, Client, Function, InitialPosition, MessageId
from embeddedpulsar.functions import FunctionConfig, ProcessingGuarantees

INPUT: Final = "storm"
OUTPUT: Final = "storm-counted"
SIDE: Final = "storm-side"
NAME: Final = "Tally"
INPUTS: Final = 4
"""Partitions of the input; the outputs have two."""
_KEYS: Final = 20
_FAILS: Final = 0.002

_PLACE: Final = "public", "default", NAME


class Tally(Function):
    """Counts its inputs, in all and by key. What it publishes differs from run to run, so that outputs of a
    run that was not committed are recognized."""

    def __init__(self) -> None:
        self._chance = random.Random()

    def process(self, input: Any, context: Any) -> str:
        """Count a number; now and then, fail behind the changes."""
        key = context.get_message_key()
        context.incr_counter("all", 1)
        context.incr_counter(f"key {key}", 1)
        context.put_state(f"last {key}", str(input))
        token = self._chance.randrange(1 << 30)
        count = self._chance.randrange(3)
        for index in range(count):
            context.publish(SIDE, f"{input} {token} {index}", message_conf={"partition_key": key})
        if self._chance.random() < _FAILS:
            raise RuntimeError("the function fails now and then")
        return f"{input} {token} {count}"


def prepare(root: str) -> None:
    """Make the topics, and create the function."""
    with Admin(root) as admin:
        admin.topics().create_partitioned_topic(INPUT, INPUTS)
        for topic in (OUTPUT, SIDE):
            admin.topics().create_partitioned_topic(topic, 2)
            admin.topics().set_retention(topic, -1, -1)  # nothing reads them until the end
        config = FunctionConfig(
            inputs=[INPUT],
            output=OUTPUT,
            processing_guarantees=ProcessingGuarantees.EFFECTIVELY_ONCE,
            subscription_position=InitialPosition.Earliest,
            parallelism=3,
        )
        admin.functions().create_function(config, Tally)


def publish(client: Client, first: int, count: int) -> None:
    """Publish numbers, each under its key."""
    numbers = range(first, first + count)
    with client.create_producer(INPUT) as producer:
        producer.send_many(
            [b"%d" % number for number in numbers],
            partition_keys=[str(number % _KEYS) for number in numbers],
            batching_max_messages=random.Random(first).choice((1, 7)),
        )


def counted(admin: Admin) -> int:
    """How many inputs are counted as processed."""
    try:
        found = admin.functions().get_function_state(*_PLACE, "all")
    except LookupError:
        return 0
    assert isinstance(found, int)
    return found


class FunctionVerdict:
    """What must be true when all inputs are processed: each is counted once, and published once, with the
    outputs of one run and no other; those of a key in order."""

    def __init__(self, root: str, inputs: int) -> None:
        self.problems: list[str] = []
        self.side = 0
        self._inputs: Final = inputs
        with Client(root) as client, Admin(root) as admin:
            runs = self._judge_outputs(_read(client, OUTPUT))
            self._judge_side(_read(client, SIDE), runs)
            self._judge_state(admin)

    def _judge_outputs(self, found: list[tuple[str, list[int]]]) -> dict[int, tuple[int, int]]:
        runs: dict[int, tuple[int, int]] = {}
        last: dict[tuple[str, int], int] = defaultdict(lambda: -1)
        times = Counter(numbers[0] for _, numbers in found)
        missing = [number for number in range(self._inputs) if number not in times]
        twice = [number for number, count in times.items() if count > 1]
        if missing or twice:
            self.problems.append(f"outputs: {len(missing)} missing {missing[:5]}, repeated {twice[:5]}")
        for topic, (number, token, count) in found:
            runs[number] = token, count
            place = topic, number % _KEYS
            if number < last[place]:
                self.problems.append(f"{topic}: {number} follows {last[place]}")
            last[place] = number
        return runs

    def _judge_side(self, found: list[tuple[str, list[int]]], runs: dict[int, tuple[int, int]]) -> None:
        self.side = len(found)
        by_number: dict[int, list[tuple[int, int]]] = defaultdict(list)
        last: dict[int, int] = defaultdict(lambda: -1)
        for topic, (number, token, index) in found:
            by_number[number].append((token, index))
            if number < last[number % _KEYS]:
                self.problems.append(f"{topic}: {number} follows {last[number % _KEYS]}")
            last[number % _KEYS] = number
        for number, (token, count) in runs.items():
            expected = [(token, index) for index in range(count)]
            if by_number[number] != expected:
                self.problems.append(f"{number} published {by_number[number]} beside {expected}")

    def _judge_state(self, admin: Admin) -> None:
        def state(key: str) -> object:
            return admin.functions().get_function_state(*_PLACE, key)

        if state("all") != self._inputs:
            self.problems.append(f"{state('all')} of {self._inputs} are counted")
        for key in range(_KEYS):
            numbers = range(key, self._inputs, _KEYS)
            if (state(f"key {key}"), state(f"last {key}")) != (len(numbers), str(numbers[-1])):
                found = state(f"key {key}"), state(f"last {key}")
                self.problems.append(f"key {key}: {found} instead of {len(numbers), numbers[-1]}")


def _read(client: Client, topic: str) -> list[tuple[str, list[int]]]:
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [(one.topic_name(), [int(word) for word in one.data().split()]) for one in reader]
