"""FastStream: a broker with its subscribers, publishers and routers. Needs
``pip install "embeddedpulsar[faststream]"``.

A broker is made of parts of FastStream that are private, so this is for FastStream 0.7.

Example:
    >>> import asyncio
    >>> broker = EmbeddedPulsarBroker("memory://kitchen", logger=None)
    >>> served = asyncio.Queue()
    >>> @broker.subscriber("orders", subscription="kitchen")
    ... @broker.publisher("dishes")
    ... async def cook(order: str) -> str:
    ...     return f"{order} is ready"
    >>> @broker.subscriber("dishes", subscription="waiter")
    ... async def serve(dish: str) -> None:
    ...     await served.put(dish)
    >>> async def main():
    ...     async with broker:
    ...         await broker.start()
    ...         await broker.publish("soup", "orders")
    ...         return await asyncio.wait_for(served.get(), timeout=20)
    >>> asyncio.run(main())
    'soup is ready'
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

try:
    from fast_depends import dependency_provider
    from faststream._internal.broker import BrokerUsecase
    from faststream._internal.broker.registrator import Registrator
    from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
    from faststream._internal.configs import (
        PublisherUsecaseConfig,
    )
    from faststream._internal.constants import EMPTY
    from faststream._internal.context.repository import ContextRepo
    from faststream._internal.di import FastDependsConfig
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
    from faststream._internal.logger.logging import get_broker_logger
    from faststream._internal.parser import DefaultCodec
    from faststream._internal.producer import ProducerProto
    from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
    from faststream.exceptions import SubscriberNotFound
    from faststream.message import gen_cor_id
    from faststream.middlewares import AckPolicy
    from faststream.response.publish_type import PublishType
    from faststream.specification.schema import BrokerSpec
except ImportError as error:
    raise ImportError(
        'the FastStream broker needs FastStream 0.7: pip install "embeddedpulsar[faststream]"'
    ) from error

from embeddedpulsar.asyncio.client import Client
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.frameworks.faststream_parts import (
    SUBSCRIPTION,
    EmbeddedPulsarMessage,
    EmbeddedPulsarPublishCommand,
    EmbeddedPulsarPublisher,
    EmbeddedPulsarSubscriber,
    MessageContext,
    PublisherDescription,
    PublisherDocument,
    Received,
    StoreConfig,
    SubscriberConfig,
    SubscriberDescription,
    SubscriberDocument,
    TopicProducer,
)

__all__ = [
    "EmbeddedPulsarBroker",
    "EmbeddedPulsarMessage",
    "EmbeddedPulsarPublishCommand",
    "EmbeddedPulsarPublisher",
    "EmbeddedPulsarPublisherArgs",
    "EmbeddedPulsarRoute",
    "EmbeddedPulsarRouter",
    "EmbeddedPulsarSubscriber",
    "MessageContext",
    "Received",
    "TestEmbeddedPulsarBroker",
]

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable, Sequence


class _Registrator(Registrator[Received, StoreConfig]):
    """What brokers and routers share: the decorators."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        subscription: str = SUBSCRIPTION,
        consumer_type: ConsumerType = ConsumerType.Shared,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Any,
    ) -> EmbeddedPulsarSubscriber:
        """Return a decorator of the handlers of a subscription.

        Args:
            topic: its name, behind the prefix of the router.
            subscription: its name. Subscribers and processes of the same one share the messages.
            consumer_type: Shared; or Key_Shared, Failover or Exclusive, for messages in order.
            max_workers: handlers that run at the same time.
            ack_policy: what happens to a message whose handler fails; by default it becomes a dead letter.
            no_reply: whether requests are not answered.
            dependencies, parser, decoder, codec, persistent: as for every broker of FastStream.
            title, description, include_in_schema: of the AsyncAPI document.
            **options: of `embeddedpulsar.asyncio.Client.subscribe`.

        Raises:
            ValueError: ``max_workers`` is not positive.
        """
        if max_workers < 1:
            raise ValueError(f"max_workers is the number of handlers, 1 or more, not {max_workers}")
        calls: CallsCollection[Any] = CallsCollection()
        outer: Any = self.config
        config = SubscriberConfig(
            _outer_config=outer,
            _ack_policy=ack_policy,
            no_reply=no_reply,
            topic=topic,
            subscription=subscription,
            consumer_type=consumer_type,
            max_workers=max_workers,
            options=options,
        )
        specification_config = SubscriberDescription(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        )
        specification = SubscriberDocument(outer, specification_config, calls)
        subscriber = EmbeddedPulsarSubscriber(config, specification, calls)
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        key: str | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> EmbeddedPulsarPublisher:
        """Return a publisher, which publishes, and decorates handlers whose result is published.

        Args:
            topic: its name, behind the prefix of the router.
            headers, key: of messages that have none of their own.
            persistent: as for every broker of FastStream.
            title, description, schema, include_in_schema: of the AsyncAPI document.
        """
        outer: Any = self.config
        specification = PublisherDocument(
            outer,
            PublisherDescription(
                topic=topic,
                title_=title,
                description_=description,
                schema_=schema,
                include_in_schema=include_in_schema,
            ),
        )
        config = PublisherUsecaseConfig(_outer_config=outer)
        publisher = EmbeddedPulsarPublisher(config, specification, headers, key)
        super().publisher(publisher, persistent=persistent)
        return publisher


