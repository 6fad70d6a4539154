"""Jobs put, got and acknowledged one at a time, beside the job queues that need no server of their own."""

from __future__ import annotations

from benchmarks.contest import MESSAGES_PER_SECOND, Budget, Contest, Settings
from benchmarks.embedded.jobs import FlushedJobs, Jobs
from benchmarks.jobs import Get, JobQueue, Put
from benchmarks.peers.honker_queue import HonkerQueue
from benchmarks.peers.lmdb_queue import LmdbQueue
from benchmarks.peers.local_queue import DurableLocalQueue, LocalQueue
from benchmarks.peers.nobroker_queue import FlushedNobrokerQueue, NobrokerQueue
from benchmarks.peers.pulsar_lite import PulsarLite

KEPT: tuple[type[JobQueue], ...] = (Jobs, LmdbQueue, LocalQueue, HonkerQueue, NobrokerQueue, PulsarLite)
FLUSHED: tuple[type[JobQueue], ...] = (FlushedJobs, DurableLocalQueue, FlushedNobrokerQueue)
JOBS_GOT = 20_000
"""Jobs of a round that are got: they are put first, which is not measured."""


def contests(settings: Settings) -> list[Contest]:
    """Three tables: putting, getting and acknowledging, and putting with a flush."""
    ours = Jobs.key
    return [
        Contest(
            "jobs, put: a job of 340 bytes at a time",
            MESSAGES_PER_SECOND,
            [Put(queue()) for queue in KEPT],
            [Budget(">= 1.3 x lmdb-queue", ours, 1.3, peer=LmdbQueue.key)],
            operation_limit=300_000,
        ),
        Contest(
            "jobs, get: a job of 340 bytes at a time, each acknowledged before the next",
            MESSAGES_PER_SECOND,
            [Get(queue()) for queue in KEPT],
            operation_limit=JOBS_GOT,
        ),
        Contest(
            "jobs, put, flushed: a job of 340 bytes at a time, on the disk before the next",
            MESSAGES_PER_SECOND,
            [Put(queue()) for queue in FLUSHED],
            operation_limit=20_000,
        ),
    ]
