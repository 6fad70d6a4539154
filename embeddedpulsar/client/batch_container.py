"""The messages of one producer that wait to become a batch.

Hot: `Producer.send_async` works on the fields of the container.
"""

from __future__ import annotations

from typing import Any, Final

from embeddedpulsar.client.message_options import NO_OPTIONS, SEQUENCE_ID, make_content, transposed
from embeddedpulsar.client.outgoing import Outgoing, SendCallback
from embeddedpulsar.exceptions import MessageTooBig
from embeddedpulsar.format.entry import ProducerPrefix, encode, encode_plain

Item = tuple[Any, ...]
"""(payload, callback), or (payload, callback, *options)."""
_VALUE, _CALLBACK = 0, 1
_FIRST_OPTION = 2
_KEYS = slice(_FIRST_OPTION + 1, _FIRST_OPTION + 3)
_CLOSED: Final = -1


class BatchContainer:
    """A list of messages, and the limits at which it becomes a batch.

    Role: senders append to `items` without a lock (one atomic call); whoever flushes holds the producer's
    lock and takes messages from the front. An item is the payload alone, or a tuple (payload, callback,
    options).

    Messages up to `share` bytes need no accounting, because ``max_messages`` of them stay within
    ``max_bytes``. The first larger one switches the accounting on (`share` becomes -1) until the container is
    flushed, and the sizes of the messages before it are then added up once. So the limits hold exactly for
    one sender, and small messages pay nothing for them.

    Invariants: `items` is the same list for life. A list at its front is an encoded batch that an interrupt
    stopped half-way; the next flush settles it first.

    Attributes:
        share: largest payload a sender may append without the lock; -1 for "come to the slow path".
        trigger: number of items at which the sender must flush.
        armed: the publish-delay timer runs.
        mixed: some item may be a tuple; only a hint, encoding notices by itself.
    """

    __slots__ = ("_bytes", "_counted", "_share", "armed", "items", "max_bytes", "mixed", "share", "trigger")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.items: list[Any] = []
        self.trigger = max_messages
        self.max_bytes = max_bytes
        self._share = max_bytes // max_messages
        self.share = self._share
        self.armed = False
        self.mixed = False
        self._counted = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<BatchContainer {len(self.items)} messages waiting>"

    def has_room(self, size: int) -> bool:
        """Whether a message of ``size`` bytes may join what waits. Call under the producer's lock."""
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

    def settle(self) -> None:
        """Note that messages were taken from the front. Call under the producer's lock."""
        self._counted = self._bytes = 0
        self.share = self._share

    def close(self) -> list[Any]:
        """Send every later message to the slow path, and return what was waiting."""
        self._share = self.share = _CLOSED
        items = self.items[:]
        del self.items[: len(items)]
        return items

    def slow_only(self) -> None:
        """Let no message skip the slow path, where there is more to check."""
        self._share = self.share = _CLOSED

    def _count_up(self) -> None:
        items = self.items
        for item in items[self._counted :]:
            self._bytes += len(payload_of(item))
            self._counted += 1


def payload_of(item: Any) -> bytes:
    """The payload of an item; empty for a batch that is on its way already."""
    if item.__class__ is tuple:
        return item[0]  # type: ignore[no-any-return]
    return b"" if item.__class__ is list else item


class BatchEncoder:
    """Turns items into entries: assigns the automatic sequence ids and groups by key where that is asked for.

    Stateless but for its options; used under the producer's lock. Encoding fails for nothing that the checks
    of a send let through, except size, which is noted in the entry concerned.
    """

    __slots__ = ("_codec", "_key_based", "_max_size", "_prefix")

    def __init__(self, prefix: ProducerPrefix, codec: int, key_based: bool, max_size: int) -> None:
        self._prefix = prefix
        self._codec = codec
        self._key_based = key_based
        self._max_size = max_size

    def encode(self, items: list[Any], mixed: bool, first: int) -> tuple[list[Outgoing], int]:
        """Encode one batch: one entry, or with key-based batching one per key, by first sequence id.

        Args:
            items: payloads, and tuples if ``mixed``.
            mixed: whether to look for tuples; a wrong False is noticed.
            first: the next automatic sequence id.

        Returns:
            The entries, and the automatic id that follows.
        """
        if not mixed and not self._codec:
            try:
                encoded = encode_plain(items, first, self._prefix)
            except TypeError:
                return self.encode(items, True, first)  # a tuple came in while the hint was being reset
            following = first + len(items)
            return [self._checked(Outgoing(encoded, len(items), first, following - 1, None, True))], following
        whole = [item if item.__class__ is tuple else (item, None) for item in items]
        if self._codec or max(map(len, whole)) > _FIRST_OPTION:
            rows = [
                item if len(item) > _FIRST_OPTION else (item[_VALUE], item[_CALLBACK], *NO_OPTIONS)
                for item in whole
            ]
            return self._encode_rich(rows, first)
        values, callbacks = transposed(whole)
        following = first + len(values)
        out = Outgoing(
            encode_plain(values, first, self._prefix),
            len(values),
            first,
            following - 1,
            _if_any(callbacks),
            True,
        )
        return [self._checked(out)], following

    def _encode_rich(self, rows: list[Item], first: int) -> tuple[list[Outgoing], int]:
        columns = transposed(rows)
        ids, following = _assign(columns[_FIRST_OPTION + SEQUENCE_ID], first)
        if not self._key_based:
            return [self._encode_columns(columns, ids)], following
        groups: dict[str, list[int]] = {}
        for i, (key, ordering_key) in enumerate(zip(*columns[_KEYS], strict=True)):
            groups.setdefault(ordering_key or key or "", []).append(i)
        outgoing = [
            self._encode_columns(
                [[column[i] for i in members] for column in columns], [ids[i] for i in members]
            )
            for members in groups.values()
        ]
        return outgoing, following

    def _encode_columns(self, columns: list[list[Any]], ids: list[int]) -> Outgoing:
        values, callbacks = columns[:_FIRST_OPTION]
        content = make_content(values, columns[_FIRST_OPTION:], ids, True)
        encoded = encode(content, self._prefix, self._codec)
        return self._checked(Outgoing(encoded, len(values), ids[0], ids[-1], _if_any(callbacks), True))

    def _checked(self, outgoing: Outgoing) -> Outgoing:
        encoded = outgoing.encoded
        if encoded is not None and encoded.size > self._max_size:
            outgoing.error = too_big("batch", encoded.size, self._max_size)
        return outgoing


def too_big(what: str, size: int, limit: int) -> MessageTooBig:
    """The error for a message or batch beyond ``maxMessageSize``."""
    return MessageTooBig(
        f"the {what} has {size} bytes with its metadata and maxMessageSize is {limit}; "
        "send less at once, or raise maxMessageSize in broker.conf"
    )


def _if_any(callbacks: list[SendCallback | None]) -> list[SendCallback | None] | None:
    """The callbacks, or None if there is none. (A callable may be false: an empty list with a method.)"""
    return None if callbacks.count(None) == len(callbacks) else callbacks


def _assign(explicit: list[int], following: int) -> tuple[list[int], int]:
    """Sequence ids in the order of sending; an explicit one does not advance the automatic ones.

    >>> _assign([0, 9, 0], 3)
    ([3, 9, 4], 5)
    """
    if not any(explicit):
        after = following + len(explicit)
        return list(range(following, after)), after
    ids = []
    for one in explicit:
        if one:
            ids.append(one)
        else:
            ids.append(following)
            following += 1
    return ids, following
