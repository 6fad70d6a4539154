"""The topics, of many, that may have messages, found without a check of all topics.

Waiting for messages of several topics at once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import compress, count
from operator import getitem, ne

from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar._engine.platform.timing import Backoff
from embeddedpulsar.client.consumer.delivery import IDLE_BACK_STOP_S, NEVER_S, REAL_TIME, Source, back_stop
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout
from embeddedpulsar.records import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar.client.consumer.delivery import Delivery
    from embeddedpulsar.message import Message


_SLICE_EVERY_S: Final = 0.1
_SLICE: Final = 1000
"""Topics whose words are compared in one check, in case a wake-up was lost with its sender."""
_ASK_EVERY_S: Final = 2.0
_ASKED: Final = 64
"""Topics that are asked for messages without a comparison of their words."""

_GONE: Final = -1
_READY: Final = 0
_DRY: Final = 1
_ARMED: Final = 2
_WORDS: Final = 2
_UNCHANGING: Final = memoryview(bytes(8)).cast("Q")
"""In place of the words of a topic that was removed."""
_FEW: Final = 32
"""Number of topics for which single comparisons are as fast as a comparison of a thousand together."""

Seen = tuple[int, int, int]
"""The two words of a topic, and how often it was touched."""


class ReadyTopics:
    """The topics of one consumer or reader, by state.

    A topic is *ready* until it is found empty, then *dry* until a wake-up is requested from it, then *armed*.
    It is ready again when one of its two words in shared memory (the tail of the log, the version of the
    subscription) differs from its value before the topic was found empty. After a wake-up of this process the
    words of all topics are compared, in C (0.1 us per topic); those of dry ones whenever no topic is ready.
    An idle consumer compares a part of them at a time: after a lost wake-up, a change is noticed within a
    second per 2,000 topics.

    Invariants: a topic with messages is ready, or its words differ from those recorded, or it was touched
    since, or its next delayed message is in `_due`. The order of steps keeps a topic ready after an
    interrupt. Any thread may call the methods. The lock is not held during a call that can wait.

    Args:
        monotonic: returns the time.
        wall_ms: returns the time of day, for delayed messages.
    """

    def __init__(self, monotonic: Callable[[], float], wall_ms: Callable[[], int]) -> None:
        self._monotonic: Final = monotonic
        self._wall_ms: Final = wall_ms
        self._lock = threads.RLock()  # guards everything below
        self._deliveries: list[Delivery | None] = []  # None: removed
        self._states: list[int] = []
        self._touches: list[int] = []
        self._views: list[memoryview] = []  # two for each topic
        self._indexes: list[int] = []
        self._seen: list[int] = []
        self._ready: deque[int] = deque()
        self._dry: dict[int, None] = {}
        self._due: list[tuple[int, int]] = []
        self._due_of: dict[int, int] = {}
        self._held: dict[int, None] = {}
        self._blocked: dict[int, None] = {}  # by a transaction, the end of which rings this process
        self._tried_again: set[int] = set()
        self._held_until = 0.0
        self._backoff: Final = Backoff()
        self._generation = -1
        self._slice_at = self._ask_at = 0.0
        self._next_slice = self._next_asked = 0
        self.changes = 0
        """Increases whenever a topic becomes ready."""

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Add topics, all of them ready."""
        try:
            self._lock.acquire()
            for delivery in deliveries:
                self._views += [_UNCHANGING] * _WORDS
                self._indexes += [0] * _WORDS
                self._seen += [0] * _WORDS
                self._touches.append(0)
                self._states.append(_GONE)
                self._deliveries.append(None)
                self.put(len(self._deliveries) - 1, delivery)
        finally:
            self._lock.release()

    def put(self, number: int, delivery: Delivery) -> None:
        """Add a topic, which is ready, under the number of one that was removed."""
        try:
            self._lock.acquire()
            self._set_signs(number, delivery.signs)
            self._touches[number] += 1  # so that what a thread saw of the other topic does not count
            self._deliveries[number] = delivery
            self._states[number] = _ARMED
            self._make_ready(number)
            delivery.on_change = partial(self._touch, number)
        finally:
            self._lock.release()

    def remove(self, number: int, delivery: Delivery) -> None:
        """Remove a topic, unless another one has its number. Idempotent."""
        try:
            self._lock.acquire()
            if self._deliveries[number] is not delivery:
                return
            delivery.on_change = int
            self._set_signs(number, ((_UNCHANGING, 0), (_UNCHANGING, 0)))
            self._states[number] = _GONE
            self._deliveries[number] = None
            with contextlib.suppress(ValueError):
                self._ready.remove(number)
            self._dry.pop(number, None)
            self._due_of.pop(number, None)
            self._held.pop(number, None)
            self._blocked.pop(number, None)
            self._tried_again.discard(number)
        finally:
            self._lock.release()

    def _set_signs(self, number: int, signs: Sequence[tuple[memoryview, int]]) -> None:
        for place, (view, index) in enumerate(signs, number * _WORDS):
            self._views[place], self._indexes[place], self._seen[place] = view, index, 0

    # -- taking turns ------------------------------------------------------------------------------------

    def first(self, generation: int) -> int:
        """Return the topic whose turn it is; -1 if none can have messages.

        Args:
            generation: of the mailbox; a changed value means that this process was woken.
        """
        if not self._ready or self._monotonic() >= self._slice_at:
            self._refill(generation)
        try:
            return self._ready[0]
        except IndexError:
            return -1

    def read_state(self, number: int) -> Seen:
        """Return the state of the topic, which is to be read before it is asked for messages.

        Raises:
            AlreadyClosed: the topic was closed.
        """
        at = number * _WORDS
        try:
            words = self._views[at][self._indexes[at]], self._views[at + 1][self._indexes[at + 1]]
        except ValueError:
            raise AlreadyClosed("the topic is closed") from None
        return *words, self._touches[number]

    def end_turn(self, number: int) -> None:
        """Move the topic, which had messages, behind the others."""
        try:
            self._lock.acquire()
            self._note_free(number)
            if self._ready and self._ready[0] == number:
                self._ready.rotate(-1)
        finally:
            self._lock.release()

    def note_dry(self, number: int, seen: Seen) -> None:
        """Record that the topic had no message, with its state ``seen`` before."""
        delivery = self._deliveries[number]
        due_ms = 0 if delivery is None else delivery.due_ms()
        try:
            self._lock.acquire()
            if self._states[number] != _READY:
                self._drop_strays()
                return
            self._note_free(number)
            if self._touches[number] != seen[2]:
                return
            self._dry[number] = None
            self._note_due(number, due_ms)
            if delivery is not None and delivery.is_blocked:
                self._blocked[number] = None
            self._set_state(number, seen, _DRY)
        finally:
            self._lock.release()

    def _set_state(self, number: int, seen: Seen, state: int) -> None:
        at = number * _WORDS
        self._seen[at], self._seen[at + 1] = seen[:2]
        self._states[number] = state
        if self._ready[0] == number:
            self._ready.popleft()
        else:
            self._ready.remove(number)

    # -- locks that are held -----------------------------------------------------------------------------

    def put_off(self, number: int, seen: Seen | None = None) -> None:
        """Retry the topic after 1 to 50 ms, because another process holds its lock or its subscription's.

        The other topics are used meanwhile."""
        try:
            self._lock.acquire()
            self._tried_again.discard(number)
            self._held[number] = None
            self._held_until = self._monotonic() + self._backoff.next()
            if seen is not None and self._states[number] == _READY:
                self._set_state(number, seen, _ARMED)
        finally:
            self._lock.release()

    def pause_s(self) -> float:
        """Seconds until a topic with a held lock is tried again."""
        return max(0.0, self._held_until - self._monotonic()) if self._held else NEVER_S

    def _try_again(self) -> None:
        if self._held and self._monotonic() >= self._held_until:
            held, self._held = self._held, {}
            for number in held:
                self._tried_again.add(number)
                self._make_ready(number)

    def _note_free(self, number: int) -> None:
        if number in self._tried_again:
            self._tried_again.discard(number)
            if not self._held and not self._tried_again:
                self._backoff.reset()

    # -- becoming ready ----------------------------------------------------------------------------------

    def _make_ready(self, number: int) -> None:
        """Append to the line, then change the state: an item in another state is skipped. Under the lock."""
        if self._states[number] > _READY:
            self._ready.append(number)
            self._states[number] = _READY
            self._dry.pop(number, None)
            self.changes += 1

    def _touch(self, number: int) -> None:
        """Make the topic ready: its consumer starts over or got a message back, which changes no word."""
        try:
            self._lock.acquire()
            self._touches[number] += 1
            self._make_ready(number)
        finally:
            self._lock.release()

    def _refill(self, generation: int) -> None:
        try:
            self._lock.acquire()
            self._drop_strays()
            if self._monotonic() >= self._slice_at:
                self._check_slice()
            self._take_due()
            self._try_again()
            if self._ready:
                return
            if generation != self._generation:
                self._compare(0, len(self._deliveries))
                while self._blocked:
                    self._make_ready(self._blocked.popitem()[0])
                self._generation = generation
            elif len(self._dry) > _FEW:
                self._compare(0, len(self._deliveries))
            else:
                for number in list(self._dry):
                    self._compare(number, number + 1)
            for number in list(self._blocked):
                # No ring comes of a transaction whose process died before this one had asked for it.
                delivery = self._deliveries[number]
                if delivery is None or delivery.forget_ended():
                    self._blocked.pop(number, None)
                    self._make_ready(number)
        finally:
            self._lock.release()

    def _drop_strays(self) -> None:
        """Remove the items that an interrupt left in the line."""
        ready = self._ready
        while ready and self._states[ready[0]] != _READY:
            ready.popleft()

    def _compare(self, first: int, end: int) -> None:
        """Make topics ready whose words have changed, of a range of topics. Under the lock."""
        part = slice(first * _WORDS, end * _WORDS)
        seen = self._seen[part]
        try:
            now = list(map(getitem, self._views[part], self._indexes[part]))
        except ValueError:  # one of them is closed, and raises when it is asked for messages
            for number in range(first, end):
                self._make_ready(number)
            return
        if now != seen:
            for place in compress(count(part.start), map(ne, now, seen)):
                self._make_ready(place // _WORDS)

    def _check_slice(self) -> None:
        """Compare the words of the next part of the topics, in turn."""
        now = self._monotonic()
        self._slice_at = now + _SLICE_EVERY_S
        topics = len(self._deliveries)
        if not topics:
            return
        first = self._next_slice if self._next_slice < topics else 0
        self._next_slice = first + _SLICE
        self._compare(first, min(first + _SLICE, topics))
        if now >= self._ask_at:
            self._ask_at = now + _ASK_EVERY_S
            first = self._next_asked if self._next_asked < topics else 0
            self._next_asked = first + _ASKED
            for number in range(first, min(first + _ASKED, topics)):
                self._make_ready(number)

    def check(self) -> int:
        """Look for lost wake-ups at intervals; returns `changes`."""
        if self._monotonic() >= self._slice_at:
            try:
                self._lock.acquire()
                self._check_slice()
            finally:
                self._lock.release()
        return self.changes

    # -- going to sleep ----------------------------------------------------------------------------------

    def request_wakeups(self) -> bool:
        """Request a wake-up from every dry topic. Returns False if one of them is ready meanwhile."""
        for number in list(self._dry):
            at = number * _WORDS
            if self._ready:
                break
            delivery = self._deliveries[number]
            if delivery is None:
                continue
            try:
                is_armed = delivery.request_wakeup((self._seen[at], self._seen[at + 1]))
            except LockTimeout:
                self.put_off(number)  # the request failed: the topic is asked for messages instead
                is_armed = True
            except AlreadyClosed:
                is_armed = False  # the topic raises this when it is asked for messages
            try:
                self._lock.acquire()
                if self._states[number] == _DRY:
                    if is_armed:
                        self._states[number] = _ARMED
                        self._dry.pop(number, None)
                    else:
                        self._make_ready(number)
            finally:
                self._lock.release()
        return not self._ready

    # -- delayed messages --------------------------------------------------------------------------------

    def _note_due(self, number: int, due_ms: int) -> None:
        if due_ms and self._due_of.get(number) != due_ms:
            heappush(self._due, (due_ms, number))
        if due_ms:
            self._due_of[number] = due_ms
        else:
            self._due_of.pop(number, None)

    def _take_due(self) -> None:
        now = self._wall_ms()
        while self._due and self._due[0][0] <= now:
            due_ms, number = heappop(self._due)
            if self._due_of.get(number) == due_ms:
                del self._due_of[number]
                self._make_ready(number)

    def next_due_ms(self) -> int:
        """The time at which the next delayed message of any topic is due; 0 for none."""
        try:
            return self._due[0][0]
        except IndexError:
            return 0

    def after_fork_in_child(self) -> None:
        self._lock = threads.RLock()


R = TypeVar("R")

_IN_A_ROW: Final = 16
"""Messages of one topic before the next topic has its turn."""
_AT_ONCE: Final = 16
"""Topics from which messages are fetched at once, if each of them has few."""


class Part(Protocol):
    """The consumer or reader of one of the topics: `ConsumerCore` or `ReaderCore`."""

    @property
    def delivery(self) -> Delivery: ...
    @property
    def pop_message(self) -> Callable[[], Message[Any]]: ...
    @property
    def topic_name(self) -> str: ...
    def close(self) -> None: ...


def _poll(part: Part) -> Message[Any] | None:
    return part.delivery.poll(part.pop_message)


def _fetch(part: Part) -> bool | None:
    """Fetch messages of a topic into its queue. Returns True if there are any, otherwise None."""
    return part.delivery.poll(_yes)


def _yes() -> bool:
    return True


class GroupDelivery(Source):
    """`Delivery` over the consumers or readers of several topics.

    Role: topics take turns. `poll` asks the topics that may have messages (`ReadyTopics`) one after the
    other, and queues those that have some; `pop_message` takes a few messages of each. A topic without
    further messages is not asked again before something changes there. Waiting follows the order of
    `Delivery`: the doorbell's generation is read first, a topic's state second. Then the topic is polled,
    and asked for a wake-up. The thread sleeps only when all topics will wake it.

    Invariants: the messages of a topic keep their order; there is no order between topics. A topic with
    fetched messages is in the queue, or ready. Locks are only tried: a topic or subscription locked by
    another process is skipped, and tried again after 1 to 50 ms.

    Any thread may call the methods.

    Args:
        mailbox: doorbell of the process.
        clock: returns the time.
        on_lost: called as ``on_lost(part, error)`` when one of the consumers turns out to be closed. Returns
            True if the others continue, otherwise it closes them.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        clock: Clock,
        on_lost: Callable[[Any, AlreadyClosed], bool],
    ) -> None:
        super().__init__(mailbox)
        self._children: list[Part | None] = []  # None: removed
        self._free: list[int] = []  # numbers of removed ones
        self._wall_ms = clock.wall_ms
        self._on_lost = on_lost
        self._topics = ReadyTopics(REAL_TIME, clock.wall_ms)
        self._line: deque[Part] = deque()  # topics with fetched messages
        self._left = _IN_A_ROW  # for the first one of the queue

    def add(self, child: Part) -> None:
        """Add a topic. The caller wakes the waiters. One thread at a time may add and remove."""
        if self._free:
            number = self._free.pop()
            self._children[number] = child
            self._topics.put(number, child.delivery)
        else:
            self._children.append(child)
            self._topics.extend([child.delivery])

    def remove(self, child: Part) -> None:
        """Remove a topic, with its fetched messages."""
        number = self._children.index(child)
        self._topics.remove(number, child.delivery)
        self._children[number] = None
        self._free.append(number)
        with contextlib.suppress(ValueError):
            self._line.remove(child)

    @property
    def is_dry(self) -> bool:
        return not self._line

    def pop_message(self) -> Message[Any]:
        """Return a message that was fetched with the last one; raises IndexError if there is none."""
        line = self._line
        while True:
            part = line[0]
            remaining = self._left
            if remaining <= 0:
                self._end_turn(part)
                continue
            try:
                message = part.pop_message()
            except IndexError:
                self._end_turn(part)
            else:
                self._left = remaining - 1  # two threads may count once: an exact count is not needed
                return message

    def _end_turn(self, part: Part) -> None:
        """Move on from the first topic of the queue. Its remaining messages are found again."""
        delivery = part.delivery
        if delivery.fetched:
            delivery.on_change()
        with contextlib.suppress(ValueError):  # another thread removed it
            self._line.remove(part)
        if delivery.fetched:  # another thread has just fetched more messages
            delivery.on_change()
        self._left = _IN_A_ROW

    def poll(self, take: Callable[[], Message[Any]]) -> Message[Any] | None:
        """Take a message if any topic has one. ``take`` is ignored: each topic's consumer has its own."""
        self.check_open()
        with contextlib.suppress(IndexError):
            return self.pop_message()
        if not timing.try_now(self._line_up):
            return None
        with contextlib.suppress(IndexError):
            return self.pop_message()
        return self.find(_poll)  # the fetched messages may be void

    def _line_up(self) -> bool:
        """Fetch messages of a few topics. Returns True if any had messages."""
        topics = self._topics
        ready = self._ask_next(_fetch)
        has_found = ready is not None
        for _ in range(_AT_ONCE):
            if ready is None:
                break
            number, seen, _, part = ready
            self._line.append(part)
            if not part.delivery.is_exhausted(seen[0], _IN_A_ROW):
                topics.end_turn(number)
                break
            topics.note_dry(number, seen)
            ready = self._ask_next(_fetch) if topics.has_ready else None
        return has_found

    def find(self, ask: Callable[[Any], R | None]) -> R | None:
        """Return the first answer of a topic that is not None, and end that topic's turn; None if all are."""
        return timing.try_now(self._find, ask)

    def _find(self, ask: Callable[[Any], R | None]) -> R | None:
        answered = self._ask_next(ask)
        if answered is None:
            return None
        self._topics.end_turn(answered[0])
        return answered[2]

    def _ask_next(self, ask: Callable[[Any], R | None]) -> tuple[int, Seen, R, Part] | None:
        """Return the first topic with an answer that is not None, its state before, the answer, the part."""
        topics = self._topics
        while (number := topics.first(self._mailbox.generation)) >= 0:
            child = self._children[number]
            if child is None:
                continue  # another thread removes it
            try:
                seen = topics.read_state(number)
                answer = ask(child)
            except AlreadyClosed as error:
                if not self._on_lost(child, error):
                    raise
                topics.remove(number, child.delivery)
                continue
            except LockTimeout:
                topics.put_off(number, seen)
                continue
            if answer is not None:
                return number, seen, answer, child
            topics.note_dry(number, seen)
        return None

    @property
    def tail(self) -> Any:
        return self._topics.check()

    def request_wakeup(self, seen: Any, waiter: object = None) -> bool:
        return timing.try_now(self._topics.request_wakeups) and not self._line

    def end_wait(self, seen: Any, waiter: object, is_served: bool) -> None:
        """Do nothing: wake-ups of several topics do not replace those of other waiters."""

    def has_news(self, seen: Any) -> bool:
        return bool(self._line) or bool(self.tail != seen)

    def back_stop(self, idle_s: float) -> float:
        return min(back_stop(idle_s), IDLE_BACK_STOP_S)  # each check compares a part of the topics only

    def due_in_s(self) -> float:
        """See `Source.due_in_s`; also until a locked topic is tried again."""
        due_ms = self._topics.next_due_ms()
        due_s = max(0.0, (due_ms - self._wall_ms()) / 1000) if due_ms else NEVER_S
        return min(due_s, self._topics.pause_s())

    def close(self, text: str) -> None:
        self.closed_text = text
        self._line.clear()

    def close_in_child(self, owner: str, remedy: str) -> None:
        """See `Source.close_in_child`; drops the topics, too."""
        self._line.clear()
        self._topics.after_fork_in_child()
        super().close_in_child(owner, remedy)
