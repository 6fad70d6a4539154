"""Which consumers have to be detached. Decisions on a caught-up state, inside a transaction of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

from embeddedpulsar._engine.format.acknowledgement import FORM_RANGE, Ack, AckGroup
from embeddedpulsar._engine.format.subscription_record import (
    DETACH_CLOSED,
    DETACH_DEAD,
    DETACH_SILENT,
    Command,
    Detach,
)
from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.platform import deadline
from embeddedpulsar._engine.platform.scheduler import FIRST_PAUSE_S, BackgroundWork, CallLater
from embeddedpulsar.exceptions import LockTimeout, StoreGoneError
from embeddedpulsar.subscription.ack_ring import with_unwritten_acks
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.liveness_monitor import bereft, processes_of
from embeddedpulsar.subscription.log_queries import ledgers_of
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

_DETACH_TIMEOUT_S: Final = 0.2


def detach_commands_for_dead(
    state: SubscriptionState, control: SubscriptionControl, is_alive: Callable[[bytes], bool]
) -> list[Detach]:
    """Take out consumers whose process is gone; the kernel says which, by their leases."""
    return [
        detach_command(state, control, one.consumer_id, DETACH_DEAD)
        for one in state.consumers.all()
        if not is_alive(one.client_uuid)
    ]


def detach_commands_for_silent(
    state: SubscriptionState, control: SubscriptionControl, ids: Collection[int]
) -> list[Detach]:
    """Take out consumers whose process lives and has not shown itself for too long."""
    return [detach_command(state, control, consumer_id, DETACH_SILENT) for consumer_id in sorted(ids)]


def detach_commands_for(
    state: SubscriptionState, control: SubscriptionControl, ids: Collection[int], uuid: bytes
) -> list[Detach]:
    """Take out those of the consumers ``ids`` that are still attached; with a ``uuid``, that process's."""
    return [
        detach_command(state, control, one.consumer_id, DETACH_CLOSED)
        for one in state.consumers.all()
        if one.consumer_id in ids and uuid in (b"", one.client_uuid)
    ]


def detach(shared: SharedState, log: Log, ids: Collection[int], uuid: bytes = b"") -> None:
    """Detach consumers that are closed, outside of a transaction; with a ``uuid``, those of its process."""
    with contextlib.suppress(StoreGoneError):  # then there is nothing to leave
        shared.transact(
            lambda state: commit_detach_commands(
                state, shared, log, detach_commands_for(state, shared.control, ids, uuid)
            )
        )


def detach_surely(
    shared: SharedState, log: Log, ids: Collection[int], call_later: CallLater, uuid: bytes
) -> None:
    """`detach`; if that fails, or is interrupted, a timer does it.

    Args:
        uuid: of the process of the consumers: ids that none of them got may be those of others.
    """

    def detach_later() -> None:
        if not (shared.control.closed or shared.is_foreign):
            detach(shared, log, ids, uuid)

    try:
        detach(shared, log, ids, uuid)
    except BaseException:
        BackgroundWork(call_later, detach_later).after(FIRST_PAUSE_S)
        raise


def commit_detach_commands(
    state: SubscriptionState, shared: SharedState, log: Log, leaving: Sequence[Detach]
) -> None:
    """Let consumers leave, if any: with what they acknowledged and did not come to write.

    The processes that stood before theirs have other neighbours then, and are woken to watch them.
    """
    if leaving:
        ring = processes_of(state.consumers.all())
        settled = settle_left(state, leaving) if log.is_volatile else []
        directory, boot = shared.directory, shared.control.boot_id
        shared.commit(settled + with_unwritten_acks(state, directory, boot, leaving, lambda: ledgers_of(log)))
        shared.wakeups.processes(bereft(ring, processes_of(state.consumers.all())))


def detach_at_last(shared: SharedState, log: Log, ids: Collection[int], uuid: bytes) -> None:
    """Detach consumers when the subscription is closed here, unless another process stays in the lock.

    Then others detach them, because this process soon has no lease.
    """
    with contextlib.suppress(LockTimeout):
        deadline.within(_DETACH_TIMEOUT_S, detach, shared, log, ids, uuid)


def detach_command(
    state: SubscriptionState, control: SubscriptionControl, consumer_id: int, reason: int
) -> Detach:
    """The command by which an attached consumer leaves: it says what its application has seen."""
    consumer = state.consumers.get(consumer_id)
    handed = 0
    if consumer is not None:
        handed = control.handed(consumer.code, consumer_id)
    return Detach(consumer_id, reason, handed)


def settle_left(state: SubscriptionState, leaving: Sequence[Detach]) -> list[Command]:
    """On a non-persistent topic: acknowledgements of what the applications of leaving consumers got."""
    commands: list[Command] = []
    for one in leaving:
        consumer = state.consumers.get(one.consumer_id)
        assigned = state.dispatch.assigned_by_consumer.get(one.consumer_id)
        if consumer is None or assigned is None:
            continue
        unseen = list(assigned.behind(one.handed))
        groups = [
            AckGroup(ledger_id, first, last, FORM_RANGE, b"")
            for run in state.dispatch.pending.runs(consumer.code)
            for ledger_id, first, last in _without(run, unseen)
        ]
        if groups:
            commands.append(Ack(one.consumer_id, consumer.epoch, tuple(groups), ()))
    return commands


def _without(run: tuple[int, int, int], others: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """What of a run of entries is in none of the others."""
    ledger_id, first, last = run
    left = []
    for _, start, stop in sorted(one for one in others if one[0] == ledger_id):
        if start > last:
            break
        if start > first:
            left.append((ledger_id, first, start - 1))
        first = max(first, stop + 1)
    if first <= last:
        left.append((ledger_id, first, last))
    return left
