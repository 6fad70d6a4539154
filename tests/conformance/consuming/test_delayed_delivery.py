"""Delayed delivery: on Shared and Key_Shared a message comes when its time has come, and never early."""

from __future__ import annotations

import contextlib
import queue
import time as real_time
from datetime import timedelta

import pytest

from embeddedpulsar import ConsumerType, InitialPosition, MessageId, Timeout
from tests.conformance.conftest import Topic, numbers
from tests.conformance.manual_time import ManualTime
from tests.conformance.pool import acknowledge_all, take, take_turns, write_settings

SINGLY = [ConsumerType.Shared, ConsumerType.KeyShared]


def subscribe(time, kind=ConsumerType.Shared, **options):
    """A consumer on manual time."""
    return Topic(time.client).consumer(consumer_type=kind, **options)


def send(time, *delays_ms, first=0, **options):
    """Send messages with these delays, 0 for none."""
    with time.client.create_producer("topic") as producer:
        for number, delay_ms in enumerate(delays_ms, first):
            delivery = {"deliver_after": timedelta(milliseconds=delay_ms)} if delay_ms else {}
            producer.send(b"hello-%d" % number, **delivery, **options)


@pytest.mark.in_memory
@pytest.mark.parametrize("kind", SINGLY)
def test_deliver_after(time, kind):
    """A message sent with a delay of 2,500 ms is not there at 1,000 nor at 2,499, and is at 2,500."""
    consumer = subscribe(time, kind)
    send(time, 2500)
    time.pass_ms(1000)
    assert take(consumer) == []
    time.pass_ms(1499)
    assert take(consumer) == []
    time.pass_ms(1)
    assert numbers(take(consumer)) == [0]


@pytest.mark.parametrize("kind", SINGLY)
def test_deliver_at(time, kind):
    """A time of day in ms since 1970, as UTC."""
    consumer = subscribe(time, kind)
    with time.client.create_producer("topic") as producer:
        producer.send(b"hello-0", deliver_at=time.now_ms() + 1)
        producer.send(b"hello-1", deliver_at=time.now_ms() + 60_000)
    assert take(consumer) == []
    time.pass_ms(1)
    assert numbers(take(consumer)) == [0]
    time.pass_ms(59_998)
    assert take(consumer) == []
    time.pass_ms(1)
    assert numbers(take(consumer)) == [1]


@pytest.mark.parametrize("kind", SINGLY)
def test_a_time_that_has_passed(time, kind):
    """Is no delay."""
    consumer = subscribe(time, kind)
    with time.client.create_producer("topic") as producer:
        producer.send(b"hello-0", deliver_at=time.now_ms() - 5000)
        producer.send(b"hello-1", deliver_at=time.now_ms())
        producer.send(b"hello-2", deliver_after=timedelta(0))
    assert numbers(take(consumer)) == [0, 1, 2]


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_other_types_deliver_at_once(time, kind):
    """Order matters there more than time."""
    consumer = subscribe(time, kind)
    send(time, 60_000, 0, 30_000)
    assert numbers(take(consumer)) == [0, 1, 2]


def test_readers_deliver_at_once(time):
    """A reader reads the log as it is."""
    send(time, 60_000, 0)
    reader = time.client.create_reader("topic", MessageId.earliest)
    assert numbers([reader.read_next(0), reader.read_next(0)]) == [0, 1]


@pytest.mark.parametrize("kind", SINGLY)
def test_nothing_waits_behind_a_delayed_message(time, kind):
    """Messages without a delay come at once, also those of the same key."""
    consumer = subscribe(time, kind)
    send(time, 5000, 0, 5000, 0, partition_key="k")
    assert numbers(take(consumer)) == [1, 3]
    time.pass_ms(5000)
    assert numbers(take(consumer)) == [0, 2]


@pytest.mark.in_memory
def test_in_order_of_time(time):
    """What is due comes in order of time, whatever the order of sending was."""
    consumer = subscribe(time)
    send(time, 5000, 1000, 3000, 4000, 2000)
    found = []
    for _ in range(5):
        time.pass_ms(1000)
        found += numbers(take(consumer))
    assert found == [1, 4, 2, 3, 0]


def test_what_is_due_together_comes_in_order_of_position(time):
    """As everything that waits does."""
    consumer = subscribe(time)
    send(time, 3000, 1000, 2000)
    time.pass_ms(10_000)
    assert numbers(take(consumer)) == [0, 1, 2]


@pytest.mark.parametrize("kind", SINGLY)
def test_it_survives_the_store(time, kind):
    """A delay goes on when all processes have closed the store; its time is a time of day."""
    with subscribe(time, kind) as consumer:
        send(time, 60_000, 0, 20_000)
        acknowledge_all(consumer, take(consumer))
    time.reopen()
    consumer = time.client.subscribe("topic", "sub", kind)
    assert take(consumer) == []
    time.pass_ms(20_000)
    assert numbers(take(consumer)) == [2]
    time.reopen()
    consumer = time.client.subscribe("topic", "sub", kind)
    assert numbers(take(consumer)) == [2]
    time.pass_ms(39_999)
    assert take(consumer) == []
    time.pass_ms(1)
    assert numbers(take(consumer)) == [0]


