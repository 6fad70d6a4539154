"""SQL over a topic without Spark: DuckDB beside the same payloads in Parquet."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Contest, Settings
from benchmarks.embedded.cold import DuckParquet, DuckScan


def contests(settings: Settings) -> list[Contest]:
    """One table; each round is a new query."""
    messages, size = settings.scale(2_000_000, 20_000), settings.message_size
    return [
        Contest(
            f"duckdb_scan: sum(octet_length(value)) over {messages:,} messages of {size} bytes",
            MESSAGES_PER_SECOND,
            [
                DuckScan(messages, size, "hot"),
                DuckScan(messages, size, "cold"),
                DuckParquet(messages, size),
            ],
            fixed=messages,
        )
    ]
