"""Key_Shared: messages of one key come to one consumer at a time, in order, whoever comes and goes."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from embeddedpulsar import BatchingType, Client, ConsumerKeySharedPolicy, ConsumerType, KeySharedMode
from tests.children import start_python
from tests.conformance.conftest import Topic, numbers
from tests.conformance.pool import acknowledge_all, take, take_turns, write_settings

KEY_SHARED = ConsumerType.KeyShared


def subscribe(topic, size=1000, **options):
    """A consumer of the Key_Shared subscription."""
    return topic.consumer(consumer_type=KEY_SHARED, receiver_queue_size=size, **options)


def send(topic, count, keys=10, start=0):
    """Send numbered messages with so many keys in turn."""
    with topic.producer() as producer:
        for number in range(start, start + count):
            producer.send(b"hello-%d" % number, partition_key=f"key-{number % keys}")


def by_key(messages):
    """The numbers of the messages of each key, in the order given."""
    found = defaultdict(list)
    for message in messages:
        found[message.partition_key()].append(numbers([message])[0])
    return found


@pytest.mark.in_memory
def test_keys_are_divided(topic):
    """Each key comes to one consumer, in order; every consumer has some."""
    consumers = [subscribe(topic) for _ in range(3)]
    send(topic, 300, keys=30)
    taken = [by_key(messages) for messages in take_turns(consumers)]
    assert all(taken)
    assert sum(len(keys) for keys in taken) == 30
    for keys in taken:
        for key, found in keys.items():
            assert found == list(range(int(key[4:]), 300, 30))


def test_messages_without_a_key_go_to_one_consumer(topic):
    """They share one key, NON_KEY."""
    consumers = [subscribe(topic, 10) for _ in range(4)]
    topic.publish(50)
    taken = take_turns(consumers)
    assert [numbers(messages) for messages in taken if messages] == [list(range(50))]
    acknowledge_all(consumers[0], taken[0])


def test_the_key_named_non_key_is_that_of_messages_without(topic):
    """A message whose key is NON_KEY goes where those without a key go."""
    consumers = [subscribe(topic) for _ in range(4)]
    with topic.producer() as producer:
        producer.send(b"hello-0")
        producer.send(b"hello-1", partition_key="NON_KEY")
    assert [numbers(messages) for messages in take_turns(consumers) if messages] == [[0, 1]]


def test_the_ordering_key_counts_before_the_partition_key(topic):
    """Messages with one ordering key come to one consumer, whatever their partition keys are."""
    consumers = [subscribe(topic) for _ in range(4)]
    with topic.producer() as producer:
        for number in range(40):
            producer.send(b"hello-%d" % number, partition_key=f"key-{number}", ordering_key="one")
    assert [numbers(messages) for messages in take_turns(consumers) if messages] == [list(range(40))]


def test_batches_by_key(topic):
    """With key based batching every batch has one key, and goes whole to the consumer of that."""
    consumers = [subscribe(topic) for _ in range(3)]
    with topic.producer(
        batching_enabled=True, batching_type=BatchingType.KeyBased, batching_max_publish_delay_ms=60_000
    ) as producer:
        for number in range(90):
            producer.send_async(b"hello-%d" % number, None, partition_key=f"key-{number % 15}")
    taken = [by_key(messages) for messages in take_turns(consumers)]
    assert sum(len(keys) for keys in taken) == 15
    assert all(found == sorted(found) and len(found) == 6 for keys in taken for found in keys.values())


def test_a_newcomer_gets_keys_with_nothing_in_flight_at_once(topic):
    """And a key with messages in flight elsewhere only when those are acknowledged."""
    first = subscribe(topic)
    send(topic, 20, keys=20)
    held = take(first, 10)
    assert len(held) == 10
    first_keys = {message.partition_key() for message in held}
    newcomer = subscribe(topic)
    send(topic, 40, keys=40, start=20)  # keys 20-39, then 0-19 again
    fresh = {message.partition_key() for message in take(newcomer)}
    assert fresh
    assert not fresh & first_keys


def test_a_key_moves_when_it_is_acknowledged(topic):
    """What waits for the newcomer comes as soon as the other consumer has acknowledged that key's."""
    first = subscribe(topic, ack_group_time_ms=0)
    send(topic, 40, keys=20)
    held = by_key_messages(take(first))
    newcomer = subscribe(topic)
    send(topic, 20, keys=20, start=40)
    assert take(newcomer) == []
    others = {numbers([message])[0] for message in take(first)}
    waiting = {f"key-{number % 20}" for number in range(40, 60) if number not in others}
    assert waiting
    for key in sorted(waiting):
        first.acknowledge(held[key][0])
        assert take(newcomer) == []
        first.acknowledge(held[key][1])
        assert [message.partition_key() for message in take(newcomer)] == [key]


def by_key_messages(messages):
    """The messages of each key."""
    found = defaultdict(list)
    for message in messages:
        found[message.partition_key()].append(message)
    return found


def test_a_stuck_consumer_does_not_block_others(topic):
    """Keys of a consumer that takes no more wait; those of others go on, within the look-ahead."""
    stuck, busy = subscribe(topic, 1), subscribe(topic, 1000)
    send(topic, 400, keys=20)
    assert stuck.receive(0)
    mine = by_key(take(busy))
    assert mine
    assert all(found == list(range(int(key[4:]), 400, 20)) for key, found in mine.items())
    rest = by_key(take(stuck))
    assert not set(rest) & set(mine)


