"""Producers, consumers and readers that have interceptors.

Those without are made as ever, and have nothing to ask: the class of one that has some is exchanged when it
is made. These classes stand before the usual ones, whichever those are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from embeddedpulsar.client.consumer import Consumer
from embeddedpulsar.client.interceptor_chain import InterceptorChain
from embeddedpulsar.client.outgoing import ErrorTaker, tell_failure
from embeddedpulsar.client.producer import Producer
from embeddedpulsar.client.producer_message import ProducerMessage, Sender
from embeddedpulsar.client.reader import Reader
from embeddedpulsar.exceptions import OperationNotSupported, PulsarException, UnknownError
from embeddedpulsar.message import Message

if TYPE_CHECKING:
    from datetime import timedelta

    from embeddedpulsar.client.client_core import ClientCore
    from embeddedpulsar.client.outgoing import SendCallback
    from embeddedpulsar.enums import Result
    from embeddedpulsar.message_id import MessageId


class InterceptingProducer(Producer[Any]):
    """A producer, plain or of partitions, that shows its messages to interceptors."""

    _chain: InterceptorChain
    _sender: Sender
    _unseen: BaseException | None

    def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """See `Producer.send`."""
        message = self._intercepted(locals())
        try:
            sent = super().send(**message.arguments)
        except PulsarException as error:
            self._chain.on_send_acknowledgement(message, None, error)
            raise
        self._chain.on_send_acknowledgement(message, sent, None)
        return sent

    def send_async(
        self,
        content: Any,
        callback: SendCallback | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """See `Producer.send_async`."""
        message = self._intercepted(locals())
        if callback is None and not self.is_connected():
            super().send_async(content, None)  # raises: there is nobody to tell
        super().send_async(callback=_Told(self, message, callback), **message.arguments)

    def _publish_all(self, portions: Any) -> NoReturn:
        raise OperationNotSupported(
            "interceptors see one message at a time, and send_many and send_arrow have none; use send_async, "
            "or a producer without interceptors"
        )

    def _intercepted(self, arguments: dict[str, Any]) -> ProducerMessage[Any]:
        given = {name: value for name, value in arguments.items() if name not in _NOT_FIELDS}
        return self._chain.before_send(ProducerMessage(self._sender, given))

    def flush(self) -> None:
        """See `Producer.flush`."""
        super().flush()
        error, self._unseen = self._unseen, None
        if error is not None:
            raise error

    def close(self) -> None:
        """See `Producer.close`."""
        super().close()
        self._chain.close()


class _Told(ErrorTaker):
    """The callback of one `send_async`: the interceptors learn of it first, then the application."""

    __slots__ = ("_callback", "_message", "_producer")

    def __init__(
        self, producer: InterceptingProducer, message: ProducerMessage[Any], callback: SendCallback | None
    ) -> None:
        self._producer = producer
        self._message = message
        self._callback = callback

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self._producer._chain.on_send_acknowledgement(self._message, message_id, None)
        if self._callback is not None:
            self._callback(result, message_id)

    def failed(self, error: BaseException, message_id: MessageId) -> None:
        """See `ErrorTaker.failed`."""
        producer = self._producer
        producer._chain.on_send_acknowledgement(self._message, None, _named(error))
        if self._callback is not None:
            tell_failure(self._callback, error, message_id)
        elif producer._unseen is None:
            producer._unseen = error

    def __repr__(self) -> str:
        return repr(self._callback)


def _named(error: BaseException) -> PulsarException:
    """As interceptors are promised it: what is not Pulsar's has the result that a callback gets."""
    if isinstance(error, PulsarException):
        return error
    named = UnknownError(f"{type(error).__name__}: {error}")
    named.__cause__ = error
    return named


_NOT_FIELDS = ("self", "callback", "__class__")


class InterceptingConsumer(Consumer[Any]):
    """A consumer, of one topic or several, that shows its messages to interceptors."""

    _chain: InterceptorChain

    def receive(self, timeout_millis: int | None = None) -> Message[Any]:
        """See `Consumer.receive`."""
        return self._chain.before_delivery(super().receive(timeout_millis))

    async def receive_async(self) -> Message[Any]:
        """See `Consumer.receive_async`."""
        return self._chain.before_delivery(await super().receive_async())

    def receive_nowait(self) -> Message[Any] | None:
        """See `Consumer.receive_nowait`."""
        message = super().receive_nowait()
        return message if message is None else self._chain.before_delivery(message)

    def batch_receive(self) -> list[Message[Any]]:
        """See `Consumer.batch_receive`."""
        return [self._chain.before_delivery(message) for message in super().batch_receive()]

    def acknowledge(self, message: Message[Any] | MessageId) -> None:
        """See `Consumer.acknowledge`."""
        try:
            super().acknowledge(message)
        except PulsarException as error:
            self._chain.tell("on_acknowledge", self, _id_of(message), error)
            raise
        self._chain.tell("on_acknowledge", self, _id_of(message), None)

    def acknowledge_cumulative(self, message: Message[Any] | MessageId) -> None:
        """See `Consumer.acknowledge_cumulative`."""
        try:
            super().acknowledge_cumulative(message)
        except PulsarException as error:
            self._chain.tell("on_acknowledge_cumulative", self, _id_of(message), error)
            raise
        self._chain.tell("on_acknowledge_cumulative", self, _id_of(message), None)

    def unsubscribe(self) -> None:
        """See `Consumer.unsubscribe`."""
        super().unsubscribe()
        self._chain.close()

    def close(self) -> None:
        """See `Consumer.close`."""
        super().close()
        self._chain.close()


class InterceptingReader(Reader[Any]):
    """A reader that shows its messages to interceptors."""

    _chain: InterceptorChain

    def read_next(self, timeout_millis: int | None = None) -> Message[Any]:
        """See `Reader.read_next`."""
        return self._chain.before_delivery(super().read_next(timeout_millis), "before_read")

    async def read_next_async(self) -> Message[Any]:
        """See `Reader.read_next_async`."""
        return self._chain.before_delivery(await super().read_next_async(), "before_read")

    def read_nowait(self) -> Message[Any] | None:
        """See `Reader.read_nowait`."""
        message = super().read_nowait()
        return message if message is None else self._chain.before_delivery(message, "before_read")

    def close(self) -> None:
        """See `Reader.close`."""
        super().close()
        self._chain.close()


def intercept(core: ClientCore, made: object, chain: InterceptorChain, schema: Any) -> None:
    """Give interceptors to a producer, consumer or reader that was just made."""
    face: Any = made
    if isinstance(made, Producer):
        face._sender = Sender(face.topic(), face._encoded, schema, core.store.clock.wall_ms)
        face._unseen = None
        kind: type[Any] = InterceptingProducer
    else:
        kind = InterceptingConsumer if isinstance(made, Consumer) else InterceptingReader
    face._chain = chain
    face.__class__ = _class_of(kind, face.__class__)
    chain.begin(core, face)


_classes: dict[tuple[Any, Any], type[Any]] = {}


def _class_of(kind: Any, usual: Any) -> type[Any]:
    found = _classes.get((kind, usual))
    if found is None:
        found = type(f"Intercepting{usual.__name__}", (kind, usual), {"__doc__": usual.__doc__})
        _classes[kind, usual] = found
    return found


def _id_of(message: Message[Any] | MessageId) -> MessageId:
    return message.message_id() if isinstance(message, Message) else message
