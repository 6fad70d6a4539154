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
_CLOSED: Final = -1


class BatchContainer:
    """A list of messages, and the limits at which it becomes a batch.

    Role: senders append to `items` without a lock (one atomic call). The thread that flushes holds the
    producer's lock and takes messages from the front. An item is the payload alone, or a tuple (payload,
    callback, options).

    Messages up to `share` bytes need no accounting, because ``max_messages`` of them stay within
    ``max_bytes``. The first larger one switches the accounting on (`share` becomes -1) until the container is
    flushed; the sizes of the earlier messages are then added up once. So the limits are exact for one
    sender, and small messages cost no accounting.

    Invariants: `items` is the same list throughout. A list at its front is a group of encoded entries that
    could not be stored yet; the next flush begins with it.

    Attributes:
        share: largest payload a sender may append without the lock; -1 sends every message to the slow path.
        trigger: number of items at which the sender must flush.
        armed: whether the publish-delay timer runs.
        mixed: whether some item may be a tuple; a hint only, because encoding detects tuples.
        has_unbatchable: whether some item may be a message with a delivery time, which is a batch by itself;
            never reset, because senders set it without the lock.
        on_left: called, under the producer's lock, when a batch was taken from the front.
    """

    __slots__ = (
        "_bytes",
        "_counted",
        "_share",
        "armed",
        "has_unbatchable",
        "items",
        "max_bytes",
        "mixed",
        "on_left",
        "share",
        "trigger",
    )

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.items: list[Any] = []
        self.trigger = max_messages
        self.max_bytes = max_bytes
        self._share = max_bytes // max_messages
        self.share = self._share
        self.armed = False
        self.mixed = self.has_unbatchable = False
        self._counted = 0
        self._bytes = 0
        self.on_left: Callable[[], object] | None = None

    def __repr__(self) -> str:
        return f"<BatchContainer {len(self.items)} messages waiting>"

    def has_room(self, size: int) -> bool:
        """Whether a message of ``size`` bytes fits into the batch. Call under the producer's lock."""
        self._count_up()
        return not self.items or self._bytes + size <= self.max_bytes

    def add(self, item: bytes | Item, size: int) -> bool:
        """Append a message, and return whether the container is full. Call under the producer's lock."""
        if item.__class__ is tuple:
            self.mixed = True
        self.items.append(item)
        if size > self._share and self.share != _CLOSED:
            self.share = _CLOSED
        if self.share == _CLOSED:
            self._count_up()
        return self._bytes >= self.max_bytes or len(self.items) >= self.trigger

    def add_unlocked(self, item: bytes | Item, size: int) -> None:
        """Append a message while another thread has the producer's lock."""
        self.mixed = True
        self.items.append(item)
        if size > self._share:
            self.share = _CLOSED  # after the append: `settle` first resets `share`, then looks at the items

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
        if self.share != _CLOSED:
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
        self._counted = self._bytes = 0
        if self.share != self._share:
            self.share = self._share
            if any(len(payload_of(item)) > self._share for item in self.items):
                self.share = _CLOSED

    def left(self) -> None:
        """Report that a batch was taken from the front, or was due. Call under the producer's lock."""
        if self.on_left is not None:
            self.on_left()

    def hold_up(self) -> None:
        """Send messages to the slow path until the next `settle`, because the batch cannot be stored now."""
        self.share = _CLOSED

    def count_bytes(self) -> bool:
        """Switch the accounting on. Returns True if it was off."""
        was_off, self.share = self.share != _CLOSED, _CLOSED
        return was_off

    def slow_only(self) -> None:
        """Send every message to the slow path, which has further checks."""
        self._share = self.share = _CLOSED

    def _count_up(self) -> None:
        items = self.items
        for item in items[self._counted :]:
            self._bytes += len(payload_of(item))
            self._counted += 1


def is_unbatchable(item: Any) -> bool:
    """Whether an item is a message with a delivery time, which must not delay other messages."""
    return item.__class__ is tuple and len(item) > FIRST_OPTION and bool(item[FIRST_OPTION + DELIVER_AT])


def payload_of(item: Any) -> bytes:
    """The payload of an item; empty for a group that is already encoded."""
    if item.__class__ is tuple:
        return item[0]  # type: ignore[no-any-return]
    return b"" if item.__class__ is list else item
