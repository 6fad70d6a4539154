"""A process is killed at every step of a transaction: each is whole or absent, and the same for all."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import TransactionWord
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.txn import transaction_log
from embeddedpulsar._engine.txn.transaction import JoinedTransaction, Participant, Transaction
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.exceptions import PulsarException
from tests.transaction_site import NEVER, Process, assert_whole, topic

assert transaction_log  # declares the points
POINTS = sorted(name for name in failpoints.names() if name.startswith("txn:"))
SHARED = sorted(
    name for name in failpoints.names() if name.startswith(("journal:", "compact:")) and "remov" not in name
)
NEVER_HIT = {
    "journal:end_stored",
    "journal:word_cleared",
    "journal:older_unlinked",
    "journal:unlinked",
}
"""Of a journal that ends, which that of the transactions does not."""
NEXT_BOOT = b"C" * 16
Report = Callable[[str], object]


def work(root: Path, durability: str, report: Report) -> None:
    """What the victim does: every way a transaction can go, in ranges of ids that end."""
    with Process(root, durability=durability, compact_bytes=300) as process:
        log = process.log
        report("opened")
        log.note_compared(log.recovered(), 0)
        for number in range(4):
            if number == 2:  # the next id begins a range
                words = log.control.words
                words[TransactionWord.NEXT_ID] = words[TransactionWord.RESERVED]
            for kind in (
                "commit",
                "abort",
                "prepare commit",
                "prepare abort",
                "prepare",
                "join",
                "join abort",
            ):
                transaction = Transaction(log, NEVER, kind, lambda facts: Participant(facts.key))
                txn_id = transaction.id
                report(f"begin {txn_id} {kind}")
                transaction.enlist(Participant(topic(number).key, partial(topic, number)))
                if "join" in kind:
                    JoinedTransaction(log, transaction.token).enlist(Participant(topic(9).key))
                if "prepare" in kind:
                    report(f"try prepare {txn_id}")
                    transaction.prepare(f"label {txn_id}")
                    report(f"prepared {txn_id}")
                if "abort" in kind:
                    transaction.abort()
                    report(f"aborted {txn_id}")
                elif kind != "prepare":
                    report(f"try commit {txn_id}")
                    transaction.commit()
                    report(f"committed {txn_id}")
                else:
                    report(f"left {txn_id}")
            for waiting in log.prepared():
                report(f"try commit {waiting.txn_id}")
                Transaction.resume(log, waiting).commit()
                report(f"committed {waiting.txn_id}")
            last = log.control.words[TransactionWord.NEXT_ID] if number == 3 else 0
            report(f"fold {last - 6}" if last else "round")
        for txn_id in range(last - 6, last):
            report(f"known {txn_id}")
        log.raise_lowest(last - 6)


def die_at(root: Path, point: str, nth: int, durability: str) -> list[str] | None:
    """Run the victim in a child that is killed at the nth hit of a failpoint; None if it gets through."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            failpoints.set(point, "kill", nth=nth)
            work(root, durability, lambda line: os.write(writer, line.encode() + b"\n"))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = lines.read().splitlines()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return told
    assert status == 0, told
    return None


def ids(told: list[str], start: str) -> set[int]:
    return {int(line.split()[-1 if start != "begin" else 1]) for line in told if line.startswith(start)}


def check_what_is_left(root: Path, told: list[str], *, boot: bytes | None = None) -> None:
    """What was answered holds; what was not tried is not there; nothing is left open; ids go on."""
    options = {} if boot is None else {"boot": boot}
    with Process(root, compact_bytes=300, **options) as survivor:  # type: ignore[arg-type]
        log = survivor.log
        log.tend()
        waiting = {prepared.txn_id for prepared in log.prepared()}
        begun, lowest = ids(told, "begin"), min(ids(told, "known"), default=0)
        for txn_id in begun:
            outcome = log.outcome(txn_id)
            if outcome is Outcome.FOLDED:
                assert lowest and txn_id < lowest
                continue
            if f"committed {txn_id}" in told:
                assert outcome is Outcome.COMMITTED, txn_id
            elif f"aborted {txn_id}" in told:
                assert outcome is Outcome.ABORTED, txn_id
            elif f"try commit {txn_id}" in told:
                if f"prepared {txn_id}" in told:
                    assert outcome in (Outcome.COMMITTED, Outcome.PREPARED), txn_id
                else:
                    assert outcome in (Outcome.COMMITTED, Outcome.ABORTED), txn_id
            elif f"prepared {txn_id}" in told:
                # An abort may have begun.
                assert outcome in (Outcome.PREPARED, Outcome.ABORTED), txn_id
                if f"left {txn_id}" in told:
                    assert outcome is Outcome.PREPARED
            elif f"try prepare {txn_id}" in told:
                assert outcome in (Outcome.PREPARED, Outcome.ABORTED), txn_id
            else:
                assert outcome is Outcome.ABORTED, txn_id
            assert (outcome is Outcome.PREPARED) == (txn_id in waiting)
        for prepared in log.prepared():
            assert prepared.label == f"label {prepared.txn_id}"
            Transaction.resume(log, prepared).commit()
        transaction = survivor.begun()
        assert transaction.id > max(begun, default=0)
        transaction.commit()
        assert_whole(log)
        assert survivor.damage == []


@pytest.mark.parametrize("point", [*POINTS, *SHARED])
def test_killed_at(tmp_path: Path, point: str) -> None:
    """The survivor in the same boot, and one that has only a copy of the files, as after a reboot."""
    deaths = 0
    for nth in (1, 2, 3, 8, 21):
        root = tmp_path / f"{nth}"
        root.mkdir()
        told = die_at(root, point, nth, "process" if nth & 1 else "flush")
        if told is None:
            break
        deaths += 1
        copy = tmp_path / f"copy-{nth}"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("clients"))
        check_what_is_left(root, told)
        check_what_is_left(copy, told)
        shutil.rmtree(root)
        shutil.rmtree(copy)
    if point in NEVER_HIT:
        assert deaths == 0
    else:
        assert deaths, f"{point} is never hit"


@pytest.mark.parametrize("point", POINTS)
def test_an_exception_is_as_a_death(tmp_path: Path, point: str) -> None:
    """An interrupt in the section: the process lives, and the next call finishes what was begun."""
    with Process(tmp_path, compact_bytes=300) as process:
        for nth in (1, 2, 4):
            failpoints.set(point, "raise:KeyboardInterrupt", nth=nth)
            told: list[str] = []
            try:
                with Process(tmp_path, compact_bytes=300, durability="flush") as victim:
                    try:
                        work_in(victim, told.append)
                    except (KeyboardInterrupt, PulsarException):
                        pass
            finally:
                failpoints.clear()
        transaction = process.begun()
        transaction.commit()
        for prepared in process.log.prepared():
            Transaction.resume(process.log, prepared).abort()
        assert_whole(process.log)


def work_in(process: Process, report: Report) -> None:
    """A few of each kind."""
    log = process.log
    for kind in ("commit", "abort", "prepare", "join"):
        transaction = Transaction(log, NEVER, kind, lambda facts: Participant(facts.key))
        if kind == "join":
            JoinedTransaction(log, transaction.token).enlist(Participant(topic(9).key))
        if kind == "prepare":
            transaction.prepare("x")
        if kind == "abort":
            transaction.abort()
        else:
            transaction.commit()
        report(str(transaction.id))
    log.raise_lowest(transaction.id)
