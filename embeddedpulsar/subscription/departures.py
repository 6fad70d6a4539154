"""Who has to leave. Decisions on a caught-up state, inside a transaction where nothing else is said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

from embeddedpulsar.exceptions import LockTimeout, StoreGoneError
from embeddedpulsar.format.subscription_record import (
    DETACH_CLOSED,
    DETACH_DEAD,
    DETACH_SILENT,
    Detach,
)
from embeddedpulsar.managed_ledger.managed_ledger import ManagedLedger
from embeddedpulsar.platform import deadline
from embeddedpulsar.subscription.census import bereft, processes_of
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.log_facts import ledgers_of
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.state import SubscriptionState
from embeddedpulsar.subscription.unwritten_acks import with_unwritten_acks

_GOODBYE_S: Final = 0.2


def departures_of_dead(
    state: SubscriptionState, control: SubscriptionControl, is_alive: Callable[[bytes], bool]
) -> list[Detach]:
    """Take out consumers whose process is gone; the kernel says which, by their leases."""
    return [
        departure(state, control, one.consumer_id, DETACH_DEAD)
        for one in state.consumers.all()
        if not is_alive(one.client_uuid)
    ]


def departures_of_silent(
    state: SubscriptionState, control: SubscriptionControl, ids: Collection[int]
) -> list[Detach]:
    """Take out consumers whose process lives and has not shown itself for too long."""
    return [departure(state, control, consumer_id, DETACH_SILENT) for consumer_id in sorted(ids)]


def departures_of(
    state: SubscriptionState, control: SubscriptionControl, ids: Collection[int]
) -> list[Detach]:
    """Take out those of the consumers ``ids`` that are still attached."""
    return [
        departure(state, control, one.consumer_id, DETACH_CLOSED)
        for one in state.consumers.all()
        if one.consumer_id in ids
    ]


def detach(shared: SharedState, log: ManagedLedger, ids: Collection[int]) -> None:
    """Detach consumers that are closed, outside of a transaction."""
    with contextlib.suppress(StoreGoneError):  # then there is nothing to leave
        shared.transact(
            lambda state: commit_departures(state, shared, log, departures_of(state, shared.control, ids))
        )


def commit_departures(
    state: SubscriptionState, shared: SharedState, log: ManagedLedger, leaving: Sequence[Detach]
) -> None:
    """Let consumers leave, if any: with what they acknowledged and did not come to write.

    The processes that stood before theirs have other neighbours then, and are woken to watch them.
    """
    if leaving:
        ring = processes_of(state.consumers.all())
        shared.commit(
            with_unwritten_acks(
                state, shared.directory, shared.control.boot_id, leaving, lambda: ledgers_of(log)
            )
        )
        shared.wakeups.processes(bereft(ring, processes_of(state.consumers.all())))


def detach_at_last(shared: SharedState, log: ManagedLedger, ids: Collection[int]) -> None:
    """Detach consumers when the subscription is closed here; unless another process stays in the lock.

    Then others detach them, because this process soon has no lease.
    """
    with contextlib.suppress(LockTimeout):
        deadline.within(_GOODBYE_S, detach, shared, log, ids)


def departure(
    state: SubscriptionState, control: SubscriptionControl, consumer_id: int, reason: int
) -> Detach:
    """The command by which an attached consumer leaves: it says what its application has seen."""
    consumer = state.consumers.get(consumer_id)
    handed = 0
    if consumer is not None:
        handed = control.handed(consumer.code, consumer_id)
    return Detach(consumer_id, reason, handed)
