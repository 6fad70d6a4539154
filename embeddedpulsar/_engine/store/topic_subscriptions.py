"""The subscriptions of one topic, as this process has opened them: opening, using and closing them.

Their settings follow the policies of the topic: see `LiveSettings`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cache, partial

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.log.log_opening import PROCESS
from embeddedpulsar._engine.platform import descriptors, threads
from embeddedpulsar._engine.platform.descriptors import Usage, late_imports
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import BackgroundWork
from embeddedpulsar._engine.store.policies.admitting import (
    AUTO_SUBSCRIPTION_CREATION,
    DELAYED_DELIVERY,
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_SUBSCRIPTION,
    MAX_SUBSCRIPTIONS,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
)
from embeddedpulsar._engine.store.policies.policy import Limits
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    BrokerMetadataError,
    ConsumerBusy,
    LockTimeout,
    NotAllowedError,
    StoreGoneError,
    SubscriptionNotFound,
)
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, cast
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic_name import NON_DURABLE_PREFIX, subscription_directory_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.access import Refusal
    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.package_log import DamageChannel
    from embeddedpulsar._engine.platform.peers import Peers
    from embeddedpulsar._engine.platform.timing import Clock, SchedulerLike
    from embeddedpulsar._engine.store.policies.policy_documents import HeldPolicies
    from embeddedpulsar._engine.store.store_transactions import StoreTransactions
    from embeddedpulsar._engine.subscription.subscription import Subscription


R = TypeVar("R")
MOST_IDLE_SUBSCRIPTIONS: Final = 8
LOOKED_AT_ONCE: Final = 8
"""Subscriptions that housekeeping looks at in one slice; each takes its lock."""


class SubscriptionKey(NamedTuple):
    """What names a subscription of a topic: durable and other ones of one name are independent."""

    name: str
    durable: bool

    @property
    def directory_name(self) -> str:
        """Its directory within the topic's."""
        return subscription_directory_name(self.name, durable=self.durable)


class Opening(Protocol):
    """`SubscriptionOpening`."""

    def open(
        self, among: TopicSubscriptions, directory: str, name: str, *, durable: bool
    ) -> Subscription: ...


