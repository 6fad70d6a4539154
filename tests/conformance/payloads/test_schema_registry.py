"""The schemas of a topic: registered by producers and consumers, compared by a strategy, and in messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import (
    Admin,
    Client,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    IncompatibleSchema,
    InitialPosition,
    MessageId,
    TopicNotFound,
)
from embeddedpulsar import SchemaCompatibilityStrategy as Strategy
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.schema import (
    AutoConsumeSchema,
    AutoProduceBytesSchema,
    AvroSchema,
    Integer,
    JsonSchema,
    Record,
    Schema,
    String,
    StringSchema,
)
from tests.children import in_child

EARLIEST = InitialPosition.Earliest
SPACE = "public/default"


class Order(Record):
    """The first version."""

    table = Integer(required=True)


class NotedOrder(Record):
    """Compatible in both directions: the new field has a default."""

    table = Integer(required=True)
    note = String(required_default=True)


class StrictOrder(Record):
    """Is read by `Order`, and does not read what `Order` wrote."""

    table = Integer(required=True)
    waiter = String(required=True)


def avro(kind: type[Record]) -> AvroSchema:
    """An Avro schema, where the library is installed."""
    pytest.importorskip("fastavro", reason="the extra is not installed")
    return AvroSchema(kind)


def versions(admin: Admin, topic: str = "topic") -> list[int]:
    """The versions that a topic has."""
    return [one.version for one in admin.schemas().get_all_schemas(topic)]


@pytest.mark.in_memory
def test_a_producer_registers_its_schema(topic: Any, admin: Admin):
    """Messages have the version; the same schema again is the same version, however often and by whomever."""
    consumer = topic.consumer()
    for _ in range(2):
        with topic.producer(schema=JsonSchema(Order)) as producer:
            producer.send(Order(table=1))
    (peeked,) = admin.topics().peek_messages("topic", "sub", 1)
    assert peeked.writer_schema().schema() == JsonSchema(Order).schema_info().schema()
    message = consumer.receive(2000)
    assert message.schema_version() == "\0" * 8
    assert message.writer_schema().schema() == JsonSchema(Order).schema_info().schema()
    found = admin.schemas().get_schema_info("topic")
    assert found is not None and (found.version, found.type) == (0, pulsar.SchemaType.JSON)
    assert json.loads(found.data) == Order.schema() and found.json()["type"] == "JSON"
    topic.consumer(subscription_mode=pulsar.SubscriptionMode.NonDurable, schema=JsonSchema(Order)).close()
    assert versions(admin) == [0]


def test_a_consumer_registers_on_an_idle_topic(topic: Any, admin: Admin):
    """And so does a reader; on a topic with messages, producers or consumers it cannot."""
    topic.consumer(schema=JsonSchema(Order)).close()
    assert versions(admin) == [0]
    client = topic.client
    client.create_reader("read", MessageId.earliest, schema=JsonSchema(Order)).close()
    assert versions(admin, "read") == [0]
    client.create_producer("messages").send(b"{}")
    held = client.create_producer("producers"), client.subscribe("consumers", "other")
    for name in ("messages", "producers", "consumers"):
        with pytest.raises(
            IncompatibleSchema, match=r"in use and has no schema; .*create_schema\(topic, schema\)"
        ):
            client.subscribe(name, "s", schema=JsonSchema(Order))
        with pytest.raises(IncompatibleSchema):
            client.create_reader(name, MessageId.earliest, schema=JsonSchema(Order))
        stats = admin.topics().get_stats(name)
        assert "s" not in stats.subscriptions
    with client.create_producer("messages", schema=JsonSchema(Order)):
        client.subscribe("messages", "s", schema=JsonSchema(Order))
    admin.topics().set_schema_compatibility_strategy("producers", Strategy.ALWAYS_COMPATIBLE)
    client.subscribe("producers", "s", schema=JsonSchema(Order))
    assert versions(admin, "producers") == [] and held[0].is_connected()


@pytest.mark.parametrize(
    ("strategy", "older", "newer", "accepted"),
    [
        ("FULL", Order, NotedOrder, True),
        ("FULL", Order, StrictOrder, False),
        ("BACKWARD", Order, StrictOrder, False),
        ("BACKWARD", StrictOrder, Order, True),
        ("FORWARD", Order, StrictOrder, True),
        ("FORWARD", StrictOrder, Order, False),
        ("ALWAYS_COMPATIBLE", StrictOrder, Order, True),
        ("ALWAYS_INCOMPATIBLE", Order, NotedOrder, False),
    ],
)
@pytest.mark.parametrize("kind", [JsonSchema, avro])
def test_strategies(
    topic: Any, admin: Admin, kind: Any, strategy: str, older: Any, newer: Any, accepted: bool
):
    """A refused producer is not registered, and the topic keeps its schemas."""
    admin.namespaces().set_schema_compatibility_strategy(SPACE, strategy)
    topic.producer(schema=kind(older)).close()
    if accepted:
        topic.producer(schema=kind(newer))
        assert versions(admin) == [0, 1]
    else:
        with pytest.raises(IncompatibleSchema, match=r"cannot be used on persistent://public/default/topic"):
            topic.producer(schema=kind(newer), producer_name="refused")
        assert versions(admin) == [0] and not admin.topics().get_stats("topic").publishers
    topic.producer(schema=kind(older)).close()


def test_a_transitive_strategy_asks_all_versions(topic: Any, admin: Admin):
    """`BACKWARD` looks at the last one alone."""

    class Other(Record):
        table = Integer(required=True)
        note = Integer(required_default=True)

    topics = admin.topics()
    topic.producer(schema=JsonSchema(NotedOrder)).close()
    topics.set_schema_compatibility_strategy("topic", Strategy.BACKWARD)
    topic.producer(schema=JsonSchema(Order)).close()
    topics.set_schema_compatibility_strategy("topic", Strategy.BACKWARD_TRANSITIVE)
    with pytest.raises(IncompatibleSchema):
        topic.producer(schema=JsonSchema(Other))
    topics.set_schema_compatibility_strategy("topic", "UNDEFINED")
    assert topics.get_schema_compatibility_strategy("topic") is None
    assert topics.get_schema_compatibility_strategy("topic", True) == Strategy.FULL
    topic.producer(schema=JsonSchema(Other)).close()
    with pytest.raises(InvalidConfiguration):
        topics.set_schema_compatibility_strategy("topic", "SIDEWAYS")


def test_consumers_must_read_the_last_schema(topic: Any, admin: Admin):
    """Whatever the strategy says of producers."""
    admin.topics().create_non_partitioned_topic("topic")
    admin.topics().set_schema_compatibility_strategy("topic", "FORWARD")
    topic.producer(schema=JsonSchema(Order)).close()
    with pytest.raises(IncompatibleSchema, match="has no default"):
        topic.consumer(schema=JsonSchema(StrictOrder))
    topic.producer(schema=JsonSchema(StrictOrder)).close()
    topic.consumer(schema=JsonSchema(Order)).close()
    admin.topics().set_schema_compatibility_strategy("topic", "ALWAYS_INCOMPATIBLE")
    topic.consumer(schema=JsonSchema(StrictOrder)).close()
    with pytest.raises(IncompatibleSchema):
        topic.consumer(schema=JsonSchema(NotedOrder))


def test_types_do_not_mix(topic: Any, admin: Admin):
    """Another type is refused; bytes are no schema."""
    topic.producer(schema=StringSchema()).close()
    with pytest.raises(IncompatibleSchema, match="of the type STRING"):
        topic.producer(schema=JsonSchema(Order))
    with pytest.raises(IncompatibleSchema):
        topic.consumer(schema=JsonSchema(Order))
    topic.producer().send(b"bytes")
    assert topic.consumer().receive(2000).schema_version() == ""


def test_producers_without_a_schema_may_be_refused(topic: Any, admin: Admin):
    """By policy, once the topic has a schema. Consumers are not."""
    admin.topics().create_non_partitioned_topic("topic")
    admin.topics().set_schema_validation_enforced("topic", True)
    topic.producer().close()
    topic.producer(schema=StringSchema()).close()
    with pytest.raises(IncompatibleSchema, match="schema_validation_enforced"):
        topic.producer()
    topic.consumer().close()
    topic.producer(schema=AutoProduceBytesSchema()).close()
    admin.topics().remove_schema_validation_enforced("topic")
    topic.producer().close()


def test_automatic_updates_may_be_off(topic: Any, admin: Admin):
    """Then an administrator uploads schemas."""
    admin.namespaces().set_is_allow_auto_update_schema(SPACE, False)
    for use in (topic.producer, topic.consumer):
        with pytest.raises(IncompatibleSchema, match="auto updating is disabled"):
            use(schema=JsonSchema(Order))
    assert admin.schemas().create_schema("topic", JsonSchema(Order)) == 0
    topic.producer(schema=JsonSchema(Order)).close()
    with pytest.raises(IncompatibleSchema):
        topic.producer(schema=JsonSchema(NotedOrder))
    assert admin.namespaces().get_is_allow_auto_update_schema(SPACE) is False


def test_a_schema_that_survives_a_power_loss_stays_one(store_path: Path):
    """A producer without that level adds another one: the document is still written so that it survives."""
    with pulsar.Client(store_path) as client, pulsar.Admin(store_path) as admin:
        strict = client.create_producer("topic", schema=JsonSchema(Order), durability="flush")
        admin.topics().set_schema_compatibility_strategy("topic", Strategy.ALWAYS_COMPATIBLE)
        loose = client.create_producer("topic", schema=JsonSchema(NotedOrder), durability="process")
        assert client._core.store.schemas.document("topic").is_durable
        assert strict.is_connected() and loose.is_connected()


def test_a_version_that_was_deleted_by_force_is_looked_up_once(client: Client, admin: Admin, topic: Any):
    """Reading goes on without the document."""
    with client.create_producer("topic", schema=JsonSchema(Order)) as producer:
        producer.send(Order(table=1))
        producer.send(Order(table=2))
    admin.schemas().delete_schema("topic", force=True)
    with client.create_reader("topic", MessageId.earliest) as reader:
        first, second = reader.read_next(), reader.read_next()
        assert first.writer_schema() is None
        registry = type(client._core.store.schemas)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry, "document", None)
            assert second.writer_schema() is None


def test_settings(store_path: Path):
    """The defaults of the policies."""
    store_path.mkdir(mode=0o700)
    (store_path / "broker.conf").write_text(
        "schemaCompatibilityStrategy=FORWARD\nisSchemaValidationEnforced=true\n"
        "isAllowAutoUpdateSchemaEnabled=false\n"
    )
    with Admin(store_path) as admin, Client(store_path) as client:
        admin.schemas().create_schema("t", JsonSchema(Order))
        assert admin.topics().get_schema_compatibility_strategy("t", True) == Strategy.FORWARD
        with pytest.raises(IncompatibleSchema):
            client.create_producer("t")
        with pytest.raises(IncompatibleSchema):
            client.create_producer("t", schema=JsonSchema(StrictOrder))


def test_messages_are_decoded_with_the_schema_of_their_writer(topic: Any):
    """Of Avro, which has no names: an old and a new consumer, a reader, a table view and a generic one."""
    old, new = avro(Order), avro(NotedOrder)
    with topic.producer(schema=old) as producer:
        producer.send(Order(table=1), partition_key="a")
    with topic.producer(schema=new) as producer:
        producer.send(NotedOrder(table=2, note="soon"), partition_key="b")
        producer.send(NotedOrder(table=3), partition_key="c")
    client = topic.client
    for schema, expected in (
        (old, [Order(table=1), Order(table=2), Order(table=3)]),
        (new, [NotedOrder(table=1), NotedOrder(table=2, note="soon"), NotedOrder(table=3)]),
    ):
        reader = client.create_reader("topic", MessageId.earliest, schema=schema)
        consumer = client.subscribe(
            "topic", f"s{len(expected[1].__dict__)}", schema=schema, initial_position=EARLIEST
        )
        assert [reader.read_next(2000).value() for _ in range(3)] == expected
        assert [consumer.receive(2000).value() for _ in range(3)] == expected
        view = client.create_table_view("topic", schema=schema)
        assert [view.get(key) for key in "abc"] == expected
        seen: dict[str, Any] = {}
        view.for_each(seen.__setitem__)
        assert list(seen.values()) == expected
    reader = client.create_reader("topic", MessageId.earliest, schema=AutoConsumeSchema())
    found = [reader.read_next(2000).value() for _ in range(3)]
    assert [one.get_fields() for one in found] == [["table"], ["table", "note"], ["table", "note"]]
    assert [one["table"] for one in found] == [1, 2, 3] and found[1].get_field("note") == "soon"


def test_a_new_optional_field_is_none_in_old_messages(topic: Any, admin: Admin):
    """Also without a default in the definition, which Avro asks for: the class has one."""

    class Optional(Record):
        table = Integer(required=True)
        note = String()

    admin.topics().create_non_partitioned_topic("topic")
    admin.topics().set_schema_compatibility_strategy("topic", "ALWAYS_COMPATIBLE")
    with topic.producer(schema=avro(Order)) as producer:
        producer.send(Order(table=1))
    assert topic.consumer(schema=avro(Optional)).receive(2000).value() == Optional(table=1)
    unread = topic.client.subscribe("topic", "strict", schema=avro(StrictOrder), initial_position=EARLIEST)
    with pytest.raises(ValueError, match="cannot read"):
        unread.receive(2000).value()


def test_generic_records_of_all_kinds(client: Client):
    """One consumer of several topics, each with its schema; bytes have none."""
    client.create_producer("text", schema=StringSchema()).send("soup")
    client.create_producer("bytes").send(b"soup")
    client.create_producer("json", schema=JsonSchema(Order)).send(Order(table=1))
    consumer = client.subscribe(
        ["text", "bytes", "json"], "s", schema=AutoConsumeSchema(), initial_position=EARLIEST
    )
    found = {
        one.topic_name().rpartition("/")[2]: one.value() for one in (consumer.receive(2000) for _ in range(3))
    }
    assert {name: one.get_native_object() for name, one in found.items()} == {
        "text": "soup",
        "bytes": b"soup",
        "json": {"table": 1},
    }
    assert found["text"].get_fields() == [] and "table" in found["json"]
    with pytest.raises(TypeError, match="for consumers"):
        client.create_producer("json", schema=AutoConsumeSchema()).send(found["json"])


@pytest.mark.parametrize("kind", [JsonSchema, avro])
def test_encoded_payloads_are_checked(topic: Any, kind: Any):
    """They get the newest version of the topic; without a schema, everything passes."""
    topic.client.create_producer("any", schema=AutoProduceBytesSchema()).send(b"\xff")
    consumer = topic.consumer(schema=kind(Order))
    producer = topic.producer(schema=AutoProduceBytesSchema())
    for wrong in (b"\xff", b""):
        with pytest.raises(ValueError, match="does not fit"):
            producer.send(wrong)
    producer.send(kind(Order).encode(Order(table=4)))
    message = consumer.receive(2000)
    assert message.value() == Order(table=4) and message.schema_version() == "\0" * 8


def test_partitions_share_their_schemas(client: Client, admin: Admin):
    """Whichever partition is written to."""
    admin.topics().create_partitioned_topic("topic", 3)
    with client.create_producer("topic-partition-1", schema=avro(Order)) as producer:
        producer.send(Order(table=1))
    with client.create_producer("topic", schema=avro(NotedOrder)) as producer:
        for number in range(6):
            producer.send(NotedOrder(table=number))
    consumer = client.subscribe("topic", "s", schema=avro(Order), initial_position=EARLIEST)
    assert sorted(consumer.receive(2000).value().table for _ in range(7)) == [0, 1, 1, 2, 3, 4, 5]
    assert versions(admin) == versions(admin, "topic-partition-2") == [0, 1]
    admin.topics().update_partitioned_topic("topic", 5)
    assert versions(admin, "topic-partition-4") == [0, 1]


def test_a_deletion_hides_and_messages_still_find(topic: Any, admin: Admin):
    """It takes a version. With force, messages are decoded with the consumer's own schema."""
    with topic.producer(schema=avro(Order)) as producer:
        producer.send(Order(table=1))
    schemas = admin.schemas()
    assert schemas.delete_schema("topic") == 1 and schemas.delete_schema("topic") == -1
    assert schemas.get_schema_info("topic") is None is schemas.get_schema_info("topic", 0)
    with topic.producer(schema=avro(StrictOrder)) as producer:
        producer.send(StrictOrder(table=2, waiter="Ada"))
    assert versions(admin) == [2]
    reader = topic.client.create_reader("topic", MessageId.earliest, schema=AutoConsumeSchema())
    assert [reader.read_next(2000).value().get_native_object() for _ in range(2)] == [
        {"table": 1},
        {"table": 2, "waiter": "Ada"},
    ]
    assert schemas.delete_schema("topic", force=True) == 3
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert [reader.read_next(2000).writer_schema() for _ in range(2)] == [None, None]
    assert schemas.create_schema("topic", StringSchema()) == 4


