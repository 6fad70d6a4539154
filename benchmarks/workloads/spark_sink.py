"""A DataFrame written into a topic by Spark, two cores, beside the same DataFrame written as Parquet."""

from __future__ import annotations

from benchmarks.contest import Budget, Contest, Settings, megabytes_per_second
from benchmarks.embedded import spark
from benchmarks.peers import parquet


def contests(settings: Settings) -> list[Contest]:
    """One table; the DataFrame is cached, each round writes a new topic or directory."""
    messages, size = settings.scale(2_000_000, 20_000), settings.message_size
    ours = spark.Write("embeddedpulsar", "embeddedpulsar, exactly once", messages, size, "exactly-once")
    return [
        Contest(
            f"spark_sink: df.write of {messages:,} rows of {size} bytes",
            megabytes_per_second(size),
            [
                ours,
                spark.Write("once", "embeddedpulsar, at least once", messages, size, "at-least-once"),
                parquet.SparkWrite(messages, size),
            ],
            [
                Budget(">= 150 MB/s", ours.key, 150),
                Budget(">= 0.5 x df.write.parquet", ours.key, 0.5, peer="parquet"),
            ],
            fixed=messages,
        )
    ]
