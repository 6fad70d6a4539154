"""Entries that a consumer is given a second time, and what it acknowledged of them meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from embeddedpulsar.platform import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from embeddedpulsar.format.entry import EntryView

Position = tuple[int, int]
_BEFORE_ALL: Final = (-1, -1)


class Acknowledged(Protocol):
    """What a consumer acknowledged: of its `AckGroupingTracker`."""

    def begin_fetch(self) -> None:
        """Forget written acknowledgements: what is fetched from here on is without them."""

    def end_fetch(self) -> None:
        """Remember no more of them: no fetched entry was delivered before."""

    def has_acknowledged(self, view: EntryView, index: int) -> bool:
        """Whether a fetched message was acknowledged since."""


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

    def __init__(self, acks: Acknowledged, counts: bool, last_handed: Callable[[], EntryView | None]) -> None:
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
            return True
        self._acks.end_fetch()
        return False

    def has_acknowledged(self, view: EntryView, index: int) -> bool:
        return self._acks.has_acknowledged(view, index)


class RecentAcks:
    """The acknowledgements of a consumer since its last fetch, to be asked for single messages.

    Role: those that are not written yet are in ``done``, and those that were written since are noted. What
    was written before the fetch the fetch leaves out. Each item of ``done`` is looked at once.
    Callers: any thread, under `lock`, which is held during no call that waits.

    Args:
        done: entries whose acknowledgement is not written. It grows without a lock, at its end, and loses
            items from its front under `lock`, after `note_written`.
    """

    __slots__ = ("_done", "_entries", "_parts", "_seen", "lock")

    def __init__(self, done: list[Position], lock: threads.RLock) -> None:
        self.lock = lock
        self._done = done
        self._seen = 0
        self._entries: set[Position] = set()
        self._parts: dict[Position, bytes] = {}

    def note_written(self, count: int, parts: Mapping[Position, bytes]) -> None:
        """Note that the first ``count`` items of ``done`` are written, and these parts of batches."""
        self._entries.update(self._done[self._seen : count])
        self._seen = max(0, self._seen - count)
        self._parts.update(parts)

    def has(self, position: Position, index: int) -> bool:
        """Whether an entry, or this message of it, was acknowledged."""
        try:
            self.lock.acquire()
            added = self._done[self._seen :]
            self._entries.update(added)
            self._seen += len(added)
            flags = self._parts.get(position)
            return position in self._entries or (
                flags is not None and index < len(flags) and flags[index] > 0
            )
        finally:
            self.lock.release()