@pytest.mark.parametrize("kind", SINGLY)
def test_consumers_come_and_go_meanwhile(time, kind):
    """A delay belongs to the message, not to the consumer that was there when it was read."""
    first, second = subscribe(time, kind), subscribe(time, kind)
    send(time, 10_000, 10_000)
    assert take_turns([first, second]) == [[], []]
    first.close()
    third = subscribe(time, kind)
    time.pass_ms(9_999)
    assert take_turns([second, third]) == [[], []]
    time.pass_ms(1)
    taken = take_turns([second, third])
    assert sorted(numbers(taken[0] + taken[1])) == [0, 1]


def test_each_subscription_by_itself(time):
    """One subscription waits while another one, of another type, has the message already."""
    shared = subscribe(time)
    exclusive = time.client.subscribe("topic", "other", initial_position=InitialPosition.Earliest)
    send(time, 1000)
    assert (numbers(take(shared)), numbers(take(exclusive))) == ([], [0])


@pytest.mark.parametrize("kind", SINGLY)
def test_redelivery_has_no_second_delay(time, kind):
    """A message that was due and is given back comes after the delay of the nack."""
    consumer = subscribe(time, kind, negative_ack_redelivery_delay_ms=500)
    send(time, 10_000)
    time.pass_ms(10_000)
    consumer.negative_acknowledge(take(consumer)[0])
    time.pass_ms(600)
    (again,) = take(consumer)
    assert again.redelivery_count() == 1


def test_delayed_messages_are_no_part_of_a_batch(time):
    """A producer that batches stores a message with a delay by itself, so that it can wait alone."""
    consumer = subscribe(time)
    with time.client.create_producer(
        "topic", batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for number in range(4):
            delay = {"deliver_after": timedelta(seconds=10)} if number == 2 else {}
            producer.send_async(b"hello-%d" % number, None, **delay)
    assert sorted(numbers(take(consumer))) == [0, 1, 3]
    time.pass_ms(10_000)
    (delayed,) = take(consumer)
    assert numbers([delayed]) == [2]
    assert delayed.message_id().batch_index() == -1


@pytest.mark.parametrize(("strict", "tick_ms"), [(True, 1000), (False, 1000), (False, 300), (True, 50)])
def test_strictness(store_path, strict, tick_ms):
    """isDelayedDeliveryDeliverAtTimeStrict=true: never early. False: up to one delayedDeliveryTickTimeMillis
    early, as Pulsar does by default."""
    write_settings(
        store_path, isDelayedDeliveryDeliverAtTimeStrict=strict, delayedDeliveryTickTimeMillis=tick_ms
    )
    with contextlib.closing(ManualTime(store_path)) as time:
        consumer = subscribe(time)
        send(time, 5000)
        early_ms = 0 if strict else tick_ms
        time.pass_ms(5000 - early_ms - 1)
        assert take(consumer) == []
        time.pass_ms(1)
        assert numbers(take(consumer)) == [0]


def test_within_a_tick(store_path):
    """Where it is not strict, a delay of less than a tick is none."""
    write_settings(store_path, isDelayedDeliveryDeliverAtTimeStrict=False)
    with contextlib.closing(ManualTime(store_path)) as time:
        consumer = subscribe(time)
        send(time, 900, 1500)
        assert numbers(take(consumer)) == [0]


def test_switched_off(store_path):
    """With delayedDeliveryEnabled=false every message comes at once."""
    write_settings(store_path, delayedDeliveryEnabled=False)
    with contextlib.closing(ManualTime(store_path)) as time:
        consumer = subscribe(time)
        send(time, 60_000, 0)
        assert numbers(take(consumer)) == [0, 1]


@pytest.mark.parametrize("listening", [False, True])
def test_who_waits_is_woken_in_time(topic, listening):
    """A consumer that waits, or its listener, gets the message as soon as it is due, and not before."""
    came: queue.SimpleQueue[float] = queue.SimpleQueue()
    listener = {"message_listener": lambda _, message: came.put(real_time.time())} if listening else {}
    consumer = topic.consumer(consumer_type=ConsumerType.Shared, **listener)
    due = real_time.time() + 0.2
    with topic.producer() as producer:
        producer.send(b"hello-0", deliver_at=int(due * 1000) + 1)
    if not listening:
        with pytest.raises(Timeout):
            consumer.receive(50)
        consumer.receive(5000)
        came.put(real_time.time())
    assert due <= came.get(timeout=10) < due + 2


def test_sought_messages_wait_as_well(time):
    """After a seek delays hold again, as far as they have not passed."""
    consumer = subscribe(time)
    send(time, 0, 5000, 1000)
    time.pass_ms(1000)
    acknowledge_all(consumer, take(consumer))
    consumer.seek(MessageId.earliest)
    assert numbers(take(consumer)) == [0, 2]
    time.pass_ms(4000)
    assert numbers(take(consumer)) == [1]


def test_many(time):
    """Thousands of delayed messages wait, and come by their time."""
    consumer = subscribe(time, receiver_queue_size=50)
    delays = [1 + number * 7919 % 2000 for number in range(2000)]
    send(time, *delays)
    assert take(consumer) == []
    found = 0
    for end in range(100, 2001, 100):
        time.pass_ms(100)
        due = numbers(take(consumer))
        assert {(end - 1) // 100 == (delays[number] - 1) // 100 for number in due} == {True}
        found += len(due)
    assert found == 2000
