"""The one place where a process sleeps: a generation number that rises with every ring.

Protocol of every waiter: read `generation`, look at the state waited for, announce oneself under the lock
that guards that state (`_engine.log.waiter_slots`), then ``wait(seen)``. A ring after the first step makes
the wait return.

asyncio loops that watch the doorbell of their process.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable

from embeddedpulsar import exceptions
from embeddedpulsar._engine.platform import fork, threads
from embeddedpulsar._engine.platform.doorbell import open_doorbell
from embeddedpulsar._engine.platform.lease import Liveness
from embeddedpulsar._engine.platform.threads import RLock, system
from embeddedpulsar.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Any, Final

_POLL_S: Final = 0.02
_STOP_S: Final = 1.0


class _Entry:
    """One loop and what it runs after a ring."""

    __slots__ = ("callbacks", "ident", "loop", "timer")

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.ident = threads.current_id()
        self.callbacks: list[Callable[[], None] | None] = []
        self.timer: Any = None


class LoopWaiters:
    """Registry of the loops of one mailbox.

    Each loop has the doorbell's descriptor in its own selector, so that a process whose only waiters are
    coroutines needs no thread; where there is no descriptor to watch, the loop polls every 20 ms.
    ``on_readable`` is called in the loop's thread when the descriptor is readable, and returns whether it
    published a ring. Truth value: whether any loop is registered.

    Attributes:
        entries: the registered loops.
    """

    def __init__(self, fd: int, on_readable: Callable[[], bool]) -> None:
        self._fd = fd
        self._on_readable = on_readable
        self.entries: dict[Any, _Entry] = {}

    def __bool__(self) -> bool:
        return bool(self.entries)

    def add(self, loop: Any, callback: Callable[[], None] | None) -> None:
        """Watch from ``loop``; call in its thread."""
        entry = self.entries.get(loop)
        if entry is None:
            entry = self.entries[loop] = _Entry(loop)
            if self._fd >= 0:
                loop.add_reader(self._fd, self._on_readable)
            else:
                self._poll(entry)
        entry.callbacks.append(callback)

    def remove(self, loop: Any, callback: Callable[[], None] | None) -> None:
        """Undo one `add`; call in the loop's thread."""
        entry = self.entries.get(loop)
        if entry is None:
            return
        if callback in entry.callbacks:
            entry.callbacks.remove(callback)
        if not entry.callbacks:
            self._stop(entry)

    def remove_all(self) -> None:
        """Stop watching, from any thread; waits up to a second for each running loop of another thread.

        The descriptor must be out of the loop's selector before it is closed: its number may be reused at
        once.
        """
        for entry in list(self.entries.values()):
            # A loop of this thread, or one that does not run, can be changed here. The selector of a
            # running loop belongs to its thread, so the removal is sent there and waited for.
            if entry.ident == threads.current_id() or not entry.loop.is_running():
                self._stop(entry)
                continue
            stopped = threads.Event()
            self._call(entry, self._stop, entry)
            self._call(entry, stopped.set)
            stopped.wait(_STOP_S)

    def call_all(self) -> None:
        """Run the callbacks of every loop, each in its loop."""
        for entry in list(self.entries.values()):
            self._call(entry, self._run, entry)

    def drop_all(self) -> None:
        """Drop all entries without touching the loops: they are the parent's."""
        self.entries.clear()

    def _run(self, entry: _Entry) -> None:
        for callback in list(entry.callbacks):
            if callback is not None:
                callback()

    def _call(self, entry: _Entry, function: Callable[..., object], *arguments: object) -> None:
        try:
            entry.loop.call_soon_threadsafe(function, *arguments)
        # ``call_soon_threadsafe`` of a closed loop.
        except RuntimeError:
            self.entries.pop(entry.loop, None)  # the loop was closed without saying so

    def _stop(self, entry: _Entry) -> None:
        if entry.loop.is_closed():
            self.entries.pop(entry.loop, None)
            return
        if self.entries.pop(entry.loop, None) is None:
            return
        if self._fd >= 0:
            entry.loop.remove_reader(self._fd)
        elif entry.timer is not None:
            entry.timer.cancel()

    def _poll(self, entry: _Entry) -> None:
        try:
            self._on_readable()
        finally:
            entry.timer = entry.loop.call_later(_POLL_S, self._poll, entry)


