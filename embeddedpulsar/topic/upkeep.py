"""What housekeeping does for one topic: trimming, clearing away, and what is due as time passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from embeddedpulsar.exceptions import LockTimeout, StorageError
from embeddedpulsar.managed_ledger.log import Log
from embeddedpulsar.platform import deadline, threads
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic.expiry import MessageExpiry, SubscriptionExpiry
from embeddedpulsar.topic.held_policies import HeldPolicies
from embeddedpulsar.topic.housekeeping import PATIENCE_S, Housekeeping, TopicTrimming
from embeddedpulsar.topic.topic_subscriptions import LOOKED_AT_ONCE, TopicSubscriptions
from embeddedpulsar.topic.topic_view import TopicView

_ROUNDING_S: Final = 1e-3


class Check(Protocol):
    """Something that is looked at again and again, as long as a policy asks for it.

    Attributes:
        every_s: the time between two looks.
        follows_traffic: whether it is also made when a ledger is closed, or needed no more.
    """

    every_s: float
    follows_traffic: bool

    def is_wanted(self) -> bool:
        """Whether a policy asks for it. Cheap."""

    def look(self, done: list[str]) -> bool:
        """Do what is due; adds what is to be logged to ``done``. True if there is more to do at once."""


class TopicUpkeep:
    """Role: the `Chore` of a topic that is in use in this process. Invariants: a check is made when the topic
    begins to be used, when its policies change, and then at its interval; in whatever process, under the
    housekeeping lock. Callers: any thread; `do_chores` the thread of housekeeping.

    Args:
        name: of the topic.
        trimming: of the topic.
        subscriptions: of the topic.
        policies: of the topic; `begin` reads them.
        checks: what to look at.
        housekeeping: of this process.
        monotonic: the time in seconds.
    """

    def __init__(
        self,
        name: str,
        trimming: TopicTrimming,
        subscriptions: TopicSubscriptions,
        policies: HeldPolicies,
        checks: Sequence[Check],
        housekeeping: Housekeeping,
        monotonic: Callable[[], float],
    ) -> None:
        self.name: Final = name
        self._trimming: Final = trimming
        self._subscriptions: Final = subscriptions
        self._policies: Final = policies
        self._checks: Final = checks
        self._housekeeping: Final = housekeeping
        self._monotonic: Final = monotonic
        self._due = [0.0] * len(checks)  # when each is made next; 0 for at once
        self._lock = threads.RLock()  # held during a slice
        self._is_closed = False

    @property
    def is_deleted(self) -> bool:
        """Whether the topic was deleted, by whatever process."""
        return self._trimming.is_of_deleted_topic

    def begin(self) -> None:
        """The topic begins to be used."""
        self._policies.listen(self.renew)
        try:
            is_wanted = self.chores_every_s() > 0
        except StorageError:  # housekeeping meets it too, and reports it
            is_wanted = True
        if is_wanted:
            self._housekeeping.look_at(self)

    def renew(self) -> None:
        """Look at everything soon: policies changed. Called under locks."""
        self._due = [0.0] * len(self._checks)
        self._housekeeping.look_at(self)

    def suggest(self) -> None:
        """Look soon: a ledger was closed, or a subscription needs one no more. Called under locks."""
        is_wanted = self._trimming.may_find_any()
        try:
            for number, check in enumerate(self._checks):
                if check.follows_traffic and check.is_wanted():
                    self._due[number], is_wanted = 0.0, True
        except (StorageError, OSError):  # as in `begin`: the caller is an append or an acknowledgement
            is_wanted = True
        if is_wanted:
            self._housekeeping.look_at(self)

    def do_chores(self, done: list[str]) -> bool:
        """Do a little of what is due, noted in ``done``. True if there may be more.

        Raises:
            LockTimeout: another process stayed in a lock. What needs it is left for the next call.
        """
        try:
            self._lock.acquire()
            return not self._is_closed and self._do_slice(done)
        finally:
            self._lock.release()

    def _do_slice(self, done: list[str]) -> bool:
        now, is_unfinished = self._monotonic(), False
        late: LockTimeout | None = None
        for number, check in enumerate(self._checks):
            if check.is_wanted() and now >= self._due[number] - _ROUNDING_S:
                self._due[number] = now + check.every_s
                try:
                    # With a deadline: a thread that closes the topic waits, and holds the table of topics.
                    is_again = deadline.within(PATIENCE_S, check.look, done)
                except LockTimeout as error:
                    late, is_again = error, True
                if is_again:
                    self._due[number], is_unfinished = 0.0, True
        trimmed = self._trimming.trim(PATIENCE_S, done)
        is_unfinished |= deadline.within(PATIENCE_S, self._subscriptions.clear_away, LOOKED_AT_ONCE)
        if late is not None:
            raise late
        return is_unfinished or trimmed > 0

    def chores_every_s(self) -> float:
        """How often to look whether something became due as time passed; 0 for never."""
        if self._is_closed:
            return 0.0
        found = [check.every_s for check in self._checks if check.is_wanted()]
        if self._trimming.may_find_any() or self._subscriptions.may_find_leftovers():
            found.append(self._trimming.every_s)
        return min(found, default=0.0)

    def close(self) -> None:
        """Do nothing from here on. Waits for the slice that is under way."""
        self._policies.unlisten(self.renew)
        try:
            self._lock.acquire()
            self._is_closed = True
        finally:
            self._lock.release()
        self._housekeeping.forget(self)
        self._trimming.close()

    def abandon(self) -> None:
        """Renew the locks in a forked child: they may be held by a thread that does not exist here."""
        self._lock = threads.renewed(self._lock)
        self._is_closed = True
        self._trimming.abandon()


def upkeep_of(
    log: Log,
    policies: HeldPolicies,
    subscriptions: TopicSubscriptions,
    clock: Clock,
    settings: BrokerSettings,
    trimming: TopicTrimming,
    view: TopicView,
    own: Sequence[Check],
    housekeeping: Housekeeping,
) -> TopicUpkeep:
    """The upkeep of a topic, with all that policies may ask for: the checks ``own``, and expiry."""
    checks: list[Check] = []
    if not log.is_volatile:
        checks += [
            MessageExpiry(log, policies, subscriptions, clock, settings),
            SubscriptionExpiry(view, policies, subscriptions, clock, settings),
            *own,
        ]
    return TopicUpkeep(log.name, trimming, subscriptions, policies, checks, housekeeping, clock.monotonic)
