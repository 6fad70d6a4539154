"""The thread primitives handed to upper layers."""

from __future__ import annotations

import pytest

from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar.exceptions import ThreadLimitError
from tests.children import in_child


def test_rlock_release_without_a_hold_does_nothing():
    """A ``finally`` that an interrupt reached before the lock was taken is harmless."""
    lock = threads.RLock()
    lock.release()
    lock.acquire()
    lock.acquire()
    lock.release()
    lock.release()
    lock.release()


def test_rlock_release_does_not_free_another_threads_hold():
    """Only the holder gives it back."""
    lock = threads.RLock()
    lock.acquire()
    thread = threads.start_daemon(lock.release, "intruder")
    thread.join()
    outcome: list[bool] = []
    other = threads.start_daemon(lambda: outcome.append(lock.acquire(False)), "taker")
    other.join()
    assert outcome == [False]
    lock.release()


def test_a_free_lock_stays_in_a_forked_child():
    """It is as good as a new one, and costs nothing."""
    lock = threads.RLock()
    assert threads.renewed(lock) is lock
    assert in_child(lambda: threads.renewed(lock) is lock and lock.acquire(False)) == "True"


def test_a_lock_somebody_had_is_new_in_a_forked_child():
    """Its holder does not exist there; what the forking thread itself was in, the child is not in."""
    mine, theirs = threads.RLock(), threads.RLock()
    inside, leave = threads.Event(), threads.Event()

    def hold() -> None:
        theirs.acquire()
        inside.set()
        leave.wait(10)
        theirs.release()

    thread = threads.start_daemon(hold, "holder")
    assert inside.wait(10)
    mine.acquire()

    def child() -> list[bool]:
        taken = []
        for lock in (mine, theirs):
            new = threads.renewed(lock)
            taken += [new is lock, bool(new.release()), new.acquire(False)]
        return taken

    assert in_child(child) == "[False, False, True, False, False, True]"
    mine.release()
    leave.set()
    thread.join()
    assert theirs.acquire(False)


def test_threads_carry_our_name():
    """Stack dumps show whose thread it is, and it never keeps the process alive."""
    thread = threads.Thread(lambda: None, "worker")
    assert thread.name == "embeddedpulsar-worker"
    assert thread.daemon
    thread.start()
    thread.join()


def test_an_event_wakes_all_that_wait():
    """And lets those return at once that come later."""
    event = threads.Event()
    woken: list[bool] = []
    waiting = [threads.start_daemon(lambda: woken.append(event.wait(10)), "waiter") for _ in range(3)]
    assert not event.wait(0.01)
    event.set()
    for thread in waiting:
        thread.join()
    assert woken == [True] * 3
    assert event.wait(0)
    assert event.is_set()


def test_an_event_whose_wait_is_interrupted_forgets_it(monkeypatch):
    """As by Ctrl-C."""

    class Interrupted:
        """A lock in whose wait it happens."""

        waits = 0

        def acquire(self, *arguments: object) -> bool:
            self.waits += 1
            if self.waits > 1:
                raise KeyboardInterrupt
            return True

    event = threads.Event()
    monkeypatch.setattr(threads.system, "allocate_lock", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        event.wait()
    assert not event._waiters


def test_a_thread_after_threads_were_replaced(monkeypatch):
    """It is a real one, which the class of `threading` does not start; it can be waited for."""
    monkeypatch.setattr("_thread.start_new_thread", lambda *arguments: pytest.fail("started by the patch"))
    runners: list[int] = []
    thread = threads.start_daemon(lambda: runners.append(threads.current_id()), "worker")
    thread.join(10)
    assert thread.is_over
    assert runners == [thread.runner]
    assert thread.runner != threads.current_id()
    assert thread.ident is None


def test_a_lone_thread_that_never_begins_is_given_up(monkeypatch):
    """There was no memory for its first steps: who waits for its end goes on, and it does nothing later."""
    calls: list[int] = []
    lone = threads.LoneThread(lambda: calls.append(1), "lost")
    lost: list[threads.Daemon] = []
    monkeypatch.setattr(threads, "_start", lost.append)
    monkeypatch.setattr(threads, "_BEGIN_S", 0.01)
    lone.start()
    assert lone.is_started and lone.wait_over()
    lost[0].run()
    assert not calls


def test_side_by_side():
    """They run at the same time; each error is in its place, an interrupt too; the deadline
    is that of the call."""
    barrier = threads.threading.Barrier(3)
    deadlines: list[float] = []

    def meet():
        barrier.wait(60)
        deadlines.append(timing.left(1000.0))

    def fail():
        meet()
        raise KeyboardInterrupt

    errors = timing.within(50.0, threads.side_by_side, [meet, fail, meet])
    assert [type(error) for error in errors] == [type(None), KeyboardInterrupt, type(None)]
    assert len(deadlines) == 3 and max(deadlines) <= 50.0
    assert threads.side_by_side([threads.current_id]) == [None]


def test_side_by_side_without_threads(monkeypatch):
    """Where none begins, or the system refuses them, the calling thread does it all."""
    runners: list[int] = []
    functions = [lambda: runners.append(threads.current_id())] * 20
    monkeypatch.setattr(threads, "start_daemon", lambda target, name: None)
    assert threads.side_by_side(functions) == [None] * 20

    def refuse(target, name):
        raise ThreadLimitError("no more threads")

    monkeypatch.setattr(threads, "start_daemon", refuse)
    assert threads.side_by_side(functions) == [None] * 20
    assert runners == [threads.current_id()] * 40
