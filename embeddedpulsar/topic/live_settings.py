"""The settings of the subscriptions of a topic, which follow its policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic.creation_policy import DELAYED_DELIVERY
from embeddedpulsar.topic.topic_limits import MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION

if TYPE_CHECKING:
    from embeddedpulsar.topic.held_policies import HeldPolicies


class LiveSettings:
    """Has the fields of `BrokerSettings`, of which those with a policy change with it.

    Role: a field costs its reader what one of `BrokerSettings` does, however often it is read.
    Callers: any thread; the policies write, one field at a time.
    """

    def __init__(self, settings: BrokerSettings, policies: HeldPolicies) -> None:
        self.__dict__.update(settings._asdict())
        self._policies = policies
        self._follow()
        policies.listen(self._follow)

    def _follow(self) -> None:
        delayed, per_consumer, in_all = self._policies.values(
            (DELAYED_DELIVERY, MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION)
        )
        self.__dict__.update(
            delayedDeliveryEnabled=delayed.active,
            delayedDeliveryTickTimeMillis=delayed.tick_time,
            maxUnackedMessagesPerConsumer=per_consumer,
            maxUnackedMessagesPerSubscription=in_all,
        )


def live_settings(settings: BrokerSettings, policies: HeldPolicies) -> BrokerSettings:
    """Settings that follow the policies of a topic; see `LiveSettings`."""
    return cast(BrokerSettings, LiveSettings(settings, policies))
