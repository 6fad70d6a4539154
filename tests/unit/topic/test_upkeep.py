"""What housekeeping does for a topic, when it is closed, and when something is in the way."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from embeddedpulsar.exceptions import CorruptionError, LockTimeout
from embeddedpulsar.topic.upkeep import TopicUpkeep


class Looks:
    """A check that notes its looks."""

    every_s = 60.0
    follows_traffic = True

    def __init__(self) -> None:
        self.looks = 0
        self.error: Exception | None = None
        self.wanted_error: Exception | None = None
        self.on_look: Any = int

    def is_wanted(self) -> bool:
        if self.wanted_error is not None:
            raise self.wanted_error
        return True

    def look(self, done: list[str]) -> bool:
        self.looks += 1
        self.on_look()
        if self.error is not None:
            raise self.error
        return False


class Site:
    def __init__(self) -> None:
        self.now, self.trims = 0.0, 0
        self.due: list[Any] = []
        self.check, self.other = Looks(), Looks()
        trimming = SimpleNamespace(may_find_any=lambda: False, trim=self.trim, close=int)
        subscriptions = SimpleNamespace(clear_away=lambda most: False, may_find_leftovers=lambda: False)
        policies = SimpleNamespace(listen=lambda one: None, unlisten=lambda one: None)
        housekeeping = SimpleNamespace(look_at=self.due.append, forget=lambda one: None)
        parts: Any = (trimming, subscriptions, policies, [self.check, self.other], housekeeping)
        self.upkeep = TopicUpkeep("t", *parts, lambda: self.now)

    def trim(self, timeout_s: float, done: list[str]) -> int:
        self.trims += 1
        return 0


@pytest.fixture
def site() -> Site:
    return Site()


def test_an_append_or_acknowledgement_does_not_fail_by_a_policy_that_cannot_be_read(site: Site) -> None:
    """Housekeeping meets the damage, and reports it."""
    site.check.wanted_error = CorruptionError(reason="damaged")
    site.upkeep.suggest()
    assert site.due == [site.upkeep]
    with pytest.raises(CorruptionError):
        site.upkeep.do_chores([])


def test_a_check_that_found_a_lock_taken_is_made_again(site: Site) -> None:
    """Not an interval later; and the others, and trimming, do not wait for it."""
    site.check.error = LockTimeout("taken")
    for _ in range(2):
        with pytest.raises(LockTimeout):
            site.upkeep.do_chores([])
    assert (site.check.looks, site.other.looks, site.trims) == (2, 1, 2)
    site.check.error = None
    site.upkeep.do_chores([])
    site.upkeep.do_chores([])
    assert (site.check.looks, site.other.looks) == (3, 1)


def test_closing_waits_for_a_look(site: Site) -> None:
    """Its files would be unmapped under it; and what is closed is not looked at again."""
    order: list[str] = []
    closing = threading.Thread(target=lambda: (site.upkeep.close(), order.append("closed")))

    def look() -> None:
        closing.start()
        closing.join(0.05)
        order.append("looked")

    site.other.on_look = look
    site.upkeep.do_chores([])
    closing.join()
    assert order == ["looked", "closed"]
    site.now = 1000.0
    assert not site.upkeep.do_chores([])
    assert (site.other.looks, site.upkeep.chores_every_s()) == (1, 0.0)
