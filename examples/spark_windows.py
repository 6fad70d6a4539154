"""Averages of windows, from processes that publish to a plain consumer; Spark is in between.

A window is published once, when Spark has seen an event so late that no more of the window is expected.
"""

from __future__ import annotations

import os
import subprocess
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import embeddedpulsar as pulsar

STORE = os.path.abspath("./data")
START_MS = 1_767_225_600_000  # 2026-01-01


def publish(sensor: str, seconds: range) -> None:
    with pulsar.Client(STORE) as client, client.create_producer("readings") as producer:
        for second in seconds:
            time = START_MS + 1000 * second
            producer.send(str(second).encode(), partition_key=sensor, event_timestamp=time)


def main(spark: SparkSession) -> None:
    with pulsar.Client(STORE) as client:
        consumer = client.subscribe("averages", "display")
        client.create_producer("readings").close()  # a stream is read from topics that exist
        readings = (
            spark.readStream.format("embeddedpulsar").option("path", STORE).option("topic", "readings")
            .option("columns", "value,__key,__eventTime").option("startingOffsets", "earliest").load()
        )  # fmt: skip
        averages = (
            readings.withWatermark("__eventTime", "1 minute")
            .groupBy("__key", F.window("__eventTime", "20 seconds"))
            .agg(F.avg(F.col("value").cast("string").cast("double")).alias("average"))
            .select(
                "__key",
                F.col("window.start").alias("__eventTime"),
                F.format_string("%.1f", "average").alias("value"),
            )
        )
        query = (
            averages.writeStream.format("embeddedpulsar").option("path", STORE).option("topic", "averages")
            .option("checkpointLocation", os.path.abspath("./checkpoint")).start()
        )  # fmt: skip
        sensors = [subprocess.Popen([sys.executable, __file__, name]) for name in ("cellar", "roof")]
        assert [sensor.wait() for sensor in sensors] == [0, 0]
        publish("clock", range(600, 601))  # closes the windows before it

        found = [consumer.receive(timeout_millis=120_000) for _ in range(6)]
        query.processAllAvailable()
        query.stop()
        for message in sorted(found, key=lambda one: (one.partition_key(), one.event_timestamp())):
            second = (message.event_timestamp() - START_MS) // 1000
            print(f"{message.partition_key()} from {second:2} s: {message.data().decode()}")


if __name__ == "__main__":
    if sys.argv[1:]:
        publish(sys.argv[1], range(60))
    else:
        from _spark_session import session

        main(session())
