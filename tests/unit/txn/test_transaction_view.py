"""Looking at transactions without writing: the same answers as a process that may write gets."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import TransactionWord
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar._engine.txn.transaction import Participant
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar._engine.txn.transaction_view import TransactionView
from embeddedpulsar.testing import ManualClock
from tests.transaction_site import BOOT, Process, topic

NEXT_BOOT = b"C" * 16


def view_of(process: Process, root: Path, boot: bytes = BOOT) -> TransactionView:
    """A view that has read what there is."""
    view = TransactionView(str(root), boot, process.clock, process.peers.is_alive)
    assert view.refresh()
    return view


def contents(root: Path) -> dict[str, bytes]:
    """Of all files of transactions."""
    return {path.name: path.read_bytes() for path in (root / "txn").iterdir()}


def test_a_store_without_transactions() -> None:
    """There is nothing to look at."""
    view = TransactionView("/nowhere", BOOT, SYSTEM_CLOCK, lambda uuid: True)
    assert not view.refresh()
    assert view.outcome(5) is Outcome.ABORTED and view.open_transactions() == [] and view.prepared() == []
    view.close()


@pytest.mark.parametrize("boot", [BOOT, NEXT_BOOT])
def test_answers_are_those_of_a_writer(tmp_path: Path, boot: bytes) -> None:
    """In the boot of the words, and in a later one; nothing is changed."""
    with Process(tmp_path) as looker:
        owner = Process(tmp_path)
        transactions = [owner.begun() for _ in range(5)]
        transactions[0].enlist(Participant(topic(1).key, partial(topic, 1)))
        transactions[0].commit()
        transactions[1].abort()
        transactions[2].prepare("x")
        before = contents(tmp_path)
        view = view_of(looker, tmp_path, boot)
        outcomes = [view.outcome(transaction.id) for transaction in transactions]
        is_same = boot == BOOT
        expected = Outcome.UNDECIDED if is_same else Outcome.ABORTED
        assert outcomes == [Outcome.COMMITTED, Outcome.ABORTED, Outcome.PREPARED, expected, expected]
        assert [each.label for each in view.prepared()] == ["x"]
        assert len(view.open_transactions()) == (3 if is_same else 0)
        assert [commit.participants for commit in view.commits()] == [(topic(1),)]
        owner.die()
        assert view.outcome(transactions[3].id) is Outcome.ABORTED
        assert contents(tmp_path) == before and view.damage == []
        view.close()
        view.close()
        shutil.rmtree(looker.clients / owner.mailbox.uuid.hex(), ignore_errors=True)


def test_a_deadline_is_seen(tmp_path: Path) -> None:
    """Of an open one, and of a prepared one."""
    clock = ManualClock(wall_ms=1000)
    with Process(tmp_path, clock) as owner:
        is_open, prepared = owner.begun(500), owner.begun()
        prepared.prepare("x", deadline_ms=2000)
        view = view_of(owner, tmp_path)
        assert view.outcome(is_open.id) is Outcome.UNDECIDED
        assert view.outcome(prepared.id) is Outcome.PREPARED
        clock.advance(1)
        assert view.outcome(is_open.id) is view.outcome(prepared.id) is Outcome.ABORTED
        view.close()


def test_what_becomes_final_is_seen_without_a_refresh(tmp_path: Path) -> None:
    """The byte is mapped."""
    with Process(tmp_path) as owner:
        transaction = owner.begun()
        view = view_of(owner, tmp_path)
        assert view.outcome(transaction.id) is Outcome.UNDECIDED
        transaction.commit()
        assert view.outcome(transaction.id) is Outcome.COMMITTED
        owner.log.raise_lowest(transaction.id + 1)
        view.refresh()
        assert view.outcome(transaction.id) is Outcome.FOLDED
        view.close()


def test_damage_is_shown(tmp_path: Path) -> None:
    """And the rest is read."""
    with Process(tmp_path) as owner:
        for _ in range(5):
            owner.begun().commit()
    (journal,) = (tmp_path / "txn").glob("journal.*")
    data = bytearray(journal.read_bytes())
    data[64 + 3 * 32 + 26] ^= 0xFF
    journal.write_bytes(data)
    with Process(tmp_path) as looker:
        view = view_of(looker, tmp_path)
        assert [damage.path for damage in view.damage] == [os.fspath(journal)]
        assert len(list(view.commits())) == 4
        assert view.outcome(5) is Outcome.COMMITTED
        view.close()


def test_an_end_between_two_loads_is_seen(tmp_path: Path) -> None:
    """The owner commits, and dies, after its slot was read and before it is asked whether it lives."""
    owner = Process(tmp_path)
    with Process(tmp_path) as looker:
        transaction = owner.begun()
        view = view_of(looker, tmp_path)
        calls = []

        def dies_now(uuid: bytes) -> bool:
            calls.append(uuid)
            if len(calls) == 1:
                transaction.commit()
                owner.die()
            return looker.peers.is_alive(uuid)

        view = TransactionView(str(tmp_path), BOOT, looker.clock, dies_now)
        view.refresh()
        assert view.outcome(transaction.id) is Outcome.COMMITTED and len(calls) == 1
        view.close()
        shutil.rmtree(looker.clients / owner.mailbox.uuid.hex(), ignore_errors=True)


def test_who_is_in_the_lock_may_be_in_time(tmp_path: Path) -> None:
    """A deadline that has passed ends a transaction for a view only if nobody is about to decide it."""
    clock = ManualClock(wall_ms=1000)
    with Process(tmp_path, clock) as owner:
        transaction = owner.begun(500)
        view = view_of(owner, tmp_path)
        clock.advance(1)
        owner.log.control.words[TransactionWord.OWNER] = 1
        assert view.outcome(transaction.id) is Outcome.UNDECIDED
        owner.log.control.words[TransactionWord.OWNER] = 0
        assert view.outcome(transaction.id) is Outcome.ABORTED
        view.close()


def test_frozen_outcomes_do_not_change(tmp_path: Path) -> None:
    """What was open stays so, what began later is undecided, and what had ended has its outcome."""
    with Process(tmp_path) as looker, Process(tmp_path) as owner:
        names = ("committed", "aborted", "prepared", "commits", "aborts", "stays")
        by_name = {name: owner.begun() for name in names}
        by_name["committed"].commit()
        by_name["aborted"].abort()
        by_name["prepared"].prepare("x")
        view = view_of(looker, tmp_path)
        frozen = view.frozen()
        by_name["commits"].commit()
        by_name["aborts"].abort()
        by_name["later"], by_name["open"] = owner.begun(), owner.begun()
        by_name["later"].commit()
        assert {name: frozen.outcome(each.id).name for name, each in by_name.items()} == {
            "committed": "COMMITTED",
            "aborted": "ABORTED",
            "prepared": "PREPARED",
            **dict.fromkeys(("commits", "aborts", "stays", "later", "open"), "UNDECIDED"),
        }
        assert view.frozen().outcome(by_name["commits"].id) is Outcome.COMMITTED
        assert frozen.outcome(1 << 40) is Outcome.UNDECIDED
        view.close()


def test_an_id_whose_slot_is_being_filled_is_undecided(tmp_path: Path) -> None:
    """It was given out before the slots were read, and has an entry when it is looked up."""
    with Process(tmp_path) as owner:
        owner.begun().commit()
        owner.log.control.words[TransactionWord.NEXT_ID] += 1
        frozen = view_of(owner, tmp_path).frozen()
        assert frozen.outcome(2) is Outcome.ABORTED
        owner.log.control.words[TransactionWord.NEXT_ID] -= 1
        transaction = owner.begun()
        assert transaction.id == 2 and frozen.outcome(2) is Outcome.UNDECIDED
        transaction.commit()
        assert frozen.outcome(2) is Outcome.UNDECIDED


def test_frozen_outcomes_of_a_store_without_words(tmp_path: Path) -> None:
    """The journal alone says it; ids that nobody gave out are aborted, until somebody uses the store."""
    with Process(tmp_path) as owner:
        committed, opened = owner.begun(), owner.begun()
        committed.commit()
        view = view_of(owner, tmp_path, NEXT_BOOT)
        frozen = view.frozen()
        ids = committed.id, opened.id, 1 << 40
        assert [frozen.outcome(txn_id).name for txn_id in ids] == ["COMMITTED", "ABORTED", "ABORTED"]
    nothing = TransactionView(str(tmp_path / "other"), BOOT, SYSTEM_CLOCK, lambda uuid: True)
    assert not nothing.refresh()
    frozen = nothing.frozen()
    assert frozen.outcome(1) is Outcome.ABORTED
    with Process(tmp_path / "other") as first:
        assert frozen.outcome(first.begun().id) is Outcome.UNDECIDED


def test_a_table_that_is_gone_is_derived(tmp_path: Path) -> None:
    """What had committed has; the others are as their slots say."""
    with Process(tmp_path) as owner:
        committed, opened = owner.begun(), owner.begun()
        committed.commit()
        (tmp_path / "txn" / "outcome.0").unlink()
        frozen = view_of(owner, tmp_path).frozen()
        assert frozen.outcome(committed.id) is Outcome.COMMITTED
        assert frozen.outcome(opened.id) is Outcome.UNDECIDED
