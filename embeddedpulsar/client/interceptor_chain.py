"""The interceptors of one producer, consumer or reader, called one after the other."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.platform import deadline
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import make

if TYPE_CHECKING:
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.client_threads import ClientLog
    from embeddedpulsar.client.producer.producer_message import ProducerMessage
    from embeddedpulsar.message_id import MessageId

Position = tuple[int, int]


class InterceptorChain:
    """Calls interceptors in their order. An exception is logged, and the remaining interceptors are called.

    Role: one per producer, consumer or reader with interceptors; the others have no chain. It is called
    without a lock of this package. The chain is bound to its owner before the owner starts, so every call
    names the owner. It is closed with its owner, or with the client.

    Args:
        interceptors: at least one.
    """

    def __init__(self, interceptors: Sequence[Any]) -> None:
        self._interceptors = tuple(interceptors)
        self._core: ClientContext | None = None
        self._owner: Callable[[], Any] = _no_owner

    def bind(self, core: ClientContext, owner: Any) -> None:
        """Call the interceptors for ``owner`` from now on. The owner may still be incomplete."""
        self._owner = weakref.ref(owner)  # timers hold the chain, and must not keep the owner alive
        self._core = core

    @property
    def owner(self) -> Any:
        """The producer, consumer or reader; None before it is bound and after it was collected."""
        return self._owner()

    def begin(self) -> None:
        """Close the interceptors with the owner, which is complete now."""
        assert self._core is not None
        # The client closes the chain if its owner is collected without being closed.
        self._core.at_close[id(self)] = self.close

    @property
    def _log(self) -> ClientLog:
        assert self._core is not None
        return self._core.log

    def before_send(self, message: ProducerMessage[Any]) -> ProducerMessage[Any]:
        # Each gets the message of the one before it. One that raises, or returns no message, is left out, and
        # the message goes on as it was.
        for interceptor in self._interceptors:
            try:
                if interceptor.eligible(message):
                    message = _checked(interceptor.before_send(self.owner, message), type(message))
            except Exception:  # noqa: BLE001 - the user's code
                self._log.exception("before_send of %r failed on %r", interceptor, message)
        return message

    def on_send_acknowledgement(self, message: ProducerMessage[Any], message_id: Any, error: Any) -> None:
        """Report that a message was stored, or that storing it failed."""
        for interceptor in self._interceptors:
            try:
                if interceptor.eligible(message):
                    interceptor.on_send_acknowledgement(self.owner, message, message_id, error)
            except Exception:  # noqa: BLE001 - the user's code
                self._log.exception("on_send_acknowledgement of %r failed on %r", interceptor, message)

    def before_delivery(self, message: Message[Any], hook: str = "before_consume") -> Message[Any]:
        for interceptor in self._interceptors:
            try:
                message = _checked(getattr(interceptor, hook)(self.owner, message), Message)
            except Exception:  # noqa: BLE001 - the user's code
                self._log.exception("%s of %r failed on %r", hook, interceptor, message)
        return message

    def tell(self, hook: str, *arguments: Any) -> None:
        for interceptor in self._interceptors:
            try:
                # The deadline of the call around it is for locks; user code is not cut short by it.
                deadline.unbounded(getattr(interceptor, hook), *arguments)
            except Exception:  # noqa: BLE001 - the user's code
                self._log.exception("%s of %r failed", hook, interceptor)

    def telling(
        self, hook: str, redeliver: Callable[[list[Position]], object], partition: int
    ) -> Callable[[list[Position]], object]:
        """Return ``redeliver`` with a call of ``hook`` before it, which runs once even if it is retried."""
        # Positions that were reported and not redelivered yet: `redeliver` raises if a lock is held, and is
        # called again with the same ones.
        known: set[Position] = set()

        def told(positions: list[Position]) -> object:
            ids = {make(*position, -1, partition, 0) for position in positions if position not in known}
            known.update(positions)
            if ids:
                self.tell(hook, self.owner, ids)
            outcome = redeliver(positions)
            known.difference_update(positions)
            return outcome

        return told

    def reporting(self, hook: str, acknowledge: Callable[[Any], object]) -> Callable[[Any], None]:

        def acknowledge_and_tell(message: Message[Any] | MessageId) -> None:
            message_id = message.message_id() if isinstance(message, Message) else message
            try:
                acknowledge(message)
            # Both outcomes are reported, and the error goes to the caller as without interceptors.
            except PulsarException as error:
                self.tell(hook, self.owner, message_id, error)
                raise
            self.tell(hook, self.owner, message_id, None)

        return acknowledge_and_tell

    def listening(self, listener: Callable[[Any, Any], object], hook: str) -> Callable[[Any, Any], object]:
        return lambda owner, message: listener(owner, self.before_delivery(message, hook))

    def close(self) -> None:
        core = self._core
        if core is not None and core.at_close.pop(id(self), None) is not None:
            self.tell("close")


def _no_owner() -> None:
    return None


def _checked(message: object, kind: type[Any]) -> Any:
    if not isinstance(message, kind):
        raise TypeError(f"an interceptor returned {type(message).__name__}, not a message")
    return message


def chain_of(given: Any, kind: type[Any]) -> InterceptorChain | None:
    """Return the chain for the argument ``interceptors``, which is not None; None for an empty list.

    Raises:
        ValueError: the argument is not a list of such interceptors.

    >>> chain_of([5], str)
    Traceback (most recent call last):
    ValueError: Argument interceptors is expected to be a list of str, and 5 is none
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"Argument interceptors is expected to be a list of {kind.__name__}")
    for interceptor in given:
        if not isinstance(interceptor, kind):
            raise ValueError(
                f"Argument interceptors is expected to be a list of {kind.__name__}, "
                f"and {interceptor!r} is none"
            )
    return InterceptorChain(given) if given else None
