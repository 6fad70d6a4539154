"""A list of payloads in one call, beside the same messages one by one."""

from __future__ import annotations

from benchmarks.contest import Budget, Contest, Settings, megabytes_per_second
from benchmarks.embedded import bulk

SIZE = 1000


def contests(settings: Settings) -> list[Contest]:
    """One table, in payload bytes."""
    messages = settings.scale(60_000, 2000)
    ours = bulk.SendMany(messages, SIZE)
    return [
        Contest(
            f"send_many: {messages:,} values of {SIZE} bytes",
            megabytes_per_second(SIZE),
            [
                ours,
                bulk.SendKeyed(messages, SIZE),
                bulk.SendAsyncEach(messages, SIZE),
                bulk.SendAsyncBatched(messages, SIZE),
                bulk.Checksum(messages, SIZE),
            ],
            [Budget(">= 5 x send_async, message by message", ours.key, 5, peer="each")],
            fixed=messages,
        )
    ]
