"""Opening a topic that already holds many messages."""

from __future__ import annotations

from benchmarks.contest import MILLISECONDS, Budget, Contest, Settings
from benchmarks.embedded import read
from benchmarks.peers import lmdb_store, sqlite_wal


def contests(settings: Settings) -> list[Contest]:
    """One table; the page cache is warm, the process has imported everything."""
    messages = settings.scale(10_000_000, 20_000)
    ours = read.OpenLarge(messages)
    return [
        Contest(
            f"open_large_topic: {messages:,} messages of 10 bytes",
            MILLISECONDS,
            [ours, sqlite_wal.OpenLarge(messages), lmdb_store.OpenLarge(messages)],
            [Budget("<= 20 ms, no scan", ours.key, 20, at_least=False)],
            fixed=1,
        )
    ]
