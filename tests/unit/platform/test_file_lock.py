"""The lock between processes; what needs other processes is in tests/multiprocess."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import file_lock
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout
from tests.children import in_child


@pytest.fixture(params=["flock", "portalocker"])
def path(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a lock file may be made, with either way of locking."""
    if request.param == "portalocker":
        monkeypatch.setattr(file_lock, "flock", file_lock.portable_flock)
    return str(tmp_path / "lock")


def is_free(path: str) -> bool:
    """Whether another process could take the lock now."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_acquire_and_release(path: str):
    """Held in between, free before and after."""
    lock = FileLock(path)
    assert is_free(path)
    lock.acquire()
    assert lock.held
    assert not is_free(path)
    lock.release()
    assert not lock.held
    assert is_free(path)
    lock.close()


def test_release_without_a_hold_does_nothing(path: str):
    """So a ``finally`` may be reached before the lock was."""
    lock = FileLock(path)
    lock.release()
    lock.acquire()
    lock.release()
    lock.release()
    assert is_free(path)
    lock.close()


def test_it_is_reentrant(path: str):
    """The last release frees it."""
    lock = FileLock(path)
    for _ in range(50):
        lock.acquire(timeout_s=0)
    for _ in range(49):
        lock.release()
        assert not is_free(path)
    lock.release()
    assert is_free(path)
    lock.close()


def test_two_locks_of_one_file_exclude_each_other(path: str):
    """Also within a process: each has its own descriptor."""
    one, two = FileLock(path), FileLock(path)
    one.acquire()
    assert not two.try_acquire()
    two.release()
    assert not is_free(path)
    with pytest.raises(LockTimeout):
        two.acquire(timeout_s=0.005)
    one.release()
    assert two.try_acquire()
    two.release()
    one.close()
    two.close()


def test_threads_exclude_each_other(path: str):
    """Through one object; the flock alone would not keep them apart."""
    lock = FileLock(path)
    inside = []
    overlaps = []

    def work() -> None:
        for _ in range(300):
            try:
                lock.acquire()
                inside.append(1)
                if len(inside) > 1:
                    overlaps.append(1)
                inside.pop()
            finally:
                lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []
    assert is_free(path)
    lock.close()


def test_another_thread_cannot_release_it(path: str):
    """Its release does nothing, its try fails."""
    lock = FileLock(path)
    lock.acquire()
    outcome: list[object] = []

    def intrude() -> None:
        lock.release()
        outcome.append(lock.try_acquire())
        outcome.append(lock.held)
        try:
            lock.acquire(timeout_s=0.005)
        except LockTimeout as e:
            outcome.append(e)

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert outcome[:2] == [False, False]
    assert isinstance(outcome[2], LockTimeout)
    assert not is_free(path)
    lock.release()
    lock.close()


def test_a_timeout_names_the_lock_and_its_holder(path: str):
    """Enough to find out who is stuck; nothing stays locked behind it."""
    holder = FileLock(path)
    holder.acquire()
    lock = FileLock(path, describe=lambda: "process 17, thread 4")
    with pytest.raises(LockTimeout) as caught:
        lock.acquire(timeout_s=0)
    assert path in str(caught.value)
    assert "held by process 17, thread 4" in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert not lock.held
    lock.release()
    assert not is_free(path)
    holder.release()
    assert lock.try_acquire()
    lock.release()
    holder.close()
    lock.close()


def test_closing(path: str):
    """Frees what this thread holds; afterwards the lock cannot be taken."""
    lock = FileLock(path)
    lock.acquire()
    lock.acquire()
    lock.close()
    assert is_free(path)
    lock.close()
    lock.release()
    with pytest.raises(ValueError, match="is closed"):
        lock.acquire()
    with pytest.raises(ValueError, match="is closed"):
        lock.try_acquire()
    assert not lock.held


def test_a_closed_lock_leaves_its_descriptor_number_alone(path: str, tmp_path):
    """The number may belong to another lock by now."""
    lock = FileLock(path)
    number = lock.fd
    lock.close()
    other = FileLock(tmp_path / "other")
    assert other.fd == number
    other.acquire()
    lock.release()
    assert not is_free(str(tmp_path / "other"))
    other.release()
    other.close()


@pytest.mark.parametrize("attempt", [FileLock.acquire, FileLock.try_acquire])
def test_a_broken_descriptor_is_reported(path: str, attempt):
    """An error that is no contention comes out, and the thread lock is free again."""
    lock = FileLock(path)
    os.close(lock.fd)
    with pytest.raises(OSError, match="other code of this process closed") as caught:
        attempt(lock)
    assert caught.value.errno == errno.EBADF
    assert not lock.held
    lock.release()
    lock.fd = os.open(path, os.O_RDWR)
    lock.close()


def test_a_child_of_a_fork_opens_its_own(path: str):
    """It holds nothing, frees nothing of the parent's, and locks through a descriptor of its own."""
    lock = FileLock(path)
    lock.acquire()

    def child() -> object:
        lock.release()
        state = [lock.held, lock.fd, lock.try_acquire(), is_free(path)]
        try:
            lock.acquire(timeout_s=0.005)
        except LockTimeout:
            state.append("timeout")
        return state

    assert in_child(child) == "[False, -1, False, False, 'timeout']"
    assert lock.held
    assert not is_free(path)
    lock.release()

    def free_child() -> object:
        lock.acquire()
        state = [lock.held, is_free(path)]
        lock.release()
        return [*state, is_free(path)]

    assert in_child(free_child) == "[True, False, True]"
    lock.close()
    assert in_child(lambda: lock.fd) == str(file_lock._CLOSED)


