"""The entries behind the read position of a Shared or Key_Shared subscription, read before it is claimed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from embeddedpulsar.format.acknowledgement import AckGroup
from embeddedpulsar.format.entry import EntryView
from embeddedpulsar.format.frame import FLAG_CHUNK, FLAG_DELAYED
from embeddedpulsar.format.key_hash import sticky_key_hash
from embeddedpulsar.managed_ledger.chunk_assembler import has_chunks
from embeddedpulsar.managed_ledger.log import Log
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.dispatch.assignment import FreshEntry
from embeddedpulsar.subscription.log_queries import skipped_entries

NO_KEY: Final = "NON_KEY"


class LookAhead:
    """Entries that are read from the log before they are claimed.

    Role: keeps the log out of the subscription's lock. Reading is cheap and takes no lock; what another
    consumer claims first is thrown away. Invariants: `_views` are the readable entries from `_start` on, in
    order, without a gap but for damage. Callers: the consumer's reading thread.
    """

    def __init__(self, log: Log, control: SubscriptionControl, keys_matter: bool) -> None:
        self._log: Final = log
        self._control: Final = control
        self._cursor: Final = log.cursor(Position(0, 0), inclusive=True)
        self._no_key: Final = sticky_key_hash(NO_KEY) if keys_matter else 0
        self._keys_matter: Final = keys_matter
        self._start: Position | None = None
        self._next = Position(0, 0)
        self._views: list[EntryView] = []
        self._facts: list[FreshEntry] = []
        self._passed: dict[tuple[int, int], EntryView] = {}
        self._at_tail = False
        self.chunks: list[EntryView] = []
        """Entries of chunked messages that the read position passed; for the owner to take."""

    def clear(self) -> None:
        """Forget everything."""
        self._start = None
        self._views = []
        self._facts = []
        self._passed = {}

    @property
    def messages(self) -> int:
        """Messages in what was read ahead."""
        return sum(entry.messages for entry in self._facts)

    @property
    def last_ledger(self) -> int:
        """Ledger of the last entry that was read ahead."""
        return self._facts[-1].ledger_id if self._facts else 0

    def look(self, max_messages: int, max_bytes: int) -> None:
        """Read from where the subscription reads on; what is there already is kept."""
        hint = self._control.read_position
        if self._start is None or not self._start <= hint <= self._next:
            self._start = self._next = hint
            self._views, self._facts = [], []
            self._cursor.seek(hint)
        self.drop_before(hint)
        if not self._views:
            views = self._cursor.read(max(max_messages, 1), max(max_messages, 1), max_bytes)
            self._views = views
            self._facts = [self._fact(view) for view in views]
            self._at_tail = True
            if views:
                self._next = Position(views[-1].ledger_id, views[-1].entry_id + 1)
                self._at_tail = (self._log.last_position() or self._next) < self._next

    def _fact(self, view: EntryView) -> FreshEntry:
        deliver_at = 0
        if view.flags & FLAG_DELAYED:
            times = view.deliver_at()
            deliver_at = max(times) if times else 0
        key_hash = (view.key_hash or self._no_key) if self._keys_matter else 0
        return FreshEntry(view.ledger_id, view.entry_id, view.count, key_hash, deliver_at)

    def backlog(self, room: int) -> int:
        """Messages behind the read position, exact where it matters: if they are few."""
        messages = self.messages
        if messages < room or not self._views:
            return messages
        last = self._views[-1]
        return messages + self._log.messages_after(Position(last.ledger_id, last.entry_id))

    def covers(self, read: Position) -> bool:
        """Whether what was read ahead is what stands behind ``read``."""
        return self._start is not None and self._start <= read <= self._next

    def entries_from(self, read: Position) -> Sequence[FreshEntry]:
        """What stands behind ``read``, as far as it was read."""
        skip = self._index_of(read)
        return self._facts[skip:] if skip else self._facts

    def gaps_from(self, read: Position) -> list[AckGroup]:
        """Entries behind ``read`` that cannot be read."""
        views = self._views[self._index_of(read) :]
        if not views:
            return []
        first, last = views[0], views[-1]
        if (first.ledger_id, first.entry_id) == read and last.entry_id - first.entry_id + 1 == len(views):
            return []
        return skipped_entries(self._log, read, views)

    def is_exhausted_at(self, read: Position) -> bool:
        """Whether nothing of what was read ahead stands behind ``read``, though there may be more."""
        return self._index_of(read) >= len(self._views) and not self._at_tail

    def has_beyond(self, read: Position) -> bool:
        """Whether there is, as far as is known, something behind ``read``."""
        return self._index_of(read) < len(self._views) or not self._at_tail or not self.covers(read)

    def drop_before(self, read: Position) -> None:
        """Drop the entries that the read position has passed: they need no assignment."""
        if self._start is None or read <= self._start:
            return
        skip = self._index_of(read)
        passed = self._views[:skip]
        self._passed = {(view.ledger_id, view.entry_id): view for view in passed}
        if has_chunks(passed):
            self.chunks += [view for view in passed if view.flags & FLAG_CHUNK]
        del self._views[:skip], self._facts[:skip]
        self._start = read

    def _index_of(self, read: Position) -> int:
        return bisect_left(self._facts, read, key=_position_of)

    def has(self, ledger_id: int, entry_id: int) -> bool:
        """Whether `take` may have this entry."""
        return (ledger_id, entry_id) in self._passed

    def take(self, ledger_id: int, first: int, last: int) -> list[EntryView] | None:
        """The entries ``first..last`` if `drop_before` just dropped them; None if they must be read again."""
        passed = self._passed
        if (ledger_id, first) not in passed:
            return None
        try:
            return [passed.pop((ledger_id, entry_id)) for entry_id in range(first, last + 1)]
        except KeyError:
            return None


def _position_of(entry: FreshEntry) -> Position:
    return Position(entry.ledger_id, entry.entry_id)
