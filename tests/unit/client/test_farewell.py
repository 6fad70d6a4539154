"""Which close is one too many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from embeddedpulsar import AlreadyClosed
from embeddedpulsar.client.farewell import Farewell


def farewell(*, client_closed: bool = False) -> Farewell:
    """Of something whose client is open, or closed."""
    client: Any = SimpleNamespace(is_closed=client_closed)
    return Farewell(client)


def test_closing_twice_is_once_too_often():
    """The first one closes; the second raises, with the reason."""
    one = farewell()
    assert one.say("")
    with pytest.raises(AlreadyClosed, match="closed; subscribe again"):
        one.say("the consumer is closed; subscribe again")


def test_what_ended_by_itself_may_be_closed_once():
    """There is nothing to do, and no error; then there is."""
    one = farewell()
    assert not one.say("the consumer has unsubscribed")
    with pytest.raises(AlreadyClosed):
        one.say("the consumer has unsubscribed")


def test_a_client_that_closes_leaves_the_owner_a_turn():
    """What the client closed, its owner may close once."""
    one = farewell(client_closed=True)
    assert one.say("")
    assert not one.say("closed")
    with pytest.raises(AlreadyClosed):
        one.say("closed")


def test_a_forked_child_may_not():
    """It is the parent's."""
    one = farewell()
    one.after_fork_in_child()
    with pytest.raises(AlreadyClosed, match="parent"):
        one.say("belongs to the parent")
