"""The same as e2e_shared with keys, each of which comes to one consumer, in order."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Contest, Settings
from benchmarks.embedded import shared
from benchmarks.peers import redis_streams


def contests(settings: Settings) -> list[Contest]:
    """One table; the peer has no order of keys, and is there for scale."""
    size = settings.message_size
    group = redis_streams.GroupCrowd(size)
    group.name += " (no order of keys)"
    return [
        Contest(
            f"e2e_key_shared: 2 producers, 2 consumers, {shared.KEYS} keys, messages of {size} bytes",
            MESSAGES_PER_SECOND,
            [shared.KeySharedCrowd(size), shared.SharedCrowd(size, "shared"), group],
            step=1000,
        )
    ]
