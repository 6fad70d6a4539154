"""The threads on which a client runs message listeners."""

from __future__ import annotations

from collections.abc import Callable

from embeddedpulsar._engine.platform import fork, threads, timing
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK, Backoff
from embeddedpulsar.client.consumer.delivery import NEVER_S
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar.client.client_threads import ClientLog
    from embeddedpulsar.client.consumer.delivery import Source
    from embeddedpulsar.message import Message

_IN_A_ROW: Final = 100
_AFTER_FAILURE_S: Final = 0.1
_LONGEST_NAP_S: Final = 60.0
monotonic = SYSTEM_CLOCK.monotonic


class ListenerTarget:
    """A consumer or reader with a listener, as its listener thread uses it.

    The thread serves other consumers too, so it does not wait for locks, but retries after 1 to 50 ms.
    """

    def __init__(
        self,
        owner: object,
        listener: Callable[[Any, Any], object],
        delivery: Source,
        take: Callable[[], Message[Any]],
        log: ClientLog,
        on_failure: Callable[[Message[Any], BaseException], object] | None = None,
    ) -> None:
        self.is_paused = False
        self._on_failure: Final = on_failure
        self._owner = owner
        self._listener = listener
        self._delivery = delivery
        self._take = take
        self._log = log
        self._backoff: Final = Backoff()
        self._seen: Any = None
        self._has_armed = False

    @property
    def is_closed(self) -> bool:
        return bool(self._delivery.closed_text)

    @property
    def closed_text(self) -> str:
        return self._delivery.closed_text

    def due_in_s(self) -> float:
        """Seconds until the next delayed message is due, or a lock is tried again."""
        if self.is_paused:
            return NEVER_S
        return min(self._delivery.due_in_s(), self._backoff.pause_s or NEVER_S)

    def request_wakeup(self) -> bool:
        """Request a wake-up for the next change. Returns False if something changed since `run` began."""
        if self.is_paused or self.is_closed:
            return True
        self._has_armed = True
        try:
            return timing.try_now(self._delivery.request_wakeup, self._seen, self)
        except LockTimeout:
            self._backoff.next()
            return True
        except (AlreadyClosed, ValueError):
            if not self.is_closed:
                raise
            return True

    def end_wait(self, is_served: bool) -> None:
        if self._has_armed:
            self._has_armed = False
            self._delivery.end_wait(self._seen, self, is_served)

    def has_news(self) -> bool:
        """Whether something changed without a wake-up of this process, or a lock is to be tried again."""
        return self._has_armed and (bool(self._backoff.pause_s) or self._delivery.has_news(self._seen))

    def back_stop(self, idle_s: float) -> float:
        return self._delivery.back_stop(idle_s) if self._has_armed else NEVER_S

    def _next(self) -> Message[Any] | None:
        try:
            return self._take()
        except IndexError:
            return self._fetched()

    def _fetched(self) -> Message[Any] | None:
        try:
            message = timing.try_now(self._delivery.poll, self._take)
            self._backoff.reset()
            return message
        except LockTimeout:
            self._backoff.next()
            return None

    def run(self, most: int) -> bool:
        """Call the listener for up to ``most`` messages, and return whether there was any.

        Raises:
            AlreadyClosed: the store is closed.
        """
        try:
            self._seen = self._delivery.tail
        except AlreadyClosed:
            if not self.is_closed:
                raise
            return False  # closed meanwhile, together with its topic
        for count in range(most):
            if self.is_paused or self._delivery.closed_text:
                self.end_wait(False)
                return count > 0
            try:
                message = self._next()
            except AlreadyClosed:
                self.end_wait(False)
                return count > 0
            if message is None:
                return count > 0
            self.end_wait(True)  # the listener may run for a long time
            try:
                self._listener(self._owner, message)
            except BaseException as error:  # noqa: BLE001 - the user's code; the thread serves others too
                self._log.exception("The listener of %r failed on %r", self._owner, message)
                if self._on_failure is not None:
                    self._on_failure(message, error)
        return True


class ListenerThreads:
    """Delivers messages to listeners on ``message_listener_threads`` daemon threads, one by default.

    Role: each consumer with a listener belongs to one thread throughout, so its messages are delivered one at
    a time and in order. Consumers that share a thread take turns of 100 messages. A thread starts with its
    first consumer and sleeps when none has messages.

    Thread-safe. After a fork the child has no targets: the consumers belong to the parent.
    """

    def __init__(self, count: int, mailbox: Callable[[], Mailbox], log: ClientLog) -> None:
        self._mailbox = mailbox
        self._log = log
        self._count = count
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._lock = threads.RLock()
        self._groups: list[list[ListenerTarget]] = []
        self._next = 0
        self._closed = False

    def add(self, target: ListenerTarget) -> None:
        try:
            self._lock.acquire()
            if len(self._groups) < self._count:
                group: list[ListenerTarget] = [target]
                self._groups.append(group)
                threads.start_daemon(lambda: self._run(group), f"listener-{len(self._groups)}")
            else:
                self._groups[self._next % self._count].append(target)
                self._next += 1
        finally:
            self._lock.release()
        self.wake()

    def remove(self, target: ListenerTarget) -> None:
        """Stop delivering to a target. A running call of its listener continues."""
        try:
            self._lock.acquire()
            for group in self._groups:
                if target in group:
                    group.remove(target)
        finally:
            self._lock.release()
        target.end_wait(False)

    def wake(self) -> None:
        """Let the threads look again, after a listener was resumed or removed."""
        self._mailbox().ring_self()

    def close(self) -> None:
        """End the threads as soon as the running listeners return."""
        self._closed = True
        if self._groups:
            self.wake()

    def after_fork_in_child(self) -> None:
        self._reset()

    def _run(self, group: list[ListenerTarget]) -> None:
        active_at = monotonic()
        while not self._closed:
            try:
                if self._run_group(group, monotonic() - active_at):
                    active_at = monotonic()
            except AlreadyClosed:
                return  # the store is closed
            except BaseException:  # noqa: BLE001 - the thread serves others too
                self._log.exception("A listener thread failed, and continues")
                threads.sleep(_AFTER_FAILURE_S)

    def _run_group(self, group: list[ListenerTarget], idle_s: float) -> bool:
        """Run one turn for every consumer, or sleep once. Returns True if a listener was called."""
        mailbox = self._mailbox()
        seen = mailbox.generation
        targets = list(group)
        had_any = False
        for target in targets:
            had_any |= target.run(_IN_A_ROW)
        if had_any or self._closed or not all(target.request_wakeup() for target in targets):
            return True
        while True:
            due_s = min((target.due_in_s() for target in targets), default=NEVER_S)
            nap = min((target.back_stop(idle_s) for target in targets), default=NEVER_S)
            is_rung = mailbox.wait(seen, min(nap, due_s, _LONGEST_NAP_S)) != seen
            if is_rung or due_s <= nap or self._closed or any(target.has_news() for target in targets):
                return False
