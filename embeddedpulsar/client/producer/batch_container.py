"""The messages of one producer that wait for their batch.

Hot: `Producer.send_async` works on the fields of the container.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.common.message_options import DELIVER_AT

if TYPE_CHECKING:
    from collections.abc import Callable

Item = tuple[Any, ...]
"""(payload, callback), or (payload, callback, *options)."""
VALUE, CALLBACK = 0, 1
FIRST_OPTION = 2
_SHUT: Final = -1


class BatchContainer:
    """A list of messages, and what triggers that it becomes a batch: number, bytes, and age.

    Role: senders append to `items` without a lock (one atomic call). The thread that flushes holds the
    producer's lock and takes messages from the front. An item is the payload alone, or a tuple (payload,
    callback, options).

    Messages up to `limit` bytes need no accounting, because ``max_messages`` of them stay within
    ``max_bytes``. The first larger one switches the accounting on (`State.COUNTING`) until the container is
    flushed; the sizes of the earlier messages are then added up once. So the limits are exact for one
    sender, and small messages cost no accounting.

    Invariants: `items` is the same list throughout. A list at its front is a group of encoded entries that
    could not be stored yet; the next flush begins with it.

    Attributes:
        share: largest payload a sender may append without the lock; set by the `SendState` of the producer.
        limit: its value while that is allowed; -1 if the options of the producer do not allow it.
        trigger: number of items at which the sender must flush.
        armed: whether the publish-delay timer runs.
        mixed: whether some item may be a tuple; a hint only, because encoding detects tuples.
        counted: number of items whose bytes are counted.
        has_unbatchable: whether some item may be a message with a delivery time, which is a batch by itself;
            never reset, because senders set it without the lock.
        partition: of the topic; 0 without partitions.
        arm: starts the publish-delay timer.
        on_full: called by the sender that reached `trigger`.
        on_large: called when a message larger than `limit` was added.
        on_left: called, under the producer's lock, when a batch was taken from the front.
    """

    __slots__ = (
        "_bytes",
        "arm",
        "armed",
        "counted",
        "has_unbatchable",
        "items",
        "limit",
        "max_bytes",
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
        self.trigger = max_messages
        self.max_bytes = max_bytes
        self.share = self.limit = max_bytes // max_messages
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
        self.add_unlocked(item, size)
        if self.share == _SHUT:
            self._count_up()
        return self._bytes >= self.max_bytes or len(self.items) >= self.trigger

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
        most = min(self.trigger, len(items) - start)
        if self.has_unbatchable:
            for count in range(most):
                if is_unbatchable(items[start + count]):
                    most = max(count, 1)
                    break
        if self.share != _SHUT:
            return most
        total = 0
        for count in range(most):
            size = len(payload_of(items[start + count]))
            if count and total + size > self.max_bytes:
                return count
            total += size
        return most

    def settle(self) -> None:
        """Note that messages were taken from the front. Call under the producer's lock."""
        self.counted = self._bytes = 0

    def has_large(self) -> bool:
        """Whether a message needs accounting."""
        return any(len(payload_of(item)) > self.limit for item in self.items)

    def left(self) -> None:
        if self.on_left is not None:
            self.on_left()

    def _count_up(self) -> None:
        items = self.items
        for item in items[self.counted :]:
            self._bytes += len(payload_of(item))
            self.counted += 1


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
