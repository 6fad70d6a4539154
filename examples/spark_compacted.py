"""Change data into a compacted topic: the last state of each account, and nothing of those that are closed.

A null value deletes its key when the topic is compacted. A table view shows what is left.
"""

from __future__ import annotations

import json
import os
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import embeddedpulsar as pulsar

STORE = os.path.abspath("./data")
CHANGES = [
    {"op": "insert", "id": "a-1", "balance": 100},
    {"op": "insert", "id": "a-2", "balance": 20},
    {"op": "update", "id": "a-1", "balance": 75},
    {"op": "insert", "id": "a-3", "balance": 1},
    {"op": "delete", "id": "a-2", "balance": None},
]


def main(spark: SparkSession) -> None:
    with pulsar.Client(STORE) as client, pulsar.Admin(STORE) as admin:
        with client.create_producer("changes") as producer:
            for change in CHANGES:
                producer.send(json.dumps(change).encode())
        changes = (
            spark.readStream.format("embeddedpulsar").option("path", STORE).option("topic", "changes")
            .option("valueSchema", "op STRING, id STRING, balance BIGINT")
            .option("startingOffsets", "earliest").load()
        )  # fmt: skip
        is_deleted = F.col("op") == "delete"
        rows = changes.select(
            F.col("id").alias("__key"),
            F.when(~is_deleted, F.col("balance").cast("string")).alias("value"),
        )
        query = rows.writeStream.format("embeddedpulsar").option("path", STORE).option("topic", "accounts")
        query = query.option("checkpointLocation", os.path.abspath("./checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

        admin.topics().compact("accounts")
        while admin.topics().compaction_status("accounts").status == "RUNNING":
            time.sleep(0.01)
        view = client.create_table_view("accounts")
        accounts: dict[str, str] = {}
        view.for_each(lambda key, value: accounts.__setitem__(key, value.decode()))
        print(dict(sorted(accounts.items())))


if __name__ == "__main__":
    from _spark_session import session

    main(session())
