"""A program of a user, whose types `mypy --strict` and pyright check: `make test` runs mypy on it.

What `assert_type` states is what a type checker infers; nothing of this file is executed.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, assert_type

import embeddedpulsar as pulsar
import embeddedpulsar.asyncio as asyncio_client
from embeddedpulsar import Consumer, ConsumerType, Message, MessageId, Producer, Reader, TableView
from embeddedpulsar.policy_values import PublishRate
from embeddedpulsar.schema import (
    AvroSchema,
    BooleanSchema,
    InstantSchema,
    Int64Schema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    LocalDateSchema,
    Record,
    Schema,
    String,
    StringSchema,
)


class Order(Record):
    """A record."""

    item = String()
    count = Integer(required=True)


@dataclass
class Till:
    """A model."""

    number: int


class Celsius(Schema[float]):
    """A schema of the application."""

    def encode(self, obj: float) -> bytes:
        return str(obj).encode()

    def decode(self, data: bytes) -> float:
        return float(data)


def schemas_give_the_type(client: pulsar.Client) -> None:
    """Of producers, consumers, readers and table views, and of their messages."""
    orders = client.subscribe("orders", "kitchen", ConsumerType.Shared, JsonSchema(Order))
    assert_type(orders, Consumer[Order])
    message = orders.receive(timeout_millis=100)
    assert_type(message, Message[Order])
    assert_type(message.value(), Order)
    assert_type(orders.receive_nowait(), Message[Order] | None)
    assert_type(orders.batch_receive(), list[Message[Order]])
    for one in orders:
        assert_type(one.value(), Order)
        orders.acknowledge(one)
        orders.negative_acknowledge(one.message_id())
    producer = client.create_producer("orders", schema=AvroSchema(Order))
    assert_type(producer, Producer[Order])
    assert_type(producer.send(Order(item="soup", count=2)), MessageId)
    producer.send(None, partition_key="table 4")
    producer.send("soup")  # type: ignore[arg-type]
    assert_type(client.create_producer("tills", schema=JsonSchema(Till)), Producer[Till])
    assert_type(client.create_reader("orders", MessageId.earliest, JsonSchema(Order)), Reader[Order])
    assert_type(client.create_table_view("orders", schema=StringSchema()), TableView[str])
    assert_type(client.create_table_view("orders", schema=StringSchema()).get("soup"), str | None)
    assert_type(
        client.create_producer("heat", schema=Celsius(float, pulsar.SchemaType.BYTES, None, "C")),
        Producer[float],
    )


def pairs_and_numbers(client: pulsar.Client) -> None:
    """Schemas of keys and values, of numbers and of times."""
    pairs = KeyValueSchema(StringSchema(), JsonSchema(Order), KeyValueEncodingType.SEPARATED)
    assert_type(pairs, KeyValueSchema[str, Order])
    consumer = client.subscribe("orders", "kitchen", schema=pairs)
    assert_type(consumer, Consumer[KeyValue[str, Order]])
    pair = consumer.receive().value()
    assert_type(pair.key, str)
    assert_type(pair.value, Order)
    producer = client.create_producer("orders", schema=pairs)
    assert_type(producer, Producer[KeyValue[str, Order]])
    producer.send(pair)
    producer.send(KeyValue("table-7", Order(item="soup", count=2)))
    producer.send(KeyValue("table-7", None))
    producer.send(KeyValue(7, Order(item="soup", count=2)))  # type: ignore[arg-type]
    assert_type(client.create_table_view("orders", schema=pairs), TableView[KeyValue[str, Order]])
    assert_type(client.subscribe("counts", "s", schema=Int64Schema()), Consumer[int])
    assert_type(client.create_producer("flags", schema=BooleanSchema()), Producer[bool])
    assert_type(client.create_reader("times", MessageId.earliest, InstantSchema()), Reader[datetime])
    assert_type(client.create_reader("days", MessageId.earliest, LocalDateSchema()), Reader[date])


def without_a_schema(client: pulsar.Client) -> None:
    """Values are bytes."""
    consumer = client.subscribe(["a", "b"], "s")
    assert_type(consumer, Consumer[bytes])
    assert_type(consumer.receive().value(), bytes)
    assert_type(client.subscribe(re.compile("orders-.*"), "s").receive().data(), bytes)
    producer = client.create_producer("a", batching_enabled=True)
    assert_type(producer, Producer[bytes])
    producer.send("text")  # type: ignore[arg-type]
    assert_type(client.create_reader("a", MessageId.latest), Reader[bytes])
    assert_type(client.create_table_view("a"), TableView[bytes])


def listeners(client: pulsar.Client) -> None:
    """Get what the schema says."""

    def on_order(consumer: Consumer[Order], message: Message[Order]) -> None:
        print(message.value().item)
        consumer.acknowledge(message)

    def on_sent(result: pulsar.Result, message_id: MessageId) -> None:
        print(result, message_id)

    client.subscribe("orders", "kitchen", schema=JsonSchema(Order), message_listener=on_order)
    client.create_producer("orders").send_async(b"soup", on_sent)


async def coroutines() -> None:
    """As the blocking client."""
    async with asyncio_client.Client("memory://") as client:
        async with await client.create_producer("orders", schema=JsonSchema(Order)) as producer:
            assert_type(producer, asyncio_client.Producer[Order])
            assert_type(await producer.send(Order(item="soup", count=1)), MessageId)
        consumer = await client.subscribe("orders", "kitchen", schema=JsonSchema(Order))
        assert_type(consumer, asyncio_client.Consumer[Order])
        async for message in consumer:
            assert_type(message, Message[Order])
            await consumer.acknowledge(message)
        plain = await client.subscribe("orders", "bar")
        assert_type((await asyncio.wait_for(plain.receive(), 1)).value(), bytes)
        reader = await client.create_reader("orders", MessageId.earliest, JsonSchema(Order))
        assert_type((await reader.read_next()).value(), Order)
        view = await client.create_table_view("orders", schema=StringSchema())
        assert_type(view.get("soup"), str | None)


def errors_and_admin(store: str) -> None:
    """Are typed, too."""
    with pulsar.connect(store) as client, pulsar.Admin(store) as admin:
        assert_type(client, pulsar.Client)
        assert_type(admin.topics().get_list(), list[str])
        try:
            client.create_producer("orders", access_mode=pulsar.ProducerAccessMode.Exclusive)
        except pulsar.ProducerBusy as error:
            assert_type(error.code, pulsar.Result)
        policy = pulsar.ConsumerDeadLetterPolicy(3)
        client.subscribe("orders", "kitchen", dead_letter_policy=policy, properties={"app": "till"})


def policies(store: str) -> None:
    """Have the types of their values, at both levels."""
    with pulsar.Admin(store) as admin:
        topics, namespaces = admin.topics(), admin.namespaces()
        topics.set_publish_rate("orders", PublishRate(100))
        assert_type(topics.get_publish_rate("orders", applied=True), PublishRate | None)
        topics.set_publish_rate("orders", 100)  # type: ignore[arg-type]
        topics.set_subscription_types_enabled("orders", {ConsumerType.Shared})
        assert_type(topics.get_subscription_types_enabled("orders"), frozenset[ConsumerType] | None)
        namespaces.set_schema_compatibility_strategy("public/default", "BACKWARD")
        strategy = namespaces.get_schema_compatibility_strategy("public/default")
        assert_type(strategy, pulsar.SchemaCompatibilityStrategy | None)
        assert_type(namespaces.get_max_topics_per_namespace("public/default"), int | None)
        assert_type(topics.get_keep_until_subscribed("orders"), bool)
        topics.set_max_topics_per_namespace("orders", 1)  # type: ignore[attr-defined]


def definitions(definition: dict[str, Any]) -> None:
    """Dicts of an Avro definition."""
    assert_type(AvroSchema(None, definition), AvroSchema[dict[str, Any]])
    assert_type(AvroSchema(None, definition).decode(b""), dict[str, Any])