class TopicSubscriptions:
    """Finds, makes, opens and closes subscriptions. Invariants: one `Subscription` per key and process;
    a few without users stay open for their next user. Nothing waits for a subscription's lock under
    `_lock`: its files are opened after that is released. One that is not durable is deleted by the process
    that sees its last consumer gone.
    Callers: any thread.

    Args:
        topic, directory, ledger: of which topic.
        opening: opens one.
        limits: the policies that hold.
        limit_lock: held while subscriptions or consumers are counted and one more is made, where their number
            is limited: the lock of the catalog. Others are made without it.
    """

    def __init__(
        self,
        topic: str,
        directory: str,
        ledger: Log,
        opening: Opening,
        limits: Limits,
        limit_lock: FileLock,
    ) -> None:
        self._topic: Final = topic
        self._path: Final = filenames.subscriptions_path(directory)
        self._ledger: Final = ledger
        self._opening: Final = opening
        self._limits: Final = limits
        self._limit_lock: Final = limit_lock
        self._lock = threads.RLock()  # guards everything below
        self._opened: dict[str, Subscription] = {}
        self._usage = Usage(MOST_IDLE_SUBSCRIPTIONS)
        self._to_look_at: list[str] = []  # of `clear_away` alone

    def _open_in(self, directory: str, name: str = "", *, durable: bool = True) -> Subscription:
        return self._opening.open(self, os.path.join(self._path, directory), name, durable=durable)

    def __len__(self) -> int:
        return len(self._opened)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(list(self._opened.values()))

    def get(self, key: SubscriptionKey, create: bool, initial: Position | None) -> Subscription:
        """See `Topic.subscription`."""
        subscription = self._of(key, is_kept=True)
        self._find_or_create(subscription, key, create, initial)
        return subscription

    def use(self, key: SubscriptionKey, create: bool, initial: Position | None) -> Subscription:
        """See `Topic.use_subscription`."""
        subscription = self._of(key, is_kept=False)
        try:
            self._find_or_create(subscription, key, create, initial)
        except BaseException:
            self.end_use(subscription, key)
            raise
        return subscription

    def use_to_attach(
        self, key: SubscriptionKey, initial: Position | None
    ) -> tuple[Subscription, Position | None]:
        """See `Topic.use_to_attach`."""
        subscription = self._of(key, is_kept=False)
        try:
            return subscription, self._start_of(subscription, key, initial)
        except BaseException:
            self.end_use(subscription, key)
            raise

    def create(self, key: SubscriptionKey, initial: Position | None) -> bool:
        """See `Topic.create_subscription`."""
        subscription = self._of(key, is_kept=False)
        try:
            return self._create(subscription, key, initial)
        finally:
            self.end_use(subscription, key)

    def _of(self, key: SubscriptionKey, *, is_kept: bool) -> Subscription:
        name = key.directory_name
        try:
            self._lock.acquire()
            subscription = self._opened.get(name)
            if subscription is None:
                subscription = self._opened[name] = self._open_in(name, key.name, durable=key.durable)
            if is_kept:
                self._usage.keep(name)
            else:
                self._usage.begin(name)
            return subscription
        finally:
            self._lock.release()

    def _find_or_create(
        self, subscription: Subscription, key: SubscriptionKey, create: bool, initial: Position | None
    ) -> None:
        if not self._is_missing(subscription, key):
            return
        if not create:
            raise SubscriptionNotFound(f"{self._topic} has no subscription {key.name!r}")
        self._check_may_create(key)
        self._create(subscription, key, initial)

    def _start_of(
        self, subscription: Subscription, key: SubscriptionKey, initial: Position | None
    ) -> Position | None:
        """Where a subscription starts that its first consumer makes; None if there is one, or it is made
        here: where subscriptions are counted, and of a non-persistent topic, which notes what was sent
        before."""
        if not self._is_missing(subscription, key):
            return None
        self._check_may_create(key)
        if self._ledger.is_volatile or (key.durable and self._limits((MAX_SUBSCRIPTIONS,))[0]):
            self._create(subscription, key, initial)
            return None
        return self._ledger.max_read_position() or BEFORE_FIRST if initial is None else initial

    def _is_missing(self, subscription: Subscription, key: SubscriptionKey) -> bool:
        if not key.durable:
            self._delete_if_left(subscription)  # by consumers that died: this is a new life of it
        return not subscription.exists()

    def _check_may_create(self, key: SubscriptionKey) -> None:
        if key.durable and not self.may_create:
            raise SubscriptionNotFound(
                f"{self._topic} has no subscription {key.name!r}, and allowAutoSubscriptionCreation=false "
                "holds for it, by broker.conf or by set_auto_subscription_creation; allow it there, or make "
                "the subscription with Admin.topics().create_subscription"
            )

    @property
    def may_create(self) -> bool:
        """Whether consumers may make durable subscriptions."""
        return bool(self._limits((AUTO_SUBSCRIPTION_CREATION,))[0].allow_auto_subscription_creation)

    def _create(self, subscription: Subscription, key: SubscriptionKey, initial: Position | None) -> bool:
        if initial is None or self._ledger.is_volatile:
            initial = self._ledger.max_read_position() or BEFORE_FIRST
        max_subscriptions = self._limits((MAX_SUBSCRIPTIONS,))[0] if key.durable else 0
        if not max_subscriptions:
            return subscription.create(initial)
        check = partial(self._check_subscriptions, max_subscriptions, subscription)
        return self._limited(check, lambda: subscription.create(initial))

    def _check_subscriptions(self, most: int, subscription: Subscription) -> None:
        if not subscription.exists() and len(self.names()) >= most:
            raise NotAllowedError(
                f"{self._topic} has {most} subscriptions, as many as maxSubscriptionsPerTopic allows; "
                "delete one, or raise the limit"
            )

    def _delete_if_left(self, subscription: Subscription) -> None:
        """Delete a subscription that is not durable if its last consumer has left."""
        with contextlib.suppress(
            BrokerMetadataError, SubscriptionNotFound, StoreGoneError
        ):  # others are there
            if subscription.exists():
                subscription.delete()

    def names(self) -> list[str]:
        """Names of the durable ones, sorted. One whose name is lost has that of its directory."""
        names = []
        for name in self._directories():
            if name.startswith(NON_DURABLE_PREFIX):
                continue
            with contextlib.closing(self._open_in(name)) as opened:
                if opened.exists() or opened.is_damaged:
                    names.append(opened.name or name)
        return sorted(names)

    def mark_deletes(self) -> list[Position]:
        """How far the durable ones have come, in whatever process; opens none of them.

        Raises:
            StorageError: one of them cannot be read.
        """
        names = [name for name in self._directories() if not name.startswith(NON_DURABLE_PREFIX)]
        if not names:
            return []
        from embeddedpulsar._engine.subscription.subscription_files import mark_deletes

        return mark_deletes([os.path.join(self._path, name) for name in names], self._ledger.options.boot_id)

    def expire_through(self, position: Position, *, is_expiry: bool) -> list[str]:
        """Acknowledge everything up to ``position`` for the durable ones; opens those that are behind it.

        Args:
            position: the last one.
            is_expiry: whether the messages count as expired.

        Returns:
            The names of those for which something was left to acknowledge.
        """
        moved = []
        for name in self._directories():
            if name.startswith(NON_DURABLE_PREFIX) or self._is_past(name, position):
                continue
            with self._looked_at(name) as subscription:
                if not subscription.exists():
                    continue
                if subscription.operator_commands().expire_through(position, is_expiry=is_expiry):
                    moved.append(subscription.name)
        return sorted(moved)

    def end_idle(self, name: str, since_ms: int) -> bool:
        """Delete a durable one that has no consumers, and had none since that time, in ms.

        Returns:
            Whether it was deleted.
        """
        with self._looked_at(SubscriptionKey(name, True).directory_name) as subscription:
            if not subscription.exists():
                return False
            subscription.detach_dead()
            return subscription.operator_commands().end_if_idle(since_ms)

    def _is_past(self, name: str, position: Position) -> bool:
        from embeddedpulsar._engine.subscription.subscription_files import mark_deletes

        marks = mark_deletes([os.path.join(self._path, name)], self._ledger.options.boot_id)
        return not marks or marks[0] >= position

    @contextlib.contextmanager
    def _looked_at(self, name: str) -> Iterator[Subscription]:
        """The one in a directory; the one that this process has open, if it has."""
        known = self._opened.get(name)
        if known is not None:
            yield known
            return
        with contextlib.closing(self._open_in(name)) as opened:
            yield opened

    def consumers(self) -> list[str]:
        """Names of the living consumers of all subscriptions, durable or not."""
        names: list[str] = []
        for name in self._directories():
            durable = not name.startswith(NON_DURABLE_PREFIX)
            with contextlib.closing(self._open_in(name, durable=durable)) as opened:
                if opened.exists():
                    names += [consumer.name for consumer in opened.consumers()]
        return names

    def most_consumers(self) -> int:
        """How many consumers a subscription may have; 0 for any number."""
        return int(self._limits((MAX_CONSUMERS_PER_SUBSCRIPTION,))[0])

    def admit(self, attach: Callable[[], R]) -> R:
        """Attach a consumer with ``attach``, if the topic may have one more.

        Raises:
            ConsumerBusy: it may not.
        """
        max_consumers = self._limits((MAX_CONSUMERS,))[0]
        return (
            self._limited(partial(self._check_consumers, max_consumers), attach)
            if max_consumers
            else attach()
        )

    def _check_consumers(self, most: int) -> None:
        if len(self.consumers()) >= most:
            raise ConsumerBusy(f"the topic has {most} consumers, as many as maxConsumersPerTopic allows")

    def _limited(self, check: Callable[[], object], make: Callable[[], R]) -> R:
        """Check a number and make one more: not while another process does, which would count the same."""
        lock = self._limit_lock
        if lock.held:  # the caller makes the topic
            check()
            return make()
        try:
            lock.acquire()
            check()
            return make()
        finally:
            lock.release()

    def _directories(self) -> list[str]:
        return [name for name in self._names() if not filenames.is_gone(name)]

    def _names(self) -> list[str]:
        try:
            return descriptors.names_in(self._path)
        except FileNotFoundError:
            return []

    # -- what ended ----------------------------------------------------------------------------------

    def may_find_leftovers(self) -> bool:
        """Whether some may have ended, or may end, unseen by any process: they are looked at now and then."""
        return any(filenames.is_gone(name) or name.startswith(NON_DURABLE_PREFIX) for name in self._names())

    def clear_away(self, most: int) -> bool:
        """Look at ``most`` subscriptions, and remove the files of those that ended while all their processes
        were killed.

        Returns:
            Whether there are more to look at.
        """
        names = self._to_look_at or self._names()
        self._to_look_at = names[most:]
        for name in names[:most]:
            self._clear_one(name)
        return len(names) > most

    def _clear_one(self, name: str) -> None:
        from embeddedpulsar._engine.subscription.subscription_files import may_have_ended, remove_gone

        path, durable = os.path.join(self._path, name), not name.startswith(NON_DURABLE_PREFIX)
        if filenames.is_gone(name):
            remove_gone(path)
            return
        known = self._opened.get(name)
        if known is not None:
            if not durable:
                with contextlib.suppress(AlreadyClosed):  # its last user has left meanwhile, and deleted it
                    self._delete_if_left(known)
        elif may_have_ended(path, durable=durable):
            with contextlib.closing(self._open_in(name, durable=durable)) as opened:
                if not durable:
                    self._delete_if_left(opened)
                if not opened.exists():
                    opened.clear_away()

    # -- closing -----------------------------------------------------------------------------------

    def end_use(self, subscription: Subscription, key: SubscriptionKey) -> None:
        """See `Topic.end_use`."""
        name = key.directory_name
        if not key.durable and self._opened.get(name) is subscription:
            with contextlib.suppress(LockTimeout):  # the next process that subscribes makes it anew
                self._delete_if_left(subscription)
        try:
            self._lock.acquire()
            if self._opened.get(name) is not subscription:
                return
            if self._usage.end(name) and subscription.is_gone:
                self._close(name)
            for surplus in self._usage.surplus():
                self._close(surplus)
        finally:
            self._lock.release()

    def _close(self, name: str) -> None:
        """Close and forget one. Under the lock, and without users."""
        self._usage.discard(name)
        self._opened.pop(name).close()

    def close_idle(self) -> None:
        """Close what is not in use: descriptors run out."""
        try:
            self._lock.acquire()
            for name in self._usage.idle():
                self._close(name)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close all of them."""
        with contextlib.ExitStack() as closing:
            for subscription in self._opened.values():
                closing.callback(subscription.close)

    def abandon(self) -> None:
        """Renew the lock in a forked child: it may be held by a thread that does not exist here."""
        self._lock = threads.renewed(self._lock)


class SubscriptionHost(Protocol):
    """What subscriptions need of their store; see `StoreSession`."""

    settings: BrokerSettings
    mailbox: Mailbox
    peers: Peers
    scheduler: SchedulerLike
    chores: SchedulerLike
    damage: DamageChannel
    transactions: StoreTransactions
    refusal: Refusal | None


@cache
def _class_of_subscriptions() -> type[Subscription]:
    """Imported on first use: most processes that publish have no subscription."""
    with late_imports():
        from embeddedpulsar._engine.subscription.subscription import Subscription

    return Subscription


class SubscriptionOpening:
    """Gives the subscriptions of a topic what they share. Their settings follow the policies of the
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
        opened = _class_of_subscriptions()
        self._check_open()
        session = self._session
        if session.refusal is not None:
            raise session.refusal.error()
        self._settings = self._settings or live_settings(
            session.settings, self._policies, among, session.chores
        )
        return opened.open(
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
            outcomes=session.transactions.outcomes,
        )


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
        policies.listen(self._apply_changes)

    def _apply_changes(self) -> None:
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
