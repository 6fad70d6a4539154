"""How long a queue stands still when the active consumer of a Failover subscription is killed."""

from __future__ import annotations

from benchmarks.contest import MILLISECONDS, Budget, Contest, Settings
from benchmarks.embedded import redeliver


def contests(settings: Settings) -> list[Contest]:
    """One table without peers: theirs go by time-outs of seconds."""
    ours = redeliver.Takeover()
    return [
        Contest(
            "failover_takeover: SIGKILL of the active consumer to the first message at a waiting one",
            MILLISECONDS,
            [ours],
            [Budget("p50 <= 20 ms", ours.key, 20, at_least=False)],
            fixed=settings.scale(15, 1),
        )
    ]
