"""Moving a topic to a directory as Parquet, and reading it back message by message."""

from __future__ import annotations

from benchmarks.contest import Contest, Settings, megabytes_per_second
from benchmarks.embedded.cold import Fetching, Offloading, WriteParquet


def contests(settings: Settings) -> list[Contest]:
    """One table; each round moves or reads a copy of the same store."""
    messages, size = settings.scale(2_000_000, 20_000), settings.message_size
    return [
        Contest(
            f"offload: {messages:,} messages of {size} bytes",
            megabytes_per_second(size),
            [Offloading(messages, size), WriteParquet(messages, size), Fetching(messages, size)],
            fixed=messages,
        )
    ]
