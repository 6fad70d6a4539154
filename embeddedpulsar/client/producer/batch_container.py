"""The messages of one producer that wait for their batch.

Hot: `Producer.send_async` works on the fields of the container.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.common.message_options import DELIVER_AT

if TYPE_CHECKING:
    from collections.abc import Callable

Item = tuple[Any, ...]
"""(payload, callback), or (payload, callback, *options)."""
VALUE, CALLBACK = 0, 1
FIRST_OPTION = 2
_SHUT: Final = -1
_PLAIN: Final = {bytes}
_TUPLES: Final = {tuple}
_value_of: Final = itemgetter(VALUE)
_FEW: Final = 16
"""If fewer messages of a size fit into a batch, each of them is measured."""


class BatchContainer:
    """A list of messages, and what triggers that it becomes a batch: number, bytes, and age.

    Role: senders append to `items` without a lock (one atomic call). The thread that flushes holds the
    producer's lock and takes messages from the front. An item is the payload alone, or a tuple (payload,
    callback, options).

    The container measures its messages only now and then, under the producer's lock. Each time it allots
    the rest of ``max_bytes`` to as many messages of at most `share` bytes as fit: so many may be appended
    without the lock and without accounting, before the sender of the last one has them measured (`is_full`).
    The sender of a larger message takes the lock, too. `share` follows the sizes that were seen, and becomes
    smaller with the room left. So the limits are exact for one sender, and most messages cost no accounting.
    If several threads add large messages at once, each message is measured (`State.COUNTING`) until the
    container is flushed.

    Invariants: `items` is the same list throughout. A list at its front is a group of encoded entries that
    could not be stored yet; the next flush begins with it.

    Attributes:
        share: largest payload a sender may append without the lock; set by the `SendState` of the producer.
        limit: its value while that is allowed; -1 if the options of the producer do not allow it.
        trigger: number of items at which the sender must call `on_full`.
        armed: whether the publish-delay timer runs.
        mixed: whether some item may be a tuple; a hint only, because encoding detects tuples.
        counted: number of items whose bytes are counted.
        has_unbatchable: whether some item may be a message with a delivery time, which is a batch by itself;
            never reset, because senders set it without the lock.
        partition: of the topic; 0 without partitions.
        arm: starts the publish-delay timer.
        on_full: called by the sender that reached `trigger`; the batch is full or must be measured.
        on_large: called when a message larger than `limit` was added.
        on_left: called, under the producer's lock, when a batch was taken from the front.
    """

    __slots__ = (
        "_bytes",
        "_fair",
        "_usual",
        "arm",
        "armed",
        "counted",
        "has_unbatchable",
        "items",
        "limit",
        "max_bytes",
        "max_messages",
        "mixed",
        "on_full",
        "on_large",
        "on_left",
        "partition",
        "share",
        "trigger",
    )

    arm: Callable[[], object]
    on_full: Callable[[], object]
    on_large: Callable[[], object]

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.items: list[Any] = []
        self.trigger = self.max_messages = max_messages
        self.max_bytes = max_bytes
        # All messages of at most the fair share fit, whatever their number.
        self._fair = self._usual = self.share = self.limit = max_bytes // max_messages
        self.armed = self.mixed = self.has_unbatchable = False
        self.partition = 0
        self.counted = 0
        self._bytes = 0
        self.on_left: Callable[[], object] | None = None

    def has_room(self, size: int) -> bool:
        """Whether a message of ``size`` bytes fits into the batch. Call under the producer's lock."""
        self._count_up()
        return not self.items or self._bytes + size <= self.max_bytes

    def add(self, item: bytes | Item, size: int) -> bool:
        """Append a message, and return whether the container is full. Call under the producer's lock."""
        if item.__class__ is tuple:
            self.mixed = True
        self.items.append(item)
        if self._usual < size <= self.max_bytes // _FEW:
            self._usual = size + (size >> 3)
        return self.is_full()

    def is_full(self) -> bool:
        """Measure the messages, and allot the room that is left. Call under the producer's lock."""
        self._count_up()
        left, room = self.max_messages - len(self.items), self.max_bytes - self._bytes
        if left <= 0 or room <= 0:
            return True
        limit = min(self._usual, max(room // 2, room // left))
        self.trigger = len(self.items) + (min(left, room // limit) if limit else left)
        if self.limit != _SHUT:
            self.limit = limit
            if self.share != _SHUT:
                self.share = limit
        return False

    def add_row(self, row: Item) -> None:
        """Append a message with options whose payload is within `share`, without the lock. Hot."""
        items = self.items
        self.mixed = True
        items.append(row)
        if len(items) >= self.trigger:
            self.on_full()
        elif not self.armed:
            self.arm()

    def add_unlocked(self, item: bytes | Item, size: int) -> None:
        """Append a message while another thread has the producer's lock."""
        if item.__class__ is tuple:
            self.mixed = True
        self.items.append(item)
        if size > self.limit and self.share != _SHUT:
            self.on_large()  # after the append: a thread that settles opens the path, then looks at the items

    def add_unbatchable(self, item: Item) -> None:
        """Append a message that needs its own entry and must be stored after the messages before it."""
        self.has_unbatchable = self.mixed = True
        self.items.append(item)

    def cut(self, start: int) -> int:
        """Return how many of the messages from index ``start`` on form the next batch."""
        items = self.items
        most = min(self.max_messages, len(items) - start)
        if self.has_unbatchable:
            for count in range(most):
                if is_unbatchable(items[start + count]):
                    most = max(count, 1)
                    break
        if not self.counted and self.share == self._fair:
            return most  # no message is larger than the fair share
        self._count_up()
        if most == len(items) and self._bytes <= self.max_bytes:
            return most
        total = 0
        for count in range(most):
            size = len(payload_of(items[start + count]))
            if count and total + size > self.max_bytes:
                return count
            total += size
        return most

    def settle(self) -> None:
        """Measure what is left after messages were taken from the front. Call under the producer's lock."""
        if 2 * self._bytes < self.counted * self._usual:
            self._usual = max(self._usual >> 1, self._fair)  # larger messages have become rare
        self.counted = self._bytes = 0
        if self.items:
            self.is_full()
        elif self.limit != _SHUT:
            self.trigger = self.max_bytes // self._usual if self._usual > self._fair else self.max_messages
            self.limit = self._usual
            if self.share != _SHUT:
                self.share = self._usual

    def left(self) -> None:
        if self.on_left is not None:
            self.on_left()

    def _count_up(self) -> None:
        new = self.items[self.counted :]
        types = set(map(type, new))
        payloads = new if types == _PLAIN else map(_value_of if types == _TUPLES else payload_of, new)
        self._bytes += sum(map(len, payloads))
        self.counted += len(new)


def shut_batch(partition: int) -> BatchContainer:
    """Return the batch of a partition that is not attached. It accepts no message."""
    batch = BatchContainer(1, 0)
    batch.share = batch.limit = _SHUT
    batch.partition = partition
    return batch


def is_unbatchable(item: Any) -> bool:
    """Whether an item is a message with a delivery time, which must not delay other messages."""
    return item.__class__ is tuple and len(item) > FIRST_OPTION and bool(item[FIRST_OPTION + DELIVER_AT])


def payload_of(item: Any) -> bytes:
    """The payload of an item; empty for a group that is already encoded."""
    if item.__class__ is tuple:
        return item[0]  # type: ignore[no-any-return]
    return b"" if item.__class__ is list else item
