"""The options with which a subscription's shared state is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from embeddedpulsar.damage import DamageHook
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.platform.processes.peers import Peers
from embeddedpulsar.platform.scheduler import SchedulerLike


class StateOptions(NamedTuple):
    """Surroundings and settings of one `SharedState`.

    Attributes:
        name: the subscription's, to start anew with when nothing else is left; empty if not known.
        peers: to wake others.
        clock: stamps commands.
        scheduler: runs the flushes of level "interval".
        durability: "process", "interval" or "flush".
        interval_s: seconds between flushes at level "interval".
        lock_timeout_s: how long to wait for the lock.
        boot: identity of the boot in which control words are believed.
        compact_bytes: see `storage.journal.journal_follower.COMPACT_BYTES`.
        report: called with what could not be read, outside the lock.
        check_in_place: raises if the topic's directory is not the one that was opened.
    """

    name: str
    peers: Peers
    clock: Clock
    scheduler: SchedulerLike
    durability: str
    interval_s: float
    lock_timeout_s: float
    boot: bytes
    compact_bytes: int
    report: DamageHook
    check_in_place: Callable[[], object] = int
