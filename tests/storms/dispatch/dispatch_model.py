"""What is to be expected of a subscription, kept by whoever drives it in a simulation."""

from __future__ import annotations

from typing import Final, NamedTuple

from embeddedpulsar._engine.format.subscription_record import COMMITTED, TransactionId
from embeddedpulsar.message_id import BEFORE_FIRST, Position
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
        held: what open transactions acknowledged: bit sets by entry and transaction, -1 for a whole entry.
        through: the transaction that acknowledged cumulatively, up to which entry, and of that the bit set,
            -1 for the whole; None without one.
        decided: the outcomes of transactions, by id.
        must_ask: a cumulative acknowledgement aborted: what it had comes again when its consumer asks for it.
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
        self.held: dict[Position, dict[TransactionId, int]] = {}
        self.through: tuple[TransactionId, Position, int] | None = None
        self.decided: dict[TransactionId, int] = {}
        self.must_ask = False

    # -- transactions ------------------------------------------------------------------------------

    def hidden(self, position: Position) -> int:
        """The messages of an entry that open transactions acknowledged, as a bit set; -1 for all."""
        bits = 0
        for one in self.held.get(position, {}).values():
            bits |= one
        if self.through is not None and position <= self.through[1]:
            bits |= -1 if position < self.through[1] else self.through[2]
        return bits

    def is_free(self, entry: VirtualEntry) -> bool:
        """Whether a message of the entry may be delivered."""
        bits = self.hidden(entry.position) | self.partial.get(entry.position, 0)
        return entry.position not in self.acked and (1 << entry.count) - 1 & ~bits != 0

    @property
    def open_transactions(self) -> set[TransactionId]:
        """Those that hold something."""
        own = {one for holders in self.held.values() for one in holders}
        return own | ({self.through[0]} if self.through is not None else set())

    def end(self, transaction: TransactionId, is_counted: bool) -> list[Position]:
        """The subscription followed the end of a transaction; returns the entries that come again."""
        own = {
            position: holders.pop(transaction)
            for position, holders in self.held.items()
            if transaction in holders
        }
        self.held = {position: holders for position, holders in self.held.items() if holders}
        through = None
        if self.through is not None and self.through[0] == transaction:
            through, self.through = self.through, None
        entries = {one.position: one for one in self.log.entries}
        if self.decided.get(transaction) != COMMITTED:
            self.must_ask |= through is not None
            returned = [one for one in own if one not in self.acked and self._comes_again(entries[one])]
            for position in returned if is_counted else ():
                if entries[position].count:
                    self.count(position)
            return returned
        for position, bits in own.items():
            self._ack(entries[position], bits)
        if through is not None:
            for entry in self.log.entries[: self.log.index_of(through[1])]:
                self._ack(entry, -1)
            self._ack(entries[through[1]], through[2])
        return []

    def _comes_again(self, entry: VirtualEntry) -> bool:
        return self.is_free(entry) or (not entry.count and not self.hidden(entry.position))

    def _ack(self, entry: VirtualEntry, bits: int) -> None:
        whole = (1 << entry.count) - 1
        self.ack(entry.position, whole & bits, entry.count)

    # -- the rest ----------------------------------------------------------------------------------

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
        self.held.clear()
        self.through = None

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
        """The next entry that is not acknowledged."""
        entries = self.log.entries
        for entry in entries[self.log.index_of(after.next()) :]:
            if entry.count and entry.position not in self.acked and not entry.is_damaged:
                return entry.position
        return None

    def next_free(self, after: Position) -> Position | None:
        """The next entry that is to be delivered in order."""
        entries = self.log.entries
        for entry in entries[self.log.index_of(after.next()) :]:
            if entry.count and self.is_free(entry) and not entry.is_damaged:
                return entry.position
        return None
