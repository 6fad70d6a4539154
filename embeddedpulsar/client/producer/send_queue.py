"""The messages that one producer has accepted and not stored yet, in the order of storing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.producer.batch_container import (
    CALLBACK,
    BatchContainer,
    is_unbatchable,
    payload_of,
)
from embeddedpulsar.client.producer.pending_entry import PendingEntry
from embeddedpulsar.client.producer.send_state import SHUT, Event, SendState

if TYPE_CHECKING:
    from embeddedpulsar.client.producer.entry_encoder import EntryEncoder
    from embeddedpulsar.client.producer.sequence_keeper import SequenceIds


NO_BATCHES: Final = 1 << 62
"""A number of messages that no batch reaches."""
_MOST_ENTRIES: Final = 64
_MOST_BYTES: Final = 1 << 20
_MARKS = 100
"""Fractions of the timeout to which the age is known."""


class SendQueue:
    """The messages of a producer between `send_async` and the log.

    Role: three parts, stored in this order. The *group*: entries that are encoded and have sequence ids; at
    most `_MOST_ENTRIES` or about `_MOST_BYTES`, which one hold of the topic lock stores. The *singles*:
    messages that become entries of their own (all of an unbatched producer, and those with a delivery time,
    which precede the batch). The *box*: messages that become batches, and those with a delivery time and an
    explicit sequence id, which must not precede lower ids.

    Senders append to singles and box without a lock. All other operations need the producer's lock. The group
    is a list that replaces its messages at the front of their list. One slice assignment replaces them, so an
    interrupt leaves either the messages or their entries, never both.
    """

    __slots__ = ("_counts_bytes", "_ids", "_state", "box", "singles")

    def __init__(self, box: BatchContainer, state: SendState, ids: SequenceIds, counts_bytes: bool) -> None:
        self.box = box
        self.singles: list[Any] = []
        self._state = state
        self._ids = ids
        self._counts_bytes = counts_bytes

    def __len__(self) -> int:
        return sum(self.sizes())

    def sizes(self) -> list[int]:
        """Return how many messages wait to become entries of their own, and how many are in the box."""
        sizes = []
        for part in (self.singles, self.box.items):
            count = len(part)
            for first in part[:1]:  # one step, because other threads may be taking from the list
                if first.__class__ is list:
                    count += sum([out.count for out in tuple(first)]) - 1
            sizes.append(count)
        return sizes

    @property
    def is_empty(self) -> bool:
        return not self.singles and not self.box.items

    def group(self) -> list[PendingEntry] | None:
        """The encoded entries; None if there are none."""
        for part in (self.singles, self.box.items):
            for first in part[:1]:  # one step, because other threads may be taking from the list
                if first.__class__ is list:
                    return first
        return None

    def drop_group(self) -> list[Any] | None:
        """Remove the group, whose entries are stored or failed. Returns the list at whose front it was."""
        for part in (self.singles, self.box.items):
            if part and part[0].__class__ is list:
                del part[0]
                return part
        return None

    def encode(self, encoder: EntryEncoder, least: int) -> list[PendingEntry] | None:
        """Encode the next messages, and replace them by their entries, the next group.

        Args:
            encoder: of the producer.
            least: batches are encoded while at least this many of their messages are queued.

        Returns:
            The group; None if there is nothing to encode.
        """
        if self.singles:
            part = self.singles
            count, entries, following = self._encode_singles(encoder, self._ids.following)
        else:
            part = self.box.items
            count, entries, following = self._encode_batches(encoder, self._ids.following, least)
        if not count:
            return None
        if part is self.box.items and self.box.on_left is not None:
            self.box.on_left()
        self._state.to(Event.QUEUE)
        self._ids.following = following
        part[:count] = [entries]  # one step: the messages now have ids, and are not encoded again
        return entries

    def _encode_singles(self, encoder: EntryEncoder, first: int) -> tuple[int, list[PendingEntry], int]:
        entries: list[PendingEntry] = []
        size = 0
        for item in self.singles[:_MOST_ENTRIES]:
            payload = payload_of(item)
            size += len(payload)
            if entries and size > _MOST_BYTES:
                break
            out, first = encoder.encode_single_item(item, first)
            if self._counts_bytes:
                out.reserved = len(payload)
            entries.append(out)
        return len(entries), entries, first

    def _encode_batches(
        self, encoder: EntryEncoder, first: int, least: int
    ) -> tuple[int, list[PendingEntry], int]:
        box = self.box
        items, taken, size = box.items, 0, 0
        entries: list[PendingEntry] = []
        while len(items) - taken >= least and len(entries) < _MOST_ENTRIES and size < _MOST_BYTES:
            count = box.cut(taken)
            if not count:
                break
            batch = items[taken : taken + count]
            mixed, box.mixed = box.mixed, taken + count < len(items)
            if box.has_unbatchable and is_unbatchable(batch[0]):
                out, following = encoder.encode_single_item(batch[0], first)
                encoded = [out]
            else:
                encoded, following = encoder.encode(batch, mixed, first)
            added, has_failed = 0, False
            for out in encoded:
                has_failed = has_failed or out.error is not None
                added += 0 if out.encoded is None else out.encoded.size
            if has_failed and box.share != SHUT:
                box.on_large()  # a large message was added without the lock: measure again, by size
                continue
            first = following
            if self._counts_bytes:
                encoded[-1].reserved = sum(len(payload_of(item)) for item in batch)
            entries += encoded
            size += added
            taken += count
        return taken, entries, first

    def take_all(self) -> list[Any]:
        """Empty all parts, and return messages and groups, in order."""
        singles, items = self.singles, self.box.items
        taken = [singles[:], items[:]]
        del singles[: len(taken[0])], items[: len(taken[1])]
        group_first = taken[1] and taken[1][0].__class__ is list
        return [taken[1][0], *taken[0], *taken[1][1:]] if group_first else taken[0] + taken[1]


def fate_of(item: Any, error: BaseException) -> PendingEntry:
    """Return a failed entry for a message that was not encoded."""
    callback = item[CALLBACK] if item.__class__ is tuple else None
    return PendingEntry(None, 1, -1, -1, None if callback is None else [callback], False, error)


class SendDeadline:
    """The ages of queued messages, kept as marks: a mark is a number of messages and a time.

    Role: determines when the send timeout of the oldest message is over, without a time in every message.
    Times are those of the caller's clock, in seconds. Empty while no message is queued, which is usual.
    A message between two marks counts as old as the later mark, so no message fails too early, and each
    fails at most a hundredth of the timeout too late.

    >>> deadline = SendDeadline(30.0)
    >>> deadline.note(2, 100.0); deadline.note(3, 110.0)
    >>> deadline.at
    130.0
    >>> deadline.passed(2); deadline.at
    140.0
    >>> deadline.clear(); deadline.at is None
    True
    """

    __slots__ = ("_grain", "_out", "_timeout_s", "marks")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._grain = timeout_s / _MARKS
        self.marks: list[tuple[int, float]] = []  # few; a deque would take 0.7 KiB when empty
        self._out = 0

    def note(self, waiting: int, now: float) -> None:
        """Record that ``waiting`` messages are queued, the last of them since ``now``."""
        marks = self.marks
        if not self._timeout_s:
            return
        if not marks:
            marks.append((self._out, now))
        elif now - marks[-1][1] >= self._grain:
            marks.append((self._out + waiting - 1, now))

    def passed(self, count: int) -> None:
        """Record that the oldest ``count`` messages have left the queue."""
        self._out += count
        marks = self.marks
        while len(marks) > 1 and marks[1][0] <= self._out:
            del marks[0]

    def clear(self) -> None:
        """Record that the queue is empty."""
        self.marks.clear()

    @property
    def at(self) -> float | None:
        """The time at which the oldest message fails; None for never."""
        marks = self.marks
        if not marks:
            return None
        exact = marks[0][0] >= self._out
        return marks[0][1] + self._timeout_s + (0.0 if exact else self._grain)
