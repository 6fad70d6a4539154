"""Schemas of numbers and times, and of keys and values, on topics: registered, compared, and decoded."""

from __future__ import annotations

import asyncio
import json
import queue
from datetime import UTC, datetime
from typing import Any

import pytest

import embeddedpulsar.schema as schemas
from embeddedpulsar import (
    Admin,
    BatchingType,
    Client,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    IncompatibleSchema,
    KeySharedMode,
    MessageId,
    ProducerInterceptor,
)
from embeddedpulsar import SchemaCompatibilityStrategy as Strategy
from embeddedpulsar import asyncio as aio
from embeddedpulsar._engine.format.entry import sticky_key_hash
from embeddedpulsar.exceptions import OperationNotSupported
from embeddedpulsar.schema import (
    AutoConsumeSchema,
    AutoProduceBytesSchema,
    AvroSchema,
    BytesSchema,
    Int32Schema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    Record,
    String,
    StringSchema,
)
from embeddedpulsar.schema import KeyValueEncodingType as Encoding
from tests.conformance.compacting import compact


class Order(Record):
    """What values are."""

    item = String(required=True)
    count = Integer(default=0, required_default=True)


class NotedOrder(Record):
    """Compatible with it in both directions."""

    item = String(required=True)
    count = Integer(default=0, required_default=True)
    note = String(required_default=True)


class StrictOrder(Record):
    """Does not read what is written with the others."""

    item = String(required=True)
    waiter = String(required=True)


def test_numbers_and_times_on_topics(client: Client, admin: Admin):
    """Each type is registered, is compatible with itself alone, and is decoded without a class as well."""
    when = datetime(2026, 5, 4, 12, 30, 0, 7000, UTC)
    local = when.replace(tzinfo=None)
    integers = dict.fromkeys((schemas.Int8Schema, schemas.Int16Schema, schemas.Int32Schema), -7)
    moments = dict.fromkeys((schemas.DateSchema, schemas.TimestampSchema, schemas.InstantSchema), when)
    values: dict[Any, Any] = (
        integers
        | moments
        | {
            schemas.Int64Schema: 2**40,
            schemas.FloatSchema: 1.5,
            schemas.DoubleSchema: 0.1,
            schemas.BooleanSchema: True,
            schemas.TimeSchema: local.time(),
            schemas.LocalTimeSchema: local.time(),
            schemas.LocalDateSchema: local.date(),
            schemas.LocalDateTimeSchema: local,
        }
    )
    for kind, value in values.items():
        name = f"of-{kind.__name__}"
        with client.create_producer(name, schema=kind()) as producer:
            producer.send(value)
            producer.send(None)
        with client.create_reader(name, MessageId.earliest, schema=kind()) as reader:
            assert reader.read_next().value() == value
            none = reader.read_next()
            assert none.has_null_value()
            assert none.value() is None
        with client.create_reader(name, MessageId.earliest, schema=AutoConsumeSchema()) as reader:
            record = reader.read_next().value()
            assert (record.get_native_object(), record.get_fields()) == (value, [])
        producer = client.create_producer(name, schema=AutoProduceBytesSchema())
        producer.send(kind().encode(value))
        with pytest.raises(ValueError, match="does not fit"):
            producer.send(bytes(20))
        stored = admin.schemas().get_schema_info(name)
        assert stored is not None
        assert (stored.type, stored.data, stored.properties) == (
            kind().schema_info().schema_type(),
            "null",
            {},
        )
        for other in values.keys() - {kind}:
            with pytest.raises(IncompatibleSchema):
                client.create_producer(name, schema=other())


def pairs(encoding: Encoding) -> KeyValueSchema[str, Order]:
    """Texts and records."""
    return KeyValueSchema(StringSchema(), JsonSchema(Order), encoding)


SEPARATED = pairs(Encoding.SEPARATED)
BOTH = pytest.mark.parametrize("encoding", list(Encoding), ids=lambda one: one.name)
SOUP, TEA = Order(item="soup", count=2), Order(item="tea", count=1)


