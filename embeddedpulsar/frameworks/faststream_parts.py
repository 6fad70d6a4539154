"""The parts of a FastStream broker: messages, commands, the producer, subscribers and publishers.

They are made of parts of FastStream that are private; the module ``faststream`` puts them together.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

try:
    from faststream import Context
    from faststream._internal.configs import (
        BrokerConfig,
        PublisherSpecificationConfig,
        PublisherUsecaseConfig,
        SubscriberSpecificationConfig,
        SubscriberUsecaseConfig,
        UnderlyingDriverAnnotation,
        UnderlyingDriverAnnotations,
    )
    from faststream._internal.constants import EMPTY
    from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
    from faststream._internal.endpoint.publisher.fake import FakePublisher
    from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream._internal.endpoint.subscriber.mixins import TasksMixin
    from faststream._internal.endpoint.utils import ParserComposition, process_msg
    from faststream._internal.parser import DefaultCodec
    from faststream._internal.producer import ProducerProto
    from faststream.exceptions import IncorrectState
    from faststream.message import StreamMessage, decode_message
    from faststream.middlewares import AckPolicy
    from faststream.response import PublishCommand
    from faststream.response.publish_type import PublishType
    from faststream.specification.asyncapi.utils import resolve_payloads
    from faststream.specification.schema import Message as SchemaMessage
    from faststream.specification.schema import Operation, PublisherSpec, SubscriberSpec
except ImportError as error:
    raise ImportError(
        'the FastStream broker needs FastStream 0.7: pip install "embeddedpulsar[faststream]"'
    ) from error

from embeddedpulsar.asyncio.client import Client
from embeddedpulsar.enums import ConsumerType, InitialPosition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from embeddedpulsar.asyncio.consumer import Consumer, Producer
    from embeddedpulsar.message import Message

# Properties of messages that are not headers of the application.
_CONTENT_TYPE: Final = "content-type"
_CORRELATION_ID: Final = "correlation_id"
_REPLY_TO: Final = "reply_to"
# Which request of a topic for answers it is; the answer has it again.
_REQUEST_ID: Final = "request_id"
_OF_FASTSTREAM: Final = (_CONTENT_TYPE, _CORRELATION_ID, _REPLY_TO, _REQUEST_ID)
_REPLIES: Final = "non-persistent://public/default/faststream-reply-"
# Topics for answers that a client keeps, and to which a process that answers keeps producers.
_KEPT: Final = 128
SUBSCRIPTION: Final = "faststream"
"""The subscription of a subscriber that names none."""


@dataclass(frozen=True)
class Received:
    """A message as it came: what a parser of the user gets.

    Attributes:
        topic: its name.
        data: the payload.
        properties: headers, and those of FastStream.
        message_id: a text; empty in a test without a store.
        key: the partition key; empty for none.
        redelivery_count: as for `embeddedpulsar.Message`.
        source: the message and its consumer; None in a test without a store.
    """

    topic: str
    data: bytes
    properties: dict[str, str]
    message_id: str = ""
    key: str = ""
    redelivery_count: int = 0
    source: tuple[Message[bytes], Consumer[bytes]] | None = field(default=None, repr=False)


def _received(message: Message[bytes], consumer: Consumer[bytes]) -> Received:
    return Received(
        message.topic_name(),
        message.data(),
        message.properties(),
        str(message.message_id()),
        message.partition_key(),
        message.redelivery_count(),
        (message, consumer),
    )


class EmbeddedPulsarMessage(StreamMessage[Received]):
    """A message that handlers get: acknowledged, given back, or moved to the dead letters."""

    reject_to: Any = None

    async def ack(self) -> None:
        """Acknowledge it: it is not delivered again."""
        if self.committed is None and self.raw_message.source is not None:
            message, consumer = self.raw_message.source
            await consumer.acknowledge(message)
        await super().ack()

    async def nack(self) -> None:
        """Have it delivered again, after the delay of the subscriber."""
        if self.committed is None and self.raw_message.source is not None:
            message, consumer = self.raw_message.source
            await consumer.negative_acknowledge(message)
        await super().nack()

    async def reject(self) -> None:
        """Move it to the dead letters of the subscription. A crash in between leaves it in both."""
        if self.committed is None and self.raw_message.source is not None:
            message, consumer = self.raw_message.source
            if self.reject_to is not None:
                await self.reject_to(self.raw_message)
            await consumer.acknowledge(message)
        await super().reject()


MessageContext = Annotated[EmbeddedPulsarMessage, Context("message")]
"""The annotation of a parameter of a handler that gets the message."""


def _annotations() -> UnderlyingDriverAnnotations:
    """What a handler that names the class itself has to name instead."""
    hint = UnderlyingDriverAnnotation(type_hint=MessageContext, module=__name__, name="MessageContext")
    return {EmbeddedPulsarMessage: hint}


async def _parse(received: Received) -> EmbeddedPulsarMessage:
    properties = received.properties
    headers = {name: value for name, value in properties.items() if name not in _OF_FASTSTREAM}
    return EmbeddedPulsarMessage(
        raw_message=received,
        body=received.data,
        headers=headers,
        reply_to=properties.get(_REPLY_TO, ""),
        content_type=properties.get(_CONTENT_TYPE),
        correlation_id=properties.get(_CORRELATION_ID),
        message_id=received.message_id or None,
    )


async def _decode(message: StreamMessage[Any]) -> Any:
    return decode_message(message)


class EmbeddedPulsarPublishCommand(PublishCommand):
    """What is to be published: a body, or several for a batch."""

    def __init__(
        self,
        body: Any,
        *,
        _publish_type: PublishType,
        topic: str = "",
        key: str | None = None,
        delay: timedelta | None = None,
        timeout: float | None = None,
        bodies: tuple[Any, ...] = (),
        reply_to: str = "",
        correlation_id: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            body,
            _publish_type=_publish_type,
            reply_to=reply_to,
            destination=topic,
            correlation_id=correlation_id,
            headers=headers,
        )
        self.key = key
        self.delay = delay
        self.timeout = timeout
        self.bodies = bodies
        self.request_id = ""

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """All bodies of a batch."""
        return self.bodies or super().batch_bodies

    @classmethod
    def from_cmd(cls, cmd: Any) -> Any:
        """Return a command of FastStream as one of this class."""
        if isinstance(cmd, cls):
            return cmd
        return cls(
            cmd.body,
            _publish_type=cmd.publish_type,
            topic=cmd.destination,
            reply_to=cmd.reply_to,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
        )

    async def encoded(self, body: Any, codec: Any, serializer: Any) -> tuple[bytes, dict[str, str]]:
        """Return the payload and the properties of a body."""
        payload, content_type = await codec.encode(body, serializer)
        properties = {name: str(value) for name, value in self.headers.items()}
        own = {
            _CONTENT_TYPE: content_type,
            _CORRELATION_ID: self.correlation_id,
            _REPLY_TO: self.reply_to,
            _REQUEST_ID: self.request_id,
        }
        properties.update((name, value) for name, value in own.items() if value)
        return payload, properties


class _Inbox:
    """A topic for the answers to requests, one of which waits at a time."""

    def __init__(self, topic: str, consumer: Consumer[bytes]) -> None:
        self.topic: Final = topic
        self.consumer: Final = consumer
        self.requests = 0

    async def answer(self, request_id: str) -> Received:
        """Return the answer to a request. Second answers to earlier ones are dropped."""
        while True:
            message = await self.consumer.receive()
            await self.consumer.acknowledge(message)
            if message.properties().get(_REQUEST_ID, request_id) == request_id:
                return _received(message, self.consumer)


class TopicProducer(ProducerProto[EmbeddedPulsarPublishCommand]):
    """Publishes to any topic, with one producer of the store for each."""

    def __init__(self, parser: Any, decoder: Any) -> None:
        self._parser = ParserComposition(parser, _parse)
        self._decoder = ParserComposition(decoder, _decode)
        self.codec: Any = DefaultCodec()
        self._serializer: Any = None
        self._client: Client | None = None
        self._producers: dict[str, asyncio.Task[Producer[bytes]]] = {}
        self._answering: OrderedDict[str, asyncio.Task[Producer[bytes]]] = OrderedDict()
        self._inboxes: list[_Inbox] = []

    def connect(self, client: Client, serializer: Any, codec: Any) -> None:
        """Publish by a client from now on."""
        self._client, self._serializer, self.codec = client, serializer, codec or DefaultCodec()

    def disconnect(self) -> None:
        """Publish no more."""
        self._client = None
        self._inboxes.clear()
        self._answering.clear()
        self._producers.clear()

    @property
    def client(self) -> Client:
        """The client."""
        if self._client is None:
            raise IncorrectState("the broker is not connected; call connect() or start() first")
        return self._client

    async def _attached(self, topic: str) -> Producer[bytes]:
        is_answer = topic.startswith(_REPLIES)
        producers = self._answering if is_answer else self._producers
        task = producers.get(topic)
        if task is None or (task.done() and task.exception() is not None):
            # A batch goes whole to one consumer of a Shared subscription, so messages are not batched.
            opening = self.client.create_producer(topic, batching_enabled=False)
            task = producers[topic] = asyncio.ensure_future(opening)
        if is_answer:
            # Clients come and go, and each has topics of its own.
            self._answering.move_to_end(topic)
            while len(self._answering) > _KEPT:
                _, oldest = self._answering.popitem(last=False)
                await (await asyncio.shield(oldest)).close()
        return await asyncio.shield(task)

    async def publish(self, cmd: EmbeddedPulsarPublishCommand) -> str:
        """Store a message; return its id."""
        payload, properties = await cmd.encoded(cmd.body, self.codec, self._serializer)
        producer = await self._attached(cmd.destination)
        message_id = await producer.send(
            payload, properties=properties, partition_key=cmd.key, deliver_after=cmd.delay
        )
        return str(message_id)

    async def publish_batch(self, cmd: EmbeddedPulsarPublishCommand) -> None:
        """Store several messages."""
        messages = [await cmd.encoded(body, self.codec, self._serializer) for body in cmd.batch_bodies]
        await (await self._attached(cmd.destination)).send_many(
            [payload for payload, _ in messages],
            properties=[properties for _, properties in messages],
            partition_keys=[cmd.key] * len(messages),
        )

    async def request(self, cmd: EmbeddedPulsarPublishCommand) -> Received:
        """Store a message and await the answer, in a topic that is not stored.

        Raises:
            TimeoutError: no answer came in time.
        """
        inbox = self._inboxes.pop() if self._inboxes else await self._opened_inbox()
        inbox.requests += 1
        cmd.reply_to, cmd.request_id = inbox.topic, str(inbox.requests)
        try:
            await self.publish(cmd)
            async with asyncio.timeout(cmd.timeout):
                answer = await inbox.answer(cmd.request_id)
        except BaseException:
            await inbox.consumer.close()
            raise
        if len(self._inboxes) < _KEPT:
            self._inboxes.append(inbox)
        else:
            await inbox.consumer.close()
        return answer

    async def _opened_inbox(self) -> _Inbox:
        topic = f"{_REPLIES}{uuid.uuid4().hex}"
        return _Inbox(topic, await self.client.subscribe(topic, "reply"))

    async def reject(self, topic: str, received: Received) -> None:
        """Store a dead letter."""
        letter = {**received.properties, "REAL_TOPIC": received.topic}
        letter["ORIGIN_MESSAGE_ID"] = received.message_id
        producer = await self._attached(topic)
        await producer.send(received.data, properties=letter, partition_key=received.key or None)


@dataclass(kw_only=True)
class StoreConfig(BrokerConfig):
    """What the parts of a broker share."""

    producer: Any = field(default_factory=lambda: TopicProducer(None, None))
    default_driver_annotations: UnderlyingDriverAnnotations = field(default_factory=_annotations)

    def connect(self, client: Client) -> None:
        """Have the producer publish by a client."""
        self.producer.connect(client, self.fd_config._serializer, self.broker_codec)


@dataclass(kw_only=True)
class SubscriberDescription(SubscriberSpecificationConfig):
    """What a subscriber says of itself in a document."""

    topic: str


class SubscriberDocument(SubscriberSpecification[StoreConfig, SubscriberDescription]):
    """A subscriber in an AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The topic."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channel by its name."""
        message = SchemaMessage(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        operation = Operation(message=message, bindings=None)
        spec = SubscriberSpec(
            address=self.topic, description=self.description, operation=operation, bindings=None
        )
        return {self.name: spec}


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """What a subscriber is made with; see ``subscriber`` of the broker."""

    topic: str
    subscription: str
    consumer_type: ConsumerType
    max_workers: int
    options: dict[str, Any]

    @property
    def ack_policy(self) -> AckPolicy:
        """That of the subscriber, of the broker, or the default: what fails becomes a dead letter."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.REJECT_ON_ERROR


class EmbeddedPulsarSubscriber(TasksMixin, SubscriberUsecase[Received]):
    """Receives the messages of a subscription. Made by `EmbeddedPulsarBroker.subscriber`."""

    _outer_config: Any

    def __init__(
        self, config: SubscriberConfig, specification: SubscriberDocument, calls: CallsCollection[Any]
    ) -> None:
        config.parser, config.decoder = self._parse_own, _decode
        super().__init__(config, specification, calls)
        self._own: Final = config
        self._consumer: Consumer[bytes] | None = None

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._own.topic}"

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._own.subscription

    async def _parse_own(self, received: Received) -> EmbeddedPulsarMessage:
        message = await _parse(received)
        message.reject_to = self._reject
        return message

    async def _reject(self, received: Received) -> None:
        # The name that consumers of Pulsar give to the dead letters of a subscription.
        await self._outer_config.producer.reject(f"{received.topic}-{self.subscription}-DLQ", received)

    async def _attached(self) -> Consumer[bytes]:
        if self._consumer is None:
            options = {"initial_position": InitialPosition.Earliest, **self._own.options}
            self._consumer = await self._outer_config.producer.client.subscribe(
                self.topic, self.subscription, self._own.consumer_type, **options
            )
        return self._consumer

    async def start(self) -> None:
        """Attach, and begin to receive if there are handlers."""
        await super().start()
        if self.calls:
            consumer = await self._attached()
            self._post_start()
            for _ in range(self._own.max_workers):
                self.add_task(self._consume_all, (consumer,), restart_on_failure=False)
        self._post_start()

    async def _consume_all(self, consumer: Consumer[bytes]) -> None:
        async for message in consumer:
            await self.consume(_received(message, consumer))

    async def stop(self) -> None:
        """Wait for the handlers that run, and detach. Other messages go to other consumers."""
        await super().stop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def _processed(self, received: Received | None) -> Any:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        return await process_msg(
            msg=received,
            middlewares=(m(received, context=context) for m in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )

    async def get_one(self, *, timeout: float = 5.0) -> EmbeddedPulsarMessage | None:
        """Return the next message of a subscriber without handlers; None after ``timeout`` seconds."""
        consumer = await self._attached()
        try:
            message = await asyncio.wait_for(consumer.receive(), timeout)
        except TimeoutError:
            return None
        processed: EmbeddedPulsarMessage | None = await self._processed(_received(message, consumer))
        return processed

    async def __aiter__(self) -> AsyncIterator[EmbeddedPulsarMessage]:
        consumer = await self._attached()
        async for message in consumer:
            yield await self._processed(_received(message, consumer))

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[_ReplyPublisher]:
        request_id = message.raw_message.properties.get(_REQUEST_ID, "")
        return (_ReplyPublisher(self._outer_config.producer, message.reply_to, request_id),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what log records say of a message."""
        return {"topic": self.topic, "message_id": getattr(message, "message_id", "")}


class _ReplyPublisher(FakePublisher):
    """Publishes the answer to a request."""

    def __init__(self, producer: Any, topic: str, request_id: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic
        self._request_id = request_id

    def patch_command(self, cmd: PublishCommand) -> EmbeddedPulsarPublishCommand:
        """Send a command to the topic of the answer."""
        reply: EmbeddedPulsarPublishCommand = EmbeddedPulsarPublishCommand.from_cmd(
            super().patch_command(cmd)
        )
        reply.destination = self._topic
        reply.request_id = self._request_id
        return reply


@dataclass(kw_only=True)
class PublisherDescription(PublisherSpecificationConfig):
    """What a publisher says of itself in a document."""

    topic: str


class PublisherDocument(PublisherSpecification[StoreConfig, PublisherDescription]):
    """A publisher in an AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The title, or one made of the topic."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel by its name."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        operation = Operation(
            message=SchemaMessage(title=f"{self.name}:Message", payload=payload), bindings=None
        )
        description = self.config.description_
        return {
            self.name: PublisherSpec(
                address=self.topic, description=description, operation=operation, bindings=None
            )
        }


class EmbeddedPulsarPublisher(PublisherUsecase):
    """Publishes to one topic. Made by `EmbeddedPulsarBroker.publisher`."""

    def __init__(
        self,
        config: PublisherUsecaseConfig,
        specification: Any,
        headers: dict[str, str] | None,
        key: str | None,
    ) -> None:
        super().__init__(config, specification)
        self._topic_of: Final = specification
        self._headers: Final = headers or {}
        self._key: Final = key

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        topic: str = self._topic_of.topic
        return topic

    def _command(self, body: Any, kind: PublishType, options: dict[str, Any]) -> EmbeddedPulsarPublishCommand:
        given = {"topic": self.topic, "key": self._key, **options}
        given["headers"] = self._headers | (options.get("headers") or {})
        given["correlation_id"] = options.get("correlation_id") or self._outer_config.id_generator()
        return EmbeddedPulsarPublishCommand(body, _publish_type=kind, **given)

    async def publish(self, message: Any, **options: Any) -> Any:
        """Store a message; see `EmbeddedPulsarBroker.publish`."""
        command = self._command(message, PublishType.PUBLISH, options)
        return await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=())

    async def request(self, message: Any, *, timeout: float | None = 30.0, **options: Any) -> Any:
        """Store a message and await the answer; see `EmbeddedPulsarBroker.request`."""
        command = self._command(message, PublishType.REQUEST, {**options, "timeout": timeout})
        return await self._basic_request(command, producer=self._outer_config.producer)

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        command = EmbeddedPulsarPublishCommand.from_cmd(cmd)
        command.destination = command.destination or self.topic
        command.key = command.key or self._key
        command.add_headers(self._headers, override=False)
        await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )
