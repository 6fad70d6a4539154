"""From one process to another: receive, look at the data, acknowledge each message."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded import consume
from benchmarks.peers import nats_jetstream, process_queue, redis_streams, sqlite_wal, zeromq


def contests(settings: Settings) -> list[Contest]:
    """One table: first send to last acknowledged receipt."""
    size = settings.message_size
    ours = consume.ExclusivePair(size)
    return [
        Contest(
            f"e2e_exclusive: process to process, messages of {size} bytes",
            MESSAGES_PER_SECOND,
            [
                ours,
                zeromq.PushPull(size),
                process_queue.QueuePair(size),
                redis_streams.GroupPair(size),
                nats_jetstream.StreamPair(size),
                sqlite_wal.TablePair(size),
            ],
            [Budget(">= 1.0 x pyzmq PUSH/PULL, which acknowledges nothing", ours.key, 1.0, peer="zmq")],
        )
    ]
