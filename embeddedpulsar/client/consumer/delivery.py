"""Waiting for messages, shared by consumers and readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.topic_control import DELETED, is_deleted
from embeddedpulsar._engine.log.waiter_slots import OTHERS_POLL_S
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, StoreGoneError, Timeout
from embeddedpulsar.records import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar.client.consumer.receiver_queue import ReceiverQueue
    from embeddedpulsar.message import Message

_TAIL: Final = TopicWord.TAIL
_STATE: Final = TopicWord.STATE
# A wake-up may be lost if the process that should send it dies; this limits the delay.
_BACK_STOP_S: Final = 0.1
_IDLE_AFTER_S: Final = 0.1
IDLE_BACK_STOP_S: Final = 0.5
# Each such check costs half a millisecond of a processor that slept: 0.1 % of it, twice a second.
_LONG_IDLE_AFTER_S: Final = 1.0
_LONG_IDLE_BACK_STOP_S: Final = 2.0
# A change of `tail` shows such a loss. Other changes are checked less often, because that check keeps the
# processor awake for ten times as long.
_LOOK_AGAIN_S: Final = 2.0
_SHORTEST_MS: Final = 10
"""How long to wait at least for room in a rate: then there is room for several messages, if it is high."""
_LOOKS: Final = 4
"""The same in naps, for consumers that alternate between the back-stop and naps, which are longer."""
_PLACE_S: Final = 0.01
"""How long the topic is believed to be in its place."""
NEVER_S: Final = 1e9
REAL_TIME: Final = SYSTEM_CLOCK.monotonic
"""Waiting takes real time, whatever clock the store has."""

Taken = TypeVar("Taken")


def back_stop(idle_s: float) -> float:
    """Return the longest time to sleep, given the time since the last message."""
    if idle_s < _IDLE_AFTER_S:
        return _BACK_STOP_S
    return IDLE_BACK_STOP_S if idle_s < _LONG_IDLE_AFTER_S else _LONG_IDLE_BACK_STOP_S


class Hold(Protocol):
    """The part of a consumer's attachment that waiting needs."""

    @property
    def version(self) -> int: ...
    @property
    def version_word(self) -> tuple[memoryview, int]: ...
    @property
    def key(self) -> int: ...
    @property
    def shares_rings(self) -> bool: ...
    @property
    def awaits_appends(self) -> bool: ...
    def request_wakeup(self, seen_version: int) -> bool: ...
    def end_wait(self, is_served: bool) -> None: ...
    def has_news(self, has_tail_moved: bool, seen_version: int) -> bool: ...
    def back_stop(self, seconds: float) -> float: ...
    def catch_up(self) -> None: ...
    def has_read_all(self, tail: int) -> bool: ...
    def due_ms(self) -> int: ...


