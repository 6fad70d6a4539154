"""The lock between processes: an exclusive ``flock`` on an empty file that is never unlinked.

Two locks in one: a re-entrant thread lock keeps the threads of this process apart (they share the descriptor,
and so the flock), and the flock keeps the processes apart. Thread lock first, flock second; given back the
other way round. The kernel frees the flock when its holder dies, however it dies; it is never stolen from one
that lives.

Not ``lockf``: those locks vanish when any descriptor of the file is closed anywhere in the process, maps
included. Not ``portalocker`` where ``fcntl`` exists: it costs 15 us a pair against 1 us.

Several C calls as one call, which no interrupt can split.

CPython delivers signals (and so KeyboardInterrupt) between bytecodes: after every call and at the head of
every Python function. A Python function that gives a lock back can therefore be interrupted before its first
line, and the lock stays taken for ever. One call into C cannot: these helpers chain C callables with C
iterators, so that the whole chain runs inside a single bytecode. What they return takes no argument and may
be called from any number of threads.

Only callables implemented in C keep the promise (bound methods of builtin types, builtin functions, other
chains).

What a lock of a store is in a process that may only look at the store.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from operator import call

from embeddedpulsar._engine.platform import descriptors, disk, fork, nofollow, threads, timing
from embeddedpulsar._engine.platform.threads import system
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final, NoReturn

Step = Callable[[], object]
_NEVER = object()


def results(step: Step) -> Iterator[object]:
    """An endless iterator whose every ``next`` calls ``step``."""
    return iter(step, _NEVER)


def in_order(*steps: Step | Iterator[object]) -> Step:
    """One call that runs ``steps`` in order. A step that raises ends it, and the exception comes out.

    >>> from itertools import repeat
    >>> done = []
    >>> both = in_order(results(done.reverse), map(done.append, repeat(1)))
    >>> both(), done
    ((None, None), [1])
    """
    iterators = [step if isinstance(step, Iterator) else results(step) for step in steps]
    return zip(*iterators, strict=False).__next__


def choose(table: list[Iterator[object]], selector: Callable[[], int]) -> Step:
    """One call that takes the next item of ``table[selector()]`` and returns it.

    It nests two calls deeper than what is chosen, and makes no object. (An item of a tuple would: its
    arguments.)

    >>> from itertools import repeat
    >>> full = [7]
    >>> choose([repeat(None), results(full.pop)], full.__len__)()
    7
    """
    return map(next, map(table.__getitem__, results(selector))).__next__  # type: ignore[arg-type]


def store(words: memoryview, values: dict[int, int]) -> None:
    """Store words in the order of ``values``, which has their indexes; all of them, or none.

    >>> words = memoryview(bytearray(16)).cast("Q")
    >>> store(words, {1: 7, 0: 5})
    >>> words.tolist()
    [5, 7]
    """
    deque(map(words.__setitem__, values.keys(), values.values()), 0)


def count_of(lock: object) -> Callable[[], int]:
    """How often the calling thread holds the ``threading.RLock`` ``lock`` (0: not at all), as a C callable.

    CPython before 3.11.5 has no such method; there the count is a Python function, right but divisible.
    """
    counter: Callable[[], int] | None = getattr(lock, "_recursion_count", None)
    return counter if counter is not None else _CountByProbing(lock)


class _CountByProbing:
    """The count of an RLock without such a method: release until it is no longer ours, then take it back."""

    def __init__(self, lock: object) -> None:
        self._lock = lock

    def __call__(self) -> int:
        lock = self._lock
        if not lock._is_owned():  # type: ignore[attr-defined]
            return 0
        count, _ = state = lock._release_save()  # type: ignore[attr-defined]
        lock._acquire_restore(state)  # type: ignore[attr-defined]
        return int(count)


try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    HAS_FLOCK = False
else:
    HAS_FLOCK = True

# Numbers and not names: the module can be imported where ``fcntl`` is missing.
LOCK_EX_NB: Final = 6  # LOCK_EX | LOCK_NB, the same on every system that has flock
LOCK_UN: Final = 8

# What `FileLock.fd` is when it is no descriptor: to be opened again (after a fork or a rest), or never more.
_TO_REOPEN: Final = -1
_CLOSED: Final = -2

_FLAGS: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
# A section takes microseconds, so a holder that runs is often done within two switches of the
# processor. After that, pauses: 20 us doubling to 1 ms, and for long waits an eighth of the time so
# far, at most 10 ms.
_EAGER_TRIES: Final = 3
_FIRST_PAUSE_S: Final = 20e-6
_LONGEST_PAUSE_S: Final = 1e-3
_PATIENT_PAUSE_S: Final = 10e-3
_PATIENCE: Final = 8
# How often one thread may acquire a lock again: the table in `_release_of` has one place for each
# depth.
_NESTING_LIMIT: Final = 100
_CLOSE_TIMEOUT_S: Final = 10.0
_FIRST: Final = repeat(0)  # shared by all: an endless repeat has no state
_UNLOCK: Final = repeat(LOCK_UN)
_yield_cpu: Callable[[], object] = getattr(os, "sched_yield", lambda: system.sleep(0))


def portable_flock(fd: int, operation: int) -> None:
    """``fcntl.flock`` by way of portalocker, for systems without fcntl. Exclusive and non-blocking, or
    unlock."""
    import portalocker  # 20 ms, and not needed where fcntl exists

    if operation == LOCK_UN:
        portalocker.unlock(fd)
        return
    try:
        portalocker.lock(fd, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked as e:
        raise BlockingIOError(f"descriptor {fd} is locked") from e
    except portalocker.LockException as e:
        if isinstance(e.__cause__, OSError):
            raise e.__cause__ from None
        raise


flock: Callable[[int, int], object] = fcntl.flock if HAS_FLOCK else portable_flock


class FileLock:
    """An exclusive lock between threads and processes. Thread-safe; one instance per lock file and process.

    Always in this form (docs/contributing.md, "Locked sections"), so that an interrupt (KeyboardInterrupt,
    any raising signal handler) leaves nothing locked and frees no lock of another thread, whatever
    instruction it hits::

        try:
            lock.acquire()
            ...
        finally:
            lock.release()

    `release` is one call into C (see `choose`): it does nothing when this thread does not hold the lock,
    and once begun it cannot be interrupted. It nests three calls deep and makes no object, like `acquire`, so
    it ends by no RecursionError or MemoryError either.

    The thread that has the lock may acquire it again; an interrupt
    that hits the inner `acquire` may then end the outer hold as well, so a handler must not touch what
    the lock guards.

    While no thread of this process is inside, `close_descriptor` may close the descriptor; the next
    `acquire` opens it. After a fork the child closes its descriptor without unlocking (the parent's lock
    stays the parent's), holds nothing, and opens the file again on its first `acquire`.

    Args:
        path: the lock file; created empty, with the rights of its directory, if absent.
        describe: names the holder of the lock, for the text of `LockTimeout`. Runs without the
        lock.
        is_missing: whether the file is hardly there: it is made, and opened only if that finds it.

    Attributes:
        is_new: whether the file was not there; with ``is_missing``, whether this object made it for certain.
        close_others: closes what else is needed only inside; called by `close_descriptor`.
        check_reopened: raises if the path leads to another lock by now; called when the file was opened
            again.
        device, inode: the identity of the file, to notice that other code closed the descriptor.
    """

    __slots__ = (
        "__weakref__",
        "_chains",
        "_count",
        "_enter",
        "_leave",
        "_thread",
        "check_reopened",
        "close_others",
        "describe",
        "device",
        "fd",
        "inode",
        "is_new",
        "path",
        "release",
    )

    release: Callable[[], object]
    _leave: Step | None

    def __init__(
        self,
        path: str | os.PathLike[str],
        describe: Callable[[], str] | None = None,
        *,
        is_missing: bool = False,
    ) -> None:
        self.path: Final = os.fspath(path)
        self.describe = describe
        self.is_new = False
        self.close_others: Callable[[], object] | None = None
        self.check_reopened: Callable[[], object] = int
        try:
            if is_missing:
                raise FileNotFoundError
            self.fd = self._open()
        except FileNotFoundError:
            fd = disk.make_empty(self.path)
            self.fd = self._note_file(fd) if fd >= 0 else self._open()
            self.is_new = fd >= 0 or not is_missing
        self._new_thread_lock()
        self._use(self.fd)
        fork.register(self)
        descriptors.SLEEPERS.opened(self)

    def _open(self) -> int:
        what = f"cannot open the lock {self.path}"
        return self._note_file(descriptors.opening(what, nofollow.open_file, self.path, _FLAGS))

    def _note_file(self, fd: int) -> int:
        # The identity is of the open file, not of the path: `is_of` tells whether the number still
        # means this file after code of the application may have closed it.
        status = os.fstat(fd)
        self.device, self.inode = status.st_dev, status.st_ino
        return fd

    def _close_own(self, fd: int) -> None:
        if fd >= 0 and descriptors.is_of(fd, self.device, self.inode):
            os.close(fd)

    @property
    def held(self) -> bool:
        """Whether the calling thread is between `acquire` and `release`."""
        return self._count() > 0

    @property
    def is_nested(self) -> bool:
        """Whether the calling thread is there twice: in its own call, and in a signal handler."""
        return self._count() > 1

    def acquire(self, timeout_s: float = 30.0) -> None:
        """Lock; wait up to ``timeout_s`` seconds (0: do not wait), or to the `deadline` of the present call.

        About 1 us a pair with `release` when it is free. A waiter tries three times, giving up its
        time slice between, then with pauses of 20 us to 1 ms: unlike a blocking flock this ends in time, and
        in a worker thread too.

        Raises:
            LockTimeout: not free in time; names the lock and, where known, its holder.
            AlreadyClosed: what the lock is for was deleted while the lock was at rest.
            OSError: the lock file cannot be opened or locked; `DescriptorLimitError` if that is why.
        """
        # The thread lock is taken first and given back last, so threads of this process never meet in
        # ``flock``: they share the descriptor, for which it would succeed a second time.
        enter = self._enter
        if not enter(False):
            timeout_s = self._wait_for_thread(timeout_s)
        try:
            flock(self.fd, LOCK_EX_NB)
        # BlockingIOError: another process is inside. EBADF or a ValueError for a negative number: no
        # descriptor at present.
        except (OSError, ValueError) as e:
            self._acquire_slowly(e, timeout_s)

    def keep_threads_out(self, timeout_s: float = 30.0) -> None:
        """Lock against the other threads of this process only; for what no other process can see.

        Does not wait for a holder elsewhere. To be followed by `release`, or by `let_threads_in`, in a
        ``finally``.
        """
        if not self._enter(False):
            self._wait_for_thread(timeout_s)

    @property
    def let_threads_in(self) -> Step:
        """What ends `keep_threads_out` as `release` does, without a system call. To be fetched before the
        ``try``."""
        leave = self._leave
        if leave is None:
            self._leave = leave = self._release_of(None)
        return leave

    def try_acquire(self) -> bool:
        """Lock if that needs no waiting. To be followed by `release` in a ``finally`` either way."""
        if not self._enter(False):
            return False
        try:
            flock(self.fd, LOCK_EX_NB)
        except BlockingIOError:
            self._thread.release()
            return False
        except (OSError, ValueError) as e:
            self._reopen(e)
            return self._try_flock()
        return True

    def enter_alone(self) -> bool:
        """`keep_threads_out` if no thread is inside, this one included. To be followed by `release` either
        way."""
        return self._enter(False) and self._count() == 1

    def close_descriptor(self) -> bool:
        """Give the descriptor back, unless a thread is inside (then False); the next `acquire` opens the file
        again."""
        try:
            # A thread that is inside, this one included, needs the descriptor. Waiting could be a
            # deadlock: the caller may hold any lock.
            if not self.enter_alone():
                return False
            if self.close_others is not None:
                self.close_others()
            # The number is replaced before the descriptor is closed: an interrupt between the two
            # leaves a descriptor open, and never one in use that is closed.
            fd = self.fd
            if fd >= 0:
                if self._chains is None:
                    self._make_chains()
                self._use(_TO_REOPEN)
                self._close_own(fd)
            return True
        finally:
            self.release()

    def close(self) -> None:
        """Close the file, once no thread of this process holds the lock, or after 10 s. Idempotent; later
        calls raise."""
        try:
            self._enter(True, timing.left(_CLOSE_TIMEOUT_S))
            fd = self.fd
            self._use(_CLOSED)
            self._close_own(fd)
            descriptors.SLEEPERS.closed(self)
        finally:
            while self._count():
                self.release()

    def after_fork_in_child(self) -> None:
        """Leave the inherited lock to the parent, and give back what is needed only inside."""
        if self.close_others is not None:
            self.close_others()
        fd = self.fd
        # A thread lock that some thread held at the fork is never released in the child, so it is
        # replaced. Free ones are kept: thousands of new objects would make the next garbage
        # collection long.
        is_free = threads.is_free(self._thread)
        if not is_free:
            self._new_thread_lock()
        if fd >= 0:
            self._use(_TO_REOPEN)
            self._close_own(fd)  # never LOCK_UN: that would end the parent's hold
        elif not is_free:
            self._use(fd)

    def _new_thread_lock(self) -> None:
        self._thread = system.RLock()
        self._enter: Callable[..., bool] = partial(call, self._thread.acquire)
        self._count = count_of(self._thread)
        self._chains: tuple[list[int], Step, Step] | None = None
        self._leave = None

    def _use(self, fd: int) -> None:
        """Set the descriptor, and the `release` for it: of the thread lock alone if there is none."""
        # The first descriptor is bound into `release`. After the first `close_descriptor` it is read
        # from a list at each release.
        if self._chains is None:
            self.release, self.fd = self._release_of(repeat(fd) if fd >= 0 else None), fd
        else:
            place, unlock, give_back = self._chains
            place[0] = fd
            self.release, self.fd = unlock if fd >= 0 else give_back, fd

    def _make_chains(self) -> None:
        """Prepare for many rests.

        A `release` with a fixed descriptor is 50 ns faster, but to make one for each costs 4 us and 13
        objects. With 10,000 topics these bring on a garbage collection of 5 s every 40,000 messages.
        """
        place = [self.fd]
        unlock = self._release_of(map(place.__getitem__, _FIRST))
        self._chains = place, unlock, self._release_of(None)

    def _release_of(self, descriptor: Iterator[int] | None) -> Step:
        give_back = results(self._thread.release)
        # One bytecode runs: look at the depth, unlock the file, unlock the thread lock. Depth 0 (not
        # ours) does nothing; depth 1 unlocks both; deeper ones unlock the thread lock alone, because
        # the flock belongs to the outermost.
        last = give_back
        if descriptor is not None:
            last = zip(map(flock, descriptor, _UNLOCK), give_back)  # noqa: B905 - slower
        return choose([_FIRST, last, *(give_back,) * _NESTING_LIMIT], self._count)

    def _reopen(self, error: OSError | ValueError) -> None:
        """Open the file again if a fork or a rest took the descriptor; otherwise ``error`` is real. Needs the
        thread lock."""
        # The thread lock is given back on each way out by an error: the caller's ``finally`` finds it
        # free.
        if self.fd == _CLOSED:
            self._thread.release()
            raise ValueError(f"the lock {self.path} is closed") from error
        if self.fd >= 0:
            self._thread.release()
            # The number is set and not open: other code closed it. Opening again would hide that it
            # may have closed others.
            if isinstance(error, OSError) and error.errno == errno.EBADF:
                raise descriptors.lost(self.path) from error
            raise error
        fd = -1
        try:
            # Opened, then proved: while the file was closed the topic may have been deleted and made
            # again under its name.
            fd = self._open_again()
            self.check_reopened()
        except BaseException:
            if fd >= 0:
                os.close(fd)
            self._thread.release()
            raise
        self._use(fd)
        descriptors.SLEEPERS.opened(self)

    def _open_again(self) -> int:
        try:
            return self._open()
        except FileNotFoundError:
            self.check_reopened()
            raise AlreadyClosed(f"{self.path} is gone: what it locks was deleted") from None

    def _try_flock(self) -> bool:
        """Try the flock with the thread lock held; give that back on failure."""
        try:
            flock(self.fd, LOCK_EX_NB)
        except BlockingIOError:
            self._thread.release()
            return False
        return True

    def _wait_for_thread(self, timeout_s: float) -> float:
        """Take the thread lock and return what is left of ``timeout_s``."""
        timeout_s = timing.left(timeout_s)
        end = system.monotonic() + timeout_s
        if timeout_s <= 0 or not self._enter(True, min(timeout_s, threading.TIMEOUT_MAX)):
            self._give_up(timeout_s)
        return max(0.0, end - system.monotonic())

    def _acquire_slowly(self, error: OSError | ValueError, timeout_s: float) -> None:
        if not isinstance(error, BlockingIOError):
            self._reopen(error)
        # What the wait for the thread took is taken off, so both waits together end at the deadline.
        timeout_s = timing.left(timeout_s)
        began = system.monotonic()
        end = began + timeout_s
        tries, pause = 1, _FIRST_PAUSE_S
        while True:
            try:
                flock(self.fd, LOCK_EX_NB)
            except BlockingIOError:
                tries += 1
            else:
                return
            # The clock is not read during these.
            if tries < _EAGER_TRIES:
                _yield_cpu()
                continue
            now = system.monotonic()
            if now >= end:
                self._thread.release()
                self._give_up(timeout_s)
            system.sleep(min(pause, end - now))
            # In proportion to the wait so far: hundreds that try every millisecond leave the holder no CPU.
            patient = min((now - began) / _PATIENCE, _PATIENT_PAUSE_S)
            pause = min(2 * pause, max(patient, _LONGEST_PAUSE_S))

    def _give_up(self, timeout_s: float) -> NoReturn:
        # Without the lock: naming the holder reads a word that its owner may change at this moment,
        # for a text.
        holder = self.describe() if self.describe is not None else ""
        raise LockTimeout(
            f"the lock {self.path} was not free within {timeout_s:g} s"
            + (f"; it is held by {holder}" if holder else "")
            + ". A lock is never taken from a living process: let its holder continue, or end it"
        )


class RefusedLock(FileLock):
    """A lock that is always refused: everything that changes a file of a store takes a lock of it first.

    Role: in a store that is open read-only, it stands in the place of each lock. No file is opened or made.
    A change is refused where it begins, so nothing is changed by half. Callers: any thread.

    Args:
        path: of the lock file.
        refusal: makes the error of `acquire`.
    """

    __slots__ = ("_refusal",)

    def __init__(self, path: str | os.PathLike[str], refusal: Callable[[], Exception]) -> None:
        # Not that of `FileLock`, which opens the file.
        self.path = os.fspath(path)  # type: ignore[misc]
        self._refusal = refusal
        self.describe = None
        self.close_others = None
        self.check_reopened = int
        self.fd = -1
        self.device = self.inode = 0
        self.release = self._leave = int

    @property
    def held(self) -> bool:
        """False."""
        return False

    def acquire(self, timeout_s: float = 30.0) -> None:
        """Refuse.

        Raises:
            ReadOnlyStoreError: always.
        """
        raise self._refusal()

    def keep_threads_out(self, timeout_s: float = 30.0) -> None:
        """Do nothing: no thread changes anything."""

    def try_acquire(self) -> bool:
        """Return False: what is done only if the lock is free is not done."""
        return False

    def enter_alone(self) -> bool:
        """Return False."""
        return False

    def close_descriptor(self) -> bool:
        """Return True: there is no descriptor."""
        return True

    def close(self) -> None:
        """Do nothing."""

    def after_fork_in_child(self) -> None:
        """Do nothing."""
