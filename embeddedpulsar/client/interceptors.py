"""Base classes of what an application may put between itself and a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.consumer.reader import Reader
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.client.producer.producer_message import ProducerMessage
    from embeddedpulsar.exceptions import PulsarException
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId


class ProducerInterceptor:
    """Sees every message of a producer before it is sent, and what became of it. Derive from it.

    Several interceptors of one producer are called in their order, each with what the one before returned. An
    exception one raises is logged; the message goes on as it was. One interceptor may serve several
    producers, and should then expect to be called by several threads at once.

    Pulsar's Java client has these; ``pulsar-client`` has not.

    Example:
        >>> import embeddedpulsar as pulsar
        >>> class Stamp(pulsar.ProducerInterceptor):
        ...     def before_send(self, producer, message):
        ...         return message.replace(properties={**message.properties(), "from": producer.topic()})
        >>> with pulsar.Client("memory://") as client, client.subscribe("orders", "s") as consumer:
        ...     producer = client.create_producer("orders", interceptors=[Stamp()])
        ...     message_id = producer.send(b"one tea")
        ...     consumer.receive().properties()
        {'from': 'persistent://public/default/orders'}
    """

    def eligible(self, message: ProducerMessage[Any]) -> bool:
        """Return whether this interceptor is to see the message; called before `before_send`."""
        return True

    def before_send(self, producer: Producer[Any], message: ProducerMessage[Any]) -> ProducerMessage[Any]:
        """Return the message that is to be sent: this one, or a changed copy (`ProducerMessage.replace`).

        Called by the thread that sends, before the message is routed, batched, compressed or encrypted.
        """
        return message

    def on_send_acknowledgement(
        self,
        producer: Producer[Any],
        message: ProducerMessage[Any],
        message_id: MessageId | None,
        error: PulsarException | None,
    ) -> None:
        """The message is stored, or could not be; called before the sender learns of it.

        Called by the thread of ``send``, and for ``send_async`` by the client's callback thread.

        Args:
            producer: that sent it.
            message: as it was sent.
            message_id: its id; None if there is an error.
            error: why it was not stored, or None.
        """

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """The topic has more partitions now. Called by the client's timer thread."""

    def close(self) -> None:
        """The producer is closed; called once for each."""


class ConsumerInterceptor:
    """Sees every message of a consumer before the application, and what becomes of it. Derive from it.

    Order, errors and threads are as for `ProducerInterceptor`.

    Example:
        >>> import embeddedpulsar as pulsar
        >>> class Count(pulsar.ConsumerInterceptor):
        ...     received = acknowledged = 0
        ...     def before_consume(self, consumer, message):
        ...         self.received += 1
        ...         return message
        ...     def on_acknowledge(self, consumer, message_id, error):
        ...         self.acknowledged += error is None
        >>> count = Count()
        >>> with pulsar.Client("memory://") as client:
        ...     consumer = client.subscribe("orders", "s", interceptors=[count])
        ...     message_id = client.create_producer("orders").send(b"one tea")
        ...     consumer.acknowledge(consumer.receive())
        >>> count.received, count.acknowledged
        (1, 1)
    """

    def before_consume(self, consumer: Consumer[Any], message: Message[Any]) -> Message[Any]:
        """Return the message the application is to get: this one, or a changed copy (`Message.replace`).

        Called by the thread that receives, or that calls the listener, with no lock held.
        """
        return message

    def on_acknowledge(
        self, consumer: Consumer[Any], message_id: MessageId, error: PulsarException | None
    ) -> None:
        """The application acknowledged a message; with ``ack_receipt_enabled`` that is written now."""

    def on_acknowledge_cumulative(
        self, consumer: Consumer[Any], message_id: MessageId, error: PulsarException | None
    ) -> None:
        """The application acknowledged a message and all before it."""

    def on_negative_acks_send(self, consumer: Consumer[Any], message_ids: set[MessageId]) -> None:
        """The delay of negative acknowledgements is over: these entries are asked for again.

        Called by the client's timer thread; the ids name entries, without a batch index.
        """

    def on_ack_timeout_send(self, consumer: Consumer[Any], message_ids: set[MessageId]) -> None:
        """``unacked_messages_timeout_ms`` is over: these entries are asked for again; likewise."""

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """The topic has more partitions now. Called by the client's timer thread."""

    def close(self) -> None:
        """The consumer is closed; called once for each."""


class ReaderInterceptor:
    """Sees every message of a reader before the application gets it; see `ConsumerInterceptor`."""

    def before_read(self, reader: Reader[Any], message: Message[Any]) -> Message[Any]:
        """Return the message the application is to get: this one, or a changed copy (`Message.replace`)."""
        return message

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """The topic has more partitions now. Called by the client's timer thread."""

    def close(self) -> None:
        """The reader is closed; called once for each."""
