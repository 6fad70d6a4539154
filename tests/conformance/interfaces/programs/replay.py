"""An audit: read a log, remember the position as bytes, continue there, and start again."""

import pulsar
from pulsar import MessageId

client = pulsar.Client("pulsar://localhost:6650")
producer = client.create_producer("events")
for number in range(20):
    producer.send(b"event-%d" % number, partition_key=str(number % 3))
reader = client.create_reader("events", MessageId.earliest, reader_name="audit")
for _ in range(10):
    position = reader.read_next(timeout_millis=10000).message_id().serialize()
reader.close()
start = MessageId.deserialize(position)
reader = client.create_reader("events", start, start_message_id_inclusive=False)
rest = []
while reader.has_message_available():
    rest.append(reader.read_next().data())
assert rest == [b"event-%d" % number for number in range(10, 20)]
reader.seek(MessageId.earliest)
again = reader.read_next(10000)
assert (again.data(), again.partition_key()) == (b"event-0", "0")
reader.seek(again.publish_timestamp() + 1_000_000)
try:
    reader.read_next(10)
    raise AssertionError
except pulsar.Timeout:
    reader.close()
client.close()
