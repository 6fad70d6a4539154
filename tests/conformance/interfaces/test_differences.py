"""Rows of docs/compatibility.md without a test of a feature; all are in docs/compatibility_tests.txt."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar
import embeddedpulsar.asyncio
from embeddedpulsar import (
    Admin,
    AlreadyClosed,
    BatchingType,
    Client,
    CompressionType,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    IncompatibleSchema,
    InvalidTopicName,
    MessageId,
    ProducerAccessMode,
    Result,
    TopicNotFound,
)
from embeddedpulsar.policies import BacklogQuota
from embeddedpulsar.policy_values import DelayedDeliveryPolicies
from embeddedpulsar.schema import Array, AvroSchema, Bytes, Integer, JsonSchema, Map, Record
from tests.conformance.conftest import Topic, numbers, receive_all
from tests.conformance.manual_time import ManualTime

SPACE = "public/default"


class Line(Record):
    """A record for others."""

    count = Integer()


# -- errors and types --------------------------------------------------------------------------------------


def test_one_family_of_exceptions():
    """Those of coroutines are those of threads."""
    assert embeddedpulsar.asyncio.PulsarException is embeddedpulsar.PulsarException


def test_context_managers(client: Client):
    """Producers, consumers and readers are closed at the end."""
    with client.create_producer("topic") as producer, client.subscribe("topic", "sub") as consumer:
        producer.send(b"soup")
        with client.create_reader("topic", MessageId.earliest) as reader:
            assert consumer.receive(1000).data() == reader.read_next(1000).data()
        assert not reader.is_connected()
    assert not producer.is_connected() and not consumer.is_connected()


def test_avro_that_cannot_be_resolved():
    """It is an error, and nothing is decoded with another definition."""
    pytest.importorskip("fastavro", reason="the extra is not installed")

    def schema(kind: str) -> AvroSchema[dict[str, Any]]:
        fields = [{"name": "count", "type": kind}]
        return AvroSchema(None, {"type": "record", "name": "Line", "fields": fields})

    payload = schema("string").encode({"count": "two"})
    with pytest.raises(ValueError, match="cannot read"):
        schema("int").decode_written(payload, schema("string").schema_info())


def test_bytes_fields_refuse_what_has_no_bytes():
    """At the assignment."""
    for value in (5, 1.5, object(), [1]):
        with pytest.raises(TypeError):
            Bytes().validate_type("raw", value)


def test_containers_take_the_record_class():
    """As they take an object of it."""
    assert Array(Line).schema() == Array(Line()).schema()
    assert Map(Line).schema() == Map(Line()).schema()


def test_a_dead_letter_topic_with_an_invalid_name(topic: Topic):
    """It is refused when the consumer is made."""
    with pytest.raises(InvalidTopicName):
        topic.consumer(
            consumer_type=ConsumerType.Shared,
            dead_letter_policy=ConsumerDeadLetterPolicy(1, "not//a name"),
        )


# -- schemas of topics -------------------------------------------------------------------------------------


def test_readers_are_no_consumers_for_a_schema(client: Client, admin: Admin):
    """A consumer adds its schema beside a reader without one."""
    with client.create_reader("topic", MessageId.earliest):
        client.subscribe("topic", "sub", schema=JsonSchema(Line)).close()
    assert admin.schemas().get_schema_info("topic") is not None


def test_create_schema_creates_the_topic(admin: Admin):
    """If topics may be created."""
    admin.schemas().create_schema("made", JsonSchema(Line))
    assert admin.topics().get_list(SPACE) == ["persistent://public/default/made"]
    admin.brokers().update_dynamic_configuration("allowAutoTopicCreation", "false")
    with pytest.raises(TopicNotFound):
        admin.schemas().create_schema("not-made", JsonSchema(Line))


def test_the_nearest_level_enforces_schemas(store_path: Path):
    """A namespace may switch off what `broker.conf` switches on."""
    store_path.mkdir(mode=0o700)
    (store_path / "broker.conf").write_text("isSchemaValidationEnforced=true\n")
    with Admin(store_path) as admin, Client(store_path) as client:
        admin.schemas().create_schema("topic", JsonSchema(Line))
        with pytest.raises(IncompatibleSchema):
            client.create_producer("topic")
        admin.namespaces().set_schema_validation_enforced(SPACE, False)
        client.create_producer("topic").send(b"anything")


# -- clients and topics ------------------------------------------------------------------------------------


def test_shutdown_answers_pending_sends(topic: Topic):
    """With AlreadyClosed."""
    answers: list[Result] = []
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send_async(b"pending", lambda result, message_id: answers.append(result))
    topic.client.shutdown()
    assert answers == [Result.AlreadyClosed]


def test_policies_that_are_not_set(admin: Admin):
    """They are None, whatever their type."""
    admin.topics().create_non_partitioned_topic("topic")
    assert admin.topics().get_subscription_types_enabled("topic") is None
    assert admin.namespaces().get_max_topics_per_namespace(SPACE) is None
    assert admin.topics().get_retention("topic") is None
    assert not hasattr(BacklogQuota(1), "limit")
    assert not hasattr(DelayedDeliveryPolicies(), "max_delivery_delay_in_millis")


def test_publish_times_never_decrease(time: ManualTime):
    """The publish time of a batch is that of its storing."""
    client = time.client
    consumer = client.subscribe("topic", "sub")
    batching = client.create_producer("topic", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    batching.send_async(b"hello-1", None)
    time.pass_ms(5_000)
    client.create_producer("topic").send(b"hello-0")
    time.pass_ms(5_000)
    batching.send_async(b"hello-2", None)
    batching.flush()
    messages = receive_all(consumer)
    assert numbers(messages) == [0, 1, 2]
    now = time.now_ms()
    assert [message.publish_timestamp() for message in messages] == [now - 5_000, now, now]


# -- statistics --------------------------------------------------------------------------------------------


def test_readers_are_no_subscriptions(client: Client, admin: Admin):
    """In the statistics of the topic they read."""
    admin.topics().create_non_partitioned_topic("topic")
    admin.topics().set_max_consumers("topic", 1)
    admin.topics().set_max_subscriptions_per_topic("topic", 1)
    with client.create_reader("topic", MessageId.earliest), client.subscribe("topic", "sub"):
        client.create_reader("topic", MessageId.earliest).close()
        assert list(admin.topics().get_stats("topic").subscriptions) == ["sub"]


def test_statistics_that_are_left_out(client: Client, admin: Admin):
    """None in the object, and missing in JSON."""
    client.subscribe("topic", "sub")
    client.create_producer("topic").send(b"soup")
    stats = admin.topics().get_stats("topic").json()
    subscription = stats["subscriptions"]["sub"]
    of_delivery = {"msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgRateRedeliver", "messageAckRate"}
    for found in (stats, subscription, *stats["publishers"], *subscription["consumers"]):
        names = of_delivery | {
            "replication",
            "ownerBroker",
            "address",
            "clientVersion",
            "durable",
            "replicated",
        }
        names |= {"metadata", "drainingHashesCount"}
        assert not found.keys() & names
    assert not any("connectedSince" in found for found in stats["publishers"])
    for found in (subscription, *subscription["consumers"]):
        assert not found.keys() & {"availablePermits", "msgOutCounter", "readPosition"}
    assert {"isDurable", "isReplicated"} <= subscription.keys()
    internal = admin.topics().get_internal_stats("topic").json()
    assert not internal.keys() & {"waitingCursorsCount", "pendingAddEntriesCount", "schemaLedgers"}
    assert not internal["cursors"]["sub"].keys() & {"cursorLedger", "pendingReadOps", "waitingReadOp"}


def test_counters_survive_the_process(store_path: Path):
    """They count from the creation of the topic."""
    for count in (3, 6):
        with Client(store_path) as client, Admin(store_path) as admin:
            Topic(client).publish(3)
            assert admin.topics().get_stats("topic").msg_in_counter == count
            assert admin.topics().get_internal_stats("topic").entries_added_counter == count


# -- producers and consumers -------------------------------------------------------------------------------


def test_ids_of_a_producer_of_a_partition(client: Client, admin: Admin):
    """They name the partition, as those of the received messages do."""
    admin.topics().create_partitioned_topic("orders", 4)
    consumer = client.subscribe("orders", "sub")
    sent = client.create_producer("orders-partition-3").send(b"soup")
    assert sent.partition() == 3
    assert consumer.receive(5000).message_id() == sent


def test_the_id_of_a_duplicate(topic: Topic, admin: Admin):
    """It has no ledger, entry or index."""
    admin.topics().create_non_partitioned_topic("topic")
    admin.topics().set_deduplication_status("topic", True)
    producer = topic.producer(producer_name="till")
    producer.send(b"soup", sequence_id=5)
    again = producer.send(b"soup", sequence_id=5)
    assert (again.ledger_id(), again.entry_id(), again.batch_index()) == (-1, -1, -1)


def test_compressed_empty_messages(topic: Topic):
    """They are received."""
    consumer = topic.consumer()
    topic.producer(compression_type=CompressionType.ZLib).send(b"")
    assert consumer.receive(5000).data() == b""


def test_a_message_of_a_closed_consumer(topic: Topic):
    """The next consumer can acknowledge it once it has fetched the batch."""
    topic.publish_batch(3)
    with topic.consumer(batch_index_ack_enabled=True) as consumer:
        before = receive_all(consumer)
    with topic.consumer(batch_index_ack_enabled=True) as consumer:
        assert numbers(receive_all(consumer)) == [0, 1, 2]
        consumer.acknowledge(before[1])
    with topic.consumer(batch_index_ack_enabled=True) as consumer:
        assert numbers(receive_all(consumer)) == [0, 2]


def test_ids_of_a_batch_count_towards_it(topic: Topic):
    """Without batch_index_ack_enabled: stored ids acknowledge a batch when all of its messages are named."""
    topic.publish_batch(3)
    with topic.consumer() as consumer:
        ids = [MessageId.deserialize(one.message_id().serialize()) for one in receive_all(consumer)]
        for message_id in ids[:2]:
            consumer.acknowledge(message_id)
    with topic.consumer() as consumer:
        assert numbers(receive_all(consumer)) == [0, 1, 2]
        for message_id in ids:
            consumer.acknowledge(message_id)
    with topic.consumer() as consumer:
        assert receive_all(consumer) == []


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_seek_into_a_batch_is_that_of_one_consumer(topic: Topic, kind: ConsumerType):
    """The next one gets the whole batch."""
    topic.publish_batch(6)
    with topic.consumer(consumer_type=kind) as consumer:
        consumer.seek(receive_all(consumer)[3].message_id())
        assert numbers(receive_all(consumer)) == [4, 5]
    with topic.consumer(consumer_type=kind) as consumer:
        assert numbers(receive_all(consumer)) == [0, 1, 2, 3, 4, 5]


def test_a_share_of_pending_messages_is_at_least_one(client: Client, admin: Admin):
    """A limit over all partitions that is lower than their number is no lack of a limit."""
    admin.topics().create_partitioned_topic("orders", 4)
    consumer = client.subscribe("orders", "sub")
    producer = client.create_producer(
        "orders",
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        max_pending_messages_across_partitions=1,
    )
    producer.send_async(b"hello-0", None)
    assert numbers([consumer.receive(5000)]) == [0]


def test_an_exclusive_producer_that_was_fenced_out_may_be_closed(topic: Topic):
    """Without an error."""
    first = topic.producer(access_mode=ProducerAccessMode.Exclusive)
    topic.producer(access_mode=ProducerAccessMode.ExclusiveWithFencing)
    assert not first.is_connected()
    first.close()


def test_the_second_close(topic: Topic):
    """It raises AlreadyClosed, unless the consumer ended by itself."""
    for made in (topic.consumer(), topic.producer()):
        made.close()
        with pytest.raises(AlreadyClosed):
            made.close()
    gone, left = topic.consumer(), topic.client.subscribe("topic", "other")
    reader = topic.client.create_reader("topic", MessageId.earliest)
    gone.unsubscribe()
    gone.close()
    topic.client.close()
    left.close()
    reader.close()


def test_a_reader_listener_gets_the_reader(topic: Topic):
    """It may read from it and close it."""
    seen: queue.Queue[tuple[Any, bytes]] = queue.Queue()

    def listen(reader: Any, message: Any) -> None:
        reader.close()
        seen.put((reader, message.data()))

    topic.publish(2)
    reader = topic.client.create_reader("topic", MessageId.earliest, reader_listener=listen)
    assert seen.get(timeout=10) == (reader, b"hello-0")
    assert not reader.is_connected()


# -- ids and letters ---------------------------------------------------------------------------------------


def test_the_last_sequence_id_of_a_batch(topic: Topic):
    """It is that of its last message, also if the ids have gaps."""
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in (3, 9, 4):
        producer.send_async(b"soup", None, sequence_id=number)
    producer.flush()
    assert producer.last_sequence_id() == 4


def test_a_batch_by_key_ends_where_the_key_changes(topic: Topic):
    """If the application gives ids: they are stored in their order."""
    consumer = topic.consumer()
    producer = topic.producer(
        batching_type=BatchingType.KeyBased, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    for number, key in enumerate("aaba", 1):
        producer.send_async(b"hello-%d" % number, None, sequence_id=number, partition_key=key)
    producer.flush()
    found = receive_all(consumer)
    assert numbers(found) == [1, 2, 3, 4]
    assert [one.message_id().batch_index() for one in found] == [0, 1, 0, 0]


def test_letters_of_a_partition(time: ManualTime):
    """They go to the topic of the whole, and null stays null."""
    with Admin(time.url) as admin:
        admin.topics().create_partitioned_topic("orders", 2)
        consumer = time.client.subscribe(
            "orders",
            "sub",
            ConsumerType.Shared,
            dead_letter_policy=ConsumerDeadLetterPolicy(1, initial_subscription_name="left"),
            negative_ack_redelivery_delay_ms=1,
        )
        time.client.create_producer("orders").send(None)
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(1000))
            time.pass_ms(200)
        letters = time.client.subscribe("orders-sub-DLQ", "left")
        assert letters.receive(1000).has_null_value()
        assert "persistent://public/default/orders-sub-DLQ" in admin.topics().get_list()


def test_a_batch_that_is_acknowledged_in_part_keeps_its_count(time: ManualTime):
    """Acknowledgements of others of its messages do not reset it."""
    topic = Topic(time.client)
    consumer = topic.consumer(
        consumer_type=ConsumerType.Shared, batch_index_ack_enabled=True, negative_ack_redelivery_delay_ms=1
    )
    topic.publish_batch(3)
    messages = receive_all(consumer)
    for count in (1, 2):
        for message in messages[1:]:
            consumer.negative_acknowledge(message)
        consumer.acknowledge(messages[0])
        time.pass_ms(200)
        messages = receive_all(consumer)
        assert {one.redelivery_count() for one in messages} == {count}
    assert numbers(messages) == [2]
