"""What is to be expected of a subscription, kept by whoever drives it in a simulation."""

from __future__ import annotations

from typing import Final, NamedTuple

from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from tests.storms.dispatch.virtual_log import VirtualEntry, VirtualLog


class Seen(NamedTuple):
    """A copy of what matters of a replica, between two steps.

    Attributes:
        members: code of each attached consumer.
        priorities: and its priority level, in order of attachment.
        owners: state of each entry that was read and is not acknowledged.
        counts: redeliveries of those.
        read: the read position.
        mark_delete: the mark-delete position.
        epoch: of the subscription.
    """

    members: dict[int, int]
    owners: dict[Position, int]
    counts: dict[Position, int]
    read: Position
    mark_delete: Position
    epoch: int


NOTHING: Final = Seen({}, {}, {}, BEFORE_FIRST, BEFORE_FIRST, 0)


class DispatchModel:
    """Acknowledgements, redelivery counts and first deliveries, kept the simple way.

    Attributes:
        acked: entries acknowledged as a whole.
        partial: acknowledged indexes of others.
        counts: redeliveries, where there were any.
        first: per key, the last of the entries that were handed out for the first time.
        handed: entries that were handed out.
        joined: where consumers joined that are held back, by the classic rule.
        latest_ms: the latest wall time there was.
    """

    def __init__(self, log: VirtualLog) -> None:
        self.log: Final = log
        self.acked: set[Position] = set()
        self.partial: dict[Position, int] = {}
        self.counts: dict[Position, int] = {}
        self.first: dict[int, Position] = {}
        self.handed: set[Position] = set()
        self.joined: dict[int, Position] = {}
        self.latest_ms = 0

    def ack(self, position: Position, indexes: int, count: int) -> None:
        """Messages of an entry are acknowledged."""
        if position in self.acked:
            return
        together = self.partial.get(position, 0) | indexes
        if together == (1 << count) - 1:
            self.acked.add(position)
            self.partial.pop(position, None)
            self.counts.pop(position, None)
        else:
            self.partial[position] = together

    def seek(self, target: Position) -> None:
        """Everything up to ``target`` is acknowledged, and nothing else."""
        self.acked = {entry.position for entry in self.log.entries if entry.position <= target}
        self.partial.clear()
        self.counts.clear()
        self.joined.clear()

    def count(self, position: Position) -> None:
        """An entry came back, and it counts."""
        self.counts[position] = self.counts.get(position, 0) + 1

    def unacked(self) -> list[VirtualEntry]:
        """Entries that are to be delivered."""
        return [
            one
            for one in self.log.entries
            if one.count and one.position not in self.acked and not one.is_damaged
        ]

    def next_unacked(self, after: Position) -> Position | None:
        """The next entry that is to be delivered in order."""
        entries = self.log.entries
        for entry in entries[self.log.index_of(after.next()) :]:
            if entry.count and entry.position not in self.acked and not entry.is_damaged:
                return entry.position
        return None
