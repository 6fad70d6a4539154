"""Acknowledgements of open transactions: which are refused, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack, group_batches, group_entries
from embeddedpulsar._engine.format.document import KIND_SUBSCRIPTION_SNAPSHOT, decode_document
from embeddedpulsar._engine.format.subscription_record import (
    ABORTED,
    COMMITTED,
    AckedThrough,
    TransactionAck,
    TransactionEnd,
)
from embeddedpulsar._engine.subscription.state.entry_states import DELAYED, IN_TRANSACTION, NONE, WAITING
from embeddedpulsar._engine.subscription.state.ledger_acks import OPEN
from embeddedpulsar._engine.subscription.state.replica import (
    CLAIMABLE,
    MARK_DELETE,
    STALE,
    UNBLOCKED,
    SubscriptionState,
    adopt_summary,
    checkpoint_of,
    decode_snapshot,
    encode_snapshot,
    is_worth_it,
    pack_summary,
)
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.message_id import Position
from tests.unit.subscription.state.dispatch_states import LEDGER, StateSite

T, U = (0, 17), (1, 4)
EXCLUSIVE, SHARED, KEY_SHARED = ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared


class TransactionSite(StateSite):
    """A state with one consumer, and transactions that it acknowledges in."""

    def __init__(self, consumer_type: ConsumerType = EXCLUSIVE) -> None:
        super().__init__(consumer_type)
        self.consumer = self.join()

    @property
    def pending(self):
        return self.state.pending_acks

    def command(
        self,
        transaction: tuple[int, int],
        entries: Sequence[int] = (),
        batches: dict[int, tuple[int, int]] | None = None,
        through: tuple[int, ...] | None = None,
    ) -> TransactionAck:
        """``batches`` as {entry: (bit set, size)}, ``through`` as (entry, index, size)."""
        partial = {(LEDGER, entry): bits for entry, bits in (batches or {}).items()}
        ack = Ack(
            self.consumer,
            self.epoch_of(self.consumer),
            group_entries([(LEDGER, entry) for entry in entries]),
            group_batches(partial),
        )
        last = None if through is None else AckedThrough(LEDGER, *through)
        return TransactionAck(transaction, ack, last)

    def refusal(self, *arguments, **named) -> str:
        return self.pending.refusal(self.command(*arguments, **named), self.state.acks)

    def hold(self, *arguments, **named) -> int:
        """Acknowledge in a transaction, which must be allowed."""
        command = self.command(*arguments, **named)
        assert self.pending.refusal(command, self.state.acks) == ""
        return self.apply(command)

    def commit(self, transaction: tuple[int, int]) -> int:
        return self.apply(TransactionEnd(transaction, COMMITTED, 1000))

    def abort(self, transaction: tuple[int, int]) -> int:
        return self.apply(TransactionEnd(transaction, ABORTED, 1000))

    def ack_through(self, entry: int, index: int = -1, size: int = 0) -> int:
        epoch = self.epoch_of(self.consumer)
        return self.apply(record.AckCumulative(self.consumer, epoch, LEDGER, entry, index, size))

    def is_acked(self, entry: int) -> bool:
        return self.state.acks.is_acked(Position(LEDGER, entry))


# -- the table of rules ------------------------------------------------------------------------------------


def acked(site: TransactionSite) -> None:
    site.ack(site.consumer, 5)


def committed(site: TransactionSite) -> None:
    site.hold(U, [5])
    site.commit(U)


def below(site: TransactionSite) -> None:
    site.ack_through(6)


def held_by_other(site: TransactionSite) -> None:
    site.hold(U, [5])


def held_by_itself(site: TransactionSite) -> None:
    site.hold(T, [5])


def bits_acked(site: TransactionSite) -> None:
    site.ack_indexes(site.consumer, 5, 4, 0b0011)


def bits_of_other(site: TransactionSite) -> None:
    site.hold(U, batches={5: (0b0011, 4)})


def bits_of_itself(site: TransactionSite) -> None:
    site.hold(T, batches={5: (0b0011, 4)})


def aborted(site: TransactionSite) -> None:
    site.hold(U, [5])
    site.abort(U)


def through_of_other(site: TransactionSite) -> None:
    site.hold(U, through=(6,))


def through_of_itself(site: TransactionSite) -> None:
    site.hold(T, through=(5,))


def within_batch_of_itself(site: TransactionSite) -> None:
    site.hold(T, through=(5, 1, 4))


def nothing(site: TransactionSite) -> None:
    pass


ENTRY, REST, OVERLAP, THROUGH = "entry", "rest", "overlap", "through"
ASKED = {
    ENTRY: {"entries": [5]},
    REST: {"batches": {5: (0b1100, 4)}},
    OVERLAP: {"batches": {5: (0b0110, 4)}},
    THROUGH: {"through": (5,)},
}


@pytest.mark.parametrize(
    ("before", "asked", "reason"),
    [
        (nothing, ENTRY, ""),
        (nothing, REST, ""),
        (nothing, THROUGH, ""),
        (acked, ENTRY, "entry 7:5 is acknowledged already"),
        (acked, REST, "entry 7:5 is acknowledged already"),
        (committed, ENTRY, "entry 7:5 is acknowledged already"),
        (committed, OVERLAP, "entry 7:5 is acknowledged already"),
        (below, ENTRY, "entry 7:5 is acknowledged already"),
        (below, REST, "entry 7:5 is acknowledged already"),
        (held_by_other, ENTRY, "entry 7:5 is acknowledged in transaction (1,4), which is open"),
        (
            held_by_other,
            REST,
            "message 2, 3 of entry 7:5 is acknowledged in transaction (1,4), which is open",
        ),
        (held_by_itself, ENTRY, "entry 7:5 is acknowledged in transaction (0,17), which is open"),
        (
            held_by_itself,
            OVERLAP,
            "message 1, 2 of entry 7:5 is acknowledged in transaction (0,17), which is open",
        ),
        (bits_acked, ENTRY, ""),
        (bits_acked, REST, ""),
        (bits_acked, OVERLAP, "message 1 of entry 7:5 is acknowledged already"),
        (bits_of_other, ENTRY, "entry 7:5 is acknowledged in transaction (1,4), which is open"),
        (bits_of_other, REST, ""),
        (
            bits_of_other,
            OVERLAP,
            "message 1 of entry 7:5 is acknowledged in transaction (1,4), which is open",
        ),
        (bits_of_itself, ENTRY, "entry 7:5 is acknowledged in transaction (0,17), which is open"),
        (bits_of_itself, REST, ""),
        (
            bits_of_itself,
            OVERLAP,
            "message 1 of entry 7:5 is acknowledged in transaction (0,17), which is open",
        ),
        (aborted, ENTRY, ""),
        (aborted, OVERLAP, ""),
        # Cumulative: against the mark-delete position and other cumulative ones alone.
        (acked, THROUGH, ""),
        (held_by_other, THROUGH, ""),
        (held_by_itself, THROUGH, ""),
        (bits_of_other, THROUGH, ""),
        (below, THROUGH, "everything up to entry 7:6 is acknowledged already"),
        (through_of_other, THROUGH, "transaction (1,4), which is open has a cumulative acknowledgement"),
        (through_of_itself, THROUGH, "the same transaction acknowledged up to entry 7:5"),
        (within_batch_of_itself, THROUGH, ""),
        (through_of_other, ENTRY, ""),
        (through_of_other, REST, ""),
        (through_of_itself, ENTRY, ""),
    ],
)
def test_what_a_transaction_may_acknowledge(before, asked: str, reason: str):
    """The rules, case by case: they name the entry, and who has it."""
    site = TransactionSite()
    before(site)
    assert site.refusal(T, **ASKED[asked]) == reason


@pytest.mark.parametrize(
    ("through", "is_allowed"),
    [
        ((4,), False),
        ((5, 0, 4), False),
        ((5, 1, 4), False),
        ((5, 2, 4), True),
        ((5,), True),
        ((6, 0, 4), True),
    ],
)
def test_a_longer_cumulative_acknowledgement_replaces_the_one_before(
    through: tuple[int, ...], is_allowed: bool
):
    """Also within a batch; a shorter or equal one conflicts."""
    site = TransactionSite()
    site.hold(T, through=(5, 1, 4))
    if not is_allowed:
        assert "the same transaction" in site.refusal(T, through=through)
        return
    site.hold(T, through=through)
    site.commit(T)
    assert site.state.mark_delete == Position(LEDGER, through[0] if len(through) == 1 else through[0] - 1)


def test_a_plain_acknowledgement_is_not_checked():
    """The commit finds the entry acknowledged, and the abort does not bring it back."""
    for end in (TransactionSite.commit, TransactionSite.abort):
        site = TransactionSite()
        site.hold(T, [0, 1])
        site.ack(site.consumer, 0)
        assert site.state.mark_delete == Position(LEDGER, 0)
        assert len(site.pending.transactions) == 1
        site.ack(site.consumer, 1)
        assert not site.pending.transactions  # all of it lies before the mark-delete position
        end(site, T)
        assert site.state.mark_delete == Position(LEDGER, 1)
        assert site.count(0) == 0


# -- what pending acknowledgements do ----------------------------------------------------------------------


def test_pending_acknowledgements_hold_the_mark_delete_position():
    """It moves when they are committed, over everything that is contiguous then."""
    site = TransactionSite()
    site.hold(T, [0, 1], {2: (0b01, 2)})
    site.hold(U, batches={2: (0b10, 2)})
    site.ack(site.consumer, 3)
    assert site.state.mark_delete == Position(LEDGER, -1)
    assert site.commit(T) & MARK_DELETE
    assert site.state.mark_delete == Position(LEDGER, 1)
    assert site.commit(U) & MARK_DELETE
    assert site.state.mark_delete == Position(LEDGER, 3)
    assert (site.pending.committed, site.pending.aborted, site.pending.ended_ms) == (2, 0, 1000)


def test_an_end_is_followed_once():
    """Two processes may write that a transaction ended; one of which nothing is pending changes nothing."""
    site = TransactionSite()
    site.hold(T, [0])
    site.commit(T)
    assert (site.abort(T), site.commit(U)) == (0, 0)
    assert site.is_acked(0)


def test_only_consumers_that_are_attached_acknowledge():
    """In a transaction as well: a consumer that was put back knows nothing of what it acknowledges."""
    site = TransactionSite()
    command = site.command(T, [0])
    site.apply(record.Seek(LEDGER, -1))
    assert site.apply(command) == STALE
    assert (site.state.stale, dict(site.pending.transactions)) == (1, {})


def test_what_is_pending_outlives_its_consumer():
    """It belongs to the transaction."""
    site = TransactionSite()
    site.hold(T, [0], through=None)
    site.hold(U, through=(3,))
    site.leave(site.consumer, record.DETACH_DEAD)
    assert list(site.pending.transactions) == [T, U]
    site.commit(U)
    assert site.state.mark_delete == Position(LEDGER, 3)


def test_a_seek_drops_what_is_pending():
    """The commit has nothing to do here."""
    site = TransactionSite()
    site.hold(T, [4], {5: (1, 2)})
    site.hold(U, through=(9,))
    site.apply(record.Seek(LEDGER, 2))
    assert not site.pending.transactions
    site.commit(T)
    site.commit(U)
    assert site.state.mark_delete == Position(LEDGER, 2)


def test_what_a_power_loss_took_is_pending_no_more():
    """Entries beyond the end of the log; a cumulative acknowledgement ends with the log."""
    site = TransactionSite()
    site.hold(T, [2, 8], {9: (1, 2)})
    site.hold(U, through=(7, 0, 3))
    site.apply(record.Clamp(LEDGER, 4))
    assert [one.numbers()[:2] for one in site.pending.transactions.values()] == [[1, 0], [0, 0]]
    site.commit(U)
    assert site.state.mark_delete == Position(LEDGER, 4)


def test_what_is_pending_goes_with_its_ledger():
    """As with acknowledgements: nothing of it can be read."""
    site = TransactionSite()
    site.apply(record.Ledgers(((LEDGER, 5), (LEDGER + 1, 4), (LEDGER + 2, OPEN))))
    epoch = site.epoch_of(site.consumer)
    groups = group_entries([(LEDGER, 3), (LEDGER + 1, 0), (LEDGER + 1, 9), (LEDGER + 2, 1), (LEDGER + 5, 0)])
    site.apply(TransactionAck(T, Ack(site.consumer, epoch, groups, ()), None))
    # Behind the end of a ledger, and in one that is not known, there are no entries.
    assert site.pending.transactions[T].numbers() == [3, 0, None]
    site.apply(TransactionAck(U, Ack(site.consumer, epoch, (), ()), AckedThrough(LEDGER + 1, 2)))
    site.apply(record.Ledgers(((LEDGER, 5), (LEDGER + 2, OPEN))))
    assert site.pending.transactions[T].numbers() == [2, 0, None]
    site.apply(record.Ledgers(((LEDGER + 2, OPEN),)))
    assert site.pending.transactions[T].numbers() == [1, 0, None]
    assert U not in site.pending.transactions
    assert site.state.mark_delete == Position(LEDGER + 2, -1)


def test_a_cumulative_acknowledgement_ends_before_a_ledger_that_is_gone():
    """Its message cannot be read any more; what lies before it is acknowledged all the same."""
    site = TransactionSite()
    site.apply(record.Ledgers(((LEDGER, 5), (LEDGER + 1, 4), (LEDGER + 2, OPEN))))
    epoch = site.epoch_of(site.consumer)
    site.apply(TransactionAck(T, Ack(site.consumer, epoch, (), ()), AckedThrough(LEDGER + 1, 2)))
    site.apply(record.Ledgers(((LEDGER, 5), (LEDGER + 2, OPEN))))
    site.commit(T)
    assert site.state.mark_delete == Position(LEDGER + 2, -1)


def test_a_cumulative_acknowledgement_may_leave_entries_out():
    """First parts of chunked messages that end further on: the commit acknowledges what the command lists."""
    site = TransactionSite()
    epoch = site.epoch_of(site.consumer)
    listed = group_entries([(LEDGER, entry) for entry in (0, 1, 3, 4)])
    site.apply(TransactionAck(T, Ack(site.consumer, epoch, listed, ()), AckedThrough(LEDGER, 4)))
    assert all(site.pending.holds(Position(LEDGER, entry), site.state.acks) for entry in range(5))
    site.commit(T)
    assert [site.is_acked(entry) for entry in range(6)] == [True, True, False, True, True, False]


def test_an_abort_tells_an_active_consumer_to_go_back():
    """Single acknowledgements come again; after a cumulative one the consumer has everything."""
    site = TransactionSite()
    site.hold(T, [1])
    site.hold(U, through=(3,))
    assert site.state.rewinds_with(TransactionEnd(T, ABORTED, 0))
    assert not site.state.rewinds_with(TransactionEnd(T, COMMITTED, 0))
    assert not site.state.rewinds_with(TransactionEnd((9, 9), ABORTED, 0))
    assert site.abort(U) & CLAIMABLE
    assert site.pending.rewinds == 0
    assert site.abort(T) & CLAIMABLE
    assert site.pending.rewinds == 1
    assert (site.pending.committed, site.pending.aborted) == (0, 2)


# -- consumers that share ----------------------------------------------------------------------------------


@pytest.fixture
def shared() -> TransactionSite:
    """Six entries read; the consumer has the first four, of which the fourth is a batch of three messages."""
    site = TransactionSite(SHARED)
    site.read(0, 5, messages=[1, 1, 1, 3, 1, 1], ranges=[(site.consumer, 0, 3)])
    return site


def test_what_is_pending_is_nobodys(shared: TransactionSite):
    """Neither its consumer's, which holds less, nor free for others, whatever comes of the consumer."""
    shared.hold(T, [0, 1], {3: (0b011, 3)})
    assert shared.owners(5) == [IN_TRANSACTION] * 2 + [shared.consumer] * 2 + [WAITING] * 2
    assert shared.dispatch.holds(shared.consumer) == 4
    shared.hold(U, batches={3: (0b100, 3)})  # no message of the batch is left
    assert shared.owner(3) == IN_TRANSACTION
    shared.nack(shared.consumer, 0, 2, 3)
    assert shared.owners(5) == [IN_TRANSACTION] * 2 + [WAITING] + [IN_TRANSACTION] + [WAITING] * 2
    other = shared.join("d")
    shared.claim(other)
    assert shared.owners(5) == [IN_TRANSACTION] * 2 + [other, IN_TRANSACTION, other, WAITING]  # its part
    shared.leave(other, record.DETACH_DEAD, handed=3)
    assert shared.owners(5) == [IN_TRANSACTION] * 2 + [WAITING, IN_TRANSACTION, WAITING, WAITING]


