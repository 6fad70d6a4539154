"""Named places where a test can interfere."""

from __future__ import annotations

import threading

import pytest

from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.failpoints import InjectedFailure
from tests.support.failpoint_schedule import Schedule


@pytest.fixture(autouse=True)
def clean():
    """No failpoint outlives its test."""
    failpoints.clear()
    yield
    failpoints.clear()


def test_nothing_set_costs_one_read():
    """Callers look at ACTIVE first; a hit that is not set does nothing anyway."""
    assert not failpoints.ACTIVE
    failpoints.hit("anything")


def test_the_nth_hit_acts_once():
    """Hits before and after it pass."""
    failpoints.set("step", "raise", nth=3)
    assert failpoints.ACTIVE
    failpoints.hit("step")
    failpoints.hit("other")
    failpoints.hit("step")
    with pytest.raises(InjectedFailure, match="step"):
        failpoints.hit("step")
    failpoints.hit("step")


def test_every_hit_acts_on_request():
    """nth=0."""
    hits: list[int] = []
    failpoints.set("step", lambda: hits.append(1), nth=0)
    for _ in range(3):
        failpoints.hit("step")
    assert hits == [1, 1, 1]


def test_clearing_one_or_all():
    """ACTIVE goes with the last one."""
    failpoints.set("a", "raise")
    failpoints.set("b", "raise")
    failpoints.clear("a")
    failpoints.hit("a")
    assert failpoints.ACTIVE
    failpoints.clear()
    assert not failpoints.ACTIVE
    failpoints.hit("b")


def test_the_environment_syntax():
    """Several failpoints, with options."""
    failpoints.configure(" a=raise:KeyboardInterrupt ; b=off,nth=2;; c=raise,nth=2 ")
    with pytest.raises(KeyboardInterrupt):
        failpoints.hit("a")
    failpoints.hit("b")
    failpoints.hit("b")
    failpoints.hit("c")
    with pytest.raises(InjectedFailure):
        failpoints.hit("c")


@pytest.mark.parametrize("text", ["a=explode", "a=raise,when=never", "a=pause"])
def test_mistakes_in_the_environment_are_reported(text: str):
    """A misspelt failpoint would be a test that tests nothing."""
    with pytest.raises(ValueError, match="unknown"):
        failpoints.configure(text)


def test_declared_names_are_listed_once_in_order():
    """Tests iterate over them."""
    failpoints.declare("test:one", "test:two")
    failpoints.declare("test:one")
    listed = [name for name in failpoints.names() if name.startswith("test:")]
    assert listed == ["test:one", "test:two"]


def test_a_schedule_holds_another_thread(tmp_path):
    """It stands at the failpoint until it is released."""
    schedule = Schedule(tmp_path / "schedule")
    passed: list[int] = []

    def work() -> None:
        failpoints.hit("step")
        passed.append(1)

    failpoints.set("step", schedule.action)
    assert not schedule.wait_reached(timeout_s=0)
    thread = threading.Thread(target=work)
    thread.start()
    assert schedule.wait_reached()
    assert passed == []
    schedule.release()
    thread.join()
    assert passed == [1]
    schedule.close()
    assert list(tmp_path.iterdir()) == []
