"""Transactions between threads: one end each, shared flushes; and what they cost in calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from embeddedpulsar._engine.format.control import TransactionWord
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.disk import Disk
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.txn import shared_transactions
from embeddedpulsar._engine.txn.transaction import JoinedTransaction, Transaction
from embeddedpulsar._engine.txn.transaction_state import Outcome, PreparedTransaction, SlotState
from embeddedpulsar.exceptions import (
    InvalidTxnStatusError,
    LockTimeout,
    NotAllowedError,
    PulsarException,
    TransactionNotFound,
)
from tests.transaction_site import Process, RecordingTopic, assert_whole


def in_threads(*functions: Callable[[], object]) -> None:
    """Call each in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_one_of_two_ends_wins(tmp_path: Path) -> None:
    """Commits and aborts of one transaction, of the process and of an operator, at the same time."""
    with Process(tmp_path) as process, Process(tmp_path) as operator:
        for _ in range(20):
            transaction = process.begun()
            answers: list[str] = []

            def end(what: Callable[[], object], answer: str, answers: list[str] = answers) -> None:
                try:
                    what()
                    answers.append(answer)
                except InvalidTxnStatusError:
                    pass

            in_threads(
                partial(end, transaction.commit, "committed"),
                partial(end, transaction.abort, "aborted"),
                partial(end, partial(operator.log.abort, transaction.id), "aborted"),
            )
            assert len(set(answers)) == 1, answers
            outcome = operator.log.outcome(transaction.id)
            assert outcome is (Outcome.COMMITTED if answers[0] == "committed" else Outcome.ABORTED)
        assert_whole(process.log)


class SlowDisk(Disk):
    """The first flush of a journal waits until the test lets it go; all are counted."""

    def __init__(self) -> None:
        self.flushes = 0
        self.begun = threading.Event()
        self.go = threading.Event()

    def fdatasync(self, fd: int, path: str) -> None:
        if "journal" in path:
            self.flushes += 1
            self.begun.set()
            assert self.go.wait(60)
        super().fdatasync(fd, path)


@contextmanager
def during_its_flush(call: Callable[[], object]) -> Iterator[tuple[SlowDisk, list[object]]]:
    """Call it in a thread, whose flush returns at the end of the block, or when the disk is told to go on.

    Yields:
        The disk, and a list which has what the call returned or raised behind the block.
    """
    answers: list[object] = []

    def answer() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            answers.append(error)

    with disk.use(SlowDisk()) as slow:
        assert isinstance(slow, SlowDisk)
        thread = threading.Thread(target=answer)
        thread.start()
        assert slow.begun.wait(60)
        yield slow, answers
        slow.go.set()
        thread.join(60)


def test_one_flush_is_for_all_that_wait(tmp_path: Path) -> None:
    """Eight commits, while the flush of the first is under way: one more."""
    with Process(tmp_path, durability="flush") as process:
        process.begun().commit()
        transactions = [process.begun() for _ in range(9)]
        with disk.use(SlowDisk()) as slow:
            assert isinstance(slow, SlowDisk)
            first = threading.Thread(target=transactions[0].commit)
            first.start()
            assert slow.begun.wait(60)
            others = [threading.Thread(target=each.commit) for each in transactions[1:]]
            for thread in others:
                thread.start()
            while [slot.state for slot in process.log.open_transactions()] != [SlotState.DECIDED] * 9:
                threading.Event().wait(0.001)
            assert {process.log.outcome(each.id) for each in transactions} == {Outcome.UNDECIDED}
            slow.go.set()
            for thread in (first, *others):
                thread.join(60)
            assert slow.flushes == 2
        assert {process.log.outcome(each.id) for each in transactions} == {Outcome.COMMITTED}
        assert_whole(process.log)


