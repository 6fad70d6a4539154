"""Acknowledgements over ledgers."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.subscription.state.ledger_acks import OPEN, AckBitmaps, LedgerAcks
from embeddedpulsar.message_id import BEFORE_FIRST, Position


def bitmaps(*listed: tuple[int, int], at: Position = BEFORE_FIRST) -> AckBitmaps:
    acks = AckBitmaps(at)
    acks.learn_ledgers(listed)
    return acks


def ack(acks: AckBitmaps, ledger_id: int, first: int, last: int) -> None:
    ledger = acks.ledger(ledger_id)
    assert ledger is not None
    ledger.add_range(first, last)
    acks.advance_mark_delete()


def test_a_new_subscription_begins_before_the_first_ledger():
    """The earliest position moves to the first ledger there is once that is known."""
    acks = AckBitmaps(BEFORE_FIRST)
    assert acks.mark_delete == BEFORE_FIRST
    acks.learn_ledgers([(3, OPEN)])
    assert acks.mark_delete == Position(3, -1)


def test_the_mark_delete_position_stays_until_the_next_ledger_is_known():
    """Everything of the only ledger is acknowledged, but it may still grow."""
    acks = bitmaps((1, OPEN))
    ack(acks, 1, 0, 9)
    assert acks.mark_delete == Position(1, 9)
    acks.learn_ledgers([(1, 10), (5, OPEN)])
    assert acks.mark_delete == Position(5, -1)
    assert acks.ledger(1) is None


def test_whole_ledgers_are_crossed_at_once():
    """Also empty ones, and ones that were completed out of order."""
    acks = bitmaps((1, 5), (2, 0), (4, 5), (8, OPEN))
    ack(acks, 4, 0, 4)
    assert acks.mark_delete == Position(1, -1)
    ack(acks, 1, 0, 4)
    assert acks.mark_delete == Position(8, -1)


def test_an_old_list_closes_nothing_and_drops_nothing():
    """A process that has not noticed the last roll tells less than is known."""
    acks = bitmaps((1, 5), (2, OPEN))
    ack(acks, 2, 0, 2)
    acks.learn_ledgers([(1, OPEN)])
    ack(acks, 1, 0, 4)
    assert acks.mark_delete == Position(2, 2)


def test_ledgers_that_are_gone_hold_nothing_back():
    """Trimmed ones at the front, lost ones in the middle, all of them."""
    acks = bitmaps((1, 5), (2, 5), (3, 5), (4, OPEN))
    ack(acks, 3, 1, 3)
    acks.learn_ledgers([(3, 5), (4, OPEN)])
    assert acks.mark_delete == Position(3, -1)
    assert acks.is_acked(Position(3, 2))
    acks.learn_ledgers([(9, OPEN)])
    assert acks.mark_delete == Position(9, -1)


def test_a_closed_end_before_the_mark_delete_position_moves_it_back_and_on():
    """A power loss took acknowledged entries: the ledger ends earlier, and is done."""
    acks = bitmaps((1, OPEN))
    ack(acks, 1, 0, 99)
    acks.learn_ledgers([(1, 60), (2, OPEN)])
    assert acks.mark_delete == Position(2, -1)


def test_clamping():
    """Nothing beyond the end of the log is acknowledged."""
    acks = bitmaps((1, 5), (2, 5), (3, OPEN))
    ack(acks, 1, 0, 4)
    ack(acks, 2, 3, 4)
    ack(acks, 3, 0, 9)
    acks.clamp(Position(2, 3))
    assert acks.is_acked(Position(2, 3))
    assert not acks.is_acked(Position(2, 4))
    assert acks.newest_ledger == 2
    acks.clamp(Position(1, 2))
    assert acks.mark_delete == Position(1, 2)


def test_through_a_position():
    """Cumulative acknowledgement drops what lies before, and joins what lies behind."""
    acks = bitmaps((1, 5), (2, 5), (3, OPEN))
    ack(acks, 3, 2, 4)
    assert acks.acknowledge_through(Position(3, 1))
    assert acks.mark_delete == Position(3, 4)
    assert not acks.acknowledge_through(Position(1, 3))
    assert not acks.acknowledge_through(Position(7, 3))
    assert acks.acknowledge_through(Position(3, -1))
    assert acks.mark_delete == Position(3, 4)


def test_finding_the_next_to_deliver():
    """Acknowledged runs are stepped over, across ledgers, into the part that is not known yet."""
    acks = bitmaps((1, 4), (2, 4), (3, OPEN))
    ack(acks, 1, 1, 3)
    ack(acks, 2, 0, 3)
    ack(acks, 3, 0, 1)
    ack(acks, 3, 4, 5)
    assert acks.next_unacked(Position(1, 0)) == Position(1, 0)
    assert acks.next_unacked(Position(1, 1)) == Position(3, 2)
    assert acks.next_unacked(Position(3, 4)) == Position(3, 6)
    assert acks.next_unacked(Position(9, 7)) == Position(9, 7)
    assert acks.run_length(Position(3, 2), 100) == 2
    assert acks.run_length(Position(3, 6), 100) == 100
    assert acks.run_length(Position(9, 7), 5) == 5
    assert acks.last_touched() == Position(3, 5)
    assert list(acks.runs()) == [(1, 1, 3), (2, 0, 3), (3, 0, 1), (3, 4, 5)]


def test_an_interrupted_change_of_ledgers_can_be_looked_at(monkeypatch: pytest.MonkeyPatch):
    """A RecursionError or Ctrl-C in the middle leaves what was known before: readers look without a lock."""
    acks = bitmaps((1, 4), (2, OPEN))
    ack(acks, 2, 0, 3)

    def make() -> LedgerAcks:
        raise RecursionError

    monkeypatch.setattr("embeddedpulsar._engine.subscription.state.ledger_acks.LedgerAcks", make)
    with pytest.raises(RecursionError):
        acks.learn_ledgers([(2, 9), (3, OPEN)])
    assert acks.last_touched() == Position(2, 3)
    assert acks.newest_ledger == 2
    assert list(acks.runs()) == [(2, 0, 3)]


def test_parts_of_batches_are_listed():
    """For the backlog, and to know how far acknowledgements reach."""
    acks = bitmaps((1, OPEN))
    ledger = acks.ledger(1)
    assert ledger is not None
    ledger.add_indexes(7, 4, 0b0110)
    assert list(acks.partials()) == [(1, 7, 4, 0b0110)]
    assert acks.indexes(Position(1, 7)) == 0b0110
    assert acks.indexes(Position(6, 7)) == 0
    assert acks.last_touched() == Position(1, 7)


@pytest.mark.parametrize("ids", [[], [2, 1], [3, 3]])
def test_restoring_checks_the_order(ids: list[int]):
    """A chain of ledgers ascends and is not empty."""
    with pytest.raises(ValueError, match="out of order"):
        AckBitmaps.of([(ledger_id, LedgerAcks()) for ledger_id in ids])
