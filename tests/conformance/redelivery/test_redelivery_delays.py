"""When messages come again after a negative acknowledgement or an acknowledgement timeout: to the tick."""

from __future__ import annotations

import pytest

from embeddedpulsar import ConsumerType, MultiplierRedeliveryBackoff
from tests.conformance.conftest import Topic, numbers
from tests.conformance.pool import take

TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]
SINGLY = TYPES[2:]
TICK_MS = 1000  # of acknowledgement timeouts
BACKOFF = MultiplierRedeliveryBackoff(1000, 60_000, 2)


def subscribe(time, kind=ConsumerType.Shared, **options):
    """A consumer on manual time."""
    return Topic(time.client).consumer(consumer_type=kind, **options)


def wait_for_it(time, consumer, delay_ms, tick_ms):
    """The message comes after the delay, at most a tick later, and not a millisecond before."""
    time.pass_ms(delay_ms - 1)
    assert take(consumer) == []
    time.pass_ms(1 + tick_ms)
    (message,) = take(consumer)
    return message


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("delay_ms", "effective_ms"), [(60_000, 60_000), (1000, 1000), (250, 250), (1, 100)])
def test_the_fixed_delay_of_a_nack(time, kind, delay_ms, effective_ms):
    """negative_ack_redelivery_delay_ms, a minute unless said otherwise, and at least 100 ms."""
    options = {} if delay_ms == 60_000 else {"negative_ack_redelivery_delay_ms": delay_ms}
    consumer = subscribe(time, kind, **options)
    Topic(time.client).publish(1)
    consumer.negative_acknowledge(take(consumer)[0])
    message = wait_for_it(time, consumer, effective_ms, min(max(effective_ms // 10, 10), 100))
    assert message.redelivery_count() == (1 if kind in SINGLY else 0)


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", SINGLY)
def test_the_backoff_table_of_nacks(time, kind):
    """With a backoff from 1 s to 60 s that doubles: after 1, 2, 4, 8, 16, 32, 60 and 60 s."""
    consumer = subscribe(time, kind, negative_ack_redelivery_backoff=BACKOFF)
    Topic(time.client).publish(1)
    (message,) = take(consumer)
    for count, delay_s in enumerate((1, 2, 4, 8, 16, 32, 60, 60), 1):
        consumer.negative_acknowledge(message)
        message = wait_for_it(time, consumer, 1000 * delay_s, 100)
        assert message.redelivery_count() == count


def test_the_backoff_of_an_id_is_the_first(time):
    """An id does not know how often its message came: the delay is that of count 0."""
    consumer = subscribe(time, negative_ack_redelivery_backoff=BACKOFF)
    Topic(time.client).publish(1)
    (message,) = take(consumer)
    for _ in range(3):
        consumer.negative_acknowledge(message.message_id())
        message = wait_for_it(time, consumer, 1000, 100)


def test_the_default_backoff(time):
    """From 10 s to 10 min, doubling: after 10, 20, 40, 80, 160, 320, 600 and 600 s."""
    consumer = subscribe(time, negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff())
    Topic(time.client).publish(1)
    (message,) = take(consumer)
    for delay_s in (10, 20, 40, 80, 160, 320, 600, 600):
        consumer.negative_acknowledge(message)
        message = wait_for_it(time, consumer, 1000 * delay_s, 100)


@pytest.mark.parametrize("kind", TYPES)
def test_the_acknowledgement_timeout(time, kind):
    """What is received and not acknowledged within unacked_messages_timeout_ms comes again, within a tick."""
    consumer = subscribe(time, kind, unacked_messages_timeout_ms=10_000)
    Topic(time.client).publish(1)
    assert take(consumer)
    for _ in range(2):
        wait_for_it(time, consumer, 10_000, TICK_MS)


@pytest.mark.parametrize("kind", SINGLY)
def test_the_backoff_table_of_timeouts(time, kind):
    """With a timeout of 10 s and a backoff from 1 s to 60 s: after 11, 12, 14, 18, 26, 42, 70 and 70 s."""
    consumer = subscribe(
        time, kind, unacked_messages_timeout_ms=10_000, ack_timeout_redelivery_backoff=BACKOFF
    )
    Topic(time.client).publish(1)
    assert take(consumer)
    for count, delay_s in enumerate((11, 12, 14, 18, 26, 42, 70, 70), 1):
        message = wait_for_it(time, consumer, 1000 * delay_s, TICK_MS)
        assert message.redelivery_count() == count


def test_the_tick_of_timeouts(time):
    """ack_timeout_tick_ms says how exact the timeout is."""
    consumer = subscribe(time, unacked_messages_timeout_ms=10_000, ack_timeout_tick_ms=50)
    Topic(time.client).publish(1)
    assert take(consumer)
    wait_for_it(time, consumer, 10_000, 50)


@pytest.mark.parametrize("kind", SINGLY)
def test_prefetched_messages_do_not_time_out(time, kind):
    """The time runs from the moment the application gets a message, not while it lies in the queue."""
    consumer = subscribe(time, kind, unacked_messages_timeout_ms=10_000)
    Topic(time.client).publish(3)
    assert numbers(take(consumer, 1)) == [0]
    time.pass_ms(9_000)
    assert numbers(take(consumer, 1)) == [1]
    time.pass_ms(2_000)
    again = take(consumer)
    assert [(numbers([one])[0], one.redelivery_count()) for one in again] == [(2, 0), (0, 1)]
    time.pass_ms(9_000)
    assert [(numbers([one])[0], one.redelivery_count()) for one in take(consumer)] == [(1, 1)]


@pytest.mark.parametrize("kind", SINGLY)
def test_an_acknowledgement_stops_the_timeout(time, kind):
    """Acknowledged messages do not come again, the others do."""
    consumer = subscribe(time, kind, unacked_messages_timeout_ms=10_000)
    Topic(time.client).publish(3)
    consumer.acknowledge(take(consumer)[1])
    time.pass_ms(11_000)
    assert numbers(take(consumer)) == [0, 2]


@pytest.mark.parametrize("kind", SINGLY)
def test_a_nack_replaces_the_timeout(time, kind):
    """A message that was given back comes after the delay of that, once."""
    consumer = subscribe(
        time, kind, unacked_messages_timeout_ms=10_000, negative_ack_redelivery_delay_ms=30_000
    )
    Topic(time.client).publish(1)
    consumer.negative_acknowledge(take(consumer)[0])
    wait_for_it(time, consumer, 30_000, 100)


@pytest.mark.parametrize("kind", TYPES[:2])
def test_everything_times_out_together_where_order_matters(time, kind):
    """On Exclusive and Failover one overdue message brings back everything unacknowledged, in order."""
    consumer = subscribe(time, kind, unacked_messages_timeout_ms=10_000)
    Topic(time.client).publish(4)
    messages = take(consumer, 2)
    time.pass_ms(5_000)
    messages += take(consumer)
    consumer.acknowledge(messages[1])
    time.pass_ms(6_000)
    again = take(consumer)
    assert numbers(again) == [0, 2, 3]
    assert {message.redelivery_count() for message in again} == {0}


@pytest.mark.parametrize("kind", SINGLY)
def test_repeated_nacks_do_not_postpone(time, kind):
    """A message given back twice comes when the first delay has passed; a stream of nacks delays nothing."""
    consumer = subscribe(time, kind, negative_ack_redelivery_delay_ms=1000)
    Topic(time.client).publish(5)
    messages = take(consumer)
    found = []
    for message in messages:
        consumer.negative_acknowledge(message)
        consumer.negative_acknowledge(messages[0])
        time.pass_ms(300)
        found += numbers(take(consumer))
    assert found[0] == 0


def test_a_wrong_timeout():
    """Timeouts under 10 s are refused, as in pulsar-client."""
    from embeddedpulsar import Client

    with Client("memory://") as client, pytest.raises(ValueError, match="greater than 10 seconds"):
        client.subscribe("t", "s", unacked_messages_timeout_ms=9_999)
