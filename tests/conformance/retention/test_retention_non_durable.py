"""Subscriptions that are not durable, and readers, hold nothing back; they go on at what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import ConsumerType, InitialPosition, MessageId, SubscriptionMode
from tests.conformance import retention_site
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, acknowledge, ledgers, publish

path, time = retention_site.path, retention_site.time


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_non_durable_subscription(time: ManualTime, path: Path, kind: ConsumerType) -> None:
    """Its consumer keeps what it has fetched, then jumps to the first message that is retained."""
    consumer = time.client.subscribe(
        TOPIC,
        "s",
        kind,
        initial_position=InitialPosition.Earliest,
        subscription_mode=SubscriptionMode.NonDurable,
        receiver_queue_size=3,
    )
    ids = publish(time, 35)
    acknowledge(consumer, 2)
    time.pass_ms(200)
    assert ledgers(path) == [ids[-1].ledger_id()]
    got = []
    while not got or got[-1] != ids[-1]:
        got += acknowledge(consumer, 1)
    assert got[-5:] == ids[30:]
    assert got == sorted(got, key=lambda one: (one.ledger_id(), one.entry_id()))
    more = publish(time, 25)
    time.pass_ms(200)
    while got[-1] != more[-1]:
        got += acknowledge(consumer, 1)
    assert consumer.receive_nowait() is None
    time.pass_ms(200)
    backlog = consumer._core.session.attachment.backlog()  # type: ignore[union-attr]
    assert backlog == 0


def test_what_it_gives_back_is_gone_with_its_ledger(time: ManualTime, path: Path) -> None:
    """Redelivery of a message that was trimmed delivers nothing, and holds nothing up."""
    consumer = time.client.subscribe(
        TOPIC,
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        subscription_mode=SubscriptionMode.NonDurable,
        negative_ack_redelivery_delay_ms=100,
    )
    ids = publish(time, 35)
    messages = [consumer.receive(1000) for _ in range(35)]
    time.pass_ms(200)
    assert len(ledgers(path)) == 1
    for message in messages:
        consumer.negative_acknowledge(message)
    time.pass_ms(1000)
    assert acknowledge(consumer, 5) == ids[30:]
    assert consumer.receive_nowait() is None


def test_a_reader(time: ManualTime, path: Path) -> None:
    """It reads the ledger it is in to its end as far as that is still mapped, then what is retained."""
    ids = publish(time, 15)
    reader = time.client.create_reader(TOPIC, MessageId.earliest, receiver_queue_size=1)
    assert reader.read_next(1000).message_id() == ids[0]
    ids += publish(time, 20)
    time.pass_ms(200)
    assert len(ledgers(path)) == 1
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(1000).message_id())
    assert got[-5:] == ids[30:]
    assert all(one in ids for one in got)


def test_a_durable_subscription_of_the_same_name(time: ManualTime, path: Path) -> None:
    """The two are independent: only the durable one counts."""
    durable = time.client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    other = time.client.subscribe(
        TOPIC,
        "s",
        initial_position=InitialPosition.Earliest,
        subscription_mode=SubscriptionMode.NonDurable,
    )
    ids = publish(time, 35)
    acknowledge(other, 35)
    time.pass_ms(200_000)
    assert len(ledgers(path)) == 4
    assert acknowledge(durable, 35) == ids
    time.pass_ms(200_000)
    assert len(ledgers(path)) == 1
