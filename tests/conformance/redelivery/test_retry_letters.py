"""Retry letters: `reconsume_later` sends a message round by way of the retry topic, and in the end away."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    Client,
    ConsumerDeadLetterPolicy,
    InitialPosition,
    InvalidConfiguration,
    InvalidTopicName,
    StorageFullError,
    Timeout,
)
from tests.conformance.conftest import receive_all
from tests.conformance.partitioned import PartitionedTopic
from tests.support.clients import send, stored

BASE = "persistent://public/default/"


def subscribe(client: Client, **options: Any) -> Any:
    """A consumer of ``orders`` with retries."""
    options.setdefault("initial_position", InitialPosition.Earliest)
    return client.subscribe("orders", "sub", enable_retry=True, **options)


def test_a_message_comes_again_by_the_retry_topic(client):
    """The copy has payload, keys, event time and properties of the message, and what the retry adds."""
    (sent,) = send(
        client,
        "orders",
        b"soup",
        properties={"table": "7"},
        partition_key="k",
        ordering_key="o",
        event_timestamp=123,
    )
    consumer = subscribe(client)
    consumer.reconsume_later(consumer.receive(1000), 0)
    again = consumer.receive(1000)
    assert again.topic_name() == BASE + "orders-sub-RETRY"
    assert (again.data(), again.partition_key(), again.ordering_key(), again.event_timestamp()) == (
        b"soup",
        "k",
        "o",
        123,
    )
    assert again.properties() == {
        "table": "7",
        "RECONSUMETIMES": "1",
        "DELAY_TIME": "0",
        "REAL_TOPIC": BASE + "orders",
        "ORIGIN_MESSAGE_ID": str(sent),
        "ORIGIN_MESSAGE_IDY_TIME": str(sent),
    }


def test_the_original_is_acknowledged(client):
    """After a retry only the copy is left, also for the next consumer."""
    send(client, "orders", b"soup")
    with subscribe(client) as consumer:
        consumer.reconsume_later(consumer.receive(1000), 0)
    with subscribe(client) as consumer:
        assert [one.topic_name() for one in receive_all(consumer)] == [BASE + "orders-sub-RETRY"]


@pytest.mark.in_memory
def test_every_round_counts(client):
    """RECONSUMETIMES grows, DELAY_TIME is that of the last round, and the origin stays the first topic."""
    (sent,) = send(client, "orders", b"soup")
    consumer = subscribe(client)
    for number in range(1, 4):
        consumer.reconsume_later(consumer.receive(1000), number * 10)
    properties = consumer.receive(1000).properties()
    assert (properties["RECONSUMETIMES"], properties["DELAY_TIME"]) == ("3", "30")
    assert (properties["REAL_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == (BASE + "orders", str(sent))


def test_own_properties(client):
    """Properties that are passed come with the copy and replace its own; those of the retry win."""
    send(client, "orders", b"soup", properties={"table": "7", "waiter": "Ada"})
    consumer = subscribe(client)
    given = {"waiter": "Grace", "reason": "cold", "RECONSUMETIMES": "99", "DELAY_TIME": "x"}
    consumer.reconsume_later(consumer.receive(1000), -5, given)
    properties = consumer.receive(1000).properties()
    assert {name: properties[name] for name in ("table", "waiter", "reason")} == {
        "table": "7",
        "waiter": "Grace",
        "reason": "cold",
    }
    assert (properties["RECONSUMETIMES"], properties["DELAY_TIME"]) == ("1", "0")


def test_too_many_rounds_end_in_the_dead_letter_topic(client):
    """After max_redeliver_count rounds the next one leads to the dead letter topic, with all properties."""
    (sent,) = send(client, "orders", b"soup")
    consumer = subscribe(client, dead_letter_policy=ConsumerDeadLetterPolicy(2))
    rounds = 0
    while (message := consumer.receive_nowait()) is not None:
        consumer.reconsume_later(message, 0, {"round": str(rounds)})
        rounds += 1
    assert rounds == 3
    (letter,) = stored(client, "orders-sub-DLQ")
    assert letter.data() == b"soup"
    assert letter.properties() == {
        "round": "2",
        "RECONSUMETIMES": "3",
        "DELAY_TIME": "0",
        "REAL_TOPIC": BASE + "orders",
        "ORIGIN_MESSAGE_ID": str(sent),
        "ORIGIN_MESSAGE_IDY_TIME": str(sent),
    }


def test_without_a_policy_there_are_sixteen_rounds(client):
    """enable_retry alone allows 16 retries, as Pulsar's Java client does."""
    send(client, "orders", b"soup")
    consumer = subscribe(client)
    rounds = 0
    while (message := consumer.receive_nowait()) is not None:
        consumer.reconsume_later(message, 0)
        rounds += 1
    assert rounds == 17
    assert len(stored(client, "orders-sub-DLQ")) == 1


