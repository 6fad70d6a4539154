"""Base classes of the interceptors that an application may define, and how those of one producer, consumer
or reader are called, one after the other."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar._engine.platform import timing
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.message import Message
from embeddedpulsar.message_id import make
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.client_threads import ClientLog
    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.consumer.reader import Reader
    from embeddedpulsar.client.producer.partitioned_publisher import ProducerMessage
    from embeddedpulsar.client.producer.producer import Producer
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


class InterceptorChain:
    """Calls interceptors in their order. An exception is logged, and the remaining interceptors are called.

    Role: one per producer, consumer or reader with interceptors; the others have no chain. It is called
    without a lock of this package. The chain is bound to its owner before the owner starts, so every call
    names the owner. It is closed with its owner, or with the client.

    Args:
        interceptors: at least one.
    """

    def __init__(self, interceptors: Sequence[Any]) -> None:
        self._interceptors = tuple(interceptors)
        self._core: ClientContext | None = None
        self._owner: Callable[[], Any] = _no_owner

    def bind(self, core: ClientContext, owner: Any) -> None:
        """Call the interceptors for ``owner`` from now on. The owner may still be incomplete."""
        self._owner = weakref.ref(owner)  # timers hold the chain, and must not keep the owner alive
        self._core = core

    @property
    def owner(self) -> Any:
        """The producer, consumer or reader; None before it is bound and after it was collected."""
        return self._owner()

    def begin(self) -> None:
        """Close the interceptors with the owner, which is complete now."""
        assert self._core is not None
        # The client closes the chain if its owner is collected without being closed.
        self._core.at_close[id(self)] = self.close

    @property
    def _log(self) -> ClientLog:
        assert self._core is not None
        return self._core.log

    def before_send(self, message: ProducerMessage[Any]) -> ProducerMessage[Any]:
        # Each gets the message of the one before it. One that raises, or returns no message, is left out, and
        # the message goes on as it was.
        for interceptor in self._interceptors:
            try:
                if interceptor.eligible(message):
                    message = _checked(interceptor.before_send(self.owner, message), type(message))
            except Exception:  # noqa: BLE001 - the user's code
                self._log.exception("before_send of %r failed on %r", interceptor, message)
        return message

    def on_send_acknowledgement(self, message: ProducerMessage[Any], message_id: Any, error: Any) -> None:
        """Report that a message was stored, or that storing it failed."""
        for interceptor in self._interceptors:
            try:
                if interceptor.eligible(message):
                    interceptor.on_send_acknowledgement(self.owner, message, message_id, error)
            except Exception:  # noqa: BLE001 - the user's code
                self._log.exception("on_send_acknowledgement of %r failed on %r", interceptor, message)

    def before_delivery(self, message: Message[Any], hook: str = "before_consume") -> Message[Any]:
        for interceptor in self._interceptors:
            try:
                message = _checked(getattr(interceptor, hook)(self.owner, message), Message)
            except Exception:  # noqa: BLE001 - the user's code
                self._log.exception("%s of %r failed on %r", hook, interceptor, message)
        return message

    def tell(self, hook: str, *arguments: Any) -> None:
        for interceptor in self._interceptors:
            try:
                # The deadline of the call around it is for locks; user code is not cut short by it.
                timing.unbounded(getattr(interceptor, hook), *arguments)
            except Exception:  # noqa: BLE001 - the user's code
                self._log.exception("%s of %r failed", hook, interceptor)

    def telling(
        self, hook: str, redeliver: Callable[[list[RawPosition]], object], partition: int
    ) -> Callable[[list[RawPosition]], object]:
        """Return ``redeliver`` with a call of ``hook`` before it, which runs once even if it is retried."""
        # Positions that were reported and not redelivered yet: `redeliver` raises if a lock is held, and is
        # called again with the same ones.
        known: set[RawPosition] = set()

        def told(positions: list[RawPosition]) -> object:
            ids = {make(*position, -1, partition, 0) for position in positions if position not in known}
            known.update(positions)
            if ids:
                self.tell(hook, self.owner, ids)
            outcome = redeliver(positions)
            known.difference_update(positions)
            return outcome

        return told

    def reporting(self, hook: str, acknowledge: Callable[[Any], object]) -> Callable[[Any], None]:

        def acknowledge_and_tell(message: Message[Any] | MessageId) -> None:
            message_id = message.message_id() if isinstance(message, Message) else message
            try:
                acknowledge(message)
            # Both outcomes are reported, and the error goes to the caller as without interceptors.
            except PulsarException as error:
                self.tell(hook, self.owner, message_id, error)
                raise
            self.tell(hook, self.owner, message_id, None)

        return acknowledge_and_tell

    def listening(self, listener: Callable[[Any, Any], object], hook: str) -> Callable[[Any, Any], object]:
        return lambda owner, message: listener(owner, self.before_delivery(message, hook))

    def close(self) -> None:
        core = self._core
        if core is not None and core.at_close.pop(id(self), None) is not None:
            self.tell("close")


def _no_owner() -> None:
    return None


def _checked(message: object, kind: type[Any]) -> Any:
    if not isinstance(message, kind):
        raise TypeError(f"an interceptor returned {type(message).__name__}, not a message")
    return message


def chain_of(given: Any, kind: type[Any]) -> InterceptorChain | None:
    """Return the chain for the argument ``interceptors``, which is not None; None for an empty list.

    Raises:
        ValueError: the argument is not a list of such interceptors.

    >>> chain_of([5], str)
    Traceback (most recent call last):
    ValueError: Argument interceptors is expected to be a list of str, and 5 is none
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"Argument interceptors is expected to be a list of {kind.__name__}")
    for interceptor in given:
        if not isinstance(interceptor, kind):
            raise ValueError(
                f"Argument interceptors is expected to be a list of {kind.__name__}, "
                f"and {interceptor!r} is none"
            )
    return InterceptorChain(given) if given else None