class EmbeddedPulsarPublisherArgs(ArgsContainer):
    """The arguments of a publisher, for `EmbeddedPulsarRoute`."""


class EmbeddedPulsarRoute(SubscriberRoute):
    """A handler with the arguments of its subscriber, for `EmbeddedPulsarRouter`."""


class EmbeddedPulsarRouter(_Registrator, BrokerRouter[Received, StoreConfig]):
    """Subscribers and publishers that a broker includes, with a prefix before their topics.

    Example:
        >>> router = EmbeddedPulsarRouter(prefix="shop-")
        >>> @router.subscriber("orders")
        ... async def cook(order: str) -> None: ...
        >>> broker = EmbeddedPulsarBroker("./data")
        >>> broker.include_router(router)
        >>> [subscriber.topic for subscriber in broker.subscribers]
        ['shop-orders']
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[EmbeddedPulsarRoute] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[Registrator[Any, Any]] = (),
        parser: Any = None,
        decoder: Any = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=StoreConfig(
                prefix=prefix,
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
                ack_policy=ack_policy,
            ),
            routers=routers,
        )


class _LoggerStorage(DefaultLoggerStorage):
    """The logger of a broker, whose records have the topic and the message id."""

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Do nothing: columns have a fixed width."""

    def get_logger(self, *, context: ContextRepo) -> Any:
        """Return the logger."""
        logger: Any = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="embeddedpulsar",
                default_context={"topic": ""},
                message_id_ln=12,
                fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(message_id)-12s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


