"""The consumer of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.arguments import check_type
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.cluster.cluster_errors import not_supported, translated
from embeddedpulsar.cluster.handle import ClusterSource
from embeddedpulsar.cluster.message import ClusterMessage
from embeddedpulsar.cluster.translation import from_message_id, to_pulsar
from embeddedpulsar.exceptions import Timeout
from embeddedpulsar.message import Message, T
from embeddedpulsar.message_id import MessageId

if TYPE_CHECKING:
    from embeddedpulsar.client.statistics import ConsumerStats


def acknowledgeable(message: Any) -> Any:
    """What ``pulsar-client`` acknowledges: its own message, or its own id."""
    if isinstance(message, ClusterMessage):
        return message.theirs
    if isinstance(message, MessageId):
        return to_pulsar(message)
    raise TypeError(f"a message or a message id of this consumer is expected, not {type(message).__name__}")


class ClusterConsumer(ClusterSource, Consumer[T]):
    """`Consumer` over the consumer of ``pulsar-client``. Thread-safe."""

    def __init__(self, theirs: Any) -> None:
        super().__init__(theirs, theirs._consumer.receive_async)

    def subscription_name(self) -> str:
        return str(self.theirs.subscription_name())

    def consumer_name(self) -> str:
        return str(self.theirs.consumer_name())

    def stats(self) -> ConsumerStats:
        raise not_supported("Consumer.stats()", "ask the admin interface of the cluster")

    def receive(self, timeout_millis: int | None = None) -> Message[T]:
        if timeout_millis is not None:
            check_type(int, timeout_millis, "timeout_millis")
        kept: Message[T] | None = self._awaited.take_kept()
        if kept is not None:
            return kept
        with translated:
            return ClusterMessage(self.theirs.receive(timeout_millis))

    async def receive_async(self) -> Message[T]:
        message: Message[T] = await self._awaited.next()
        return message

    def receive_nowait(self) -> Message[T] | None:
        try:
            return self.receive(0)
        except Timeout:
            return None

    def batch_receive(self) -> list[Message[T]]:
        with translated:
            return [ClusterMessage(message) for message in self.theirs.batch_receive()]

    def acknowledge(self, message: Message[T] | MessageId) -> None:
        with translated:
            self.theirs.acknowledge(acknowledgeable(message))

    def acknowledge_cumulative(self, message: Message[T] | MessageId) -> None:
        with translated:
            self.theirs.acknowledge_cumulative(acknowledgeable(message))

    def negative_acknowledge(self, message: Message[T] | MessageId) -> None:
        with translated:
            self.theirs.negative_acknowledge(acknowledgeable(message))

    def redeliver_unacknowledged_messages(self) -> None:
        with translated:
            self.theirs.redeliver_unacknowledged_messages()

    def reconsume_later(
        self, message: Message[T], delay_ms: int, properties: dict[str, str] | None = None
    ) -> None:
        raise not_supported("Consumer.reconsume_later()", "publish the message with deliver_after")

    def reconsume_later_cumulative(
        self, message: Message[T], delay_ms: int, properties: dict[str, str] | None = None
    ) -> None:
        raise not_supported("Consumer.reconsume_later_cumulative()", "publish the message with deliver_after")

    def pause_message_listener(self) -> None:
        with translated:
            self.theirs.pause_message_listener()

    def resume_message_listener(self) -> None:
        with translated:
            self.theirs.resume_message_listener()

    def seek(self, messageid: MessageId | int) -> None:
        with translated:
            self.theirs.seek(to_pulsar(messageid))

    def get_last_message_id(self) -> MessageId:
        with translated:
            return from_message_id(self.theirs.get_last_message_id(), self.topic())

    def unsubscribe(self) -> None:
        with translated:
            self.theirs.unsubscribe()

    def __repr__(self) -> str:
        state = "open" if self.is_connected() else "closed"
        return f"<Consumer {self.consumer_name()} of {self.subscription_name()!r} on {self.topic()} {state}>"
