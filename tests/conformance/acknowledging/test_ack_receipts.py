"""Acknowledgements that were promised survive the process: with receipts at once, otherwise in groups."""

from __future__ import annotations

import shutil

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition, NotConnected
from embeddedpulsar.message_id import BEFORE_FIRST
from tests.children import in_child
from tests.conformance.conftest import Topic, numbers
from tests.conformance.pool import take

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]


def acknowledge_and_die(store_path, kind, chosen, **options):
    """Another process acknowledges some of ten messages, and ends without closing anything."""

    def action():
        client = Client(store_path)
        earliest = InitialPosition.Earliest
        consumer = client.subscribe("topic", "sub", kind, initial_position=earliest, **options)
        messages = [consumer.receive(10_000) for _ in range(10)]
        for index in chosen:
            consumer.acknowledge(messages[index])

    in_child(action)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("options", [{"ack_receipt_enabled": True}, {"ack_group_time_ms": 0}], ids=str)
def test_written_when_the_call_returns(store_path, kind, options):
    """With ack_receipt_enabled, or a group time of 0, what was acknowledged never comes again."""
    with Client(store_path) as client:
        Topic(client).publish(10)
    acknowledge_and_die(store_path, kind, (1, 2, 7), **options)
    with Client(store_path) as client:
        messages = take(client.subscribe("topic", "sub", kind))
        assert numbers(messages) == [0, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("kind", TYPES)
def test_a_group_is_known_in_the_same_boot(store_path, tmp_path, kind):
    """Without, what was still collected does not come again either; in a copy, as after a power loss, it
    does, since nothing there is believed that is not in the journal."""
    with Client(store_path) as client:
        Topic(client).publish(10)
    acknowledge_and_die(store_path, kind, range(9), ack_group_time_ms=60_000)
    copied = tmp_path / "copy"
    shutil.copytree(store_path, copied, ignore=shutil.ignore_patterns("clients"))
    for path, left in ((store_path, [9]), (copied, list(range(10)))):
        with Client(path) as client:
            assert numbers(take(client.subscribe("topic", "sub", kind))) == left


@pytest.mark.parametrize("kind", TYPES)
def test_groups_are_written_in_time(time, kind):
    """Collected acknowledgements are written after ack_group_time_ms, 100 unless said otherwise."""
    topic = Topic(time.client)
    consumer = topic.consumer(consumer_type=kind)
    topic.publish(3)
    for message in take(consumer)[:2]:
        consumer.acknowledge(message)
    subscription = time.client._core.store.use_topic("topic").topic.subscription("sub")
    time.pass_ms(99)
    assert subscription.statistics().backlog == 3
    time.pass_ms(1)
    assert subscription.statistics().backlog == 1


@pytest.mark.parametrize("kind", TYPES)
def test_a_thousand_are_written_at_once(time, kind):
    """A group that has 1,000 acknowledgements does not wait for its time."""
    topic = Topic(time.client)
    consumer = topic.consumer(consumer_type=kind)
    with topic.producer() as producer:
        for number in range(1001):
            producer.send(b"hello-%d" % number)
    messages = take(consumer)
    subscription = time.client._core.store.use_topic("topic").topic.subscription("sub")
    before = subscription.statistics().backlog
    for message in messages:
        consumer.acknowledge(message)
    assert before - subscription.statistics().backlog == 1000


@pytest.mark.parametrize("kind", TYPES)
def test_closing_writes_the_rest(topic, kind):
    """close() writes what was collected."""
    consumer = topic.consumer(consumer_type=kind, ack_group_time_ms=60_000)
    topic.publish(5)
    for message in take(consumer)[1:]:
        consumer.acknowledge(message)
    consumer.close()
    assert numbers(take(topic.consumer(consumer_type=kind))) == [0]


@pytest.mark.parametrize("kind", TYPES)
def test_a_receipt_is_not_given_for_what_is_void(topic, kind):
    """The subscription was moved meanwhile: the acknowledgement says so, and the message comes again."""
    consumer = topic.consumer(consumer_type=kind, ack_receipt_enabled=True)
    topic.publish(2)
    message = consumer.receive(1000)
    consumer._core.session.subscription.seek(BEFORE_FIRST, inclusive=False)
    with pytest.raises(NotConnected):
        consumer.acknowledge(message)
    for number in range(2):
        message = consumer.receive(1000)
        while numbers([message]) != [number]:  # what it had fetched before
            message = consumer.receive(1000)
        consumer.acknowledge(message)
