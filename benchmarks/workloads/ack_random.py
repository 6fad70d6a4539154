"""Individual acknowledgements in random order against the same in order."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded import acknowledge
from benchmarks.peers import redis_streams, sqlite_wal


def contests(settings: Settings) -> list[Contest]:
    """One table; the number of messages is fixed, because the state they leave behind is the point."""
    messages = settings.scale(1_000_000, 5_000)
    return [
        Contest(
            f"ack_random: {messages:,} individual acknowledgements",
            MESSAGES_PER_SECOND,
            [
                acknowledge.Acks(),
                acknowledge.OrderedAcks(),
                redis_streams.RandomAcks(10),
                sqlite_wal.RandomDeletes(10),
            ],
            [
                Budget(
                    "random order <= 3 x the cost of in order (rate >= 0.33 x)",
                    "random",
                    1 / 3,
                    peer="ordered",
                )
            ],
            fixed=messages,
        )
    ]