class EmbeddedPulsarBroker(_Registrator, BrokerUsecase[Received, Client, StoreConfig]):
    """A FastStream broker whose topics are those of a store.

    Role: each subscriber is a consumer of a subscription, Shared by default, and acknowledges a message when
    its handlers ended. A message whose handler fails goes to the dead letters of the subscription; one whose
    process dies goes to another consumer within milliseconds.

    Coroutines of one loop at a time.

    Args:
        service_url: of the store: a directory, or ``memory://name``.
        graceful_timeout: longest wait for running handlers at the end, seconds.
        ack_policy: of subscribers that have none.
        parser, decoder, codec, dependencies, middlewares, routers: as for every broker of FastStream.
        description, tags: of the AsyncAPI document.
        logger, log_level, apply_types, serializer, provider, context: as for every broker of FastStream.
        **options: of `embeddedpulsar.asyncio.Client`, such as ``durability``.

    Example:
        >>> import asyncio
        >>> broker = EmbeddedPulsarBroker("memory://sums", logger=None)
        >>> @broker.subscriber("numbers")
        ... async def double(number: int) -> int:
        ...     return 2 * number
        >>> async def main():
        ...     async with broker:
        ...         await broker.start()
        ...         answer = await broker.request(21, "numbers", timeout=20)
        ...         return await answer.decode()
        >>> asyncio.run(main())
        42
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str],
        *,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[Registrator[Any, Any]] = (),
        description: str | None = None,
        tags: Iterable[Any] = (),
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
        **options: Any,
    ) -> None:
        self._service_url: Final = service_url
        self._options: Final = options
        super().__init__(
            routers=routers,
            config=StoreConfig(
                producer=TopicProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_logger_state(
                    logger=logger, log_level=log_level, default_storage_cls=_LoggerStorage
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=gen_cor_id,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                description=description,
                url=[str(service_url)],
                protocol="pulsar",
                protocol_version=None,
                tags=tags,
                security=None,
            ),
        )

    async def _connect(self) -> Client:
        client = await asyncio.to_thread(lambda: Client(self._service_url, **self._options))
        self.config.connect(client)
        return client

    async def start(self) -> None:
        """Open the store, attach the subscribers, and begin to receive."""
        await self.connect()
        await super().start()

    async def stop(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> None:
        """Wait for running handlers and close the store."""
        await super().stop(exc_type, exc_val, exc_tb)
        client, self._connection = self._connection, None
        self.config.broker_config.producer.disconnect()
        if client is not None:
            await client.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether the store is open."""
        if self._connection is None:
            return False
        try:
            await asyncio.wait_for(self._connection.get_topic_partitions("ping"), timeout)
        except (AlreadyClosed, TimeoutError):
            return False
        return True

    async def publish(
        self,
        message: Any,
        topic: str,
        *,
        headers: dict[str, Any] | None = None,
        key: str | None = None,
        delay: timedelta | None = None,
        reply_to: str = "",
        correlation_id: str | None = None,
    ) -> str:
        """Store a message.

        Args:
            message: what FastStream can encode.
            topic: its name.
            headers: properties of the message; values become text.
            key: the partition key, by which Key_Shared subscriptions keep the order.
            delay: before consumers of Shared and Key_Shared subscriptions get it, also across restarts.
            reply_to: a topic for the result of the handler.
            correlation_id: None for a new one.

        Returns:
            The message id, as text.

        Raises:
            PulsarException: it is not stored; see `embeddedpulsar.Producer.send`.
        """
        # Through the middlewares of the application, as each broker of FastStream sends.
        command = EmbeddedPulsarPublishCommand(
            message,
            _publish_type=PublishType.PUBLISH,
            topic=topic,
            headers=headers,
            key=key,
            delay=delay,
            reply_to=reply_to,
            correlation_id=correlation_id or self.config.id_generator(),
        )
        message_id: str = await self._basic_publish(command, producer=self.config.producer)
        return message_id

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, Any] | None = None,
        key: str | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """Store several messages as batches, which is faster. A batch goes whole to one consumer.

        Args:
            *messages: what FastStream can encode.
            topic: its name.
            headers, key, correlation_id: of each, as for `publish`.
        """
        command = EmbeddedPulsarPublishCommand(
            None,
            _publish_type=PublishType.PUBLISH,
            topic=topic,
            bodies=messages,
            headers=headers,
            key=key,
            correlation_id=correlation_id or self.config.id_generator(),
        )
        await self._basic_publish_batch(command, producer=self.config.producer)

    async def request(  # type: ignore[override]
        self,
        message: Any,
        topic: str,
        *,
        timeout: float | None = 30.0,
        headers: dict[str, Any] | None = None,
        key: str | None = None,
        correlation_id: str | None = None,
    ) -> EmbeddedPulsarMessage:
        """Store a message and return the result of its handler.

        Args:
            message, topic, headers, key, correlation_id: as for `publish`.
            timeout: longest wait, seconds; None for no limit.

        Raises:
            TimeoutError: no answer came in time.
        """
        command = EmbeddedPulsarPublishCommand(
            message,
            _publish_type=PublishType.REQUEST,
            topic=topic,
            headers=headers,
            key=key,
            timeout=timeout,
            correlation_id=correlation_id or self.config.id_generator(),
        )
        answer: EmbeddedPulsarMessage = await self._basic_request(command, producer=self.config.producer)
        return answer


