"""Summaries in the journal: one of hundreds of consumers, asleep most of the time, takes over the last one
instead of applying all commands since it was awake."""

from __future__ import annotations

from typing import Any, Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.packed_map import pack_map, unpack_map
from embeddedpulsar.subscription.state.snapshot import (
    DISTORTIONS,
    pack_ledgers,
    unpack_ledgers,
)
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

LEAST_CONSUMERS: Final = 16
"""With fewer of them none is far behind."""
_MOST_PENDING: Final = 1024
_MOST_DELAYED: Final = 64
_MOST_BYTES: Final = 1 << 20


def is_worth_it(state: SubscriptionState) -> bool:
    """Whether a summary is made of such a state: many consumers, and little besides."""
    dispatch = state.dispatch
    ledger_id, entry_id = state.mark_delete
    return (
        len(dispatch.assigned_by_consumer) >= LEAST_CONSUMERS
        and dispatch.read.ledger_id == ledger_id
        and dispatch.read.entry_id - entry_id <= _MOST_PENDING
        and len(dispatch.delayed) <= _MOST_DELAYED
    )


def pack_summary(state: SubscriptionState) -> bytes:
    """Everything but the consumers and the division of keys among them, which `epoch` stands for."""
    fields = {
        "epoch": state.epoch,
        "commands": state.commands,
        "digest": state.digest,
        "stale": state.stale,
        "ledgers": pack_ledgers(state.acks),
        "dispatch": state.dispatch.pack_progress(state.acks),
    }
    return pack_map(fields)


def adopt_summary(state: SubscriptionState, content: bytes) -> bool:
    """Become what the summary says.

    Returns:
        False, and nothing is changed, if consumers came or left, or were moved, between the two.

    Raises:
        CorruptionError: this is no summary. The state may be distorted then.
    """
    fields: dict[str, Any] = unpack_map(content, _MOST_BYTES)
    try:
        if not state.exists or fields["epoch"] != state.epoch or fields["commands"] < state.commands:
            return False
        state.acks = unpack_ledgers(fields["ledgers"], state.acks)
        state.dispatch.unpack_progress(fields["dispatch"])
        state.commands = fields["commands"]
        state.digest = fields["digest"]
        state.stale = fields["stale"]
    except DISTORTIONS as e:
        raise CorruptionError(reason=f"the summary lacks or distorts {e or type(e).__name__}") from e
    return True