def test_topics_can_be_named(client):
    """Names that are given are used for both topics."""
    send(client, "orders", b"soup")
    policy = ConsumerDeadLetterPolicy(1, dead_letter_topic="dead")
    consumer = subscribe(client, retry_letter_topic="again", dead_letter_policy=policy)
    consumer.reconsume_later(consumer.receive(1000), 0)
    again = consumer.receive(1000)
    assert again.topic_name() == BASE + "again"
    consumer.reconsume_later(again, 0)
    assert len(stored(client, "dead")) == 1


def test_topics_of_the_older_form_are_used_if_they_exist(client):
    """Where ``<subscription>-RETRY`` and ``-DLQ`` exist, messages go there."""
    client.create_producer("sub-RETRY").close()
    client.create_producer("sub-DLQ").close()
    send(client, "orders", b"soup")
    consumer = subscribe(client, dead_letter_policy=ConsumerDeadLetterPolicy(1))
    consumer.reconsume_later(consumer.receive(1000), 0)
    again = consumer.receive(1000)
    assert again.topic_name() == BASE + "sub-RETRY"
    consumer.reconsume_later(again, 0)
    assert len(stored(client, "sub-DLQ")) == 1


def test_several_topics_share_one_retry_topic(client):
    """With a list the retry topic is that of the first topic by name, and REAL_TOPIC says where it was."""
    for topic in ("red", "blue"):
        client.create_producer(topic).send(topic.encode())
    consumer = client.subscribe(
        ["red", "blue"], "sub", enable_retry=True, initial_position=InitialPosition.Earliest
    )
    for _ in range(2):
        consumer.reconsume_later(consumer.receive(1000), 0)
    again = receive_all(consumer)
    assert {one.topic_name() for one in again} == {BASE + "blue-sub-RETRY"}
    assert {one.properties()["REAL_TOPIC"] for one in again} == {BASE + "red", BASE + "blue"}


def test_the_topic_is_the_one_subscribed_to(client):
    """The retry topic is no concern of the program: the consumer has the topic it asked for."""
    consumer = subscribe(client)
    assert consumer.topic() == BASE + "orders"
    assert consumer.consumer_name()


def test_it_needs_enable_retry(client):
    """A consumer without retries refuses, and a retry topic without enable_retry makes no sense."""
    send(client, "orders", b"soup")
    consumer = client.subscribe("orders", "sub", initial_position=InitialPosition.Earliest)
    message = consumer.receive(1000)
    for method in (consumer.reconsume_later, consumer.reconsume_later_cumulative):
        with pytest.raises(InvalidConfiguration, match="enable_retry"):
            method(message, 0)
    with pytest.raises(ValueError, match="enable_retry"):
        client.subscribe("orders", "other", retry_letter_topic="again")


def test_wrong_arguments_are_refused(client):
    """Ids have no payload to send round; delays are numbers, properties strings. Nothing happens to it."""
    send(client, "orders", b"soup")
    consumer = subscribe(client)
    message = consumer.receive(1000)
    with pytest.raises(TypeError, match="expected a Message"):
        consumer.reconsume_later(message.message_id(), 0)
    for arguments in (("1",), (0, "x")):
        with pytest.raises(ValueError, match="Argument"):
            consumer.reconsume_later(message, *arguments)
    for properties in ({"a": 1}, {1: "a"}):
        with pytest.raises(TypeError, match="Argument properties"):
            consumer.reconsume_later(message, 0, properties)
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.reconsume_later(message, 0)
    assert len(receive_all(subscribe(client))) == 1
    with pytest.raises(InvalidTopicName):
        client.subscribe("orders", "other", enable_retry=True, retry_letter_topic="a/b")


