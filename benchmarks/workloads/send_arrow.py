"""An Arrow column in one call, beside the same messages one by one and a checksum of the same bytes."""

from __future__ import annotations

from benchmarks.contest import Budget, Contest, Settings, megabytes_per_second
from benchmarks.embedded import bulk

SIZE = 1000
SMALL = 100


def contests(settings: Settings) -> list[Contest]:
    """Two tables, in payload bytes: values of a kilobyte, where bytes count, and of a tenth of that."""
    messages = settings.scale(60_000, 2000)
    return [_contest(messages, SIZE, checksum=True), _contest(messages * 5, SMALL, checksum=False)]


def _contest(messages: int, size: int, *, checksum: bool) -> Contest:
    ours = bulk.SendArrow(messages, size)
    budgets = [Budget(">= 20 x send_async, message by message", ours.key, 20, peer="each")]
    if checksum:
        budgets.append(Budget(">= 0.7 x crc32 over the same bytes", ours.key, 0.7, peer="crc32"))
    return Contest(
        f"send_arrow: {messages:,} values of {size} bytes",
        megabytes_per_second(size),
        [
            ours,
            bulk.SendAsyncEach(messages, size),
            bulk.SendAsyncBatched(messages, size),
            bulk.Checksum(messages, size),
        ],
        budgets,
        fixed=messages,
    )
