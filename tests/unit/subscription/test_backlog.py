"""Counting what is left, in messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.subscription_site import SubscriptionSite, read_all


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SubscriptionSite]:
    with SubscriptionSite(tmp_path, max_entries=10, segment_size=32 << 10) as made:
        yield made


def test_the_backlog_is_exact_whatever_is_acknowledged(site: SubscriptionSite):
    """Batches of all sizes, single messages, parts of batches, over ledgers, in random order."""
    rng = random.Random(8)
    sizes = [rng.choice([1, 1, 2, 7]) for _ in range(55)]
    sent = site.publish_batches(*sizes) + site.publish(33)
    sizes += [1] * 33
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    left = dict(enumerate(sizes))
    order = list(range(len(sent)))
    rng.shuffle(order)
    for number in order:
        if sizes[number] > 1 and rng.random() < 0.5:
            consumer.acknowledge([], {sent[number]: (0b10, sizes[number])})
            left[number] -= 1
            assert consumer.backlog() == sum(left.values())
        consumer.acknowledge([sent[number]])
        left[number] = 0
        assert subscription.backlog() == sum(left.values())


def test_new_messages_count_at_once(site: SubscriptionSite):
    """The log's end is read anew each time."""
    consumer = site.subscription().attach("c")
    assert consumer.backlog() == 0
    site.publish(3)
    site.publish_batches(4)
    assert consumer.backlog() == 7
