"""The consumers of one instance of a function."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.consumer.topic_group.topic_pattern import TopicPattern
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import Timeout
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.schemas import input_schema
from embeddedpulsar.functions.user_code import serde_of
from embeddedpulsar.policies import ConsumerDeadLetterPolicy
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.schema import BYTES
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.functions.serde import SerDe
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId
    from embeddedpulsar.schema.schema import Schema

_SLICE_MS: Final = 50
"""How long one of two consumers is waited for."""


class Taken(NamedTuple):
    """A message that is being processed, and the consumer that has it."""

    message: Message[Any]
    consumer: Consumer[Any]

    def acknowledge(self) -> None:
        """It is processed."""
        self.consumer.acknowledge(self.message)

    def give_back(self) -> None:
        """It is to be processed again, after the delay of the configuration."""
        self.consumer.negative_acknowledge(self.message)


class Inputs:
    """What an instance receives: one consumer for the topics without a schema, one for each with a schema,
    and one for the pattern. One thread."""

    def __init__(self, client: Client, config: FunctionConfig, consumer_name: str) -> None:
        self._config: Final = config
        self._default: Final = serde_of("")
        self._serdes: Final = {
            topic: serde_of(name, config.py) for topic, name in config.custom_serde_inputs.items()
        }
        self._schemas: Final = {topic: input_schema(config, topic) for topic in config.custom_schema_inputs}
        self._consumers: Final[list[Consumer[Any]]] = []
        self._named: Final[dict[str, Consumer[Any]]] = {}
        self._turn = 0
        plain = [topic for topic in config.named_inputs() if topic not in self._schemas]
        topics: list[tuple[Any, Schema[Any]]] = [(plain, BYTES)] if plain else []
        topics += [([topic], schema) for topic, schema in self._schemas.items()]
        topics += [(re.compile(config.topics_pattern), BYTES)] if config.topics_pattern else []
        letters = None
        if config.max_message_retries > 0:
            letters = ConsumerDeadLetterPolicy(config.max_message_retries, config.dead_letter_topic or None)
        try:
            for topic, schema in topics:
                consumer = client.subscribe(
                    topic,
                    config.subscription,
                    subscription_type(config),
                    schema,
                    receiver_queue_size=config.receiver_queue_size,
                    consumer_name=consumer_name,
                    unacked_messages_timeout_ms=config.timeout_ms,
                    negative_ack_redelivery_delay_ms=config.negative_ack_redelivery_delay_ms,
                    initial_position=config.subscription_position,
                    dead_letter_policy=letters,
                )
                self._consumers.append(consumer)
                if isinstance(topic, list):
                    self._named.update(dict.fromkeys(topic, consumer))
        except BaseException:
            self.close()
            raise

    def take(self, timeout_ms: float) -> Taken | None:
        """The next message; None if none came in time."""
        for _ in self._consumers:
            consumer = self._next()
            message = consumer.receive_nowait()
            if message is not None:
                return Taken(message, consumer)
        left_ms = int(timeout_ms)
        while left_ms > 0:
            consumer, wait_ms = self._next(), left_ms
            if len(self._consumers) > 1:
                wait_ms = min(_SLICE_MS, left_ms)
            try:
                return Taken(consumer.receive(wait_ms), consumer)
            except Timeout:
                left_ms -= wait_ms
        return None

    def _next(self) -> Consumer[Any]:
        self._turn = (self._turn + 1) % len(self._consumers)
        return self._consumers[self._turn]

    def value_of(self, message: Message[Any]) -> Any:
        """The value of a message, by the SerDe or schema of its topic; None for a null value of a schema."""
        serde: SerDe = self._default
        if self._serdes or self._schemas:
            base = TopicName.parse(message.topic_name()).base
            if base in self._schemas:
                return None if message.has_null_value() else message.value()
            serde = self._serdes.get(base, serde)
        return serde.deserialize(message.data())

    def acknowledge(self, message_id: MessageId, topic: str) -> None:
        """Acknowledge a message by its id.

        Raises:
            ValueError: the function has no such input.
        """
        base = TopicName.parse(topic).base
        if base not in self._named and not is_of_pattern(self._config, base):
            raise ValueError(f"Invalid topicname {topic}")
        self._named.get(base, self._consumers[-1]).acknowledge(message_id)

    def redeliver(self) -> None:
        """Have all that is not acknowledged delivered again, in order."""
        for consumer in self._consumers:
            consumer.redeliver_unacknowledged_messages()

    def close(self) -> None:
        """Detach. Idempotent."""
        for consumer in self._consumers:
            if consumer.is_connected():
                consumer.close()


def is_of_pattern(config: FunctionConfig, topic: str) -> bool:
    """Whether a topic is an input by the pattern of the configuration.

    Example:
        >>> config = FunctionConfig(topics_pattern="orders-.*")
        >>> is_of_pattern(config, "persistent://public/default/orders-eu")
        True
    """
    return bool(config.topics_pattern) and TopicPattern(re.compile(config.topics_pattern)).matches(topic)


def subscription_type(config: FunctionConfig) -> ConsumerType:
    """The type of the subscription of a function.

    Example:
        >>> subscription_type(FunctionConfig(retain_key_ordering=True))
        <ConsumerType.KeyShared: 3>
    """
    if config.is_effectively_once or config.retain_ordering:
        return ConsumerType.Failover
    return ConsumerType.KeyShared if config.retain_key_ordering else ConsumerType.Shared