def test_a_message_whose_copy_cannot_be_stored_comes_again(client, monkeypatch):
    """The caller gets the error, the message stays unacknowledged and is delivered again."""
    send(client, "orders", b"soup")
    consumer = subscribe(client)
    message = consumer.receive(1000)
    retry = client._core.store.use_topic("orders-sub-RETRY").topic.ledger

    def full(*_: object) -> None:
        raise StorageFullError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(retry, "append_nowait", full)
        with pytest.raises(StorageFullError):
            consumer.reconsume_later(message, 0)
    assert consumer.receive(1000).message_id() == message.message_id()
    consumer.reconsume_later(message, 0)
    assert consumer.receive(1000).topic_name() == BASE + "orders-sub-RETRY"


def test_cumulatively(client):
    """reconsume_later_cumulative sends one message round and acknowledges everything before it."""
    send(client, "orders", b"0", b"1", b"2", b"3")
    with subscribe(client) as consumer:
        messages = [consumer.receive(1000) for _ in range(3)]
        consumer.reconsume_later_cumulative(messages[2], 0)
    with subscribe(client) as consumer:
        assert sorted(one.data() for one in receive_all(consumer)) == [b"2", b"3"]


def test_one_message_of_a_batch(client):
    """A message of a batch goes round alone, whatever becomes of the others."""
    with client.create_producer("orders", batching_enabled=True) as producer:
        for i in range(3):
            producer.send_async(b"%d" % i, None)
    with subscribe(client) as consumer:
        messages = [consumer.receive(1000) for _ in range(3)]
        consumer.reconsume_later(messages[1], 0)
        consumer.acknowledge(messages[0])
        consumer.acknowledge(messages[2])
    with subscribe(client) as consumer:
        (again,) = receive_all(consumer)
        assert again.data() == b"1"
        assert again.properties()["ORIGIN_MESSAGE_ID"] == str(messages[1].message_id())


def test_null_values_stay_null(client):
    """A message without a value is sent round as one."""
    with client.create_producer("orders") as producer:
        producer.send(None)
    consumer = subscribe(client)
    consumer.reconsume_later(consumer.receive(1000), 0)
    assert consumer.receive(1000).has_null_value()


def test_a_property_that_is_no_number_counts_as_none(client):
    """RECONSUMETIMES may have been set by anybody."""
    send(client, "orders", b"soup", properties={"RECONSUMETIMES": "often"})
    consumer = subscribe(client)
    consumer.reconsume_later(consumer.receive(1000), 0)
    assert consumer.receive(1000).properties()["RECONSUMETIMES"] == "1"


def test_letters_are_as_durable_as_the_client_says(store_url):
    """At level flush a letter is on the disk before the original is acknowledged."""
    with Client(store_url, durability="flush") as client:
        send(client, "orders", b"soup")
        consumer = subscribe(client)
        consumer.reconsume_later(consumer.receive(1000), 0)
        ledger = client._core.store.use_topic("orders-sub-RETRY").topic.ledger
        assert ledger.statistics().syncs_here >= 1
        assert consumer.receive(1000).data() == b"soup"


def test_closing_lets_the_topics_go(client):
    """A closed consumer leaves no producer behind on the retry and dead letter topics."""
    send(client, "orders", b"soup")
    consumer = subscribe(client, dead_letter_policy=ConsumerDeadLetterPolicy(1))
    for _ in range(2):
        consumer.reconsume_later(consumer.receive(1000), 0)
    store = client._core.store
    topics = [store.use_topic(name).topic for name in ("orders-sub-RETRY", "orders-sub-DLQ")]
    names = [topic.producers() for topic in topics]
    assert [len(one) for one in names] == [1, 1]
    assert names[1] == [f"{BASE}orders-sub-RETRY-sub-{consumer.consumer_name()}-DLQ"]
    consumer.close()
    assert [topic.producers() for topic in topics] == [[], []]
    with pytest.raises(Timeout):
        subscribe(client).receive(10)


def test_partitions_of_a_retry_topic_get_letters_by_their_key(client):
    """So messages of one key stay in order through their retries."""
    retries = PartitionedTopic(client, 3, "again")
    consumer = subscribe(client, retry_letter_topic="again")
    with client.create_producer("orders") as producer:
        for number in range(12):
            producer.send(b"hello-%d" % number, partition_key=f"key-{number % 4}")
    for _ in range(12):
        consumer.reconsume_later(consumer.receive(1000), 600_000)
    found = retries.all_numbers()
    assert sorted(chain.from_iterable(found)) == list(range(12))
    for numbers in found:
        assert numbers == sorted(numbers)
    assert len({number % 4 for number in found[0]} & {number % 4 for number in found[1]}) == 0
