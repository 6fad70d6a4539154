"""How old a message is when a blocked receiver in another process gets it, and what waiting costs."""

from __future__ import annotations

from benchmarks.actors import Latency, Pair
from benchmarks.contest import MICROSECONDS, Budget, Contest, Settings
from benchmarks.embedded import consume
from benchmarks.peers import nats_jetstream, process_queue, redis_streams, zeromq

BUSY_GAP_SECONDS = 0.0003
IDLE_GAP_SECONDS = 0.05


def _pairs() -> list[Pair]:
    return [
        consume.ExclusivePair(),
        zeromq.PushPull(),
        process_queue.QueuePair(),
        redis_streams.GroupPair(),
        nats_jetstream.StreamPair(),
    ]


def contests(settings: Settings) -> list[Contest]:
    """Two tables: messages in quick succession, and one after a pause."""
    busy = Contest(
        f"wakeup_latency, busy: one message every {BUSY_GAP_SECONDS * 1e6:.0f} us",
        MICROSECONDS,
        [Latency(pair, BUSY_GAP_SECONDS, idle=0.0) for pair in _pairs()],
        [Budget("p50 <= 60 us", "embeddedpulsar", 60, at_least=False)],
        fixed=settings.scale(2000, 50),
    )
    idle = Contest(
        f"wakeup_latency, after idle: one message every {IDLE_GAP_SECONDS * 1e3:.0f} ms",
        MICROSECONDS,
        [Latency(pair, IDLE_GAP_SECONDS, idle=6.0) for pair in _pairs()],
        [
            Budget("p50 <= 200 us", "embeddedpulsar", 200, at_least=False),
            Budget("idle CPU <= 0.05 %", "embeddedpulsar", 0.05, note="idle CPU %", at_least=False),
        ],
        fixed=settings.scale(20, 3),
    )
    return [busy, idle]
