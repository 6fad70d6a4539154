"""A backfill: the orders of some hours are computed again, into a topic of their own, once.

The write has a name and a number. If the job dies and is started again, or is started twice by mistake, its
rows are in the topic once.
"""

from __future__ import annotations

import os
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import embeddedpulsar as pulsar
from embeddedpulsar.arrow import read_topic

STORE = os.path.abspath("./data")


def now_ms() -> int:
    time.sleep(0.01)
    return time.time_ns() // 1_000_000


def backfill(spark: SparkSession, begin_ms: int, end_ms: int) -> None:
    orders = (
        spark.read.format("embeddedpulsar").option("path", STORE).option("topic", "orders")
        .option("columns", "value,__key").option("startingTime", begin_ms).option("endingTime", end_ms)
        .load()
    )  # fmt: skip
    counts = orders.groupBy("__key").count().select("__key", F.col("count").cast("string").alias("value"))
    (
        counts.write.format("embeddedpulsar").mode("append").option("path", STORE).option("topic", "noon")
        .option("producerName", "backfill-of-noon").option("batchId", "1").save()
    )  # fmt: skip


def main(spark: SparkSession) -> None:
    with pulsar.Client(STORE) as client, client.create_producer("orders") as producer:
        times = []
        for count in (100, 30, 200):  # in the morning, at noon, in the evening
            times.append(now_ms())
            tables = [f"table-{number % 3}" for number in range(count)]
            producer.send_many([b"soup"] * count, partition_keys=tables)
    for _ in range(2):
        backfill(spark, times[1], times[2])
    rows = read_topic(STORE, "noon", ["__key", "value"]).to_pylist()
    print(sorted(f"{row['__key'].decode()}: {row['value'].decode()}" for row in rows))


if __name__ == "__main__":
    from _spark_session import session

    main(session())
