"""What `test_cluster` submits: reads of a topic that is partly offloaded, and a stream into another topic."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

import embeddedpulsar.spark


def main(root: str, topic: str, checkpoint: str) -> None:
    """Print the counts, where the workers have the package from, and how many executors worked."""
    spark = SparkSession.builder.getOrCreate()
    embeddedpulsar.spark.register(spark)
    options = {"path": root, "topic": topic, "minPartitions": "4"}
    frame = spark.read.format("embeddedpulsar").options(**options).load()
    table = embeddedpulsar.spark.table(spark, root, topic)
    stream = spark.readStream.format("embeddedpulsar").options(**options, startingOffsets="earliest").load()
    query = (
        stream.select("value", "__key")
        .writeStream.format("embeddedpulsar")
        .options(path=root, topic="copies", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    def place(_: Iterator[Any]) -> Iterator[tuple[str, str]]:
        import os
        import time

        import embeddedpulsar

        time.sleep(2)  # so that both executors get a task
        yield embeddedpulsar.__file__, os.environ.get("SPARK_EXECUTOR_DIRS", "")

    found = spark.sparkContext.parallelize(range(4), 4).mapPartitions(place).collect()
    result = {
        "format": frame.count(),
        "table": table.count(),
        "filtered": table.where("__key = 'k1'").count(),
        "streamed": sum(progress["numInputRows"] for progress in query.recentProgress),
        "copies": spark.read.format("embeddedpulsar").options(path=root, topic="copies").load().count(),
        "places": [file for file, _ in found],
        "executors": len({directory for _, directory in found}),
    }
    print(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