def test_nacked_messages_come_back_to_the_consumer_of_their_key(time):
    """However often a message comes, it comes to the consumer of its key, and before what nobody had yet."""
    consumers = [time.client.subscribe("topic", "sub", KEY_SHARED) for _ in range(3)]
    topic = Topic(time.client)
    owner = {}
    for round_ in range(4):
        send(topic, 12, keys=6, start=12 * round_)
        for index, messages in enumerate(take_turns(consumers)):
            assert {owner.setdefault(message.partition_key(), index) for message in messages} <= {index}
            for key, found in by_key(messages).items():
                assert found == list(range(int(key[4:]), 12 * round_ + 12, 6))
            for message in messages:
                consumers[index].negative_acknowledge(message)
        time.pass_ms(60_100)
    assert sorted(owner) == [f"key-{key}" for key in range(6)]
    assert sum(map(len, take_turns(consumers))) == 48


@pytest.mark.parametrize("seed", range(3))
def test_order_while_consumers_come_and_go(topic, seed):
    """What is acknowledged of each key is in order, and no key is with two consumers at a time."""
    rng = random.Random(seed)
    send(topic, 360, keys=12)
    consumers = [subscribe(topic, 8, ack_group_time_ms=0) for _ in range(2)]
    holder = {}  # key -> consumer that has messages of it
    held = defaultdict(list)  # consumer -> messages
    done = defaultdict(list)
    for _ in range(20_000):
        if sum(map(len, done.values())) == 360:
            break
        chance = rng.random()
        if chance < 0.01 and len(consumers) < 5:
            consumers.append(subscribe(topic, rng.choice([1, 8, 100]), ack_group_time_ms=0))
        elif chance < 0.02 and len(consumers) > 1:
            leaver = consumers.pop(rng.randrange(len(consumers)))
            leaver.close()
            for message in held.pop(leaver, []):
                holder.pop(message.partition_key(), None)
        consumer = rng.choice(consumers)
        if chance < 0.6:
            message = consumer.receive_nowait()
            if message is not None:
                assert holder.setdefault(message.partition_key(), consumer) is consumer
                held[consumer].append(message)
        elif held[consumer]:
            message = held[consumer].pop(0)
            consumer.acknowledge(message)
            done[message.partition_key()] += numbers([message])
            if all(message.partition_key() != other.partition_key() for other in held[consumer]):
                del holder[message.partition_key()]
    assert done == {f"key-{key}": list(range(key, 360, 12)) for key in range(12)}


CRASHING = """
import sys
from embeddedpulsar import Client, ConsumerType, InitialPosition
client = Client(sys.argv[1])
options = dict(ack_group_time_ms=0, initial_position=InitialPosition.Earliest)
consumer = client.subscribe("topic", "sub", ConsumerType.KeyShared, receiver_queue_size=100, **options)
for _ in range(10):
    message = consumer.receive(30_000)
consumer.acknowledge(message)
print(message.partition_key(), int(message.data()[6:]), flush=True)
sys.stdin.read()
"""


def test_order_after_a_crash(topic, store_path):
    """When a process dies, its keys go to the others, from the first unacknowledged message of each."""
    send(topic, 200, keys=10)
    child = start_python(CRASHING, str(store_path))
    try:
        key, number = child.stdout.readline().split()
        child.kill()
    finally:
        child.communicate(timeout=30)
    consumers = [subscribe(topic) for _ in range(2)]
    taken = [by_key(messages) for messages in take_turns(consumers)]
    expected = {f"key-{one}": list(range(one, 200, 10)) for one in range(10)}
    expected[key].remove(int(number))
    assert {**taken[0], **taken[1]} == expected
    assert len(taken[0]) + len(taken[1]) == 10


def test_out_of_order_delivery_may_be_allowed(topic):
    """With allow_out_of_order_delivery a newcomer gets a key at once, though another has some of it."""
    policy = ConsumerKeySharedPolicy(KeySharedMode.AutoSplit, allow_out_of_order_delivery=True)
    first = subscribe(topic, key_shared_policy=policy)
    send(topic, 20, keys=20)
    assert len(take(first)) == 20
    newcomer = subscribe(topic, key_shared_policy=policy)
    send(topic, 20, keys=20, start=20)
    theirs = take(newcomer)
    assert theirs
    assert sorted(numbers(theirs + take(first))) == list(range(20, 40))


@pytest.mark.parametrize("classic", [True, False])
def test_the_classic_rule_for_newcomers(store_path, classic):
    """With subscriptionKeySharedUseClassicPersistentImplementation=true a newcomer gets nothing until all
    that was read before it came is acknowledged; without, keys nobody holds come at once."""
    write_settings(store_path, subscriptionKeySharedUseClassicPersistentImplementation=classic)
    with Client(store_path) as client, client.create_producer("topic") as producer:
        first = client.subscribe("topic", "sub", KEY_SHARED, ack_group_time_ms=0)
        for number in range(10):
            producer.send(b"hello-%d" % number, partition_key="held")
        held = take(first)
        assert len(held) == 10
        newcomer = client.subscribe("topic", "sub", KEY_SHARED)
        for number in range(40):
            producer.send(b"hello-%d" % number, partition_key=f"key-{number}")
        others = take(first)
        got = take(newcomer)
        assert bool(got) != classic
        acknowledge_all(first, held[:-1])
        assert take(newcomer) == []
        first.acknowledge(held[-1])
        acknowledge_all(first, others)
        if classic:
            got = take(newcomer)
        assert len(got) + len(others) == 40
