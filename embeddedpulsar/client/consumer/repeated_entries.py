"""Entries that a consumer is given a second time, and what it acknowledged of them meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker

Position = tuple[int, int]
_BEFORE_ALL: Final = (-1, -1)


class RepeatedEntries:
    """Tells which fetched entries may have been delivered before, and which of their messages to leave out.

    Role: the application may hold a message of such an entry, and acknowledge it while the entry is on its
    way for the second time, when the subscription cannot leave it out any more. So the messages of these
    entries are made one by one, when they are asked for, and each is compared with the acknowledgements first
    (`ReceiverQueue`). Other entries are delivered for the first time, and cannot have been acknowledged,
    except by an id, for which `ConsumerCore.acknowledge` removes them from the queue.

    Invariants: made when entries are given back, before any is fetched again. Called under the lock of the
    queue.

    Args:
        acks: what the consumer acknowledged.
        counts: whether the subscription counts the deliveries of an entry; if not, its entries come in order.
        last_handed: returns the last entry that the application got, where it is known.
    """

    __slots__ = ("_acks", "_before", "_counts", "_last_handed")

    def __init__(
        self, acks: AckGroupingTracker, counts: bool, last_handed: Callable[[], EntryView | None]
    ) -> None:
        self._acks = acks
        self._counts = counts
        self._last_handed = last_handed
        self._before: Position = _BEFORE_ALL

    def expect_before(self, position: Position) -> None:
        """Note that entries before ``position`` may have been delivered."""
        self._before = max(self._before, position)

    def note_handed(self) -> None:
        last = self._last_handed()
        if last is not None:
            self.expect_before((last.ledger_id, last.entry_id + 1))

    def may_be_repeated(self, view: EntryView) -> bool:
        return view.redelivery_count > 0 or (view.ledger_id, view.entry_id) < self._before

    def begin_fetch(self) -> None:
        self.note_handed()
        self._acks.begin_fetch()

    def end_fetch(self, views: Sequence[EntryView]) -> bool:
        """Return whether some of the fetched entries may have been delivered before."""
        if any(map(self.may_be_repeated, views if self._counts else views[:1])):
            self._acks.take_back(views)
            return True
        self._acks.end_fetch()
        return False

    def has_acknowledged(self, view: EntryView, index: int) -> bool:
        return self._acks.has_acknowledged(view, index)
