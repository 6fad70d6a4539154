"""Reading the entries of a topic that a subscription has not acknowledged, in order. Hot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol, TypeVar

from embeddedpulsar._engine.format.acknowledgement import AckGroup
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.log.log import Cursor, Log
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.subscription.log_queries import skipped_entries
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 20

R = TypeVar("R")


class UnackedReader:
    """The read position of an active consumer.

    Role: a cursor that leaves out what is acknowledged. It looks at acknowledgements, which needs the
    lock, only while it is behind the highest one that was there when it was put back; ahead of that it is
    the bare cursor. Callers: one thread at a time; `rewind` and `note_ack` inside, or after, a
    transaction.

    Attributes:
        position: the entry that is expected next, as (ledger, entry).
        furthest: the highest `position` before the last `rewind`.
        has_jumped: the entry read was not the one behind the last: a ledger ended, or something is missing.
        skipped: damaged entries that were stepped over and are to be acknowledged, lest they hold back the
            mark-delete position for ever.
    """

    __slots__ = (
        "_acked_through",
        "_cursor",
        "_log",
        "_shared",
        "furthest",
        "has_jumped",
        "position",
        "skipped",
    )

    def __init__(
        self, log: Log, shared: SharedState, state: SubscriptionState, cursor: Cursor | None = None
    ) -> None:
        self._log: Final = log
        self._shared: Final = shared
        self._cursor: Final = cursor or log.cursor(state.mark_delete, inclusive=False)
        self.has_jumped = False
        self.skipped: list[AckGroup] = []
        self.position: tuple[int, int] = BEFORE_FIRST
        self.furthest: tuple[int, int] = BEFORE_FIRST
        self.rewind(state)

    def rewind(self, state: SubscriptionState) -> None:
        start = state.mark_delete.next()
        self._cursor.seek(start)
        self.furthest = max(self.furthest, self.position)
        self.position = start
        last = state.acks.last_touched()
        self._acked_through: Position | None = last if last > state.mark_delete else None

    def prepare(self) -> None:
        """Read the next entry and stay before it, so that its segment is mapped when it is asked for."""
        with contextlib.suppress(PulsarException, OSError, ImportError):  # met again by the read that counts
            self._cursor.read(1, 1, 1)
        self._cursor.seek(Position(*self.position))

    def go_back(self, position: tuple[int, int]) -> None:
        self._cursor.seek(Position(*position))
        self.position = position
        self.has_jumped, self.skipped = False, []
        self.note_ack(self._shared.state.acks.last_touched())

    def note_ack(self, last: Position) -> None:
        """Note that entries up to ``last`` were acknowledged; before the read position they do not matter."""
        if last >= self.position and (self._acked_through is None or last > self._acked_through):
            self._acked_through = last

    def read(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next entries; none at the tail. Entries acknowledged in part have their ``skip`` set."""
        if self._acked_through is not None:
            return self._read_between(max_messages, max_bytes)
        views = self._cursor.read(max_messages, max_messages, max_bytes)
        if views:
            first = views[0]
            if len(views) == 1 and (first.ledger_id, first.entry_id) == self.position:
                self.position = (first.ledger_id, first.entry_id + 1)  # as `_advance`, without the call
            else:
                self._advance(views)
        return views

    def before_seek(self, position: Position) -> None:
        """Called before the subscription is moved to ``position``, without its lock."""

    def take_deferred(self, ledger_id: int) -> list[AckGroup]:
        """Entries that are to be acknowledged together with one of this ledger, up to it."""
        return []

    def has_read_all(self, tail: int) -> bool:
        """Whether it stands where the log ended when its tail word was ``tail``."""
        return self._acked_through is None and self._cursor.is_at(tail)

    def _advance(self, views: list[EntryView]) -> None:
        first, last = views[0], views[-1]
        is_contiguous = last.entry_id - first.entry_id + 1 == len(views)
        if not is_contiguous or (first.ledger_id, first.entry_id) != self.position:
            self.has_jumped = True
            self.skipped += skipped_entries(self._log, self.position, views)
        self.position = (last.ledger_id, last.entry_id + 1)

    def _read_between(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        while self._acked_through is not None:
            start, most = self._shared.transact(lambda state: self._next_stretch(state, max_messages))
            if start != self._cursor.position:
                self._cursor.seek(start)
                self.position = start
            views = self._cursor.read(most, max_messages, max_bytes)
            if not views:
                return views
            self._advance(views)
            views = self._leave_out_acked(views)
            if self.position > self._acked_through:
                self._acked_through = None
            if views:
                return views
        return self.read(max_messages, max_bytes)

    def _leave_out_acked(self, views: list[EntryView]) -> list[EntryView]:
        return self._shared.transact(lambda state: unacked(state, views))

    def _next_stretch(self, state: SubscriptionState, most: int) -> tuple[Position, int]:
        """Where the next unacknowledged entry may be, and how many follow before an acknowledged one."""
        start = state.acks.next_unacked(Position(*self.position))
        return start, state.acks.run_length(start, most)


def unacked(state: SubscriptionState, views: list[EntryView]) -> list[EntryView]:
    """The entries that are not acknowledged; if one is in part, its ``skip`` is set."""
    acks = state.acks
    found = []
    for view in views:
        position = Position(view.ledger_id, view.entry_id)
        if not acks.is_acked(position):
            view.skip = acks.indexes(position) or None
            found.append(view)
    return found


class Look(Protocol):
    """Calls a function with the state of a subscription; returns None if that is gone."""

    def __call__(self, body: Callable[[SubscriptionState], R], /) -> R | None: ...


def unacked_entries(log: Log, look: Look) -> Iterator[EntryView]:
    """The entries that are not acknowledged, in order, chunked messages whole, up to the tail."""
    chunks, start = log.chunks(), look(lambda state: state.mark_delete)
    cursor = log.cursor(start or BEFORE_FIRST, inclusive=False)
    while views := cursor.read(_AT_ONCE, _AT_ONCE, _BYTES_AT_ONCE):
        views, rest = chunks.complete(views, _BYTES_AT_ONCE)
        if rest is not None:
            cursor.seek(Position(rest.ledger_id, rest.entry_id))
        left = look(partial(unacked, views=views))
        if left is None:
            return
        yield from left
