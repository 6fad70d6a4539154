"""The lock between real processes: death, fork, stop."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time

import pytest

from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import LockTimeout
from tests.children import ForkedChild, in_child


@pytest.fixture
def path(tmp_path) -> str:
    """Where the lock file is."""
    return str(tmp_path / "lock")


def hold(path: str) -> FileLock:
    """Take the lock at ``path`` and keep it."""
    lock = FileLock(path)
    lock.acquire()
    return lock


def test_the_lock_of_a_killed_holder_is_free(path: str):
    """The kernel gives it back at once, however the holder ends."""
    waits = []
    for _ in range(10):
        kept: list[FileLock] = []
        child = ForkedChild(lambda kept=kept: kept.append(hold(path)))
        child.ready()
        lock = FileLock(path)
        assert not lock.try_acquire()
        os.kill(child.pid, signal.SIGKILL)
        start = time.perf_counter()
        lock.acquire(timeout_s=10)
        waits.append(time.perf_counter() - start)
        lock.release()
        lock.close()
        child.end()
    assert statistics.median(waits) < 0.5


def test_a_stopped_holder_is_waited_for(path: str):
    """It may go on at any moment, so nobody takes its lock; the wait ends in time."""
    kept: list[FileLock] = []
    child = ForkedChild(lambda: kept.append(hold(path)))
    child.ready()
    os.kill(child.pid, signal.SIGSTOP)
    lock = FileLock(path, describe=lambda: f"process {child.pid}")
    start = time.perf_counter()
    with pytest.raises(LockTimeout, match=f"held by process {child.pid}"):
        lock.acquire(timeout_s=0.2)
    assert 0.2 <= time.perf_counter() - start < 5
    child.end()
    lock.acquire(timeout_s=10)
    lock.release()


def test_a_forked_child_does_not_keep_its_parents_lock(path: str):
    """A killed holder's lock is free although a child that inherited the descriptor lives on."""

    def parent() -> int:
        lock = hold(path)
        grandchild = os.fork()
        if grandchild == 0:
            signal.pause()
        assert lock.held
        return grandchild

    child = ForkedChild(parent)
    grandchild = int(child.ready())
    lock = FileLock(path)
    assert not lock.try_acquire()
    child.end()
    lock.acquire(timeout_s=10)
    os.kill(grandchild, 0)  # it lives
    lock.release()
    os.kill(grandchild, signal.SIGKILL)


def test_a_child_forked_while_another_thread_holds_it(path: str):
    """The child can lock once the parent's thread lets go; the thread keeps its hold meanwhile."""
    lock = FileLock(path)
    holding, enough = threading.Event(), threading.Event()

    def work() -> None:
        try:
            lock.acquire()
            holding.set()
            enough.wait(30)
        finally:
            lock.release()

    thread = threading.Thread(target=work)
    thread.start()
    assert holding.wait(30)

    def child() -> object:
        lock.release()
        return lock.try_acquire()

    assert in_child(child) == "False"

    def patient_child() -> object:
        lock.acquire(timeout_s=30)
        held = lock.held
        lock.release()
        return held

    waiting = ForkedChild(patient_child)
    assert not lock.try_acquire()
    enough.set()
    thread.join()
    assert waiting.ready() == "True"
    waiting.end()


def test_forks_amid_locking_threads(path: str):
    """Fifty forks while four threads lock and unlock: every child works, no thread is stuck."""
    lock = FileLock(path)
    stop = threading.Event()
    rounds = [0] * 4

    def work(number: int) -> None:
        while not stop.is_set():
            try:
                lock.acquire()
                rounds[number] += 1
            finally:
                lock.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()

    def child() -> object:
        for _ in range(20):
            try:
                lock.acquire(timeout_s=30)
            finally:
                lock.release()
        return "done"

    try:
        for _ in range(50):
            assert in_child(child) == "done"
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert all(rounds)
    assert lock.try_acquire()
    lock.release()


def test_processes_count_without_losing_one(path: str, tmp_path):
    """Four processes increment a number that only the lock protects."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def work() -> object:
        lock = FileLock(path)
        for _ in range(250):
            try:
                lock.acquire()
                counter.write_text(str(int(counter.read_text()) + 1))
            finally:
                lock.release()
        return "done"

    children = [ForkedChild(work) for _ in range(4)]
    for child in children:
        assert child.ready() == "done"
        child.end()
    assert counter.read_text() == "1000"
