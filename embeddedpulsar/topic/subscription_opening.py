"""Opening the subscriptions of a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from embeddedpulsar._engine.log.log_opening import PROCESS
from embeddedpulsar._engine.platform.descriptors import late_import

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.access import Refusal
    from embeddedpulsar._engine.platform.clock import Clock
    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.peers import Peers
    from embeddedpulsar._engine.platform.scheduler import SchedulerLike
    from embeddedpulsar._engine.subscription.subscription import Subscription
    from embeddedpulsar.settings import BrokerSettings
    from embeddedpulsar.topic.damage_channel import DamageChannel
    from embeddedpulsar.topic.policies.held_policies import HeldPolicies
    from embeddedpulsar.topic.topic_subscriptions import TopicSubscriptions


class SubscriptionHost(Protocol):
    """What subscriptions need of their store; see `StoreSession`."""

    settings: BrokerSettings
    mailbox: Mailbox
    peers: Peers
    scheduler: SchedulerLike
    chores: SchedulerLike
    damage: DamageChannel
    refusal: Refusal | None


class SubscriptionOpening:
    """Role: gives the subscriptions of a topic what they share. Their settings follow the policies of the
    topic. Callers: any thread.

    Args:
        session: of the store.
        log, policies: of the topic.
        clock: of the store.
        durability: the level of durable subscriptions.
        check_open: raises if the topic is closed.
    """

    __slots__ = ("_check_open", "_clock", "_durability", "_log", "_policies", "_session", "_settings")

    def __init__(
        self,
        session: SubscriptionHost,
        log: Log,
        policies: HeldPolicies,
        clock: Clock,
        durability: str,
        check_open: Callable[[], object],
    ) -> None:
        self._session: Final = session
        self._log: Final = log
        self._policies: Final = policies
        self._clock: Final = clock
        self._durability: Final = durability
        self._check_open: Final = check_open
        self._settings: BrokerSettings | None = None

    def open(self, among: TopicSubscriptions, directory: str, name: str, *, durable: bool) -> Subscription:
        """A subscription; its files are opened by its first use.

        Args:
            among: those of the topic; they say how many consumers there may be.
            directory: of the subscription.
            name: empty if it is not known.
            durable: whether it outlives its consumers.

        Raises:
            AlreadyClosed: the topic is closed.
            ReadOnlyStoreError: the store is open read-only.
        """
        # Imported on first use: most processes that publish have no subscription.
        live = late_import("embeddedpulsar.topic.policies.live_settings").live_settings
        module = late_import("embeddedpulsar._engine.subscription.subscription")

        self._check_open()
        session = self._session
        if session.refusal is not None:
            raise session.refusal.error()
        self._settings = self._settings or live(session.settings, self._policies, among, session.chores)
        opened: Subscription = module.Subscription.open(
            directory,
            name,
            managed_ledger=self._log,
            mailbox=session.mailbox,
            peers=session.peers,
            clock=self._clock,
            settings=self._settings,
            admission=among,
            scheduler=session.scheduler,
            durability=self._durability if durable else PROCESS,
            damage=session.damage.report,
        )
        return opened
