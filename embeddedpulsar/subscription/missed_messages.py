"""What a subscription of a non-persistent topic missed: all that was sent before it, or without consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.format.control import SubscriptionWord
from embeddedpulsar.subscription.log_queries import seek_commands

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar.subscription.control import SubscriptionControl
    from embeddedpulsar.subscription.shared_state import SharedState
    from embeddedpulsar.subscription.state.state_machine import SubscriptionState


def skip_missed(state: SubscriptionState, shared: SharedState, log: Log) -> None:
    """Put a subscription without consumers behind everything that was sent. Inside a transaction."""
    last = log.last_position()
    if not len(state.consumers) and last is not None and state.exists and last > state.mark_delete:
        shared.commit(seek_commands(log, last, inclusive=False))


def note_birth(control: SubscriptionControl, log: Log, now_ms: int) -> None:
    """Note when a subscription is made, and how many messages were sent before."""
    control.words[SubscriptionWord.MADE_MS] = now_ms
    control.words[SubscriptionWord.SENT_BEFORE] = log.survey().appended().messages
