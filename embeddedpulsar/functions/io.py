"""The consumers of one instance of a function.

Publishing what a function returns and publishes.

Schemas of the inputs and the output of a function, by the names that its configuration has.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar import schema as schemas
from embeddedpulsar.client.consumer.topic_group.topic_pattern import TopicPattern
from embeddedpulsar.enums import CompressionType, ConsumerType, HashingScheme, SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration, ProducerBusy, Timeout
from embeddedpulsar.functions.engine import Backoff, partition_hash
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.state import Output, Pending
from embeddedpulsar.functions.user_code import find_code, serde_of
from embeddedpulsar.policies import ConsumerDeadLetterPolicy
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.key_value import AutoConsumeSchema
from embeddedpulsar.schema.schema import BYTES, EncodedSchema, Schema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.functions.context import SerDe
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId


_PATIENCE_S: Final = 30.0
"""How long a dead instance may still seem to be connected."""
_OVERHEAD: Final = 64
"""Bytes of a message, or a property, besides its texts; more than there are."""


class Draft(NamedTuple):
    """A message that a function wants to be published.

    Attributes:
        topic: full name.
        payload: as it is stored.
        options: of `Producer.send`, as far as they are given.
        compression: of the message.
        callback: called with the result and the id; None for none.
    """

    topic: str
    payload: bytes
    options: dict[str, Any]
    compression: CompressionType
    callback: Callable[[Any, MessageId], object] | None

    def size(self) -> int:
        """Bytes of it in a commit, about."""
        properties = self.options.get("properties") or {}
        return (
            _OVERHEAD
            + len(self.payload)
            + len(self.topic)
            + sum(len(key) + len(value) + _OVERHEAD for key, value in properties.items())
        )


class OutputProducers:
    """The producers of one instance.

    Role: `send` publishes at once. For EFFECTIVELY_ONCE, `number` decides where each message goes and under
    which sequence id, which is committed with the positions of the inputs; then `publish` stores them. Done
    again under the same producer name and ids, after the death of this process and by another one, it stores
    what is missing and nothing twice: the topics drop duplicates.
    Callers: one thread.

    Args:
        client: of the store.
        name: of the producers; unique among all instances that ever ran.
        schemas: of topics, by their full names; others have none.
    """

    def __init__(self, client: Client, name: str, schemas: Mapping[str, Schema[Any]] | None = None) -> None:
        self.name: Final = name
        self._schemas: Final = schemas or {}
        self._client: Final = client
        # By topic and compression, because a producer has one compression.
        self._plain: Final[dict[tuple[str, CompressionType], Producer[bytes]]] = {}
        self._named: Final[dict[tuple[str, str], Producer[bytes]]] = {}
        self._numbers: Final[defaultdict[str, int]] = defaultdict(int)
        self._turns: Final[defaultdict[str, int]] = defaultdict(int)
        self._partitions: Final[dict[str, int]] = {}
        self._hash: Final = partition_hash(HashingScheme.JavaStringHash)

    def register(self, topic: str) -> None:
        """Have a topic take its schema, before anything is to be published.

        Raises:
            IncompatibleSchema: it does not accept the schema.
        """
        # A producer that attaches registers its schema; nothing is sent.
        self._client.create_producer(topic, schema=self._schema(topic)).close()

    def send(self, draft: Draft) -> MessageId:
        """Publish a message, and return when it is stored.

        Raises:
            PulsarException: it is not stored.
        """
        key = draft.topic, draft.compression
        producer = self._plain.get(key)
        if producer is None:
            producer = self._plain[key] = self._client.create_producer(
                draft.topic, compression_type=draft.compression, schema=self._schema(draft.topic)
            )
        return producer.send(draft.payload, **draft.options)

    # -- EFFECTIVELY_ONCE --------------------------------------------------------------------------

    def number(self, draft: Draft) -> Output:
        """Decide the partition and the sequence id of a message."""
        # The partition is decided here and not by a producer of the partitioned topic: the sequence ids of a
        # partition have to be in the committed entry. It is that of `JavaStringHash`, the default of Pulsar's
        # clients, and without a key the next one in turn.
        partitions = self._prepare(draft.topic)
        topic = draft.topic
        if partitions:
            key = draft.options.get("partition_key")
            turn = self._turns[topic]
            self._turns[topic] = turn + 1
            index = (self._hash(key) if key else turn) % partitions
            topic = TopicName.parse(topic).of_partition(index).full
        self._numbers[topic] += 1  # from 1 on, because 0 counts as not set
        return Output(topic, self._numbers[topic], draft.payload, draft.options, draft.compression.name)

    def publish(self, pending: Pending) -> list[MessageId]:
        """Store the messages that are not stored yet, each in an entry of its own, as single sends do: so
        Key_Shared subscriptions of the output topic keep the order of each key.

        Returns:
            Their ids; ``(-1,-1,-1,-1)`` for those that were stored before.

        Raises:
            ProducerBusy: another process uses that producer name.
            PulsarException: not all are stored. It may be called again.
        """
        ids: list[MessageId] = []
        # `groupby` joins neighbours only, so the outputs keep the order in which the function made them.
        by_place = groupby(pending.outputs, key=lambda output: (output.topic, output.compression))
        for (topic, compression), group in by_place:
            outputs = list(group)
            producer = self._producer_of(pending.producer, topic, CompressionType[compression])
            options = [output.options for output in outputs]
            # Sequence ids that the topic has seen are dropped by it, which makes a second call of this method
            # safe.
            sent = producer.send_many(
                [output.payload for output in outputs],
                partition_keys=_column(options, "partition_key"),
                ordering_keys=_column(options, "ordering_key"),
                properties=_column(options, "properties"),
                event_timestamps=_column(options, "event_timestamp"),
                sequence_ids=[output.sequence_id for output in outputs],
                batching_max_messages=1,
            )
            ids += list(sent)
        return ids

    def publish_for_dead_instance(self, pending: Pending) -> None:
        """`publish` for an instance that died in the middle of it.

        Raises:
            ProducerBusy: it lives.
        """
        pauses, waited_s = Backoff(), 0.0
        while True:
            # The instance is dead, but its producer may still be attached until its death is noticed. If it
            # lives, it is in the middle of its own commit, or stopped: this one then fails, and its
            # supervisor starts another.
            try:
                self.publish(pending)
                break
            except ProducerBusy:
                pause_s = pauses.next()
                if waited_s + pause_s > _PATIENCE_S:
                    raise
                waited_s += pause_s
                self._client._core.store.clock.sleep(pause_s)
        # The name of a dead instance is not used again, so its producers are not kept.
        if pending.producer != self.name:
            self._close([key for key in self._named if key[0] == pending.producer])

    def _producer_of(self, name: str, topic: str, compression: CompressionType) -> Producer[bytes]:
        # One producer for each topic: its sequence ids rise, whatever the compression of single messages.
        producer = self._named.get((name, topic))
        if producer is None:
            base = TopicName.parse(topic).base
            self._prepare(base)
            # Without a time limit for sends: the commit is stored, so giving up here would only leave the
            # work to the next instance.
            producer = self._named[name, topic] = self._client.create_producer(
                topic, name, self._schema(base), send_timeout_millis=0, compression_type=compression
            )
        return producer

    def _schema(self, topic: str) -> Schema[Any]:
        return self._schemas.get(topic, BYTES)

    def _prepare(self, topic: str) -> int:
        """Make a topic that is not there, and have it drop duplicates; return the number of partitions."""
        partitions = self._partitions.get(topic)
        if partitions is None:
            # The topic drops duplicates from now on, whatever was set: without it, outputs that are published
            # again would be there twice. Other topics have no log in which a second copy could be found.
            store = self._client._core.store
            partitions = self._partitions[topic] = store.topics.resolve(topic)
            store.drop_duplicates(topic)
        return partitions

    def _close(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in list(keys):
            producer = self._named.pop(key)
            if producer.is_connected():
                producer.close()

    def close(self) -> None:
        """Detach from all topics. Idempotent."""
        with contextlib.ExitStack() as closing:
            for producer in [*self._plain.values(), *self._named.values()]:
                # A producer may have been detached meanwhile, as by the deletion of its topic.
                if producer.is_connected():
                    closing.callback(producer.close)
            self._plain.clear()
            self._named.clear()


def _column(options: list[dict[str, Any]], name: str) -> list[Any] | None:
    # `send_many` takes None for a column without values, and then has nothing to look at for each message.
    values = [fields.get(name) for fields in options]
    return None if all(value is None for value in values) else values


_OF_CLASSES: Final = ("json", "avro", "protobuf_native")
_OTHERS: Final = (
    *("bytes", "string", "boolean", "int8", "int16", "int32", "int64", "float", "double", "date", "time"),
    *("timestamp", "instant", "local_date", "local_time", "local_date_time"),
)


class _PlainValues(Schema[Any]):
    """Values by the schema of their writer alone: dicts for records."""

    def __init__(self) -> None:
        super().__init__(object, SchemaType.AUTO_CONSUME, None, SchemaType.AUTO_CONSUME.name)
        self._records: Final = AutoConsumeSchema()

    def decode_message(self, msg: Any) -> Any:
        return self._records.decode_message(msg).get_native_object()


def input_schema(config: FunctionConfig, topic: str) -> Schema[Any]:
    """The schema that decodes the messages of an input of ``custom_schema_inputs``.

    Raises:
        InvalidConfiguration: there is none of the name that the configuration has.

    Example:
        >>> config = FunctionConfig("shop.Count", custom_schema_inputs={"names": "string"}).check()
        >>> input_schema(config, "persistent://public/default/names")
        <StringSchema>
    """
    name = config.custom_schema_inputs[topic]
    if name.lower() == "auto_consume":
        return AutoConsumeSchema()
    if name.lower() in _OF_CLASSES and not config.input_type_class_name:
        return _PlainValues()
    return _named(name, config.input_type_class_name, config.py) if name else BYTES


def output_schema(config: FunctionConfig) -> Schema[Any] | None:
    """The schema that encodes what the function returns; None if a SerDe does.

    Raises:
        InvalidConfiguration: there is none of the name that the configuration has.
    """
    name, class_name = config.output_schema_type, config.output_type_class_name
    if name.lower() in _OF_CLASSES and not class_name:
        raise InvalidConfiguration(
            f"the schema {name} of the output needs output_type_class_name, the class of the values"
        )
    return _named(name, class_name, config.py) if name else None


def of_encoded(schema: Schema[Any]) -> Schema[Any]:
    """The schema of a producer of payloads that ``schema`` has encoded."""
    return EncodedSchema(schema.schema_info())


def _named(name: str, class_name: str, py: str) -> Schema[Any]:
    lower = name.lower()
    given = [find_code(class_name, py)] if class_name else []
    # Names of types such as `local_date_time` are those of Pulsar's `SchemaType`, in small letters; the
    # classes are called after them.
    if lower in _OF_CLASSES or lower in _OTHERS:
        words = "".join(word.capitalize() for word in lower.split("_"))
        kind = getattr(schemas, f"{words}Schema")
        schema: Schema[Any] = kind(*given) if lower in _OF_CLASSES else kind()
        return schema
    if "." not in name:
        names = ", ".join((*_OF_CLASSES, *_OTHERS))
        raise InvalidConfiguration(f"a schema is module.Class, or one of {names}, not {name!r}")
    kind = find_code(name, py)
    if not (inspect.isclass(kind) and issubclass(kind, Schema)):
        raise InvalidConfiguration(f"{name} is no class derived from Schema")
    required = [
        parameter
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is inspect.Parameter.empty
    ]
    # As in Pulsar: nothing, the class of the values, or that and the properties of the schema.
    schema = kind(*[*(given or [None]), {}][: len(required)])
    return schema


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
        # The pattern comes last: `acknowledge` relies on it. Topics that share a schema type still get a
        # consumer each, because a consumer has one schema.
        plain = [topic for topic in config.named_inputs() if topic not in self._schemas]
        topics: list[tuple[Any, Schema[Any]]] = [(plain, BYTES)] if plain else []
        topics += [([topic], schema) for topic, schema in self._schemas.items()]
        topics += [(re.compile(config.topics_pattern), BYTES)] if config.topics_pattern else []
        # Without a limit a message is redelivered until the function succeeds.
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
        # The consumers that did subscribe would hold messages.
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_ms: float) -> Taken | None:
        """The next message; None if none came in time."""
        # The consumers take turns, so a topic with a long backlog does not hide the others.
        for _ in self._consumers:
            consumer = self._next()
            message = consumer.receive_nowait()
            if message is not None:
                return Taken(message, consumer)
        # There is no wait for several consumers at once. Each is waited for in slices, so a message of
        # another one waits for 50 ms at most.
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
            # A null value of a schema has no payload to decode.
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
        # A topic that matches the pattern and is named belongs to the consumer that names it; the rest to the
        # one of the pattern.
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
