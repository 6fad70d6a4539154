"""Several appends in one hold of the topic lock."""

from __future__ import annotations

from collections.abc import Callable

from embeddedpulsar._engine.platform import failpoints

failpoints.declare("group:entry_stored", "group:unlocked")


class AppendHold:
    """Stands for the topic lock in appends of a caller that has it.

    Role: `SegmentWriter.append` takes and gives back a lock; given a hold, it takes nothing, and adds the
    processes to be rung to the hold. So a group of entries costs one ``flock``, and the interpreter is not
    handed on between its entries. Entries are committed in order, alone or with their neighbours
    (`SegmentWriter.append_run`): a crash leaves a prefix of the group.

    Used in this shape, in one thread::

        hold = ledger.hold()
        try:
            ledger.lock.acquire(timeout_s)
            for entry in entries:
                ledger.append_nowait(entry, None, None, hold)
        finally:
            ledger.lock.release()
            hold.ring_all()

    Attributes:
        rung: the processes whose doorbells are to be rung after the lock is free.
    """

    __slots__ = ("_ring", "rung")

    def __init__(self, ring: Callable[[bytes], bool]) -> None:
        self.rung: list[bytes] = []
        self._ring = ring

    def acquire(self, timeout_s: float) -> None:
        """Do nothing: the caller has the lock."""

    def release(self) -> None:
        """Do nothing: the caller keeps the lock."""
        if failpoints.ACTIVE:
            failpoints.hit("group:entry_stored")

    def ring_all(self) -> None:
        """Ring the processes that waited. Without the lock."""
        if failpoints.ACTIVE:
            failpoints.hit("group:unlocked")
        rung, self.rung = self.rung, []
        for uuid in rung:
            self._ring(uuid)
