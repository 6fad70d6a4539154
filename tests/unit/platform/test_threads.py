"""The thread primitives handed to upper layers."""

from __future__ import annotations

from embeddedpulsar.platform import threads
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
