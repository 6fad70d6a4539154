"""Unit tests of embeddedpulsar._engine.store.policies.resource_groups: tokens, to the nanosecond."""

from __future__ import annotations

import random
from array import array

import pytest

from embeddedpulsar._engine.store.policies.resource_groups import (
    BOUNDLESS,
    WORDS,
    Rate,
    RateLimiter,
    SharedRate,
    Unshared,
)

SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND


class Bucket:
    """A limiter of one rate, and the time."""

    def __init__(self, *rates: Rate) -> None:
        self.now = BEGIN
        self.words = array("Q", bytes(8 * WORDS * len(rates)))
        self.shared = [
            SharedRate(self.words, WORDS * number, Unshared(), lambda rate=rate: rate, self.count)
            for number, rate in enumerate(rates)
        ]
        self.throttled = 0
        self.limiter = RateLimiter(self.shared, lambda: self.now)

    def count(self) -> None:
        self.throttled += 1


@pytest.mark.parametrize("rate", [1, 3, 7, 10, 999, 1_000_000])
def test_as_many_as_the_rate_in_each_period(rate: int):
    """One by one, over a hundred periods: neither one more nor one less."""
    bucket = Bucket(Rate(rate, 0, 10 * SECOND))
    steps = min(rate, 10)
    for _ in range(100):
        passed = 0
        for _ in range(steps + 1):
            got, size = bucket.limiter.reserve(-(-rate // steps), 100)
            passed += got
            assert size == (100 if got else 0)
        assert passed == rate
        bucket.now += 10 * SECOND
    assert bucket.throttled == 100


def test_tokens_come_back_evenly():
    """When the next one is there is known in advance, and right."""
    bucket = Bucket(Rate(4, 0))
    assert bucket.limiter.reserve(9, 1) == (4, 1)
    for _ in range(10):
        assert bucket.limiter.reserve(1, 1) == (0, 0)
        assert bucket.limiter.is_waiting and bucket.limiter.due_ns == bucket.now + SECOND // 4
        bucket.now = bucket.limiter.due_ns
        assert not bucket.limiter.is_waiting
        assert bucket.limiter.reserve(1, 1) == (1, 1)
        assert not bucket.limiter.due_ns


def test_what_is_owed_is_made_good():
    """A batch larger than what is left passes, and the next one waits for it."""
    bucket = Bucket(Rate(10, 0))
    got, size = bucket.limiter.reserve(35, 1)
    bucket.limiter.give_back(got - 35, size - 1)
    bucket.now += 5 * SECOND // 2
    assert bucket.limiter.reserve(1, 1) == (0, 0)
    bucket.now = bucket.limiter.due_ns
    assert bucket.now == BEGIN + 26 * SECOND // 10
    assert bucket.limiter.reserve(5, 1) == (1, 1)


def test_what_was_not_used_comes_back():
    """To each of several rates, of which the lowest decides."""
    bucket = Bucket(Rate(100, 0), Rate(10, 500), Rate(0, 0))
    assert bucket.limiter.reserve(50, 900) == (10, 500)
    assert [one.room(bucket.now) for one in bucket.shared] == [
        (90, BOUNDLESS),
        (0, 0),
        (BOUNDLESS, BOUNDLESS),
    ]
    bucket.limiter.give_back(4, 200)
    assert [one.room(bucket.now) for one in bucket.shared][:2] == [(94, BOUNDLESS), (4, 200)]
    assert bucket.limiter.reserve(4, 100) == (4, 100)
    assert bucket.limiter.reserve(4, 100) == (0, 0)
    assert bucket.shared[0].room(bucket.now)[0] == 90


def test_a_clock_that_is_set_back():
    """No time passes, and what is owed stays; one that is set forward gives one period, not more."""
    bucket = Bucket(Rate(10, 0))
    bucket.limiter.reserve(10, 1)
    bucket.now -= 3600 * SECOND
    assert bucket.limiter.reserve(1, 1) == (0, 0)
    bucket.now += SECOND // 2
    assert bucket.limiter.reserve(10, 1) == (5, 1)
    bucket.now += 7200 * SECOND
    assert bucket.limiter.reserve(100, 1) == (10, 1)


def test_another_rate_takes_effect():
    """From the next look on; what was taken counts as the time it took."""
    rate = [Rate(10, 0)]
    words = array("Q", bytes(8 * WORDS))
    shared = SharedRate(words, 0, Unshared(), lambda: rate[0])
    limiter = RateLimiter([shared], lambda: BEGIN)
    assert limiter.reserve(5, 1) == (5, 1)
    rate[0] = Rate(1000, 0)
    assert limiter.reserve(9999, 1) == (500, 1)


def test_random_programs():
    """Several limiters of the same words: never more than a burst and what flowed in."""
    for seed in range(20):
        rng = random.Random(seed)
        rate = rng.randint(1, 500)
        bucket = Bucket(Rate(rate, 0))
        others = [RateLimiter(bucket.shared, lambda bucket=bucket: bucket.now) for _ in range(3)]
        passed = 0
        for _ in range(2000):
            limiter = rng.choice(others)
            got, _ = limiter.reserve(rng.randint(1, 3), 1)
            unused = rng.randint(0, got)
            limiter.give_back(unused, 0)
            passed += got - unused
            most = rate + rate * (bucket.now - BEGIN) // SECOND
            assert passed <= most
            bucket.now += rng.randint(0, 2 * SECOND // rate)
        while (got := others[0].reserve(10**9, 1)[0]) > 0:
            passed += got
        assert passed <= rate + rate * (bucket.now - BEGIN) // SECOND + 1


def test_a_clock_that_is_set_back_ends_the_wait_of_all():
    """The first to look sets the times of the rate back; the others look as soon as they see the clock."""
    bucket = Bucket(Rate(1, 0))
    other = RateLimiter(bucket.shared, lambda: bucket.now)
    assert bucket.limiter.reserve(1, 1) == (1, 1)
    for limiter in (bucket.limiter, other):
        assert limiter.reserve(1, 1) == (0, 0) and limiter.left_ns == SECOND
    bucket.now -= 3600 * SECOND
    for limiter in (bucket.limiter, other):
        assert not limiter.is_waiting and limiter.left_ns == 0
        assert limiter.due_ms == bucket.now // 1_000_000
        assert limiter.reserve(1, 1) == (0, 0) and limiter.left_ns == SECOND
    bucket.now += SECOND
    assert other.reserve(1, 1) == (1, 1)
