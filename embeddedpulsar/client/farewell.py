"""Which `close` is one too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.exceptions import AlreadyClosed

if TYPE_CHECKING:
    from embeddedpulsar.client.client_core import ClientCore


class Farewell:
    """Tells the second `close` of a consumer or reader, which is an error, from a late first one.

    Role: a consumer may have ended before its owner closes it: it has unsubscribed, its client was closed, or
    its topic was deleted. The owner tidies up all the same, as with ``pulsar-client``, and gets no error.

    Example:
        >>> from types import SimpleNamespace
        >>> farewell = Farewell(SimpleNamespace(is_closed=False))
        >>> farewell.say("the consumer has unsubscribed"), farewell.say("")
        (False, True)
        >>> farewell.say("the consumer is closed")
        Traceback (most recent call last):
        embeddedpulsar.exceptions.AlreadyClosed: Pulsar error: AlreadyClosed: the consumer is closed
    """

    __slots__ = ("_client", "_is_said")

    def __init__(self, client: ClientCore) -> None:
        self._client = client
        self._is_said = False

    def say(self, closed_text: str) -> bool:
        """It is being closed; returns whether it is open.

        Args:
            closed_text: why it is not open any more, if so.

        Raises:
            AlreadyClosed: it was closed before, or is the parent's of this forked process.
        """
        if closed_text and self._is_said:
            raise AlreadyClosed(closed_text)
        # A client that closes is closed first: then this is its doing, and the owner may still come.
        self._is_said = bool(closed_text) or not self._client.is_closed
        return not closed_text

    def after_fork_in_child(self) -> None:
        """It is not the child's to close."""
        self._is_said = True
