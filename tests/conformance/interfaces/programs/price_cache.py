"""A shop: the newest price of each article, in memory, kept up to date."""

import queue

import pulsar
from pulsar.schema import Float, JsonSchema, Record, String


class Price(Record):
    """A price of an article."""

    article = String()
    value = Float()


client = pulsar.Client("pulsar://localhost:6650")
producer = client.create_producer("prices", schema=JsonSchema(Price))
for article, value in [("soup", 6.5), ("tea", 2.8), ("soup", 7.0)]:
    producer.send(Price(article=article, value=value), partition_key=article)
view = client.create_table_view("prices", subscription_name="cache", schema=JsonSchema(Price))
assert len(view) == 2
assert view.get("soup").value == 7.0
assert view.get("cake") is None
changes = queue.Queue()
view.for_each_and_listen(lambda article, price: changes.put((article, price.value)))
producer.send(Price(article="cake", value=4.2), partition_key="cake")
assert sorted(changes.get(timeout=10) for _ in range(3)) == [("cake", 4.2), ("soup", 7.0), ("tea", 2.8)]
view.close()
client.close()
