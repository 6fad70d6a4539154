"""A process is killed while outcomes go from the store into the topics: none of them changes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import TransactionWord
from embeddedpulsar._engine.format.entry import EntryContent, ProducerPrefix, encode
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store import transaction_folding
from embeddedpulsar._engine.store.root_layout import HOUSEKEEPING_LOCK, in_root
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.topic_transactions import FoldedOutcomes
from embeddedpulsar._engine.txn.transaction import Transaction
from embeddedpulsar._engine.txn.transaction_log import TransactionLog
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.message_id import BEFORE_FIRST
from embeddedpulsar.testing.trial_store import assert_clean

assert transaction_folding  # declares the points
PREFIX = ProducerPrefix("p")
TOPICS = ("a", "b")
FOLDING = ("fold:begun", "fold:document_written", "fold:topics_done")
LOWEST = ("txn:lowest_recorded", "txn:lowest_raised", "txn:table_unlinked")
DOCUMENT = ("document:written", "document:synced")


Expected = dict[int, tuple[Outcome, tuple[str, ...]]]
"""The outcome of a transaction, and the topics that it stored something in."""


def store_some(store: Store, log: TransactionLog) -> Expected:
    """Transactions in all topics, and the end of a range of ids."""
    outcomes: Expected = {}
    for number in range(6):
        transaction, names = Transaction(log, 900_000), TOPICS[number % 2 :]
        for name in names:
            content = EntryContent([b"x"], 0, False, transaction=(0, transaction.id))
            use = store.use_topic(name)
            use.topic.create_subscription("keeps", BEFORE_FIRST)  # no ledger is trimmed
            use.topic.ledger.append(encode(content, PREFIX), check_open=transaction.check_open)
            use.release()
        if number % 3:
            transaction.commit()
        else:
            transaction.abort()
        outcomes[transaction.id] = Outcome.COMMITTED if number % 3 else Outcome.ABORTED, names
    words = log.control.words
    words[TransactionWord.NEXT_ID] = words[TransactionWord.RESERVED]
    return outcomes


def fold(store: Store, log: TransactionLog) -> None:
    """Make all passes that are due, in place of the thread of housekeeping, which may be about to do so."""
    folder, lock = store.make_folder(store._current()), FileLock(in_root(store.root, HOUSEKEEPING_LOCK))
    try:
        lock.acquire(20)
        while folder.fold(log, []):
            pass
    finally:
        lock.release()
        lock.close()


def die_folding(root: Path, point: str, nth: int) -> bool:
    """Whether the child that folds what is there was killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            store = Store.open(root)
            log = store.transactions.log()
            failpoints.set(point, "kill", nth=nth)
            fold(store, log)
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status != 0


def check(store: Store, log: TransactionLog, expected: Expected) -> None:
    """Every topic and the log together know each outcome."""
    for name in TOPICS:
        use = store.use_topic(name)
        folded = FoldedOutcomes(use.topic.directory, log.lowest)
        use.release()
        for txn_id, (outcome, names) in expected.items():
            known = log.outcome(txn_id)
            if name not in names:
                continue
            if known is Outcome.FOLDED:
                known = Outcome.ABORTED if folded.is_aborted(txn_id) else Outcome.COMMITTED
            assert known is outcome, (name, txn_id)


@pytest.mark.parametrize("point", [*FOLDING, *LOWEST, *DOCUMENT])
def test_killed_at(tmp_path: Path, point: str) -> None:
    """The next process finds all outcomes, in the same boot and in a copy, and folds what is left."""
    deaths = 0
    for nth in (1, 2):
        root, copy = tmp_path / f"{nth}", tmp_path / f"copy-{nth}"
        store = Store.open(root)
        expected = store_some(store, store.transactions.log())
        fold(store, store.transactions.log())
        expected |= store_some(store, store.transactions.log())
        store.release()
        if not die_folding(root, point, nth):
            continue
        deaths += 1
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("clients"))
        for each in (root, copy):
            store = Store.open(each)
            log = store.transactions.log()
            check(store, log, expected)
            fold(store, log)
            check(store, log, expected)
            assert log.outcome(max(expected)) is Outcome.FOLDED
            expected_later = expected | store_some(store, log)
            fold(store, log)
            check(store, log, expected_later)
            store.release()
            assert_clean(each)
    assert deaths, f"{point} is never hit"
