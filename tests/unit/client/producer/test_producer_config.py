"""The options of a producer."""

from __future__ import annotations

import inspect

import pulsar
import pytest

from embeddedpulsar.client.client import Client
from embeddedpulsar.client.producer.producer_session import producer_config
from embeddedpulsar.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)


def config(**options):
    """The config for some options; the others at their defaults."""
    parameters = inspect.signature(Client.create_producer).parameters.values()
    given = {p.name: p.default for p in parameters if p.name != "self"} | {"topic": "t"} | options
    return producer_config(given)


@pytest.fixture(scope="module")
def theirs():
    """A client of pulsar-client; the checks compared here come before it connects."""
    client = pulsar.Client("pulsar://localhost:1", operation_timeout_seconds=1)
    yield client
    client.close()


def test_defaults_are_those_of_pulsar_client():
    """What counts as default here is what pulsar-client has."""
    made = config()
    assert (made.send_timeout_ms, made.max_pending_messages, made.block_if_queue_full) == (30000, 1000, False)
    assert (made.batching, made.batching_max_messages, made.batching_max_bytes) == (False, 1000, 131072)
    assert (made.batching_max_delay_ms, made.compression, made.key_based) == (10, 0, False)
    assert made.name is made.initial_sequence_id is made.properties is made.durability is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", 5),
        ("producer_name", 5),
        ("schema", bytes),
        ("initial_sequence_id", "1"),
        ("send_timeout_millis", None),
        ("compression_type", 1),
        ("max_pending_messages", "x"),
        ("max_pending_messages_across_partitions", "x"),
        ("block_if_queue_full", 1),
        ("batching_enabled", 1),
        ("batching_max_messages", 1.5),
        ("batching_max_allowed_size_in_bytes", "x"),
        ("batching_max_publish_delay_ms", "x"),
        ("chunking_enabled", 1),
        ("properties", [("a", "b")]),
        ("batching_type", 0),
        ("encryption_key", 5),
        ("crypto_key_reader", "x"),
        ("lazy_start_partitioned_producers", 1),
        ("access_mode", 0),
        ("max_pending_messages", -1),
        ("max_pending_messages_across_partitions", -1),
        ("batching_max_messages", 1),
        ("batching_max_messages", 0),
    ],
)
def test_wrong_options_have_the_texts_of_pulsar_client(theirs, name, value):
    """Types and values are refused in the words of pulsar-client."""
    with pytest.raises(ValueError) as expected:
        theirs.create_producer(**{"topic": "t", name: value})
    with pytest.raises(ValueError) as found:
        config(**{name: value})
    assert str(found.value).startswith(str(expected.value))


def test_of_several_errors_the_first_is_told(theirs):
    """The order is that of pulsar-client, too, whichever way they are wrong."""
    wrong = {"batching_max_publish_delay_ms": 2**64, "batching_max_messages": 1, "batching_enabled": True}
    with pytest.raises(ValueError) as expected:
        theirs.create_producer("t", **wrong)
    with pytest.raises(ValueError) as found:
        config(**wrong)
    assert str(found.value).startswith(str(expected.value))
    wrong["max_pending_messages"] = 2**31
    with pytest.raises(TypeError):
        theirs.create_producer("t", **wrong)
    with pytest.raises(TypeError, match="max_pending_messages"):
        config(**wrong)


def test_batching_excludes_chunking(theirs):
    """The two together are refused in the words of pulsar-client."""
    both = {"batching_enabled": True, "chunking_enabled": True}
    with pytest.raises(ValueError) as expected:
        theirs.create_producer("t", **both)
    with pytest.raises(ValueError) as found:
        config(**both)
    assert str(found.value).startswith(str(expected.value))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"message_routing_mode": PartitionsRoutingMode.CustomPartition}, "needs a message_router"),
        ({"message_router": 5}, "callable"),
        ({"hashing_scheme": 2}, "HashingScheme"),
    ],
)
def test_routing_that_cannot_work_is_refused(options, reason):
    """A custom mode needs somebody to ask; pulsar-client would find that out when it sends."""
    with pytest.raises(ValueError, match=reason):
        config(**options)


@pytest.mark.parametrize(
    "options", [{"initial_sequence_id": 0}, {"initial_sequence_id": -1}, {"producer_name": ""}]
)
def test_empty_counts_as_not_set(options):
    """As in pulsar-client, 0, an id of -1 and the empty name are "not set"."""
    assert config(**options) == config()


def test_values_arrive():
    """What is set reaches the config."""
    made = config(
        producer_name="p",
        initial_sequence_id=7,
        compression_type=CompressionType.ZLib,
        batching_enabled=True,
        batching_type=BatchingType.KeyBased,
        properties={"a": "b"},
        access_mode=ProducerAccessMode.Exclusive,
        durability="flush",
        message_routing_mode=PartitionsRoutingMode.UseSinglePartition,
        max_pending_messages_across_partitions=5,
        lazy_start_partitioned_producers=True,
        hashing_scheme=HashingScheme.BoostHash,
    )
    assert (made.routing_mode, made.max_pending_across, made.lazy_start) == (0, 5, True)
    assert made.hashing_scheme == HashingScheme.BoostHash
    assert (made.name, made.initial_sequence_id, made.compression) == ("p", 7, 2)
    assert made.batching
    assert made.key_based
    assert (made.properties, made.durability) == ({"a": "b"}, "flush")
    assert made.access_mode is ProducerAccessMode.Exclusive


def test_a_negative_timeout_is_none():
    """As in pulsar-client: nobody gives up."""
    assert config(send_timeout_millis=-1) == config(send_timeout_millis=0)


def test_large_limits_are_no_limits():
    """pulsar-client has 64 bits for them; a delay of three weeks is as good as one of an age."""
    made = config(batching_max_publish_delay_ms=2**64 - 1, batching_max_allowed_size_in_bytes=2**63)
    assert (made.batching_max_delay_ms, made.batching_max_bytes) == (2**31 - 1, 2**31 - 1)


def test_properties_are_copied():
    """Bytes in them are text, as in those of messages."""
    given = {"a": b"b"}
    assert config(properties=given).properties == {"a": "b"}


@pytest.mark.parametrize(
    "options",
    [
        {"send_timeout_millis": 2**31},
        {"max_pending_messages": 2**31},
        {"max_pending_messages_across_partitions": -(2**31) - 1},
        {"batching_max_messages": -1},
        {"batching_max_publish_delay_ms": -1},
        {"batching_max_allowed_size_in_bytes": -1},
        {"initial_sequence_id": 2**63},
        {"properties": {"a": 1}},
        {"properties": {1: "a"}},
        {"message_routing_mode": 1},
        {"message_routing_mode": "round robin"},
    ],
)
def test_what_the_protocol_has_no_room_for(theirs, options):
    """A TypeError here as there; the text here says what is wrong."""
    with pytest.raises(TypeError):
        theirs.create_producer("t", **options)
    with pytest.raises(TypeError, match=f"Argument {next(iter(options))} "):
        config(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "disk"},
        {"initial_sequence_id": -2},
        {"initial_sequence_id": 2**63 - 1},
        {"producer_name": "ö" * 2049},
    ],
)
def test_values_without_sense_are_refused(options):
    """pulsar-client would take some of them, to no good."""
    with pytest.raises(ValueError):
        config(**options)
