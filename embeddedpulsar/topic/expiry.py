"""What is taken away because it is too old: messages of durable subscriptions, and subscriptions."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.topic.housekeeping import UpkeptParts
from embeddedpulsar.topic.policies.keeping import MESSAGE_TTL, SUBSCRIPTION_EXPIRATION


class MessageExpiry:
    """Acknowledges, for every durable subscription of a topic, the messages published longer ago than the
    policy `MESSAGE_TTL` says, delayed ones included. A `Check` of `TopicUpkeep`.

    Callers: the thread of housekeeping, which holds no lock of the topic.
    """

    follows_traffic = False
    undone = "messages do not expire"

    def __init__(self, parts: UpkeptParts) -> None:
        self._log: Final = parts.log
        self._policies: Final = parts.policies
        self._subscriptions: Final = parts.subscriptions
        self._clock: Final = parts.clock
        self.every_s = 60.0 * parts.settings.messageExpiryCheckIntervalInMinutes

    def is_wanted(self) -> bool:
        return self._policies.value(MESSAGE_TTL) > 0

    def look(self, done: list[str]) -> bool:
        seconds = self._policies.value(MESSAGE_TTL)
        first_to_stay = self._log.find_by_publish_time(self._clock.wall_ms() - 1000 * seconds)
        moved = self._subscriptions.expire_through(first_to_stay.previous(), is_expiry=True)
        if moved:
            names = ", ".join(map(repr, moved))
            done.append(f"{self._log.name}: messages older than {seconds} s expired for {names}")
        return False


class SubscriptionExpiry:
    """Deletes durable subscriptions that have had no consumers for as long as the policy
    `SUBSCRIPTION_EXPIRATION` says, with their backlog. A `Check` of `TopicUpkeep`.

    Callers: the thread of housekeeping, which holds no lock of the topic.
    """

    follows_traffic = False
    undone = "subscriptions without consumers do not expire"

    def __init__(self, parts: UpkeptParts) -> None:
        self._view: Final = parts.view
        self._policies: Final = parts.policies
        self._subscriptions: Final = parts.subscriptions
        self._clock: Final = parts.clock
        self.every_s = 60.0 * parts.settings.subscriptionExpiryCheckIntervalInMinutes

    def is_wanted(self) -> bool:
        return self._policies.value(SUBSCRIPTION_EXPIRATION) > 0

    def look(self, done: list[str]) -> bool:
        minutes = self._policies.value(SUBSCRIPTION_EXPIRATION)
        since_ms = self._clock.wall_ms() - 60_000 * minutes
        for facts, durable in self._view.subscriptions():
            is_idle = durable and not facts.consumers and facts.last_active_ms <= since_ms
            if is_idle and self._subscriptions.end_idle(facts.name, since_ms):
                done.append(f"subscription {facts.name!r} was deleted: no consumers for {minutes} minutes")
        return False