def test_who_waits_flushes_for_a_process_that_died_there(tmp_path: Path) -> None:
    """It had decided: the transaction is committed, not aborted."""
    with Process(tmp_path, durability="flush") as reader:
        victim = Process(tmp_path, durability="flush")
        transaction = victim.begun()
        failpoints.set("txn:before_flush", "raise")
        try:
            with pytest.raises(failpoints.InjectedFailure):
                transaction.commit()
        finally:
            failpoints.clear()
        assert reader.log.wait_for_outcome(transaction.id, 0.0) is Outcome.UNDECIDED
        assert reader.log.announce(transaction.id).outcome is Outcome.UNDECIDED
        reader.log.end_wait(transaction.id)
        victim.die()
        assert reader.log.wait_for_outcome(transaction.id, 10) is Outcome.COMMITTED
        assert_whole(reader.log)


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ABORTED])
def test_what_is_prepared_is_ended_before_its_flush_returns(tmp_path: Path, outcome: Outcome) -> None:
    """Preparing it was done all the same, durably; it is told of the end when it asks."""
    with Process(tmp_path) as process, Process(tmp_path) as other:
        process.begun().commit()
        transaction = process.begun()
        with during_its_flush(partial(transaction.prepare, "invoice-1", 1 << 50)) as (_, answers):
            (prepared,) = other.log.prepared()
            resumed = Transaction.resume(other.log, prepared)
            if outcome is Outcome.COMMITTED:
                resumed.commit()
            else:
                resumed.abort()
        (answer,) = answers
        assert isinstance(answer, PreparedTransaction), answer
        assert answer[:2] == prepared[:2] and answer.deadline_ms == prepared.deadline_ms
        assert transaction.state.name == process.log.outcome(transaction.id).name == outcome.name
        with pytest.raises(TransactionNotFound, match="ended"):
            transaction.prepare("invoice-1")
        if outcome is Outcome.COMMITTED:
            transaction.commit()
        else:
            transaction.abort()
        assert_whole(process.log)


def forget_all(process: Process) -> None:
    """Let a process that looks for the first time know no outcome: all are folded."""
    words = process.log.control.words
    words[TransactionWord.NEXT_ID] = words[TransactionWord.RESERVED]
    process.begun().commit()
    process.log.raise_lowest(1 << 40)


def test_a_commit_is_forgotten_before_its_flush_returns(tmp_path: Path) -> None:
    """Others show what a stopped process decided, and fold it: its commit was successful."""
    with Process(tmp_path, durability="flush") as process, Process(tmp_path) as other:
        transaction = process.begun()
        with during_its_flush(transaction.commit) as (slow, answers):
            # As if it stood behind its flush, where another one may show the outcome.
            words = other.log.control.words
            words[TransactionWord.SYNCED] = words[TransactionWord.JOURNAL]
            assert other.log.announce(transaction.id).outcome is Outcome.COMMITTED
            process.log._shared.forget_tables(1 << 40)
            slow.go.set()
            forget_all(other)
        assert answers == [None]
        assert transaction.state.name == "COMMITTED"
        transaction.commit()


def test_what_was_aborted_and_forgotten_is_not_told_as_committed(tmp_path: Path) -> None:
    """A process that was stopped for long: it was aborted at its timeout, since it did not commit it."""
    with Process(tmp_path) as process, Process(tmp_path) as other:
        begun = [process.begun() for _ in range(3)]
        for transaction in begun:
            other.log.abort(transaction.id)
        process.log._shared.forget_tables(1 << 40)
        forget_all(other)
        committing, preparing, aborting = begun
        for call in (committing.commit, preparing.prepare):
            with pytest.raises(InvalidTxnStatusError, match="was aborted"):
                call()
        aborting.abort()
        assert {transaction.state.name for transaction in begun} == {"ABORTED"}


def test_a_prepared_one_that_is_forgotten_is_not_found(tmp_path: Path) -> None:
    """Nobody knows how it ended."""
    with Process(tmp_path) as process, Process(tmp_path) as other:
        transaction = process.begun()
        prepared = transaction.prepare("invoice-1")
        Transaction.resume(other.log, prepared).commit()
        process.log._shared.forget_tables(1 << 40)
        forget_all(other)
        for call in (transaction.commit, transaction.abort, Transaction.resume(process.log, prepared).commit):
            with pytest.raises(TransactionNotFound, match="so long ago"):
                call()


