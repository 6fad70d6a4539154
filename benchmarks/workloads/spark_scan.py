"""A whole topic through Spark, two cores, beside the same payloads in Parquet."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded import spark
from benchmarks.peers import parquet

FOUR = "value,__key,__messageId,__publishTime"
ALL = (
    "value,__key,__topic,__messageId,__publishTime,__eventTime,__messageProperties,__partition,"
    "__orderingKey,__sequenceId,__producerName"
)


def contests(settings: Settings) -> list[Contest]:
    """One table; the session is warm, each round is a new DataFrame."""
    messages, size = settings.scale(4_000_000, 20_000), settings.message_size
    ours = spark.Scan("embeddedpulsar", "embeddedpulsar, value", messages, size, "value")
    return [
        Contest(
            f"spark_scan: sum(length(value)) over {messages:,} messages of {size} bytes",
            MESSAGES_PER_SECOND,
            [
                ours,
                spark.Scan("four", "embeddedpulsar, 4 columns", messages, size, FOUR),
                spark.Scan("all", "embeddedpulsar, all columns", messages, size, ALL),
                spark.TupleScan("tuples", "embeddedpulsar by tuples, value", messages, size, "value"),
                parquet.SparkScan(messages, size),
            ],
            [
                Budget(">= 2,500,000 msg/s", ours.key, 2_500_000),
                Budget(">= 1.5 x a source that yields tuples", ours.key, 1.5, peer="tuples"),
            ],
            fixed=messages,
        )
    ]
