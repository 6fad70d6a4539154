"""Waiting for messages, shared by consumers and readers.

Messages fetched ahead for the application. Hot: `fill` makes the messages of whole batches.

Entries that a consumer is given a second time, and what it acknowledged of them meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.topic_control import DELETED, is_deleted
from embeddedpulsar._engine.log.waiter_slots import OTHERS_POLL_S
from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, NotAllowedError, StoreGoneError, Timeout
from embeddedpulsar.message import Message, Origin, is_skipped, messages_left, messages_of, size_of
from embeddedpulsar.records import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar._engine.format.entry_decoder import RawPosition
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar._engine.store.policies.resource_groups import RateLimiter
    from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker


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
            generation = mailbox.generation
            while True:
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
                generation = mailbox.generation  # before the tail: a ring after the look is seen
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


# The size of a processor cache: with a queue eight times as large, reading payloads of 1 MiB took three times
# as long (benchmarks/workloads/publish_1MiB.py).
_FETCH_BYTES: Final = 1 << 20

_AT_ONCE: Final = 256
"""Messages of batches that exist at a time. Each is an object of the garbage collector, which looks at all of
the youngest whenever there are 700: with a thousand at a time that took 6 % of receiving."""

VOID: Final = -1
"""The number of an entry whose messages are void; see `ReceiverQueue.drop`."""

Fetch = Callable[[int, int], "list[EntryView]"]


class ReceiverQueue:
    """A bounded queue between the log and the application.

    Role: consumers and readers take from `messages` without a lock (one atomic call each). A caller that
    finds it empty fills it under `lock`: from fetched batches whose messages are not made yet, else from the
    log. Nothing is fetched in the background, because reading a memory map is fast.

    Invariants: at most ``capacity`` messages are fetched ahead, plus the rest of the last batch, because
    entries are fetched whole; and no more than 1 MiB of payload, plus the last entry. While there are batches
    without messages, they follow all of `messages` in the log.

    Attributes:
        messages: those made and not taken.
        batches: entries that were fetched, and whose messages are not made yet or not all.
        pop_message: removes and returns the first message; raises IndexError when there is none.
        fetched: number of messages put into `messages` so far, without those that were dropped.
        fetched_bytes: the size of their payloads.
        origin: of the messages.
        prepare: called with each entry of several messages that is fetched; or None.
        voided: how often all fetched messages were dropped.
        limiter: the rates that fetching keeps; None without any.
        repeated: tells which entries may have been delivered before. Their messages are made one by one, when
            they are asked for, without those that were acknowledged meanwhile. None if there are none.
    """

    __slots__ = (
        "__weakref__",
        "_capacity",
        "_fetch",
        "_fetch_all",
        "_has_repeated",
        "_is_filling",
        "_part",
        "_start",
        "batches",
        "fetched",
        "fetched_bytes",
        "limiter",
        "lock",
        "messages",
        "origin",
        "pop_message",
        "prepare",
        "repeated",
        "voided",
    )

    def __init__(
        self,
        fetch: Fetch,
        capacity: int,
        origin: Origin,
        prepare: Callable[[EntryView], None] | None = None,
    ) -> None:
        self.lock = threads.RLock()
        self.messages: deque[Message[Any]] = deque()
        self.batches: deque[EntryView] = deque()
        # A batch, and how many of its messages are made. That it is not the first any more says that all are:
        # an interrupt between two steps can so make messages twice, but none is left out.
        self._part: tuple[EntryView | None, int] = (None, 0)
        self.pop_message = self.messages.popleft
        self.fetched = 0
        self.fetched_bytes = 0
        self.voided = 0
        self._fetch = self._fetch_all = fetch
        self.limiter: RateLimiter | None = None
        self.repeated: RepeatedEntries | None = None
        self._has_repeated = False  # whether some of `batches` may have been delivered before
        self._is_filling = False
        self._capacity = max(1, capacity)
        self.origin = origin
        self.prepare = prepare
        self._start: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        """Number of messages fetched ahead, with those that are void."""
        return len(self.messages) + self._unmade

    @property
    def _unmade(self) -> int:
        later = list(self.batches)  # a copy in one step: other threads may take from it
        view, part_end = self._part
        if later and later[0] is view:
            return sum(map(_count_left, later)) - _count_left(view, part_end)
        return sum(map(_count_left, later))

    @property
    def ahead(self) -> int:
        """Number of valid messages fetched ahead. Slower than ``len``."""
        return len(self.valid()) + self._unmade

    @property
    def is_dry(self) -> bool:
        """Whether no message is fetched ahead."""
        return not self.messages and not self.batches

    def start_within(self, ledger: int, entry: int, index: int) -> None:
        """Deliver an entry from message ``index`` on, even if it is fetched again. Call under the lock."""
        self._start = (ledger, entry, index) if index > 0 else None

    def first_within(self, ledger: int, entry: int) -> int:
        """Return the index of the first message of an entry to deliver; 0 for all. Call under the lock."""
        start = self._start
        return start[2] if start is not None and start[:2] == (ledger, entry) else 0

    def limit_by(self, limiter: RateLimiter | None) -> None:
        """Keep rates from the next fetch on; None for none. In any thread; takes no lock."""
        fetch = self._fetch_all

        def fetch_some(most: int, most_bytes: int) -> list[EntryView]:
            assert limiter is not None
            try:
                room, size = limiter.reserve(most, most_bytes)
            except ValueError:  # the words are not mapped any more: the fetch says why
                return fetch(most, most_bytes)
            if not room:
                return []
            views: list[EntryView] = []
            try:
                views = fetch(room, size)
            finally:
                room -= sum(view.count for view in views)
                limiter.give_back(room, size - sum(view.offsets[-1] - view.offsets[0] for view in views))
            return views

        self.limiter = limiter
        self._fetch = fetch if limiter is None else fetch_some

    @property
    def is_throttled(self) -> bool:
        """Whether a rate was reached, and there is no room yet."""
        return self.limiter is not None and self.limiter.is_waiting

    def fill(self) -> bool:
        """Have the next messages in `messages`, and return whether there are any. Call under the lock.

        Raises:
            NotAllowedError: called by a signal handler during a call in the same thread.
        """
        if self._is_filling:
            raise NotAllowedError(
                "a signal handler (or finalizer) received while its own thread was fetching messages for the "
                "same consumer or reader; let the handler set a flag instead"
            )
        messages = self.messages
        if messages:
            return True
        try:
            self._is_filling = True
            # No condition at the end: on CPython 3.14 the jump back behind one is not covered by the
            # `finally`, and Ctrl-C is handled in jumps back.
            while not messages and (self.batches or self._fetch_more()):
                self._make()
        finally:
            self._is_filling = False
        return bool(messages)

    def _fetch_more(self) -> bool:
        """Fetch the next entries; returns whether there are any."""
        if self.repeated is not None:
            self.repeated.begin_fetch()
        messages, later = self.messages, self.batches
        new: Any = object.__new__
        prepare = self.prepare
        views = self._fetch(self._capacity, _FETCH_BYTES)
        origin = self.origin  # after the fetch, which may find that the subscription was moved
        self._has_repeated = self.repeated is not None and self.repeated.end_fetch(views)
        if self._has_repeated:
            for view in views:
                if prepare is not None:
                    prepare(view)
            later.extend(views)
            return True
        size = 0
        for view in views:
            if view.count == 1 and view.skip is None and not later:
                message = new(Message)  # as `messages_of`
                message._entry = view
                message._index = 0
                message._origin = origin
                messages.append(message)
                start, end = view.offsets
                size += end - start
                continue
            if prepare is not None:
                prepare(view)
            later.append(view)
        self.fetched += len(views) - len(later)
        self.fetched_bytes += size
        return bool(views)

    def _make(self) -> None:
        """Make messages of the fetched batches, as many as `_AT_ONCE` allows."""
        messages, later = self.messages, self.batches
        while later and (room := _AT_ONCE - len(messages)) > 0:
            view = later[0]
            if self._has_repeated and self.repeated is not None and self.repeated.may_be_repeated(view):
                if messages:
                    return
                self._make_one(view, self.repeated)
                continue
            if view.skip is None and not self.first_within(view.ledger_id, view.entry_id):
                part, part_end = self._part
                first = part_end if part is view else 0
                end = min(first + room, view.count)
                messages.extend(messages_of(view, first, end, self.origin))
                self._part = view, end
                offsets = view.offsets
                self.fetched_bytes += offsets[end] - offsets[first]
                self.fetched += end - first
                if end < view.count:
                    return
            else:
                rest = self._some(view)
                messages.extend(rest)
                self.fetched_bytes += size_of(rest)
                self.fetched += len(rest)
            later.popleft()

    def _make_one(self, view: EntryView, repeated: RepeatedEntries) -> None:
        """Make the next message of the first batch that is not acknowledged, if there is one."""
        part, part_end = self._part
        first = part_end if part is view else self.first_within(view.ledger_id, view.entry_id)
        if part is not view and first and view.acked is not None:
            view.acked[:first] = b"\x01" * min(first, view.count)
        for index in range(first, view.count):
            if not is_skipped(view.skip, index) and not repeated.has_acknowledged(view, index):
                self.messages.append(Message(view, index, self.origin))
                self._part = view, index + 1  # last: see `_part`
                self.fetched += 1
                self.fetched_bytes += view.offsets[index + 1] - view.offsets[index]
                if index + 1 < view.count:
                    return
                break
        self.batches.popleft()

    def put_back(self, message: Message[Any]) -> None:
        """Put a message that was taken back at the front. Call under the lock."""
        view: Any = message._entry
        repeated = self.repeated
        if repeated is None or self.messages or not repeated.may_be_repeated(view):
            self.messages.appendleft(message)
            return
        # It is made again when it is asked for, if it is not acknowledged then.
        if not (self.batches and self.batches[0] is view):
            self.batches.appendleft(view)
        self._part = view, message._index
        self._has_repeated = True
        self.fetched -= 1
        self.fetched_bytes -= size_of([message])

    def has_ahead(self, ledger: int, entry: int, index: int) -> bool:
        """Whether a message may be among the fetched ones: it is not before the first of them."""
        try:
            message = self.messages[0]
            view: Any = message._entry
            first = message._index
        except IndexError:
            try:
                view, first = self.batches[0], 0
            except IndexError:
                return False
        return (view.ledger_id, view.entry_id, first) <= (ledger, entry, index)

    def leave_out(self, is_acknowledged: Callable[[EntryView, int], bool]) -> None:
        """Remove fetched messages that were acknowledged before they were delivered. Call under the lock."""
        removed = []
        for message in self.valid():
            view: Any = message._entry
            if is_acknowledged(view, message._index):
                with suppress(ValueError):  # another thread has just taken it
                    self.messages.remove(message)  # by identity, in one step
                    removed.append(message)
        self.fetched -= len(removed)
        self.fetched_bytes -= size_of(removed)
        for view in list(self.batches):
            indexes = [index for index in range(view.count) if is_acknowledged(view, index)]
            if not indexes:
                continue
            part, part_end = self._part
            skip = bytearray(is_skipped(view.skip, index) for index in range(view.count))
            for index in indexes:
                skip[index] = 1
            if part is view:  # with `skip` the rest of an entry is made at once, by `_some`
                skip[:part_end] = b"\x01" * part_end
            view.skip = skip

    def clear(self) -> None:
        """Drop the fetched messages. Call under the lock."""
        self.voided += 1
        self.batches.clear()
        if not self.messages:
            return
        dropped = self.valid()
        self.messages.clear()
        self.fetched -= len(dropped)
        self.fetched_bytes -= size_of(dropped)

    def drop(self, entries: Set[tuple[int, int]]) -> None:
        """Make the messages of some entries void. Call under the lock.

        They stay in the queue, because `pop_message` needs no lock, and are skipped when they are taken.
        """
        dropped = []
        for message in self.valid():
            entry: Any = message._entry
            if (entry.ledger_id, entry.entry_id) in entries:
                dropped.append(message)
        for message in dropped:
            entry = message._entry
            entry.number = VOID
        self.fetched -= len(dropped)
        self.fetched_bytes -= size_of(dropped)
        for view in list(self.batches):
            if (view.ledger_id, view.entry_id) in entries:
                self.batches.remove(view)

    def valid(self) -> list[Message[Any]]:
        """Return the items of `messages` that are not void."""
        return [message for message in list(self.messages) if not _is_void(message)]

    def after_fork_in_child(self) -> None:
        self.lock = threads.RLock()
        self._is_filling = False
        self.messages.clear()
        self.batches.clear()

    def _some(self, view: EntryView) -> list[Message[Any]]:
        """Return the messages of an entry that are not acknowledged, from the start position on."""
        first = self.first_within(view.ledger_id, view.entry_id)
        if first and view.acked is not None:
            view.acked[:first] = b"\x01" * min(first, view.count)
        return messages_left(view, view.skip, self.origin, first)


def _is_void(message: Message[Any]) -> bool:
    entry: Any = message._entry
    return bool(entry.number == VOID)


def _count_left(view: EntryView, end: int | None = None) -> int:
    """Count the messages of an entry that are not acknowledged, up to index ``end``."""
    skip, count = view.skip, view.count if end is None else end
    return count if skip is None else sum(not is_skipped(skip, i) for i in range(count))


_BEFORE_ALL: Final = (-1, -1)


class RepeatedEntries:
    """Tells which fetched entries may have been delivered before, and which of their messages to leave out.

    Role: the application may hold a message of such an entry, and acknowledge it while the entry is on its
    way for the second time, when the subscription cannot leave it out any more. So the messages of these
    entries are made one by one, when they are asked for, and each is compared with the acknowledgements first
    (`ReceiverQueue`). Other entries are delivered for the first time, and cannot have been acknowledged,
    except by an id, for which `ConsumerCore.acknowledge` removes them from the queue.

    Invariants: made when entries are given back, before any is fetched again. Called under the lock of the
    queue.

    Args:
        acks: what the consumer acknowledged.
        counts: whether the subscription counts the deliveries of an entry; if not, its entries come in order.
        last_handed: returns the last entry that the application got, where it is known.
    """

    __slots__ = ("_acks", "_before", "_counts", "_last_handed")

    def __init__(
        self, acks: AckGroupingTracker, counts: bool, last_handed: Callable[[], EntryView | None]
    ) -> None:
        self._acks = acks
        self._counts = counts
        self._last_handed = last_handed
        self._before: RawPosition = _BEFORE_ALL

    def expect_before(self, position: RawPosition) -> None:
        """Note that entries before ``position`` may have been delivered."""
        self._before = max(self._before, position)

    def note_handed(self) -> None:
        last = self._last_handed()
        if last is not None:
            self.expect_before((last.ledger_id, last.entry_id + 1))

    def may_be_repeated(self, view: EntryView) -> bool:
        return view.redelivery_count > 0 or (view.ledger_id, view.entry_id) < self._before

    def begin_fetch(self) -> None:
        self.note_handed()
        self._acks.begin_fetch()

    def end_fetch(self, views: Sequence[EntryView]) -> bool:
        """Return whether some of the fetched entries may have been delivered before."""
        if any(map(self.may_be_repeated, views if self._counts else views[:1])):
            self._acks.take_back(views)
            return True
        self._acks.end_fetch()
        return False

    def has_acknowledged(self, view: EntryView, index: int) -> bool:
        return self._acks.has_acknowledged(view, index)
