"""Producers with interceptors.

`producer_opening` chooses the class, so producers without interceptors have no checks for them. The chain is
bound to its producer before the producer attaches to a topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from embeddedpulsar.client.producer.partitioned.partitioned_producer import PartitionedProducer
from embeddedpulsar.client.producer.pending_entry import ErrorTaker, tell_failure
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.client.producer.producer_message import ProducerMessage, Sender
from embeddedpulsar.exceptions import OperationNotSupported, PulsarException, UnknownError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.common.interceptor_chain import InterceptorChain
    from embeddedpulsar.client.producer.pending_entry import SendCallback
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.client.producer.publisher import Publisher
    from embeddedpulsar.enums import Result
    from embeddedpulsar.message_id import MessageId


class InterceptingProducer(Producer[Any]):
    """A producer that passes its messages to interceptors."""

    def __init__(self, session: ProducerSession, publisher: Publisher) -> None:
        self._bind(session.client, session.config)
        super().__init__(session, publisher)
        self._begin(session.config, session.wall_ms)

    def _bind(self, core: ClientContext, config: ProducerConfig) -> None:
        assert config.chain is not None
        self._chain: InterceptorChain = config.chain
        self._chain.bind(core, self)

    def _begin(self, config: ProducerConfig, wall_ms: Callable[[], int]) -> None:
        self._sender = Sender(self.topic(), self._encoded, config.schema, wall_ms)
        self._unseen: BaseException | None = None
        self._chain.begin()

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
            super().send_async(content, None)  # raises, because no interceptor can be called any more
        super().send_async(callback=_Told(self, message, callback), **message.arguments)

    def _publish_all(self, portions: Any) -> NoReturn:
        raise OperationNotSupported(
            "interceptors see single messages, and send_many and send_arrow publish columns; use send_async, "
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


class InterceptingPartitionedProducer(InterceptingProducer, PartitionedProducer[Any]):
    """A producer of a partitioned topic that passes its messages to interceptors."""

    def __init__(self, core: ClientContext, config: ProducerConfig, partitions: int) -> None:
        self._bind(core, config)
        PartitionedProducer.__init__(self, core, config, partitions)
        self._begin(config, core.store.clock.wall_ms)


class _Told(ErrorTaker):
    """The callback of one `send_async`, which calls the interceptors before the application."""

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
    """Return the error for interceptors: one that is not Pulsar's becomes the error of its result."""
    if isinstance(error, PulsarException):
        return error
    named = UnknownError(f"{type(error).__name__}: {error}")
    named.__cause__ = error
    return named


_NOT_FIELDS = ("self", "callback", "__class__")
