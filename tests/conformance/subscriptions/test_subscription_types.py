"""The type of a subscription is that of its consumers: without any, it may change; with some, it may not."""

from __future__ import annotations

import pytest

from embeddedpulsar import Client, ConsumerBusy, ConsumerKeySharedPolicy, ConsumerType, KeySharedMode
from tests.conformance.conftest import numbers, receive_all
from tests.conformance.pool import acknowledge_all, take, write_settings

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.mark.parametrize("before", TYPES)
@pytest.mark.parametrize("after", TYPES)
def test_it_may_change_while_nobody_is_attached(topic, before, after):
    """What was acknowledged stays so, whatever type comes next; the rest is delivered, with count 0."""
    topic.publish(6)
    with topic.consumer(consumer_type=before) as consumer:
        messages = take(consumer)
        acknowledge_all(consumer, [messages[i] for i in (0, 1, 3)])
    again = take(topic.consumer(consumer_type=after))
    assert numbers(again) == [2, 4, 5]
    assert {message.redelivery_count() for message in again} == {0}


@pytest.mark.parametrize("attached", TYPES)
@pytest.mark.parametrize("other", TYPES)
def test_it_may_not_change_while_somebody_is_attached(topic, attached, other):
    """Another type is refused at once with ConsumerBusy, and nothing changes for those who are attached."""
    consumer = topic.consumer(consumer_type=attached)
    if attached != other:
        with pytest.raises(ConsumerBusy, match="Subscription is of different type"):
            topic.consumer(consumer_type=other)
    elif attached == ConsumerType.Exclusive:
        with pytest.raises(ConsumerBusy, match="Exclusive consumer is already connected"):
            topic.consumer()
    else:
        topic.consumer(consumer_type=other).close()
    topic.publish(2)
    assert numbers(receive_all(consumer)) == [0, 1]


def test_key_shared_modes_do_not_mix(topic):
    """AUTO_SPLIT and STICKY consumers refuse each other."""
    sticky = ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(0, 65535)])
    for first, second in ((None, sticky), (sticky, None)):
        with (
            topic.consumer(consumer_type=ConsumerType.KeyShared, key_shared_policy=first),
            pytest.raises(ConsumerBusy, match="Subscription is of different key_shared mode"),
        ):
            topic.consumer(consumer_type=ConsumerType.KeyShared, key_shared_policy=second)


def test_order_and_its_opposite_do_not_mix(topic):
    """Consumers that allow delivery out of order, and those that do not, refuse each other."""
    loose = ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    for first, second, text in (
        (None, loose, "Subscription does not allow out of order delivery"),
        (loose, None, "Subscription allows out of order delivery"),
    ):
        with (
            topic.consumer(consumer_type=ConsumerType.KeyShared, key_shared_policy=first),
            pytest.raises(ConsumerBusy, match=text),
        ):
            topic.consumer(consumer_type=ConsumerType.KeyShared, key_shared_policy=second)


def test_the_refusal_reads_as_in_pulsar(topic):
    """The text begins with that of pulsar-client, and names who is in the way."""
    topic.consumer(consumer_name="till-7")
    with pytest.raises(ConsumerBusy) as caught:
        topic.consumer(consumer_type=ConsumerType.Shared)
    assert str(caught.value).startswith("Pulsar error: ConsumerBusy")
    assert "till-7" in str(caught.value)


@pytest.mark.parametrize("kind", TYPES[1:])
def test_most_consumers(store_path, kind):
    """maxConsumersPerSubscription bounds their number; who leaves makes room."""
    write_settings(store_path, maxConsumersPerSubscription=2)
    with Client(store_path) as client:
        consumers = [client.subscribe("topic", "sub", kind) for _ in range(2)]
        with pytest.raises(ConsumerBusy, match="maxConsumersPerSubscription"):
            client.subscribe("topic", "sub", kind)
        consumers[0].close()
        client.subscribe("topic", "sub", kind)


@pytest.mark.parametrize("kind", TYPES)
def test_subscriptions_of_one_topic_may_differ(topic, kind):
    """Each subscription has its own type, and gets every message."""
    consumers = [topic.client.subscribe("topic", f"sub-{one}", one) for one in TYPES]
    topic.publish(3)
    assert numbers(receive_all(consumers[TYPES.index(kind)])) == [0, 1, 2]
