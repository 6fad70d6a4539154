"""A batch of which a transaction holds some messages: acknowledging the others leaves these alone."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar import Client, ConsumerType
from tests.support.clients import present, subscribe, texts

TYPES = list(ConsumerType)


def consumer_of(client: Client, kind: ConsumerType, by_index: bool) -> Any:
    """A consumer of the subscription."""
    return subscribe(
        client, "orders", consumer_type=kind, batch_index_ack_enabled=by_index, ack_group_time_ms=0
    )


def with_one_held(client: Client, kind: ConsumerType, by_index: bool) -> tuple[Any, Any]:
    """A transaction that acknowledged the last message of a batch, and a consumer that came afterwards."""
    consumer = consumer_of(client, kind, by_index)
    with client.create_producer("orders") as producer:
        producer.send_many([b"tea", b"soup", b"cake"], batching_max_messages=10)
    txn = client.new_transaction()
    consumer.acknowledge(present(consumer)[2], txn=txn)
    consumer.close()
    return txn, consumer_of(client, kind, by_index)


@pytest.mark.parametrize("by_index", [True, False])
@pytest.mark.parametrize("kind", TYPES)
def test_it_comes_again_if_the_transaction_aborts(client: Client, kind: ConsumerType, by_index: bool):
    """Though all messages that this consumer was given are acknowledged; to it and to those that follow."""
    txn, consumer = with_one_held(client, kind, by_index)
    first, second = present(consumer)
    consumer.acknowledge(first)
    consumer.acknowledge(second)
    txn.abort()
    assert texts(present(consumer)) == ["cake"]
    consumer.close()
    consumer = consumer_of(client, kind, by_index)
    assert texts(present(consumer)) == ["cake"]


@pytest.mark.parametrize("by_index", [True, False])
@pytest.mark.parametrize("kind", TYPES)
def test_the_others_may_be_acknowledged_in_it_as_well(client: Client, kind: ConsumerType, by_index: bool):
    """Then all of them come again if it aborts, and none if it commits."""
    txn, consumer = with_one_held(client, kind, by_index)
    for message in present(consumer):
        consumer.acknowledge(message, txn=txn)
    txn.abort()
    consumer.close()
    consumer = consumer_of(client, kind, by_index)
    messages = present(consumer)
    assert texts(messages) == ["cake", "soup", "tea"]
    with client.transaction() as txn:
        for message in messages:
            consumer.acknowledge(message, txn=txn)
    consumer.close()
    assert present(consumer_of(client, kind, by_index)) == []


@pytest.mark.parametrize("kind", TYPES)
def test_nothing_is_left_if_the_transaction_commits(client: Client, kind: ConsumerType):
    """The parts make up the entry."""
    txn, consumer = with_one_held(client, kind, True)
    for message in present(consumer):
        consumer.acknowledge(message)
    txn.commit()
    consumer.close()
    assert present(consumer_of(client, kind, True)) == []
