"""The interceptors of one producer, between its interface and its publisher."""

from __future__ import annotations

from embeddedpulsar.client.arguments import NO_OPTIONS, with_key
from embeddedpulsar.client.producer.pending_entry import ErrorTaker, tell_failure
from embeddedpulsar.client.producer.producer_message import ProducerMessage
from embeddedpulsar.exceptions import PulsarException, UnknownError
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from embeddedpulsar.client.arguments import Options
    from embeddedpulsar.client.interceptors import InterceptorChain
    from embeddedpulsar.client.producer.partitioned_publisher import PartitionedPublisher
    from embeddedpulsar.client.producer.pending_entry import SendCallback
    from embeddedpulsar.client.producer.publisher import Publisher
    from embeddedpulsar.client.transaction import Transaction
    from embeddedpulsar.message_id import MessageId
    from embeddedpulsar.results import Result


class Interception:
    """Passes the messages of one producer to its interceptors.

    Producers without interceptors have none, and no checks for it in their hot paths.

    Attributes:
        topic_name, schema, partition, encode, wall_ms: see `producer_message.Sender`.
    """

    by_message = False

    def __init__(
        self,
        publisher: Publisher | PartitionedPublisher,
        encode: Callable[[Any], bytes],
        chain: InterceptorChain,
    ) -> None:
        self._publisher = publisher
        self._failure: BaseException | None = None
        self.chain = chain
        self.topic_name, self.schema, self.partition = publisher.topic_name, publisher.config.schema, -1
        self._plain = encode
        self.wall_ms: Callable[[], int] = publisher.wall_ms

    def encode(self, content: Any, options: Options) -> tuple[bytes, Options]:
        if self.schema.separates_key:
            return with_key(self.schema, content, options)
        return self._plain(content), options

    def send(self, content: Any, options: Options, txn: Transaction | None = None) -> MessageId:
        message = self.chain.before_send(ProducerMessage(self, content, options))
        try:
            sent = self._publisher.send(message.payload, message.options, txn)
        except PulsarException as error:
            self.chain.on_send_acknowledgement(message, None, error)
            raise
        self.chain.on_send_acknowledgement(message, sent, None)
        return sent

    def enqueue(
        self,
        content: Any,
        callback: SendCallback | None,
        options: Options | None,
        txn: Transaction | None = None,
    ) -> None:
        message = self.chain.before_send(ProducerMessage(self, content, options or NO_OPTIONS))
        told = None  # raises, because no interceptor can be called any more
        if callback is not None or not self._publisher.is_closed:
            told = _Told(self, message, callback)
        given = None if message.options == NO_OPTIONS else message.options
        self._publisher.enqueue(message.payload, told, given, txn)

    def note_failure(self, error: BaseException) -> None:
        """Keep a failure that no callback received, for the next flush."""
        self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise a failure that no callback received, once."""
        error, self._failure = self._failure, None
        if error is not None:
            raise error


class _Told(ErrorTaker):
    """The callback of one `send_async`, which calls the interceptors before the application."""

    __slots__ = ("_callback", "_interception", "_message")

    def __init__(
        self, interception: Interception, message: ProducerMessage[Any], callback: SendCallback | None
    ) -> None:
        self._interception = interception
        self._message = message
        self._callback = callback

    def __call__(self, result: Result, message_id: MessageId) -> None:
        self._interception.chain.on_send_acknowledgement(self._message, message_id, None)
        if self._callback is not None:
            self._callback(result, message_id)

    def failed(self, error: BaseException, message_id: MessageId) -> None:
        self._interception.chain.on_send_acknowledgement(self._message, None, _named(error))
        if self._callback is not None:
            tell_failure(self._callback, error, message_id)
        else:
            self._interception.note_failure(error)

    def __repr__(self) -> str:
        return repr(self._callback)


def _named(error: BaseException) -> PulsarException:
    """Return the error for interceptors: one that is not Pulsar's becomes the error of its result."""
    if isinstance(error, PulsarException):
        return error
    named = UnknownError(f"{type(error).__name__}: {error}")
    named.__cause__ = error
    return named
