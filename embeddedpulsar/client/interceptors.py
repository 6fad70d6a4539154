"""Base classes of the interceptors that an application may define."""

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
    """Sees every message of a producer before it is sent, and the outcome of the send. Subclass it.

    The interceptors of a producer are called in order, each with the message that the previous one returned.
    An exception is logged, and the message continues unchanged. An interceptor that serves several producers
    may be called by several threads at once.

    Pulsar's Java client has interceptors; ``pulsar-client`` has none.

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
        >>> class Watch(pulsar.ProducerInterceptor):
        ...     def eligible(self, message):
        ...         return message.partition_key() == "urgent"
        ...     def on_send_acknowledgement(self, producer, message, message_id, error):
        ...         print(message.data(), error)
        ...     def on_partitions_change(self, topic, partitions):
        ...         print(topic, "has", partitions, "partitions")
        ...     def close(self):
        ...         print("closed")
        >>> with pulsar.Client("memory://") as client:
        ...     producer = client.create_producer("orders", interceptors=[Watch()])
        ...     ids = [producer.send(b"one tea"), producer.send(b"help", partition_key="urgent")]
        ...     producer.close()
        b'help' None
        closed
    """

    def eligible(self, message: ProducerMessage[Any]) -> bool:
        """Return whether this interceptor applies to the message. Called before `before_send`."""
        return True

    def before_send(self, producer: Producer[Any], message: ProducerMessage[Any]) -> ProducerMessage[Any]:
        """Return the message to send: this one, or a changed copy (`ProducerMessage.replace`).

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
        """Called when the message was stored or has failed, before the sender gets the result.

        Called by the thread of ``send``, and for ``send_async`` by the client's callback thread.

        Args:
            producer: the producer that sent the message.
            message: the message as it was sent.
            message_id: its id; None if there is an error.
            error: why it was not stored, or None.
        """

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Called by the client's timer thread when the topic has more partitions."""

    def close(self) -> None:
        """Called once for each producer when it is closed."""


class ConsumerInterceptor:
    """Sees every message of a consumer before the application does, and its acknowledgement. Subclass it.

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
        >>> class Watch(pulsar.ConsumerInterceptor):
        ...     def on_acknowledge_cumulative(self, consumer, message_id, error):
        ...         print("acknowledged to entry", message_id.entry_id())
        ...     def on_negative_acks_send(self, consumer, message_ids):
        ...         print(len(message_ids), "again")
        ...     def on_ack_timeout_send(self, consumer, message_ids):
        ...         print(len(message_ids), "too late")
        ...     def on_partitions_change(self, topic, partitions):
        ...         print(topic, "has", partitions, "partitions")
        ...     def close(self):
        ...         print("closed")
        >>> with pulsar.Client("memory://") as client:
        ...     consumer = client.subscribe("orders", "s", interceptors=[Watch()])
        ...     message_id = client.create_producer("orders").send(b"one tea")
        ...     consumer.acknowledge_cumulative(consumer.receive())
        ...     consumer.close()
        acknowledged to entry 0
        closed
    """

    def before_consume(self, consumer: Consumer[Any], message: Message[Any]) -> Message[Any]:
        """Return the message for the application: this one, or a changed copy (`Message.replace`).

        Called by the thread that receives or that calls the listener, with no lock held.
        """
        return message

    def on_acknowledge(
        self, consumer: Consumer[Any], message_id: MessageId, error: PulsarException | None
    ) -> None:
        """Called after an acknowledgement; with ``ack_receipt_enabled``, once it is written."""

    def on_acknowledge_cumulative(
        self, consumer: Consumer[Any], message_id: MessageId, error: PulsarException | None
    ) -> None:
        """Called when the application has acknowledged a message and all before it."""

    def on_negative_acks_send(self, consumer: Consumer[Any], message_ids: set[MessageId]) -> None:
        """Called when the delay of negative acknowledgements is over, before the entries are redelivered.

        Called by the client's timer thread. The ids name entries, without a batch index.
        """

    def on_ack_timeout_send(self, consumer: Consumer[Any], message_ids: set[MessageId]) -> None:
        """Called when ``unacked_messages_timeout_ms`` is over, likewise."""

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Called by the client's timer thread when the topic has more partitions."""

    def close(self) -> None:
        """Called once for each consumer when it is closed."""


class ReaderInterceptor:
    """Sees every message of a reader before the application does; see `ConsumerInterceptor`.

    Example:
        >>> import embeddedpulsar as pulsar
        >>> class Shout(pulsar.ReaderInterceptor):
        ...     def before_read(self, reader, message):
        ...         return message.replace(data=message.data().upper())
        ...     def on_partitions_change(self, topic, partitions):
        ...         print(topic, "has", partitions, "partitions")
        ...     def close(self):
        ...         print("closed")
        >>> with pulsar.Client("memory://") as client:
        ...     message_id = client.create_producer("log").send(b"line")
        ...     reader = client.create_reader("log", pulsar.MessageId.earliest, interceptors=[Shout()])
        ...     reader.read_next().data()
        ...     reader.close()
        b'LINE'
        closed
    """

    def before_read(self, reader: Reader[Any], message: Message[Any]) -> Message[Any]:
        """Return the message for the application: this one, or a changed copy (`Message.replace`)."""
        return message

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Called by the client's timer thread when the topic has more partitions."""

    def close(self) -> None:
        """Called once for each reader when it is closed."""
