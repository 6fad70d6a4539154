"""Who may attach, and who has to leave. Decisions on a caught-up state, inside a transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection

from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import ConsumerBusy
from embeddedpulsar.format.subscription_record import DETACH_CLOSED, DETACH_DEAD, Command, Detach
from embeddedpulsar.subscription.consumer_registry import ConsumerRegistry
from embeddedpulsar.subscription.dispatcher import Dispatcher


def check_admission(
    consumers: ConsumerRegistry, name: str, consumer_type: ConsumerType, dispatcher: Dispatcher, most: int
) -> None:
    """Refuse a newcomer whom the attached consumers do not admit.

    Args:
        consumers: who is attached, the dead detached.
        name: of the newcomer.
        consumer_type: what it wants to be.
        dispatcher: the rules of that type.
        most: how many consumers may be attached; 0 for any number.

    Raises:
        ConsumerBusy: the text says who is in the way.
    """
    if consumers.consumer_type not in (None, consumer_type):
        kind = consumers.consumer_type
        raise ConsumerBusy(f"Subscription is of different type: {names_of(consumers)} attached as {kind!s}")
    if most and len(consumers) >= most:
        raise ConsumerBusy(
            f"the subscription has {most} consumers, as many as maxConsumersPerSubscription allows"
        )
    refusal = dispatcher.refusal(consumers, name)
    if refusal:
        raise ConsumerBusy(refusal)


def departures_of_dead(consumers: ConsumerRegistry, is_alive: Callable[[bytes], bool]) -> list[Command]:
    """Take out consumers whose process is gone; the kernel says which, by their leases."""
    return [
        Detach(consumer.consumer_id, DETACH_DEAD)
        for consumer in consumers.all()
        if not is_alive(consumer.client_uuid)
    ]


def departures_of(consumers: ConsumerRegistry, ids: Collection[int]) -> list[Command]:
    """Take out those of the consumers ``ids`` that are still attached."""
    return [Detach(one.consumer_id, DETACH_CLOSED) for one in consumers.all() if one.consumer_id in ids]


def names_of(consumers: ConsumerRegistry, but: int = 0) -> str:
    """The attached consumers, for messages; without the consumer ``but``."""
    return ", ".join(repr(one.name) for one in consumers.all() if one.consumer_id != but)
