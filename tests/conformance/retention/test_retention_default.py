"""Without settings, a closed ledger goes once every durable subscription has acknowledged all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import ConsumerType, InitialPosition
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.settings import BrokerSettings
from tests.conformance import retention_site
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, acknowledge, ledgers, publish, read_all

EARLIEST = InitialPosition.Earliest


path, time = retention_site.path, retention_site.time


def test_a_topic_without_subscription_keeps_its_open_ledger_alone(time: ManualTime, path: Path) -> None:
    """35 messages are three full ledgers, which go, and one that is written to, which stays."""
    ids = publish(time, 35)
    assert len(ledgers(path)) == 4
    time.pass_ms(100)
    assert ledgers(path) == [ids[-1].ledger_id()]
    assert read_all(time) == ids[30:]


def test_what_the_slowest_subscription_needs_stays(time: ManualTime, path: Path) -> None:
    """Ledgers go one after the other as the last of two subscriptions goes on."""
    fast = time.client.subscribe(TOPIC, "fast", initial_position=EARLIEST)
    slow = time.client.subscribe(TOPIC, "slow", initial_position=EARLIEST)
    ids = publish(time, 35)
    acknowledge(fast, 35)
    time.pass_ms(200_000)
    assert len(ledgers(path)) == 4
    acknowledge(slow, 15)
    time.pass_ms(200)
    assert ledgers(path)[0] == ids[15].ledger_id()
    acknowledge(slow, 15)
    time.pass_ms(200_000)
    assert ledgers(path) == [ids[-1].ledger_id()]


def test_a_subscription_without_consumers_holds_on(time: ManualTime, path: Path) -> None:
    """Durable means just that; also after the store was closed and opened again."""
    time.client.subscribe(TOPIC, "s", initial_position=EARLIEST).close()
    ids = publish(time, 35)
    time.pass_ms(200_000)
    time.reopen()
    time.client.create_producer(TOPIC)
    time.pass_ms(200_000)
    assert read_all(time) == ids


def test_deleting_the_subscription_lets_go(time: ManualTime, path: Path) -> None:
    """Whoever unsubscribes has the ledgers looked at."""
    consumer = time.client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    publish(time, 35)
    time.pass_ms(200)
    assert len(ledgers(path)) == 4
    consumer.unsubscribe()
    time.pass_ms(200)
    assert len(ledgers(path)) == 1


def test_one_message_out_of_order_holds_its_ledger(time: ManualTime, path: Path) -> None:
    """Individual acknowledgements leave a gap: the first one that is missing decides."""
    consumer = time.client.subscribe(TOPIC, "s", ConsumerType.Shared, initial_position=EARLIEST)
    ids = publish(time, 35)
    messages = [consumer.receive(1000) for _ in range(35)]
    for message in messages[:12] + messages[13:]:
        consumer.acknowledge(message)
    time.pass_ms(200_000)
    assert ledgers(path)[0] == ids[12].ledger_id()
    consumer.acknowledge(messages[12])
    time.pass_ms(200_000)
    assert ledgers(path) == [ids[-1].ledger_id()]


def test_a_partly_acknowledged_batch_holds_its_ledger(time: ManualTime, path: Path) -> None:
    """One message of a batch is enough."""
    consumer = time.client.subscribe(
        TOPIC, "s", ConsumerType.Shared, initial_position=EARLIEST, batch_index_ack_enabled=True
    )
    with time.client.create_producer(TOPIC, batching_enabled=True, batching_max_messages=2) as producer:
        for number in range(24):
            producer.send_async(b"%d" % number, None)
        producer.flush()
    messages = [consumer.receive(1000) for _ in range(24)]
    for message in messages[1:]:
        consumer.acknowledge(message)
    time.pass_ms(200_000)
    assert ledgers(path)[0] == messages[0].message_id().ledger_id()
    consumer.acknowledge(messages[0])
    time.pass_ms(200_000)
    assert ledgers(path)[0] == messages[-1].message_id().ledger_id()


def test_a_delayed_message_holds_its_ledger(time: ManualTime, path: Path) -> None:
    """It is delivered when it is due, whatever was acknowledged behind it."""
    consumer = time.client.subscribe(TOPIC, "s", ConsumerType.Shared, initial_position=EARLIEST)
    with time.client.create_producer(TOPIC) as producer:
        late = producer.send(b"late", deliver_at=time.now_ms() + 600_000)
    publish(time, 35)
    acknowledge(consumer, 35)
    time.pass_ms(300_000)
    assert ledgers(path)[0] == late.ledger_id()
    time.pass_ms(310_000)
    assert acknowledge(consumer, 1) == [late]
    time.pass_ms(200_000)
    assert late.ledger_id() not in ledgers(path)


def test_a_topic_is_looked_at_when_it_is_opened(time: ManualTime, path: Path) -> None:
    """While no process has it open nothing happens; then what is due is done."""
    publish(time, 35)
    time.reopen()
    assert len(ledgers(path)) == 4
    time.client.create_producer(TOPIC)
    time.pass_ms(200)
    assert len(ledgers(path)) == 1


def test_it_can_be_done_at_once(time: ManualTime, path: Path) -> None:
    """What an administrator asks for does not wait for housekeeping."""
    publish(time, 135)
    store = time.client._core.store  # type: ignore[union-attr]
    assert store.trim_topic(TOPIC) == 13
    assert store.trim_topic(TOPIC) == 0
    assert len(ledgers(path)) == 1


@pytest.mark.parametrize(("minutes", "megabytes"), [(0, -1), (0, 10), (-1, 0), (10, 0), (-2, 5), (5, -2)])
def test_contradictions_are_refused(minutes: int, megabytes: int) -> None:
    """Exactly one of the two being 0 makes no sense, as in Pulsar."""
    with pytest.raises(InvalidConfiguration, match="etention"):
        BrokerSettings.parse(
            f"defaultRetentionTimeInMinutes={minutes}\ndefaultRetentionSizeInMB={megabytes}"
        ).check_supported()
