"""Every message is given back once, comes again and is acknowledged."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Contest, Settings
from benchmarks.embedded import redeliver
from benchmarks.peers import nats_jetstream, redis_streams


def contests(settings: Settings) -> list[Contest]:
    """One table; the number of messages is fixed, because the state they leave behind is the point."""
    messages = settings.scale(1_000_000, 2_000)
    return [
        Contest(
            f"nack_storm: {messages:,} messages, each given back once",
            MESSAGES_PER_SECOND,
            [
                redeliver.NackAll("Shared"),
                redeliver.NackAll("KeyShared"),
                redis_streams.ClaimAgain(10),
                nats_jetstream.NackAll(10),
            ],
            fixed=messages,
        )
    ]
