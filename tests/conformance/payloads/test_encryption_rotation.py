"""Data keys are changed every four hours, and key pairs whenever their owner likes."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from embeddedpulsar import Client
from tests.conformance.conftest import receive_all
from tests.conformance.manual_time import ManualTime
from tests.support.key_files import KeyRing

HOUR_MS = 3_600_000


@pytest.fixture
def ring() -> KeyRing:
    """Keys with versions."""
    return KeyRing()


def producer_of(client: Client, ring: KeyRing, **options: Any) -> Any:
    return client.create_producer("topic", encryption_key="app", crypto_key_reader=ring, **options)


def test_the_data_key_is_changed_after_four_hours(time: ManualTime, ring: KeyRing):
    """Messages of four hours share one data key; the next one has another. Both can be read."""
    consumer = time.client.subscribe("topic", "sub", crypto_key_reader=ring)
    producer = producer_of(time.client, ring)
    for _ in range(6):
        producer.send(b"x")
        time.pass_ms(HOUR_MS)
    messages = receive_all(consumer, 0)
    assert len(messages) == 6
    wrapped = [message.encryption_context().keys()[0].value for message in messages]
    assert len(set(wrapped[:4])) == len(set(wrapped[4:])) == 1
    assert wrapped[0] != wrapped[4]
    assert [kind for kind, _, _ in ring.asked].count("public") == 2
    assert [kind for kind, _, _ in ring.asked].count("private") == 2


def test_key_pairs_are_exchanged_while_programs_run(time: ManualTime, ring: KeyRing):
    """The public key is read anew each time; its metadata tells the consumer which private key fits."""
    producer = producer_of(time.client, ring)
    consumer = time.client.subscribe("topic", "sub", crypto_key_reader=ring)
    for version in (1, 2, 3):
        ring.version = version
        time.pass_ms(4 * HOUR_MS)
        producer.send(b"%d" % version)
    messages = receive_all(consumer, 0)
    assert [message.data() for message in messages] == [b"1", b"2", b"3"]
    metadata = [message.encryption_context().keys()[0].metadata for message in messages]
    assert metadata == [{"version": "1"}, {"version": "2"}, {"version": "3"}]
    assert ring.asked[-3:] == [("private", "app", version) for version in ("1", "2", "3")]


def test_a_key_that_cannot_be_exchanged_serves_on(
    time: ManualTime, ring: KeyRing, caplog: pytest.LogCaptureFixture
):
    """If the public key is not to be had after four hours, that is logged, and tried again after a minute."""
    caplog.set_level(logging.WARNING)
    producer = producer_of(time.client, ring, producer_name="till")
    consumer = time.client.subscribe("topic", "sub", crypto_key_reader=ring)
    producer.send(b"0")
    ring.is_broken = True
    time.pass_ms(4 * HOUR_MS)
    for _ in range(2):
        producer.send(b"1")
    time.pass_ms(1)
    assert len(caplog.records) == 1
    assert "The data key of till on persistent://public/default/topic could not be exchanged" in caplog.text
    assert "the key server is down" in caplog.text
    ring.is_broken = False
    producer.send(b"2")
    time.pass_ms(60_000)
    producer.send(b"3")
    wrapped = [message.encryption_context().keys()[0].value for message in receive_all(consumer, 0)]
    assert len(set(wrapped[:4])) == 1
    assert wrapped[4] not in wrapped[:4]


def test_unwrapped_keys_are_remembered(time: ManualTime, ring: KeyRing):
    """A consumer asks for a private key once per data key, not once per message."""
    producer = producer_of(time.client, ring, batching_enabled=False)
    for _ in range(100):
        producer.send(b"x")
    consumer = time.client.subscribe("topic", "sub", crypto_key_reader=ring)
    consumer.seek(0)
    ring.asked.clear()
    assert len(receive_all(consumer, 0)) == 100
    assert ring.asked == [("private", "app", "1")]
