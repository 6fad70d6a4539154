"""What a message costs when hundreds of processes wait for it."""

from __future__ import annotations

from benchmarks.contest import MILLISECONDS, Budget, Contest, Settings
from benchmarks.embedded.herd import EmbeddedHerd
from benchmarks.herd import GAP_SECONDS, PERIOD_SECONDS
from benchmarks.peers import redis_streams

SIZES = (4, 32, 62, 90, 200)
MANY_KEYS = 10_000


def contests(settings: Settings) -> list[Contest]:
    """One table; a row for each size of the herd, beside consumer groups of the same size."""
    sizes = (4, 12) if settings.smoke else SIZES
    ours = [EmbeddedHerd(size) for size in sizes]
    keys = [EmbeddedHerd(size, "KeyShared") for size in (sizes[0], sizes[-1])]
    # No budget: with more keys than processes none is idle, and each is woken from a long sleep in its turn.
    spread = [EmbeddedHerd(size, "KeyShared", MANY_KEYS) for size in (sizes[0], sizes[-1])]
    peers = [redis_streams.GroupHerd(size) for size in (sizes[0], sizes[-1])]
    return [
        Contest(
            f"idle_herd: CPU time of one message of {round(1 / GAP_SECONDS)} a second, of all processes",
            MILLISECONDS,
            [*ours, *keys, *spread, *peers],
            [
                _budget("Shared", ours[0], ours[-1]),
                _budget("Key_Shared", keys[0], keys[-1]),
                Budget(f"p50 of {sizes[-1]} <= 10 ms", ours[-1].key, 10, note="p50 ms", at_least=False),
                Budget(
                    f"p50 of {sizes[-1]} on Key_Shared <= 10 ms",
                    keys[-1].key,
                    10,
                    note="p50 ms",
                    at_least=False,
                ),
            ],
            fixed=settings.scale(round(PERIOD_SECONDS / GAP_SECONDS), 5),
        )
    ]


def _budget(what: str, few: EmbeddedHerd, many: EmbeddedHerd) -> Budget:
    return Budget(
        f"{what}: what a message causes, {many.members} processes <= 1.5 x {few.members}",
        many.key,
        1.5,
        few.key,
        note="caused ms",
        at_least=False,
    )
