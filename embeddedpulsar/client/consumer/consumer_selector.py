"""Receiving from several consumers in one thread, those first in the list before the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK
from embeddedpulsar.client.consumer.delivery import NEVER_S
from embeddedpulsar.client.consumer.listener import ListenerTarget
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.message import Message

monotonic = SYSTEM_CLOCK.monotonic


class ConsumerSelector:
    """Receives the messages of several consumers of one client, as ``select`` does for sockets.

    Role: `receive_nowait` looks at the consumers in the order of its argument, so that the order is a
    priority and a consumer that is left out gives nothing. When there is no message, `request_wakeup`
    announces that this process sleeps for them, and `wait` sleeps until one of them may have a message. The
    steps are those of a listener thread, so no change between two of them is missed.

    `wait` may run in another thread than the rest, which belongs to one thread. `wake` may be called by any
    thread. A consumer that was announced and is not wanted any more must be given to `end_wait`, so that
    another consumer of its subscription is woken instead. Use it in the process that made the consumers.

    Not in ``pulsar-client``. The consumers must not have listeners.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     urgent, other = (client.subscribe(name, "desk") for name in ("urgent", "other"))
        ...     for name in ("other", "urgent"):
        ...         with client.create_producer(name) as producer:
        ...             message_id = producer.send(name.encode())
        ...     selector = ConsumerSelector([urgent, other])
        ...     while (received := selector.receive_nowait([urgent, other])) is not None:
        ...         print(received[1].data())
        ...     selector.request_wakeup([urgent, other]), selector.wait([urgent, other], 0.001)
        b'urgent'
        b'other'
        (True, False)
    """

    def __init__(self, consumers: Iterable[Consumer[Any]]) -> None:
        self._targets: Final[dict[Consumer[Any], ListenerTarget]] = {}
        self._received: list[Message[Any]] = []
        self._mailbox: Mailbox | None = None
        self._generation = -1
        self._is_woken = False
        for consumer in consumers:
            self.add(consumer)

    def add(self, consumer: Consumer[Any]) -> None:
        """Add a consumer. Does nothing if it was added before."""
        if consumer not in self._targets:
            consumer._receiver.check()
            self._targets[consumer] = consumer._receiver.target(consumer, self._keep)
            self._mailbox = consumer._receiver.mailbox

    def remove(self, consumer: Consumer[Any]) -> None:
        """Remove a consumer, which may be closed. Does nothing if it was not added."""
        target = self._targets.pop(consumer, None)
        if target is not None:
            target.end_wait(False)

    def _keep(self, _: object, message: Message[Any]) -> None:
        self._received.append(message)

    def receive_nowait(self, consumers: Sequence[Consumer[Any]]) -> tuple[Consumer[Any], Message[Any]] | None:
        """Return the first message of the first consumer that has one, with that consumer; None if none has.

        Raises:
            AlreadyClosed: one of the consumers is closed: here, or because its topic or subscription was
                deleted.
        """
        if self._mailbox is None:
            return None
        self._mailbox.glance()
        # In this order: a wake-up between this line and the last look makes `wait` return at once.
        self._is_woken = False
        self._generation = self._mailbox.generation
        for consumer in consumers:
            target = self._targets[consumer]
            if target.run(1):
                return consumer, self._received.pop()
            if target.is_closed:
                raise AlreadyClosed(target.closed_text)
        return None

    def request_wakeup(self, consumers: Sequence[Consumer[Any]]) -> bool:
        """Have this process woken by the next change of one of the consumers.

        Returns:
            False if something has changed since `receive_nowait` looked, so that it has to look again.
        """
        return all(self._targets[consumer].request_wakeup() for consumer in consumers)

    def wait(self, consumers: Sequence[Consumer[Any]], timeout_s: float | None = None) -> bool:
        """Sleep until one of the consumers may have a message, or `wake` was called.

        Args:
            consumers: those of the last `request_wakeup`.
            timeout_s: longest wait in seconds; None for no limit.

        Returns:
            False after the timeout.

        Raises:
            AlreadyClosed: the client is closed.
        """
        mailbox, seen = self._mailbox, self._generation
        targets = [target for consumer in consumers if (target := self._targets.get(consumer)) is not None]
        begun = now = monotonic()
        end = NEVER_S if timeout_s is None else begun + timeout_s
        while not self._is_woken:
            due_s = min((target.due_in_s() for target in targets), default=NEVER_S)
            nap_s = min((target.back_stop(now - begun) for target in targets), default=NEVER_S)
            sleep_s = max(0.0, min(due_s, nap_s, end - now))
            is_rung = mailbox is not None and mailbox.wait(seen, sleep_s) != seen
            now = monotonic()
            if is_rung or due_s <= min(nap_s, end - now) or any(target.has_news() for target in targets):
                return True
            if now >= end:
                return False
        return True

    def wake(self) -> None:
        """End `wait` in whichever thread it runs, or the next one if none runs now."""
        self._is_woken = True
        if self._mailbox is not None:
            self._mailbox.ring_self()

    def end_wait(self, consumers: Iterable[Consumer[Any]]) -> None:
        """Take back `request_wakeup` for consumers whose messages are not wanted now."""
        for consumer in consumers:
            target = self._targets.get(consumer)
            if target is not None:
                target.end_wait(False)
