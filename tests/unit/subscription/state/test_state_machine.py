"""The state machine: what each command does, and which no longer count."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack, AckBatch, group_entries
from embeddedpulsar._engine.format.document import (
    KIND_SUBSCRIPTION_SNAPSHOT,
    decode_document,
    encode_document,
)
from embeddedpulsar._engine.subscription.state.replica import (
    MARK_DELETE,
    MEMBERS,
    NONE,
    REWOUND,
    STALE,
    SubscriptionState,
    checkpoint_of,
    decode_snapshot,
    encode_snapshot,
)
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message_id import Position


def created() -> SubscriptionState:
    state = SubscriptionState()
    state.apply(record.Create("s", 5, 1, -1))
    return state


def attach(state: SubscriptionState, name: str = "c") -> tuple[int, int]:
    """The id and epoch of a new consumer."""
    consumer_id = state.epoch + 1
    state.apply(record.Attach(consumer_id, name, ConsumerType.Exclusive, 0, bytes(16), 7))
    return consumer_id, state.epoch


def ack(consumer: tuple[int, int], *entries: int) -> Ack:
    return Ack(*consumer, group_entries([(1, entry) for entry in entries]), ())


def test_nothing_happens_before_creation():
    """Commands of a subscription that does not exist are ignored, and not counted."""
    state = SubscriptionState()
    assert state.apply(record.Seek(1, 1)) == NONE
    assert (state.exists, state.commands, state.digest) == (False, 0, 0)


def test_effects_of_membership():
    """Whoever comes or goes voids what others read ahead; a second departure does nothing."""
    state = created()
    assert state.apply(record.Attach(6, "c", 0, 0, bytes(16), 7)) == REWOUND | MEMBERS
    assert state.apply(record.Detach(6, record.DETACH_DEAD)) == REWOUND | MEMBERS
    assert state.apply(record.Detach(6, record.DETACH_CLOSED)) == NONE


def test_an_acknowledgement_moves_the_mark_delete_position():
    """Only when it is contiguous."""
    state = created()
    consumer = attach(state)
    assert state.apply(ack(consumer, 1, 2)) == NONE
    assert state.apply(ack(consumer, 0)) == MARK_DELETE
    assert state.mark_delete == Position(1, 2)


@pytest.mark.parametrize(
    "command", [record.Seek(1, -1), record.Detach(6, 0), record.Attach(7, "d", 0, 0, bytes(16), 0)]
)
def test_epochs_drop_late_commands(command: record.Command):
    """After a seek or a departure acknowledgements under the old epoch count no more; another's arrival alone
    does not void them."""
    state = created()
    consumer = attach(state)
    assert consumer == (6, 6)
    state.apply(command)
    late = state.apply(ack(consumer, 0))
    cumulative = state.apply(record.AckCumulative(*consumer, 1, 5, -1, 0))
    if isinstance(command, record.Attach):
        assert (late, cumulative, state.stale) == (MARK_DELETE, MARK_DELETE, 0)
    else:
        assert (late, cumulative, state.stale) == (STALE, STALE, 2)
        assert state.mark_delete == Position(1, -1)


def test_a_seek_keeps_the_consumer_attached_under_a_new_epoch():
    """It goes on without attaching again."""
    state = created()
    consumer_id, epoch = attach(state)
    state.apply(record.Seek(1, 3))
    assert state.consumers.is_current(consumer_id, epoch + 1)


def test_ids_and_epochs_outlive_the_consumer():
    """No later consumer has the id of an earlier one."""
    state = created()
    first, _ = attach(state)
    state.apply(record.Detach(first, record.DETACH_CLOSED))
    second, _ = attach(state)
    assert second > first


def test_acknowledgements_in_unknown_ledgers_are_dropped():
    """Without the facts about the ledgers between, the mark-delete position could step over messages."""
    state = created()
    consumer = attach(state)
    state.apply(Ack(*consumer, group_entries([(4, 0)]), ()))
    state.apply(record.AckCumulative(*consumer, 4, 0, -1, 0))
    assert state.mark_delete == Position(1, -1)
    state.apply(record.Ledgers(((1, 0), (4, -1))))
    assert state.mark_delete == Position(4, -1)


def test_digests_differ_when_replicas_do():
    """A replica that missed, doubled or swapped a command is found out at the next checkpoint."""
    commands = [ack((6, 6), n) for n in (4, 9, 2)]
    digests = set()
    for order in ([0, 1, 2], [0, 1], [0, 0, 1, 2], [1, 0, 2]):
        state = created()
        attach(state)
        for number in order:
            state.apply(commands[number])
        digests.add(checkpoint_of(state))
    assert len(digests) == 4


def test_a_snapshot_is_the_state():
    """And has the same bytes whether the state was lived through or restored."""
    state = created()
    consumer = attach(state)
    state.apply(record.Ledgers(((1, 20), (4, -1))))
    state.apply(ack(consumer, *range(0, 20, 3)))
    state.apply(Ack(*consumer, (), (AckBatch(4, 7, 9, 0b101),)))
    data = encode_snapshot(state)
    restored = decode_snapshot(data)
    assert encode_snapshot(restored) == data
    for one in (state, restored):
        one.apply(ack(consumer, 1, 2))
    assert checkpoint_of(restored) == checkpoint_of(state)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ledgers", []),
        ("ledgers", [[1, -1, 1 << 40, b"", []]]),
        ("ledgers", [[1, -1, 0, b"", [[3, 1 << 30, b""]]]]),
        ("ledgers", [[2, -1, 0, b"", []], [1, -1, 0, b"", []]]),
        ("ledgers", 7),
        ("consumers", [[1, "c", 0, 0, b"short", 0, 1]]),
        ("consumers", [[1]]),
        ("epoch", "x"),
        ("name", None),
        ("exists", 3),
        ("consumers", [["x", "c", 0, 0, bytes(16), 0, 1]]),
    ],
)
def test_hostile_snapshots_are_refused(field: str, value: object):
    """Nothing is allocated on the word of a file, and nothing but CorruptionError comes out."""
    fields = decode_document(encode_snapshot(created()), KIND_SUBSCRIPTION_SNAPSHOT)
    fields[field] = value
    with pytest.raises(CorruptionError):
        decode_snapshot(encode_document(KIND_SUBSCRIPTION_SNAPSHOT, fields))
    del fields[field]
    with pytest.raises(CorruptionError):
        decode_snapshot(encode_document(KIND_SUBSCRIPTION_SNAPSHOT, fields))


def test_a_cumulative_acknowledgement_within_a_batch():
    """The rest of the batch stays; nothing happens if its ledger is not known."""
    state = created()
    consumer = attach(state)
    state.apply(record.AckCumulative(*consumer, 1, 2, 1, 4))
    assert (state.mark_delete, state.acks.indexes(Position(1, 2))) == (Position(1, 1), 0b11)
    assert state.apply(record.AckCumulative(*consumer, 9, 2, 1, 4)) == NONE
    assert state.apply(record.AckCumulative(*consumer, 9, 2, -1, 0)) == NONE
    state.apply(record.Ledgers(((1, 3), (4, -1))))
    assert state.apply(record.AckCumulative(*consumer, 4, 0, 0, 2)) == MARK_DELETE
    assert (state.mark_delete, state.acks.indexes(Position(4, 0))) == (Position(4, -1), 0b1)
    assert state.apply(record.AckCumulative(consumer[0], 1, 4, 3, -1, 0)) == STALE


def test_acknowledged_batches_of_unknown_ledgers_are_ignored():
    """They were trimmed, or are none of this topic's."""
    state = created()
    consumer = attach(state)
    assert state.apply(Ack(*consumer, (), (AckBatch(9, 0, 2, 1),))) == NONE
    assert list(state.acks.partials()) == []


def test_a_batch_beyond_the_end_of_its_ledger_is_no_more():
    """Everything before it is acknowledged all the same."""
    state = created()
    consumer = attach(state)
    state.apply(record.Ledgers(((1, 2), (4, -1))))
    assert state.apply(record.AckCumulative(*consumer, 1, 2, 0, 4)) == MARK_DELETE
    assert (state.mark_delete, list(state.acks.partials())) == (Position(4, -1), [])
