"""The settings of the subscriptions of a topic, which follow its policies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

from embeddedpulsar._engine.platform.scheduler import BackgroundWork
from embeddedpulsar._engine.store.policies.admitting import (
    DELAYED_DELIVERY,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
)
from embeddedpulsar.exceptions import AlreadyClosed, SubscriptionNotFound
from embeddedpulsar.settings import BrokerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from embeddedpulsar._engine.platform.scheduler import SchedulerLike
    from embeddedpulsar._engine.store.policies.policy_documents import HeldPolicies
    from embeddedpulsar._engine.subscription.subscription import Subscription


class LiveSettings:
    """Has the fields of `BrokerSettings`, of which those with a policy change with it.

    Role: a field costs its reader what one of `BrokerSettings` does, however often it is read. The limits of
    unacknowledged messages are part of the state of a subscription: after a change each process that has it
    open sees to it that its consumers follow. Callers: any thread; the policies write, one field at a time.

    Args:
        settings: what holds without policies.
        policies: of the topic.
        subscriptions: those that this process has open.
        timers: where the lock of a subscription may be tried.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        policies: HeldPolicies,
        subscriptions: Iterable[Subscription],
        timers: SchedulerLike,
    ) -> None:
        self.__dict__.update(settings._asdict())
        self._policies = policies
        self._subscriptions = subscriptions
        self._limiting = BackgroundWork(timers.call_later, self._limit)
        self._read()
        policies.listen(self._follow)

    def _follow(self) -> None:
        before = self._limits()
        self._read()
        if self._limits() != before:
            with contextlib.suppress(RuntimeError):  # the store is being closed
                self._limiting.after(0.0)

    def _limits(self) -> tuple[int, int]:
        settings = cast(BrokerSettings, self)
        return settings.maxUnackedMessagesPerConsumer, settings.maxUnackedMessagesPerSubscription

    def _limit(self) -> None:
        for subscription in self._subscriptions:
            if not subscription.is_gone:
                with contextlib.suppress(AlreadyClosed, SubscriptionNotFound):  # meanwhile
                    subscription.operator_commands().limit_unacked(cast(BrokerSettings, self))

    def _read(self) -> None:
        delayed, per_consumer, in_all = self._policies.values(
            (DELAYED_DELIVERY, MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION)
        )
        self.__dict__.update(
            delayedDeliveryEnabled=delayed.active,
            delayedDeliveryTickTimeMillis=delayed.tick_time,
            maxUnackedMessagesPerConsumer=per_consumer,
            maxUnackedMessagesPerSubscription=in_all,
        )


def live_settings(
    settings: BrokerSettings,
    policies: HeldPolicies,
    subscriptions: Iterable[Subscription],
    timers: SchedulerLike,
) -> BrokerSettings:
    """Settings that follow the policies of a topic; see `LiveSettings`."""
    return cast(BrokerSettings, LiveSettings(settings, policies, subscriptions, timers))
