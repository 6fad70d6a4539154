"""Functions that share a timer."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.platform.timing import Beat
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.strikes import at_every_instruction


class Site:
    """A beat on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.beat = self.scheduler.beat(10.0)

    def pass_s(self, seconds: float) -> int:
        """Let time pass; how many timers ran."""
        self.clock.advance(seconds)
        return self.scheduler.run_due()


@pytest.fixture
def site():
    return Site()


def test_a_thousand_functions_need_one_timer(site: Site):
    """And each of them is called once at each beat."""
    called: list[int] = []
    for number in range(1000):
        site.beat.add(lambda number=number: called.append(number))
    assert site.scheduler.pending == 1
    for _ in range(3):
        assert site.pass_s(10.0) == 1
        assert called == list(range(1000))
        called.clear()
    assert site.scheduler.beat(10.0) is site.beat


def test_a_function_that_left_is_not_called(site: Site):
    """Without any there is no timer, and the next one that joins starts it."""
    called: list[int] = []
    functions = [lambda number=number: called.append(number) for number in range(3)]
    for function in functions:
        site.beat.add(function)
        site.beat.add(function)
    site.beat.remove(functions[1])
    site.pass_s(10.0)
    assert called == [0, 2]
    for function in functions:
        site.beat.remove(function)
    assert site.scheduler.pending == 0
    site.beat.add(functions[1])
    site.pass_s(10.0)
    assert called == [0, 2, 1]


def test_a_function_may_leave_while_it_is_called(site: Site):
    """That ends the timer."""

    def once() -> None:
        site.beat.remove(once)

    site.beat.add(once)
    site.pass_s(10.0)
    assert site.scheduler.pending == 0
    assert site.pass_s(30.0) == 0


def test_an_exception_of_the_scheduler_leaves_it_usable():
    """The next one that joins sets the timer."""
    scheduler = ManualScheduler(ManualClock())
    refusals = [RuntimeError("no thread")]

    def call_later(delay_s, function):
        if refusals:
            raise refusals.pop()
        return scheduler.call_later(delay_s, function)

    beat = Beat(call_later, 10.0, lambda function: function())
    with pytest.raises(RuntimeError):
        beat.add(int)
    beat.add(bool)
    assert scheduler.pending == 1


def test_a_signal_handler_at_any_instruction(site: Site):
    """One that joins or leaves in the middle of another call: there is one timer in the end, and all are
    called."""
    called: list[str] = []

    def ours() -> None:
        called.append("ours")

    def theirs() -> None:
        called.append("theirs")

    def come_and_go() -> None:
        site.beat.add(ours)
        site.beat.remove(ours)
        site.beat.add(ours)

    def handler() -> None:
        site.beat.remove(theirs)
        site.beat.add(theirs)

    assert at_every_instruction(come_and_go, handler) > 20
    for _ in range(2):
        site.pass_s(10.0)
        assert sorted(called) == ["ours", "theirs"]
        called.clear()
    assert site.scheduler.pending == 1