def test_a_deleted_topic_begins_anew(topic: Any, admin: Admin):
    """Its schemas go with it."""
    topic.producer(schema=JsonSchema(Order)).close()
    admin.topics().delete("topic")
    with pytest.raises(TopicNotFound):
        admin.schemas().get_schema_info("topic")
    topic.producer(schema=StringSchema()).close()
    assert versions(admin) == [0]


def test_administration(admin: Admin, client: Client):
    """Uploads by object and by payload, comparison, search, and what is refused."""
    schemas = admin.schemas()
    payload = {"type": "AVRO", "schema": json.dumps(Order.schema()), "properties": {"by": "me"}}
    assert schemas.create_schema("t", payload) == 0
    found = schemas.get_schema_info("t", 0)
    assert found is not None and found.properties == {"by": "me"}
    assert schemas.create_schema("t", found) == 0 == schemas.get_version_by_schema("t", payload)
    answer = schemas.test_compatibility("t", {**payload, "schema": json.dumps(StrictOrder.schema())})
    assert answer.json()["isCompatibility"] is False and "waiter" in answer.reason
    assert schemas.test_compatibility("t", payload) == (True, "FULL", "")
    invalid = {"type": "AVRO", "schema": '{"type": "record"}'}
    assert not schemas.test_compatibility("t", invalid).is_compatibility
    assert schemas.get_version_by_schema("t", invalid) == -1
    with pytest.raises(IncompatibleSchema, match="not one of AVRO"):
        schemas.create_schema("t", invalid)
    for wrong in (pulsar.BytesSchema(), {"type": "AVRO?"}, 5):
        with pytest.raises(ValueError, match="schema"):
            schemas.create_schema("t", wrong)  # type: ignore[arg-type]
    with pytest.raises(TopicNotFound):
        schemas.get_all_schemas("none")


