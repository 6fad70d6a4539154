"""The consumer of a non-persistent topic: acknowledgements and seeks are accepted, and do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.subscription.attachment.volatile_attachment import GIVEN
from embeddedpulsar.client.arguments import id_parts
from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
from embeddedpulsar.exceptions import CumulativeAcknowledgementNotAllowedError
from embeddedpulsar.message import Message

if TYPE_CHECKING:
    from embeddedpulsar.client.consumer.consumer_session import ConsumerSession
    from embeddedpulsar.message_id import MessageId


class VolatileCore(ConsumerCore):
    """The operations of a consumer of one non-persistent topic.

    Role: a message is acknowledged by the attachment when the application takes it, once for ever; so what an
    application does with it afterwards changes nothing.
    """

    def __init__(self, session: ConsumerSession) -> None:
        super().__init__(session)
        self.fetched = self
        self._notes_entries = True
        self.queue.prepare = None
        self._hold: Any = session.attachment

    def popleft(self) -> Message[Any]:
        """Take a message, and note that its entry is given if it is the first of it. Hot: 0.2 us."""
        message = self._messages.popleft()
        entry: Any = message._entry
        if entry.acked is not None:
            return message
        if self._delivers_singly:
            return self._begin_entry(message)
        hold, count = self._hold, entry.count
        flags = GIVEN if count == 1 else bytearray(count + 1)
        if not hold.is_waiting:
            hold.given(entry)
        elif entry.acked is None:
            # As `given`, without the call. No other thread comes between the test and these steps, because
            # there is no call among them.
            entry.acked = flags
            hold.words[hold.given_at] = hold.count = hold.count + count
            hold.last = entry
        return message

    def acknowledge(self, message: Message[Any] | MessageId) -> None:
        if message.__class__ is not Message:
            id_parts(message)
        if self.delivery.closed_text:
            self.delivery.check_open()

    def acknowledge_cumulative(self, message: Message[Any] | MessageId) -> None:
        self.acknowledge(message)
        if self._delivers_singly:
            raise CumulativeAcknowledgementNotAllowedError(
                "on a Shared or Key_Shared subscription messages are acknowledged one by one"
            )

    def negative_acknowledge(self, message: Message[Any] | MessageId) -> None:
        id_parts(message)

    def redeliver(self) -> None:
        """Do nothing: no message comes twice."""

    def seek(self, target: MessageId | int) -> None:
        """Do nothing: there is no earlier message, and the end of the log is where a consumer is."""
        self.delivery.check_open()
