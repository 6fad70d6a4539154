"""Encryption together with chunks, whole columns, partitions, schemas and coroutines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Client,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    CryptoKeyReader,
    StringSchema,
)
from tests.conformance.conftest import Topic, receive_all
from tests.support.key_files import sealing

TYPES = [ConsumerType.Exclusive, ConsumerType.Shared]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_chunked_messages(
    topic: Topic, keys: CryptoKeyReader, kind: ConsumerType, compression: CompressionType
):
    """Every part is encrypted; the message comes whole, once, and is acknowledged whole."""
    consumer = topic.consumer(consumer_type=kind, crypto_key_reader=keys)
    content = bytes(range(256)) * 40
    producer = topic.producer(
        **sealing(keys, chunking_enabled=True, chunk_max_message_size=2000, compression_type=compression)
    )
    sent = producer.send(content, {"a": "b"}, partition_key="k")
    message = consumer.receive(1000)
    assert (message.data(), message.message_id()) == (content, sent)
    assert (message.properties(), message.partition_key()) == ({"a": "b"}, "k")
    assert [key.key for key in message.encryption_context().keys()] == ["app"]
    consumer.acknowledge(message)
    consumer.close()
    assert receive_all(topic.consumer(consumer_type=kind, crypto_key_reader=keys)) == []


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("action", list(ConsumerCryptoFailureAction))
def test_chunked_messages_without_the_key(
    topic: Topic, keys: CryptoKeyReader, kind: ConsumerType, action: ConsumerCryptoFailureAction
):
    """FAIL keeps a chunked message for who has the key; DISCARD does away with it; CONSUME shows a part."""
    producer = topic.producer(**sealing(keys, chunking_enabled=True, chunk_max_message_size=2000))
    content = bytes(range(256)) * 40
    producer.send(content)
    topic.publish(1)
    consumer = topic.consumer(consumer_type=kind, crypto_failure_action=action)
    messages = receive_all(consumer)
    assert messages[-1].data() == b"hello-0"
    assert len(messages) == (2 if action == ConsumerCryptoFailureAction.CONSUME else 1)
    consumer.close()
    later = receive_all(topic.consumer(consumer_type=kind, crypto_key_reader=keys))
    discarded = action == ConsumerCryptoFailureAction.DISCARD
    assert [message.data() for message in later] == ([] if discarded else [content]) + [b"hello-0"]


def test_whole_columns(topic: Topic, keys: CryptoKeyReader, store_path: Path):
    """`send_many` encrypts its entries."""
    producer = topic.producer(**sealing(keys))
    producer.send_many([b"secret %d" % i for i in range(1000)], partition_keys=["key"] * 1000)
    messages = receive_all(topic.consumer(crypto_key_reader=keys))
    assert [message.data() for message in messages] == [b"secret %d" % i for i in range(1000)]
    assert {message.partition_key() for message in messages} == {"key"}
    stored = b"".join(path.read_bytes() for path in store_path.rglob("*.log"))
    assert b"secret 7" not in stored
    assert producer.stats().messages_sent == 1000


def test_partitions(client: Client, keys: CryptoKeyReader):
    """Each partition has a data key; one consumer reads them all."""
    core: Any = client._core
    core.store.topics.create_partitioned("parts", 3)
    consumer = client.subscribe("parts", "s", crypto_key_reader=keys)
    producer = client.create_producer("parts", **sealing(keys))
    for i in range(9):
        producer.send(b"%d" % i)
    messages = receive_all(consumer)
    assert sorted(message.data() for message in messages) == [b"%d" % i for i in range(9)]
    assert len({message.encryption_context().keys()[0].value for message in messages}) == 3


def test_schemas_and_null_values(topic: Topic, keys: CryptoKeyReader):
    """Values are decoded after decryption; a null stays one."""
    consumer = topic.consumer(schema=StringSchema(), crypto_key_reader=keys)
    producer = topic.producer(schema=StringSchema(), **sealing(keys))
    producer.send("täglich")
    producer.send(None, partition_key="k")
    text, null = receive_all(consumer)
    assert (text.value(), null.has_null_value()) == ("täglich", True)


def test_coroutines(store_url: Path | str, keys: CryptoKeyReader):
    """The clients for asyncio take the same options."""
    import embeddedpulsar.asyncio as pulsar

    async def main() -> bytes:
        async with pulsar.Client(store_url) as client:
            consumer = await client.subscribe("topic", "s", crypto_key_reader=keys)
            producer = await client.create_producer("topic", **sealing(keys))
            await producer.send(b"secret")
            data: bytes = (await consumer.receive()).data()
            return data

    assert asyncio.run(main()) == b"secret"
