"""Which `close` is one too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.exceptions import AlreadyClosed

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext


class CloseGuard:
    """Tells the second `close` of a consumer or reader, which is an error, from a late first one.

    Role: a consumer may have ended before its owner closes it: it has unsubscribed, its client was closed, or
    its topic was deleted. The owner tidies up all the same, as with ``pulsar-client``, and gets no error.

    Example:
        >>> from types import SimpleNamespace
        >>> close_guard = CloseGuard(SimpleNamespace(is_closed=False))
        >>> close_guard.begin("the consumer has unsubscribed"), close_guard.begin("")
        (False, True)
        >>> close_guard.begin("the consumer is closed")
        Traceback (most recent call last):
        embeddedpulsar.exceptions.AlreadyClosed: Pulsar error: AlreadyClosed: the consumer is closed
    """

    __slots__ = ("_client", "_has_begun")

    def __init__(self, client: ClientContext) -> None:
        self._client = client
        self._has_begun = False

    def begin(self, closed_text: str) -> bool:
        """Begin to close.

        Args:
            closed_text: why it is not open any more; empty if it is open.

        Returns:
            Whether it is open, so that there is something to close.

        Raises:
            AlreadyClosed: it was closed before, or is the parent's of this forked process.
        """
        if closed_text and self._has_begun:
            raise AlreadyClosed(closed_text)
        # A client that closes is closed first: then this is its doing, and the owner may still come.
        self._has_begun = bool(closed_text) or not self._client.is_closed
        return not closed_text

    def after_fork_in_child(self) -> None:
        """It is not the child's to close."""
        self._has_begun = True
