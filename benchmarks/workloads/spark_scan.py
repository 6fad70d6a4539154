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
    """Two tables; the session is warm, each round is a new DataFrame."""
    messages, size = settings.scale(4_000_000, 20_000), settings.message_size
    many = settings.scale(10_000_000, 20_000)
    memory = spark.Memory("memory", "embeddedpulsar, value", many, size)

    def scan(kind: type[spark.Scan], key: str, name: str, *rest: str) -> spark.Scan:
        return kind(key, f"embeddedpulsar, {name}", messages, size, *rest)

    ours = scan(spark.Scan, "embeddedpulsar", "value")
    return [
        Contest(
            f"spark_scan: sum(length(value)) over {messages:,} messages of {size} bytes",
            MESSAGES_PER_SECOND,
            [
                ours,
                scan(spark.Scan, "four", "4 columns", FOUR),
                scan(spark.Scan, "all", "all columns", ALL),
                scan(spark.TupleScan, "tuples", "value, by tuples"),
                scan(spark.MapInArrow, "arrow", "value, by mapInArrow"),
                scan(spark.Scan, "offloaded", "value, offloaded", "value", "cold"),
                scan(spark.Table, "cold", "spark.table, value, offloaded", "value", "cold"),
                scan(spark.Table, "mixed", "spark.table, value, half offloaded", "value", "mixed"),
                parquet.SparkScan(messages, size),
            ],
            [
                Budget(">= 2,500,000 msg/s", ours.key, 2_500_000),
                Budget(">= 1.5 x a source that yields tuples", ours.key, 1.5, peer="tuples"),
                Budget(">= 0.7 x Parquet", ours.key, 0.7, peer="parquet"),
                Budget("offloaded >= 0.9 x Parquet", "cold", 0.9, peer="parquet"),
            ],
            fixed=messages,
        ),
        Contest(
            f"spark_scan: memory of a worker over {many:,} messages of {size} bytes",
            MESSAGES_PER_SECOND,
            [memory],
            [
                Budget("<= 256 MiB", memory.key, 256, note="MiB of a worker at most", at_least=False),
                Budget("flat", memory.key, 16, note="MiB more in the second half", at_least=False),
            ],
            fixed=many,
        ),
    ]