def test_a_definition_that_says_the_same_is_the_same_version(admin: Admin):
    """Spaces, comments and aliases do not count; defaults and names do."""
    schemas, definition = admin.schemas(), NotedOrder.schema()

    def upload(changed: Any) -> int:
        return schemas.create_schema("t", {"type": "JSON", "schema": json.dumps(changed)})

    assert upload(definition) == 0
    assert upload({**definition, "doc": "orders", "aliases": ["Bill"]}) == 0
    assert upload({**definition, "namespace": "restaurant"}) == 1


def test_letters_keep_their_schema(topic: Any, admin: Admin):
    """On retry and dead letter topics, of each version, whatever these topics accept."""
    admin.namespaces().set_schema_compatibility_strategy(SPACE, "FORWARD")
    for schema, value in (
        (avro(Order), Order(table=1)),
        (avro(StrictOrder), StrictOrder(table=2, waiter="Ada")),
    ):
        with topic.producer(schema=schema) as producer:
            producer.send(value)
    policy = ConsumerDeadLetterPolicy(1, "dead", "keep")
    options: dict[str, Any] = {"consumer_type": ConsumerType.Shared, "enable_retry": True}
    consumer = topic.consumer(schema=avro(Order), dead_letter_policy=policy, **options)
    for _ in range(4):
        message = consumer.receive(2000)
        consumer.reconsume_later(message, 0)
    reader = topic.client.create_reader("dead", MessageId.earliest, schema=AutoConsumeSchema())
    found = [reader.read_next(2000).value().get_native_object() for _ in range(2)]
    assert sorted(found, key=lambda one: one["table"]) == [{"table": 1}, {"table": 2, "waiter": "Ada"}]


