"""A command of a journal is one module and one call of `RecordTypes.add`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from embeddedpulsar._engine.format import journal_record, subscription_record
from embeddedpulsar._engine.store.topic_journal import ProducerTable
from embeddedpulsar._engine.subscription.state.replica import REWOUND, SubscriptionState
from embeddedpulsar._engine.subscription.subscription import Subscription
from embeddedpulsar.exceptions import UnsupportedFormatVersion
from embeddedpulsar.message_id import Position
from tests.subscription_site import SubscriptionSite, read_all

BODY = struct.Struct("<Qq")


class ClearBacklog(NamedTuple):
    """Everything up to a position counts as acknowledged, by no consumer."""

    ledger_id: int
    entry_id: int


class Pause(NamedTuple):
    """The topic admits no more producers."""

    reason: str


def clear_backlog(state: SubscriptionState, command: ClearBacklog) -> int:
    state.acks.acknowledge_through(Position(*command))
    state.epoch += 1
    state.consumers.raise_epochs(state.epoch)
    return REWOUND


def pause(table: ProducerTable, command: Pause, time_ms: int) -> None:
    table.epoch += 1


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    subscriptions, topics = subscription_record.RECORDS, journal_record.RECORDS
    try:
        subscriptions.add_fixed(100, ClearBacklog, BODY)
        subscriptions.handlers[ClearBacklog] = clear_backlog
        topics.add(
            100, Pause, lambda one: one.reason.encode(), lambda data: Pause(bytes(data).decode()), pause
        )
        yield
    finally:
        subscriptions.remove(ClearBacklog)
        topics.remove(Pause)


def commit(subscription: Subscription, command: Any) -> None:
    shared = subscription._existing()
    shared.transact(lambda state: shared.commit([command]))


def test_all_processes_follow_a_command_that_was_added(tmp_path: Path):
    """The process that commits it, one that has the subscription open, and one that opens it later."""
    with SubscriptionSite(tmp_path) as one, SubscriptionSite(tmp_path) as other:
        last = one.publish(10)[-1]
        subscription, elsewhere = one.subscription(), other.subscription(initial=None)
        consumer = elsewhere.attach("c")
        commit(subscription, ClearBacklog(*last))
        assert subscription.mark_delete == elsewhere.mark_delete == last
        assert read_all(consumer) == []
    with SubscriptionSite(tmp_path) as later:
        assert later.subscription(initial=None).mark_delete == last
        assert later.damage == []


def test_a_release_without_the_command_refuses_the_journal(tmp_path: Path):
    """It must not follow the rest of the journal as if the command had not been there."""
    with SubscriptionSite(tmp_path) as one:
        commit(one.subscription(), ClearBacklog(*one.publish(1)[0]))
    subscription_record.RECORDS.remove(ClearBacklog)
    try:
        with SubscriptionSite(tmp_path) as older, pytest.raises(UnsupportedFormatVersion, match="upgrade"):
            older.subscription(initial=None).exists()
    finally:
        subscription_record.RECORDS.add_fixed(100, ClearBacklog, BODY)


def test_the_topics_journal_takes_commands_likewise():
    """There and back, and followed by the table of producers."""
    table = ProducerTable()
    table.apply(journal_record.decode_command(*journal_record.encode_command(Pause("full"))))
    assert table.epoch == 1


@pytest.mark.parametrize("kind", [0, 0xFFFF, subscription_record.SEEK, 100])
def test_a_number_is_used_once(kind: int):
    """Numbers are stored: none may have two meanings, and two belong to the journal itself."""
    with pytest.raises(ValueError, match="not the number"):
        subscription_record.RECORDS.add_fixed(kind, Pause, BODY)
