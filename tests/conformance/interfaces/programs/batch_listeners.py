"""Metrics: one batching producer with callbacks, three consumers with listeners."""

import threading

from pulsar import Client, CompressionType, ConsumerType, PartitionsRoutingMode, Result

client = Client("pulsar://localhost:6650", message_listener_threads=3, operation_timeout_seconds=10)
seen, results, done = [], [], threading.Event()


def on_message(consumer, message):
    """Called on one of the listener threads."""
    seen.append(int(message.properties()["number"]))
    consumer.acknowledge(message)
    if len(seen) == 200:
        done.set()


consumers = [
    client.subscribe(
        "persistent://public/default/metrics",
        "aggregation",
        consumer_type=ConsumerType.Shared,
        message_listener=on_message,
        consumer_name=f"worker-{number}",
    )
    for number in range(3)
]
producer = client.create_producer(
    "persistent://public/default/metrics",
    batching_enabled=True,
    batching_max_publish_delay_ms=10,
    compression_type=CompressionType.LZ4,
    block_if_queue_full=True,
    message_routing_mode=PartitionsRoutingMode.RoundRobinDistribution,
)
for number in range(200):
    producer.send_async(
        b"{}", lambda result, message_id: results.append(result), properties={"number": str(number)}
    )
producer.flush()
assert done.wait(10)
assert sorted(seen) == list(range(200))
assert results == [Result.Ok] * 200
for consumer in consumers:
    consumer.close()
client.close()
