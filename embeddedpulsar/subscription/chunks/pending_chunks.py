"""Chunked messages of which a consumer has seen some parts and not the last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from embeddedpulsar.format.entry_view import EntryView
from embeddedpulsar.managed_ledger.position import Position

Key = tuple[str, int]
"""Producer and sequence id. They stand outside of what is packed or encrypted."""


class ChunkOptions(NamedTuple):
    """What a consumer does with messages whose last part does not come.

    Attributes:
        max_pending: most incomplete messages; 0 for any number.
        is_oldest_acked: whether the oldest, when there are more, is acknowledged; else it is left alone and
            comes when it is asked for again.
        expire_ms: how long the last part may take; 0 for ever.
    """

    max_pending: int = 10
    is_oldest_acked: bool = False
    expire_ms: int = 60_000


DEFAULT_CHUNKS: Final = ChunkOptions()


class OpenChunks:
    """The parts of one incomplete message.

    Attributes:
        key: the message they belong to.
        places: their entries.
        since: when the first was seen, in seconds.
        is_dropped: there were too many incomplete messages: this one is not to be delivered.
        is_counted: whether it counts as incomplete here; else another consumer read it.
        last: where the last part is, if that was looked up.
    """

    __slots__ = ("is_counted", "is_dropped", "key", "last", "places", "since")

    def __init__(self, key: Key, since: float, is_counted: bool) -> None:
        self.key: Final = key
        self.places: set[Position] = set()
        self.since = since
        self.is_counted = is_counted
        self.is_dropped = False
        self.last: Position | None = None


class PendingChunks:
    """Incomplete messages, the oldest first.

    Role: counts and forgets; decides nothing about acknowledgements. A producer that begins a message anew
    under the same sequence id adds to it; what its last part does not name stays incomplete. Not thread-safe.

    >>> PendingChunks(ChunkOptions()).expired(60.0)
    []
    """

    def __init__(self, options: ChunkOptions) -> None:
        self._options: Final = options
        self._open: dict[Key, OpenChunks] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, part: EntryView, now: float, *, is_counted: bool = True) -> OpenChunks | None:
        """Note a part that is not the last; the oldest message, if this makes one too many."""
        key = key_of(part)
        found = self._open.get(key)
        dropped = None
        if found is None:
            if is_counted:
                dropped = self._drop_oldest()
            found = self._open[key] = OpenChunks(key, now, is_counted)
        found.places.add(Position(part.ledger_id, part.entry_id))
        return dropped

    def _drop_oldest(self) -> OpenChunks | None:
        most = self._options.max_pending
        counted = [one for one in self._open.values() if one.is_counted and not one.is_dropped]
        if not most or len(counted) < most:
            return None
        counted[0].is_dropped = True
        return counted[0]

    def finish(
        self, key: Key, last: Position, earlier: Iterable[tuple[int, int]] | None
    ) -> OpenChunks | None:
        """Note the last part, and return what was known of the message, which is complete now."""
        found = self._open.get(key)
        if found is None:
            return None
        named = found.places if earlier is None else {Position(*one) for one in earlier}
        left = {place for place in found.places if place > last or place not in named}
        del self._open[key]
        if left:
            rest = self._open[key] = OpenChunks(key, found.since, found.is_counted)
            rest.places = left
        found.places -= left
        return found

    def forget(self, one: OpenChunks) -> None:
        if self._open.get(one.key) is one:
            del self._open[one.key]

    def expired(self, now: float) -> list[OpenChunks]:
        expire_ms = self._options.expire_ms
        if not expire_ms:
            return []
        return [one for one in self._open.values() if now - one.since >= expire_ms / 1000 - 1e-6]

    def next_due(self) -> float | None:
        expire_ms = self._options.expire_ms
        if not expire_ms or not self._open:
            return None
        return min(one.since for one in self._open.values()) + expire_ms / 1000

    def places(self) -> set[Position]:
        return {place for one in self._open.values() for place in one.places}


def key_of(view: EntryView) -> Key:
    """The message of which an entry is a part."""
    return view.producer_name, view.first_sequence_id
