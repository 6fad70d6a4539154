"""The messages that one producer has accepted and not stored yet, in the order of storing.

Hot: `Producer.send_async` works on the fields of the container.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, auto
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.producer.pending_entry import VALUE, Item, PendingEntry, is_unbatchable, payload_of

if TYPE_CHECKING:
    from embeddedpulsar.client.producer.entry_encoder import EntryEncoder
    from embeddedpulsar.client.producer.sequence_ids import SequenceIds


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


SHUT: Final = -1
"""In place of a limit, which no payload is within, or of a journal word, which no topic has."""


class State(IntEnum):
    """What the next message of a producer has to observe."""

    OPEN = auto()
    """Nothing."""
    SAMPLED = auto()
    """The time of the next messages that are sent one by one is measured."""
    QUEUED = auto()
    """Messages or encoded entries are queued, which must be stored first."""
    COUNTING = auto()
    """The batch has large messages, so the bytes of each further one count."""
    HELD_UP = auto()
    """The topic is locked, or belongs to the parent of a forked child: everything is queued."""
    CLOSED = auto()
    """The producer is closed."""


class Event(IntEnum):
    """What changes the state."""

    SAMPLE = auto()
    QUEUE = auto()
    COUNT = auto()
    HOLD_UP = auto()
    SETTLE = auto()
    """Nothing is queued that must be stored first. The caller looks again afterwards."""
    CLOSE = auto()


def _row(sample: State, queue: State, count: State, hold_up: State, settle: State) -> dict[Event, State]:
    return dict(zip(Event, (sample, queue, count, hold_up, settle, State.CLOSED), strict=True))


_S: Final = State
TRANSITIONS: Final = {
    #                    SAMPLE       QUEUE        COUNT        HOLD_UP     SETTLE
    _S.OPEN: _row(_S.SAMPLED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.SAMPLED: _row(_S.SAMPLED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.QUEUED: _row(_S.QUEUED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.COUNTING: _row(_S.COUNTING, _S.COUNTING, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.HELD_UP: _row(_S.HELD_UP, _S.HELD_UP, _S.HELD_UP, _S.HELD_UP, _S.OPEN),
    _S.CLOSED: _row(_S.CLOSED, _S.CLOSED, _S.CLOSED, _S.CLOSED, _S.CLOSED),
}
"""The state after each event. A state that closes more stays until `Event.SETTLE`."""

PATHS: Final = {
    _S.OPEN: (True, True),
    _S.SAMPLED: (False, True),
    _S.QUEUED: (False, True),
    _S.COUNTING: (False, False),
    _S.HELD_UP: (False, False),
    _S.CLOSED: (False, False),
}
"""Whether a message may be appended at once, and whether it may join the batch without the lock."""


class SendState:
    """The state of one producer, in the form in which the hot paths read it.

    Role: a hot path compares one limit, or one word, and finds it `SHUT` if the message has to take the slow
    path. So a state costs the hot paths no test of its own. It is the guard of their appends, too
    (`AppendGuard`).

    Invariants: any thread may call `to`, without a lock. Two threads may overwrite the state of each other;
    this can leave a path closed until the next `SETTLE`, which is harmless. It cannot leave a path open: the
    thread that queues a message appends it before its event, and the thread that settles looks at the queue
    after its event. A closed producer has no limits, so every state keeps its paths closed.

    Attributes:
        now: the state.
        alone_max: largest payload that may be appended at once.
        alone_most: its value while the path is open; `SHUT` if the options need the slow path.
        checked: the journal word of the topic with which a message may be appended at once.
        check_connected: called under the topic's lock if the journal word is another one.
        is_closed: whether the producer is closed; never reset.
    """

    __slots__ = (
        "_batch",
        "_is_limited",
        "_verified",
        "alone_max",
        "alone_most",
        "check_connected",
        "checked",
        "is_closed",
        "now",
    )

    check_connected: Callable[[], None]

    def __init__(self, batch: BatchContainer) -> None:
        self._batch = batch
        self._verified = self.checked = self.alone_max = self.alone_most = SHUT
        self.is_closed = self._is_limited = False
        self.now = State.OPEN
        batch.on_large = partial(self.to, Event.COUNT)

    def to(self, event: Event) -> None:
        now = TRANSITIONS[self.now][event]
        alone, batch = PATHS[now]
        alone = alone and not self._is_limited
        self.checked = self._verified if alone else SHUT
        self.alone_max = self.alone_most if alone else SHUT
        self._batch.share = self._batch.limit if batch else SHUT
        self.now = now
        # Last, behind the opening: `limit`, in another thread, notes the limit before it closes the path.
        if self._is_limited:
            self.checked = self.alone_max = SHUT

    def verified(self, word: int) -> None:
        """Note the journal word with which this producer was found connected. Under the producer's lock."""
        self._verified = word
        if PATHS[self.now][0]:
            self.checked = word
            if self._is_limited:  # behind the opening, as in `to`
                self.checked = SHUT

    def limit(self, is_limited: bool) -> None:
        """Keep messages from being appended at once while the topic has a publish rate. Any thread.

        When the topic has none any more, the path opens with the next `SETTLE`."""
        self._is_limited = is_limited
        if is_limited:
            self.checked = self.alone_max = SHUT

    def narrow(self, *, alone: bool = True, batch: bool = True) -> None:
        """Close paths for ever, because their messages need further checks."""
        if alone:
            self.alone_max = self.alone_most = SHUT
        if batch:
            self._batch.share = self._batch.limit = SHUT

    def close(self) -> None:
        """Close all paths for ever. Under the producer's lock."""
        self.is_closed = True
        self._verified = SHUT
        self.narrow()
        self.to(Event.CLOSE)


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