def test_a_commit_that_did_not_answer_is_asked_again(tmp_path: Path) -> None:
    """It had decided, in a transaction that others joined; what failed since does not undo it."""
    with Process(tmp_path, durability="flush") as process, Process(tmp_path) as other:
        for failure in (None, PulsarException("no room")):
            transaction = process.begun()
            joined = JoinedTransaction(other.log, transaction.token)
            joined.enlist(RecordingTopic(3).participant())
            failpoints.set("txn:before_flush", "raise")
            try:
                with pytest.raises(failpoints.InjectedFailure):
                    transaction.commit()
            finally:
                failpoints.clear()
            if failure is not None:
                transaction.fail(failure)
            transaction.commit()
            assert transaction.state.name == process.log.outcome(transaction.id).name == "COMMITTED"
        assert_whole(process.log)


def test_the_slot_of_one_that_ended_is_that_of_another(tmp_path: Path) -> None:
    """Which others joined: it is not asked to wait for them."""
    with Process(tmp_path) as process, Process(tmp_path) as other:
        transaction = process.begun()
        Transaction.resume(other.log, transaction.prepare("invoice-1")).commit()
        following = other.begun()
        JoinedTransaction(process.log, following.token).enlist(RecordingTopic(3).participant())
        transaction.commit()
        following.commit()
        assert_whole(process.log)


def test_a_held_lock_times_out(tmp_path: Path) -> None:
    """The error names the holder; outcomes are read all the same, and the end can be asked for again."""
    with Process(tmp_path) as holder, Process(tmp_path, lock_timeout_s=0.05) as process:
        transaction, known = process.begun(), process.begun()
        known.commit()
        inside, go = threading.Event(), threading.Event()

        def hold() -> None:
            holder.log._shared.section(lambda: inside.set() or go.wait(60))

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            assert inside.wait(60)
            with pytest.raises(LockTimeout, match=r"process [0-9]+"):
                transaction.commit()
            assert process.log.outcome(known.id) is Outcome.COMMITTED
            assert process.log.outcome(transaction.id) is Outcome.UNDECIDED
        finally:
            go.set()
            thread.join(60)
        transaction.commit()
        assert_whole(process.log)


def test_a_signal_handler_is_refused_inside(tmp_path: Path) -> None:
    """It would meet what the interrupted call was changing."""
    with Process(tmp_path) as process:
        with pytest.raises(NotAllowedError, match="signal handler"):
            process.log._shared.section(lambda: process.log.joined(1))
        process.begun().commit()


def calls_of(function: Callable[[], object]) -> int:
    """How many Python functions run in a call."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_what_it_costs_in_calls(tmp_path: Path) -> None:
    """An operation: one load. An empty transaction: next to nothing. A commit: some 90."""
    with Process(tmp_path) as process:
        log = process.log
        for _ in range(3):
            process.begun().commit()

        def empty() -> None:
            Transaction(log).commit()

        def one() -> None:
            transaction = Transaction(log)
            assert transaction.id
            transaction.check_open()
            transaction.commit()

        is_open = process.begun()
        assert calls_of(lambda: is_open.check_open()) == 2
        assert calls_of(lambda: log.outcome(1)) == 2
        assert calls_of(empty) <= 12
        assert calls_of(one) <= 95


def test_two_threads_make_the_sync_lock_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever another thread comes between, both have the same one, and the other is closed."""
    with Process(tmp_path) as process:
        shared = process.log._shared
        made: list[FileLock] = []

        def make(path: str) -> FileLock:
            lock = FileLock(path)
            made.append(lock)
            if len(made) == 1:
                assert shared._sync_lock_of() is made[1]  # another thread, which is faster
            return lock

        monkeypatch.setattr(shared_transactions, "FileLock", make)
        assert shared._sync_lock_of() is made[1] and shared._sync_lock_of() is made[1]
        with pytest.raises(ValueError, match="is closed"):
            made[0].acquire()
