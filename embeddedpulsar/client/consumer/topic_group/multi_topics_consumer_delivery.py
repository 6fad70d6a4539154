"""Waiting for messages of several topics at once."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from embeddedpulsar.client.consumer.delivery import NEVER_S, back_stop, poll_in_passing, wait_for
from embeddedpulsar.client.consumer.topic_group.ready_topics import ReadyTopics, Seen
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout
from embeddedpulsar.platform import deadline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embeddedpulsar.client.consumer.delivery import Delivery
    from embeddedpulsar.message import Message
    from embeddedpulsar.platform.clock import Clock
    from embeddedpulsar.platform.processes.mailbox import Mailbox

R = TypeVar("R")

_IN_A_ROW: Final = 16
"""Messages of one topic before the others have their turn."""
_AT_ONCE: Final = 16
"""Topics whose messages are fetched at once, if each of them has few."""


class Part(Protocol):
    """The consumer, or reader, of one of the topics."""

    @property
    def delivery(self) -> Delivery: ...
    @property
    def take(self) -> Callable[[], Message[Any]]: ...


def _poll(part: Part) -> Message[Any] | None:
    return part.delivery.poll(part.take)


def _fetch(part: Part) -> bool | None:
    """Whether a topic has messages, which are in its queue then."""
    return part.delivery.poll(_yes)


def _yes() -> bool:
    return True


class MultiTopicsDelivery:
    """As `Delivery`, over the consumers, or readers, of several topics.

    Role: takes turns: `poll` asks the topics that may have messages (`ReadyTopics`) one after the other, and
    lines up those that have some; `take` takes a few messages of each. Where a topic had no more than that,
    it goes on to the next, and the topic is not asked again before something changes there. Waiting follows
    the order of `Delivery`: the doorbell's generation is read first, a topic's state second, then it is
    polled, then asked to ring, and only when all of them will ring it sleeps.

    Invariants: a topic's messages keep their order; topics have none among each other. A topic with messages
    that were fetched is in the line, or ready. Locks are tried: a topic, or subscription, that another
    process holds is passed over, and looked at again after 1 to 50 ms.

    Who may call: any thread.

    Args:
        children: the consumers of the topics.
        mailbox: doorbell of the process.
        clock: the time.
        on_lost: told when one of the consumers turns out to be closed; it closes the others.
    """

    def __init__(
        self,
        children: Sequence[Part],
        mailbox: Mailbox,
        clock: Clock,
        on_lost: Callable[[AlreadyClosed], object],
    ) -> None:
        self.closed_text = ""
        self._children: Sequence[Part] = ()
        self._mailbox = mailbox
        self._monotonic = clock.monotonic
        self._wall_ms = clock.wall_ms
        self._on_lost = on_lost
        self._topics = ReadyTopics(clock.monotonic, clock.wall_ms)
        self.replace(children)
        self._line: deque[Part] = deque()  # topics with messages that were fetched
        self._left = _IN_A_ROW  # for the first in the line

    def replace(self, children: Sequence[Part]) -> None:
        """There are more topics now, behind those known. Whoever waits is to be woken."""
        known = len(self._topics)
        self._children = children
        self._topics.extend([child.delivery for child in children[known:]])

    def check_open(self) -> None:
        """Refuse a closed consumer."""
        if self.closed_text:
            raise AlreadyClosed(self.closed_text)

    def take(self) -> Message[Any]:
        """A message that was fetched with the last one; raises IndexError when there is none."""
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
                self._left = left - 1  # two threads may count it as one: nothing depends on that
                return message

    def _end_turn(self, part: Part) -> None:
        """The first in the line had its turn. What it has left is found again."""
        delivery = part.delivery
        if delivery.fetched:
            delivery.on_change()
        with contextlib.suppress(ValueError):  # another thread was faster
            self._line.remove(part)
        if delivery.fetched:  # another thread had just lined it up
            delivery.on_change()
        self._left = _IN_A_ROW

    def wait(self, take: Callable[[], Message[Any]], timeout_ms: int | None) -> Message[Any]:
        """Take a message of any topic, waiting for it.

        Raises:
            Timeout: there was none within ``timeout_ms``.
            AlreadyClosed: the consumer is closed, or was closed meanwhile.
        """
        self._listen()
        return wait_for(self, self._mailbox, self._monotonic, take, timeout_ms)

    def poll_once(self, take: Callable[[], Message[Any]]) -> Message[Any] | None:
        """As `poll`, for somebody who will not wait now."""
        self._listen()
        return poll_in_passing(self, take)

    def _listen(self) -> None:
        """Who always finds messages, or never waits, would not hear of the death of a peer."""
        if not self._line:
            self._mailbox.glance()

    def poll(self, take: Callable[[], Message[Any]]) -> Message[Any] | None:
        """Take a message if any topic has one; None if there is none.

        Args:
            take: not used: each topic's consumer has its own.
        """
        self.check_open()
        with contextlib.suppress(IndexError):
            return self.take()
        if not deadline.try_now(self._line_up):
            return None
        with contextlib.suppress(IndexError):
            return self.take()
        return self.find(_poll)  # what was fetched may be void

    def _line_up(self) -> bool:
        """Fetch messages of a few topics; whether any had some."""
        topics = self._topics
        found = self._ask_next(_fetch)
        has_found = found is not None
        for _ in range(_AT_ONCE):
            if found is None:
                break
            number, seen, _ = found
            part = self._children[number]
            self._line.append(part)
            if not part.delivery.is_exhausted(seen[0], _IN_A_ROW):
                topics.end_turn(number)
                break
            topics.note_dry(number, seen)
            found = self._ask_next(_fetch) if topics.has_ready else None
        return has_found

    def find(self, ask: Callable[[Any], R | None]) -> R | None:
        """The first answer of a topic that is not None, and that topic's turn ends; None if none has one."""
        return deadline.try_now(self._find, ask)

    def _find(self, ask: Callable[[Any], R | None]) -> R | None:
        found = self._ask_next(ask)
        if found is None:
            return None
        self._topics.end_turn(found[0])
        return found[2]

    def _ask_next(self, ask: Callable[[Any], R | None]) -> tuple[int, Seen, R] | None:
        """The first topic with an answer that is not None, what it showed before, and the answer."""
        topics = self._topics
        while (number := topics.first(self._mailbox.generation)) >= 0:
            try:
                seen = topics.look(number)
                answer = ask(self._children[number])
            except AlreadyClosed as error:
                self._on_lost(error)
                raise
            except LockTimeout:
                topics.put_off(number, seen)
                continue
            if answer is not None:
                return number, seen, answer
            topics.note_dry(number, seen)
        return None

    @property
    def tail(self) -> Any:
        """What to compare with later, to know whether anything happened: see `arm`."""
        return self._topics.check()

    def arm(self, seen: Any, waiter: object = None) -> bool:
        """Ask every topic to ring when something comes; False if something came since `tail` was ``seen``."""
        return deadline.try_now(self._topics.arm) and not self._line

    def leave(self, seen: Any, waiter: object, is_served: bool) -> None:
        """Nothing: its topics ring it besides those of whom one is rung, so others do not wait for it."""

    def has_news(self, seen: Any) -> bool:
        """Whether something came since `tail` was ``seen``."""
        return bool(self._line) or bool(self.tail != seen)

    def back_stop(self, idle_s: float) -> float:
        """How long to sleep at most, after so long without a message."""
        return back_stop(idle_s)

    def due_in_s(self) -> float:
        """Seconds until the next delayed entry of any topic is due, or one that was held is to be tried."""
        due_ms = self._topics.next_due_ms()
        due_s = max(0.0, (due_ms - self._wall_ms()) / 1000) if due_ms else NEVER_S
        return min(due_s, self._topics.pause_s())

    def close(self, text: str) -> None:
        """Let every later call fail with ``text``."""
        self.closed_text = text
        self._line.clear()

    def after_fork_in_child(self) -> None:
        """The topics stay the parent's."""
        self._line.clear()
        self._topics.after_fork_in_child()
