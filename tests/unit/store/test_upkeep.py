"""What housekeeping does for a topic, when it is closed, and when something is in the way."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.store.housekeeping import NOT_TRIMMED, ChoresFailed
from embeddedpulsar._engine.store.upkeep import TopicUpkeep
from embeddedpulsar.exceptions import CorruptionError, LockTimeout, StorageError


class Looks:
    """A check that notes its looks."""

    every_s = 60.0
    follows_traffic = True
    undone = "nothing is looked at"

    def __init__(self) -> None:
        self.looks = 0
        self.error: Exception | None = None
        self.wanted_error: Exception | None = None
        self.on_look: Any = int

    def is_wanted(self) -> bool:
        if self.wanted_error is not None:
            raise self.wanted_error
        return True

    def run_due(self, done: list[str]) -> bool:
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
        self.trim_error: Exception | None = None
        trimming: Any = SimpleNamespace(
            lock=threads.RLock(), may_find_any=lambda: False, trim_slice=self.trim, close=int
        )
        subscriptions = SimpleNamespace(clear_away=lambda most: False, may_find_leftovers=lambda: False)
        policies = SimpleNamespace(listen=lambda one: None, unlisten=lambda one: None)
        housekeeping: Any = SimpleNamespace(look_at=self.due.append, discard=lambda one: None)
        clock, log = SimpleNamespace(monotonic=lambda: self.now), SimpleNamespace(name="t")
        parts: Any = SimpleNamespace(log=log, policies=policies, subscriptions=subscriptions, clock=clock)
        self.upkeep = TopicUpkeep(parts, trimming, [self.check, self.other], housekeeping)

    def trim(self, timeout_s: float, done: list[str]) -> int:
        self.trims += 1
        if self.trim_error is not None:
            raise self.trim_error
        return 0


@pytest.fixture
def site() -> Site:
    return Site()


def test_an_append_or_acknowledgement_does_not_fail_by_a_policy_that_cannot_be_read(site: Site) -> None:
    """Housekeeping meets the damage, and reports it."""
    site.check.wanted_error = CorruptionError(reason="damaged")
    site.upkeep.suggest()
    assert site.due == [site.upkeep]
    with pytest.raises(ChoresFailed, match="damaged"):
        site.upkeep.do_chores([])


def test_a_check_that_fails_keeps_no_other_from_being_made(site: Site) -> None:
    """Nor trimming; it is made again at its interval, and the failure says what does not happen."""
    site.check.error = StorageError(path="x", reason="broken")
    for _ in range(2):
        with pytest.raises(ChoresFailed) as caught:
            site.upkeep.do_chores([])
        assert [undone for _, undone in caught.value.failures] == ["nothing is looked at"]
        site.now += 60
    assert (site.check.looks, site.other.looks, site.trims) == (2, 2, 2)
    site.other.error, site.trim_error = site.check.error, OSError("no room")
    with pytest.raises(ChoresFailed) as caught:
        site.upkeep.do_chores([])
    assert [(str(error), undone) for error, undone in caught.value.failures] == [
        (str(site.check.error), "nothing is looked at, nothing is looked at"),
        ("no room", NOT_TRIMMED),
    ]


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