def test_letters_without_a_schema_are_never_refused(topic: Any, admin: Admin):
    """Although the dead letter topic has one and asks for it."""
    admin.schemas().create_schema("dead", StringSchema())
    admin.topics().set_schema_validation_enforced("dead", True)
    consumer = topic.consumer(
        consumer_type=ConsumerType.Shared,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, "dead", "keep"),
        negative_ack_redelivery_delay_ms=1,
    )
    topic.producer().send(b"lost")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(2000))
    reader = topic.client.create_reader("dead", MessageId.earliest)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(50)
    assert reader.read_next(2000).data() == b"lost"


def test_compaction_keeps_versions(topic: Any, admin: Admin):
    """What is compacted is decoded as before."""
    for schema, value in ((avro(Order), Order(table=1)), (avro(NotedOrder), NotedOrder(table=2, note="x"))):
        with topic.producer(schema=schema) as producer:
            producer.send(value, partition_key=type(value).__name__)
    admin.topics().compact("topic")
    while admin.topics().compaction_status("topic").status == "RUNNING":
        pass
    view = topic.client.create_table_view("topic", schema=avro(NotedOrder))
    assert view.get("Order") == NotedOrder(table=1) and view.get("NotedOrder") == NotedOrder(
        table=2, note="x"
    )


