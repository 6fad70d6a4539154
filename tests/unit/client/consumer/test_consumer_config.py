"""The options of consumers and readers."""

from __future__ import annotations

import inspect

import pulsar
import pytest

import embeddedpulsar
from embeddedpulsar import exceptions
from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer_config import consumer_config, reader_config
from embeddedpulsar.client.consumer.due_entries import MultiplierRedeliveryBackoff
from embeddedpulsar.enums import (
    RegexSubscriptionMode,
    SubscriptionMode,
)
from embeddedpulsar.message_id import MessageId


def defaults(method) -> dict[str, object]:
    """The parameters of a method with their defaults."""
    return {p.name: p.default for p in inspect.signature(method).parameters.values() if p.name != "self"}


def config(**options):
    """The consumer config for some options; the others at their defaults."""
    return consumer_config(defaults(Client.subscribe) | {"topic": "t", "subscription_name": "s"} | options)


def config_of_reader(**options):
    """The reader config for some options; the others at their defaults."""
    required = {"topic": "t", "start_message_id": MessageId.earliest}
    return reader_config(defaults(Client.create_reader) | required | options)


@pytest.fixture(scope="module")
def theirs():
    """A client of pulsar-client; the checks compared here come before it connects."""
    client = pulsar.Client("pulsar://localhost:1", operation_timeout_seconds=1)
    yield client
    client.close()


def test_defaults_are_those_of_pulsar_client():
    """What counts as default here is what pulsar-client has."""
    made = config()
    assert (made.receiver_queue_size, made.ack_timeout_ms, made.nack_delay_ms) == (1000, 0, 60000)
    assert (made.ack_group_time_ms, made.batch_index_ack, made.name) == (100, False, None)
    policy = made.batch_receive
    limits = (policy.getMaxNumMessages(), policy.getMaxNumBytes(), policy.getTimeoutMs())
    assert limits == (-1, 10 * 1024 * 1024, 100)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", 5),
        ("subscription_name", None),
        ("consumer_type", 0),
        ("schema", str),
        ("receiver_queue_size", "x"),
        ("max_total_receiver_queue_size_across_partitions", None),
        ("consumer_name", 5),
        ("unacked_messages_timeout_ms", "x"),
        ("broker_consumer_stats_cache_time_ms", "x"),
        ("negative_ack_redelivery_delay_ms", "x"),
        ("pattern_auto_discovery_period", "x"),
        ("is_read_compacted", 1),
        ("properties", "x"),
        ("initial_position", 1),
        ("crypto_key_reader", "x"),
        ("max_pending_chunked_message", "x"),
        ("auto_ack_oldest_chunked_message_on_queue_full", 1),
        ("start_message_id_inclusive", 1),
        ("batch_receive_policy", 5),
        ("key_shared_policy", 5),
        ("batch_index_ack_enabled", 1),
        ("regex_subscription_mode", 0),
        ("crypto_failure_action", 0),
        ("unacked_messages_timeout_ms", 9999),
    ],
)
def test_wrong_options_have_the_texts_of_pulsar_client(theirs, name, value):
    """Types and values are refused in the words of pulsar-client."""
    options = {"topic": "t", "subscription_name": "s", name: value}
    with pytest.raises(ValueError) as expected:
        theirs.subscribe(**options)
    with pytest.raises(ValueError) as found:
        config(**{name: value})
    assert str(found.value).startswith(str(expected.value))


def test_options_without_effect_on_a_topic_are_taken():
    """What patterns and replication would need is no error where a topic is named."""
    config(
        replicate_subscription_state_enabled=True,
        regex_subscription_mode=RegexSubscriptionMode.AllTopics,
        pattern_auto_discovery_period=5,
    )
    assert config(receiver_queue_size=-1).receiver_queue_size == 1


def test_an_empty_subscription_name_is_invalid():
    """As a broker would, with InvalidConfiguration."""
    with pytest.raises(exceptions.InvalidConfiguration, match="subscription_name"):
        config(subscription_name="")


