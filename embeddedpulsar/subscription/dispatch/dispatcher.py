"""The subscription types: a registry of their dispatchers."""

from __future__ import annotations

from typing import Final

from embeddedpulsar._engine.format.subscription_record import CONSUMER_TYPES
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.subscription.dispatch.dispatch_rules import ActiveDispatcher, ClaimDispatcher, Dispatcher
from embeddedpulsar.subscription.dispatch.dispatcher_multiple import SharedDispatcher
from embeddedpulsar.subscription.dispatch.dispatcher_single_active import (
    ExclusiveDispatcher,
    FailoverDispatcher,
)
from embeddedpulsar.subscription.dispatch.dispatcher_sticky_key import KeySharedDispatcher

ACTIVE_DISPATCHERS: Final[dict[int, ActiveDispatcher]] = {}
CLAIM_DISPATCHERS: Final[dict[int, ClaimDispatcher]] = {}


def register(number: int, dispatcher: ActiveDispatcher | ClaimDispatcher) -> None:
    """Add a subscription type. Its number is stored with every consumer.

    Raises:
        ValueError: the number is taken, or is not 0 to 255.
    """
    if not 0 <= number <= 255 or number in ACTIVE_DISPATCHERS or number in CLAIM_DISPATCHERS:
        raise ValueError(f"{number} is not the number of a new subscription type")
    if isinstance(dispatcher, ActiveDispatcher):
        ACTIVE_DISPATCHERS[number] = dispatcher
    else:
        CLAIM_DISPATCHERS[number] = dispatcher
    CONSUMER_TYPES[number] = isinstance(dispatcher, ClaimDispatcher)


def dispatcher_for(consumer_type: int) -> Dispatcher:
    """The rules of a subscription type."""
    return ACTIVE_DISPATCHERS.get(consumer_type) or CLAIM_DISPATCHERS[consumer_type]


register(ConsumerType.Exclusive, ExclusiveDispatcher())
register(ConsumerType.Shared, SharedDispatcher())
register(ConsumerType.Failover, FailoverDispatcher())
register(ConsumerType.KeyShared, KeySharedDispatcher())
