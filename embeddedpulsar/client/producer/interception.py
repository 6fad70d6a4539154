"""The interceptors of one producer, between its interface and its publisher, and what they see."""

from __future__ import annotations

from embeddedpulsar.client.arguments import NO_OPTIONS, Options, check_options, with_key
from embeddedpulsar.client.producer.partitioned_publisher import RoutedEntry
from embeddedpulsar.client.producer.pending_entry import ErrorTaker, tell_failure
from embeddedpulsar.exceptions import PulsarException, UnknownError
from embeddedpulsar.message import Message, T
from embeddedpulsar.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from embeddedpulsar.client.interceptors import InterceptorChain
    from embeddedpulsar.client.producer.partitioned_publisher import PartitionedPublisher
    from embeddedpulsar.client.producer.pending_entry import SendCallback
    from embeddedpulsar.client.producer.publisher import Publisher
    from embeddedpulsar.client.transaction import Transaction
    from embeddedpulsar.message_id import MessageId
    from embeddedpulsar.results import Result


class Sender(Protocol):
    """What all messages of one producer share; see `message.Origin`. `Interception` has it."""

    topic_name: str
    schema: Any
    wall_ms: Callable[[], int]
    partition: int
    by_message: bool

    @property
    def encode(self) -> Callable[[Any, Options], tuple[bytes, Options]]:
        """Payload and options of a value."""


class ProducerMessage(Message[T]):
    """A message before it is stored. Producers make it for `ProducerInterceptor`.

    It has the methods of `Message`. It has no position yet: its id is ``(-1,-1,-1,-1)``, its publish time 0.
    Immutable: `replace` makes a changed copy.
    """

    __slots__ = ("_content", "_given", "options", "payload")

    _origin: Sender

    def __init__(self, sender: Sender, content: T | None, options: Options) -> None:
        self._content = content
        self._given = options  # without a key that the schema makes of the content
        self.payload, self.options = sender.encode(content, options)
        super().__init__(RoutedEntry(self.payload, self.options), 0, sender)

    def value(self) -> T:
        """Return the content as it was given to ``send``."""
        return self._content  # type: ignore[return-value]

    def replace(self, **fields: Any) -> ProducerMessage[T]:
        """Return a copy with other arguments of `Producer.send`: ``content``, ``properties`` and so on.

        Raises:
            TypeError: ``send`` has no such argument, or the schema rejects the content.
            ValueError: an argument has a wrong type or value.

        Example:
            >>> from embeddedpulsar.client.arguments import NO_OPTIONS
            >>> from types import SimpleNamespace as Sender
            >>> sender = Sender(topic_name="persistent://public/default/t", partition=-1, wall_ms=int)
            >>> sender.encode = lambda content, options: (content, options)
            >>> ProducerMessage(sender, b"one tea", NO_OPTIONS).replace(partition_key="table-7")
            <Message (-1,-1,-1,-1) of persistent://public/default/t key='table-7' 7 bytes>
        """
        properties, key, ordering_key, sequence_id, event_time, deliver_at, _ = self._given
        given: dict[str, Any] = {
            "content": self._content,
            "properties": properties,
            "partition_key": key,
            "ordering_key": ordering_key,
            "sequence_id": sequence_id,
            "replication_clusters": None,
            "disable_replication": False,
            "event_timestamp": event_time,
            "deliver_at": deliver_at,
            "deliver_after": None,
        }
        # The names are those of `send`: `check_options` would answer a wrong one with another text. Times
        # are checked again, from the clock of the client: ``deliver_after`` counts from now.
        unknown = sorted(fields.keys() - given.keys())
        if unknown:
            raise TypeError(f"send() has no argument {unknown[0]!r}; it has {', '.join(sorted(given))}")
        given |= fields
        content = given.pop("content")
        options = check_options(content is None, **given, now_ms=self._origin.wall_ms)
        return ProducerMessage(self._origin, content, options)


class Interception:
    """Passes the messages of one producer to its interceptors.

    Producers without interceptors have none, and no checks for it in their hot paths.

    Attributes:
        topic_name, schema, partition, encode, wall_ms: see `Sender`.
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
