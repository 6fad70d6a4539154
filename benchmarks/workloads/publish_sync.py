"""One message at a time, each acknowledged before the next."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded import publish
from benchmarks.peers import (
    lmdb_store,
    nats_jetstream,
    persist_queue,
    redis_streams,
    sqlite_wal,
    stdlib_queue,
)


def contests(settings: Settings) -> list[Contest]:
    """Two tables: what survives a kill, and what survives a power loss."""
    size = settings.message_size
    ours = publish.Send(size)
    process = Contest(
        f"publish_sync: one message of {size} bytes at a time",
        MESSAGES_PER_SECOND,
        [
            ours,
            redis_streams.Add(size),
            nats_jetstream.Publish(size),
            sqlite_wal.Insert(size),
            lmdb_store.Put(size),
            persist_queue.FilePut(size),
            persist_queue.AckPut(size),
            stdlib_queue.Put(size),
        ],
        [
            Budget(">= 6 x Redis XADD", ours.key, 6, peer="redis"),
            Budget(">= 5 x sqlite WAL", ours.key, 5, peer="sqlite"),
            Budget(">= 1.2 x LMDB sync=False", ours.key, 1.2, peer="lmdb"),
        ],
    )
    flushed = Contest(
        f"publish_sync, flushed: one message of {size} bytes at a time, on the disk before the next",
        MESSAGES_PER_SECOND,
        [publish.FlushedSend(size), sqlite_wal.FlushedInsert(size), lmdb_store.FlushedPut(size)],
    )
    return [process, flushed]
