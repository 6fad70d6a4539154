"""The transactions of a store: opened by the first use, shared, looked after, and closed with the store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar import Client, ConsumerType
from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.frame import FORMAT_VERSION, REVISED_VERSION
from embeddedpulsar._engine.store import store_transactions
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.store_root import read_meta
from embeddedpulsar._engine.txn.transaction import Transaction
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.exceptions import AlreadyClosed, NotAllowedError, ReadOnlyStoreError
from embeddedpulsar.testing import ManualClock


def format_of(root: Path) -> int:
    meta = read_meta(str(root))
    assert meta is not None
    return meta.format


def test_a_store_without_transactions_pays_nothing(tmp_path: Path) -> None:
    """No file, no log; it stays one for releases that know none."""
    store = Store.open(tmp_path)
    assert not store.transactions.exists and store.transactions.existing() is None
    assert store.transactions.outcomes([]) == []
    assert store.transactions.do_chores([]) is False
    store.release()
    assert not (tmp_path / "txn").exists() and format_of(tmp_path) == FORMAT_VERSION


def test_the_log_is_opened_once_and_closed_with_the_store(tmp_path: Path) -> None:
    """No descriptor is left, and what uses it then is refused."""
    store = Store.open(tmp_path)
    before = set(os.listdir("/proc/self/fd"))
    log = store.transactions.log()
    assert log is store.transactions.log() is store.transactions.existing()
    assert store.transactions.exists and format_of(tmp_path) == REVISED_VERSION
    transaction = Transaction(log)
    assert store.transactions.outcome(transaction.id) is Outcome.UNDECIDED
    transaction.commit()
    assert store.transactions.outcome(transaction.id) is Outcome.COMMITTED
    store.release()
    with pytest.raises(AlreadyClosed):
        transaction.token  # noqa: B018 - asks the log
    assert set(os.listdir("/proc/self/fd")) < before  # the store's own are closed, too


def test_the_constants_are_those_of_the_engine() -> None:
    """They are written twice, so that most processes need not import either module."""
    assert store_transactions._FINAL == (Outcome.COMMITTED, Outcome.ABORTED)
    assert store_transactions._FINAL == (record.COMMITTED, record.ABORTED)
    assert store_transactions._FOLDED == Outcome.FOLDED


def test_the_setting_limits_what_is_open(tmp_path: Path) -> None:
    """One more is refused, by a text that names the setting."""
    Store.open(tmp_path).release()
    (tmp_path / "broker.conf").write_text("maxActiveTransactionsPerCoordinator=2\n")
    store = Store.open(tmp_path)
    log = store.transactions.log()
    first, second = Transaction(log), Transaction(log)
    assert (first.id, second.id) == (1, 2)
    with pytest.raises(NotAllowedError, match="maxActiveTransactionsPerCoordinator"):
        Transaction(log).id  # noqa: B018 - opens the slot
    first.abort()
    assert Transaction(log).id == 3
    store.release()


def test_a_store_that_is_open_read_only_knows_outcomes(tmp_path: Path) -> None:
    """By looking; it has no log."""
    store = Store.open(tmp_path)
    log = store.transactions.log()
    committed, late = Transaction(log), Transaction(log)
    committed.id, late.id  # noqa: B018 - open the slots
    committed.commit()
    onlooker = Store.open(tmp_path, read_only=True)
    assert onlooker.transactions.outcome(committed.id) is Outcome.COMMITTED
    assert onlooker.transactions.outcome(late.id) is Outcome.UNDECIDED
    assert onlooker.transactions.outcomes([(0, committed.id), (0, late.id)]) == [record.COMMITTED, 0]
    late.commit()
    assert onlooker.transactions.outcome(late.id) is Outcome.COMMITTED
    with pytest.raises(ReadOnlyStoreError):
        onlooker.transactions.log()
    onlooker.release()
    store.release()


def test_housekeeping_ends_what_is_late(tmp_path: Path) -> None:
    """A transaction whose timeout has passed is aborted though nobody waits for it."""
    clock = ManualClock()
    store = Store.open(tmp_path, clock=clock)
    transaction = Transaction(store.transactions.log(), 5000)
    assert transaction.id
    done: list[str] = []
    store.transactions.do_chores(done)
    assert not done and store.transactions.outcome(transaction.id) is Outcome.UNDECIDED
    clock.advance(6.0)
    store.transactions.do_chores(done)
    assert store.transactions.outcome(transaction.id) is Outcome.ABORTED
    assert done == ["1 transactions were ended that their processes had left"]
    store.release()


def test_subscriptions_follow_ends(tmp_path: Path) -> None:
    """What an aborted transaction acknowledged is delivered again; what a committed one did is not."""
    with Client(str(tmp_path)) as client:
        producer = client.create_producer("t")
        consumer = client.subscribe("t", "s", ConsumerType.Shared)
        ids = [producer.send(b"%d" % number) for number in range(4)]
        for _ in ids:
            consumer.receive(1000)
        store = Store.open(tmp_path)
        log = store.transactions.log()
        use = store.use_topic("t")
        subscription = use.topic.subscription("s")
        (attachment,) = subscription._liveness_monitor._attached()
        entries = [(message_id.ledger_id(), message_id.entry_id()) for message_id in ids]
        kept, dropped = Transaction(log), Transaction(log)
        attachment.acknowledge(entries[:2], transaction=(0, kept.id))
        attachment.acknowledge(entries[2:], transaction=(0, dropped.id))
        assert [one.transaction for one in subscription.pending_transactions()] == [(0, 1), (0, 2)]
        kept.commit()
        assert [one.transaction for one in subscription.pending_transactions()] == [(0, 2)]
        log.abort(dropped.id)
        store.transactions.on_ended()
        assert sorted(consumer.receive(1000).data() for _ in range(2)) == [b"2", b"3"]
        assert not subscription.pending_transactions()
        use.release()
        store.release()


def test_a_child_has_its_own_log(tmp_path: Path) -> None:
    """The copy of the parent's is dead there."""
    store = Store.open(tmp_path)
    log = store.transactions.log()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own = store.transactions.log()
            own_id = Transaction(own).id
            try:
                log.prepared()
            except AlreadyClosed:
                code = 0 if own is not log and own_id == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    # The child is dead, and what it had open is ended by the next look.
    store.transactions.do_chores([])
    assert log.outcome(1) is Outcome.ABORTED
    store.release()
