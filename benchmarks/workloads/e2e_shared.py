"""Two producers and two consumers of one queue, each in a process of its own; each message acknowledged."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded import consume, shared
from benchmarks.peers import nats_jetstream, redis_streams, zeromq


def contests(settings: Settings) -> list[Contest]:
    """One table: first send to last acknowledged receipt, of all consumers together."""
    size = settings.message_size
    ours = shared.SharedCrowd(size)
    exclusive = consume.ExclusivePair(size)
    exclusive.key = "exclusive"
    return [
        Contest(
            f"e2e_shared: 2 producers, 2 consumers of one subscription, messages of {size} bytes",
            MESSAGES_PER_SECOND,
            [
                ours,
                exclusive,
                zeromq.PushPull(size),
                redis_streams.GroupCrowd(size),
                nats_jetstream.StreamCrowd(size),
            ],
            [
                Budget(
                    ">= 0.8 x pyzmq PUSH/PULL, one to one, which acknowledges nothing",
                    ours.key,
                    0.8,
                    peer="zmq",
                )
            ],
            step=1000,
        )
    ]
