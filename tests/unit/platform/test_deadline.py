"""Deadlines of calls: every wait for a lock below a call ends with it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.threads import RLock
from embeddedpulsar.exceptions import LockTimeout


class Now:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    """The clock of deadlines, moved by the test."""
    clock = Now()
    monkeypatch.setattr(timing.system, "monotonic", clock)
    return clock


def test_without_a_deadline_a_lock_is_waited_for_as_it_asks():
    """The default of the lock holds."""
    assert timing.left(30.0) == 30.0


def test_what_is_left_shrinks_with_time(now: Now):
    """Three waits of one call share its deadline, and after it locks are only tried."""

    def call() -> list[float]:
        waits = [timing.left(30.0)]
        for _ in range(3):
            now.seconds += 2
            waits.append(timing.left(30.0))
        return waits

    assert timing.within(5.0, call) == [5.0, 3.0, 1.0, 0.0]


def test_a_lock_that_asks_for_less_gets_less(now: Now):
    """A deadline never lengthens a wait."""
    assert timing.within(5.0, timing.left, 0.2) == 0.2


def test_an_inner_deadline_can_only_be_shorter(now: Now):
    """What is called inside a call ends with it."""
    assert timing.within(5.0, timing.within, 9.0, timing.left, 30.0) == 5.0
    assert timing.within(5.0, timing.within, 1.0, timing.left, 30.0) == 1.0
    assert timing.try_now(timing.within, 9.0, timing.left, 30.0) == 0.0


def test_code_of_the_application_has_a_deadline_of_its_own(now: Now):
    """An interceptor that a timer calls may wait."""
    assert timing.try_now(timing.unbounded, timing.left, 30.0) == 30.0
    assert timing.unbounded(timing.left, 30.0) == 30.0


def test_a_deadline_ends_with_the_call_that_fails(now: Now):
    """Also when an interrupt ends it."""
    with pytest.raises(KeyboardInterrupt):
        timing.try_now(interrupted)
    assert timing.left(30.0) == 30.0


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_storm_of_interrupts_leaves_no_deadline_behind():
    """The deadline is left in C: whatever instruction an interrupt hits, none stays with the thread."""
    import signal

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005, 1.0)  # again: one may hit a finalizer
                while True:
                    timing.try_now(timing.within, 1.0, timing.left, 30.0)
            except KeyboardInterrupt:
                assert timing.left(30.0) == 30.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_threads_and_tasks_keep_their_own():
    """A deadline belongs to one call."""
    seen: list[float] = []

    def call() -> None:
        thread = threading.Thread(target=lambda: seen.append(timing.left(30.0)))
        thread.start()
        thread.join()

    timing.try_now(call)
    assert seen == [30.0]

    async def main() -> tuple[float, float]:
        tried = timing.try_now(timing.left, 30.0)
        return tried, await asyncio.create_task(later())

    async def later() -> float:
        return timing.left(30.0)

    assert asyncio.run(main()) == (0.0, 30.0)


def test_a_file_lock_is_waited_for_until_the_deadline(tmp_path):
    """Between processes: the lock asks for 30 s, the call grants 50 ms."""
    ours, theirs = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    theirs.acquire()
    for seconds in (0.05, 0.0):
        begun = time.monotonic()
        with pytest.raises(LockTimeout, match="was not free within 0"):
            timing.within(seconds, ours.acquire)
        assert seconds <= time.monotonic() - begun < seconds + 5
    theirs.release()
    timing.try_now(ours.acquire)
    ours.release()
    ours.close()
    theirs.close()


def test_a_thread_that_holds_a_lock_is_waited_for_until_the_deadline(tmp_path):
    """Between threads: those of file locks, and those under which others wait for one."""
    lock, inner = FileLock(tmp_path / "lock"), RLock()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            lock.acquire()
            inner.acquire()
            inside.set()
            leave.wait(20)
        finally:
            inner.release()
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(20)
    try:
        begun = time.monotonic()
        with pytest.raises(LockTimeout):
            timing.try_now(lock.acquire)
        with pytest.raises(LockTimeout):
            timing.within(0.02, lock.acquire)
        with pytest.raises(LockTimeout, match="inside the queue for 0 s"):
            timing.try_now(timing.enter, inner, "the queue")
        with pytest.raises(LockTimeout):
            timing.within(0.02, timing.enter, inner, "the queue")
        assert time.monotonic() - begun < 10
    finally:
        leave.set()
        thread.join()
    try:
        timing.try_now(timing.enter, inner, "the queue")
    finally:
        inner.release()
        lock.close()
