"""While messages come fast one consumer awaits appends, and the others stand by for when it is late."""

from __future__ import annotations

from typing import cast

import pytest

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.subscription.attachment.shared_attachment import SharedAttachment, _Pace
from embeddedpulsar._engine.subscription.dispatch.wakeups import LED_PER_MS, STAND_BY_S, WINDOW_S
from embeddedpulsar.enums import ConsumerType
from tests.unit.subscription.virtual_site import EVERYTHING, VirtualSite, read

SHARED, KEY_SHARED = ConsumerType.Shared, ConsumerType.KeyShared
KINDS = pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
STEP_S = WINDOW_S + 1e-3
FAST = int(10 * LED_PER_MS * STEP_S * 1000)
"""Entries of a step: ten times as many as it takes to have a leader."""


class Pair:
    """The first consumer of a subscription, and a second one in another process."""

    def __init__(self, site: VirtualSite, kind: ConsumerType, turn_s: float = 4e-4) -> None:
        self.site = site
        self.first = self._attach(kind, turn_s)
        self.second = self._attach(kind, turn_s)
        self._key = 0

    def _attach(self, kind: ConsumerType, turn_s: float) -> SharedAttachment:
        attachment = cast("SharedAttachment", self.site.attach(kind, self.site.world.start()))
        now = [0.0]
        attachment._pace = _Pace(lambda: now[0])
        attachment._pace.begin(100)
        now[0] = turn_s
        attachment._pace.end()
        return attachment

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._key += 7919
            self.site.publish(1, key=self._key)

    def step(self, count: int = FAST) -> None:
        """Some milliseconds in which the first consumer claims what comes."""
        self.publish(count)
        self.site.world.clock.advance(STEP_S)
        assert read(self.first)
        if self.second._sleep.has_assigned:
            assert read(self.second)

    def start(self, steps: int = 3) -> None:
        """Have the first consumer lead."""
        for _ in range(steps):
            self.step()
            self.second.awaits_appends  # noqa: B018 - it measures


@KINDS
def test_one_consumer_awaits_appends(site: VirtualSite, kind: ConsumerType):
    """The first that claims. The others are rung by nobody, and look again in some milliseconds."""
    pair = Pair(site, kind)
    assert pair.first.awaits_appends
    assert pair.second.awaits_appends
    pair.start()
    assert pair.first.awaits_appends
    assert not pair.second.awaits_appends
    assert pair.second.back_stop(10.0) == STAND_BY_S
    assert pair.first.back_stop(10.0) > STAND_BY_S


@KINDS
def test_they_await_appends_again_when_messages_come_slowly(site: VirtualSite, kind: ConsumerType):
    """From the next look on."""
    pair = Pair(site, kind)
    pair.start()
    assert not pair.second.awaits_appends
    for _ in range(2):
        assert not pair.second.has_news(False, pair.second.version)
        pair.step()
    assert not pair.second.has_news(False, pair.second.version)
    pair.step(int(LED_PER_MS))
    site.world.clock.advance(STEP_S)
    assert pair.second.has_news(False, pair.second.version)
    assert pair.second.awaits_appends
    assert pair.second.back_stop(10.0) > STAND_BY_S


@KINDS
def test_a_consumer_that_stands_by_helps_one_that_is_late(site: VirtualSite, kind: ConsumerType):
    """At its next look, if what lies there is more than is claimed in some milliseconds."""
    pair = Pair(site, kind)
    pair.start()
    assert not pair.second.awaits_appends
    pair.publish(FAST // 2)
    assert not pair.second.has_news(False, pair.second.version)
    pair.publish(FAST * 2)
    assert pair.second.has_news(False, pair.second.version)
    assert read(pair.second)


@KINDS
@pytest.mark.parametrize("count", [1, FAST // 2])
def test_a_leader_that_stops_is_relieved(site: VirtualSite, kind: ConsumerType, count: int):
    """It is in a long message, stopped or dead: the others claim what lies there when they look."""
    pair = Pair(site, kind)
    pair.start()
    assert not pair.second.awaits_appends
    pair.publish(count)
    looks = 0
    while not pair.second.has_news(False, pair.second.version):
        site.world.clock.advance(STAND_BY_S)
        looks += 1
    assert looks <= 2
    pair.second.read(1000, EVERYTHING)
    assert site.process.shared.control.read_position.entry_id == len(site.log.entries)


@KINDS
def test_one_that_was_served_leaves_what_came_since_to_the_leader(site: VirtualSite, kind: ConsumerType):
    """And looks soon; but not if its caller cannot wait, nor if there is much."""
    pair = Pair(site, kind)
    pair.start()
    for is_patient in (True, False):
        pair.publish(FAST * 3)
        while pair.second._sleep.has_assigned or site.process.shared.control.read_position.entry_id < len(
            site.log.entries
        ):
            assert read(pair.second)  # the leader is late
        pair.step()
        assert not pair.second._sleep.has_assigned
        pair.second._was_served = True
        pair.publish(2)
        before = site.process.shared.control.read_position
        if is_patient:
            assert read(pair.second) == []
            assert site.process.shared.control.read_position == before
            assert not pair.second.awaits_appends
            assert pair.second.back_stop(10.0) == STAND_BY_S
        else:
            timing.try_now(pair.second.read, 1000, EVERYTHING)
            assert site.process.shared.control.read_position > before


@KINDS
def test_one_with_a_slow_application_does_not_stand_by(site: VirtualSite, kind: ConsumerType):
    """It would do nothing while the leader works."""
    pair = Pair(site, kind, turn_s=30e-3)
    pair.start()
    assert pair.second.awaits_appends
    assert pair.second.back_stop(10.0) > STAND_BY_S


@KINDS
def test_one_that_is_assigned_something_looks(site: VirtualSite, kind: ConsumerType):
    """What another assigned to it is nobody else's."""
    pair = Pair(site, kind)
    pair.start()
    pair.second._was_served = True
    pair.second._sleep._waiting.note_assigned(pair.second.code)
    assert not pair.second._sleep.leaves_entries()


def test_appends_ring_the_leader_alone(site: VirtualSite):
    """Of two that sleep."""
    pair = Pair(site, SHARED)
    first, second = site.consumer(pair.first), site.consumer(pair.second)
    pair.start()
    for one in (second, first):
        assert one.poll(EVERYTHING) == []
        one.doze()
        assert one.sleeps
    assert site.log.words[TopicWord.WAITERS]
    pair.publish(1)
    assert first.is_awake
    assert second.sleeps
    pair.publish(1)
    assert second.sleeps
