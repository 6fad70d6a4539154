"""A consumer that is to be attached: what it asks for, and whether the attached consumers admit it."""

from __future__ import annotations

from typing import NamedTuple

from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import ConsumerAssignError, ConsumerBusy
from embeddedpulsar.format.consumer_record import ConsumerRules
from embeddedpulsar.format.subscription_record import Attach
from embeddedpulsar.subscription.dispatch.dispatcher import dispatcher_for
from embeddedpulsar.subscription.state.consumer_registry import Consumer, ConsumerRegistry
from embeddedpulsar.subscription.state.entry_states import OWNERS
from embeddedpulsar.subscription.state.state_machine import SubscriptionState


class AttachRequest(NamedTuple):
    """A consumer that has not attached yet.

    Attributes:
        name: for statistics, and to order consumers by.
        consumer_type: must be that of the consumers attached already.
        client_uuid: the lease of its process.
        priority: priority level, 0 being the best.
        receiver_queue_size: messages it is ready to take at once.
        rules: its requirements for dispatch.
    """

    name: str
    consumer_type: int
    client_uuid: bytes
    priority: int
    receiver_queue_size: int
    rules: ConsumerRules

    def command(self, consumer_id: int, now_ms: int) -> Attach:
        """The command by which it attaches."""
        return Attach(
            consumer_id, self.name, self.consumer_type, self.priority, self.client_uuid, now_ms, self.rules
        )


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
