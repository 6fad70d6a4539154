"""Detection of a second `close` of a consumer or reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.exceptions import AlreadyClosed

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext


class CloseGuard:
    """Distinguishes the second `close` of a consumer or reader, which is an error, from a late first one.

    Role: a consumer may be closed before its owner calls `close`: it has unsubscribed, its client was closed,
    or its topic was deleted. The first `close` of the owner is then no error, as with ``pulsar-client``.

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
            closed_text: why the consumer is already closed; empty if it is open.

        Returns:
            True if the consumer is open and is to be closed.

        Raises:
            AlreadyClosed: `close` was called before, or the consumer belongs to the parent of this fork.
        """
        if closed_text and self._has_begun:
            raise AlreadyClosed(closed_text)
        # A client that closes sets its flag first. Then the client closed the consumer, and the owner may
        # still call `close` once.
        self._has_begun = bool(closed_text) or not self._client.is_closed
        return not closed_text

    def after_fork_in_child(self) -> None:
        """The consumer belongs to the parent: `close` in the child raises."""
        self._has_begun = True
