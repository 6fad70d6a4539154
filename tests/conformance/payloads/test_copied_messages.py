"""Copies of messages and ids, by `copy`, `dataclasses.asdict` and `pickle`, stand for the originals."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import multiprocessing
import pickle
import queue
from collections.abc import Callable
from typing import Any

import pytest

import embeddedpulsar.asyncio as asyncio_client
from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, Message, MessageId
from embeddedpulsar import schema as schemas
from embeddedpulsar.schema import (
    AutoConsumeSchema,
    AutoProduceBytesSchema,
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    ProtobufNativeSchema,
    Record,
    StringSchema,
)

protobuf = pytest.importorskip("google.protobuf.wrappers_pb2")


class Order(Record):
    """A record that another process can import."""

    table = Integer()


@dataclasses.dataclass
class Meal:
    """A model."""

    table: int


@dataclasses.dataclass
class Job:
    """What a program puts a message into."""

    message: Any


def through_pickle(one: Any) -> Any:
    """Written and read again."""
    return pickle.loads(pickle.dumps(one))


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "asdict": lambda one: dataclasses.asdict(Job(one))["message"],
    "replace": lambda one: dataclasses.replace(Job(one)).message,
    "pickle": through_pickle,
    "pickle-0": lambda one: pickle.loads(pickle.dumps(one, 0)),
    "twice": lambda one: through_pickle(copy.deepcopy(through_pickle(one))),
}
EARLIEST = InitialPosition.Earliest


@pytest.mark.parametrize("kind", ["single", "batched", "chunked", "partitioned", "several"])
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_acknowledged_as_the_message(client: Client, store_url: Any, way: str, kind: str):
    """Copies of messages and of ids: nothing is delivered again."""
    topics: Any = ["a", "b"] if kind == "several" else "a"
    if kind == "partitioned":
        with Admin(store_url) as admin:
            admin.topics().create_partitioned_topic("a", 2)
    consumer = client.subscribe(topics, "s", ConsumerType.Shared, initial_position=EARLIEST)
    for topic in topics:
        options = {"chunking_enabled": True} if kind == "chunked" else {"batching_enabled": kind != "single"}
        producer = client.create_producer(topic, **options)
        for number in range(2 if kind == "chunked" else 4):
            data = b"%d" % number * (6_000_000 if kind == "chunked" else 1)
            producer.send_async(data, None, partition_key=str(number))
        producer.flush()
    messages = []
    while (message := consumer.receive_nowait()) is not None:
        messages.append(message)
    assert len(messages) == (2 if kind == "chunked" else 4 * len(topics))
    for number, message in enumerate(messages):
        original = message if number % 2 else message.message_id()
        copied = WAYS[way](original)
        if isinstance(copied, Message):
            assert facts(copied) == facts(message)
        else:
            assert copied == original
        consumer.acknowledge(copied)
    consumer.close()
    with client.subscribe(topics, "s", ConsumerType.Shared) as consumer:
        assert consumer.receive_nowait() is None


def facts(message: Message[Any]) -> tuple[Any, ...]:
    """All that a message says of itself."""
    return (
        message.data(), repr(message.value()), repr(message.message_id()),
        message.topic_name(), message.properties(), message.partition_key(), message.ordering_key(),
        message.publish_timestamp(), message.event_timestamp(), message.redelivery_count(),
        message.schema_version(), message.writer_schema(), message.producer_name(), message.sequence_id(),
        message.has_null_value(), message.encryption_context(),
    )  # fmt: skip


def test_a_part_of_a_batch_is_acknowledged_by_copies(client: Client):
    """By a consumer that never received the batch, or with acknowledgement of batch indexes: the others, and
    only these, are delivered again."""
    producer = client.create_producer("a", batching_enabled=True)
    consumer = client.subscribe("a", "s", ConsumerType.Shared, initial_position=EARLIEST)
    for number in range(4):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    messages = [consumer.receive(5000) for _ in range(4)]
    with client.subscribe("a", "s", ConsumerType.Shared) as other:
        other.acknowledge(through_pickle(messages[1]))
        other.acknowledge(through_pickle(messages[3].message_id()))
    consumer.close()
    with client.subscribe("a", "s", ConsumerType.Shared) as consumer:
        left = [consumer.receive(5000) for _ in range(2)]
        assert [message.data() for message in left] == [b"0", b"2"]
        assert consumer.receive_nowait() is None
        for message in left:
            consumer.acknowledge(through_pickle(message))
    with client.subscribe("a", "s", ConsumerType.Shared) as consumer:
        assert consumer.receive_nowait() is None


def test_a_changed_copy_is_copied(client: Client):
    """That of an interceptor, with its payload and the id of the message."""
    client.create_producer("a").send(b"tea", {"by": "me"})
    message = client.create_reader("a", MessageId.earliest).read_next(5000).replace(data=b"milk")
    for way in WAYS.values():
        copied = way(message)
        assert (copied.data(), copied.properties()) == (b"milk", {"by": "me"})
        assert copied.message_id() == message.message_id()


def test_a_negative_acknowledgement_of_a_copy(client: Client):
    """The message comes again."""
    consumer = client.subscribe("a", "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=1)
    client.create_producer("a").send(b"tea")
    consumer.negative_acknowledge(through_pickle(consumer.receive(5000)))
    again = consumer.receive(5000)
    assert (again.data(), again.redelivery_count()) == (b"tea", 1)


MOMENT = datetime.datetime(2026, 5, 4, 12, 30, tzinfo=datetime.UTC)
LOCAL = MOMENT.replace(tzinfo=None)
SCHEMAS: list[tuple[Any, Any]] = [
    (BytesSchema(), b"x"),
    (StringSchema(), "x"),
    (JsonSchema(Order), Order(table=7)),
    (JsonSchema(Meal), Meal(7)),
    (AvroSchema(Order), Order(table=7)),
    (AvroSchema(None, {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}), {"a": 7}),
    (ProtobufNativeSchema(protobuf.Int32Value), protobuf.Int32Value(value=7)),
    (KeyValueSchema(StringSchema(), JsonSchema(Order)), KeyValue("k", Order(table=7))),
    (
        KeyValueSchema(StringSchema(), JsonSchema(Order), KeyValueEncodingType.SEPARATED),
        KeyValue("k", Order(table=7)),
    ),
    *((getattr(schemas, f"Int{bits}Schema")(), 7) for bits in (8, 16, 32, 64)),
    *((kind(), 1.5) for kind in (schemas.FloatSchema, schemas.DoubleSchema)),
    (schemas.BooleanSchema(), True),
    *((kind(), MOMENT) for kind in (schemas.DateSchema, schemas.TimestampSchema, schemas.InstantSchema)),
    *((kind(), LOCAL.time()) for kind in (schemas.TimeSchema, schemas.LocalTimeSchema)),
    (schemas.LocalDateSchema(), LOCAL.date()),
    (schemas.LocalDateTimeSchema(), LOCAL),
]
OF_ALL = pytest.mark.parametrize(("schema", "value"), SCHEMAS, ids=[str(one) for one, _ in SCHEMAS])


@OF_ALL
def test_schemas_are_pickled(client: Client, schema: Any, value: Any):
    """Also after their use, and with the messages that they decode; copies encode and decode alike."""
    copies = [through_pickle(schema), copy.deepcopy(schema), copy.copy(schema)]
    with client.create_producer("a", schema=copies[0]) as producer:
        producer.send(value)
    for other in (*copies, AutoConsumeSchema()):
        with client.create_reader("a", MessageId.earliest, schema=through_pickle(other)) as reader:
            message = reader.read_next(5000)
            expected = repr(message.value())  # classes of Protobuf are made anew of a definition
            assert repr(through_pickle(message).value()) == expected
            with client.create_reader("a", MessageId.earliest, schema=through_pickle(other)) as again:
                assert repr(again.read_next(5000).value()) == expected
    bound = through_pickle(AutoProduceBytesSchema().for_topic(schema.schema_info()))
    assert bound.schema_info() == schema.schema_info()
    assert type(through_pickle(AutoProduceBytesSchema())) is AutoProduceBytesSchema


@OF_ALL
@pytest.mark.parametrize("batching", [False, True])
def test_a_null_value_is_none(client: Client, schema: Any, value: Any, batching: bool):
    """For every schema, and for one that is taken from the topic. An empty payload is not null."""
    with client.create_producer("a", schema=schema, batching_enabled=batching) as producer:
        producer.send_async(None, None)
        producer.send_async(value, None)
        producer.flush()
    for reader_schema in (schema, AutoConsumeSchema()):
        with client.create_reader("a", MessageId.earliest, schema=reader_schema) as reader:
            null, other = reader.read_next(5000), reader.read_next(5000)
            assert (null.value(), null.has_null_value(), null.data()) == (None, True, b"")
            assert through_pickle(null).value() is None
            assert other.value() is not None


@OF_ALL
def test_a_listener_is_told_of_removals(client: Client, store_url: Any, schema: Any, value: Any):
    """With the key and None, whatever the schema; also of those that came while it got the present keys."""
    is_apart = schema.separates_key
    key = schema.partition_key("k") if is_apart else "k"
    with client.create_producer("a", schema=schema) as producer:

        def put(content: Any) -> None:
            if is_apart:
                producer.send(KeyValue("k", None) if content is None else content)
            else:
                producer.send(content, partition_key="k")

        put(value)
        view = client.create_table_view("a", schema=schema)
        changes: queue.Queue[tuple[str, Any]] = queue.Queue()
        seen: list[Any] = []

        def during(one: str, content: Any) -> None:
            """A listener that removes the key while it is told of it."""
            seen.append(content)
            if len(seen) == 1:
                view.for_each_and_listen(lambda *change: changes.put(change))
                put(None)
                assert changes.get(timeout=10)[0] == key
                assert changes.get(timeout=10) == (key, None)

        view.for_each_and_listen(during)
        put(value)
        assert changes.get(timeout=10)[0] == key
        put(None)
        assert changes.get(timeout=10) == (key, None)
        view.close()
    assert [content is None for content in seen][:2] == [False, True]
    assert view.get(key) is None
    assert key not in view


def test_a_listener_of_coroutines_is_told_of_removals(run: Any):
    """With the key and None, in the loop."""

    async def main(client: asyncio_client.Client) -> None:
        producer = await client.create_producer("a", schema=JsonSchema(Order))
        await producer.send(Order(table=7), partition_key="k")
        view = await client.create_table_view("a", schema=JsonSchema(Order))
        changes: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        view.for_each_and_listen(lambda *change: changes.put_nowait(change))
        await producer.send(None, partition_key="k")
        got = [await asyncio.wait_for(changes.get(), 10) for _ in range(2)]
        assert [(key, content and content.table) for key, content in got] == [("k", 7), ("k", None)]

    run(main)


def tables(jobs: Any, done: Any) -> None:
    """What a worker process does with messages: it answers with their values and ids."""
    while (job := jobs.get()) is not None:
        done.put((job.value().table, job.message_id(), job))


def test_messages_go_through_queues_of_processes(client: Client):
    """To a spawned process and back, where they are acknowledged."""
    context = multiprocessing.get_context("spawn")
    jobs, done = context.Queue(), context.Queue()
    worker = context.Process(target=tables, args=(jobs, done))
    worker.start()
    producer = client.create_producer("a", schema=JsonSchema(Order), batching_enabled=True)
    consumer = client.subscribe("a", "s", schema=JsonSchema(Order), initial_position=EARLIEST)
    for number in range(4):
        producer.send_async(Order(table=number), None)
    producer.flush()
    for _ in range(4):
        jobs.put(consumer.receive(5000))
    jobs.put(None)
    for number in range(4):
        table, message_id, message = done.get(timeout=60)
        assert table == number
        consumer.acknowledge(message_id if number % 2 else message)
    worker.join()
    consumer.close()
    with client.subscribe("a", "s") as consumer:
        assert consumer.receive_nowait() is None


def test_what_belongs_to_a_process_says_so(client: Client, run: Any):
    """Producers, consumers, readers and table views are neither pickled nor copied."""
    handles: list[Any] = [
        client.create_producer("a"),
        client.subscribe("a", "s"),
        client.create_reader("a", MessageId.earliest),
        client.create_table_view("a"),
    ]

    async def main(asynchronous: asyncio_client.Client) -> None:
        handles.append(await asynchronous.create_producer("b"))
        handles.append(await asynchronous.subscribe("b", "s"))
        handles.append(await asynchronous.create_reader("b", MessageId.earliest))
        handles.append(await asynchronous.create_table_view("b"))
        for handle in handles:
            for way in (through_pickle, copy.copy, copy.deepcopy):
                with pytest.raises(
                    TypeError, match=f"a {type(handle).__name__} cannot be pickled or copied: "
                ):
                    way(handle)
                with pytest.raises(TypeError, match="open another one there"):
                    way(handle)

    run(main)
    client.create_producer("a").send(b"tea")
    assert handles[1].receive(5000).data() == b"tea"
