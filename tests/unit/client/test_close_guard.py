"""Which close is one too many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from embeddedpulsar import AlreadyClosed
from embeddedpulsar.client.client_context import CloseGuard


def close_guard(*, client_closed: bool = False) -> CloseGuard:
    """Of something whose client is open, or closed."""
    client: Any = SimpleNamespace(is_closed=client_closed)
    return CloseGuard(client)


def test_closing_twice_is_once_too_often():
    """The first one closes; the second raises, with the reason."""
    one = close_guard()
    assert one.begin("")
    with pytest.raises(AlreadyClosed, match="closed; subscribe again"):
        one.begin("the consumer is closed; subscribe again")


def test_what_ended_by_itself_may_be_closed_once():
    """There is nothing to do, and no error; then there is."""
    one = close_guard()
    assert not one.begin("the consumer has unsubscribed")
    with pytest.raises(AlreadyClosed):
        one.begin("the consumer has unsubscribed")


def test_a_client_that_closes_leaves_the_owner_a_turn():
    """What the client closed, its owner may close once."""
    one = close_guard(client_closed=True)
    assert one.begin("")
    assert not one.begin("closed")
    with pytest.raises(AlreadyClosed):
        one.begin("closed")


def test_a_forked_child_may_not():
    """It is the parent's."""
    one = close_guard()
    one.after_fork_in_child()
    with pytest.raises(AlreadyClosed, match="parent"):
        one.begin("belongs to the parent")
