"""Counting users: who is idle, in which order, and what never becomes idle."""

from __future__ import annotations

from embeddedpulsar._engine.platform.descriptors import Usage


def test_a_thing_is_idle_when_its_last_user_is_gone():
    """Two users, two ends; a new user makes it busy again."""
    usage = Usage(0)
    usage.begin("a")
    usage.begin("a")
    assert not usage.end("a")
    assert usage.idle() == []
    assert usage.end("a")
    assert usage.idle() == usage.surplus() == ["a"]
    usage.begin("a")
    assert usage.idle() == []


def test_the_longest_idle_are_the_surplus():
    """Above the budget, in the order in which they became idle; use renews the place."""
    usage = Usage(2)
    for name in "abcd":
        usage.begin(name)
        usage.end(name)
    assert usage.surplus() == ["a", "b"]
    usage.begin("a")
    usage.end("a")
    assert usage.surplus() == ["b", "c"]
    usage.discard("b")
    assert usage.idle() == ["c", "d", "a"]


def test_what_is_kept_is_never_idle():
    """A user who never ends counts once, until the thing is closed."""
    usage = Usage(0)
    usage.keep("a")
    usage.keep("a")
    usage.begin("a")
    assert not usage.end("a")
    usage.discard("a")
    usage.begin("a")
    assert usage.end("a")
