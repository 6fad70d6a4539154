"""What sets the subscription types apart: rules over the replicated state, without state of their own."""

from __future__ import annotations

from typing import Protocol

from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import OperationNotSupported
from embeddedpulsar.subscription.consumer_registry import ConsumerRegistry
from embeddedpulsar.subscription.dispatcher_single_active import ExclusiveDispatcher


class Dispatcher(Protocol):
    """The rules of one subscription type.

    Every method is a pure function of its arguments: it is called by replicas in different processes and must
    answer the same in all of them.
    """

    def refusal(self, consumers: ConsumerRegistry, newcomer: str) -> str:
        """Why a consumer named ``newcomer`` may not attach now; empty if it may."""


_DISPATCHERS: dict[ConsumerType, Dispatcher] = {ConsumerType.Exclusive: ExclusiveDispatcher()}


def dispatcher_for(consumer_type: ConsumerType) -> Dispatcher:
    """The rules of a subscription type.

    Raises:
        OperationNotSupported: this release has no such subscriptions.
    """
    try:
        return _DISPATCHERS[consumer_type]
    except KeyError:
        names = ", ".join(kind.name for kind in _DISPATCHERS)
        raise OperationNotSupported(
            f"{consumer_type.name} subscriptions are not built yet; this release has {names}"
        ) from None