def test_an_abort_gives_back_at_once(shared: TransactionSite):
    """Counted once more, to whoever claims; of a batch what is not acknowledged, nor pending elsewhere."""
    shared.hold(T, [0], {3: (0b001, 3)})
    shared.hold(U, batches={3: (0b010, 3)})
    shared.nack(shared.consumer, 1)
    assert shared.abort(T) & CLAIMABLE
    assert shared.owners(5) == [WAITING, WAITING, shared.consumer, WAITING, WAITING, WAITING]
    assert [shared.count(entry) for entry in range(4)] == [1, 1, 0, 1]
    assert shared.pending.bits(Position(LEDGER, 3)) == 0b010
    assert shared.pending.rewinds == 0


def test_an_abort_does_not_give_back_what_is_held_otherwise(shared: TransactionSite):
    """The other messages of the batch are pending in another transaction, its own were acknowledged since."""
    shared.hold(T, batches={3: (0b011, 3)})
    shared.hold(U, batches={3: (0b100, 3)})
    shared.ack_indexes(shared.consumer, 3, 3, 0b011)
    shared.abort(T)
    assert (shared.owner(3), shared.count(3)) == (IN_TRANSACTION, 0)
    shared.abort(U)
    assert (shared.owner(3), shared.count(3)) == (WAITING, 1)


