"""The methods of a consumer that resend a message through the retry topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.exceptions import (
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    PulsarException,
)
from embeddedpulsar.message import Message
from embeddedpulsar.platform import interrupts

if TYPE_CHECKING:
    from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
    from embeddedpulsar.message_id import MessageId


class Reconsuming(Generic[T]):
    """The retry methods of `Consumer`. Not in ``pulsar-client`` for Python."""

    _core: ConsumerCore

    def reconsume_later(
        self, message: Message[T], delay_ms: int, properties: dict[str, str] | None = None
    ) -> None:
        """Have a message delivered again later, through the retry topic, and acknowledge it.

        A copy is stored in the retry topic, then the message is acknowledged: a process that dies in between
        leaves both. The copy has the same payload, keys and event time, its own properties and
        ``properties``, and also ``RECONSUMETIMES``, the number of retries; ``DELAY_TIME``; and, from the
        first retry on, ``REAL_TOPIC``, ``ORIGIN_MESSAGE_ID`` and ``ORIGIN_MESSAGE_IDY_TIME`` of the original.
        After ``max_redeliver_count`` retries (16 without a ``dead_letter_policy``) the message goes to the
        dead letter topic instead.

        Args:
            message: as received by this consumer.
            delay_ms: delay of the delivery; less than 0 counts as 0. Shared and Key_Shared subscriptions
                apply the delay, others deliver at once.
            properties: added to the copy, replacing those of the same names. Not one of the names above.

        Raises:
            InvalidConfiguration: the consumer was made without ``enable_retry``.
            TypeError: not a message.
            ValueError: another argument has a wrong type.
            AlreadyClosed: the consumer is closed.
            PulsarException: the copy could not be stored (see `Producer.send`); the message is redelivered
                after a delay.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     consumer = client.subscribe("orders", "billing", enable_retry=True)
            ...     message_id = client.create_producer("orders").send(b"order 1")
            ...     consumer.reconsume_later(consumer.receive(), 0, {"reason": "no paper"})
            ...     again = consumer.receive()
            ...     again.topic_name(), again.properties()["reason"], again.properties()["RECONSUMETIMES"]
            ('persistent://public/default/orders-billing-RETRY', 'no paper', '1')
        """
        with interrupts.translated:
            self._send_round(message, delay_ms, properties, cumulative=False)
        self.acknowledge(message)

    def reconsume_later_cumulative(
        self, message: Message[T], delay_ms: int, properties: dict[str, str] | None = None
    ) -> None:
        """`reconsume_later`, which also acknowledges everything before the message.

        Raises:
            CumulativeAcknowledgementNotAllowedError: the subscription is Shared or Key_Shared.
        """
        with interrupts.translated:
            self._send_round(message, delay_ms, properties, cumulative=True)
        self.acknowledge_cumulative(message)

    def _send_round(
        self, message: Message[T], delay_ms: int, properties: dict[str, str] | None, *, cumulative: bool
    ) -> None:
        core = self._core
        core.delivery.check_open()
        check_message(message)
        if core.retries is None:
            raise InvalidConfiguration("reconsume_later() needs a consumer with enable_retry=True")
        if cumulative and core.session.attachment.delivers_singly:
            raise CumulativeAcknowledgementNotAllowedError(
                "Shared and Key_Shared subscriptions acknowledge one by one; use reconsume_later"
            )
        try:
            core.retries.publish(message, delay_ms, properties)
        except PulsarException:
            entry = message._entry
            core.give_back((entry.ledger_id, entry.entry_id))
            raise

    def acknowledge(self, message: Message[T] | MessageId) -> None:
        """See `Consumer`."""
        raise NotImplementedError(f"{type(self).__name__} does not define acknowledge()")

    def acknowledge_cumulative(self, message: Message[T] | MessageId) -> None:
        """See `Consumer`."""
        raise NotImplementedError(f"{type(self).__name__} does not define acknowledge_cumulative()")


def check_message(message: object) -> None:
    """Refuse an id: the copy needs the payload."""
    if not isinstance(message, Message):
        raise TypeError(f"expected a Message, not {type(message).__name__}")
