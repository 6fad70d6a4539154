"""Backlog quotas of a topic: producers are held back, or the oldest messages count as acknowledged.

Whether producers are held back is a bit of the topic's state word (`HELD`). Appends find it by the owner
word, which they read anyway, so a quota costs a send nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.log.topic_control import ATTENTION, HELD
from embeddedpulsar.backlog_quota import (
    CONSUMER_BACKLOG_EVICTION,
    DESTINATION_STORAGE,
    MESSAGE_AGE,
    PRODUCER_REQUEST_HOLD,
    BacklogQuota,
)
from embeddedpulsar.exceptions import (
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    PulsarException,
)
from embeddedpulsar.topic.housekeeping import UpkeptParts
from embeddedpulsar.topic.policies.held_policies import ValueOf
from embeddedpulsar.topic.policies.keeping import QUOTAS

_LOOK_S: Final = 0.05
"""How often a producer that is held back looks whether it still is."""
_TARGET: Final = 0.9
"""How much of the limit is left after an eviction."""


def _is_wanted(value_of: ValueOf) -> bool:
    size, age = value_of(QUOTAS[DESTINATION_STORAGE]), value_of(QUOTAS[MESSAGE_AGE])
    return bool(size.limit_size >= 0 or age.limit_time > 0)


class BacklogQuotas:
    """Role: says whether the backlog of a topic is beyond a quota, and acts. A `Check` of `TopicUpkeep`.

    Invariants: the bit `HELD` is set by `look` and by a producer that wants to attach, and cleared when
    `look`, or a producer that is held back, finds that no quota for producers is exceeded any more. It is
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

    def look(self, done: list[str]) -> bool:
        size, age = self._size_quota(), self._age_quota()
        marks = self._subscriptions.mark_deletes()
        for quota, through in ((size, self._beyond_size(marks)), (age, self._beyond_age(marks))):
            if quota.policy == CONSUMER_BACKLOG_EVICTION and through is not None:
                moved = self._subscriptions.expire_through(through, is_expiry=False)
                if moved:
                    names = ", ".join(map(repr, moved))
                    done.append(f"{self._log.name}: the backlog quota evicted messages of {names}")
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
            self._found = self._exceeded(self._subscriptions.mark_deletes()) if self.is_wanted() else None
            if self._found is None:
                self._hold(False)
        return self._found

    def _size_quota(self) -> BacklogQuota:
        return self._policies.value(QUOTAS[DESTINATION_STORAGE])

    def _age_quota(self) -> BacklogQuota:
        return self._policies.value(QUOTAS[MESSAGE_AGE])

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
