"""Chunked messages that are encrypted: each part is an entry like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Client,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    MessageId,
)
from embeddedpulsar.arrow import read_topic
from tests.conformance.chunks import (
    LIMIT,
    HalfSent,
    entries_in,
    log_of,
    payload,
    subscription_of,
    use_small_entries,
)
from tests.support.key_files import KeyRing

LARGE = 3 * LIMIT


@pytest.fixture
def encrypted(store_path: Path, client: Client) -> Any:
    """Options of a producer that chunks and encrypts, and the key reader."""
    ring = KeyRing()
    return {"chunking_enabled": True, "encryption_key": "app", "crypto_key_reader": ring}


@pytest.fixture(autouse=True)
def small_entries(store_path: Path) -> None:
    """Entries of at most 3,000 bytes: the wrapped key takes some of that."""
    use_small_entries(store_path, LARGE)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZLib])
def test_it_comes_whole(client, encrypted, kind, codec):
    """Every entry fits with its ciphertext; the message comes back, and all entries are acknowledged."""
    keys = encrypted["crypto_key_reader"]
    consumer = client.subscribe("topic", "sub", kind, crypto_key_reader=keys)
    producer = client.create_producer("topic", compression_type=codec, **encrypted)
    for size in (LARGE - 450, LARGE - 300, LARGE, 4 * LARGE):
        producer.send(payload(size), {"a": "b"}, "key")
        message = consumer.receive(1000)
        assert message.data() == payload(size)
        assert (message.properties(), message.partition_key()) == ({"a": "b"}, "key")
        consumer.acknowledge(message)
    consumer._acks.flush()
    assert subscription_of(consumer).mark_delete == log_of(client).last_position()
    assert len(entries_in(client)) > 7
    reader = client.create_reader("topic", MessageId.earliest, crypto_key_reader=keys)
    assert [len(message.data()) for message in reader] == [LARGE - 450, LARGE - 300, LARGE, 4 * LARGE]


def test_without_the_key(client, encrypted):
    """DISCARD acknowledges all entries of it; FAIL leaves all."""
    producer = client.create_producer("topic", **encrypted)
    producer.send(payload(4 * LARGE))
    options: dict[str, Any] = {"initial_position": InitialPosition.Earliest}
    discarding = client.subscribe(
        "topic", "discard", crypto_failure_action=ConsumerCryptoFailureAction.DISCARD, **options
    )
    failing = client.subscribe("topic", "fail", **options)
    for consumer in (discarding, failing):
        assert consumer.receive_nowait() is None
        consumer._acks.flush()
    assert subscription_of(discarding).mark_delete == log_of(client).last_position()
    assert subscription_of(failing).mark_delete.entry_id == -1
    failing.close()
    able = client.subscribe("topic", "fail", crypto_key_reader=encrypted["crypto_key_reader"])
    assert able.receive(1000).data() == payload(4 * LARGE)


def test_what_never_ends(client, encrypted):
    """Parts are told apart without a key."""
    producer = client.create_producer("topic", **encrypted)
    HalfSent(producer, payload(4 * LARGE)).send(2)
    consumer = client.subscribe("topic", "sub", initial_position=InitialPosition.Earliest)
    assert consumer.receive_nowait() is None
    assert consumer._core.session.attachment.chunks.unfinished((1 << 40, 0)) != []


def test_columns(client, encrypted, store_path):
    """Arrow reads it with the key, and what is in the clear without."""
    producer = client.create_producer("topic", **encrypted)
    producer.send(payload(4 * LARGE))
    producer.send(b"small")
    found = read_topic(store_path, "topic", crypto_key_reader=encrypted["crypto_key_reader"])
    assert found.column("value").to_pylist() == [payload(4 * LARGE), b"small"]
    assert read_topic(store_path, "topic", ["__sequenceId"]).column(0).to_pylist() == [0, 1]
