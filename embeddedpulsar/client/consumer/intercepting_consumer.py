"""Consumers with interceptors; `consumer_opening` chooses the class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.topic_group.multi_topics_consumer import MultiTopicsConsumer
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.message import Message

if TYPE_CHECKING:
    from embeddedpulsar.client.common.interceptor_chain import InterceptorChain
    from embeddedpulsar.message_id import MessageId


class InterceptingConsumer(Consumer[Any]):
    """A consumer that passes its messages to interceptors."""

    def __init__(self, core: Any) -> None:
        self._chain: InterceptorChain = core.config.chain
        self._chain.bind(core.session.client, self)
        super().__init__(core)
        self._chain.begin()

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


class InterceptingMultiTopicsConsumer(InterceptingConsumer, MultiTopicsConsumer[Any]):
    """A consumer of several topics that passes its messages to interceptors."""


def _id_of(message: Message[Any] | MessageId) -> MessageId:
    return message.message_id() if isinstance(message, Message) else message
