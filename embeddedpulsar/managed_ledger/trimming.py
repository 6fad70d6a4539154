"""Which ledgers of a topic are not needed any more, and giving them up.

A process that trims looks at the subscriptions first, without a lock, and publishes the trim point
afterwards. One word makes that safe, RETREATS: a process that has put a subscription further back than it
was, or has made one, raises it under the topic lock before it reports that. So a trim point counts only if
the word is what it was before the subscriptions were looked at: until then they can only have moved forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from embeddedpulsar._engine.format.control import TopicWord, split_tail
from embeddedpulsar._engine.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar._engine.platform import clock, descriptors, disk, failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.managed_ledger.pins import pinned_from, pinned_word
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.policies import Retention
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.filenames import INDEX_SUFFIX, LOG_SUFFIX, index_path, ledgers_of, log_path
from embeddedpulsar.storage.log_view import LogView
from embeddedpulsar.storage.segment_cache import SEGMENTS
from embeddedpulsar.storage.segment_chain import ClosedLedger, LedgerChain
from embeddedpulsar.storage.topic_control import TopicControl

failpoints.declare("trim:point_stored", "trim:unlinked")

_TRIM: Final = TopicWord.TRIM
_RETREATS: Final = TopicWord.RETREATS
EVERYTHING: Final = 1 << 62

Seen = tuple[int, int]
"""What changes when a subscription is made or put back, and when a reader pins."""


class LedgerNeed(NamedTuple):
    """Why a closed ledger is to stay; it may go once neither holds, and those before it went.

    Attributes:
        ledger: the ledger.
        is_unacked: it holds an entry that is not acknowledged.
        is_retained: it is acknowledged, and the retention keeps it all the same.
    """

    ledger: ClosedLedger
    is_unacked: bool
    is_retained: bool


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
        view: LogView,
        lock_timeout_s: float,
        remove: Callable[[int, float], int],
    ) -> None:
        self.remove: Final = remove
        """Removes what is stored of ledgers that were given up, at most so many, for about so many seconds;
        returns how many went."""
        self._directory: Final = control.home.directory  # where its pins are
        self._control: Final = control
        self._lock: Final = lock
        self._view: Final = view
        self._timeout_s: Final = lock_timeout_s
        self.suggest: Callable[[], object] = int
        """Called when there may be something to trim, possibly under the topic lock: must not wait."""
        self.relieve: Callable[[], object] = int
        """Called when an append found no room on the disk, under the topic lock: must not wait."""
        self.snapshot_before: Callable[[int, float | None], int] = lambda first, _: first
        """Saves what must be remembered of the ledgers before the one given, and returns up to which it did;
        to be called before `give_up`, without locks, with the time it may wait for one."""

    def rewind_count(self, lock_timeout_s: float | None = None) -> Seen:
        """To be read before the subscriptions and pins are looked at, and given to `give_up`."""
        try:
            self._lock.acquire(lock_timeout_s or self._timeout_s)
            return self._seen()
        finally:
            self._lock.release()

    def _seen(self) -> Seen:
        return int(self._control.words[_RETREATS]), pinned_word(self._directory)

    def pinned(self, now_ms: int, *, removes: bool, with_readers: bool = True) -> list[Position]:
        """The positions behind which pins keep everything: one, or none.

        Args:
            now_ms: the time of day.
            removes: whether pins that count no more are removed. Under the housekeeping lock.
            with_readers: whether pins of readers count, too.
        """
        found = pinned_from(self._directory, now_ms, removes=removes, with_readers=with_readers)
        return [] if found is None else [found]

    def note_retreat(self) -> None:
        """Void trim points that were chosen before: a subscription was made, or put back.

        Called after it was, and before that is reported. A process that dies in between has reported nothing.
        """
        words = self._control.words
        try:
            self._lock.acquire(self._timeout_s)
            words[_RETREATS] += 1
        finally:
            self._lock.release()

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
        tail = self._view.chain().tail_ledger
        for need in self.needs(marks, retention, now_ms):
            if need.is_unacked or need.is_retained:
                return need.ledger.ledger_id
        return tail

    def needs(self, marks: Collection[Position], retention: Retention, now_ms: int) -> Iterator[LedgerNeed]:
        """What holds each closed ledger, the oldest first; see `first_needed`."""
        chain = self._view.chain()
        slowest = min(marks, default=None)
        left = sum(map(_size, chain.closed)) + self._tail_size(chain)
        for number, ledger in enumerate(chain.closed):
            last = ledger.last_entry_id
            is_unacked = slowest is not None and last >= 0 and (ledger.ledger_id, last) > slowest
            left -= _size(ledger)
            is_old = retention.is_none or retention.is_over_size(left)
            is_retained = (
                not is_unacked and not is_old and not self._is_over_time(chain, number, retention, now_ms)
            )
            yield LedgerNeed(ledger, is_unacked, is_retained)

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

    def give_up(self, ledger_id: int, seen: Seen, lock_timeout_s: float | None = None) -> bool:
        """Give up the ledgers before `ledger_id`, never the tail's; their entries stay until `remove`.

        Returns:
            False, and nothing done, if a subscription was made or put back, or a reader pinned, since
            `rewind_count`.
        """
        words = self._control.words
        try:
            self._lock.acquire(lock_timeout_s or self._timeout_s)
            if self._seen() != seen:
                return False
            # 1. The trim point. A process that misses a file below it knows that it was trimmed, not lost.
            tail_ledger, _ = split_tail(words[TopicWord.TAIL])
            point = min(ledger_id, tail_ledger)
            if point > words[_TRIM]:
                words[_TRIM] = point
            failpoints.hit("trim:point_stored")
        finally:
            self._lock.release()
        return True


def _size(ledger: ClosedLedger) -> int:
    return max(0, ledger.end_offset - FIRST_FRAME_OFFSET)


def remove_trimmed(
    directory: str, control: TopicControl, most: int, within_s: float, *, is_durable: bool = True
) -> int:
    """Remove the files of ledgers that were given up, at most `most` of them, and begin none after `within_s`
    seconds; return how many ledgers lost files, 0 when no such file is left.

    Readers that have a segment mapped read it to its end; others jump to the first retained ledger. May be
    repeated: what a crash left is removed by the next call.
    Needs no lock: no process makes a file below the trim point.
    """
    point = int(control.words[_TRIM])
    names = descriptors.names_in(directory)
    there = {ledger for suffix in (LOG_SUFFIX, INDEX_SUFFIX) for ledger in ledgers_of(names, suffix)}
    expired = sorted(ledger for ledger in there if ledger < point)[:most]
    if expired:
        control.check_in_place()
        # 2. Durably, or after a power loss a file might be gone and the trim point not yet there.
        if is_durable:
            control.flush()
    removed = 0
    until = clock.perf_counter() + within_s
    try:
        # 3. The files, oldest first. A crash leaves some of them: strays below the trim point.
        for ledger in expired:
            for path in (log_path(directory, ledger), index_path(directory, ledger)):
                with contextlib.suppress(FileNotFoundError):  # another process trims too
                    disk.DISK.unlink(path)
                failpoints.hit("trim:unlinked")
            removed += 1  # also if only its index was left, or the caller would take the rest for removed
            if clock.perf_counter() > until:
                break
    finally:
        # 4. The maps of this process, also of what another has removed: as long as a process has one, the
        # disk space is not given back.
        SEGMENTS.forget_below(control.home, point)
    return removed