class Source(ABC):
    """A source of messages, and how to wait for one: one topic (`Delivery`), or several (`GroupDelivery`).

    Role: the slow path of every receive. `wait` reads the doorbell's generation first and `tail` second. Then
    it polls, asks for one ring by `request_wakeup`, and sleeps. So no change between any two steps is missed.
    Any number of threads may wait.
    """

    __slots__ = ("_leaves", "_mailbox", "_monotonic", "closed_text")

    def __init__(self, mailbox: Mailbox, monotonic: Callable[[], float] = REAL_TIME) -> None:
        self._mailbox = mailbox
        self._monotonic = monotonic
        self._leaves = True  # whether `end_wait` does anything
        self.closed_text = ""

    @property
    @abstractmethod
    def is_dry(self) -> bool:
        """Whether there is no fetched message."""

    @property
    @abstractmethod
    def tail(self) -> Any:
        """A value that changes when anything is stored or moved: see `request_wakeup`."""

    @abstractmethod
    def request_wakeup(self, seen: Any, waiter: object = None) -> bool:
        """Request a wake-up for the next change. Returns False if `tail` has changed since ``seen``.

        Args:
            seen: an earlier `tail`.
            waiter: identifies the caller until it calls `end_wait`.
        """

    @abstractmethod
    def end_wait(self, seen: Any, waiter: object, is_served: bool) -> None:
        """End the wait of the caller: other waiters get the wake-ups.

        Args:
            seen: `tail` before the caller last looked.
            waiter: as for `request_wakeup`.
            is_served: whether it got a message.
        """

    @abstractmethod
    def has_news(self, seen: Any) -> bool:
        """Whether `tail` has changed since ``seen`` without a wake-up of this process."""

    @abstractmethod
    def back_stop(self, idle_s: float) -> float:
        """Return the longest time to sleep, given the time since the last message."""

    @abstractmethod
    def due_in_s(self) -> float:
        """Seconds until the next delayed entry is due; `NEVER_S` without any."""

    @abstractmethod
    def poll(self, take: Callable[[], Message[Any]]) -> Message[Any] | None:
        """Take a message if there is one, fetching as needed; None if there is none."""

    def check_open(self) -> None:
        if self.closed_text:
            raise AlreadyClosed(self.closed_text)

    def close_in_child(self, owner: str, remedy: str) -> None:
        """After a fork: make every later call fail, because ``owner`` belongs to the parent."""
        if not self.closed_text:
            self.closed_text = f"{owner} belongs to the parent of this forked process; in the child, {remedy}"

    def wait(self, take: Callable[[], Message[Any]], timeout_ms: int | None) -> Message[Any]:
        """Take a message, waiting for it. Waits for locks count.

        Raises:
            Timeout: there was none within ``timeout_ms``. A `LockTimeout` if another process stayed in a
                lock.
            AlreadyClosed: the consumer or reader is closed, or was closed meanwhile.
        """
        # Notice the death of other processes first, for a caller that always finds messages or never waits.
        if self.is_dry:
            self._mailbox.glance()
        if timeout_ms is None:
            return self._wait(take, None)
        return timing.within(max(timeout_ms / 1000, timing.TURN_S), self._wait, take, timeout_ms)

    def poll_once(self, take: Callable[[], Message[Any]]) -> Message[Any] | None:
        """`poll` for a caller that does not wait, for locks only as long as a section takes."""
        if self.is_dry:
            self._mailbox.glance()  # as `wait`
        try:
            return timing.within(timing.TURN_S, self.poll, take)
        except LockTimeout:
            return None

    def _wait(self, take: Callable[[], Message[Any]], timeout_ms: int | None) -> Message[Any]:
        mailbox = self._mailbox
        begun = -1.0
        seen = waiter = message = None
        try:
            while True:
                generation = mailbox.generation
                seen = self.tail
                message = self.poll(take)
                if message is not None:
                    return message
                now = self._monotonic()
                if begun < 0:
                    begun, waiter = now, object()
                nap_s = self.back_stop(now - begun)
                look_at = now + (_LOOK_AGAIN_S if nap_s <= _LOOK_AGAIN_S else _LOOKS * nap_s)
                if timeout_ms is not None:
                    end = begun + timeout_ms / 1000
                    if end <= now:
                        raise Timeout(f"no message within {timeout_ms} ms") from None
                    look_at = min(look_at, end)
                if self.request_wakeup(seen, waiter):
                    self._sleep(seen, generation, begun, look_at, now, nap_s)
        finally:
            if begun >= 0 and self._leaves:
                self.end_wait(seen, waiter, message is not None)

    def _sleep(
        self, seen: Any, generation: int, idle_since: float, until: float, now: float, nap_s: float
    ) -> None:
        """Sleep until a wake-up, until a message is due, until a change is seen, or until the next check."""
        mailbox = self._mailbox
        while now < until:
            due_in_s = self.due_in_s()
            nap = min(nap_s, due_in_s, until - now)
            if mailbox.wait(generation, nap) != generation or nap == due_in_s or self.has_news(seen):
                return
            now = self._monotonic()
            nap_s = self.back_stop(now - idle_since)


