"""What a message costs when hundreds of processes wait for it."""

from __future__ import annotations

from benchmarks.contest import MILLISECONDS, Budget, Contest, Settings
from benchmarks.embedded.herd import EmbeddedHerd
from benchmarks.herd import GAP_SECONDS
from benchmarks.peers import redis_streams

SIZES = (4, 32, 62, 90, 200)


def contests(settings: Settings) -> list[Contest]:
    """One table; a row for each size of the herd, beside consumer groups of the same size."""
    sizes = (4, 12) if settings.smoke else SIZES
    ours = [EmbeddedHerd(size) for size in sizes]
    keys = [EmbeddedHerd(size, "KeyShared") for size in (sizes[0], sizes[-1])]
    peers = [redis_streams.GroupHerd(size) for size in (sizes[0], sizes[-1])]
    largest, smallest = ours[-1].key, ours[0].key
    return [
        Contest(
            f"idle_herd: CPU time of one message of {round(1 / GAP_SECONDS)} a second, of all processes",
            MILLISECONDS,
            [*ours, *keys, *peers],
            [
                Budget(f"{sizes[-1]} processes <= 1.5 x {sizes[0]}", largest, 1.5, smallest, at_least=False),
                Budget(f"p50 of {sizes[-1]} <= 10 ms", largest, 10, note="p50 ms", at_least=False),
                Budget(
                    f"Key_Shared {sizes[-1]} processes <= 1.5 x {sizes[0]}",
                    keys[1].key,
                    1.5,
                    keys[0].key,
                    at_least=False,
                ),
            ],
            fixed=settings.scale(200, 5),
        )
    ]