def test_a_commit_acknowledges_as_consumers_do(shared: TransactionSite):
    """With keys, totals and counts; a batch whose last messages are committed is acknowledged."""
    shared.ack_indexes(shared.consumer, 3, 3, 0b001)
    shared.hold(T, [0, 1, 2], {3: (0b110, 3)})
    assert shared.commit(T) & MARK_DELETE
    assert shared.owners(5) == [NONE] * 4 + [WAITING] * 2
    assert shared.state.mark_delete == Position(LEDGER, 3)
    assert shared.dispatch.pending.totals[IN_TRANSACTION] == 0


def test_a_batch_whose_rest_is_acknowledged_is_nobodys(shared: TransactionSite):
    """Nothing of it is left to be delivered, though it is not acknowledged."""
    shared.hold(T, batches={3: (0b101, 3)})
    shared.ack_indexes(shared.consumer, 3, 3, 0b010)
    assert shared.owner(3) == IN_TRANSACTION
    shared.abort(T)
    assert shared.owner(3) == WAITING


def test_entries_that_were_acknowledged_before_they_are_read(shared: TransactionSite):
    """They are held when they are read, and wait when the transaction aborts."""
    shared.hold(T, [7, 8], {9: (0b1, 2)})
    shared.hold(U, [6])
    shared.abort(U)  # unread: its count waits for it
    shared.read(6, 10, messages=[1, 1, 1, 2, 1], ranges=[(shared.consumer, 6, 10)])
    assert [shared.owner(entry) for entry in range(6, 11)] == [
        shared.consumer,
        IN_TRANSACTION,
        IN_TRANSACTION,
        shared.consumer,
        shared.consumer,
    ]
    assert (shared.count(6), shared.count(7)) == (1, 0)
    shared.abort(T)
    assert [shared.owner(entry) for entry in (7, 8, 9)] == [WAITING] * 3
    assert [shared.count(entry) for entry in (7, 8, 9, 10)] == [1, 1, 1, 0]


