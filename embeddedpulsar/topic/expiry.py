"""What is taken away because it is too old: messages of durable subscriptions."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.managed_ledger.log import Log
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic.held_policies import HeldPolicies
from embeddedpulsar.topic.topic_limits import MESSAGE_TTL
from embeddedpulsar.topic.topic_subscriptions import TopicSubscriptions


class MessageExpiry:
    """Acknowledges, for every durable subscription of a topic, the messages published longer ago than the
    policy `MESSAGE_TTL` says, delayed ones included. A `Check` of `TopicUpkeep`.

    Callers: the thread of housekeeping, which holds no lock of the topic.
    """

    follows_traffic = False

    def __init__(
        self,
        log: Log,
        policies: HeldPolicies,
        subscriptions: TopicSubscriptions,
        clock: Clock,
        settings: BrokerSettings,
    ) -> None:
        self._log: Final = log
        self._policies: Final = policies
        self._subscriptions: Final = subscriptions
        self._clock: Final = clock
        self.every_s = 60.0 * settings.messageExpiryCheckIntervalInMinutes

    def is_wanted(self) -> bool:
        return self._policies.value(MESSAGE_TTL) > 0

    def look(self, done: list[str]) -> bool:
        seconds = self._policies.value(MESSAGE_TTL)
        first_to_stay = self._log.find_by_publish_time(self._clock.wall_ms() - 1000 * seconds)
        moved = self._subscriptions.expire_through(first_to_stay.previous())
        if moved:
            names = ", ".join(map(repr, moved))
            done.append(f"{self._log.name}: messages older than {seconds} s expired for {names}")
        return False