class Delivery(Source):
    """The messages of one topic, by way of a queue.

    Role: `tail` is the tail of the topic and the version of the subscription; a wake-up is requested for a
    change of either. `close` wakes the waiting threads at once if its caller rings, and so does Ctrl-C.
    Signal handlers run when their signal arrives.
    """

    __slots__ = (
        "__weakref__",
        "_hold",
        "_ledger",
        "_other",
        "_others",
        "_placed_at",
        "_queue",
        "_waiters",
        "_wall_ms",
        "_words",
        "on_change",
    )

    def __init__(
        self,
        queue: ReceiverQueue,
        ledger: Log,
        mailbox: Mailbox,
        clock: Clock,
        hold: Hold | None = None,
    ) -> None:
        super().__init__(mailbox)
        self._queue = queue
        self._ledger = ledger
        self._wall_ms = clock.wall_ms
        self._hold = hold
        self._leaves = hold is not None and hold.shares_rings
        self._placed_at = -_PLACE_S
        self._waiters: set[object] = set()
        # What `tail` and `poll` read: a process that has just slept pays a microsecond for each call.
        self._words = ledger.words
        self._others, self._other = self.signs[1]
        self.on_change: Callable[[], object] = int  # for a topic of several: see `ReadyTopics`

    @property
    def is_dry(self) -> bool:
        queue = self._queue
        return not queue.messages and not queue.batches  # as `ReceiverQueue.is_dry`, without the call

    @property
    def tail(self) -> Any:
        words, others, other = self._words, self._others, self._other
        try:
            return words[_TAIL], others[other]
        except ValueError:  # one of them is closed: it says which
            hold = self._hold
            return self._ledger.tail, 0 if hold is None else hold.version

    def request_wakeup(self, seen: Any, waiter: object = None) -> bool:
        if self._queue.limiter is not None and self._queue.is_throttled:
            return True  # no change helps before the time of `due_ms`
        tail, version = seen
        hold, waits = self._hold, self._ledger.waits
        # When appends are frequent, this spins briefly before the request.
        if hold is None:
            return not waits.wait(tail, 0)
        if hold.shares_rings:
            self._waiters.add(waiter)
        if hold.awaits_appends and waits.wait(tail, 0, hold.key, self):
            return False
        return hold.request_wakeup(version)

    def end_wait(self, seen: Any, waiter: object, is_served: bool) -> None:
        hold = self._hold
        if hold is None or waiter not in self._waiters:  # a ring is not passed on if it was for each
            return
        self._waiters.discard(waiter)
        if not self._waiters:
            key = hold.key
            if key:
                self._ledger.waits.end_wait(key, self, seen[0], is_served)
            hold.end_wait(is_served)

    def has_news(self, seen: Any) -> bool:
        if self._queue.limiter is not None and self._queue.is_throttled:
            return False
        tail, version = seen
        has_moved = self._ledger.waits.has_moved(tail)
        return has_moved if self._hold is None else self._hold.has_news(has_moved, version)

    def back_stop(self, idle_s: float) -> float:
        seconds = back_stop(idle_s)
        if self._hold is not None:
            seconds = self._hold.back_stop(seconds)
        return min(seconds, OTHERS_POLL_S) if self._ledger.waits.must_poll else seconds

    @property
    def signs(self) -> tuple[tuple[memoryview, int], tuple[memoryview, int]]:
        """The two words of `tail`. For a reader, which has no second word, the first one twice."""
        tail = (self._ledger.words, int(_TAIL))
        return tail, tail if self._hold is None else self._hold.version_word

    @property
    def is_blocked(self) -> bool:
        """Whether messages wait for the end of a transaction. It changes no word: this process is rung."""
        return self._ledger.waits.is_blocked

    def forget_ended(self) -> bool:
        """Return whether messages that waited for a transaction may be there: once for each that ended."""
        return self._ledger.waits.forget_ended()

    @property
    def is_of_deleted_topic(self) -> bool:
        return is_deleted(self._ledger.words)

    def renew(self) -> None:
        """Have all waiters look again: messages may be available although the log did not change."""
        self.on_change()
        self._mailbox.ring_self()

    def due_ms(self) -> int:
        """The time at which the next delayed entry is due, or a rate has room again, in ms since the epoch; 0
        for none."""
        limiter = self._queue.limiter
        if limiter is not None and limiter.due_ns:
            return max(limiter.due_ms, self._wall_ms() + _SHORTEST_MS)
        return 0 if self._hold is None else self._hold.due_ms()

    def due_in_s(self) -> float:
        due_ms = self.due_ms()
        return max(0.0, (due_ms - self._wall_ms()) / 1000) if due_ms else NEVER_S

    @property
    def fetched(self) -> int:
        return len(self._queue)

    def is_exhausted(self, tail: int, most: int) -> bool:
        """Whether at most ``most`` messages, all fetched, were left when the tail of the log was ``tail``.

        Returns False if that needs a read of the log."""
        hold = self._hold
        return hold is not None and len(self._queue) <= most and hold.has_read_all(tail)

    def poll(self, take: Callable[[], Taken]) -> Taken | None:
        queue = self._queue
        try:
            if not queue.lock.acquire(False):
                timing.enter(queue.lock, "the queue of this consumer")
            while True:
                if self.closed_text:
                    self.check_open()
                if not queue.messages:
                    try:
                        is_gone = self._words[_STATE] & DELETED and queue.is_dry
                    except ValueError:
                        is_gone = False  # closed: the fetch says so
                    if is_gone:
                        raise AlreadyClosed(f"the topic {self._ledger.name} was deleted")
                    if not queue.fill():
                        # After a fetch that found entries there is no need: they were stored before the
                        # store was removed. Among thousands of topics the check costs as much as all else.
                        self._check_in_place()
                        return None
                    if self.closed_text:
                        self.check_open()  # again: `close` does not wait for a fetch that is blocked
                try:
                    return take()
                except IndexError:  # another thread took it, or the subscription changed
                    if queue.messages and self._hold is not None:
                        self._hold.catch_up()
        except StoreGoneError as error:
            if not is_deleted(self._ledger.words):
                raise
            self.closed_text = self.closed_text or f"the topic {self._ledger.name} was deleted"
            raise AlreadyClosed(self.closed_text) from error
        except AlreadyClosed as error:
            # Closed here; or another process detached the consumer, or deleted its subscription.
            self.closed_text = self.closed_text or str(error)
            raise
        finally:
            queue.lock.release()

    def _check_in_place(self) -> None:
        now = self._monotonic()
        if not 0 <= now - self._placed_at < _PLACE_S:
            self._ledger.check_in_place()  # 3 us
            self._placed_at = now

    def close(self, text: str) -> None:
        queue = self._queue
        self.closed_text = text
        try:
            timing.enter(queue.lock, "the queue of this consumer")
            queue.clear()
        except LockTimeout:
            queue.messages.clear()  # another thread is fetching, blocked by a process that stays in a lock
        finally:
            queue.lock.release()