def test_counts_rise_without_a_consumer(shared: TransactionSite):
    """They wait for the next one, as those of entries that came back."""
    shared.nack(shared.consumer, 0)
    shared.assign((shared.consumer, 0, 0))
    shared.hold(T, [0, 1])
    shared.leave(shared.consumer, record.DETACH_CLOSED)
    shared.abort(T)
    assert [shared.dispatch.redeliveries(LEDGER, entry) for entry in range(3)] == [2, 1, 0]
    shared.consumer = shared.join()
    shared.read(0, 2)
    assert [shared.count(entry) for entry in range(3)] == [2, 1, 0]


def test_a_delayed_entry_stays_delayed(shared: TransactionSite):
    """It is held when it is due, and not before its time when the transaction aborts."""
    shared.read(6, 8, delayed=[(5000, 6), (5000, 7), (9000, 8)])
    shared.hold(T, [6, 8])
    shared.due(5000)
    assert [shared.owner(entry) for entry in (6, 7)] == [IN_TRANSACTION, WAITING]
    shared.abort(T)
    assert (shared.owner(6), shared.count(6)) == (WAITING, 1)
    assert shared.dispatch.waiting == shared.dispatch.pending.totals[WAITING]
    shared.due(9000)
    assert (shared.owner(8), shared.count(8)) == (WAITING, 1)