def test_a_child_whose_lock_file_is_gone(path: str):
    """The topic was deleted meanwhile: the error says so, and nothing stays locked."""
    lock = FileLock(path)
    os.unlink(path)

    def child() -> object:
        outcomes = []
        for attempt in (lock.acquire, lock.try_acquire):
            try:
                attempt()
            except AlreadyClosed:
                outcomes.append(lock.held)
        return outcomes

    assert in_child(child) == "[False, False]"
    lock.close()


def test_lock_files_are_private(path: str):
    """Empty, for this user alone, and not passed on to programs."""
    lock = FileLock(path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(path).st_size == 0
    assert not os.get_inheritable(lock.fd)
    lock.close()


def test_keeping_threads_out_does_not_wait_for_other_holders(tmp_path):
    """What only this process can see is guarded by the thread lock alone, whoever holds the flock."""
    elsewhere, here = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    try:
        elsewhere.acquire()
        try:
            here.keep_threads_out(0.0)
            assert here.held
        finally:
            here.release()
        assert not here.held
        assert not here.try_acquire()
    finally:
        elsewhere.release()
    here.close()
    elsewhere.close()


def test_a_lock_at_rest_keeps_no_descriptor(path: str):
    """Nobody being inside, the descriptor goes; the next hold opens the file again and locks it."""
    lock = FileLock(path)
    rested = []
    lock.close_others = lambda: rested.append(lock.held)
    lock.close_descriptor()
    lock.close_descriptor()
    assert lock.fd < 0 and rested == [True, True]
    assert not lock.held
    try:
        lock.acquire()
        assert lock.fd >= 0 and not is_free(path)
    finally:
        lock.release()
    assert is_free(path)
    lock.close_descriptor()
    try:
        assert lock.try_acquire()
    finally:
        lock.release()
    assert is_free(path)
    lock.close()
    lock.close_descriptor()
    with pytest.raises(ValueError, match="closed"):
        lock.acquire()


def test_a_lock_does_not_rest_while_somebody_is_inside(path: str):
    """Neither the thread that asks nor another: the hold stays, and so does the descriptor."""
    lock = FileLock(path)
    try:
        lock.acquire()
        lock.close_descriptor()
        assert lock.held and lock.fd >= 0 and not is_free(path)
        other = threading.Thread(target=lock.close_descriptor)
        other.start()
        other.join()
        assert lock.held and lock.fd >= 0 and not is_free(path)
    finally:
        lock.release()
    assert is_free(path)
    lock.close()


def test_entering_alone(path: str):
    """Only where no thread is inside, and never seen by other processes."""
    lock = FileLock(path)
    try:
        assert lock.enter_alone()
        assert is_free(path)
        try:
            assert not lock.enter_alone()
        finally:
            lock.release()
        assert lock.held
    finally:
        lock.release()
    assert not lock.held
    lock.close()


def test_a_child_of_a_fork_is_not_in_what_a_thread_of_the_parent_was_in(path: str):
    """The child waits for the parent's hold, and not for a thread that it does not have."""
    lock = FileLock(path)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        lock.acquire()
        inside.set()
        leave.wait(10)
        lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)

    def child() -> bool:
        with pytest.raises(LockTimeout):
            lock.acquire(0)
        leave_parent()
        lock.acquire(10)
        lock.release()
        return True

    reader, writer = os.pipe()

    def leave_parent() -> None:
        os.write(writer, b"x")

    waiting = threading.Thread(target=lambda: (os.read(reader, 1), leave.set()))
    waiting.start()
    assert in_child(child) == "True"
    thread.join()
    waiting.join()
    os.close(reader)
    os.close(writer)
    lock.close()


def test_the_pauses_grow_with_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Hundreds of processes that wait for one lock must leave its holder the processor."""
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(file_lock.system, "monotonic", lambda: now[0])
    monkeypatch.setattr(file_lock.system, "sleep", sleep)
    holder, waiter = FileLock(str(tmp_path / "lock")), FileLock(str(tmp_path / "lock"))
    try:
        holder.acquire()
        with pytest.raises(LockTimeout):
            waiter.acquire(10.0)
    finally:
        holder.release()
    assert pauses[0] < 1e-4
    assert max(pauses[:8]) <= 1e-3
    assert max(pauses) == 0.01
    assert len(pauses) < 1200
    assert sum(pauses) == pytest.approx(10.0)
    holder.close()
    waiter.close()


def test_resting_makes_nothing_anew(path: str):
    """A process with more locks than descriptors lets one rest for each that it takes: objects that are made
    each time bring on the garbage collection of all others."""
    lock = FileLock(path)
    releases = set()
    for _ in range(4):
        assert lock.close_descriptor()
        lock.acquire()
        assert not is_free(path)
        releases.add(lock.release)
        lock.release()
        assert is_free(path)
    assert len(releases) == 1
    assert lock.close_descriptor()
    lock.keep_threads_out()
    lock.release()
    assert not lock.held
    lock.acquire()

    def held_in_child() -> bool:
        lock.release()
        return lock.held

    assert in_child(held_in_child) == "False"
    assert not is_free(path)
    lock.release()
    assert is_free(path)
    lock.close()
