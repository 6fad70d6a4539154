"""Reading what compaction left of the entries of a topic that a subscription has not acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from embeddedpulsar.format.acknowledgement import AckGroup
from embeddedpulsar.format.entry import EntryView
from embeddedpulsar.managed_ledger.log import Cursor, Log
from embeddedpulsar.managed_ledger.position import BEFORE_FIRST, Position
from embeddedpulsar.subscription.attachment.unacked_reader import UnackedReader, unacked
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.state.state_machine import SubscriptionState


class CompactedSource(Protocol):
    """What has the compacted ledger of a topic, with its log behind it."""

    @property
    def cursor(self) -> Callable[..., Cursor]:
        """As `Log.cursor`."""


class CompactedReader(UnackedReader):
    """The read position of an active consumer that reads compacted.

    Role: entries that compaction removed are stepped over, and acknowledged as damaged ones are. If nothing
    that the log retains is acknowledged, it begins with the first message of the compacted ledger, be it
    trimmed from the log: so a consumer that comes back before it acknowledged any other begins there again.
    Until then the removed entries are acknowledged only with an entry that the log retains.
    Callers: as of `UnackedReader`.
    """

    __slots__ = ("_deferred", "_is_from_start", "_is_trimmed")

    def __init__(
        self, log: Log, shared: SharedState, state: SubscriptionState, source: CompactedSource
    ) -> None:
        self._deferred: list[AckGroup] = []
        self._is_from_start = self._is_trimmed = False
        super().__init__(log, shared, state, source.cursor(BEFORE_FIRST, inclusive=False))

    def rewind(self, state: SubscriptionState) -> None:
        super().rewind(state)
        self._deferred = []
        self._is_trimmed = False
        self._is_from_start = Position(*self._next) <= self._log.first_position()
        if self._is_from_start:
            start = BEFORE_FIRST.next()
            self._cursor.seek(start)
            self._next = start

    def take_deferred(self, ledger_id: int) -> list[AckGroup]:
        groups = [group for group in self._deferred if group.ledger_id <= ledger_id]
        if groups:
            self._deferred = [group for group in self._deferred if group.ledger_id > ledger_id]
        return groups

    def _advance(self, views: list[EntryView]) -> None:
        super()._advance(views)
        if self._is_from_start and not self._is_trimmed:
            self._is_trimmed = views[0].ledger_id < self._log.first_position().ledger_id
        if self._is_trimmed and self.has_jumped:
            self._deferred += self.skipped
            self.has_jumped, self.skipped = False, []

    def _next_stretch(self, state: SubscriptionState, most: int) -> tuple[Position, int]:
        if self._next[0] < state.mark_delete.ledger_id:  # of what is trimmed nothing counts as acknowledged
            return self._cursor.position, most
        return super()._next_stretch(state, most)

    def _leave_out_acked(self, views: list[EntryView]) -> list[EntryView]:
        def body(state: SubscriptionState) -> list[EntryView]:
            if views[0].ledger_id < state.mark_delete.ledger_id:
                return views
            found = unacked(state, views)
            for view in found:
                removed: int = getattr(view, "removed", 0)
                if removed:
                    view.skip = removed | (view.skip or 0)  # type: ignore[operator]  # `unacked` sets an int
            return found

        return self._shared.transact(body)