def test_a_delayed_entry_that_was_acknowledged_before_it_was_read(shared: TransactionSite):
    """Read while the transaction holds it, it is delayed as well: an abort does not make it due."""
    shared.hold(T, [6, 7])
    shared.read(6, 8, delayed=[(5000, 6), (5000, 8)])
    assert [shared.owner(entry) for entry in (6, 7, 8)] == [DELAYED, IN_TRANSACTION, DELAYED]
    shared.abort(T)
    assert [shared.owner(entry) for entry in (6, 7, 8)] == [DELAYED, WAITING, DELAYED]
    shared.due(5000)
    assert [shared.owner(entry) for entry in (6, 8)] == [WAITING, WAITING]


def test_a_consumer_that_was_assigned_an_entry_does_not_keep_it(shared: TransactionSite):
    """It had not fetched it when another one acknowledged it; after the abort it is claimed once."""
    shared.hold(T, [1, 2])
    shared.abort(T)
    ranges = shared.dispatch.assigned_by_consumer[shared.consumer].ranges
    assert not any(ledger_id == LEDGER and first <= 1 <= last for ledger_id, first, last in ranges)
    assert shared.claim(shared.consumer) == {shared.consumer: [(1, 2), (4, 5)]}
    assert shared.owner(1) == shared.consumer


