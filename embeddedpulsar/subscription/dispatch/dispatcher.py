"""The rules by which the subscription types differ: functions of the replicated state, without a state."""

from __future__ import annotations

from typing import Final, Protocol

from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.format.dispatch_record import Assign
from embeddedpulsar.subscription.dispatch.assignment import Claim
from embeddedpulsar.subscription.dispatch.dispatcher_multiple import SharedDispatcher
from embeddedpulsar.subscription.dispatch.dispatcher_single_active import (
    ExclusiveDispatcher,
    FailoverDispatcher,
)
from embeddedpulsar.subscription.dispatch.dispatcher_sticky_key import KeySharedDispatcher
from embeddedpulsar.subscription.state.consumer_registry import Consumer, ConsumerRegistry
from embeddedpulsar.subscription.state.dispatch_state import DispatchState


class Dispatcher(Protocol):
    """The rules of one subscription type.

    Every method is a pure function of its arguments: it is called by replicas in different processes and must
    answer the same in all of them.
    """

    def refusal(self, consumers: ConsumerRegistry, new_consumer: Consumer, dispatch: DispatchState) -> str:
        """Why ``new_consumer`` may not attach now; empty if it may."""


class ActiveDispatcher(Dispatcher, Protocol):
    """A type of which one consumer at a time gets everything."""

    def active(self, consumers: ConsumerRegistry) -> int:
        """Id of the consumer that gets everything; 0 without any."""


class ClaimDispatcher(Dispatcher, Protocol):
    """A type whose consumers claim entries."""

    def assign(self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim) -> Assign | None:
        """The assignment for a claim; None if it changes nothing."""

    def leaves_more(
        self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim, has_beyond: bool
    ) -> bool:
        """Whether others could claim something of what is left after this claim.

        Args:
            consumers, dispatch: the state afterwards.
            claim: what the claimer said.
            has_beyond: whether something stands behind the read position.
        """


ACTIVE_DISPATCHERS: Final[dict[ConsumerType, ActiveDispatcher]] = {
    ConsumerType.Exclusive: ExclusiveDispatcher(),
    ConsumerType.Failover: FailoverDispatcher(),
}
CLAIM_DISPATCHERS: Final[dict[ConsumerType, ClaimDispatcher]] = {
    ConsumerType.Shared: SharedDispatcher(),
    ConsumerType.KeyShared: KeySharedDispatcher(),
}


def dispatcher_for(consumer_type: ConsumerType) -> Dispatcher:
    """The rules of a subscription type."""
    return ACTIVE_DISPATCHERS.get(consumer_type) or CLAIM_DISPATCHERS[consumer_type]
