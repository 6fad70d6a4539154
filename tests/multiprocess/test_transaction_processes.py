"""Transactions of real processes: they race, are killed, and are stopped."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from embeddedpulsar._engine.txn.transaction import JoinedTransaction, Participant
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.exceptions import InvalidTxnStatusError
from tests.multiprocess.children import Child
from tests.transaction_site import Process, assert_whole, topic

PARTICIPANT = Participant(topic(1).key)


def say(*words: object) -> None:
    print(*words, flush=True)


def race(root: str, seed: str, durability: str) -> None:
    """Begin and end transactions until it is told to stop, or killed; say what is tried and answered."""
    rng = random.Random(int(seed))
    with Process(Path(root), durability=durability, compact_bytes=2000) as process:
        say("ready")
        for _ in range(100_000):
            transaction = process.begin()
            txn_id = transaction.id
            is_commit = rng.random() < 0.7
            say("try" if is_commit else "void", txn_id)
            if is_commit:
                transaction.commit()
                say("committed", txn_id)
            else:
                transaction.abort()


def hold(root: str, timeout_ms: str) -> None:
    """Begin one, say its id, and commit it when told to."""
    with Process(Path(root)) as process:
        transaction = process.begun(int(timeout_ms))
        say(transaction.id)
        sys.stdin.readline()
        try:
            transaction.commit()
            say("committed")
        except InvalidTxnStatusError as e:
            say(type(e).__name__)


def lend(root: str) -> None:
    """Begin one, hand its token over, commit it when told to."""
    with Process(Path(root)) as process:
        transaction = process.begin(resolve=lambda facts: PARTICIPANT)
        say(transaction.token.hex())
        sys.stdin.readline()
        transaction.commit()
        say(transaction.id)


@pytest.mark.parametrize("durability", ["process", "flush"])
def test_processes_race_and_are_killed(tmp_path: Path, durability: str) -> None:
    """No id comes twice; what was answered holds; the rest is whole or absent, and the same for all."""
    tried, committed, void = set[int](), set[int](), set[int]()
    begun: list[int] = []
    with Process(tmp_path, compact_bytes=2000) as reader:
        for round_number in range(3):
            children = [Child(race, tmp_path, 10 * round_number + number, durability) for number in range(3)]
            try:
                for child in children:
                    assert child.read() == "ready"
                time.sleep(0.3)  # they race
                reader.log.tend()
                for child in children:
                    child.kill()
                for child in children:
                    child.join()
                    assert child.process.stdout is not None
                    for line in child.process.stdout.read().splitlines():
                        kind, _, number = line.partition(" ")
                        if not number.isdecimal() or not line.endswith(number):
                            continue  # cut short by the kill
                        if kind in ("try", "void"):
                            begun.append(int(number))
                        {"try": tried, "void": void, "committed": committed}.get(kind, set()).add(int(number))
            finally:
                for child in children:
                    child.__exit__(None, None, None)
        reader.log.tend()
        assert len(begun) == len(set(begun)) and len(committed) > 20
        outcomes = {txn_id: reader.log.outcome(txn_id) for txn_id in begun}
        assert all(outcome.is_final for outcome in outcomes.values())
        assert all(outcomes[txn_id] is Outcome.COMMITTED for txn_id in committed)
        assert all(outcomes[txn_id] is Outcome.ABORTED for txn_id in void)
        assert_whole(reader.log)
    with Process(tmp_path, boot=b"C" * 16) as after:
        assert {txn_id: after.log.outcome(txn_id) for txn_id in begun} == outcomes
        assert after.damage == []


def test_a_reader_goes_on_when_the_owner_is_killed(tmp_path: Path) -> None:
    """It hears of the death, and does not wait for its back-stop."""
    with Process(tmp_path) as reader:
        waits = []
        for _ in range(3):
            with Child(hold, tmp_path, 900_000) as owner:
                txn_id = int(owner.read())
                assert reader.log.wait_for_outcome(txn_id, 0.05) is Outcome.UNDECIDED
                owner.kill()
                began = time.monotonic()
                assert reader.log.wait_for_outcome(txn_id, 10) is Outcome.ABORTED
                waits.append(time.monotonic() - began)
        assert min(waits) < 0.5
        assert_whole(reader.log)


def test_a_stopped_owner_is_waited_for_until_its_deadline(tmp_path: Path) -> None:
    """Then it is aborted, and its commit is refused when it runs again."""
    with Process(tmp_path) as reader, Child(hold, tmp_path, 700) as owner:
        txn_id = int(owner.read())
        os.kill(owner.process.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert reader.log.wait_for_outcome(txn_id, 30) is Outcome.ABORTED
            assert time.monotonic() - began > 0.2
        finally:
            os.kill(owner.process.pid, signal.SIGCONT)
        owner.tell("go")
        assert owner.read() == "TransactionTimeout"
        assert owner.join() == 0
        assert_whole(reader.log)


def test_a_reader_is_rung_by_another_process(tmp_path: Path) -> None:
    """Long before the back-stop."""
    with Process(tmp_path) as reader, Child(hold, tmp_path, 900_000) as owner:
        txn_id = int(owner.read())
        assert reader.log.announce(txn_id).outcome is Outcome.UNDECIDED
        generation = reader.mailbox.generation
        owner.tell("go")
        assert reader.mailbox.wait(generation, 30) != generation
        assert reader.log.outcome(txn_id) is Outcome.COMMITTED
        reader.log.end_wait(txn_id)
        assert owner.read() == "committed"
        assert owner.join() == 0


def test_a_worker_joins_from_another_process(tmp_path: Path) -> None:
    """By the token; it is refused once the transaction has ended."""
    with Process(tmp_path) as worker, Child(lend, tmp_path) as owner:
        token = bytes.fromhex(owner.read())
        joined = JoinedTransaction(worker.log, token)
        joined.enlist(PARTICIPANT)
        owner.tell("go")
        assert int(owner.read()) == joined.id
        assert worker.log.outcome(joined.id) is Outcome.COMMITTED
        with pytest.raises(InvalidTxnStatusError):
            joined.check_open()
        assert owner.join() == 0
