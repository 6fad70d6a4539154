"""Listener threads: one failing consumer does not stop the others."""

from __future__ import annotations

import threading
from typing import Any

from embeddedpulsar.client.client_threads import ClientLog
from embeddedpulsar.client.consumer.listener import ListenerTarget, ListenerThreads
from embeddedpulsar.exceptions import AlreadyClosed


class Mailbox:
    """A mailbox that wakes whoever waits."""

    def __init__(self) -> None:
        self.generation = 0
        self._rung = threading.Condition()

    def ring_self(self) -> None:
        with self._rung:
            self.generation += 1
            self._rung.notify_all()

    def wait(self, seen: int, timeout_s: float) -> int:
        with self._rung:
            self._rung.wait_for(lambda: self.generation != seen, timeout_s)
        return self.generation


class Delivery:
    """Gives out numbers; raises what it is told to."""

    def __init__(self, count: int) -> None:
        self.left = list(range(count))
        self.closed_text = ""
        self.error: Exception | None = None
        self.tail = 0
        self.waits: list[Any] = []

    def request_wakeup(self, seen: int, waiter: Any) -> bool:
        self.waits.append("armed")
        return seen == self.tail

    def end_wait(self, seen: int, waiter: Any, is_served: bool) -> None:
        self.waits.append(is_served)

    def has_news(self, seen: int) -> bool:
        return seen != self.tail

    def back_stop(self, idle_s: float) -> float:
        return 0.1

    def due_in_s(self) -> float:
        return 1e9

    def poll(self, take: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.left.pop(0) if self.left else None


def target(delivery: Delivery, listener: Any) -> ListenerTarget:
    """A consumer as the listener thread sees it."""
    return ListenerTarget("owner", listener, delivery, nothing, ClientLog())  # type: ignore[arg-type]


def nothing() -> Any:
    """Nothing was fetched ahead."""
    raise IndexError


def test_turns_are_bounded():
    """A consumer with many messages gives way after its turn."""
    seen: list[int] = []
    one = target(Delivery(250), lambda owner, message: seen.append(message))
    assert one.run(100)
    assert len(seen) == 100
    assert one.run(100)
    assert one.run(100)
    assert not one.run(100)
    assert seen == list(range(250))


def test_a_paused_target_takes_nothing():
    """Paused, messages stay where they are."""
    one = target(Delivery(1), None)
    one.is_paused = True
    assert not one.run(100)


def test_a_listener_that_runs_waits_for_nothing():
    """Before it is called, and when it is paused or removed, others are rung in its place."""
    delivery = Delivery(0)
    one = target(delivery, lambda owner, message: delivery.waits.append("called"))
    assert not one.run(10) and one.request_wakeup() and not one.has_news()
    delivery.left, delivery.tail = [1, 2], 2
    assert one.has_news() and one.run(10)
    assert delivery.waits == ["armed", True, "called", "called"]
    one.run(10)
    assert one.request_wakeup()
    one.is_paused = True
    assert not one.run(10) and one.request_wakeup()
    assert delivery.waits[4:] == ["armed", False], "paused, it asks for nothing"


def test_a_consumer_that_was_closed_by_somebody_else_stops_nobody():
    """Its thread goes on with the other consumers."""
    broken, works = Delivery(1), Delivery(3)
    broken.error = AlreadyClosed("detached")
    mailbox, done = Mailbox(), threading.Event()
    listeners = ListenerThreads(1, lambda: mailbox, ClientLog())  # type: ignore[arg-type, return-value]
    listeners.add(target(broken, None))
    listeners.add(target(works, lambda owner, message: message == 2 and done.set()))
    assert done.wait(10)
    listeners.close()


def test_a_failing_fetch_is_logged_and_tried_again(caplog):
    """An error that is not the listener's own does not end the thread."""
    delivery = Delivery(1)
    mailbox, done, failures = Mailbox(), threading.Event(), []
    original = delivery.poll

    def fail_twice(take: Any) -> Any:
        if len(failures) < 2:
            failures.append(1)
            raise OSError("no descriptors left")
        return original(take)

    delivery.poll = fail_twice  # type: ignore[method-assign]
    listeners = ListenerThreads(2, lambda: mailbox, ClientLog())  # type: ignore[arg-type, return-value]
    listeners.add(target(delivery, lambda owner, message: done.set()))
    assert done.wait(10)
    listeners.close()
    assert "no descriptors left" in caplog.text


def test_threads_are_shared_evenly():
    """With two threads, four consumers are served by both."""
    mailbox = Mailbox()
    listeners = ListenerThreads(2, lambda: mailbox, ClientLog())  # type: ignore[arg-type, return-value]
    seen: set[int] = set()
    all_came = threading.Barrier(5, timeout=10)

    def listen(owner: object, message: object) -> None:
        seen.add(threading.get_ident())

    targets = [target(Delivery(50), listen) for _ in range(4)]
    for one in targets:
        listeners.add(one)
    done = threading.Event()
    last = target(Delivery(1), lambda owner, message: done.set())
    listeners.add(last)
    assert done.wait(10)
    for one in targets:
        listeners.remove(one)
    listeners.close()
    assert 1 <= len(seen) <= 2
    all_came.abort()