@BOTH
def test_pairs_arrive(client: Client, encoding: Encoding):
    """One by one, in batches, as columns; null parts; with the key in the payload or in the message."""
    sent = [KeyValue("table-7", SOUP), KeyValue("é", None), KeyValue(None, TEA)]
    with client.create_producer("orders", schema=pairs(encoding)) as producer:
        for pair in sent:
            producer.send(pair, properties={"by": "me"}, event_timestamp=7)
    with client.create_producer("orders", schema=pairs(encoding), batching_enabled=True) as producer:
        for pair in sent:
            producer.send_async(pair, None)
    with client.create_producer(
        "orders", schema=pairs(encoding), batching_type=BatchingType.KeyBased
    ) as producer:
        producer.send_many(iter(sent))
    with client.create_reader("orders", MessageId.earliest, schema=pairs(encoding)) as reader:
        found = [reader.read_next() for _ in range(9)]
    assert [one.value() for one in found] == sent * 3
    assert (found[0].properties(), found[0].event_timestamp()) == ({"by": "me"}, 7)
    is_apart = encoding == Encoding.SEPARATED
    assert [one.partition_key() for one in found[:3]] == (
        ["dGFibGUtNw==", "w6k=", ""] if is_apart else [""] * 3
    )
    assert [one.has_null_value() for one in found[:3]] == [False, is_apart, False]
    assert (found[0].data() == JsonSchema(Order).encode(SOUP)) == is_apart


def test_pairs_of_coroutines(store_url: Any):
    """As with the blocking client."""
    asyncio.run(use_coroutines(store_url))


async def use_coroutines(store_url: Any) -> None:
    """Sends a pair and receives it."""
    async with aio.Client(store_url) as client:
        consumer = await client.subscribe("orders", "s", schema=SEPARATED)
        producer = await client.create_producer("orders", schema=SEPARATED)
        await producer.send(KeyValue("table-7", SOUP))
        message = await consumer.receive()
        assert (message.value(), message.partition_key()) == (KeyValue("table-7", SOUP), "dGFibGUtNw==")


def test_what_a_pair_may_not_be(client: Client):
    """Errors name what to write instead; nothing is sent."""
    producer = client.create_producer("orders", schema=SEPARATED)
    with pytest.raises(TypeError, match=r"send KeyValue\(key, value\)"):
        producer.send(SOUP)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"send KeyValue\(\*pair\)"):
        producer.send_async(("a", SOUP), None)  # type: ignore[arg-type]
    for key in ({"partition_key": "k"}, {"partition_key": "k", "ordering_key": "o"}):
        with pytest.raises(ValueError, match="leave partition_key out"):
            producer.send(KeyValue("a", SOUP), **key)
        with pytest.raises(ValueError, match="leave partition_key out"):
            producer.send_async(None, None, **key)
    with pytest.raises(ValueError, match="leave partition_key out"):
        producer.send_many([KeyValue("a", SOUP)], partition_keys=["k"])
    with pytest.raises(ValueError, match=r"encoded to no bytes.*INLINE"):
        producer.send(KeyValue("", SOUP))
    with pytest.raises(TypeError, match="expected type is <class 'str'>"):
        producer.send(KeyValue(7, SOUP))  # type: ignore[arg-type]
    with pytest.raises(OperationNotSupported, match="send_many"):
        producer.send_arrow({"value": [b"a"]})
    assert producer.last_sequence_id() == -1
    producer.send(None)
    producer.send(KeyValue("a", SOUP), ordering_key="o")
    with client.create_reader("orders", MessageId.earliest, schema=SEPARATED) as reader:
        assert reader.read_next().value() is None
        assert reader.read_next().ordering_key() == "o"


def test_the_key_of_a_pair_is_the_key_of_the_message(client: Client, admin: Admin):
    """Partitions, Key_Shared consumers, compaction and table views go by it."""
    admin.topics().create_partitioned_topic("orders", 4)
    consumers = [client.subscribe("orders", "s", ConsumerType.KeyShared, schema=SEPARATED) for _ in range(2)]
    producer = client.create_producer("orders", schema=SEPARATED, batching_enabled=True)
    for count in range(40):
        producer.send_async(KeyValue(f"table-{count % 5}", Order(item="soup", count=count)), None)
    producer.flush()
    places: dict[str, set[Any]] = {}
    for index, consumer in enumerate(consumers):
        while (message := consumer.receive_nowait()) is not None:
            places.setdefault(message.value().key, set()).add((index, message.topic_name()))
    assert {key: len(found) for key, found in places.items()} == {f"table-{n}": 1 for n in range(5)}
    for partition in range(4):
        compact(admin, f"orders-partition-{partition}")
    producer.send(KeyValue("table-0", None))
    producer.send(KeyValue("table-1", TEA))
    view = client.create_table_view("orders", schema=SEPARATED)
    assert len(view) == 4
    key = SEPARATED.partition_key("table-1")
    assert view.get(key) == KeyValue("table-1", TEA) and key in view
    found = {}
    view.for_each(lambda _, pair: found.update([pair]))
    assert found["table-4"] == Order(item="soup", count=39)
    generic = client.create_table_view("orders", schema=AutoConsumeSchema()).get(key)
    assert generic is not None
    assert generic.get_native_object() == KeyValue("table-1", {"item": "tea", "count": 1})


