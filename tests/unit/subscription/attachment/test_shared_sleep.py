"""Consumers of Shared and Key_Shared asleep: whose bit is whose."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.subscription.dispatch.wakeups import STRANGER
from embeddedpulsar.enums import ConsumerType
from tests.storms.dispatch.virtual_consumer import VirtualConsumer
from tests.unit.subscription.virtual_site import EVERYTHING, VirtualSite, read

KEY_SHARED = ConsumerType.KeyShared


def taken_for_dead(site: VirtualSite) -> VirtualConsumer:
    """A consumer that was silent for too long, and whom those that come next do not admit."""
    process = site.world.start()
    consumer = site.consumer(site.attach(ConsumerType.Shared, process))
    for _ in range(5):
        site.world.clock.advance(10.0)
        site.process.subscription.detach_dead()
    return consumer


def test_one_whose_slot_is_anothers_sleeps(site: VirtualSite):
    """Entries that were assigned to the other, and that it has not come for yet, do not keep it awake."""
    stranger = taken_for_dead(site)
    other, giver = site.attach(KEY_SHARED), site.attach(KEY_SHARED, name="giver")
    assert other.code == stranger.attachment.code
    for key in range(64):
        site.publish(1, key=key * 1000)
    assert read(giver)
    assert other._shared.wakeups.waiting.has_assigned(other.code)
    assert stranger.poll(EVERYTHING) == []
    stranger.doze()
    assert stranger.sleeps


@pytest.mark.parametrize("is_first", [False, True])
def test_one_whose_slot_is_anothers_has_a_bit_of_its_own(site: VirtualSite, is_first: bool):
    """It asks to be rung when it may join again. When it stops waiting the other still sleeps."""
    stranger = taken_for_dead(site)
    other = site.consumer(site.attach(KEY_SHARED))
    assert other.attachment.code == stranger.attachment.code
    waiting = other.attachment._shared.wakeups.waiting
    for one in (stranger, other) if is_first else (other, stranger):
        assert one.poll(EVERYTHING) == []
        one.doze()
        assert one.sleeps
    assert waiting.is_announced(STRANGER)
    stranger.stop_waiting()
    assert waiting.is_announced(other.attachment.code)