def test_a_schema_that_decodes_messages_itself(topic: Any):
    """As in pulsar-client, `value` asks `decode_message`."""

    class Dated(StringSchema):
        def decode_message(self, msg: Any) -> str:
            return f"{self.decode(msg.data())} ({msg.partition_key()})"

    consumer = topic.consumer(schema=Dated())
    topic.producer(schema=StringSchema()).send("soup", partition_key="Ada")
    assert consumer.receive(2000).value() == "soup (Ada)"


def test_types_without_a_definition(topic: Any, admin: Admin):
    """A class of the application with a primitive type."""

    class Number(Schema[int]):
        def __init__(self) -> None:
            super().__init__(int, pulsar.SchemaType.INT32, None, "INT32")

        def encode(self, obj: int) -> bytes:
            return obj.to_bytes(4, "big", signed=True)

        def decode(self, data: bytes) -> int:
            return int.from_bytes(data, "big", signed=True)

    topic.producer(schema=Number()).send(-5)
    assert topic.consumer(schema=Number()).receive(2000).value() == -5
    reader = topic.client.create_reader("topic", MessageId.earliest, schema=AutoConsumeSchema())
    assert reader.read_next(2000).value().get_native_object() == -5
    assert admin.schemas().create_schema("topic", {"type": "INT32", "schema": ""}) == 0


