"""Which ledgers of a topic are not needed any more, and giving them up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.control import TopicWord
from embeddedpulsar.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar.managed_ledger.ledgers_view import LedgersView
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.retention import Retention
from embeddedpulsar.storage import trim
from embeddedpulsar.storage.segment_set import ClosedLedger, LedgerChain
from embeddedpulsar.storage.topic_control import TopicControl


class Trimming:
    """The trim point of one topic.

    Role: decides what may go; the layers above decide when it is trimmed.
    Invariants: only whole closed ledgers go, from the oldest on, and none that holds an entry which is not
    acknowledged. A trim point that was chosen before a subscription was made or put back is not published.
    Callers: any thread.
    """

    def __init__(
        self,
        control: TopicControl,
        lock: FileLock,
        view: LedgersView,
        lock_timeout_s: float,
        remove: Callable[[int, float], int],
    ) -> None:
        self.remove: Final = remove
        """Removes what is stored of ledgers that were given up, at most so many, for about so many seconds;
        returns how many went."""
        self._control: Final = control
        self._lock: Final = lock
        self._view: Final = view
        self._timeout_s: Final = lock_timeout_s
        self.suggest: Callable[[], object] = int
        """Called when there may be something to trim, possibly under the topic lock: must not wait."""
        self.snapshot_before: Callable[[int, float | None], int] = lambda first, _: first
        """Saves what must be remembered of the ledgers before the one given, and returns up to which it did;
        to be called before `give_up`, without locks, with the time it may wait for one."""

    def rewind_count(self, lock_timeout_s: float | None = None) -> int:
        """To be read before the subscriptions are looked at, and given to `give_up`."""
        return trim.rewind_count(self._control, self._lock, lock_timeout_s or self._timeout_s)

    def note_retreat(self) -> None:
        """A subscription was made or put back. To be called before that is reported to the caller."""
        trim.note_retreat(self._control, self._lock, self._timeout_s)

    @property
    def has_closed_ledgers(self) -> bool:
        """Whether there may be something to trim. Reads three words."""
        words = self._control.words
        return bool(words[TopicWord.TOTAL_ENTRIES]) and self.first_retained < words[TopicWord.TAIL] >> 32

    @property
    def first_retained(self) -> int:
        """Ledgers before this one were given up."""
        return int(self._control.words[TopicWord.TRIM])

    def first_needed(self, marks: Sequence[Position], retention: Retention, now_ms: int) -> int:
        """The first ledger that is to stay.

        Args:
            marks: the mark-delete positions of all that hold entries back.
            retention: how much of what is acknowledged stays all the same.
            now_ms: the time of day.
        """
        chain = self._view.chain()
        slowest = min(marks, default=None)
        left = sum(map(_size, chain.closed)) + self._tail_size(chain)
        for number, ledger in enumerate(chain.closed):
            last = ledger.last_entry_id
            if slowest is not None and last >= 0 and (ledger.ledger_id, last) > slowest:
                return ledger.ledger_id
            left -= _size(ledger)
            is_old = retention.is_none or retention.is_over_size(left)
            if not is_old and not self._is_over_time(chain, number, retention, now_ms):
                return ledger.ledger_id
        return chain.tail_ledger

    def _tail_size(self, chain: LedgerChain) -> int:
        end = self._view.end_of(chain.tail_ledger) if chain.tail_ledger else 0
        return max(0, end - FIRST_FRAME_OFFSET)

    def _is_over_time(self, chain: LedgerChain, number: int, retention: Retention, now_ms: int) -> bool:
        """Whether the last entry of a closed ledger was published long enough ago."""
        ledger = chain.closed[number]
        following = chain.closed[number + 1] if number + 1 < len(chain.closed) else None
        latest = following.base_publish_ms if following is not None else chain.tail_base_publish_ms
        if retention.is_over_time(now_ms - latest):
            return True
        if not retention.is_over_time(now_ms - ledger.base_publish_ms):
            return False
        if ledger.last_entry_id < 0:
            return True
        try:
            slot = self._view.slot(ledger.ledger_id, ledger.last_entry_id)
        except (FileNotFoundError, CorruptionError):
            return False  # lost or damaged; until the ledger behind it is old enough
        return retention.is_over_time(now_ms - ledger.base_publish_ms - slot.publish_delta_ms)

    def give_up(self, ledger_id: int, seen_retreats: int, lock_timeout_s: float | None = None) -> bool:
        """Publish the trim point; False, and nothing done, if a subscription moved back meanwhile."""
        timeout_s = lock_timeout_s or self._timeout_s
        return trim.publish_trim_point(self._control, self._lock, ledger_id, timeout_s, seen_retreats)


def _size(ledger: ClosedLedger) -> int:
    return max(0, ledger.end_offset - FIRST_FRAME_OFFSET)
