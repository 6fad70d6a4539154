"""Waiting for messages of several topics at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from embeddedpulsar.client.delivery import NEVER_S, poll_in_passing, wait_for
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout
from embeddedpulsar.platform import deadline
from embeddedpulsar.platform.background import Backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embeddedpulsar.client.delivery import Source
    from embeddedpulsar.message import Message
    from embeddedpulsar.platform.mailbox import Mailbox

_IN_A_ROW: Final = 16
"""Messages of one topic before the others have their turn."""


class Part(Protocol):
    """The consumer, or reader, of one of the topics."""

    @property
    def delivery(self) -> Source: ...
    @property
    def take(self) -> Callable[[], Message[Any]]: ...


class MultiTopicsDelivery:
    """As `Delivery`, over the consumers, or readers, of several topics.

    Role: takes turns: `poll` begins with the topic behind the one that was served last, and `take` goes on
    with that one for a few messages. Waiting follows the order of `Delivery`: the doorbell's generation is
    read first, every topic's state second, all are polled, all are asked to ring, and only then it sleeps.

    Invariants: a topic's messages keep their order; topics have none among each other. Locks are tried: a
    topic, or subscription, that another process holds is passed over, and looked at again after 1 to 50 ms.

    Who may call: any thread.

    Args:
        children: the consumers of the topics.
        mailbox: doorbell of the process.
        monotonic: the time.
        on_lost: told when one of the consumers turns out to be closed; it closes the others.
    """

    def __init__(
        self,
        children: Sequence[Part],
        mailbox: Mailbox,
        monotonic: Callable[[], float],
        on_lost: Callable[[AlreadyClosed], object],
    ) -> None:
        self.closed_text = ""
        self._children = children
        self._mailbox = mailbox
        self._monotonic = monotonic
        self._on_lost = on_lost
        self._next = 0
        self._current: Part | None = None
        self._left = 0
        self._backoff: Final = Backoff()

    def replace(self, children: Sequence[Part]) -> None:
        """There are more topics now. Whoever waits is to be woken."""
        self._children = children

    def check_open(self) -> None:
        """Refuse a closed consumer."""
        if self.closed_text:
            raise AlreadyClosed(self.closed_text)

    def take(self) -> Message[Any]:
        """A message that was fetched with the last one; raises IndexError when the others have their turn."""
        left = self._left
        child = self._current
        if left <= 0 or child is None:
            raise IndexError
        self._left = left - 1  # two threads may count it as one: nothing depends on that
        return child.take()

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
        if self._left <= 0:
            self._mailbox.glance()

    def poll(self, take: Callable[[], Message[Any]]) -> Message[Any] | None:
        """Take a message if any topic has one; None if there is none.

        Args:
            take: not used: each topic's consumer has its own.
        """
        self.check_open()
        return deadline.try_now(self._poll)

    def _poll(self) -> Message[Any] | None:
        children = self._children
        first = self._next
        is_held = False
        for number in range(first, first + len(children)):
            child = children[number % len(children)]
            try:
                message = child.delivery.poll(child.take)
            except AlreadyClosed as error:
                self._on_lost(error)
                raise
            except LockTimeout:
                is_held = True
                continue
            if message is not None:
                self._next = (number + 1) % len(children)
                self._current = child
                self._left = _IN_A_ROW - 1
                return message
        if is_held:
            self._backoff.next()
        else:
            self._backoff.reset()
        return None

    @property
    def tail(self) -> Any:
        """What to compare with later, to know whether anything happened: see `arm`."""
        children = self._children
        return children, [child.delivery.tail for child in children]

    def arm(self, seen: Any) -> bool:
        """Ask every topic to ring when something comes; False if something came since `tail` was ``seen``."""
        return deadline.try_now(self._arm, *seen)

    def _arm(self, children: Sequence[Part], tails: list[Any]) -> bool:
        if children is not self._children:
            return False
        for child, tail in zip(children, tails, strict=True):
            try:
                if not child.delivery.arm(tail):
                    return False
            except LockTimeout:
                self._backoff.next()  # it does not ring: `due_in_s` has it looked at again
        return True

    def due_in_s(self) -> float:
        """Seconds until the next delayed entry of any topic is due."""
        due_s = min((child.delivery.due_in_s() for child in self._children), default=NEVER_S)
        return min(due_s, self._backoff.pause_s or NEVER_S)

    def close(self, text: str) -> None:
        """Let every later call fail with ``text``."""
        self.closed_text = text