def test_values_arrive():
    """What is set reaches the config; a nack delay below 100 ms becomes 100."""
    made = config(
        consumer_name="c",
        unacked_messages_timeout_ms=10000,
        negative_ack_redelivery_delay_ms=5,
        batch_receive_policy=embeddedpulsar.ConsumerBatchReceivePolicy(5, 6, 7),
        batch_index_ack_enabled=True,
        ack_group_time_ms=0,
        properties={"a": "b"},
    )
    assert (made.name, made.ack_timeout_ms, made.nack_delay_ms) == ("c", 10000, 100)
    assert made.batch_receive.getMaxNumMessages() == 5
    assert (made.batch_index_ack, made.ack_group_time_ms, made.properties) == (True, 0, {"a": "b"})


def test_our_own_options_arrive():
    """What pulsar-client does not have reaches the config too."""
    made = config()
    assert (made.priority_level, made.subscription_mode, made.key_shared) == (
        0,
        SubscriptionMode.Durable,
        None,
    )
    assert (made.ack_timeout_tick_ms, made.nack_backoff, made.ack_timeout_backoff) == (1000, None, None)
    assert (made.ack_receipt, made.enable_retry, made.retry_letter_topic) == (False, False, None)
    nack, timeout = MultiplierRedeliveryBackoff(1, 2), MultiplierRedeliveryBackoff(3, 4)
    made = config(
        priority_level=3,
        negative_ack_redelivery_backoff=nack,
        ack_timeout_redelivery_backoff=timeout,
        unacked_messages_timeout_ms=20_000,
        ack_timeout_tick_ms=500,
        ack_receipt_enabled=True,
    )
    assert (made.priority_level, made.ack_timeout_tick_ms, made.ack_receipt) == (3, 500, True)
    assert (made.nack_backoff, made.ack_timeout_backoff) == (nack, timeout)


def test_the_tick_is_no_longer_than_the_timeout():
    """A tick above the timeout would double it."""
    assert (
        config(unacked_messages_timeout_ms=10_000, ack_timeout_tick_ms=60_000).ack_timeout_tick_ms == 10_000
    )


@pytest.mark.parametrize(
    "options",
    [
        {"receiver_queue_size": 2**31},
        {"ack_group_time_ms": -1},
        {"ack_group_time_ms": "1"},
        {"ack_timeout_tick_ms": 0},
        {"ack_timeout_tick_ms": None},
        {"priority_level": -1},
        {"priority_level": "1"},
        {"subscription_mode": 0},
        {"negative_ack_redelivery_backoff": 5},
        {"ack_timeout_redelivery_backoff": lambda count: 5},
        {"ack_timeout_redelivery_backoff": MultiplierRedeliveryBackoff()},
        {"ack_receipt_enabled": 1},
        {"enable_retry": None},
        {"retry_letter_topic": "retry"},
    ],
)
def test_values_without_sense_are_refused(options):
    """Wrong types, negative sizes and times, and options that lack the one they belong to are refused."""
    with pytest.raises(ValueError):
        config(**options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", ["a"]),
        ("start_message_id", None),
        ("start_message_id", 5),
        ("schema", 5),
        ("receiver_queue_size", "x"),
        ("reader_name", 5),
        ("subscription_role_prefix", 5),
        ("is_read_compacted", 1),
        ("crypto_key_reader", "x"),
        ("start_message_id_inclusive", 1),
        ("crypto_failure_action", 0),
    ],
)
def test_wrong_options_of_a_reader_have_the_texts_of_pulsar_client(theirs, name, value):
    """Types are refused in the words of pulsar-client."""
    options = {"topic": "t", "start_message_id": pulsar.MessageId.earliest, name: value}
    with pytest.raises(ValueError) as expected:
        theirs.create_reader(**options)
    with pytest.raises(ValueError) as found:
        config_of_reader(**{name: value})
    assert str(found.value).startswith(str(expected.value))


def test_reader_values_arrive():
    """What is set reaches the config."""
    made = config_of_reader(
        reader_name="r", subscription_role_prefix="p", start_message_id_inclusive=True, is_read_compacted=True
    )
    assert (made.name, made.start_inclusive) == ("r", True)
    assert made.is_read_compacted
