"""Policies of rates, and the limiters of the producers and consumers of a topic that follow from them."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from embeddedpulsar._engine.format.control import SUBSCRIBERS, SubscriptionWord, TopicWord
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.store.policies.admitting import (
    DISPATCH_RATE,
    PUBLISH_RATE,
    SUBSCRIBE_RATE,
    SUBSCRIPTION_DISPATCH_RATE,
)
from embeddedpulsar._engine.store.policies.resource_groups import (
    DISPATCHING,
    HELD_GROUP,
    PUBLISHING,
    WORDS,
    Lock,
    Rate,
    RateLimiter,
    SharedRate,
    Unshared,
)
from embeddedpulsar.exceptions import NotAllowedError
from embeddedpulsar.policy_values import DispatchRate
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar._engine.store.policies.policy_documents import ValueOf
    from embeddedpulsar._engine.store.topic import Topic

_SECOND_NS: Final = 1_000_000_000


class PublishedRate:
    """What is published to a topic in a second, measured anew every second; for rates relative to it."""

    __slots__ = ("_at_ns", "_log", "_seen", "_wall_ns", "rate")

    def __init__(self, log: Log, wall_ns: Callable[[], int]) -> None:
        self._log: Final = log
        self._wall_ns: Final = wall_ns
        self._at_ns = wall_ns()
        self._seen = log.survey().appended()
        self.rate = (0, 0)

    def measure(self) -> tuple[int, int]:
        """Messages and bytes a second."""
        now_ns = self._wall_ns()
        passed_ns = now_ns - self._at_ns
        # Once a second: the survey reads shared words, and two looks shortly after one another would measure
        # noise. A clock that was set back is measured anew at once.
        if not 0 <= passed_ns < _SECOND_NS:
            seen = self._log.survey().appended()
            # At least a second, so that a clock that was set back gives no huge rate.
            passed_ns = max(passed_ns, _SECOND_NS)
            self.rate = (
                max(0, seen.messages - self._seen.messages) * _SECOND_NS // passed_ns,
                max(0, seen.size - self._seen.size) * _SECOND_NS // passed_ns,
            )
            self._at_ns, self._seen = now_ns, seen
        return self.rate


def _is_publish_limited(value_of: ValueOf) -> bool:
    group = value_of(HELD_GROUP)
    return (group is not None and group.is_limited(PUBLISHING)) or not value_of(PUBLISH_RATE).is_unlimited


def publish_limiter(topic: Topic, clock: Clock) -> RateLimiter | None:
    """The limiter of the producers of a topic; None if they have no limit."""
    if not topic.policies.once(_is_publish_limited):
        return None
    value, group = topic.policies.values((PUBLISH_RATE, HELD_GROUP))
    # Each limiter that holds is asked in turn: the topic's, then that of its resource group.
    rates = []
    if not value.is_unlimited:
        words = topic.ledger.words
        rate = Rate(*(max(0, field) for field in value))

        def count() -> None:
            words[TopicWord.PUBLISH_LIMITED] += 1

        rates.append(SharedRate(words, TopicWord.PUBLISH_RATE, topic.ledger.lock, lambda: rate, count))
    return topic.group_words.limiter(group, PUBLISHING, rates, clock.wall_ns)


def _is_dispatch_limited(value_of: ValueOf) -> bool:
    group = value_of(HELD_GROUP)
    if group is not None and group.is_limited(DISPATCHING):
        return True
    return not (value_of(DISPATCH_RATE).is_unlimited and value_of(SUBSCRIPTION_DISPATCH_RATE).is_unlimited)


def dispatch_limiter(topic: Topic, clock: Clock, subscription: tuple[Any, Lock] | None) -> RateLimiter | None:
    """The limiter of a consumer or reader; None if it has no limit.

    Args:
        topic: its topic.
        clock: of the store.
        subscription: the words of its subscription and their lock; None for a reader, which has a
            subscription of its own in this process alone.
    """
    # One question to the policies, which is answered from a cache: most topics have no limit, and this is
    # asked for every consumer.
    if not topic.policies.once(_is_dispatch_limited):
        return None
    rates = []
    of_topic = topic.policies.value(DISPATCH_RATE)
    # Words of the topic are shared by all processes and all subscriptions.
    if not of_topic.is_unlimited:
        words = topic.ledger.words
        rates.append(
            _dispatch_rate(topic.ledger, clock, of_topic, words, TopicWord.DISPATCH_RATE, topic.ledger.lock)
        )
    of_each = topic.policies.value(SUBSCRIPTION_DISPATCH_RATE)
    # The limit of a subscription: in its own words, since each subscription has as much. A reader has a
    # subscription that no other process sees, so its words are in this process.
    if not of_each.is_unlimited:
        if subscription is None:
            rates.append(
                _dispatch_rate(topic.ledger, clock, of_each, array("Q", bytes(8 * WORDS)), 0, Unshared())
            )
        else:
            words, lock = subscription
            rates.append(
                _dispatch_rate(topic.ledger, clock, of_each, words, SubscriptionWord.DISPATCH_RATE, lock)
            )
    # The group last: its lock is the innermost one.
    group = topic.policies.value(HELD_GROUP)
    return topic.group_words.limiter(group, DISPATCHING, rates, clock.wall_ns)


def check_subscribe_rate(topic: Topic, consumer: str, now_ns: int) -> None:
    """Count that a consumer subscribes, by its name, in whatever process.

    A pair of words has the consumer, and the time at which its bucket is empty, as in `SharedRate`. Of more
    consumers than there are pairs, those are forgotten that subscribed longest ago.

    Raises:
        NotAllowedError: it did so too often lately.
    """
    # 0 or less is no limit.
    rate, period_s = topic.policies.value(SUBSCRIBE_RATE)
    if rate <= 0:
        return
    words, period_ns = topic.ledger.words, period_s * _SECOND_NS
    # A word holds a digest of the name: names are of any length. 0 stands for an empty pair.
    with late_imports():
        from hashlib import blake2b
    digest = blake2b(consumer.encode(), digest_size=8).digest()
    key = int.from_bytes(digest, "little") or 1
    first = TopicWord.SUBSCRIBERS
    pairs = range(first, first + 2 * SUBSCRIBERS, 2)
    try:
        topic.ledger.lock.acquire()
        slot = next((pair for pair in pairs if words[pair] == key), None)
        if slot is None:
            # No pair has the consumer: the one whose bucket was empty longest ago is the least loss.
            slot = min(pairs, key=lambda pair: words[pair + 1])
            words[slot + 1] = 0  # first, in case the process dies before the next line
            words[slot] = key
        empty_ns = words[slot + 1]
        # A bucket holds as much as may flow in within one period.
        if not now_ns - period_ns <= empty_ns <= now_ns:  # long ago, or the clock was set back
            empty_ns = now_ns - period_ns
        # Less than one token.
        if (now_ns - empty_ns) * rate < period_ns:
            raise NotAllowedError(
                f"Subscribe limited by subscribe rate limit per consumer: the consumer {consumer!r} may "
                f"subscribe to {topic.name} {rate} times in {period_s} s; try again later, or raise the rate"
            )
        # A token costs the time in which one flows in.
        words[slot + 1] = empty_ns + period_ns // rate
    finally:
        topic.ledger.lock.release()


def _dispatch_rate(
    log: Log, clock: Clock, value: DispatchRate, words: Any, first: int, lock: Lock
) -> SharedRate:
    messages, size = (max(0, field) for field in value[:2])
    period_s = value.rate_period_in_second
    rate = Rate(messages, size, period_s * _SECOND_NS)
    if not value.relative_to_publish_rate:
        return SharedRate(words, first, lock, lambda: rate)
    published = PublishedRate(log, clock.wall_ns)

    def relative() -> Rate:
        more, more_size = published.measure()
        # 0 is no limit, and stays none.
        return Rate(
            messages and messages + more * period_s, size and size + more_size * period_s, rate.period_ns
        )

    return SharedRate(words, first, lock, relative)