class TestEmbeddedPulsarBroker(TestBroker[EmbeddedPulsarBroker, EnterType], broker=EmbeddedPulsarBroker):
    """A broker for tests: handlers are called by `publish` itself, without a store.

    With ``with_real=True`` the store is used, and handlers are watched.

    Example:
        >>> import asyncio
        >>> broker = EmbeddedPulsarBroker("./data")
        >>> @broker.subscriber("orders")
        ... async def cook(order: str) -> None: ...
        >>> async def main():
        ...     async with TestEmbeddedPulsarBroker(broker, connect_only=False) as tested:
        ...         await tested.publish("soup", "orders")
        ...         cook.mock.assert_called_once_with("soup")
        >>> asyncio.run(main())
    """

    @contextmanager
    def _patch_producer(self, broker: EmbeddedPulsarBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, _FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: EmbeddedPulsarBroker, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no store."""

    def create_publisher_fake_subscriber(
        self, broker: EmbeddedPulsarBroker, publisher: EmbeddedPulsarPublisher
    ) -> tuple[Any, bool]:
        """Return a subscriber of the topic of a publisher, and whether it is one of the application."""
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        fake = broker.subscriber(publisher.topic, subscription="faststream-test", persistent=False)
        return fake, False


def _subscribers(brokers: Iterable[EmbeddedPulsarBroker]) -> list[Any]:
    return [subscriber for broker in brokers for subscriber in broker.subscribers]


class _FakeProducer(ProducerProto[EmbeddedPulsarPublishCommand]):
    """Calls the handlers of a topic: one subscriber of each subscription."""

    def __init__(self, broker: EmbeddedPulsarBroker, brokers: Sequence[EmbeddedPulsarBroker]) -> None:
        real = broker.config.broker_config.producer
        self._parser, self._decoder = real._parser, real._decoder
        self.codec = broker.config.broker_codec or DefaultCodec()
        self._serializer = broker.config.fd_config._serializer
        self._brokers: Final = brokers

    async def _delivered(self, cmd: EmbeddedPulsarPublishCommand, body: Any) -> list[Any]:
        payload, properties = await cmd.encoded(body, self.codec, self._serializer)
        received = Received(cmd.destination, payload, properties, key=cmd.key or "")
        by_subscription = {
            subscriber.subscription: subscriber
            for subscriber in reversed(_subscribers(self._brokers))
            if subscriber.topic == cmd.destination
        }
        return [await subscriber.process_message(received) for subscriber in by_subscription.values()]

    async def publish(self, cmd: EmbeddedPulsarPublishCommand) -> str:
        """Call the handlers; raise what they raise."""
        await self._delivered(cmd, cmd.body)
        return ""

    async def publish_batch(self, cmd: EmbeddedPulsarPublishCommand) -> None:
        """Call the handlers with each message."""
        for body in cmd.batch_bodies:
            await self._delivered(cmd, body)

    async def request(self, cmd: EmbeddedPulsarPublishCommand) -> Received:
        """Call the handlers and return the first result."""
        async with asyncio.timeout(cmd.timeout):
            results = await self._delivered(cmd, cmd.body)
        if not results:
            raise SubscriberNotFound(f"no subscriber of {cmd.destination} answers")
        answer = EmbeddedPulsarPublishCommand(
            results[0].body,
            _publish_type=PublishType.REPLY,
            headers=results[0].headers,
            correlation_id=results[0].correlation_id,
        )
        payload, properties = await answer.encoded(results[0].body, self.codec, self._serializer)
        return Received(cmd.destination, payload, properties)
