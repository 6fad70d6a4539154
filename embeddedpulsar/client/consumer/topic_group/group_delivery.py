"""Waiting for messages of several topics at once."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from embeddedpulsar._engine.platform import deadline
from embeddedpulsar.client.consumer.delivery import IDLE_BACK_STOP_S, NEVER_S, REAL_TIME, Source, back_stop
from embeddedpulsar.client.consumer.topic_group.ready_topics import ReadyTopics, Seen
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.clock import Clock
    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar.client.consumer.delivery import Delivery
    from embeddedpulsar.message import Message

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
    def take(self) -> Callable[[], Message[Any]]: ...
    @property
    def topic_name(self) -> str: ...
    def close(self) -> None: ...


def _poll(part: Part) -> Message[Any] | None:
    return part.delivery.poll(part.take)


def _fetch(part: Part) -> bool | None:
    """Fetch messages of a topic into its queue. Returns True if there are any, otherwise None."""
    return part.delivery.poll(_yes)


def _yes() -> bool:
    return True


class GroupDelivery(Source):
    """`Delivery` over the consumers or readers of several topics.

    Role: topics take turns. `poll` asks the topics that may have messages (`ReadyTopics`) one after the
    other, and queues those that have some; `take` takes a few messages of each. A topic without further
    messages is not asked again before something changes there. Waiting follows the order of `Delivery`: the
    doorbell's generation is read first, a topic's state second. Then the topic is polled, and asked for a
    wake-up. The thread sleeps only when all topics will wake it.

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

    def take(self) -> Message[Any]:
        """Return a message that was fetched with the last one; raises IndexError if there is none."""
        line = self._line
        while True:
            part = line[0]
            left = self._left
            if left <= 0:
                self._end_turn(part)
                continue
            try:
                message = part.take()
            except IndexError:
                self._end_turn(part)
            else:
                self._left = left - 1  # two threads may count once: an exact count is not needed
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
            return self.take()
        if not deadline.try_now(self._line_up):
            return None
        with contextlib.suppress(IndexError):
            return self.take()
        return self.find(_poll)  # the fetched messages may be void

    def _line_up(self) -> bool:
        """Fetch messages of a few topics. Returns True if any had messages."""
        topics = self._topics
        found = self._ask_next(_fetch)
        has_found = found is not None
        for _ in range(_AT_ONCE):
            if found is None:
                break
            number, seen, _, part = found
            self._line.append(part)
            if not part.delivery.is_exhausted(seen[0], _IN_A_ROW):
                topics.end_turn(number)
                break
            topics.note_dry(number, seen)
            found = self._ask_next(_fetch) if topics.has_ready else None
        return has_found

    def find(self, ask: Callable[[Any], R | None]) -> R | None:
        """Return the first answer of a topic that is not None, and end that topic's turn; None if all are."""
        return deadline.try_now(self._find, ask)

    def _find(self, ask: Callable[[Any], R | None]) -> R | None:
        found = self._ask_next(ask)
        if found is None:
            return None
        self._topics.end_turn(found[0])
        return found[2]

    def _ask_next(self, ask: Callable[[Any], R | None]) -> tuple[int, Seen, R, Part] | None:
        """Return the first topic with an answer that is not None, its state before, the answer, the part."""
        topics = self._topics
        while (number := topics.first(self._mailbox.generation)) >= 0:
            child = self._children[number]
            if child is None:
                continue  # another thread removes it
            try:
                seen = topics.look(number)
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

    def arm(self, seen: Any, waiter: object = None) -> bool:
        return deadline.try_now(self._topics.arm) and not self._line

    def leave(self, seen: Any, waiter: object, is_served: bool) -> None:
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
