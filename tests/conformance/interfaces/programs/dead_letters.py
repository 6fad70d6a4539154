"""Billing: an order that cannot be booked is tried three times, and then put aside."""

import pulsar
from pulsar import ConsumerDeadLetterPolicy, ConsumerType, InitialPosition

client = pulsar.Client("pulsar://localhost:6650")
letters = client.subscribe("orders-failed", "audit", initial_position=InitialPosition.Earliest)
consumer = client.subscribe(
    "orders",
    "billing",
    consumer_type=ConsumerType.Shared,
    negative_ack_redelivery_delay_ms=100,
    dead_letter_policy=ConsumerDeadLetterPolicy(
        max_redeliver_count=2, dead_letter_topic="orders-failed", initial_subscription_name="audit"
    ),
)
producer = client.create_producer("orders")
for order in (b"shoe", b"soup"):
    producer.send(order)
booked, attempts = [], []
while len(attempts) < 3 or not booked:
    message = consumer.receive(timeout_millis=10000)
    if message.data() == b"shoe":
        attempts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    else:
        booked.append(message.data())
        consumer.acknowledge(message)
assert attempts == [0, 1, 2]
try:
    consumer.receive(timeout_millis=200)
except pulsar.Timeout as error:
    text = str(error)
assert text.startswith("Pulsar error: TimeOut")
letter = letters.receive(10000)
assert letter.data() == b"shoe"
assert "ORIGIN_MESSAGE_ID" in letter.properties()
letters.acknowledge(letter)
client.close()
