"""As many messages as one producer can publish when it need not wait for each."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded import publish
from benchmarks.peers import lmdb_store, nats_jetstream, redis_streams, sqlite_wal, stdlib_queue, zeromq


def contests(settings: Settings) -> list[Contest]:
    """One table; every peer may batch as its client allows."""
    size = settings.message_size
    ours = publish.SendAsync(size)
    return [
        Contest(
            f"publish_async: messages of {size} bytes, batched",
            MESSAGES_PER_SECOND,
            [
                ours,
                redis_streams.PipelinedAdd(size),
                nats_jetstream.PublishAsync(size),
                sqlite_wal.BatchInsert(size),
                lmdb_store.BatchPut(size),
                stdlib_queue.Put(size),
                zeromq.Put(size),
            ],
            [
                Budget(">= 10 x Redis pipelined", ours.key, 10, peer="redis"),
                Budget(">= 0.5 x queue.Queue.put", ours.key, 0.5, peer="queue"),
            ],
        )
    ]
