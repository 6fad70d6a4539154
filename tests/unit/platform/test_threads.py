"""The thread primitives handed to upper layers."""

from __future__ import annotations

from embeddedpulsar.platform import threads


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


def test_threads_carry_our_name():
    """Stack dumps show whose thread it is, and it never keeps the process alive."""
    thread = threads.Thread(lambda: None, "worker")
    assert thread.name == "embeddedpulsar-worker"
    assert thread.daemon
    thread.start()
    thread.join()