def test_key_shared_hashes_the_key_in_base64(client: Client):
    """A sticky range gets the keys whose Base64 falls into it."""
    key = SEPARATED.partition_key("table-7")
    slot = sticky_key_hash(key.encode()) % 65536
    ranges = [[(slot, slot)], [(0, slot - 1), (slot + 1, 65535)]]
    consumers = [
        client.subscribe(
            "orders",
            "s",
            ConsumerType.KeyShared,
            schema=SEPARATED,
            key_shared_policy=ConsumerKeySharedPolicy(KeySharedMode.Sticky, False, one),
        )
        for one in ranges
    ]
    client.create_producer("orders", schema=SEPARATED).send(KeyValue("table-7", SOUP))
    assert consumers[1].receive_nowait() is None
    assert consumers[0].receive(2000).value().key == "table-7"


def test_a_listener_of_a_table_view_gets_removals(client: Client):
    """As the key and None."""
    changes: queue.Queue[Any] = queue.Queue()
    producer = client.create_producer("orders", schema=SEPARATED)
    producer.send(KeyValue("table-7", SOUP))
    view = client.create_table_view("orders", schema=SEPARATED)
    view.for_each_and_listen(lambda _, pair: changes.put(pair))
    producer.send(KeyValue("table-7", None))
    assert [changes.get(timeout=10) for _ in range(2)] == [
        KeyValue("table-7", SOUP),
        None,
    ]


@BOTH
def test_letters_of_pairs(client: Client, encoding: Encoding):
    """Retries and dead letters keep the key, the payload and the schema."""
    policy = ConsumerDeadLetterPolicy(1, "letters", "left")
    consumer = client.subscribe(
        "orders",
        "s",
        ConsumerType.Shared,
        schema=pairs(encoding),
        dead_letter_policy=policy,
        enable_retry=True,
    )
    client.create_producer("orders", schema=pairs(encoding)).send(KeyValue("table-7", SOUP))
    consumer.reconsume_later(consumer.receive(), 0)
    again = consumer.receive(2000)
    assert again.value() == KeyValue("table-7", SOUP)
    consumer.reconsume_later(again, 0)
    letters = client.subscribe("letters", "left", schema=AutoConsumeSchema())
    letter = letters.receive(2000)
    native = letter.value().get_native_object()
    assert native == KeyValue("table-7", {"item": "soup", "count": 2})
    assert letter.writer_schema() == pairs(encoding).schema_info()


def test_pairs_are_compared_in_both_parts(client: Client, admin: Admin):
    """And by where the key is: a change of it is refused, whatever the strategy but one."""
    strings = StringSchema()
    client.create_producer("orders", schema=SEPARATED).close()
    more = KeyValueSchema(strings, JsonSchema(NotedOrder), Encoding.SEPARATED)
    refused = {
        "the keys of the topic are SEPARATED": pairs(Encoding.INLINE),
        "the keys: the topic has schemas of the type STRING": KeyValueSchema(
            Int32Schema(), JsonSchema(Order), Encoding.SEPARATED
        ),
        "the values: the topic has schemas of the type JSON": KeyValueSchema(
            strings, strings, Encoding.SEPARATED
        ),
        "the values: the new schema does not read": KeyValueSchema(
            strings, JsonSchema(StrictOrder), Encoding.SEPARATED
        ),
        "the type KEY_VALUE, and this one is STRING": strings,
    }
    for text, schema in refused.items():
        with pytest.raises(IncompatibleSchema, match=text):
            client.create_producer("orders", schema=schema)
        with pytest.raises(IncompatibleSchema, match=text):
            client.subscribe("orders", "s", schema=schema)
        assert text in admin.schemas().test_compatibility("orders", schema).reason
    client.create_producer("orders", schema=more).close()
    client.create_producer("orders", schema=SEPARATED).close()
    assert [one.version for one in admin.schemas().get_all_schemas("orders")] == [0, 1]
    assert admin.schemas().get_version_by_schema("orders", more) == 1
    admin.topics().set_schema_compatibility_strategy("orders", Strategy.ALWAYS_COMPATIBLE)
    with client.create_producer("orders", schema=pairs(Encoding.INLINE)) as producer:
        producer.send(KeyValue("table-7", SOUP))
    with client.create_reader("orders", MessageId.earliest, schema=SEPARATED) as reader:
        assert reader.read_next().value() == KeyValue("table-7", SOUP)  # by the schema of its writer


