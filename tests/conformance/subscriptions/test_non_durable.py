"""Subscriptions that are not durable: they end with their last consumer."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition, SubscriptionMode
from embeddedpulsar.exceptions import Timeout

NON_DURABLE = SubscriptionMode.NonDurable


@pytest.mark.in_memory
def test_it_ends_with_its_last_consumer(tmp_path: Path) -> None:
    """The next consumer of that name begins anew, where it asks to."""
    with Client(tmp_path) as client:
        producer = client.create_producer("t")
        first = client.subscribe("t", "s", subscription_mode=NON_DURABLE)
        producer.send(b"seen")
        producer.send(b"not acknowledged")
        first.acknowledge(first.receive(1000))
        first.close()
        latest = client.subscribe("t", "s", subscription_mode=NON_DURABLE)
        with pytest.raises(Timeout):
            latest.receive(1)
        latest.close()
        earliest = client.subscribe(
            "t", "s", subscription_mode=NON_DURABLE, initial_position=InitialPosition.Earliest
        )
        assert earliest.receive(1000).data() == b"seen"


def test_it_goes_on_while_one_consumer_is_attached(tmp_path: Path) -> None:
    """Consumers that come share it."""
    with Client(tmp_path) as client:
        producer = client.create_producer("t")
        options = {"consumer_type": ConsumerType.Shared, "subscription_mode": NON_DURABLE}
        first = client.subscribe("t", "s", **options)
        second = client.subscribe("t", "s", **options)
        producer.send(b"1")
        first.close()
        assert second.receive(1000).data() == b"1"


def test_it_is_independent_of_a_durable_one_of_its_name(tmp_path: Path) -> None:
    """Both get everything, and acknowledge for themselves."""
    with Client(tmp_path) as client:
        durable = client.subscribe("t", "s")
        other = client.subscribe("t", "s", subscription_mode=NON_DURABLE)
        client.create_producer("t").send(b"1")
        other.acknowledge(other.receive(1000))
        other.close()
        assert durable.receive(1000).data() == b"1"
        durable.close()
        with client.subscribe("t", "s") as again:
            assert again.receive(1000).data() == b"1"
