"""Whether a consumer may attach. Decisions on a caught-up state, inside a transaction."""

from __future__ import annotations

from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import ConsumerAssignError, ConsumerBusy
from embeddedpulsar.subscription.dispatch.dispatcher import dispatcher_for
from embeddedpulsar.subscription.state.consumer_registry import Consumer, ConsumerRegistry
from embeddedpulsar.subscription.state.entry_states import OWNERS
from embeddedpulsar.subscription.state.state_machine import SubscriptionState


def check_admission(state: SubscriptionState, new_consumer: Consumer, most: int) -> None:
    """Refuse a new consumer that the attached consumers do not admit.

    Args:
        state: after the detachment of dead consumers.
        new_consumer: the consumer that is to be attached.
        most: how many consumers may be attached; 0 for any number.

    Raises:
        ConsumerBusy: the text names the consumer that prevents it.
        ConsumerAssignError: the keys cannot be divided with this one.
    """
    consumers, kind = state.consumers, state.consumers.consumer_type
    if kind not in (None, new_consumer.consumer_type):
        name = next((str(one) for one in ConsumerType if one == kind), f"type {kind}")
        raise ConsumerBusy(f"Subscription is of different type: {names_of(consumers)} attached as {name}")
    if most and len(consumers) >= most:
        raise ConsumerBusy(
            f"the subscription has {most} consumers, as many as maxConsumersPerSubscription allows"
        )
    if not consumers.free_code():
        raise ConsumerBusy(f"the subscription has {OWNERS} consumers, as many as it can have")
    dispatcher = dispatcher_for(new_consumer.consumer_type)
    refusal = dispatcher.refusal(consumers, new_consumer, state.dispatch)
    if refusal:
        raise ConsumerBusy(refusal)
    refusal = dispatcher.key_refusal(new_consumer, state.dispatch)
    if refusal:
        raise ConsumerAssignError(refusal)


def names_of(consumers: ConsumerRegistry, but: int = 0) -> str:
    """The attached consumers, for messages; without the consumer ``but``."""
    return ", ".join(repr(one.name) for one in consumers.all() if one.consumer_id != but)