def test_avro_parts_are_read_with_the_schema_of_the_writer(client: Client):
    """Of the value and of the key."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    schemas_of = [
        KeyValueSchema(AvroSchema(Order), AvroSchema(one), Encoding.SEPARATED) for one in (Order, NotedOrder)
    ]
    client.create_producer("orders", schema=schemas_of[0]).send(KeyValue(TEA, SOUP))
    client.create_producer("orders", schema=schemas_of[1]).send(
        KeyValue(TEA, NotedOrder(item="cake", note="!"))
    )
    with client.create_reader("orders", MessageId.earliest, schema=schemas_of[1]) as reader:
        first, second = reader.read_next().value(), reader.read_next().value()
    assert (first.key, first.value) == (TEA, NotedOrder(item="soup", count=2))
    assert second.value == NotedOrder(item="cake", note="!")


@BOTH
def test_pairs_without_a_class(client: Client, encoding: Encoding):
    """Generic records, and payloads that are encoded already: both parts are checked."""
    client.create_producer("orders", schema=pairs(encoding)).close()
    producer = client.create_producer("orders", schema=AutoProduceBytesSchema())
    is_apart = encoding == Encoding.SEPARATED
    schema = pairs(encoding)
    pair = KeyValue("table-7", SOUP)
    key = schema.partition_key("table-7") if is_apart else None
    producer.send(schema.encode(pair), partition_key=key)
    with pytest.raises(ValueError, match="the payload does not fit the KEY_VALUE schema"):
        producer.send(b"soup", partition_key=key)
    if is_apart:
        with pytest.raises(ValueError, match="the key does not fit the KEY_VALUE schema"):
            producer.send(schema.encode(pair), partition_key="table-7")
        producer.send_many([schema.encode(pair), None], partition_keys=[key, key])
        producer.send(None, partition_key=key)
    with client.create_reader("orders", MessageId.earliest, schema=schema) as reader:
        assert reader.read_next().value() == pair
    with client.create_reader("orders", MessageId.earliest, schema=AutoConsumeSchema()) as reader:
        record = reader.read_next().value()
        assert (record.get_fields(), record.get_native_object().key) == ([], "table-7")


def test_interceptors_of_pairs(client: Client):
    """They see the pair and the key, and may replace the pair."""
    seen: list[tuple[Any, str]] = []

    class Doubles(ProducerInterceptor):
        def before_send(self, producer: Any, message: Any) -> Any:
            seen.append((message.value(), message.partition_key()))
            return message.replace(content=KeyValue("table-8", TEA))

    consumer = client.subscribe("orders", "s", schema=SEPARATED)
    client.create_producer("orders", schema=SEPARATED, interceptors=[Doubles()]).send(
        KeyValue("table-7", SOUP)
    )
    assert seen == [(KeyValue("table-7", SOUP), "dGFibGUtNw==")]
    assert consumer.receive().value() == KeyValue("table-8", TEA)


def test_administration_of_pairs(client: Client, admin: Admin):
    """Definitions are shown and taken as by pulsar-admin: the two definitions, and properties about them."""
    version = admin.schemas().create_schema("orders", SEPARATED)
    stored = admin.schemas().get_schema_info("orders")
    assert stored is not None and version == 0
    shown = stored.json()
    assert (shown["type"], stored.properties["kv.encoding.type"]) == ("KEY_VALUE", "SEPARATED")
    assert json.loads(shown["data"]) == {
        "key": "",
        "value": json.loads(JsonSchema(Order).schema_info().schema()),
    }
    payload = {"type": "KEY_VALUE", "schema": shown["data"], "properties": shown["properties"]}
    assert admin.schemas().create_schema("orders", payload) == 0
    assert admin.schemas().create_schema("copies", stored) == 0
    assert admin.schemas().get_version_by_schema("copies", SEPARATED) == 0
    assert (
        admin.schemas().test_compatibility("orders", payload | {"properties": {}}).is_compatibility is False
    )
    for bad in ("{}", '{"key": "", "value": {"type": "record"}}', "[]"):
        with pytest.raises(IncompatibleSchema, match="its definition is not one of"):
            admin.schemas().create_schema("orders", payload | {"schema": bad})
    bare = admin.schemas().create_schema("bytes", {"type": "KEY_VALUE", "schema": '{"key": "", "value": ""}'})
    assert bare == 0
    with client.create_producer("bytes", schema=KeyValueSchema(BytesSchema(), BytesSchema())) as producer:
        producer.send(KeyValue(b"k", b"v"))
    assert len(admin.schemas().get_all_schemas("bytes")) == 1
    assert admin.schemas().delete_schema("orders") == 1
    assert admin.schemas().get_all_schemas("orders") == []
