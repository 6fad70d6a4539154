"""The consumer of several topics, of the partitions of a topic, or of a topic and its retry topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.dead_letter.reconsuming import check_message
from embeddedpulsar.exceptions import OperationNotSupported

if TYPE_CHECKING:
    from embeddedpulsar.client.consumer.topic_group.multi_topics_consumer_core import MultiTopicsCore
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId


class MultiTopicsConsumer(Consumer[T]):
    """A `Consumer` of several topics.

    `Client.subscribe` makes it for a list, a partitioned topic, or ``enable_retry``. Partitions count as
    topics, and partitions added later join, from their first message on. Each topic keeps its order; there is
    no order between topics, which take turns. Messages and ids are acknowledged on their topic; those of
    other topics raise `OperationNotSupported`.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client, client.subscribe(["red", "blue"], "all") as consumer:
        ...     for topic in ("red", "blue"):
        ...         message_id = client.create_producer(topic).send(topic.encode())
        ...     sorted(consumer.receive().data() for _ in range(2))
        [b'blue', b'red']
    """

    _core: Any

    def __init__(self, core: MultiTopicsCore) -> None:
        super().__init__(core)  # type: ignore[arg-type]

    def _save(self) -> None:
        """Write the acknowledgements of every topic at the end of the program."""
        self._core.save()

    def acknowledge(self, message: Message[T] | MessageId) -> None:
        """Acknowledge one message on its topic; see `Consumer.acknowledge`."""
        child = self._core.child_of(message)
        if child is not None:
            child.acknowledge(message)

    def acknowledge_cumulative(self, message: Message[T] | MessageId) -> None:
        """Acknowledge this message and everything before it on its topic."""
        child = self._core.child_of(message)
        if child is not None:
            child.acknowledge_cumulative(message)

    def negative_acknowledge(self, message: Message[T] | MessageId) -> None:
        """Have a message delivered again after the delay; see `Consumer.negative_acknowledge`."""
        if self._core.delivery.closed_text:
            return
        child = self._core.child_of(message)
        if child is not None:
            child.negative_acknowledge(message)

    def _send_round(
        self, message: Message[T], delay_ms: int, properties: dict[str, str] | None, *, cumulative: bool
    ) -> None:
        check_message(message)
        self._core.child_of(message)._send_round(message, delay_ms, properties, cumulative=cumulative)

    def get_last_message_id(self) -> MessageId:
        """Raise an error, because each topic has its own last message.

        Raises:
            OperationNotSupported: always.
        """
        self._core.delivery.check_open()
        raise OperationNotSupported("a consumer of several topics has no last message; ask for one topic's")
