"""The garbage collector while many objects are made."""

from __future__ import annotations

import gc

import pytest

from embeddedpulsar._engine.platform.fork import uncollected
from tests.children import in_child


def fail() -> None:
    """An error, of whatever kind."""
    raise KeyboardInterrupt


def test_it_rests_as_long_as_the_call():
    """Also when that ends with an exception, or is nested."""
    assert uncollected(gc.isenabled) is False
    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt):
        uncollected(fail)
    assert gc.isenabled()
    assert uncollected(lambda: uncollected(gc.isenabled)) is False
    assert gc.isenabled()


def test_one_that_the_application_stopped_stays_stopped():
    """It knows why."""
    gc.disable()
    try:
        uncollected(int)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_that_is_forked_meanwhile_has_one():
    """The thread that would start it again is the parent's."""
    assert uncollected(lambda: in_child(gc.isenabled)) == "True"
    assert gc.isenabled()
