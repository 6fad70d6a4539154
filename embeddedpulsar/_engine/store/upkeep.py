"""What housekeeping does for one topic: trimming, clearing away, and what is due as time passes.

Backlog quotas of a topic: producers are held back, or the oldest messages count as acknowledged.

Whether producers are held back is a bit of the topic's state word (`HELD`). Appends find it by the owner
word, which they read anyway, so a quota costs a send nothing.

What is taken away because it is too old: messages of durable subscriptions, and subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.topic_control import ATTENTION, HELD
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.package_log import Note
from embeddedpulsar._engine.store.housekeeping import (
    NOT_TRIMMED,
    PATIENCE_S,
    ChoresFailed,
    Housekeeping,
    TopicTrimming,
    UpkeptParts,
)
from embeddedpulsar._engine.store.policies.keeping import MESSAGE_TTL, QUOTAS, SUBSCRIPTION_EXPIRATION
from embeddedpulsar._engine.store.policies.policy_documents import ValueOf
from embeddedpulsar._engine.store.topic_subscriptions import LOOKED_AT_ONCE
from embeddedpulsar.exceptions import (
    LockTimeout,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    PulsarException,
    StorageError,
)
from embeddedpulsar.message_id import Position
from embeddedpulsar.policies import (
    CONSUMER_BACKLOG_EVICTION,
    DESTINATION_STORAGE,
    MESSAGE_AGE,
    PRODUCER_REQUEST_HOLD,
    BacklogQuota,
)
from embeddedpulsar.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Final

_LOOK_S: Final = 0.05
"""How often a producer that is held back looks whether it still is."""
_TARGET: Final = 0.9
"""How much of the limit is left after an eviction."""


def _is_wanted(value_of: ValueOf) -> bool:
    size, age = value_of(QUOTAS[DESTINATION_STORAGE]), value_of(QUOTAS[MESSAGE_AGE])
    return bool(size.limit_size >= 0 or age.limit_time > 0)


class BacklogQuotas:
    """Says whether the backlog of a topic is beyond a quota, and acts. A `Check` of `TopicUpkeep`.

    Invariants: the bit `HELD` is set by `run_due` and by a producer that wants to attach, and cleared when
    `run_due`, or a producer that is held back, finds that no quota for producers is exceeded any more. It is
    lost with a reboot, and found out again. Callers: any thread that holds no lock of a subscription.
    """

    follows_traffic = True
    undone = "the backlog quotas are not kept"

    def __init__(self, parts: UpkeptParts) -> None:
        self._log: Final = parts.log
        self._policies: Final = parts.policies
        self._subscriptions: Final = parts.subscriptions
        self._clock: Final = parts.clock
        self._is_on: Final = parts.settings.backlogQuotaCheckEnabled and not parts.log.is_volatile
        self.every_s = float(parts.settings.backlogQuotaCheckIntervalInSeconds)
        self._looked_at = -1.0
        self._found: BacklogQuota | None = None

    def is_wanted(self) -> bool:
        return self._is_on and self._policies.once(_is_wanted)

    @property
    def is_held(self) -> bool:
        """Whether producers are held back. One read of a word."""
        return bool(self._log.words[TopicWord.STATE] & HELD)

    def run_due(self, done: list[str]) -> bool:
        size, age = self._size_quota(), self._age_quota()
        marks = self._marks()
        for quota, through in ((size, self._beyond_size(marks)), (age, self._beyond_age(marks))):
            if quota.policy == CONSUMER_BACKLOG_EVICTION and through is not None:
                moved = self._subscriptions.expire_through(through, is_expiry=False)
                if moved:
                    names = ", ".join(map(repr, moved))
                    text = f"{self._log.name}: the backlog quota evicted messages of {names}"
                    done.append(Note(text, topic=self._log.name))
        self._hold(self._exceeded(marks) is not None)
        return False

    def check_producer(self) -> None:
        """Refuse a producer that wants to attach.

        Raises:
            ProducerBlockedQuotaExceededError, ProducerBlockedQuotaExceededException: a quota is exceeded,
                whose policy is to hold producers, or to refuse them.
        """
        if not self.is_wanted():
            return
        quota = self._exceeded(self._subscriptions.mark_deletes())
        self._hold(quota is not None)
        if quota is not None:
            raise self.error(quota)

    def error(self, quota: BacklogQuota) -> PulsarException:
        """What a producer gets that an exceeded quota concerns."""
        holds = quota.policy == PRODUCER_REQUEST_HOLD
        kind = ProducerBlockedQuotaExceededError if holds else ProducerBlockedQuotaExceededException
        limit = f"{quota.limit_size} bytes" if quota.limit_size >= 0 else f"{quota.limit_time} s"
        return kind(
            f"{self._log.name} has a backlog beyond its quota of {limit}; acknowledge or skip messages of "
            "the subscription that is furthest behind, delete it, or raise the quota"
        )

    def still_exceeded(self) -> BacklogQuota | None:
        """For a producer that is held back: the quota, unless that has ended. Looks every `_LOOK_S`."""
        now = self._clock.monotonic()
        if self._found is None or not 0 <= now - self._looked_at < _LOOK_S:
            self._looked_at = now
            self._found = self._exceeded(self._marks()) if self.is_wanted() else None
            if self._found is None:
                self._hold(False)
        return self._found

    def _size_quota(self) -> BacklogQuota:
        return self._policies.value(QUOTAS[DESTINATION_STORAGE])

    def _age_quota(self) -> BacklogQuota:
        return self._policies.value(QUOTAS[MESSAGE_AGE])

    def _marks(self) -> list[Position]:
        """How far the subscriptions have come; what was aborted is no backlog."""
        return [self._log.past_aborted(mark) for mark in self._subscriptions.mark_deletes()]

    def _exceeded(self, marks: Sequence[Position]) -> BacklogQuota | None:
        """The quota for producers that is exceeded."""
        if not marks:
            return None
        slowest = min(marks)
        size, age = self._size_quota(), self._age_quota()
        if size.policy != CONSUMER_BACKLOG_EVICTION and 0 <= size.limit_size <= self._size_after(slowest):
            return size
        if age.policy == CONSUMER_BACKLOG_EVICTION or age.limit_time <= 0:
            return None
        return age if self._is_too_old(slowest, age.limit_time) else None

    def _size_after(self, position: Position) -> int:
        return self._log.survey().bytes_after(position)

    def _beyond_size(self, marks: Sequence[Position]) -> Position | None:
        """The last entry that is to be evicted by size; None for none."""
        limit = self._size_quota().limit_size
        if limit < 0 or not marks or self._size_after(min(marks)) < limit:
            return None
        return self._log.survey().last_before_bytes(int(limit * _TARGET))

    def _is_too_old(self, position: Position, limit: int) -> bool:
        """Whether the first entry behind a position is older than so many seconds."""
        oldest_ms = self._log.survey().published_after(position)
        return bool(oldest_ms) and self._clock.wall_ms() - oldest_ms > 1000 * limit

    def _beyond_age(self, marks: Sequence[Position]) -> Position | None:
        """The last entry that is to be evicted by age; None for none."""
        limit = self._age_quota().limit_time
        if limit <= 0 or not marks or not self._is_too_old(min(marks), limit):
            return None
        now_ms = self._clock.wall_ms()
        return self._log.find_by_publish_time(now_ms - int(1000 * limit * _TARGET)).previous()

    def _hold(self, is_held: bool) -> None:
        """Hold producers back, or no longer."""
        words, lock = self._log.words, self._log.lock
        if self.is_held == is_held:
            return
        try:
            lock.acquire()
            state = words[TopicWord.STATE]
            words[TopicWord.STATE] = state | HELD if is_held else state & ~HELD
            if not words[TopicWord.OWNER]:  # otherwise a writer that died is to be noticed
                words[TopicWord.OWNER] = ATTENTION
        finally:
            lock.release()


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

    def run_due(self, done: list[str]) -> bool:
        seconds = self._policies.value(MESSAGE_TTL)
        first_to_stay = self._log.find_by_publish_time(self._clock.wall_ms() - 1000 * seconds)
        moved = self._subscriptions.expire_through(first_to_stay.previous(), is_expiry=True)
        if moved:
            names = ", ".join(map(repr, moved))
            text = f"{self._log.name}: messages older than {seconds} s expired for {names}"
            done.append(Note(text, topic=self._log.name))
        return False


class SubscriptionExpiry:
    """Deletes durable subscriptions that have had no consumers for as long as the policy
    `SUBSCRIPTION_EXPIRATION` says, with their backlog. A `Check` of `TopicUpkeep`.

    Callers: the thread of housekeeping, which holds no lock of the topic.
    """

    follows_traffic = False
    undone = "subscriptions without consumers do not expire"

    def __init__(self, parts: UpkeptParts) -> None:
        self._log: Final = parts.log
        self._view: Final = parts.view
        self._policies: Final = parts.policies
        self._subscriptions: Final = parts.subscriptions
        self._clock: Final = parts.clock
        self.every_s = 60.0 * parts.settings.subscriptionExpiryCheckIntervalInMinutes

    def is_wanted(self) -> bool:
        return self._policies.value(SUBSCRIPTION_EXPIRATION) > 0

    def run_due(self, done: list[str]) -> bool:
        minutes = self._policies.value(SUBSCRIPTION_EXPIRATION)
        since_ms = self._clock.wall_ms() - 60_000 * minutes
        for facts, durable in self._view().subscriptions():
            is_idle = durable and not facts.consumers and facts.last_active_ms <= since_ms
            if is_idle and self._subscriptions.end_idle(facts.name, since_ms):
                text = f"subscription {facts.name!r} was deleted: no consumers for {minutes} minutes"
                done.append(Note(text, topic=self._log.name, subscription=facts.name))
        return False


_ROUNDING_S: Final = 1e-3
_NOT_CLEARED: Final = "subscriptions that ended are not cleared away"


class Check(Protocol):
    """Something that is looked at again and again, as long as a policy asks for it.

    Attributes:
        every_s: the time between two looks.
        follows_traffic: whether it is also made when a ledger is closed, or needed no more.
        undone: what does not happen when it fails.
    """

    every_s: float
    follows_traffic: bool
    undone: str

    def is_wanted(self) -> bool:
        """Whether a policy asks for it. Cheap."""

    def run_due(self, done: list[str]) -> bool:
        """Do what is due; adds what is to be logged to ``done``. True if there is more to do at once."""


class TopicUpkeep:
    """The `Chore` of a topic that is in use in this process. Invariants: a check is made when the topic
    begins to be used, when its policies change, and then at its interval; in whatever process, under the
    housekeeping lock. One that fails keeps none of the others from being made. Callers: any thread;
    `do_chores` the thread of housekeeping.

    Args:
        parts: of the topic; `begin` reads its policies.
        trimming: of the topic.
        checks: what to look at.
        housekeeping: of this process.
    """

    def __init__(
        self,
        parts: UpkeptParts,
        trimming: TopicTrimming,
        checks: Sequence[Check],
        housekeeping: Housekeeping,
    ) -> None:
        self.name: Final = parts.log.name
        self._parts: Final = parts
        self._trimming: Final = trimming
        self._checks: Final = checks
        self._housekeeping: Final = housekeeping
        self._due = [0.0] * len(checks)  # when each is made next; 0 for at once
        self._is_closed = False  # under the lock of the trimming

    @property
    def is_deleted(self) -> bool:
        """Whether the topic was deleted, by whatever process."""
        return self._trimming.is_of_deleted_topic

    def begin(self) -> None:
        """The topic begins to be used."""
        self._parts.policies.listen(self.renew)
        self._housekeeping.join(self)
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

    def note_full_disk(self) -> None:
        """Have the trimming close the open ledger at the next look, if all of it is acknowledged."""
        self._trimming.note_full_disk()

    def do_chores(self, done: list[str]) -> bool:
        """Do a little of what is due, noted in ``done``. True if there may be more.

        Raises:
            LockTimeout: another process stayed in a lock. What needs it is left for the next call.
            ChoresFailed: part of it failed.
        """
        trimming = self._trimming
        try:
            trimming.lock.acquire()
            return not self._is_closed and self._do_slice(done)
        finally:
            trimming.lock.release()

    def _do_slice(self, done: list[str]) -> bool:
        now, is_unfinished = self._parts.clock.monotonic(), False
        late: LockTimeout | None = None
        failures: dict[str, tuple[Exception, str]] = {}
        steps: list[tuple[str, Callable[[], bool]]] = [
            (check.undone, partial(self._make, number, now, done))
            for number, check in enumerate(self._checks)
        ]
        steps.append((NOT_TRIMMED, lambda: self._trimming.trim_slice(PATIENCE_S, done) > 0))
        steps.append((_NOT_CLEARED, self._clear_away))
        for undone, step in steps:
            try:
                is_unfinished |= step()
            except LockTimeout as error:
                late = error
            except Exception as error:  # noqa: BLE001 - the other steps have their turn
                before = failures.get(str(error))
                failures[str(error)] = error, f"{before[1]}, {undone}" if before else undone
        if failures:
            raise ChoresFailed(list(failures.values()))
        if late is not None:
            raise late
        return is_unfinished

    def _make(self, number: int, now: float, done: list[str]) -> bool:
        """Make a check if it is due. True if it is to be made again at once."""
        check = self._checks[number]
        if not check.is_wanted() or now < self._due[number] - _ROUNDING_S:
            return False
        self._due[number] = now + check.every_s
        try:
            # With a deadline: a thread that closes the topic waits, and holds the table of topics.
            is_again = timing.within(PATIENCE_S, check.run_due, done)
        except LockTimeout:
            self._due[number] = 0.0
            raise
        if is_again:
            self._due[number] = 0.0
        return is_again

    def _clear_away(self) -> bool:
        return timing.within(PATIENCE_S, self._parts.subscriptions.clear_away, LOOKED_AT_ONCE)

    def chores_every_s(self) -> float:
        """How often to look whether something became due as time passed; 0 for never."""
        if self._is_closed:
            return 0.0
        intervals = [check.every_s for check in self._checks if check.is_wanted()]
        if self._trimming.may_find_any() or self._parts.subscriptions.may_find_leftovers():
            intervals.append(self._trimming.every_s)
        return min(intervals, default=0.0)

    def close(self) -> None:
        """Do nothing from here on. Waits for the slice that is under way."""
        self._parts.policies.unlisten(self.renew)
        trimming = self._trimming
        try:
            trimming.lock.acquire()
            self._is_closed = True
        finally:
            trimming.lock.release()
        self._housekeeping.discard(self)
        trimming.close()

    def abandon(self) -> None:
        """Renew the lock in a forked child: it may be held by a thread that does not exist here."""
        self._is_closed = True
        self._trimming.abandon()


def upkeep_of(
    parts: UpkeptParts, trimming: TopicTrimming, own: Sequence[Check], housekeeping: Housekeeping
) -> TopicUpkeep:
    """The upkeep of a topic, with all that policies may ask for: the checks ``own``, and expiry."""
    checks: list[Check] = []
    if not parts.log.is_volatile:
        checks += [MessageExpiry(parts), SubscriptionExpiry(parts), *own]
    return TopicUpkeep(parts, trimming, checks, housekeeping)