def test_protobuf_keeps_its_root_message(topic: Any):
    """Other messages are another schema; generic records have the fields."""
    pytest.importorskip("google.protobuf", reason="the extra is not installed")
    from google.protobuf.wrappers_pb2 import Int32Value, StringValue

    from embeddedpulsar.schema import ProtobufNativeSchema

    topic.producer(schema=ProtobufNativeSchema(StringValue)).send(StringValue(value="soup"))
    with pytest.raises(IncompatibleSchema, match=r"google\.protobuf\.Int32Value"):
        topic.producer(schema=ProtobufNativeSchema(Int32Value))
    reader = topic.client.create_reader("topic", MessageId.earliest, schema=AutoConsumeSchema())
    record = reader.read_next(2000).value()
    assert record.get_fields() == ["value"] and record["value"] == "soup"


@pytest.mark.parametrize("name", ["non-persistent://public/default/live"])
def test_non_persistent_topics_have_schemas(client: Client, admin: Admin, name: str):
    """As persistent ones."""
    consumer = client.subscribe(name, "s", schema=avro(Order))
    client.create_producer(name, schema=avro(NotedOrder)).send(NotedOrder(table=1, note="x"))
    assert consumer.receive(2000).value() == Order(table=1)
    with pytest.raises(IncompatibleSchema):
        client.create_producer(name, schema=StringSchema())
    assert versions(admin, name) == [0, 1]


def test_topics_of_a_pattern_are_checked(client: Client):
    """Before the consumer has any of them."""
    client.create_producer("a-text", schema=StringSchema()).close()
    client.create_producer("a-json", schema=JsonSchema(Order)).close()
    import re

    with pytest.raises(IncompatibleSchema):
        client.subscribe(re.compile("persistent://public/default/a-.*"), "s", schema=StringSchema())


def test_a_forked_producer_registers_again(store_path: Path):
    """Its topic may have been made again meanwhile, without the schema."""
    with Client(store_path) as client:
        producer = client.create_producer("topic", schema=JsonSchema(Order))

        def child() -> str:
            with Admin(store_path) as admin:
                admin.schemas().create_schema("other", StringSchema())
                admin.topics().delete("topic", force=True)
                admin.schemas().create_schema("topic", JsonSchema(NotedOrder))
                producer.send(Order(table=1))
                with Client(store_path) as own:
                    reader = own.create_reader("topic", MessageId.earliest)
                    return f"{versions(admin)} {reader.read_next(2000).schema_version()[-1]!r}"

        assert in_child(child) == r"[0, 1] '\x01'"


def test_a_message_whose_schema_cannot_be_read_is_not_guessed(store_path: Path):
    """Versions that were there when the reader was made are known, also after the end of the client."""
    client = Client(store_path)
    with client.create_producer("topic", schema=avro(Order)) as producer:
        producer.send(Order(table=1))
    reader = client.create_reader("topic", MessageId.earliest, schema=avro(Order))
    first = reader.read_next(2000)
    with client.create_producer("topic", schema=avro(NotedOrder)) as producer:
        producer.send(NotedOrder(table=2))
    second = reader.read_next(2000)
    (path,) = store_path.glob("topics/*/schemas")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert first.value() == Order(table=1)
    with pytest.raises(pulsar.StorageError):
        second.value()
    path.write_bytes(whole)
    client.close()
    assert first.value() == Order(table=1)
    with pytest.raises(pulsar.AlreadyClosed):
        second.value()
    assert second.data() == b"\x04\x00"
