"""Words of transactions that are seen in another order than they were stored.

Each test is named in a row of the table in docs/concurrency.md, "Machines that reorder".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import control_path
from embeddedpulsar._engine.format.control import TXN_SLOT_SIZE, TXN_SLOT_TABLE_OFFSET
from embeddedpulsar._engine.platform import failpoints, threads
from embeddedpulsar._engine.txn.transaction import Participant, Transaction
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar._engine.txn.transaction_view import TransactionView
from tests.support.weak_memory import Stores, reordering, samples
from tests.transaction_site import BOOT, Process, topic


@pytest.fixture(autouse=True)
def clear_failpoints() -> Iterator[None]:
    """None is set for the next test."""
    yield
    failpoints.clear()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Process]:
    """The process that begins transactions."""
    with Process(tmp_path) as made:
        yield made


def reused_slot(owner: Process, root: Path) -> tuple[Transaction, Stores]:
    """A transaction in the slot that another one of a process had which is dead, with all that was stored."""
    dead = Process(root)
    first = dead.begun(label="of the dead")
    slot = owner.log.control.find(first.id)
    dead.die()
    stores = Stores(control_path(str(root / "txn")))
    owner.log.tend()
    assert owner.log.outcome(first.id) is Outcome.ABORTED
    second = owner.begun(label="of the living")
    assert owner.log.control.find(second.id) == slot
    stores.end()
    return second, stores


def test_a_slot_in_any_state(owner: Process, tmp_path: Path):
    """A slot that is used again is seen as one transaction has it, or as none: its first word is loaded
    before the others and behind them, with fences between."""
    transaction, stores = reused_slot(owner, tmp_path)
    control = owner.log.control
    slot = control.find(transaction.id)
    start = TXN_SLOT_TABLE_OFFSET + TXN_SLOT_SIZE * slot
    new = control.read_slot(slot)
    stores.show([])
    old = control.read_slot(slot)
    assert old is not None and new is not None and old.owner != new.owner and old.label != new.label
    words = stores.of(control.path, start, start + TXN_SLOT_SIZE)
    torn = {True: 0, False: 0}
    for is_weak in (True, False):
        with reordering():
            threads.REORDERS = is_weak
            threads.fence = (
                stores.deliver
            )  # what the writer stored before its fence is seen behind the reader's
            for seen in samples(words, 200, seed=8):
                stores.show(seen)
                torn[is_weak] += control.read_slot(slot) not in (None, old, new)
            stores.deliver()
    assert torn[True] == 0
    assert torn[False] > 50, "without fences it would be seen in parts"


def test_the_first_word_of_a_slot_is_stored_last(owner: Process, tmp_path: Path):
    """When it is opened, and when a durable commit moves it on: whoever sees that word sees the others."""
    path, moments = control_path(str(tmp_path / "txn")), list[Stores]()
    owner.begun().abort()
    with reordering():
        threads.fence = lambda: moments.append(Stores(path))
        transaction = owner.begin(label="new")
        failpoints.set("txn:slot_filled", lambda: moments[-1].end())
        assert transaction.id
        failpoints.set("txn:slot_decided", lambda: moments[-1].end())
        at = TXN_SLOT_TABLE_OFFSET + TXN_SLOT_SIZE * owner.log.control.find(transaction.id)
        transaction.commit(must_flush=True)
    ended = [moment for moment in moments if moment.changes]
    assert len(ended) == 2
    for moment in ended:
        assert [change.offset for change in moment.of(path, at, at + TXN_SLOT_SIZE)] == [at]


def test_an_undecided_transaction_is_not_given_up(owner: Process, tmp_path: Path):
    """A process that only looks sees parts of a slot, with the lease of a dead process: it looks again before
    it says that the transaction was aborted."""
    transaction, stores = reused_slot(owner, tmp_path)
    with Process(tmp_path) as looker:
        view = TransactionView(str(tmp_path), BOOT, looker.clock, looker.peers.is_alive)
        stores.deliver()
        assert view.refresh()
        with reordering(stores.deliver):
            for seen in samples(stores.changes, 150, seed=9):
                stores.show(seen)
                assert view.outcome(transaction.id) is Outcome.UNDECIDED
        view.close()
    assert owner.log.outcome(transaction.id) is Outcome.UNDECIDED


def test_a_decision_in_any_state(owner: Process, tmp_path: Path):
    """COMMIT is written, then shown by a byte: whatever is seen of it, the answer of others is that of before
    or that of after, and behind a barrier that of after."""
    transaction = owner.begun()
    transaction.enlist(Participant(topic(1).key, partial(topic, 1)))
    txn = tmp_path / "txn"
    with Process(tmp_path) as other:
        assert other.log.outcome(transaction.id) is Outcome.UNDECIDED
        stores = Stores(*map(str, sorted(path for path in txn.iterdir() if path.is_file())))
        transaction.commit()
        stores.end()
        words = [change for change in stores.changes if change.path.endswith(("ctl", ".0"))]
        assert words
        with reordering(stores.deliver):
            for seen in samples(stores.changes, 150, seed=10):
                stores.show(seen)
                assert other.log.outcome(transaction.id) in (Outcome.UNDECIDED, Outcome.COMMITTED)
                stores.deliver()
                assert other.log.outcome(transaction.id) is Outcome.COMMITTED
