"""A million messages that are not due, and what happens when they are."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded import delay
from benchmarks.peers import redis_streams


def contests(settings: Settings) -> list[Contest]:
    """One table; the number of messages is fixed, because the memory they need is the point."""
    messages = settings.scale(1_000_000, 1_000)
    ours = delay.Delayed()
    return [
        Contest(
            f"delayed_million: {messages:,} messages that become due together",
            MESSAGES_PER_SECOND,
            [ours, redis_streams.SortedSet(10)],
            [Budget("none before its time", ours.key, 0, note="early", at_least=False)],
            fixed=messages,
        )
    ]
