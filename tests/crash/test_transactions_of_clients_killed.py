"""A program that consumes, transforms and produces in transactions is killed at every step: each transaction
is whole or absent, and its inputs are acknowledged if and only if its outputs are seen."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.subscription import shared_state
from embeddedpulsar._engine.txn import transaction_log
from embeddedpulsar.client import transaction as client_transaction
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.conftest import receive_all

assert shared_state
assert transaction_log
assert client_transaction  # these declare the points
INPUTS = 12
OUTPUTS = ("first", "second", "third")
# What a transaction passes: the log of decisions, the append of its messages, the journals of decisions and
# of the subscription, the client.
OTHERS = (
    "prepare",
    "abort_rec",
    "recovered",
    "compared",
    "lowest",
    "unlinked",
    "flush",
    "ending",
    "woken",
    "index_res",
    "deferred",
)
"""Of other ends, other levels and other processes; they have tests of their own."""
ENDS = ("journal:word_cleared", "journal:older_unlinked", "journal:unlinked", "journal:end_stored")
"""Of journals that end, or are replaced."""
POINTS = [
    name
    for name in failpoints.names()
    if name.startswith(("txn:", "append:", "journal:", "client_txn:", "transactions:"))
    and not any(word in name for word in (*OTHERS, *ENDS))
]
RARE = ("reserve", "table_", "abort_shown", "first_open")
"""Passed a few times."""
KINDS = {
    "shared": ConsumerType.Shared,
    "exclusive": ConsumerType.Exclusive,
}


def prepare(root: Path) -> None:
    """The topics, the subscriptions and the inputs."""
    with Client(root) as client:
        for kind in KINDS:
            client.subscribe(f"in-{kind}", "work", KINDS[kind]).close()
            with client.create_producer(f"in-{kind}") as producer:
                producer.send_many([b"%d" % number for number in range(INPUTS)])
        for name in OUTPUTS:
            client.subscribe(name, "all").close()


def work(root: Path) -> None:
    """Answer each input in three topics: sent alone, in a batch and as a column. Some passes fail."""
    with Client(root) as client:
        alone = client.create_producer("first")
        batched = client.create_producer("second", batching_enabled=True)
        columns = client.create_producer("third")
        for kind in KINDS:
            consumer = client.subscribe(f"in-{kind}", "work", KINDS[kind])
            passes = 0
            while messages := receive_all(consumer, 1)[:3]:
                passes += 1
                txn = client.new_transaction()
                answers = [kind.encode() + b" " + message.data() for message in messages]
                for answer in answers:
                    alone.send(answer, txn=txn)
                    batched.send_async(answer, None, txn=txn)
                columns.send_many(answers, txn=txn)
                if kind == "exclusive" and passes % 2:
                    consumer.acknowledge_cumulative(messages[-1], txn=txn)
                else:
                    consumer.acknowledge(messages, txn=txn)
                if passes == 2:
                    txn.abort()
                else:
                    txn.commit()
                consumer.redeliver_unacknowledged_messages()


def work_of_one_batch(root: Path) -> None:
    """Transactions that are one batch each, which their commits append; every fourth is aborted."""
    with Client(root) as client:
        producer = client.create_producer(
            "second", batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        for number in range(12):
            txn = client.new_transaction()
            for part in range(3):
                producer.send_async(b"%d-%d" % (number, part), None, txn=txn)
            if number % 4 == 3:
                txn.abort()
            else:
                txn.commit()
                with open(root.parent / "told", "ab") as told:
                    told.write(b"%d\n" % number)


def is_killed(root: Path, point: str, nth: int, work: Callable[[Path], None] = work) -> bool:
    """Do the work in a child that is killed at the nth hit of a failpoint; False if it got through."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            failpoints.set(point, "kill", nth=nth)
            work(root)
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0


def seen(client: Client, topic: str) -> Counter[bytes]:
    """All messages of an output."""
    with client.subscribe(topic, os.urandom(4).hex(), initial_position=InitialPosition.Earliest) as consumer:
        return Counter(message.data() for message in receive_all(consumer))


def check(root: Path) -> int:
    """Outputs are equal and without repetition, and the inputs of the others are still there."""
    with Client(root) as client:
        outputs = [seen(client, name) for name in OUTPUTS]
        assert outputs[0] == outputs[1] == outputs[2]
        assert set(outputs[0].values()) <= {1}
        for kind in KINDS:
            with client.subscribe(f"in-{kind}", "work", KINDS[kind]) as consumer:
                left = {kind.encode() + b" " + message.data() for message in receive_all(consumer)}
            done = {answer for answer in outputs[0] if answer.startswith(kind.encode())}
            assert not left & done and len(left) + len(done) == INPUTS
        return len(outputs[0])


@pytest.mark.parametrize("point", POINTS)
def test_killed(tmp_path: Path, point: str) -> None:
    """At each step; then another process goes on, and nothing is missing or twice."""
    prepare(tmp_path)
    assert is_killed(tmp_path, point, 1 if any(word in point for word in RARE) else 3)
    check(tmp_path)
    work(tmp_path)
    assert check(tmp_path) == INPUTS * len(KINDS)
    assert_clean(tmp_path)


@pytest.mark.parametrize("nth", [1, 5])
@pytest.mark.parametrize(
    "point",
    [
        "client_txn:deferred_encoded",
        "append:owner_set",
        "append:body_done",
        "append:index_done",
        "append:tail_stored",
        "append:owner_cleared",
        "append:unlocked",
        "client_txn:committed",
    ],
)
def test_killed_where_one_append_commits(tmp_path: Path, point: str, nth: int) -> None:
    """A transaction that is one batch is whole or absent, and seen if its commit returned."""
    root, told = tmp_path / "store", tmp_path / "told"
    prepare(root)
    assert is_killed(root, point, nth, work_of_one_batch)
    numbers = {int(line) for line in told.read_bytes().split()} if told.exists() else set()
    with Client(root) as client:
        read = seen(client, "second")
        assert set(read.values()) <= {1}
        whole = {int(text.split(b"-")[0]) for text in read}
        assert len(read) == 3 * len(whole) and numbers <= whole
        # Only the one under way may be committed without an answer, and is if its tail was stored.
        assert len(whole - numbers) <= 1
        is_stored = point in POINTS and POINTS.index(point) >= POINTS.index("append:tail_stored")
        assert bool(whole - numbers) == (is_stored or point == "client_txn:committed")
        with client.create_producer("second") as producer:
            producer.send(b"after")
        assert seen(client, "second") == read + Counter([b"after"])
    assert_clean(root)
