"""The ids of many messages, kept as one range for each entry."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from embeddedpulsar.message_id import MessageId, make


class SentMessages(Sequence[MessageId]):
    """The messages that `Producer.send_many` or `send_arrow` stored: ids in the order of the values.

    It takes about 30 bytes per entry, independent of the number of messages; an id is created on access, in
    about 1 us. With regrouped messages (key-based batching, partitions) it takes 8 more bytes per message.

    Immutable once it is returned. As ``stored`` of an exception it contains the messages stored before:
    message ``i`` is the value `numbers()[i]`.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     sent = client.create_producer("orders").send_many([b"one", b"two"])
        >>> len(sent), sent[1].batch_index(), sent.entries() == 1
        (2, 1, True)
    """

    __slots__ = ("_ends", "_entries", "_ledgers", "_numbers", "_partitions", "_ranks")

    def __init__(self) -> None:
        self._partitions = array("q")
        self._ledgers = array("q")
        self._entries = array("q")
        self._ends = array("q")  # number of messages up to and including the entry
        self._numbers: array[int] | None = None  # of values, in the order of storing; None if unchanged
        self._ranks: list[int] | None = None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> list[MessageId]: ...

    def __getitem__(self, index: int | slice) -> MessageId | list[MessageId]:
        size = len(self)
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(size))]
        if index < 0:
            index += size
        if not 0 <= index < size:
            raise IndexError(f"message {index} of {size}")
        rank = index if self._numbers is None else self._in_order(self._numbers)[index]
        return self._at(bisect_right(self._ends, rank), rank)

    def __iter__(self) -> Iterator[MessageId]:
        if self._numbers is not None:
            for rank in self._in_order(self._numbers):
                yield self._at(bisect_right(self._ends, rank), rank)
            return
        start = 0
        for at, end in enumerate(self._ends):
            for rank in range(start, end):
                yield self._at(at, rank)
            start = end

    def entries(self) -> int:
        """Return the number of entries that were stored."""
        return len(self._ends)

    def numbers(self) -> Sequence[int]:
        """Return the indexes of the stored values, ascending: all, unless an error ended the call."""
        if self._numbers is None:
            return range(len(self))
        return sorted(self._numbers[: len(self)])

    def add(self, partition: int, ledger: int, entry: int, numbers: Sequence[int]) -> None:
        """Add an entry with the indexes of its values. Called by the publisher.

        After an interrupt within this method, the publisher calls it again.
        """
        noted, size = len(self._ends), len(self)
        del self._partitions[noted:], self._ledgers[noted:], self._entries[noted:]
        if self._numbers is None and not (isinstance(numbers, range) and numbers.start == size):
            self._numbers = array("q", range(size))
        if self._numbers is not None:
            del self._numbers[size:]
            self._numbers.extend(numbers)
        self._ranks = None
        self._partitions.append(partition)
        self._ledgers.append(ledger)
        self._entries.append(entry)
        self._ends.append(size + len(numbers))

    def ends_with(self, ledger: int, entry: int) -> bool:
        """Return whether that entry was the last one added."""
        return bool(self._ends) and (self._ledgers[-1], self._entries[-1]) == (ledger, entry)

    def _at(self, at: int, rank: int) -> MessageId:
        ledger, partition, end = self._ledgers[at], self._partitions[at], self._ends[at]
        start = self._ends[at - 1] if at else 0
        if ledger < 0:  # a duplicate, which was not stored again
            return make(ledger, self._entries[at], -1, partition, 0)
        return make(ledger, self._entries[at], rank - start, partition, end - start)

    def _in_order(self, numbers: array[int]) -> list[int]:
        """Return the position of each value in the order of storing."""
        ranks = self._ranks
        if ranks is None:
            ranks = self._ranks = sorted(range(len(self)), key=numbers.__getitem__)
        return ranks

    def __repr__(self) -> str:
        return f"<SentMessages {len(self)} in {self.entries()} entries>"
