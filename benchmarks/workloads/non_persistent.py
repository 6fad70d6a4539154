"""A non-persistent topic beside a persistent one, from process to process: throughput and latency."""

from __future__ import annotations

from benchmarks.actors import Latency
from benchmarks.contest import MESSAGES_PER_SECOND, MICROSECONDS, Budget, Contest, Settings
from benchmarks.embedded.consume import ExclusivePair, VolatilePair

_GAP_SECONDS = 0.0003


def contests(settings: Settings) -> list[Contest]:
    """Two tables: first send to last receipt of many messages, and the age of single ones."""
    size = settings.message_size
    many = Contest(
        f"non_persistent: process to process, messages of {size} bytes",
        MESSAGES_PER_SECOND,
        [VolatilePair(size), ExclusivePair(size)],
        [Budget(">= 0.95 x the persistent topic", VolatilePair.key, 0.95, peer=ExclusivePair.key)],
    )
    single = Contest(
        f"non_persistent: one message every {_GAP_SECONDS * 1e6:.0f} us",
        MICROSECONDS,
        [Latency(VolatilePair(), _GAP_SECONDS, idle=0.0), Latency(ExclusivePair(), _GAP_SECONDS, idle=0.0)],
        [Budget("p50 <= 60 us", VolatilePair.key, 60, at_least=False)],
        fixed=settings.scale(2000, 50),
    )
    return [many, single]
