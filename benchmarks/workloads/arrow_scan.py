"""A whole topic as columns, beside a checksum of the same bytes and beside reading it message by message."""

from __future__ import annotations

from benchmarks.contest import Budget, Contest, Settings, megabytes_per_second
from benchmarks.embedded import checksum, columns, read
from benchmarks.peers import parquet

FOUR = ["value", "__key", "__messageId", "__publishTime"]


def contests(settings: Settings) -> list[Contest]:
    """One table, in payload bytes."""
    messages, size = settings.scale(1_000_000, 20_000), settings.message_size
    ours = columns.ReadTable(messages, size, ["value"], "embeddedpulsar read_topic, value")
    return [
        Contest(
            f"arrow_scan: {messages:,} messages of {size} bytes, batches of 1000",
            megabytes_per_second(size),
            [
                ours,
                columns.ReadTable(messages, size, FOUR, "embeddedpulsar read_topic, 4 columns", "four"),
                columns.ReadTable(messages, size, None, "embeddedpulsar read_topic, all columns", "all"),
                read.ReadAll(messages, size),
                checksum.LogChecksum(messages, size),
                parquet.ReadTable(messages, size),
            ],
            [
                Budget(">= 0.7 x crc32 over the same bytes", ours.key, 0.7, peer="crc32"),
                Budget(">= 20 x message by message", ours.key, 20, peer="reader"),
            ],
            fixed=messages,
        )
    ]
