"""The context of one instance of a function, the logger of it, and its log topic.

The consumers of an instance.

Publishing what a function returns and publishes.

Schemas of the inputs and the output of a function, by the names that its configuration has.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import numbers
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar import schema as schemas
from embeddedpulsar.client.consumer.topic_pattern import TopicPattern
from embeddedpulsar.enums import CompressionType, ConsumerType, HashingScheme, SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration, ProducerBusy, Timeout
from embeddedpulsar.functions.context import Context
from embeddedpulsar.functions.engine import Backoff, partition_hash
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.state import Changes, InstanceReport, Output, Pending, StateLog
from embeddedpulsar.functions.user_code import SecretsProvider, find_code, serde_of
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policies import ConsumerDeadLetterPolicy
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.results import Result
from embeddedpulsar.schema.key_value import AutoConsumeSchema
from embeddedpulsar.schema.schema import BYTES, EncodedSchema, Schema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.client.consumer.consumer import Consumer
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.functions.serde import SerDe
    from embeddedpulsar.message import Message


_MS_PER_MINUTE: Final = 60_000
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
        """`publish` for an instance that died in the middle of it, however long ago.

        Raises:
            ProducerBusy: it lives.
        """
        pauses, waited_s = Backoff(), 0.0
        while True:
            # The instance is dead, but its producer may still be attached until its death is noticed. If it
            # lives, it is in the middle of its own commit, or stopped: this one then fails, and its
            # supervisor starts another.
            try:
                self.publish(self._without_stored(pending))
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

    def _without_stored(self, pending: Pending) -> Pending:
        """Leave out what the logs have, if the topics may have forgotten the name of the producer: they do so
        some hours after its death."""
        store = self._client._core.store
        forget_after_ms = store.settings.brokerDeduplicationProducerInactivityTimeoutMinutes * _MS_PER_MINUTE
        # Half of the time: the clock may have been set meanwhile. Before, no log is read.
        if not 0 < pending.committed_ms < store.clock.wall_ms() - forget_after_ms // 2:
            return pending
        highest: dict[str, int] = {}
        for topic in {output.topic for output in pending.outputs}:
            highest[topic] = self._highest_stored(topic, pending)
        # The outputs of a topic are stored in the order of their sequence ids.
        outputs = [output for output in pending.outputs if output.sequence_id > highest[output.topic]]
        return pending._replace(outputs=outputs)

    def _highest_stored(self, topic: str, pending: Pending) -> int:
        """The highest sequence id of a dead producer that the log of a topic has; 0 for none."""
        highest = 0
        with self._client.create_reader(topic, MessageId.earliest, isolation="read_uncommitted") as reader:
            reader.seek(max(pending.committed_ms - _MS_PER_MINUTE, 1))
            for message in reader:
                if message.producer_name() == pending.producer:
                    highest = max(highest, message.sequence_id())
        return highest

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


_PRODUCER_OPTIONS: Final = (
    "properties",
    "partition_key",
    "ordering_key",
    "event_timestamp",
    "sequence_id",
    "replication_clusters",
    "disable_replication",
)


class Definition(NamedTuple):
    """A function as it is registered.

    Attributes:
        config: its configuration, checked.
        id: made at its creation.
        version: how often it was updated.
        is_running: whether it is to be run.
        restarts: how often a restart was asked for.
    """

    config: FunctionConfig
    id: str
    version: int = 0
    is_running: bool = True
    restarts: int = 0


class InstanceContext(Context):
    """What one instance shows of itself to its function.

    Role: `begin` comes before each call of the function. What the call does to the state and publishes is in
    `changes` and `drafts` afterwards, for the instance to commit; with ``send``, messages are published at
    once. One thread.

    Args:
        definition: of the function.
        instance: number of the instance.
        state: of the function.
        report: gets the metrics.
        secrets: finds secrets.
        acknowledge: of a message, by id and topic.
        send: publishes a message at once; None to keep it in `drafts`.

    Attributes:
        changes: changes of the state that are not committed.
        drafts: messages that are not published.
        log: the logger of the function.
    """

    def __init__(
        self,
        definition: Definition,
        instance: int,
        state: StateLog,
        report: InstanceReport,
        secrets: SecretsProvider,
        acknowledge: Callable[[MessageId, str], object],
        send: Callable[[Draft], MessageId] | None,
    ) -> None:
        self.changes = Changes()
        self.drafts: list[Draft] = []
        self.log: logging.Logger = logging.getLogger("embeddedpulsar.function")
        self._definition: Final = definition
        self._config: Final = definition.config
        self._instance: Final = instance
        self._state: Final = state
        self._is_followed = False
        self._report: Final = report
        self._secrets: Final = secrets
        self._acknowledge: Final = acknowledge
        self._send: Final = send
        self._serdes: Final[dict[str, SerDe]] = {}
        self._before = Changes()
        self._message: Message[Any]

    def begin(self, message: Message[Any], before: Changes) -> None:
        """A message is about to be processed.

        Args:
            message: the message; with windows, the newest.
            before: changes of earlier messages of the same run, which are not committed yet.
        """
        if before is not self._before:  # of another run, so other instances may have committed meanwhile
            self._is_followed = False
        self._message, self._before = message, before
        self.changes, self.drafts = Changes(), []

    # -- the message and the function --------------------------------------------------------------

    def get_message_id(self) -> MessageId:
        return self._message.message_id()

    def get_message_key(self) -> str:
        return self._message.partition_key()

    def get_message_eventtime(self) -> int:
        return self._message.event_timestamp()

    def get_message_properties(self) -> dict[str, str]:
        return self._message.properties()

    def get_current_message_topic_name(self) -> str:
        return self._message.topic_name()

    def get_partition_key(self) -> str:
        return self._message.partition_key()

    def get_ordering_key(self) -> str:
        return self._message.ordering_key()

    def get_function_tenant(self) -> str:
        return self._config.tenant

    def get_function_namespace(self) -> str:
        return self._config.namespace

    def get_function_name(self) -> str:
        return self._config.name

    def get_function_id(self) -> str:
        return self._definition.id

    def get_instance_id(self) -> int:
        return self._instance

    def get_function_version(self) -> str:
        return str(self._definition.version)

    def get_logger(self) -> logging.Logger:
        return self.log

    def get_user_config_value(self, key: str) -> Any:
        return self._config.user_config.get(key)

    def get_user_config_map(self) -> dict[str, Any]:
        return dict(self._config.user_config)

    def get_secret(self, secret_name: str) -> str | None:
        return self._secrets.provide_secret(secret_name, self._config.secrets.get(secret_name))

    def get_input_topics(self) -> list[str]:
        pattern = [self._config.topics_pattern] if self._config.topics_pattern else []
        return [*self._config.named_inputs(), *pattern]

    def get_output_topic(self) -> str:
        return self._config.output

    def get_output_serde_class_name(self) -> str:
        return self._config.output_serde_class_name

    # -- what it does ------------------------------------------------------------------------------

    def record_metric(self, metric_name: str, metric_value: float) -> None:
        if not isinstance(metric_value, numbers.Real):
            raise TypeError(f"the metric {metric_name} is a number, not {metric_value!r}")
        self._report.record_metric(metric_name, float(metric_value))

    def publish(
        self,
        topic_name: str,
        message: Any,
        serde_class_name: str = "serde.IdentitySerDe",
        properties: dict[str, str] | None = None,
        compression_type: CompressionType | None = None,
        callback: Callable[[Any, MessageId], object] | None = None,
        message_conf: dict[str, Any] | None = None,
    ) -> None:
        options = dict(message_conf or {})
        unknown = sorted(options.keys() - set(_PRODUCER_OPTIONS))
        if unknown:
            raise ValueError(f"message_conf has {', '.join(_PRODUCER_OPTIONS)}, and not {unknown[0]!r}")
        # The argument wins over the same property in `message_conf`, as in Pulsar's SDK.
        if properties:
            options["properties"] = {**(options.get("properties") or {}), **properties}
        # One object for each class, as for the inputs: a SerDe may be slow to make.
        serde = self._serdes.get(serde_class_name)
        if serde is None:
            serde = self._serdes[serde_class_name] = serde_of(serde_class_name, self._config.py)
        topic = TopicName.parse(topic_name).full
        kind = CompressionType.NONE if compression_type is None else compression_type
        self.emit(Draft(topic, serde.serialize(message), options, kind, callback))

    def emit(self, draft: Draft) -> None:
        """Publish a message now, or with the others.

        Raises:
            ValueError: an option that is not possible with EFFECTIVELY_ONCE.
        """
        # EFFECTIVELY_ONCE: the message waits for the commit. What decides about duplicates is the sequence id
        # that `OutputProducers.number` gives it, so the function cannot choose one.
        if self._send is None:
            for name in ("sequence_id", "replication_clusters"):
                if draft.options.pop(name, None):
                    raise ValueError(f"{name} cannot be chosen with EFFECTIVELY_ONCE")
            draft.options.pop("disable_replication", None)
            self.drafts.append(draft)
            return
        message_id = self._send(draft)
        notify(draft, message_id)

    def ack(self, msgid: MessageId, topic: str) -> None:
        self._acknowledge(msgid, topic)

    # -- state -------------------------------------------------------------------------------------

    def incr_counter(self, key: str, amount: int) -> None:
        if isinstance(amount, bool) or not isinstance(amount, int):
            raise TypeError(f"a counter counts in whole numbers, not by {amount!r}")
        # It raises for a key that has a text, before anything is counted.
        self.get_counter(key)
        self.changes.add(_checked(key), amount)

    def get_counter(self, key: str) -> int:
        value = self._found(key)
        if value is not None and not isinstance(value, int):
            raise TypeError(f"{key!r} is no counter: put_state has set it")
        return value or 0

    def del_counter(self, key: str) -> None:
        self.changes.put(_checked(key), None)

    def put_state(self, key: str, value: str | bytes) -> None:
        if not isinstance(value, str | bytes):
            raise TypeError(f"the state of a key is str or bytes, not {type(value).__name__}")
        self.changes.put(_checked(key), value)

    def get_state(self, key: str) -> str | bytes | None:
        value = self._found(key)
        if isinstance(value, int):
            raise TypeError(f"{key!r} is a counter: use get_counter")
        return value

    def _found(self, key: str) -> int | str | bytes | None:
        # Three layers, the newest first: what this call changed, what earlier messages of the run changed,
        # and what is committed. The state topic is read at the first look only, and once for each run: a
        # function without state does not pay for it.
        changes = self.changes
        if key in changes.set:
            return changes.set[key]
        if not self._is_followed:
            self._state.catch_up()
            self._is_followed = True
        committed, amount = self._state.table.value(key, self._before), changes.added.get(key)
        if amount is None:
            return committed
        return (committed if isinstance(committed, int) else 0) + amount


def notify(draft: Draft, message_id: MessageId) -> None:
    """Call the callback of a message that is stored."""
    if draft.callback is not None:
        draft.callback(Result.Ok, message_id)


def _checked(key: str) -> str:
    if not isinstance(key, str) or not key:
        raise TypeError(f"the key of a state is a str that is not empty, not {key!r}")
    return key


def logger_of(full_name: str) -> logging.Logger:
    """The logger of a function: a child of ``embeddedpulsar.function``."""
    return logging.getLogger(f"embeddedpulsar.function.{full_name}")


class LogTopicHandler(logging.Handler):
    """Publishes records of a logger, each as one message with its level in the properties.

    What the publishing itself logs is not published.
    """

    def __init__(self, client: Client, topic: str, full_name: str, instance: int) -> None:
        super().__init__()
        self._producer: Final = client.create_producer(topic)
        self._properties: Final = {"fqn": full_name, "instance": str(instance)}

    def emit(self, record: logging.LogRecord) -> None:
        """Publish a record. What goes wrong is reported as other handlers do."""
        try:
            text = self.format(record).encode()
            self._producer.send(text, properties=self._properties | {"loglevel": record.levelname})
        # A record that cannot be published must not fail the message: the function only logged.
        except Exception:  # noqa: BLE001 - logging reports it; the function goes on
            self.handleError(record)

    def close(self) -> None:
        """Detach from the topic."""
        if self._producer.is_connected():
            self._producer.close()
        super().close()
