"""Clicks of users: three threads, each of which has all clicks of its users in order."""

import collections
import threading

import pulsar

client = pulsar.Client("pulsar://localhost:6650")
clicks = collections.defaultdict(list)
lock, ready = threading.Lock(), threading.Barrier(4)


def count(number):
    """One of the threads."""
    consumer = client.subscribe(
        "clicks",
        "counters",
        consumer_type=pulsar.ConsumerType.KeyShared,
        consumer_name=f"counter-{number}",
        key_shared_policy=pulsar.ConsumerKeySharedPolicy(
            key_shared_mode=pulsar.KeySharedMode.AutoSplit, allow_out_of_order_delivery=False
        ),
    )
    ready.wait()
    while True:
        try:
            message = consumer.receive(timeout_millis=300)
        except pulsar.Timeout:
            return
        with lock:
            clicks[message.partition_key()].append((number, int(message.data())))
        consumer.acknowledge(message)


threads = [threading.Thread(target=count, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
ready.wait()
producer = client.create_producer("clicks", batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased)
for number in range(300):
    producer.send_async(b"%d" % number, None, partition_key=f"user-{number % 10}")
producer.flush()
for thread in threads:
    thread.join()
assert sum(map(len, clicks.values())) == 300
for user, found in clicks.items():
    assert len({number for number, _ in found}) == 1, user
    assert [click for _, click in found] == sorted(click for _, click in found), user
client.close()