def test_acknowledging_in_a_transaction_unblocks_a_consumer():
    """It holds less, as after any acknowledgement; what it acknowledged counts for no limit of all either."""
    site = TransactionSite(SHARED)
    site.leave(site.consumer)
    site.consumer = site.join(max_unacked=4, max_unacked_in_all=4)
    site.read(0, 9, ranges=[(site.consumer, 0, 3)])
    assert site.dispatch.is_blocked
    assert site.hold(T, [0, 1, 2, 3]) == CLAIMABLE | UNBLOCKED
    assert (site.dispatch.is_blocked, site.dispatch.room) == (False, 4)
    site.assign((site.consumer, 4, 7))
    assert site.dispatch.is_blocked
    site.abort(T)
    assert site.dispatch.waiting == 6


def test_a_key_is_free_when_its_entries_are_in_transactions():
    """Another consumer may get later messages of it; held ones are in flight with nobody."""
    site = TransactionSite(KEY_SHARED)
    site.leave(site.consumer)
    site.consumer = site.join("c", selector=1)
    site.read(0, 3, hashes=[9, 9, 8, 9], ranges=[(site.consumer, 0, 2)])
    assert site.dispatch.pending.keys.number(9) == 2
    assert site.hold(T, [0]) == 0
    assert site.hold(U, [1]) == CLAIMABLE
    assert (site.dispatch.pending.keys.number(9), site.dispatch.pending.keys.holder(9)) == (0, 0)
    site.abort(T)
    assert site.dispatch.pending.waiting_keys.number_of(9) == 2
    site.commit(U)
    assert site.dispatch.pending.keys.pack() == {8: (site.dispatch.pending.keys.holder(8), 1)}


def test_a_cumulative_acknowledgement_holds_entries_from_consumers_of_another_type():
    """Its consumer left, and others share the messages while the transaction is open."""
    site = TransactionSite()
    site.hold(T, through=(2, 0, 2))
    site.leave(site.consumer)
    site.type = SHARED
    site.consumer = site.join()
    site.read(0, 4, messages=[1, 1, 2, 1, 1], ranges=[(site.consumer, 0, 4)])
    assert site.owners(4) == [IN_TRANSACTION] * 2 + [site.consumer] * 3
    assert site.pending.bits(Position(LEDGER, 2)) == 1
    site.abort(T)
    assert site.owners(4) == [WAITING] * 2 + [site.consumer] * 3
    assert [site.count(entry) for entry in range(3)] == [0, 0, 0]


# -- replicas ----------------------------------------------------------------------------------------------


