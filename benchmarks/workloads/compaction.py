"""Compaction of a topic, and table views of what it leaves."""

from __future__ import annotations

from benchmarks.contest import MILLISECONDS, Budget, Contest, Settings
from benchmarks.embedded.compact import Compacting, Loading


def contests(settings: Settings) -> list[Contest]:
    """Two tables: compacting, and loading a view."""
    messages, keys = settings.scale(10_000_000, 20_000), settings.scale(1_000_000, 2_000)
    return [
        Contest(
            f"compaction: {messages:,} messages of {keys:,} keys",
            MILLISECONDS,
            [Compacting(messages, keys)],
            [Budget("<= 300 MiB", Compacting.key, 300, note="MiB at most", at_least=False)],
            fixed=1,
        ),
        Contest(
            f"compaction: a table view of {keys:,} compacted keys",
            MILLISECONDS,
            [Loading(keys)],
            [
                Budget("<= 2 s", Loading.key, 2000, at_least=False),
                Budget("get <= 1 us", Loading.key, 1, note="us a get", at_least=False),
            ],
            fixed=1,
        ),
    ]
