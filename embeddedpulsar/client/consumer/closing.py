"""Closing of a consumer or reader, and the error for acknowledgements that could not be written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.client.client_context import AcknowledgementsUnwritten
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, StoreGoneError

if TYPE_CHECKING:
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
    from embeddedpulsar.client.consumer.consumer_meter import ConsumerMeter


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


class ConsumerClosing:
    """Closes one consumer: writes its acknowledgements and returns its other messages.

    Invariants: when a method returns, or raises anything but `BrokerMetadataError`, the consumer is closed
    and has returned its messages. If another process is stopped while it holds the subscription's lock, the
    consumer is unregistered later. Any thread may call the methods, with a deadline.
    """

    __slots__ = ("_close_guard", "_core", "_meter")

    def __init__(self, core: ConsumerCore, meter: ConsumerMeter) -> None:
        self._core: Final = core
        self._meter: Final = meter
        self._close_guard: Final = CloseGuard(core.session.client)

    def unsubscribe(self) -> None:
        core = self._core
        core.delivery.check_open()
        core.session.subscription.unsubscribe(core.session.attachment)
        try:
            self._shut("the consumer has unsubscribed")
        finally:
            core.session.release()

    def close(self) -> None:
        core = self._core
        if not self._close_guard.begin(core.delivery.closed_text):
            self._let_go()
            return
        try:
            self._leave()
        except Exception:
            raise
        except BaseException:
            core.session.client.abandon(core.session.abandoned)  # interrupted: the consumer is closed anyway
            raise

    def _leave(self) -> None:
        core = self._core
        core.acks.refuse()
        try:
            core.acks.flush()
            core.acks.end()
        except LockTimeout as error:
            line = (
                f"{core.acks.unwritten} acknowledgements of subscription {core.config.subscription_name!r} "
                f"on {core.topic_name} could not be written; the consumer {core.consumer_name} is closed, "
                "and their messages may be delivered again"
            )
            raise AcknowledgementsUnwritten((line,), str(error)) from None
        except StoreGoneError as error:
            core.session.client.log.warning(
                "Acknowledgements of %s are lost: %s", core.session.topic_name, error
            )
        finally:
            self._shut("the consumer is closed; subscribe again")
            try:
                core.session.leave()
            finally:
                core.session.release()

    def _let_go(self) -> None:
        """Release letters and topic of a consumer that was closed by another call or process."""
        core = self._core
        if core.session.is_released:
            return
        try:
            self._shut(core.delivery.closed_text)
        finally:
            core.session.release()

    def _shut(self, text: str) -> None:
        core = self._core
        self._meter.close()
        core.acks.close()
        core.delivery.close(text)
        core.start_over()
        core.receiver.stop()
        core.redelivery.close()
        core.session.client.wake()

    def after_fork_in_child(self) -> None:
        self._close_guard.after_fork_in_child()