def test_a_subscription_without_transactions_is_stored_as_before():
    """Byte for byte; one that had some says so, and only open ones need the newer version."""
    site = TransactionSite()
    site.ack(site.consumer, 1)
    before = encode_snapshot(site.state)
    assert "transactions" not in decode_document(before, KIND_SUBSCRIPTION_SNAPSHOT)
    site.hold(T, [3])
    with pytest.raises(UnsupportedFormatVersion, match=r"format version 2; this release reads 1.*upgrade"):
        decode_document(encode_snapshot(site.state), KIND_SUBSCRIPTION_SNAPSHOT)
    site.commit(T)
    fields = decode_document(encode_snapshot(site.state), KIND_SUBSCRIPTION_SNAPSHOT)
    assert fields["transactions"] == [0, 1, 0, 1000, []]


def test_replicas_that_missed_a_transaction_are_found_out():
    """Though neither an acknowledgement nor an entry's state differs yet."""
    checkpoints = set()
    for entries in ([], [1], [1, 2], [2]):
        site = TransactionSite()
        if entries:
            site.hold(T, entries)
        site.apply(record.Expired(1, 1))
        checkpoints.add(checkpoint_of(site.state)._replace(commands=0))
    assert len(checkpoints) == 3  # an outline has numbers, not entries


def test_what_is_acknowledged_otherwise_stays_in_a_snapshot():
    """The replica that starts from it must say the same of the transaction as the others."""
    site = TransactionSite()
    site.hold(T, [3, 4], {5: (0b01, 2)})
    site.ack(site.consumer, 3)
    site.ack_indexes(site.consumer, 5, 2, 0b01)
    restored = decode_snapshot(encode_snapshot(site.state))
    assert restored.pending_acks.transactions[T].numbers() == [2, 1, None]
    assert checkpoint_of(restored) == checkpoint_of(site.state)


@pytest.mark.parametrize(
    "damage",
    [
        [0, 0, 0, 0],
        ["x", 0, 0, 0, []],
        [0, 0, 0, 0, [[0, 17, [[], []], None, [[], []]]]],
        [0, 0, 0, 0, [[0, 17, [[[7, 5, 3, 0, b""]], []], None, [[], []]]]],
        [0, 0, 0, 0, [[0, 17, [[[7, 3, 1 << 40, 0, b""]], []], None, [[], []]]]],
        [0, 0, 0, 0, [[0, 17, [[], [[7, 3, 0, b""]]], None, [[], []]]]],
        [0, 0, 0, 0, [[0, 1, [[[7, 3, 3, 0, b""]], []], None, [[], []]]] * 2],
        [0, 0, 0, 0, [[0, n, [[], []], [7, 3, -1, 0], [[], []]] for n in (1, 2)]],
    ],
)
def test_a_distorted_snapshot_is_refused(damage: list[object], monkeypatch: pytest.MonkeyPatch):
    """Not guessed at: two transactions that have the same entry, entries that no ledger has."""
    site = TransactionSite()
    site.hold(T, [3])
    monkeypatch.setattr(site.pending.__class__, "pack", lambda _: damage)
    with pytest.raises(CorruptionError, match="the snapshot lacks or distorts"):
        decode_snapshot(encode_snapshot(site.state))


def test_no_summary_while_something_is_pending():
    """A process of a release without transactions would leap over it; afterwards it says how many ended."""
    site = TransactionSite(SHARED)
    for number in range(20):
        site.join(f"d{number}")
    follower = decode_snapshot(encode_snapshot(site.state))
    assert is_worth_it(site.state)
    site.hold(T, [0])
    assert not is_worth_it(site.state)
    site.commit(T)
    assert is_worth_it(site.state)
    assert adopt_summary(follower, pack_summary(site.state))
    assert encode_snapshot(follower) == encode_snapshot(site.state)


def test_commands_that_make_it_anew():
    """What an operator puts back keeps what is pending."""
    site = TransactionSite()
    site.hold(T, [1, 4], {2: (0b01, 2)})
    site.hold(U, through=(9,))
    packed = site.pending.pack()
    other = SubscriptionState()
    for command in (record.Create("s", 1, LEDGER, -1), record.Attach(2, "c", 0, 0, bytes(16), 0)):
        other.apply(command)
    for command in site.pending.acks_again(2, other.epoch):
        other.apply(command)
    assert other.pending_acks.pack() == packed
