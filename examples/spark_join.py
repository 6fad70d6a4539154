"""A join of two topics: orders as they come, with what is known of the customers.

Both have a schema, so their fields are columns. The customers are read again for each batch of orders.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import embeddedpulsar as pulsar
from embeddedpulsar.schema import Integer, JsonSchema, Record, String

STORE = os.path.abspath("./data")


class Order(Record):
    customer = String(required=True)
    cents = Integer(required=True)


class Customer(Record):
    customer = String(required=True)
    city = String(required=True)


def main(spark: SparkSession) -> None:
    with pulsar.Client(STORE) as client:
        customers = client.create_producer("customers", schema=JsonSchema(Customer))
        for name, city in (("Ada", "London"), ("Grace", "New York")):
            customers.send(Customer(customer=name, city=city), partition_key=name)
        orders = client.create_producer("orders", schema=JsonSchema(Order))
        for number in range(30):
            orders.send(Order(customer=("Ada", "Grace", "Linus")[number % 3], cents=100 * number))

        options = {"path": STORE, "decode": "true"}
        known = spark.read.format("embeddedpulsar").options(
            **options, topic="customers", columns="customer,city"
        )
        stream = spark.readStream.format("embeddedpulsar").options(
            **options, topic="orders", columns="customer,cents", startingOffsets="earliest"
        )

        def write(rows: DataFrame, batch: int) -> None:
            joined = rows.join(known.load(), "customer")
            messages = joined.select(
                F.col("city").alias("__key"), F.to_json(F.struct("customer", "cents")).alias("value")
            )
            messages.write.format("embeddedpulsar").mode("append").option("path", STORE).option(
                "topic", "sales"
            ).option("producerName", "join").option("batchId", batch).save()

        query = stream.load().writeStream.foreachBatch(write)
        query = query.option("checkpointLocation", os.path.abspath("./checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

        with client.create_reader("sales", pulsar.MessageId.earliest) as reader:
            cities = []
            while reader.has_message_available():
                cities.append(reader.read_next(timeout_millis=1000).partition_key())
        print({city: cities.count(city) for city in sorted(set(cities))})


if __name__ == "__main__":
    from _spark_session import session

    main(session())
