"""Dead letters say why: what the application raised, or what it was told, the last time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import embeddedpulsar.asyncio
from embeddedpulsar import (
    Admin,
    Client,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
)
from embeddedpulsar.client.consumer.dead_letter import reason_text
from embeddedpulsar.functions import FunctionConfig, LocalRunner

OPTIONS: dict[str, Any] = {
    "consumer_type": ConsumerType.Shared,
    "negative_ack_redelivery_delay_ms": 100,
    "initial_position": InitialPosition.Earliest,
    "dead_letter_policy": ConsumerDeadLetterPolicy(1),
}


class SoldOut(Exception):
    """What an application raises."""


def reasons(client: Client, count: int = 1, topic: str = "orders-sub-DLQ") -> list[str | None]:
    """The reasons of the dead letters, when there are so many."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [reader.read_next().properties().get("DEAD_LETTER_REASON") for _ in range(count)]


def test_what_is_handled_is_the_reason(client):
    """Nothing has to be said within ``except``: a program for `pulsar-client` has it as it is."""
    consumer = client.subscribe("orders", "sub", **OPTIONS)
    client.create_producer("orders").send(b"tea")
    for _ in range(2):
        message = consumer.receive(10_000)
        try:
            raise SoldOut(f"no tea in delivery {message.redelivery_count()}")
        except SoldOut:
            consumer.negative_acknowledge(message)
    assert reasons(client) == [f"{__name__}.SoldOut: no tea in delivery 1"]


@pytest.mark.parametrize("topics", ["orders", ["orders", "bills"]])
def test_a_reason_is_given(client, topics):
    """As a text or an exception, for a message or its id; of a consumer of several topics, too."""
    consumer = client.subscribe(topics, "sub", **OPTIONS)
    producer = client.create_producer("orders")
    for reason in ("the till is closed", ValueError("no price")):
        producer.send(b"tea")
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(10_000), reason=reason)
    assert reasons(client, 2) == ["the till is closed", "ValueError: no price"]


def test_without_a_reason_there_is_no_property(client):
    """As Pulsar's dead letters are; and an acknowledged message leaves nothing."""
    consumer = client.subscribe("orders", "sub", **OPTIONS)
    producer = client.create_producer("orders")
    ids = [producer.send(b"tea") for _ in range(2)]
    for _ in range(2):
        for _ in ids:
            message = consumer.receive(10_000)
            is_first = message.message_id() == ids[0]
            consumer.negative_acknowledge(message, reason="not yet" if is_first else None)
            if is_first and message.redelivery_count():
                consumer.acknowledge(message)
    assert reasons(client) == [None]
    assert not consumer._core._dead_letters._reasons
    with pytest.raises(TypeError, match="a reason is an exception or a text, not int"):
        consumer.negative_acknowledge(ids[0], reason=3)


@pytest.mark.parametrize("topics", ["orders", ["orders", "bills"]])
def test_a_listener_that_raises(time, topics):
    """Its exception is the reason of the letter that the acknowledgement timeout makes."""
    client, turns = time.client, threading.Semaphore(0)
    marks = client.create_producer("marks")

    def listener(consumer: Any, message: Any) -> None:
        marks.send(b"called")
        raise SoldOut(message.data().decode())

    # One thread calls both listeners: this one when the other has ended, and its reason is recorded.
    client.subscribe("marks", "test", message_listener=lambda consumer, message: turns.release())
    client.subscribe(topics, "sub", message_listener=listener, unacked_messages_timeout_ms=10_000, **OPTIONS)
    client.create_producer("orders").send(b"tea")
    for _ in range(2):
        assert turns.acquire(timeout=10)
        time.pass_ms(12_000)
    assert reasons(client) == [f"{__name__}.SoldOut: tea"]


def test_a_message_that_is_not_acknowledged_in_time(time):
    """The timeout is the reason if nothing else is known."""
    client = time.client
    consumer = client.subscribe("orders", "sub", unacked_messages_timeout_ms=10_000, **OPTIONS)
    client.create_producer("orders").send(b"tea")
    for count in range(2):
        assert consumer.receive().redelivery_count() == count
        time.pass_ms(12_000)
    assert reasons(client) == ["not acknowledged within 10000 ms"]


def test_retries_have_the_reason(client):
    """Each retry letter has that of the delivery before; the dead letter the last one."""
    consumer = client.subscribe("orders", "sub", enable_retry=True, **OPTIONS)
    client.create_producer("orders").send(b"tea", {"till": "1"})
    try:
        raise SoldOut("no tea")
    except SoldOut:
        consumer.reconsume_later(consumer.receive(10_000), 0)
    again = consumer.receive(10_000)
    assert again.properties()["DEAD_LETTER_REASON"] == f"{__name__}.SoldOut: no tea"
    consumer.reconsume_later(again, 0, reason="no cups")
    assert reasons(client) == ["no cups"]


def test_a_coroutine_has_the_reason(client):
    """Of the exception that it handles."""

    async def refuse() -> None:
        async with embeddedpulsar.asyncio.Client(client._core.config.url.text) as own:
            consumer = await own.subscribe("orders", "sub", **OPTIONS)
            for _ in range(2):
                message = await asyncio.wait_for(consumer.receive(), 10)
                try:
                    raise SoldOut("no tea")
                except SoldOut:
                    await consumer.negative_acknowledge(message)
            assert await asyncio.to_thread(reasons, client) == [f"{__name__}.SoldOut: no tea"]

    client.create_producer("orders").send(b"tea")
    asyncio.run(refuse())


def test_a_function_that_raises(client):
    """Its exception is the reason."""

    def refuse(text: str) -> str:
        raise SoldOut(text)

    config = FunctionConfig(
        name="refuse",
        inputs=["orders"],
        max_message_retries=1,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_topic="refused",
    )
    with LocalRunner(config, refuse, client=client) as runner:
        client.create_producer("orders").send(b"tea")
        reader = client.create_reader("refused", MessageId.earliest)
        while not reader.has_message_available():
            runner.run_until_idle()
    assert reasons(client, topic="refused") == [f"{__name__}.SoldOut: tea"]


def test_reasons_are_short():
    """At most 1,000 characters; an exception without a text, or whose text cannot be had, has its class."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert len(reason_text("x" * 5000)) == 1000
    assert reason_text(OSError()) == "OSError"
    assert reason_text(Odd()).endswith("Odd: its text raised ValueError")
    assert reason_text("a\udcff") == "a\\udcff"


def test_a_replayed_message_has_no_reason(client):
    """It is as it was; the list of dead letters has it as a field."""
    consumer = client.subscribe("orders", "sub", **OPTIONS)
    client.create_producer("orders").send(b"tea", {"till": "1"})
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(10_000), reason="no tea")
    reasons(client)
    with Admin(client._core.store.root) as admin:
        letters = admin.dead_letters("orders", "sub")
        assert [letter.reason for letter in letters.list()] == ["no tea"]
        letters.replay_all()
    assert consumer.receive(10_000).properties() == {"till": "1"}
