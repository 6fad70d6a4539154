"""Random programs of sends, compactions, trims and reopenings, compared with a list and a dictionary."""

from __future__ import annotations

import contextlib
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, InitialPosition, MessageId
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.compacting import TOPIC, Found, compact, compacted, next_ledger, rest_of

STEPS = 60
WORDS = (
    "send send send batch batch chunked roll compact compact trim reopen look start_at view run consume"
).split()


class Program:
    """A store and everything that was sent, in order."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.keeps_keyless = seed % 2 == 1
        root.mkdir()
        (root / "broker.conf").write_text(
            f"topicCompactionRetainNullKey={self.keeps_keyless}\nmaxMessageSize=20000\n"
        )
        self.sent: list[Found] = []
        self.horizon = 0
        self.run_begun = 0
        self.open()
        self.admin.topics().create_non_partitioned_topic(TOPIC)
        self.admin.topics().set_compaction_threshold(TOPIC, 1 << 40)  # the log is kept until it is compacted
        self.runner: Any = None
        self.run_of: list[Found] = []

    def open(self) -> None:
        self.client, self.admin = Client(self.root), Admin(self.root)

    # -- sending -------------------------------------------------------------------------------------------

    def pair(self) -> tuple[str | None, bytes | None]:
        key = self.random.choice(
            ["", *(f"k{n}" for n in range(9)), *(f"{n}-{'long' * 20}" for n in range(3))]
        )
        value = self.random.choice([None, b"", *(b"%d-%d" % (len(self.sent), n) for n in range(8))])
        return key or None, value

    def publish(self, pairs: list[tuple[str | None, bytes | None]], **options: Any) -> None:
        def note(key: str | None, value: bytes | None) -> Any:
            return lambda _, found: self.sent.append((found, key or "", value or b""))

        with self.client.create_producer(TOPIC, **options) as producer:
            for key, value in pairs:
                producer.send_async(value, note(key, value), partition_key=key)
            producer.flush()

    def send(self) -> None:
        self.publish([self.pair() for _ in range(self.random.randint(1, 6))])

    def batch(self) -> None:
        pairs = [self.pair() for _ in range(self.random.randint(1, 12))]
        self.publish(pairs, batching_enabled=True, batching_max_publish_delay_ms=60_000)

    def chunked(self) -> None:
        key, value = self.pair()
        self.publish([(key, (value or b"x") * 9000)], chunking_enabled=True)

    def roll(self) -> None:
        next_ledger(self.client)

    # -- compacting ----------------------------------------------------------------------------------------

    def compact(self) -> None:
        compact(self.admin)
        self.horizon = len(self.sent)

    def trim(self) -> None:
        self.admin.topics().trim_topic(TOPIC)

    def reopen(self) -> None:
        self.end_run()
        self.client.close()
        self.admin.close()
        assert_clean(self.root)
        self.open()

    # -- comparing -----------------------------------------------------------------------------------------

    def left(self) -> list[Found]:
        """What those get that read compacted from the beginning."""
        newest = {key: number for number, (_, key, _) in enumerate(self.sent[: self.horizon])}
        kept = [
            one
            for number, one in enumerate(self.sent[: self.horizon])
            if (self.keeps_keyless and not one[1]) or (one[1] and newest[one[1]] == number and one[2])
        ]
        return kept + self.sent[self.horizon :]

    def same(self, found: list[Found], expected: list[Found]) -> None:
        assert [one[1:] for one in found] == [one[1:] for one in expected]
        assert [repr(one[0]) for one in found] == [repr(one[0]) for one in expected]

    def look(self) -> None:
        size = self.random.choice([1, 3, 1000])
        self.same(compacted(self.client, receiver_queue_size=size), self.left())

    def start_at(self) -> None:
        if self.sent:
            start = self.random.choice(self.sent)[0]
            if getattr(start, "_first_chunk", None) is None:
                is_inclusive = self.random.random() < 0.5
                expected = [
                    one for one in self.left() if one[0] > start or (is_inclusive and one[0] == start)
                ]
                found = compacted(self.client, start, start_message_id_inclusive=is_inclusive)
                self.same(found, expected)

    def view(self) -> None:
        expected = {key: value for _, key, value in self.sent}
        with self.client.create_table_view(TOPIC) as view:
            assert {key: view.get(key) for key in view} == {k: v for k, v in expected.items() if k and v}

    def run(self) -> None:
        """A reader that goes on a little, across compactions."""
        if self.runner is None:
            self.runner = self.client.create_reader(
                TOPIC,
                MessageId.earliest,
                is_read_compacted=True,
                receiver_queue_size=self.random.choice([1, 2, 5]),
            )
            self.run_of, self.run_begun = [], self.first_ledger()
        for _ in range(self.random.randint(1, 12)):
            if self.runner.has_message_available():
                message = self.runner.read_next(1000)
                self.run_of.append((message.message_id(), message.partition_key(), message.data()))

    def end_run(self) -> None:
        if self.runner is None:
            return
        self.run_of += rest_of(self.runner)
        self.runner.close()
        self.runner = None
        ids = [one[0] for one in self.run_of]
        assert all(one < other for one, other in pairwise(ids))
        sent = {repr(one[0]): one[1:] for one in self.sent}
        assert all(sent[repr(one[0])] == one[1:] for one in self.run_of)
        newest = {key: value for _, key, value in self.sent}
        found = {key: value for _, key, value in self.run_of}
        was_trimmed = self.first_ledger() > self.run_begun  # then removals may be missed
        for key, value in newest.items():
            if key and (value or not was_trimmed):
                assert found.get(key, b"") == value

    def first_ledger(self) -> int:
        """The first one that is retained."""
        ledgers = self.admin.topics().get_internal_stats(TOPIC).ledgers
        return ledgers[0].ledger_id if ledgers else 0

    def consume(self) -> None:
        """A subscription that is left in the middle, and then taken up again."""
        if not self.sent:
            return
        self.admin.topics().trim_topic(TOPIC)  # or housekeeping does it in the middle
        expected, retained = self.left(), self.first_ledger()
        some = self.received(self.random.randint(0, len(expected)))
        self.same(some, expected[: len(some)])
        self.admin.topics().trim_topic(TOPIC)
        rest = self.received(len(expected))
        if any(one[0].ledger_id() >= retained for one in some):
            self.same(some + rest, expected)
        else:  # nothing that the log has was acknowledged: it begins anew
            self.same(rest, expected)
        self.admin.topics().delete_subscription(TOPIC, "sub")

    def received(self, most: int) -> list[Found]:
        """Messages that a consumer gets and acknowledges."""
        found: list[Found] = []
        is_single = self.random.random() < 0.5
        with contextlib.closing(
            self.client.subscribe(
                TOPIC,
                "sub",
                is_read_compacted=True,
                initial_position=InitialPosition.Earliest,
                receiver_queue_size=self.random.choice([1, 4, 1000]),
                batch_index_ack_enabled=True,
            )
        ) as consumer:
            while len(found) < most and (message := consumer.receive_nowait()) is not None:
                found.append((message.message_id(), message.partition_key(), message.data()))
                if is_single:
                    consumer.acknowledge(message)
            if found and not is_single:
                consumer.acknowledge_cumulative(found[-1][0])
        return found

    def close(self) -> None:
        self.look()
        self.view()
        self.end_run()
        self.client.close()
        self.admin.close()


@pytest.mark.parametrize("seed", range(15))
def test_random_programs(tmp_path: Path, seed: int):
    """Readers, table views and consumers get what the model says, and running readers miss nothing."""
    program = Program(tmp_path / "store", seed)
    for number in range(STEPS):
        word = program.random.choice(WORDS)
        try:
            getattr(program, word)()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {number}: {word}")
            raise
    program.close()
    assert_clean(tmp_path / "store")