# A wait without a timeout looks once a second all the same: should an interrupt ever strike in the few
# instructions that hand leadership on, the process heals by itself.
_LONGEST_NAP_S: Final = 1.0
# The thread on the doorbell looks seldom, to mend its FIFO: each time wakes a processor that slept.
_LONGEST_LOOK_S: Final = 4.0
_TEND_S: Final = 0.9
_GLANCE_S: Final = 0.001

DeathCallback = Callable[[bytes], None]


class Doorbell(Protocol):
    """The process's own bell, by FIFO or by polling."""

    uuid: bytes
    path: str
    dead: deque[bytes]
    liveness: Liveness

    @property
    def loop_fd(self) -> int: ...
    def ring(self) -> None: ...
    def wait(self, timeout_s: float | None) -> bool: ...
    def watch(self, uuid: bytes) -> bool: ...
    def unwatch(self, uuid: bytes) -> None: ...
    def mend(self) -> bool: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class Mailbox:
    """The doorbell of this process for one store, fanned out to its threads, loops and listeners.

    Role: one thread at a time, the leader, sleeps on the doorbell; the other waiting threads (followers)
    sleep each on a gate of their own. The leader publishes a new generation, which opens all gates; a thread
    that leaves `wait` while followers remain without a leader opens one gate, and that follower leads.

    Invariants: a follower is in ``_followers`` before it last tried to lead, so a leader that goes later
    sees it. A gate is opened only by the thread that removed it from ``_followers``, hence once per
    registration. ``_leader`` is set before the leader's last look at `generation`; others publish first and
    look at ``_leader`` second, so one of the two sees the other.

    Callers: any thread; `add_loop` and `remove_loop` the loop's own thread. Callbacks (listeners,
    deaths) run in the thread that noticed, holding no lock; a thread must be waiting or a loop be added
    for them to run. After a fork the child's copy is closed; it must create its own.
    """

    def __init__(self, doorbell: Doorbell) -> None:
        self.uuid = doorbell.uuid
        self.liveness = doorbell.liveness
        self.generation = 0
        self._doorbell = doorbell
        self._numbers = itertools.count(1)
        self._leadership = RLock()  # re-entrant: a signal handler may wait while its thread leads
        self._leader: object | None = None
        self._followers: dict[Any, None] = {}
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._watchers: dict[bytes, list[DeathCallback]] = {}
        self._deaths = doorbell.dead
        self._lock = RLock()  # guards _watchers and _listeners
        self._loops = LoopWaiters(doorbell.loop_fd, self._on_loop_ready)
        self._tended_at = system.monotonic()
        self._looked_at = -_GLANCE_S
        self._closed = False
        self._forked = False
        fork.register(self)

    @classmethod
    def create(cls, clients_dir: str | os.PathLike[str], roll: str = "") -> Mailbox:
        """Make this process's doorbell in ``clients_dir`` and take its lease, see `open_doorbell`. On the
        file ``roll`` it locks a byte as well, see `Liveness`.
        """
        return cls(open_doorbell(os.fspath(clients_dir), roll))

    def __repr__(self) -> str:
        state = "forked" if self._forked else "closed" if self._closed else "open"
        return (
            f"<Mailbox {self.uuid.hex()} {state} generation={self.generation} waiting={len(self._followers)}>"
        )

    # -- waiting -----------------------------------------------------------------------------------

    def wait(self, seen_generation: int, timeout_s: float | None = None) -> int:
        """Sleep until `generation` differs from ``seen_generation``.

        Interruptible: a signal handler that raises ends the wait at once.

        Returns:
            The generation now; equal to ``seen_generation`` after the timeout.

        Raises:
            AlreadyClosed: the mailbox is closed, or belongs to the parent of this forked process.
        """
        if self._closed:
            raise exceptions.AlreadyClosed(self._why_closed())
        if self.generation != seen_generation:
            return self.generation
        deadline = None if timeout_s is None else system.monotonic() + timeout_s
        # A gate is a lock that is acquired twice: the second acquire sleeps until another thread
        # releases it.
        gate = system.allocate_lock()
        try:
            gate.acquire()
            # Order matters: first among the followers, then the look at `generation`, then the try to
            # lead. A ring after the first step finds the gate and opens it.
            # The loops end with an assignment: docs/concurrency.md, "Where a signal is handled", says why.
            is_over = False
            while not is_over:
                self._followers[gate] = None
                is_over = (
                    self.generation != seen_generation
                    or self._lead(gate, seen_generation, deadline)
                    or (not gate.acquire(timeout=_nap(deadline)) and _is_past(deadline))
                )
        # A thread that leaves must not leave sleepers without a leader: it opens one gate, and that
        # thread leads.
        finally:
            self._followers.pop(gate, None)
            if self._followers and self._leader is None:
                self._wake_one_follower()
        if self._deaths:
            self._announce_deaths()
        return self.generation

    def _lead(self, gate: object, seen: int, deadline: float | None) -> bool:
        """Sleep on the doorbell for all waiters; False at once when another thread does already."""
        before = None
        # Not waited for: a thread that cannot lead sleeps on its gate instead.
        try:
            if not self._leadership.acquire(blocking=False):
                return False
            self._followers.pop(gate, None)
            # Ours now: what stands there is None, or the wait that a signal handler of this thread is
            # inside.
            before, self._leader = self._leader, gate
            # A ring ends this loop, whichever thread published it.
            is_past = False
            while not is_past and self.generation == seen and not self._closed:
                self._poll_doorbell(_nap(deadline, _LONGEST_LOOK_S))
                self._looked_at = system.monotonic()
                if self._looked_at - self._tended_at >= _TEND_S:
                    self.tend()
                is_past = _is_past(deadline)
            return True
        except BaseException:
            self._publish()  # the bell may have been emptied a moment before the interrupt
            raise
        finally:
            if self._leader is gate:
                self._leader = before
            self._leadership.release()

    def _poll_doorbell(self, timeout_s: float | None) -> bool:
        """One look at the doorbell; publishes what it saw."""
        try:
            if not self._doorbell.wait(timeout_s):
                return False
        except (OSError, ValueError):
            if self._closed:
                return False  # a signal handler closed us in the middle of this very look
            raise
        self._publish()
        return True

    def glance(self) -> None:
        """Notice rings and deaths without sleeping: for a thread that finds nothing to do and does not wait.

        Some 2 us, and 0.2 us within a millisecond of the last look: a thread that receives message after
        message has just looked when it woke. Does nothing while another thread sleeps on the doorbell, which
        sees to it at once.
        """
        if self._closed or self._leader is not None or 0 <= system.monotonic() - self._looked_at < _GLANCE_S:
            return
        try:
            if not self._leadership.acquire(blocking=False):
                return
            self._poll_doorbell(0)
            self.tend()
        finally:
            self._leadership.release()
            # As after a wait: a thread that came meanwhile and could not lead sleeps on a gate.
            if self._followers and self._leader is None:
                self._wake_one_follower()
        if self._deaths:
            self._announce_deaths()

    def tend(self) -> None:
        """Make the FIFO again if it was removed; checks once a second at most."""
        # `_tended_at` is stored before the work, so that of two threads one does it. Both doing it
        # would be right, too.
        now = self._looked_at = system.monotonic()
        if now - self._tended_at < _TEND_S or self._closed:
            return
        self._tended_at = now
        if self._doorbell.mend():
            self._publish()

    def _publish(self) -> None:
        # Two threads may publish at once: every number is new, so a thread that has seen an older one sees a
        # difference.
        self.generation = next(self._numbers)
        # The number is stored before the gates are opened: a thread that wakes sees a difference and
        # does not sleep again.
        followers = self._followers
        while followers:
            self._wake_one_follower()
        if self._loops.entries:
            self._loops.call_all()
        for listener in self._listeners:  # each call more is a microsecond of a process that has just slept
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - the other listeners are called
                _log_failed(listener, error)

    def _wake_one_follower(self) -> None:
        try:
            gate, _ = self._followers.popitem()
        except KeyError:
            return  # it left meanwhile
        gate.release()

    # -- ringing -----------------------------------------------------------------------------------

    def ring_self(self) -> None:
        """Wake every waiter of this process. Cheap when no thread sleeps on the doorbell."""
        if self._closed:
            return
        # No thread sleeps on the doorbell, so no byte is needed. A thread may have begun to lead
        # since: it saw the old number, and needs the byte. `_leader` is set before its last look, so
        # one of the two sees the other.
        if not self._is_led() and not self._loops:
            self._publish()
            if not self._is_led():
                return
        self._doorbell.ring()

    def _is_led(self) -> bool:
        return self._leader is not None

    # -- asyncio -----------------------------------------------------------------------------------

    def add_loop(self, loop: Any, callback: Callable[[], None] | None = None) -> None:
        """Let an asyncio loop watch the doorbell; ``callback`` runs in it after every ring.

        Call in the loop's thread, and undo it there before `close`.
        """
        self._loops.add(loop, callback)

    def remove_loop(self, loop: Any, callback: Callable[[], None] | None = None) -> None:
        self._loops.remove(loop, callback)

    def _on_loop_ready(self) -> bool:
        """Handle a readable doorbell in the loop. Leaves it to the leader, when there is one: it calls the
        loops."""
        if self._closed or self._is_led():
            return False
        seen = self._poll_doorbell(0)
        if seen and self._is_led():
            self._doorbell.ring()  # it began to lead while we emptied the bell it sleeps on
        if self._deaths:
            self._announce_deaths()
        return seen

    # -- listeners and deaths ----------------------------------------------------------------------

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener()`` after every ring, in the thread that noticed. It must be quick and must not
        block."""
        try:
            self._lock.acquire()
            self._listeners = (*self._listeners, listener)
        finally:
            self._lock.release()

    def remove_listener(self, listener: Callable[[], None]) -> None:
        try:
            self._lock.acquire()
            self._listeners = tuple(kept for kept in self._listeners if kept != listener)
        finally:
            self._lock.release()

    def watch(self, uuid: bytes, callback: DeathCallback) -> bool:
        """Call ``callback(uuid)`` once when the process that holds lease ``uuid`` is gone.

        Returns:
            False when it is gone already; the callback still runs, from the next wait.

        Raises:
            OSError: it cannot be watched (EMFILE); that says nothing about its life.
        """
        if self._closed:
            raise exceptions.AlreadyClosed(self._why_closed())
        try:
            self._lock.acquire()
            # Registered in the same section as the watch: a death that is noticed between the two
            # would find no callback.
            is_alive = self._doorbell.watch(uuid)
            self._watchers.setdefault(uuid, []).append(callback)
            if is_alive:
                return True
        finally:
            self._lock.release()
        self._deaths.append(uuid)
        self.ring_self()
        return False

    def unwatch(self, uuid: bytes, callback: DeathCallback | None = None) -> None:
        """Withdraw one callback, or all of ``uuid``."""
        try:
            self._lock.acquire()
            callbacks = self._watchers.get(uuid, [])
            if callback in callbacks:
                callbacks.remove(callback)
            if callback is None or not callbacks:
                self._watchers.pop(uuid, None)
                self._doorbell.unwatch(uuid)
        finally:
            self._lock.release()

    def _announce_deaths(self) -> None:
        # Taken one by one: a second thread that announces at the same time gets others, and none is
        # announced twice.
        while True:
            try:
                uuid = self._deaths.popleft()
            except IndexError:
                return
            try:
                self._lock.acquire()
                callbacks = self._watchers.pop(uuid, [])
            finally:
                self._lock.release()
            for callback in callbacks:
                try:
                    callback(uuid)
                except Exception as error:  # noqa: BLE001 - the other callbacks are called
                    _log_failed(callback, error)

    # -- ends --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wake all waiters, remove the FIFO, give up the lease. Idempotent. Peers see it as the process's
        death."""
        if self._closed:
            return
        # The loops go first, while they can still be woken. Then no new wait begins, those under way
        # end, and the leader is out of the descriptor before it is closed.
        self._loops.remove_all()
        self._closed = True
        self._doorbell.ring()
        self._publish()
        try:
            self._leadership.acquire(timeout=_LONGEST_NAP_S)  # no thread may sleep on a closed descriptor
            self._doorbell.close()
        finally:
            self._leadership.release()

    def after_fork_in_child(self) -> None:
        """Forget the parent's FIFO without touching it."""
        if self._forked:
            return
        self._forked = True
        if not self._closed:
            self._closed = True
            self._doorbell.abandon()
        self._leadership = RLock()
        self._lock = RLock()
        self._leader = None
        self._followers = {}
        self._watchers = {}
        self._deaths.clear()
        self._loops.drop_all()

    def _why_closed(self) -> str:
        if self._forked:
            return "this mailbox belongs to the parent of this forked process; open the store anew here"
        return "the store was closed in this process"


def _nap(deadline: float | None, most_s: float = _LONGEST_NAP_S) -> float:
    if deadline is None:
        return most_s
    return min(max(deadline - system.monotonic(), 0.0), most_s)


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and system.monotonic() >= deadline


def _log_failed(function: object, error: Exception) -> None:
    import logging

    logger = logging.getLogger("embeddedpulsar")
    logger.error("A wake-up callback failed: %r", function, exc_info=error)
