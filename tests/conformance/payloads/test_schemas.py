"""Values of a schema through a topic: sent, received, listened to, viewed, and moved to dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from embeddedpulsar import ConsumerType, InitialPosition, MessageId
from embeddedpulsar import asyncio as aio
from embeddedpulsar.schema import Array, Integer, JsonSchema, Record, String


class Line(Record):
    """A record in a record."""

    item = String(required=True)
    count = Integer(default=1)


class Order(Record):
    """What is sent."""

    table = Integer(required=True)
    lines = Array(Line())


@dataclass
class Payment:
    """A model of no library."""

    table: int
    amount: float


def avro() -> Any:
    """The schema of the same records in Avro."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    from embeddedpulsar.schema import AvroSchema

    return AvroSchema(Order)


def protobuf() -> Any:
    """A schema of a class that comes with Protobuf."""
    pytest.importorskip("google.protobuf", reason="the extra is not installed")
    from google.protobuf.wrappers_pb2 import StringValue

    from embeddedpulsar.schema import ProtobufNativeSchema

    return ProtobufNativeSchema(StringValue)


def values_of(schema: Any) -> list[Any]:
    """Some values of its class."""
    kind = schema._record_cls
    if kind is Order:
        return [Order(table=n, lines=[Line(item="soup"), Line(item="é", count=n)]) for n in range(4)]
    if kind is Payment:
        return [Payment(n, n / 2) for n in range(4)]
    return [kind(value=str(n)) for n in range(4)]


KINDS = {
    "json": lambda: JsonSchema(Order),
    "model": lambda: JsonSchema(Payment),
    "avro": avro,
    "protobuf": protobuf,
}


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", KINDS)
def test_values_arrive_as_they_were_sent(topic: Any, kind: str):
    """By single sends, batches and whole columns; consumers and readers have the objects."""
    schema = KINDS[kind]()
    values = values_of(schema)
    consumer = topic.consumer(schema=schema)
    with topic.producer(schema=schema) as producer:
        producer.send(values[0])
        producer.send_async(values[1], None)
        producer.send_many(values[2:])
        with pytest.raises(TypeError):
            producer.send({"table": 1})
    assert [consumer.receive(2000).value() for _ in values] == values
    reader = topic.client.create_reader("topic", MessageId.earliest, schema=schema)
    assert [reader.read_next(2000).value() for _ in values] == values


def test_a_table_view_has_the_objects(topic: Any):
    """The newest of each key."""
    with topic.producer(schema=JsonSchema(Order)) as producer:
        producer.send(Order(table=1), partition_key="a")
        producer.send(Order(table=2), partition_key="a")
    view = topic.client.create_table_view("topic", schema=JsonSchema(Order))
    assert view.get("a") == Order(table=2)


def test_retries_keep_the_payload(topic: Any):
    """A value that is sent again later is the same value."""
    consumer = topic.consumer(schema=JsonSchema(Order), consumer_type=ConsumerType.Shared, enable_retry=True)
    with topic.producer(schema=JsonSchema(Order)) as producer:
        producer.send(Order(table=5))
    consumer.reconsume_later(consumer.receive(2000), 0)
    assert consumer.receive(2000).value() == Order(table=5)


def test_a_payload_that_is_no_value(topic: Any):
    """It can be received, acknowledged and looked at; `value` raises the error of the decoder."""
    consumer = topic.consumer(schema=JsonSchema(Order))
    with topic.producer() as producer:
        producer.send(b"{")
        producer.send(b'{"table": "one"}')
    for error in (ValueError, TypeError):
        message = consumer.receive(2000)
        with pytest.raises(error):
            message.value()
        consumer.acknowledge(message)


def test_coroutines_use_the_same_schemas(tmp_path: Any):
    """In both directions."""
    import asyncio

    async def run() -> None:
        async with aio.Client(str(tmp_path)) as client:
            schema = JsonSchema(Payment)
            consumer = await client.subscribe(
                "t", "s", schema=schema, initial_position=InitialPosition.Earliest
            )
            producer = await client.create_producer("t", schema=schema)
            await producer.send(Payment(1, 2.5))
            assert (await consumer.receive()).value() == Payment(1, 2.5)

    asyncio.run(run())
