"""Waiting for a message: what is looked at while nobody rings, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar.client.consumer.delivery import NEVER_S, Source, back_stop
from embeddedpulsar.exceptions import Timeout


class Time:
    """A clock that goes on when somebody sleeps, with a mailbox that does."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.generation = 0
        self.naps: list[float] = []
        self.events: list[tuple[float, Any]] = []

    def at(self, second: float, event: Any) -> None:
        self.events.append((100.0 + second, event))

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, seen: int, timeout_s: float) -> int:
        self.naps.append(timeout_s)
        end_s = self.now_s + timeout_s
        while self.generation == seen and self.events and self.events[0][0] <= end_s:
            self.now_s, event = self.events.pop(0)
            event()
        if self.generation == seen:
            self.now_s = end_s
        return self.generation

    def ring(self) -> None:
        self.generation += 1


class Topic(Source):
    """A topic without messages, until it has some."""

    is_dry = False
    tail: Any = 0

    def __init__(self, time: Time) -> None:
        super().__init__(time, time.monotonic)  # type: ignore[arg-type]
        self.messages: list[Any] = []
        self.polls: list[float] = []
        self.due_s = NEVER_S
        self.waiting: set[object] = set()
        self.leaves: list[bool] = []
        self._time = time

    def request_wakeup(self, seen: int, waiter: object = None) -> bool:
        self.waiting.add(waiter)
        return bool(self.tail == seen)

    def end_wait(self, seen: int, waiter: object, is_served: bool) -> None:
        self.waiting.discard(waiter)
        self.leaves.append(is_served)

    def has_news(self, seen: int) -> bool:
        return self.tail != seen

    def back_stop(self, idle_s: float) -> float:
        return back_stop(idle_s)

    def due_in_s(self) -> float:
        return max(0.0, self.due_s - self._time.now_s)

    def poll(self, take: Any) -> Any:
        self.polls.append(self._time.now_s - 100.0)
        return self.messages.pop() if self.messages else None

    def append(self) -> None:
        self.tail += 1
        self.messages.append("message")


def wait(source: Topic, timeout_ms: int | None) -> Any:
    return source.wait(None, timeout_ms)  # type: ignore[arg-type]


def test_nothing_new_is_not_searched():
    """Where nothing comes, the topic is searched every other second; the tail is looked at more often."""
    time = Time()
    source = Topic(time)
    with pytest.raises(Timeout, match="no message within 10000 ms"):
        wait(source, 10_000)
    assert source.polls == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert time.naps == pytest.approx([0.1, 0.1, 0.5, 0.5, 0.8, 2.0, 2.0, 2.0, 2.0])


def test_a_ring_is_answered_at_once():
    """No nap ends late: the message is had when the bell rings."""
    time = Time()
    source = Topic(time)
    time.at(0.7, lambda: (source.append(), time.ring()))
    assert wait(source, None) == "message"
    assert source.polls == pytest.approx([0.0, 0.7])
    assert source.leaves == [True] and not source.waiting, "it is not rung while its application works"


@pytest.mark.parametrize(("appended_s", "late_s"), [(0.05, 0.1), (0.3, 0.5), (3.1, 2.0)])
def test_a_lost_ring_delays_a_message(appended_s, late_s):
    """The sender died before it rang: the longer the consumer was idle, the later it looks."""
    time = Time()
    source = Topic(time)
    time.at(appended_s, source.append)
    assert wait(source, None) == "message"
    assert time.now_s - 100.0 <= appended_s + late_s


def test_what_changed_no_tail_is_found_within_two_seconds():
    """The last resort, should anything ever come that neither rang nor moved the tail."""
    time = Time()
    source = Topic(time)
    time.at(0.3, lambda: source.messages.append("message"))
    assert wait(source, None) == "message"
    assert time.now_s - 100.0 == pytest.approx(2.0)


def test_a_wait_that_ends_without_a_message_is_withdrawn():
    """After its time limit, and when looking fails: another has to be rung for what comes."""
    time = Time()
    source = Topic(time)
    with pytest.raises(Timeout):
        wait(source, 100)
    time.at(0.5, lambda: (setattr(source, "poll", None), time.ring()))
    with pytest.raises(TypeError):
        wait(source, None)
    assert source.leaves == [False, False] and not source.waiting


def test_a_delayed_message_comes_when_it_is_due():
    """Also if it is only known of after the wait began."""
    time = Time()
    source = Topic(time)

    def schedule() -> None:
        source.due_s = 101.3

    def come_due() -> None:
        source.messages.append("message")

    time.at(0.2, schedule)
    time.at(1.29, come_due)
    assert wait(source, None) == "message"
    assert time.now_s - 100.0 == pytest.approx(1.3)
