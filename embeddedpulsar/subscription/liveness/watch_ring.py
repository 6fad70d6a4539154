"""The division of labour in watching processes: each one watches a few of the others."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.platform.processes.peers import Peers
from embeddedpulsar.subscription.liveness.keep_alives import KeepAlives
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.state.consumer_registry import Consumer

WATCHED: Final = 3
"""Processes behind it that each process watches: the kernel reports their death."""
PROBED: Final = 8
"""Processes whose lease it tries, each time it looks."""


class WatchRing:
    """The processes of one subscription in the order in which they attached, as a ring.

    Role: each process watches the few that stand behind it, so that all are watched by some and none has
    hundreds of descriptors; now and then it also tries the leases of a few others in turn, and reads which
    consumers were silent. Every change of a neighbour wakes the process before it. Callers: any thread.
    """

    __slots__ = ("_keep_alives", "_next", "_peers", "_shared", "_uuid")

    def __init__(self, shared: SharedState, uuid: bytes, peers: Peers, keep_alives: KeepAlives) -> None:
        self._shared: Final = shared
        self._uuid: Final = uuid
        self._peers: Final = peers
        self._keep_alives: Final = keep_alives
        self._next = 0

    def neighbours(self) -> set[bytes]:
        """Leases of the processes to watch, of those there were at the last transaction. Takes no lock."""
        shared = self._shared
        if shared.control.closed or shared.is_foreign:
            return set()
        ring = processes_of(shared.state.consumers.all())
        if self._uuid not in ring:
            return set()
        at = ring.index(self._uuid)
        return set((ring[at + 1 :] + ring[:at])[:WATCHED])

    def has_others(self) -> bool:
        """Whether other processes had consumers at the last transaction. Lock-free."""
        return any(one.client_uuid != self._uuid for one in self._shared.state.consumers.each())

    def has_lost(self) -> bool:
        """Whether a consumer seems to be dead or silent: then all are looked at under the lock. Takes no
        lock, and replays nothing: it looks at the consumers there were at the last transaction."""
        shared = self._shared
        if shared.control.closed or shared.is_foreign:
            return False
        try:
            silent = self._keep_alives.look(shared.state, shared.control)
        except ValueError:
            return False  # closed meanwhile
        return bool(silent) or self._is_any_dead(processes_of(shared.state.consumers.all()))

    def _is_any_dead(self, ring: list[bytes]) -> bool:
        first, self._next = self._next, self._next + PROBED
        probed = {ring[(first + number) % len(ring)] for number in range(PROBED)} if ring else ()
        return not all(map(self._peers.is_alive, probed))


def processes_of(consumers: list[Consumer]) -> list[bytes]:
    """Leases of the processes of consumers, each once, in order."""
    return list(dict.fromkeys(one.client_uuid for one in consumers))


def bereft(ring: list[bytes], left: list[bytes]) -> set[bytes]:
    """The processes of a ring that have another one behind them, now that only ``left`` are there.

    >>> bereft([b"a", b"b", b"c", b"d"], [b"b", b"d"]) == {b"b", b"d"}
    True
    >>> bereft([b"a", b"b", b"c"], [b"a", b"b"])
    {b'b'}
    """
    staying = set(left)
    found, last = set(), left[-1:]
    for uuid in ring:
        if uuid in staying:
            last = [uuid]
        else:
            found.update(last)
    return found
