"""Subscription types in which one consumer at a time gets everything, in order."""

from __future__ import annotations

from embeddedpulsar.subscription.consumer_registry import ConsumerRegistry


class ExclusiveDispatcher:
    """Exclusive: the first to attach is the only one, and reads lock-free behind the tail.

    Who detached leaves nothing behind: what it did not acknowledge is read again, in order, by the next.
    """

    def refusal(self, consumers: ConsumerRegistry, newcomer: str) -> str:
        for holder in consumers.all():
            return (
                f"Exclusive consumer is already connected: {holder.name!r} holds the subscription that "
                f"{newcomer!r} wants; close it, or subscribe as Shared or Failover"
            )
        return ""
