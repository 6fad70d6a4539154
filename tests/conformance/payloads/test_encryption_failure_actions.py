"""What becomes of messages a consumer cannot decrypt: FAIL, DISCARD, CONSUME."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    CryptoKeyReader,
    InitialPosition,
)
from tests.conformance.conftest import Topic, numbers, receive_all
from tests.conformance.manual_time import ManualTime
from tests.support.key_files import key_files

DISCARD = ConsumerCryptoFailureAction.DISCARD
CONSUME = ConsumerCryptoFailureAction.CONSUME
TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.fixture(params=["no reader", "another key", "another kind", "no file"])
def wrong(request: pytest.FixtureRequest, tmp_path: Path) -> CryptoKeyReader | None:
    """The wrong ones."""
    return {
        "no reader": lambda: None,
        "another key": lambda: key_files(tmp_path, "ec", 1),
        "another kind": lambda: key_files(tmp_path, "rsa"),
        "no file": lambda: CryptoKeyReader("", str(tmp_path / "none")),
    }[request.param]()


def publish(topic: Topic, keys: CryptoKeyReader, count: int, **options: Any) -> None:
    topic.publish(count, encryption_key="app", crypto_key_reader=keys, **options)


@pytest.mark.parametrize("kind", TYPES)
def test_fail_keeps_the_message_for_who_has_the_key(
    topic: Topic, keys: CryptoKeyReader, wrong: CryptoKeyReader | None, kind: ConsumerType
):
    """FAIL, the default: neither delivered nor acknowledged; who has the key gets it later."""
    consumer = topic.consumer(consumer_type=kind, crypto_key_reader=wrong)
    topic.publish(1)
    publish(topic, keys, 5)
    topic.publish(2)
    messages = receive_all(consumer)
    assert numbers(messages) == [0, 0, 1]
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    later = topic.consumer(consumer_type=kind, crypto_key_reader=keys)
    assert numbers(receive_all(later)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", TYPES)
def test_discard_acknowledges_silently(
    topic: Topic, keys: CryptoKeyReader, wrong: CryptoKeyReader | None, kind: ConsumerType
):
    """DISCARD: not delivered, acknowledged; nobody gets it any more."""
    consumer = topic.consumer(consumer_type=kind, crypto_key_reader=wrong, crypto_failure_action=DISCARD)
    publish(topic, keys, 3)
    topic.publish_batch(4, encryption_key="app", crypto_key_reader=keys)
    topic.publish(1)
    messages = receive_all(consumer)
    assert numbers(messages) == [0]
    consumer.acknowledge(messages[0])
    consumer.close()
    assert receive_all(topic.consumer(consumer_type=kind, crypto_key_reader=keys)) == []


@pytest.mark.parametrize("kind", TYPES)
def test_consume_gives_ciphertext(
    topic: Topic, keys: CryptoKeyReader, wrong: CryptoKeyReader | None, kind: ConsumerType
):
    """CONSUME: a batch comes as one message, still compressed, and can be acknowledged."""
    consumer = topic.consumer(consumer_type=kind, crypto_key_reader=wrong, crypto_failure_action=CONSUME)
    publish(topic, keys, 1)
    topic.publish_batch(
        7, encryption_key="app", crypto_key_reader=keys, compression_type=CompressionType.ZLib
    )
    single, batch = receive_all(consumer)
    assert single.encryption_context().is_decryption_failed()
    assert single.encryption_context().batch_size() == -1
    context = batch.encryption_context()
    assert context.is_decryption_failed()
    assert (context.batch_size(), context.compression_type()) == (7, CompressionType.ZLib)
    assert batch.message_id().batch_index() == -1
    assert b"hello" not in batch.data()
    assert (batch.partition_key(), batch.properties()) == ("", {})
    for message in (single, batch):
        consumer.acknowledge(message)
    consumer.close()
    assert receive_all(topic.consumer(consumer_type=kind, crypto_key_reader=keys)) == []


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_fail_waits_for_the_acknowledgement_timeout(
    time: ManualTime, tmp_path: Path, keys: CryptoKeyReader, kind: ConsumerType
):
    """With a timeout, what could not be decrypted is tried again when it is over: a key may have come."""
    ring = CryptoKeyReader("", str(tmp_path / "late.pem"))
    consumer = time.client.subscribe(
        "topic", "sub", kind, crypto_key_reader=ring, unacked_messages_timeout_ms=10_000
    )
    time.client.create_producer("topic", encryption_key="app", crypto_key_reader=keys).send(b"late")
    assert consumer.receive_nowait() is None
    (tmp_path / "late.pem").write_bytes(Path(keys.private_key_path).read_bytes())
    assert consumer.receive_nowait() is None
    time.pass_ms(11_001)
    message = consumer.receive_nowait()
    assert message is not None
    assert (message.data(), message.redelivery_count()) == (b"late", int(kind == ConsumerType.Shared))


def test_fail_never_makes_dead_letters(time: ManualTime, keys: CryptoKeyReader):
    """What cannot be decrypted cannot be copied: it waits, however often it came again."""
    policy = ConsumerDeadLetterPolicy(1)
    options: dict[str, Any] = {
        "consumer_type": ConsumerType.Shared,
        "initial_position": InitialPosition.Earliest,
        "dead_letter_policy": policy,
        "unacked_messages_timeout_ms": 10_000,
    }
    dead = time.client.subscribe("topic-sub-DLQ", "dead")
    consumer = time.client.subscribe("topic", "sub", **options)
    time.client.create_producer("topic", encryption_key="app", crypto_key_reader=keys).send(b"x")
    for _ in range(5):
        assert consumer.receive_nowait() is None
        time.pass_ms(11_000)
    assert dead.receive_nowait() is None
    consumer.close()
    del options["dead_letter_policy"]
    later = time.client.subscribe("topic", "sub", **options, crypto_key_reader=keys)
    message = later.receive_nowait()
    assert message is not None
    assert message.data() == b"x"


def test_ciphertext_moves_as_it_is(time: ManualTime, keys: CryptoKeyReader):
    """With CONSUME a dead letter holds the ciphertext the application saw."""
    dead = time.client.subscribe("topic-sub-DLQ", "dead")
    consumer = time.client.subscribe(
        "topic",
        "sub",
        ConsumerType.Shared,
        crypto_failure_action=CONSUME,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=100,
    )
    time.client.create_producer("topic", encryption_key="app", crypto_key_reader=keys).send(b"x")
    seen = b""
    for _ in range(2):
        message = consumer.receive(1000)
        seen = message.data()
        consumer.negative_acknowledge(message)
        time.pass_ms(1000)
    letter = dead.receive(1000)
    assert (letter.data(), letter.encryption_context()) == (seen, None)


def test_many_undecryptable_messages_do_not_end_a_read(topic: Topic, keys: CryptoKeyReader):
    """However many are left out, what lies behind them comes."""
    publish(topic, keys, 300)
    topic.publish(1)
    for kind in TYPES:
        consumer = topic.client.subscribe(
            "topic", kind.name, kind, receiver_queue_size=10, initial_position=InitialPosition.Earliest
        )
        assert numbers([consumer.receive(1000)]) == [0]


def test_one_warning_for_each_data_key(
    time: ManualTime, keys: CryptoKeyReader, caplog: pytest.LogCaptureFixture
):
    """The log names consumer, topic, reason and action, once and not for every message."""
    caplog.set_level(logging.WARNING)
    consumer = time.client.subscribe("topic", "sub", consumer_name="till")
    for _ in range(2):
        with time.client.create_producer("topic", encryption_key="app", crypto_key_reader=keys) as producer:
            for _ in range(10):
                producer.send(b"x")
    assert consumer.receive_nowait() is None
    time.pass_ms(1)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert texts[0].startswith("The consumer till of sub cannot decrypt entry ")
    assert "of persistent://public/default/topic (FAIL): " in texts[0]
    assert "there is no crypto_key_reader" in texts[0]
