"""Fences, and which machines need more than x86 does."""

from __future__ import annotations

import os
from itertools import pairwise
from types import SimpleNamespace

import pytest

from embeddedpulsar._engine.platform import threads


class NotedLock:
    """A lock that notes what is done with it."""

    steps: list[str] = []

    def __init__(self) -> None:
        self.is_held = False

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire; only if it is free is that an atomic instruction."""
        assert not self.is_held
        self.is_held = True
        NotedLock.steps.append("acquire")
        return True

    def release(self) -> None:
        """Release."""
        assert self.is_held
        self.is_held = False
        NotedLock.steps.append("release")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What fences do with their locks."""
    NotedLock.steps = []
    monkeypatch.setattr(threads, "_locks", SimpleNamespace(allocate_lock=NotedLock))
    return NotedLock.steps


@pytest.mark.parametrize("is_weak", [False, True])
def test_a_fence_orders_both_sides(steps: list[str], monkeypatch: pytest.MonkeyPatch, is_weak: bool):
    """An acquire orders what follows, a release what comes before; a release with an acquire behind it orders
    both. On x86 each of them does."""
    monkeypatch.setattr(threads, "REORDERS", is_weak)
    own = threads.new_fence()
    for _ in range(3):
        steps.clear()
        assert own.acquire(False)
        own.release()
        assert not is_weak or any(pair == ("release", "acquire") for pair in pairwise(steps))
        assert len(steps) == (4 if is_weak else 2)
    steps.clear()
    threads.fence()
    assert len(steps) == (4 if is_weak else 2)


def test_only_what_reorders_waits(steps: list[str], monkeypatch: pytest.MonkeyPatch):
    """On x86 nothing is looked at again, and no fence stands between two stores."""
    slept: list[float] = []
    monkeypatch.setattr(threads.system, "sleep", slept.append)
    monkeypatch.setattr(threads, "REORDERS", False)
    threads.keep_order()
    assert not threads.await_stores()
    assert not steps and not slept
    monkeypatch.setattr(threads, "REORDERS", True)
    threads.keep_order()
    assert len(steps) == 4
    assert threads.await_stores()
    assert len(steps) == 12 and slept == [threads._STORES_ARRIVE_S]


def test_which_machines_reorder():
    """All but those of the x86 family, also those that nobody thought of; this one is told by the system."""
    assert not any(map(threads.reorders, ("x86_64", "AMD64", "i686", "i386", "x86")))
    assert all(map(threads.reorders, ("aarch64", "arm64", "armv7l", "ppc64le", "riscv64", "loongarch64", "")))
    assert threads.reorders(os.uname().machine) is threads.REORDERS


def test_the_locks_are_those_of_the_interpreter():
    """Also where libraries replaced them by ones without an atomic instruction."""
    assert type(threads._locks.allocate_lock()).__module__ == "_thread"
